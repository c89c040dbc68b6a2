#!/bin/sh
# Whatever asks a run to stop, in whatever phase it is: it saves what it has trained and ends with exit code 10, and what is resumed
# is, byte for byte, the run that was left alone. On a slow file system, so that each phase lasts; most of the time is waited, so
# there are twice as many runs at once as there are processors, each in a directory of its own. Each signal in two phases;
# MEOPT_LONG=1: in each 50 times, so 200 runs of each signal.
set -eu
rounds=1
[ "${MEOPT_LONG:-0}" = 1 ] && rounds=50
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
fail() {
    echo "FAILED: $*" >&2
    : >"$work/failed"
    tail -n 5 out >&2 || true
    cat runs/cut/state.json >&2 || true
    exit 1
}
export ASAN_OPTIONS="verify_asan_link_order=0:${ASAN_OPTIONS:-}"
# preloaded by its name: a path in LD_PRELOAD ends at a space
export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" FAULT_UNDER="$(pwd -P)"
test -e "$LD_LIBRARY_PATH/libfault.so" || fail "no $LD_LIBRARY_PATH/libfault.so: build it first"
await() { # WORDS...: a command, within 60 s
    for _ in $(seq 1200); do
        "$@" 2>/dev/null && return 0
        kill -0 $pid 2>/dev/null || break
        sleep 0.05
    done
    fail "$row in $phase: the phase did not come"
}
in_phase() { grep -q "\"phase\":\"$1" runs/cut/live.json; }
worker_is() { worker=$(sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' runs/cut/state.json) && test -n "$worker"; }
has_saved() { test -e runs/cut/ckpt/LATEST; }
is_saving() { has_saved && ls -d runs/cut/ckpt/step-*.partial >/dev/null; }
has_steps() { test -s runs/cut/metrics.jsonl; }

set -- "$work/configs/quickstart_dinov2.yaml" --run-dir runs train.steps=24 train.checkpoint_steps=4 train.checkpoint_keep=2 train.cache_teacher=true
"$MEOPT" train "$@" --name whole >out 2>&1 || fail "the undisturbed run"

start() { # until the phase has come
    rm -rf runs/cut
    case $phase in
    load) slow=open:200000:.pth ;;
    teacher) slow=open:25000:.jpg ;;
    step) slow=write:100000:metrics.jsonl ;;
    save) slow=sync:50000 ;;
    esac
    env LD_PRELOAD=libfault.so FAULT_SLOW=$slow "$MEOPT" train "$@" --name cut >out 2>&1 &
    pid=$!
    echo $pid >left
    await worker_is
    case $phase in
    teacher) await in_phase computing ;;
    step) await has_steps ;;
    save) await is_saving ;;
    esac
}
to() { kill "-$1" $2 2>/dev/null || true; } # SIGNAL PIDS: one of them may have ended
is_row() { # what the man page's table says of each
    case $row in
    group) to TERM "$pid $worker" ;; # every process of the control group, and once more as it is passed on
    worker) to TERM "$worker $pid" ;;
    warning) to USR1 $pid && sleep 0.1 && to TERM "$pid $worker" ;;
    twice) to TERM $pid && sleep 0.15 && to TERM $pid ;;
    interrupts) to INT "$pid $worker" && to INT $pid ;;
    hangup) to HUP "$pid $worker" && sleep 0.1 && to USR1 "$pid $worker" ;;
    request) "$MEOPT" stop runs/cut 2>stop.err ;;
    esac
}
ends() {
    got=0
    wait $pid || got=$?
    : >left
    test $got = 10 || fail "$row in $phase: exit $got, expected 10"
    grep -q '"state": "stopped"' runs/cut/state.json || fail "$row in $phase: not stopped"
    grep -q '"exit_code": 10' runs/cut/state.json || fail "$row in $phase: exit_code"
    ! kill -0 "$worker" 2>/dev/null || fail "$row in $phase: the worker is left"
    lines=$(wc -l <runs/cut/metrics.jsonl)
    case $phase in
    load | teacher) test "$lines" = 0 || fail "$row in $phase: $lines steps" ;;
    *) test "$(cat runs/cut/ckpt/LATEST)" = "$(printf 'step-%08d' "$lines")" || fail "$row in $phase: $lines steps, saved $(cat runs/cut/ckpt/LATEST)" ;;
    esac
}
resumed() {
    "$MEOPT" train --resume runs/cut >out 2>&1 || fail "$row in $phase: resume"
    for file in model.safetensors optimizer.bin; do
        cmp "$work/runs/whole/ckpt/step-00000024/$file" "runs/cut/ckpt/step-00000024/$file" || fail "$row in $phase: $file"
    done
    resumes=$((resumes + 1))
}

