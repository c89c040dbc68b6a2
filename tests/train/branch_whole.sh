#!/bin/sh
# Kills the creation of a branch (--resume RUN --at N) at any rename, write, sync or new name: the branch then either does not exist or can
# be resumed, and its parent run does not change. A rename that succeeds although NFS lost the reply is not a failure, and one branch does
# not become two.
set -u
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
every=3
[ "${MEOPT_LONG:-0}" = 1 ] && every=1
export OMP_NUM_THREADS=1 LD_LIBRARY_PATH="$MEOPT_BUILD/tests:${LD_LIBRARY_PATH:-}" ASAN_OPTIONS="verify_asan_link_order=0:${ASAN_OPTIONS:-}"
few_images 8
set -- "$work/configs/quickstart.yaml" train.steps=9 train.checkpoint_steps=1 train.checkpoint_keep=9 train.batch_size=4 data.workers=1
"$MEOPT" train "$@" --run-dir from --name run --stop-after 4 >out 2>log
[ $? = 10 ] || fail "the run"
sum() { (cd from/run && find . -type f ! -name .lock -exec cksum {} + | sort); }
sum >before
mkdir runs
dead=0
for call in rename write sync mkdir; do
    k=1
    while :; do
        rm -rf runs
        truncate -s 0 counters
        truncate -s 65536 counters
        env LD_PRELOAD=libfault.so FAULT_SHARED="$work/counters" FAULT_UNDER="$work/runs" FAULT_CALL=$call FAULT_K=$k FAULT_KILL=1 \
            "$MEOPT" train --resume from/run --at 2 --stop-after 2 --run-dir "$work/runs" >out 2>log
        code=$?
        [ $code = 137 ] || break # past the branch's making, or the worker was killed
        dead=$((dead + 1))
        if [ -e runs/run-step-2 ]; then
            grep -q step-00000002 runs/run-step-2/ckpt/LATEST || fail "$call $k: a branch without LATEST"
            [ -s runs/run-step-2/ckpt/step-00000002/MANIFEST.json ] || fail "$call $k: a branch without its checkpoint"
        fi
        k=$((k + every))
    done
    # what the last one left is taken up by the next
    "$MEOPT" train --resume from/run --at 2 --stop-after 3 --run-dir "$work/runs" --name again >out 2>log
    [ $? = 10 ] || fail "after a kill at $call $k"
    [ "$(wc -l <runs/again/metrics.jsonl)" = 3 ] || fail "after a kill at $call $k: metrics"
done
[ $dead -ge 8 ] || fail "only $dead were killed"
sum >after
cmp -s before after || fail "the run that the branch comes from has changed: $(diff before after)"

rm -rf runs && mkdir runs
late() { env LD_PRELOAD=libfault.so FAULT_LATE=1 FAULT_UNDER="$work/runs" "$MEOPT" train "$@" --run-dir "$work/runs" >out 2>log; }
late "$@" --name own --stop-after 2
[ $? = 10 ] || fail "a new run whose renames are reported to have failed"
late --resume from/run --at 2 --stop-after 3
[ $? = 10 ] || fail "a branch whose renames are reported to have failed"
[ "$(ls -A runs | tr '\n' ' ')" = "own run-step-2 " ] || fail "not one run and one branch: $(ls -A runs)"
[ "$(ls runs/own/ckpt)" = "LATEST
step-00000001
step-00000002" ] || fail "checkpoints: $(ls -A runs/own/ckpt)"
