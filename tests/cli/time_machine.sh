#!/bin/sh
# Navigating a run that has ended, on a real terminal: left and right move through its steps, and header, cards, memory, log and events show
# the state at that step. Key r resumes from the previous checkpoint: in place from the newest one, else in a new run.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
hasten 4 # the dashboard draws every half a second
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
dash_run "$dir/runs/one" 2 1000
# the memory of the first hundred steps was another, and so was what the worker said
sed -i '1,100s/"mem_bytes":[0-9]*/"mem_bytes":8589934592/; 1,100s/"activations":6442450944/"activations":1073741824/' "$dir/runs/one/metrics.jsonl"
for step in 10 400 990 1000; do printf 'step %5d/1000  epoch   1  loss 0.5\n' $step; done >>"$dir/runs/one/worker.log"
printf '{"event":"changed","time":1700002000.0,"step":600,"changed":{"optim.lr":["1.0e-4","1.0e-5"]}}\n' >>"$dir/runs/one/events.jsonl"
start() { # WIDTH HEIGHT COMMAND
    terminal "$1" "$2" C.UTF-8 "NO_COLOR=1 HOME='$dir/home' OMP_NUM_THREADS=1" "'$MEOPT' $3"
}
mkdir "$dir/home"
loss() { sed -n "$1s/.*\"loss\":\([0-9.]*\).*/\1/p" "$dir/runs/one/metrics.jsonl" | cut -c1-5; }
for size in '80 24' '132 43'; do
    # shellcheck disable=SC2086
    start $size 'attach one'
    await 'step 1000/1000'
    await '^0  .*15.4G+19.0G/64.0G'
    keys Left Left
    await 'at step 990'
    await "step 990/1000 99%.*"
    await "loss $(loss 990)"
    keys Home
    await 'at step 1$'
    await "loss $(loss 1)"
    await '^0  .*8.00G+26.4G/64.0G   *97%  *40°' # of the first seconds
    keys 3
    await ' A activations   *1.00G'
    keys Right
    await 'at step 11$'
    keys 4
    await '^step  *10/1000'
    ! screen | grep -q 'step  *400/1000' || fail "the log continues after the cursor"
    ! screen | grep -q 'changed' || fail "the events continue after the cursor"
    keys End # in the log: its newest line
    await 'at step 11$'
    await 'Esc back to now'
    keys 1
    await '1 overview'
    keys End
    await 'at step 1000'
    keys 4
    await 'changed: optim.lr 1.0e-4 -> 1.0e-5'
    await '^step  *1000/1000'
    keys Escape
    await '  done$'
    keys 1
    await '1 overview'
    keys r
    await 'no complete checkpoint'
    keys q
    await 'status 0'
    stop
done

# a real one
few_images 64
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=12 train.checkpoint_steps=4 train.checkpoint_keep=9 --stop-after 8 --run-dir "$dir/runs" --name real >out 2>log || [ $? = 10 ]
start 132 43 'attach real'
await 'stopped'
keys r
await 'type resume, Enter: _ *from step 8,'
keys Escape
await 'not resumed'
keys Left Left Left
await 'at step 6'
keys r
await 'type resume, Enter: _ *from step 4,'
keys resume
keys Enter
await 'real-step-4 .* step 4'
await 'status 0'
stop
[ "$(wc -l <"$dir/runs/real-step-4/metrics.jsonl")" = 12 ] || fail "the branch has not continued"
[ "$(wc -l <"$dir/runs/real/metrics.jsonl")" = 8 ] || fail "the run is not as it was"
start 80 24 'attach real'
await 'stopped'
keys r
await 'type resume'
keys resume
keys Enter
await 'status 0'
stop
[ "$(wc -l <"$dir/runs/real/metrics.jsonl")" = 12 ] || fail "the run has not continued"
