#!/bin/sh
# A run has one writer: of two resumes at once one trains and the other writes nothing; a stop at any moment of the start is handled;
# and no process is signalled or believed in because a file names its number.
set -eu
rounds=3
[ "${MEOPT_LONG:-0}" = 1 ] && rounds=25
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
logs='*.err'
export ASAN_OPTIONS="verify_asan_link_order=0:${ASAN_OPTIONS:-}"
# preloaded by its name: a path in LD_PRELOAD ends at a space
export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" FAULT_UNDER="$(pwd -P)"
slow="env LD_PRELOAD=libfault.so FAULT_NFS=1 FAULT_SLOW=open:2000000:.pth" # and shared by two machines
set -- configs/quickstart_dinov2.yaml --run-dir runs train.checkpoint_steps=8
await() { wait_for 60 "$@" >await.out 2>&1 || fail "not within 60 s: $*"; } # COMMAND...

# two resumes at once; loading lasts longer than the loser waits
"$MEOPT" train "$@" --name shared train.steps=24 --stop-after 8 >out 2>first.err || test $? = 10 || fail "the first part"
$slow "$MEOPT" train --resume runs/shared >one.out 2>one.err &
one=$!
$slow "$MEOPT" train --resume runs/shared >two.out 2>two.err &
two=$!
echo $one $two >left
got_one=0 got_two=0
while kill -0 $one 2>/dev/null && kill -0 $two 2>/dev/null; do
    cat runs/shared/state.json >>states 2>/dev/null || true
    sleep 0.1
done
for _ in 1 2 3; do # while the winner still loads
    cat runs/shared/state.json >>states
    sleep 0.1
done
wait $one || got_one=$?
wait $two || got_two=$?
: >left
case "$got_one $got_two" in
"0 9" | "9 0") ;;
*) fail "two resumes: exit $got_one and $got_two" ;;
esac
! grep -q '"state": "failed"' states || fail "two resumes: the loser wrote state.json"
! grep -q failed runs/shared/events.jsonl || fail "two resumes: the loser wrote an event"
test "$(wc -l <runs/shared/metrics.jsonl)" = 24 || fail "two resumes: $(wc -l <runs/shared/metrics.jsonl) lines"
test "$(grep -c resumed runs/shared/events.jsonl)" = 1 || fail "two resumes: both resumed"
grep -qh '^meopt: runs/shared: ' one.err two.err || fail "two resumes: the loser says nothing"

# a stop as soon as there is a directory to stop
for round in $(seq $rounds); do
    rm -rf runs/early
    "$MEOPT" train "$@" --name early train.steps=100000 >out 2>early.err &
    pid=$!
    echo $pid >left
    until "$MEOPT" stop runs/early 2>stop.err; do :; done
    got=0
    wait $pid || got=$?
    test $got = 10 || fail "early stop: exit $got"
    grep -q '"state": "stopped"' runs/early/state.json || fail "early stop: state"
    got=0
    "$MEOPT" train --resume runs/early --stop-after 2 >out 2>early.err || got=$? # it is not stopped again by what it has handled
    test $got = 10 || fail "early stop: resume, exit $got"
    test -s runs/early/metrics.jsonl || fail "early stop: no step after the resume"
done

# a start whose state cannot be written leaves no worker, also where it would outlive its supervisor: on a terminal
workers() { ours '^runs/silent$' | wc -l; }
"$MEOPT" train "$@" --name silent train.steps=100000 --stop-after 2 >out 2>silent.err || test $? = 10 || fail "silent: the first part"
rm runs/silent/state.json
mkdir runs/silent/state.json
if command -v script >/dev/null; then
    timeout 60 script -qec "env TERM=xterm LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 '$MEOPT' train --resume runs/silent" script.log >script.out 2>&1 </dev/null || true
    test "$(workers)" = 0 || fail "a worker is left after a start that failed"
    # one whose supervisor is gone receives nothing else
    script -qec "env TERM=xterm LC_ALL=C.UTF-8 OMP_NUM_THREADS=1 '$MEOPT' train configs/quickstart_dinov2.yaml --run-dir runs --name orphan train.steps=100000" \
        script.log >script.out 2>&1 </dev/null &
    terminal=$!
    echo $terminal >left
    await test -s runs/orphan/live.json
    kill $terminal
    wait $terminal || true
    orphan=$(sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' runs/orphan/state.json)
    echo $orphan >left
    kill -KILL "$(sed -n 's/.*"supervisor_pid":\([0-9]*\).*/\1/p' runs/orphan/live.json)"
    "$MEOPT" stop --now runs/orphan 2>stop.err
    await sh -c "! grep -q . /proc/$orphan/cmdline 2>/dev/null" # also where no one takes its end
    : >left
fi
got=0
"$MEOPT" train --resume runs/silent >out 2>silent.err || got=$?
test $got = 1 || fail "silent: exit $got"
grep -q state.json silent.err || fail "silent: the error names no file"
test "$(workers)" = 0 || fail "a worker is left after a start that failed"

# the number of another run's worker, in a directory of anybody's
"$MEOPT" train "$@" --name victim train.steps=100000 >out 2>victim.err &
pid=$!
echo $pid >left
await test -e runs/victim/ckpt/LATEST
mkdir runs/hostile
cp runs/victim/config.yaml runs/hostile/
cp runs/victim/state.json runs/hostile/
sh -c 'exec flock -F runs/hostile/.lock tail -f /dev/null' 2>/dev/null & # and somebody pretends that it lives
holder=$!
echo $pid $holder >left
await sh -c '! flock -n runs/hostile/.lock true'
"$MEOPT" stop --now runs/hostile 2>stop.err || fail "stop --now of a hostile directory"
kill -0 $pid 2>/dev/null || fail "stop --now ended another run"
kill $holder
"$MEOPT" stop --now runs/victim 2>stop.err
got=0
wait $pid || got=$?
test $got = 143 || fail "stop --now: exit $got"
echo $pid >left

# a number that was used again
await flock -n runs/hostile/.lock true
sed -i 's/"pid": [0-9]*/"pid": 1/' runs/hostile/state.json
"$MEOPT" runs | grep -q '^hostile  *lost ' || fail "a run of process 1: $("$MEOPT" runs)"
"$MEOPT" stop --json runs/hostile | grep -q '"asked": null' || fail "a run of process 1 is asked to stop"
test ! -e runs/hostile/request/stop || fail "a run of process 1 is asked to stop"
: >left
echo "two resumes, $rounds early stops, another run's number: one writer each"
