#!/bin/sh
# Several ranks from the command line are bit-identical to one rank, with every launcher. A rank that is killed, stopped or started with a
# different configuration is named with its exit code, and no process is left. --restarts and --resume on a different number of ranks are
# bit-identical, too. MEOPT_LONG=1: a rank stopped by SIGSTOP, which is detected after ten seconds.
set -eu
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
logs='log*'
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1
unset MEOPT_RANKS_ADDRESS
mpi=
if command -v mpirun >/dev/null && [ -f "$(dirname "$MEOPT")/libmeopt_mpi.so" ]; then mpi=yes; fi
mkdir sample configs
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" configs/
same="train.global_batch=8 train.micro_batch=2 train.checkpoint_steps=2"
train() { # exit code, name, steps, more
    want=$1 name=$2 steps=$3
    shift 3
    code=0
    # shellcheck disable=SC2086
    $start "$MEOPT" train configs/quickstart_dinov2.yaml $same train.steps="$steps" --run-dir runs --name "$name" "$@" >log 2>&1 || code=$?
    [ "$code" = "$want" ] || fail "exit $code, expected $want: $name"
}
equal() { # run step
    cmp "runs/one/ckpt/step-0000000$2/model.safetensors" "runs/$1/ckpt/step-0000000$2/model.safetensors" || fail "$1 has other weights than one rank"
}
start=
train 0 one 4
train 0 cached 4 train.cache_teacher=true
train 0 shared 4 train.cache_teacher=true dist.shard=parameters --workers 3
[ "$(wc -l <runs/shared/metrics.jsonl)" = 4 ] && [ "$(grep -c '"started"' runs/shared/events.jsonl)" = 1 ] || fail "one rank writes what the run reports"
cmp runs/cached/teacher.rows runs/shared/teacher.rows || fail "three ranks computed other outputs of the teacher"
cmp runs/cached/ckpt/step-00000004/model.safetensors runs/shared/ckpt/step-00000004/model.safetensors || fail "a cached teacher: other weights"
mpi_pair() { # CODE COMMAND...: the command on two ranks of mpirun; rank 1 runs the shell code before it. mpirun of Open MPI 5.0.7 crashes with two commands
    # shellcheck disable=SC2016
    timeout 60 mpirun -np 2 sh -c 'code=$1; shift; [ "$OMPI_COMM_WORLD_RANK" = 0 ] || eval "$code"; exec "$@"' sh "$@"
}
mpi_pair_fault() { # CALL ERRNO DIRECTORY COMMAND...: every such call of rank 1 below the directory fails (libfault)
    head -c 65536 /dev/zero >shared
    fault="LD_PRELOAD=libfault.so FAULT_SHARED='$work/shared' FAULT_CALL=$1 FAULT_ERRNO=$2 FAULT_UNDER='$3' FAULT_K=1 FAULT_EVER=1"
    shift 3
    mpi_pair "export LD_LIBRARY_PATH='$MEOPT_BUILD/tests${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}' $fault" "$@"
}
if [ "$mpi" ]; then
    start="mpirun -np 2"
    train 0 mpi 4
    equal mpi 4
    for file in runs/.ranks*; do [ ! -e "$file" ] || fail "the file with the key is left"; done
    start="mpirun -np 2"
    train 10 by 4 --stop-after 2
    $start "$MEOPT" train --resume runs/by >log 2>&1 || fail "mpirun continues a run"
    equal by 4
    # a branch: who follows knows the run, and not what the branch is called
    $start "$MEOPT" train --resume runs/by --at 4 --name bough --steps +2 >log 2>&1 || fail "mpirun continues from a checkpoint, as a branch"
    [ "$(wc -l <runs/bough/metrics.jsonl)" = 6 ] || fail "a branch by mpirun: $(wc -l <runs/bough/metrics.jsonl) lines"
    # what a killed rank 0 leaves for ranks to find it by is removed by the next, and a living run's is not
    key=$(printf '%064d' 0)
    for run in "$work/runs/gone" "$work/runs/by"; do
        printf '127.0.0.1 9 %s\n%s\nbegin\n' "$key" "$run" >"runs/.ranks-$(basename "$run")"
        chmod 600 "runs/.ranks-$(basename "$run")"
    done
    exec 8>>runs/by/.lock
    flock 8
    train 0 again 4
    [ ! -e runs/.ranks-gone ] || fail "the file of a killed run is left"
    [ -e runs/.ranks-by ] || fail "the file of a run that lives was removed"
    exec 8>&-
    rm -f runs/.ranks-by
    start=
    # A rank with another directory, mask, locale and place for temporary files than the first.
    mkdir here
    set -- train "$work/configs/quickstart_dinov2.yaml" $same train.steps=4 dist.shard=optimizer device.type=cpu --run-dir "$work/runs" --name abroad
    mpi_pair "cd '$work/here'; umask 077; export LC_ALL=tr_TR.UTF-8 TMPDIR='$work/here'" "$MEOPT" "$@" >log 2>&1 || fail "a rank that was started elsewhere"
    equal abroad 4
    # shellcheck disable=SC2012
    [ "$(ls -l runs/abroad/ckpt/step-00000004 | grep '^-' | cut -c1-10 | sort -u | wc -l)" = 1 ] || fail "not all of it may be read: $(ls -l runs/abroad/ckpt/step-00000004)"
    # A rank whose disk is full: saving pauses, and at the end each rank ends with that reason.
    code=0
    set -- train configs/quickstart_dinov2.yaml train.global_batch=8 train.micro_batch=2 train.checkpoint_steps=2 train.steps=4 dist.shard=optimizer \
        device.type=cpu --no-dashboard --run-dir runs --name full
    mpi_pair_fault write 28 "$work/runs/full" "$MEOPT" "$@" >log 2>&1 || code=$?
    [ "$code" = 5 ] || fail "exit $code, expected 5: a rank's disk is full"
    grep -q '^warning: .*rank 1 (host .*No space left' log || fail "the rank whose disk is full is not named"
    grep -q '"message": ".*rank 1 (host .*No space left' runs/full/state.json || fail "the state has another reason: $(cat runs/full/state.json)"
    [ -z "$(find runs/full/ckpt -name 'step-*')" ] || fail "a half checkpoint is left"
    "$MEOPT" train --resume runs/full --workers 3 >log 2>&1 || fail "with room it continues from the start"
