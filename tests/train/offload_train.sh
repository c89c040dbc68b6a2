#!/bin/sh
# States in a file (optim.offload nvme): checkpoints have the bytes of a run with resident states (rules and formats: equal.c,
# optim_offload.c), killed anywhere and resumed with or without the key. The plan equals the measurement. A full disk, a
# failure or a short write is reported, and the last checkpoint resumes. MEOPT_LONG=1: 300 kills, or MEOPT_KILLS.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 40
mkdir scratch
set -- "$work/configs/quickstart_dinov2.yaml" train.batch_size=4 train.steps=6 train.checkpoint_steps=3 --run-dir runs
away="optim.offload=nvme optim.offload_dir=$work/scratch"
run() { # NAME overrides... : a run from its start, whole
    name=$1
    shift
    "$MEOPT" train "$@" --name "$name" >log 2>&1 || fail "$name: exit $?"
}
same() { # NAME OTHER STEP
    for file in model.safetensors optimizer.bin; do
        cmp "runs/$1/ckpt/step-0000000$3/$file" "runs/$2/ckpt/step-0000000$3/$file" || fail "$2 is not $1"
    done
}
count=0
while read -r fraction overrides; do
    count=$((count + 1))
    # shellcheck disable=SC2086 # words
    run "held$count" "$@" $overrides
    # shellcheck disable=SC2086
    run "away$count" "$@" $overrides $away optim.offload_fraction="$fraction"
    same "held$count" "away$count" 6
    [ "$fraction" = 0 ] || grep -q "^optimizer states: .*$work/scratch.* threads\$" log || fail "who moves the states"
    python3 - "runs/held$count" "runs/away$count" "$fraction" <<'END' || fail "figures of: $overrides"
import json, sys
lines = [[json.loads(x) for x in open(r + "/metrics.jsonl")] for r in sys.argv[1:3]]
for a, b in zip(*lines):
    assert (a["loss"], a["grad_norm"]) == (b["loss"], b["grad_norm"]), (a, b)
    assert "offload_wait_ms" not in a and b["offload_wait_ms"] >= 0
card, fraction = lines[1][-1]["cards"][0], float(sys.argv[3])
plan = json.load(open(sys.argv[2] + "/plan.json"))
assert plan["peak_bytes"] == card["peak_bytes"] and plan["classes"] == card["classes"], (plan, card)
assert plan["file_classes"] == card["file_classes"] and bool(card["file_classes"]) == (fraction > 0), card
END
done <<TABLE
1 optim.preset=balanced
0.3 optim.preset=minimal optim.gradients=keep
0 optim.name=lion
TABLE
[ -z "$(ls scratch)" ] || fail "something is left in the directory of the file: $(ls scratch)"
"$MEOPT" compare --csv runs/held1 runs/away1 >out 2>log || [ $? = 8 ] || fail compare
grep -q '^facts,offload_wait_percent,,[0-9]' out || fail "compare: no wait for states"
grep -q '^facts,file_optimizer_bytes,,[1-9]' out || fail "compare: no states in files"
"$MEOPT" compare --csv runs/held1 runs/held1 >out 2>log
! grep -q '^facts,\(offload_wait_percent\|file_optimizer_bytes\),' out || fail "compare: a wait for states that are held"

# Killed at any moment of a run, worker and all, and resumed with the states held, elsewhere, in part: as if it had never stopped.
kills=3 last=60 in_steps=0 ended=0
[ "${MEOPT_LONG:-}" != 1 ] || kills=${MEOPT_KILLS:-300}
run whole "$@" train.steps=9
set -- "$@" train.steps=$last
begun=$(date +%s%N)
run long "$@"
took=$((($(date +%s%N) - begun) / 1000000))
line() { tail -n 1 runs/cut/metrics.jsonl 2>/dev/null || true; }
step() { sed -n 's/.*"step": *\([0-9]*\).*/\1/p'; }
saved() { ls runs/cut/ckpt 2>/dev/null | sed -n 's/^step-0*\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }
i=0
while [ "$i" -lt "$kills" ]; do
    case $((i % 3)) in 0) more="$away" ;; 1) more="optim.offload=none" ;; 2) more="$away optim.offload_fraction=0.4" ;; esac
    from=$(saved) before=$(line)
    # shellcheck disable=SC2086
    if [ -e runs/cut/meta.json ]; then
        "$MEOPT" train --resume runs/cut $more >log 2>&1 &
    else
        rm -rf runs/cut
        "$MEOPT" train "$@" $more --name cut >log 2>&1 &
    fi
    pid=$!
    i=$((i + 1))
    sleep "$(awk -v s=$i -v took=$took 'BEGIN { srand(s); printf "%.3f", rand() * took / 1000 }')"
    worker=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null || true)
    # shellcheck disable=SC2086
    kill -KILL "$pid" $worker 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    if [ -d "runs/cut/ckpt/step-000000$last" ]; then
        ended=$((ended + 1))
        mv runs/cut "runs/done$i"
    else # steps were made after the checkpoint that it began with
        after=$(line)
        made=$(echo "$after" | step)
        [ "$after" = "$before" ] || [ "${made:-0}" -le "${from:-0}" ] || in_steps=$((in_steps + 1))
    fi