# one save that takes long: in the long form 5 minutes, and what Slurm sends; in the short one seconds for minutes
unit=1 ms=50
[ $rounds -gt 1 ] && unit=20 ms=2000
saves() { # N: a run whose save has some 7 syncs of N * ms, until it has made a step
    rm -rf runs/cut
    "$MEOPT" train "$work/configs/quickstart_dinov2.yaml" --run-dir runs --name cut train.steps=24 train.checkpoint_steps=1000 train.checkpoint_keep=2 train.cache_teacher=true --stop-after 4 >out 2>&1 || test $? = 10 || fail "$row: the first part"
    env LD_PRELOAD=libfault.so FAULT_SLOW="sync:$(($1 * ms))000:/ckpt write:150000:metrics.jsonl" "$MEOPT" train --resume runs/cut >out 2>&1 &
    pid=$!
    echo $pid >left
    await has_five
    worker_is
}
has_five() { test "$(wc -l <runs/cut/metrics.jsonl)" -gt 4; }
slow_save() {
    phase=save
    case $1 in
    term)
        row="one SIGTERM"
        saves $((unit > 1 ? 20 : 6))
        to TERM $pid
        ends
        ;;
    enough)
        row="warning, a minute, SIGTERM, half a minute: enough"
        saves 3
        to USR1 $pid
        sleep $((3 * unit))
        to TERM "$pid $worker"
        (sleep $((2 * unit + 3)) && to KILL "$pid $worker") &
        killer=$!
        ends
        kill $killer 2>/dev/null || true
        ;;
    not_enough)
        row="warning, a minute, SIGTERM, half a minute: not enough"
        saves 40
        to USR1 $pid
        sleep $((3 * unit))
        to TERM "$pid $worker"
        sleep $((2 * unit))
        kill -KILL $worker
        got=0
        wait $pid || got=$?
        : >left
        test $got = 137 || fail "$row: exit $got"
        test "$(cat runs/cut/ckpt/LATEST)" = step-00000004 || fail "$row: $(cat runs/cut/ckpt/LATEST)"
        ;;
    esac
    resumed
}

one() { # of $case: "save WHICH", or "SIGNAL PHASE ROUND"; what a run is begun with
    row=${case%% *} phase=${case#* }
    if [ "$row" = save ]; then
        slow_save "$phase"
        return
    fi
    phase=${phase% *}
    start "$@"
    is_row
    ends
    stops=$((stops + 1))
    if [ $rounds -gt 1 ] || [ $((stops % 3)) = 0 ]; then resumed; fi
}
chain() { # NUMBER ARGUMENTS...: the cases that no other chain has taken, until one fails
    mkdir "$work/chain$1"
    cd "$work/chain$1"
    shift
    : >left
    trap 'test ! -s left || kill -KILL $(cat left) 2>/dev/null || true; exit 143' TERM
    stops=0 resumes=0
    while read -r case <&3; do
        test ! -e "$work/failed" || exit 1
        test ! -e "$work/taken/$case" && mkdir "$work/taken/$case" 2>/dev/null || continue
        one "$@"
    done 3<"$work/cases"
    echo $stops $resumes >counts
}
end_chains() {
    for chain in $chains; do kill -TERM $chain 2>/dev/null || true; done
    for chain in $chains; do wait $chain 2>/dev/null || true; done
    rm -rf "$work"
}
chains=
trap end_chains EXIT
trap 'exit 143' HUP INT TERM
for which in term enough not_enough; do echo "save $which"; done >cases
for round in $(seq $rounds); do
    i=0
    for row in group worker warning twice interrupts hangup request; do
        for phase in load teacher step save; do
            [ $rounds = 1 ] && [ $(((i / 4 + i) % 2)) = 1 ] || echo "$row $phase $round"
            i=$((i + 1))
        done
    done
done >>cases
mkdir taken
for number in $(seq $((2 * $(getconf _NPROCESSORS_ONLN)))); do
    chain $number "$@" &
    chains="$chains $!"
done
while [ -n "$chains" ]; do
    set -- $chains
    code=0
    wait $1 || code=$?
    shift
    chains=$*
    test $code = 0 || exit 1
done
cat chain*/counts | awk '{ stops += $1; resumes += $2 } END { print stops " stops saved, " resumes " resumed: the same bytes" }'