fi

# A rank that cannot continue between two steps: all save the last one, end with its reason, and continue from there.
cp -r sample good
find sample -name '*.jpg' | sort | awk 'NR % 8 == 4' | while read -r file; do head -c 200 "good/${file#sample/}" >"$file"; done
train 1 bad 4 --workers 3
grep -q '^meopt: .*\.jpg: rank [0-2] (host [^ ]*) .*\<3 of 160\>' log || fail "the rank with bad images is not named with its file"
made=$(wc -l <runs/bad/metrics.jsonl)
if [ "$made" -lt 1 ] || [ "$(cat runs/bad/ckpt/LATEST)" != "$(printf 'step-%08d' "$made")" ]; then fail "$made steps were made, and saved: $(ls runs/bad/ckpt)"; fi
"$MEOPT" train --resume runs/bad --workers 2 data.max_bad=0.5 >log 2>&1 || fail "where bad images are allowed it continues"
train 0 allowed 4 data.max_bad=0.5
cmp runs/allowed/ckpt/step-00000004/model.safetensors runs/bad/ckpt/step-00000004/model.safetensors || fail "bad images: other weights than one rank"
rm -r sample
mv good sample
# Requests are looked for by rank 0 alone.
if command -v strace >/dev/null && strace -f -o /dev/null true 2>/dev/null; then
    strace -f --seccomp-bpf -e trace=open,openat,unlink,unlinkat,execve -o trace "$MEOPT" train configs/quickstart_dinov2.yaml $same train.steps=10 --run-dir runs --name traced --workers 3 >log 2>&1 ||
        fail "traced"
    awk '/"--rank", "0"/ {first[$1]} /"--rank", "[12]"/ {follows[$1]} /"([^"]*\/)?request["\/]/ {looks[$1]}
        END {for (p in follows) if (p in looks) exit 1; for (p in first) exit !(p in looks); exit 1}' trace || fail "another rank than 0 looks for requests"
    rm trace
fi
if [ "$mpi" ]; then # one that fails alone, while it loads, says why before MPI ends it
    code=0
    set -- "$MEOPT" train configs/quickstart_dinov2.yaml $same train.steps=4 device.type=cpu --no-dashboard --run-dir runs --name alone
    mpi_pair_fault open 5 "$work/configs/../sample" "$@" >log 2>&1 || code=$?
    [ "$code" = 1 ] || fail "exit $code, expected 1: rank 1 cannot read the weights"
    grep -q '"message": "rank 1 (host .* Input/output error' runs/alone/state.json || fail "the reason is lost: $(cat runs/alone/state.json)"
fi

train 10 moved 4 --workers 3 --stop-after 2
grep -q -- '--resume runs/moved --workers 3' log || fail "the command that resumes lacks the ranks"
# a resume that the ranks refuse, or that is refused before them, leaves the run's configuration
cp runs/moved/config.yaml before.yaml
for words in '--workers 4 dist.pipeline=3' '--workers 4 train.rounds=breadth' 'dist.pipeline=2'; do
    code=0
    # shellcheck disable=SC2086
    "$MEOPT" train --resume runs/moved $words >log 2>&1 || code=$?
    [ $code = 7 ] || fail "$words: exit $code, expected 7"
    cmp before.yaml runs/moved/config.yaml || fail "$words: refused, and written into the run"