done
echo "$kills kills over $took ms: $in_steps among steps, $ended behind the last one"
[ "$kills" -lt 30 ] || [ $((3 * in_steps)) -ge "$kills" ] || fail "too few kills fell among steps"
# shellcheck disable=SC2086
if [ -e runs/cut/meta.json ]; then "$MEOPT" train --resume runs/cut $away >log 2>&1 || fail "cut: exit $?"; else
    rm -rf runs/cut
    run cut "$@" $away
fi
for run in runs/cut runs/done*; do
    [ ! -d "$run" ] || for file in model.safetensors optimizer.bin; do
        cmp "runs/long/ckpt/step-000000$last/$file" "$run/ckpt/step-000000$last/$file" || fail "$run is not the run that was never stopped"
    done
done
[ -z "$(ls scratch)" ] || fail "a killed process has left something: $(ls scratch)"

# The file's disk fails, in the middle of a step.
export LD_LIBRARY_PATH="$MEOPT_BUILD/tests:${LD_LIBRARY_PATH:-}"
failing() { # CODE CALL K ERRNO NAME [EVER]
    truncate -s 0 counters
    truncate -s 65536 counters
    code=0
    # shellcheck disable=SC2086
    env LD_PRELOAD=libfault.so FAULT_SHARED="$work/counters" FAULT_UNDER="$work/scratch" FAULT_CALL="$2" FAULT_K="$3" \
        FAULT_ERRNO="$4" ${6:+FAULT_EVER=1} "$MEOPT" train "$work/configs/quickstart_dinov2.yaml" train.batch_size=4 train.steps=9 \
        train.checkpoint_steps=3 --run-dir runs $away --name "$5" >log 2>&1 || code=$?
    [ "$code" = "$1" ] || fail "$5: exit $code, not $1"
    [ "$1" = 0 ] || grep -q "^meopt: .*${called:-}.*$work/scratch" log || fail "$5: the directory is not named"
}
goes_on() { # NAME: from its last checkpoint
    "$MEOPT" train --resume "runs/$1" >log 2>&1 || fail "$1: resume"
    same whole "$1" 9
}
failing 5 allocate 1 28 full
failing 0 write 25 0 short # a short write is finished
same whole short 9
failing 0 write 1 22 unaligned # the file system wants larger pieces with O_DIRECT: through it, then
same whole unaligned 9
failing 0 read 25 0 short_read
same whole short_read 9
for k in 12 36; do
    called=writing failing 1 write $k 5 "write$k"
    goes_on "write$k"
done
failing 5 write 30 28 nospace
goes_on nospace
called=reading failing 1 read 30 5 read30
goes_on read30
failing 1 write 25 0 shorter ever # one that never gets further is not tried for ever
failing 1 read 25 0 shorter_read ever

# A directory that is not there, because its disk is not mounted, is not made.
code=0
"$MEOPT" train "$work/configs/quickstart_dinov2.yaml" train.steps=2 --run-dir runs --name absent optim.offload=nvme \
    optim.offload_dir="$work/absent" >log 2>&1 || code=$?
[ "$code" != 0 ] || fail "a directory for states that is not there is no error"
grep -q "^meopt: .*$work/absent" log || fail "the directory that is not there is not named"
[ ! -e "$work/absent" ] || fail "the directory that was not there was made"
