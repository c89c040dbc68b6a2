#!/bin/sh
# The supervisor: every end of a worker is reported within seconds, with the right exit code and the next step. Commands stop, checkpoint
# and runs. A worker that continues without its supervisor, and one that 100 killed viewers (MEOPT_LONG; else 10) do not disturb.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
group=
socket=
start=
cleanup() {
    [ -z "$socket" ] || tmux -L "$socket" kill-server 2>/dev/null || :
    [ ! -s "$work/left" ] || kill -KILL $(cat "$work/left") 2>/dev/null || :
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || :
}
logs='*.err runs/*/worker.log'
cd "$work"
mkdir configs
cp "$MEOPT_SOURCE/configs/quickstart.yaml" configs/
export OMP_NUM_THREADS=1 XDG_STATE_HOME="$work/state"
export ASAN_OPTIONS="handle_segv=0:${ASAN_OPTIONS:-}" # a signal ends the worker as it does without the sanitizer
"$MEOPT" fetch sample --dest sample --quiet
state() { sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\).*/\1/p" "runs/$1/state.json"; }
begin() { # NAME [option...]: in the background, until it has trained a step
    name=$1
    shift
    $start "$MEOPT" train configs/quickstart.yaml --run-dir runs --name "$name" --steps 100000 train.checkpoint_steps=5 "$@" >"$name.out" 2>"$name.err" &
    pid=$!
    echo $pid >left
    await "runs/$name/ckpt/LATEST"
    worker=$(state "$name" pid)
}
await() { wait_for 60 test -e "$1" || fail "no $1"; } # FILE
ends() { # NAME CODE STATE [TEXT of the error]: within 30 s, of which a machine at rest needs one
    wait_for 30 eval '! kill -0 $pid 2>/dev/null' || fail "$1: still there after 30 s"
    got=0
    wait $pid || got=$?
    test $got = "$2" || fail "$1: exit $got, expected $2"
    test "$(state "$1" state)" = "$3" || fail "$1: state $(state "$1" state)"
    test "$(state "$1" exit_code)" = "$2" || fail "$1: exit_code $(state "$1" exit_code)"
    [ -z "${4:-}" ] || grep -q "^meopt: .*$4" "$1.err" || fail "$1: no '$4'"
}

begin killed
kill -KILL "$worker"
ends killed 137 failed 'signal 9\>'
grep -q 'step-[0-9]*.*meopt train --resume runs/killed' killed.err || fail "killed: no next step"
begin crashed
kill -SEGV "$worker"
ends crashed 139 failed 'signal 11\>'
begin frozen
kill -STOP "$worker"
wait_for 30 grep -q '"state":"stopped by a signal"' runs/frozen/live.json 2>/dev/null || :
grep -q '"state":"stopped by a signal"' runs/frozen/live.json || fail "a frozen worker is not reported"
wait_for 30 grep -q '"mem_total_bytes":[1-9]' runs/frozen/live.json 2>/dev/null || :
grep -q '"mem_total_bytes":[1-9]' runs/frozen/live.json || fail "no card telemetry in live.json"
kill -TERM $pid # heard by a stopped worker, too
ends frozen 10 stopped
grep -q 'meopt train --resume' frozen.err || fail "frozen: no next step"
start=slow_saves ms=3000 part=LATEST
for hasty in hasty1 hasty2 hasty3; do # a person's second Ctrl-C, a second after the first, while it saves
    begin $hasty
    kill -INT $pid
    wait_for 60 grep -q '^saving' $hasty.err || fail "$hasty: it does not save"
    wait_for 60 eval '! kill -INT $pid 2>/dev/null' || fail "$hasty: still there"
    [ "$(state $hasty exit_code)" = 10 ] || break # else it had saved already
done
ends $hasty 130 stopped
start=
begin asked
"$MEOPT" checkpoint runs/asked 2>checkpoint.err
before=$(cat runs/asked/ckpt/LATEST)
wait_for 30 test ! -e runs/asked/request/checkpoint || fail "checkpoint: the request stays"
"$MEOPT" runs >runs.out
grep -q '^asked  *training ' runs.out || fail "runs: $(cat runs.out)"
"$MEOPT" stop runs/asked 2>stop.err
ends asked 10 stopped
test "$(cat runs/asked/ckpt/LATEST)" != "$before" || fail "stop did not save"
"$MEOPT" stop runs/asked 2>stop.err || fail "stop of a run that has ended"
grep -q 'runs/asked .*stopped' stop.err || fail "stop of a run that has ended: silent"
"$MEOPT" stop --json runs/asked | grep -q '"asked": null' || fail "stop of a run that has ended: asked"
begin now
"$MEOPT" stop --now runs/now 2>stop.err
ends now 143 stopped
"$MEOPT" runs --json >runs.json
test "$(grep -c '"exit_code": 1[34][03]' runs.json)" = 2 || fail "runs --json"
begin orphan # without a terminal the worker ends with its supervisor
kill -KILL $pid
wait_for 30 eval '! kill -0 "$worker" 2>/dev/null' || fail "the worker outlives its supervisor"
"$MEOPT" runs | grep -q '^orphan  *lost ' || fail "a lost run: $("$MEOPT" runs)"