done
"$MEOPT" train --resume runs/moved --workers 2 >log 2>&1 || fail "continues on other ranks"
equal moved 4
# A run of ranks, and one of them gets a signal once there is a checkpoint.
same="train.global_batch=8 train.micro_batch=2 train.checkpoint_steps=10"
rank_pid() { python3 -c 'import json, sys
print([r["pid"] for r in json.load(open(sys.argv[1]))["ranks"] if r["rank"] == int(sys.argv[2])][0])' "runs/$1/live.json" "$2"; }
left() { ours "^runs/$1\$"; } # the workers of a run
ended() { ! grep -q '^State:.[^Z]' "/proc/$supervisor/status" 2>/dev/null; } # the shell may have taken its end already
hurt() { # exit code, name, rank, signal, steps, more. Checkpoints are slow, so that the run lasts; if it ends before we see that it has begun: once more, slower
    want=$1 name=$2 rank=$3 number=$4 total=$5 hit=
    shift 5
    for try in 1 2 3 4 5; do
        rm -rf "runs/$name"
        ms=$((30 * try * try))
        # shellcheck disable=SC2086
        slow_saves "$MEOPT" train configs/quickstart_dinov2.yaml $same train.steps="$total" --run-dir runs --name "$name" "$@" >"log.$name" 2>&1 &
        supervisor=$!
        wait_for 30 eval '{ [ -e "runs/$name/ckpt/LATEST" ] && rank_pid "$name" "$rank" >"pid.$name" 2>/dev/null && [ "$(cat "pid.$name")" -gt 0 ]; } || ended' || fail "$name did not begin"
        if ! ended && kill "-$number" "$(cat "pid.$name")" 2>/dev/null; then
            hit=yes
            break
        fi
        wait "$supervisor" || fail "$name ended before rank $rank was hit, $try"
    done
    [ "$hit" ] || fail "$name always ended before rank $rank was hit"
    exits "$want" wait "$supervisor" || fail "exit $code, expected $want: $name"
    remains=$(left "$name")
    [ -z "$remains" ] || fail "left running: $remains"
}
# One that is killed before it has joined the others: it is slow to open the program's file.
killed_early() {
    rm -rf runs/early
    # shellcheck disable=SC2086
    FAULT_SLOW="open:3000000:/exe" LD_LIBRARY_PATH="$MEOPT_BUILD/tests${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" LD_PRELOAD=libfault.so "$MEOPT" train configs/quickstart_dinov2.yaml $same --run-dir runs --name early --workers 3 >log 2>&1 &
    supervisor=$!
    found=
    until [ "$found" ] || ended; do
        sleep 0.05
        found=$(left early | xargs -r grep -lz '^--rank$' | while read -r file; do
            ! tr '\0' ' ' <"$file" 2>/dev/null | grep -q -e '--rank 1 ' || basename "$(dirname "$file")"; done)
    done
    kill -KILL $found || fail "rank 1 did not wait"
    exits 14 wait "$supervisor" && grep -q '^meopt: rank 1 .*signal 9\>' log || fail "killed before it joined: $code"
}
[ ! -f "$MEOPT_BUILD/tests/libfault.so" ] || killed_early
# Three at once: a restart waits some seconds.
hurt 0 again 2 KILL 100 --workers 3 --restarts 1 &
again=$!
hurt 0 elastic 1 KILL 100 --workers 2 --restarts 2 --elastic &
elastic=$!
hurt 14 killed 1 KILL 5000 --workers 3
grep -q "^meopt: rank 1 (host .*, pid $(cat pid.killed)) .*signal 9\\>" log.killed || fail "the rank that was killed is named"
grep -q '"exit_code": 14' runs/killed/state.json && grep -q 'rank 1 (host' runs/killed/state.json || fail "state.json names it"
train 0 long 100
wait $again && wait $elastic || exit 1
cmp runs/long/ckpt/step-00000100/model.safetensors runs/again/ckpt/step-00000100/model.safetensors || fail "restarted: other weights"
grep -q '"resumed"' runs/again/events.jsonl || fail "it was not restarted"
cmp runs/long/ckpt/step-00000100/model.safetensors runs/elastic/ckpt/step-00000100/model.safetensors || fail "with the rank that is left: other weights"
grep -q '"ranks": 1,' runs/elastic/meta.json || fail "no rank was left out: $(grep '"ranks"' runs/elastic/meta.json)"
"$MEOPT" train configs/quickstart_dinov2.yaml --run-dir runs --name x --elastic >log 2>&1 && fail "--elastic without --restarts"
grep -q '^meopt: --elastic .*--restarts' log || fail "--elastic without --restarts is not explained"

# Ranks that are not alike, and one that does not come.
if [ "$mpi" ]; then
    code=0
    # shellcheck disable=SC2086
    mpi_pair 'set -- "$@" optim.lr=1e-4' "$MEOPT" train configs/quickstart_dinov2.yaml $same --run-dir runs --name odd >log 2>&1 || code=$?
    [ "$code" = 7 ] || fail "exit $code, expected 7: ranks of two experiments"
    grep -q '^meopt: rank 1 (host ' log || fail "the rank with another experiment is named"
fi
if [ "${MEOPT_LONG:-}" = 1 ]; then
    begin=$(date +%s)
    hurt 14 stopped 2 STOP 5000 --workers 3
    grep -q '^meopt: rank 2 (host .* 1[0-9] s' log.stopped || fail "the stopped rank is named"
    [ $(($(date +%s) - begin)) -lt 60 ] || fail "a stopped rank is seen late"
fi
echo ok