# figures for others, over a stop and a resume
got=0
"$MEOPT" train configs/quickstart.yaml --run-dir runs --name figures --steps 12 --stop-after 8 --tensorboard --metrics-file run.prom >out 2>figures.err || got=$?
test $got = 10 || fail "figures: exit $got"
grep -q '^meopt_train_step{run="figures"} 8$' run.prom || fail "figures: no step 8"
grep -q '^meopt_run_state{run="figures",state="stopped"} 1$' run.prom || fail "figures: no state"
got=0
"$MEOPT" train --resume runs/figures --stop-after 10 >out 2>figures.err || got=$?
test $got = 10 || fail "figures: exit $got without --tensorboard"
"$MEOPT" train --resume runs/figures --tensorboard --metrics-file run.prom >out 2>figures.err || fail "figures: resume"
grep -q '^meopt_train_step{run="figures"} 12$' run.prom || fail "figures: no step 12"
test "$(ls runs/figures/tensorboard/events.out.tfevents.* | wc -l)" = 2 || fail "figures: event files"
python3 - <<'PYTHON' || fail "figures: steps of the event files" # those without --tensorboard were written later
import glob, struct
steps = []
for file in sorted(glob.glob("runs/figures/tensorboard/events.out.tfevents.*")):
    data, at = open(file, "rb").read(), 0
    while at < len(data):
        n = struct.unpack_from("<Q", data, at)[0]
        event, at = data[at + 12:at + 12 + n], at + 16 + n
        if event[9:10] == b"\x10" and event[11:12] == b"*": steps.append(event[10]) # step, then a summary
assert steps == list(range(1, 13)), steps
PYTHON

# memory: a control group of its own, where we may make one; AddressSanitizer alone is larger than it
bases="/sys/fs/cgroup/memory /sys/fs/cgroup"
ldd "$MEOPT" | grep -q libasan && bases=
for base in $bases; do
    limit=memory.max
    test $base = /sys/fs/cgroup || limit=memory.limit_in_bytes
    test -e $base/cgroup.procs || continue
    mkdir $base/meopt-test-$$ 2>/dev/null || continue
    group=$base/meopt-test-$$
    test -w "$group/$limit" && break
    rmdir "$group"
    group=
done
if [ -n "$group" ]; then
    echo 20M >"$group/$limit"
    # reached when the worker, which the kernel then ends, is far larger than the supervisor
    # where there is swap the worker would go there and live on: none (memsw counts both)
    test ! -e "$group/memory.swap.max" || echo 0 >"$group/memory.swap.max"
    test ! -e "$group/memory.memsw.limit_in_bytes" || echo 20M >"$group/memory.memsw.limit_in_bytes"
    sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$group" "$MEOPT" train configs/quickstart.yaml --run-dir runs --name memory --steps 100000 train.batch_size=128 >memory.out 2>memory.err &
    pid=$!
    echo $pid >left
    ends memory 12 failed memory
    begin beside # what is killed for memory elsewhere on the machine says nothing of this run
    got=0
    sh -c 'echo $$ >"$1/cgroup.procs"; exec dd if=/dev/zero of=/dev/null bs=64M count=1' sh "$group" 2>dd.err || got=$?
    test $got = 137 || fail "another process: nothing was killed for memory, dd ended with $got"
    kill -KILL "$worker"
    ends beside 137 failed 'signal 9\>'
else
    echo "no control group: out of memory is not tried"
fi

# viewers, and the death of a supervisor, in a real terminal
if ! command -v tmux >/dev/null; then
    echo "no tmux: viewers are not tried"
    exit 0
fi
socket="meopt-control-$$"
kills=10
if [ "${MEOPT_LONG:-}" = 1 ]; then kills=100; fi
steps=$((kills * 100))
"$MEOPT" train configs/quickstart.yaml --run-dir runs --name quiet --steps $steps >quiet.out 2>quiet.err || fail "undisturbed run"
tmux -L "$socket" -f /dev/null new-session -d -x 100 -y 30 "cd '$work' && env OMP_NUM_THREADS=1 LC_ALL=C.UTF-8 TERM=screen-256color '$MEOPT' train configs/quickstart.yaml --run-dir runs --name seen --steps $steps 2>seen.err; tail -f /dev/null"
await runs/seen/live.json
kill -KILL "$(sed -n 's/.*"supervisor_pid":\([0-9]*\).*/\1/p' runs/seen/live.json)"
n=0 met=0
while [ $n -lt $kills ]; do
    tmux -L "$socket" new-window -d "cd '$work' && sh -c 'echo \$\$ >viewer.$n; exec env LC_ALL=C.UTF-8 TERM=screen-256color \"$MEOPT\" attach runs/seen'"
    await viewer.$n
    sleep "$(awk -v s=$n 'BEGIN {srand(s); printf "%.3f", 0.02 + 0.2 * rand()}')"
    test "$(state seen state)" != training || met=$((met + 1))
    kill -KILL "$(cat viewer.$n)" 2>/dev/null || true
    n=$((n + 1))
done
wait_for 400 eval 'test "$(state seen state)" = done' || :
test "$(state seen state)" = done || fail "without its supervisor the run is $(state seen state)"
numbers() { sed 's/,"images_per_s".*//' "runs/$1/metrics.jsonl"; }
numbers quiet >quiet.numbers
numbers seen | cmp - quiet.numbers || fail "viewers changed the run"
test $met -ge $((kills / 2)) || fail "only $met of $n kills met the run"
echo "$n viewers killed, $met of them during the run, $(wc -l <quiet.numbers) steps the same"
