#!/bin/sh
# Resuming with changes: with different keys, from an earlier checkpoint, as a new run with its weights. Keys that change while the run
# trains, on a real terminal. The command that is printed after a divergence works unchanged.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
few_images 64
all="the runs" # the shell needs quotes
train() { # CODE ARGUMENT...
    want=$1
    shift
    got=0
    "$MEOPT" train "$@" >out 2>log || got=$?
    [ "$got" = "$want" ] || { cat log; fail "train $*: exit $got, expected $want"; }
}
base=configs/quickstart_dinov2.yaml
train 10 $base train.steps=12 train.checkpoint_steps=2 train.checkpoint_keep=9 optim.name=apsgd optim.clip_grad_norm=0 optim.warmup_steps=0 train.log_every=1 --stop-after 4 --run-dir "$all" --name one
run="$all/one"

# other keys: those that may change, into its own file, its events and what the next resume compares with
cp "$run/config.yaml" before.yaml
train 2 --resume "$run" $base
train 7 --resume "$run" optim.lrr=1
grep -q '^meopt: .*optim.lrr' log || fail "the key is not named"
train 7 --resume "$run" optim.lr=1.0e-3 train.batch_size=8
grep -q '^meopt: .*train.batch_size.*\<16\>' log || fail "the batch is not named"
grep -q -- "--force-resume train.batch_size.*--from '$run'" log || fail "no way is reported"
cmp -s before.yaml "$run/config.yaml" || fail "a refused change is in the file"
train 10 --resume "$run" optim.lr=1e-3 train.log_every=2 --stop-after 6 # which other YAML readers take for text: quoted
! grep -q '^warning: .*config.yaml:[0-9]' log && grep -q '^ *lr: 1.0e-3' "$run/config.yaml" || fail "a rate is written as other readers do not take it"
grep '"event":"resumed"' "$run/events.jsonl" | grep -q '"changed":{.*"optim.lr":\["2.0e-3","1.0e-3"\]' || fail "not in events"
grep '"event":"resumed"' "$run/events.jsonl" | grep -q '"train.log_every":\["1","2"\]' || fail "an interval is not in events"
train 10 --resume "$run" --stop-after 7
[ "$(grep -c changed "$run/events.jsonl")" = 1 ] || fail "reported again"

# an earlier checkpoint: a run of its own, to the bit what it would have been
train 0 --resume "$run" optim.lr=2.0e-3
train 2 --at 4 $base
train 1 --resume "$run" --at 1
train 10 --resume "$run" --at 5 --stop-after 6
branch="$run-step-4"
grep -q '"event":"branched".*"step":4' "$branch/events.jsonl" || fail "no event of the branch"
[ "$(tail -1 "$run/metrics.jsonl" | sed 's/,"epoch.*//')" = '{"step":12' ] || fail "the first run has changed"
[ "$(wc -l <"$branch/metrics.jsonl")" = 6 ] || fail "the branch has other steps"
train 10 --resume "$run" --at 4 --name two --stop-after 6
train 10 $base train.steps=12 optim.name=apsgd optim.clip_grad_norm=0 optim.warmup_steps=0 --stop-after 6 --run-dir "$all" --name straight
for name in two one-step-4; do
    cmp "$all/straight/ckpt/step-00000006/model.safetensors" "$all/$name/ckpt/step-00000006/model.safetensors" || fail "$name: other bits"
done

# fewer steps than have been made: refused with both numbers before anything is written, also of a branch; and that many more
cp "$run/config.yaml" before.yaml
for words in '--steps 5' 'train.steps=5'; do
    # shellcheck disable=SC2086
    train 2 --resume "$run" $words
    grep -q '^meopt: .*\<5\>.*\<12\>' log || fail "$words: both numbers are not named"
    cmp -s before.yaml "$run/config.yaml" || fail "$words: written into the run"
done
train 2 --resume "$run" --at 4 --steps 3 --name fewer
[ ! -e "$all/fewer" ] || fail "a branch of fewer steps than it begins with"
train 0 --resume "$run" --at 4 --steps 4 --name same
train 0 --resume "$all/same" --steps +3
grep -q '\<7 steps.* 4:' log || fail "--steps +3: totals and learning rates: $(cat log)"
[ "$(wc -l <"$all/same/metrics.jsonl")" = 7 ] || fail "--steps +3: $(wc -l <"$all/same/metrics.jsonl") lines"
grep -q '^  steps: 7$' "$all/same/config.yaml" || fail "--steps +3 is not in the run"
for words in '--steps +3' '--steps 0' '--steps 1e3' '--steps -1'; do
    # shellcheck disable=SC2086
    train 2 $base $words --run-dir "$all" --name none
done

# refused before its first step: nothing is left of it
train 6 $base device.type=hip --run-dir "$all" --name none
[ ! -e "$all/none" ] || fail "a run without a card is left"

# another's weights
train 10 configs/quickstart_dinov2.yaml --from "$run" --stop-after 2 --run-dir "$all" --name child
grep -q '^student .*\<one\>.*\<12$' log || fail "not reported in the header"
grep -A4 '"from": {' "$all/child/meta.json" | grep -q '"step": 12' || fail "not in meta.json"
grep -A4 '"from": {' "$all/child/meta.json" | grep -q '"run": "one"' || fail "not in meta.json"
loss() { sed -n "$2s/.*\"loss\":\([0-9.]*\).*/\1/p" "$all/$1/metrics.jsonl"; }
awk "BEGIN { exit !($(loss child 1) < 0.9 * $(loss one 1)) }" || fail "it begins where the other began"
train 10 $base --from "$run" --stop-after 3 --run-dir "$all" --name child --resume-if-exists
# whose checkpoint is gone afterwards: the run's own has the student, to the same bits; without one the run is refused
train 10 $base --from "$run" --stop-after 2 --run-dir "$all" --name orphan
cp -R "$all/orphan" "$all/kept"
cp -R "$all/orphan" "$all/unsaved" && rm -r "$all/unsaved/ckpt"
train 10 --resume "$all/kept" --stop-after 4
mv "$run/ckpt" "$all/away"
train 10 --resume "$all/orphan" --stop-after 4
cmp "$all/kept/ckpt/step-00000004/optimizer.bin" "$all/orphan/ckpt/step-00000004/optimizer.bin" || fail "an orphan trains otherwise"
for key in '"run"' config_hash student_crc32c student_model planned_peak_bytes; do
    [ "$(grep "$key" "$all/kept/meta.json")" = "$(grep "$key" "$all/orphan/meta.json")" ] || fail "an orphan has another $key in meta.json"
done
train 7 --resume "$all/unsaved"
grep -q '^meopt: .*\<12\>.*\<one\>' log || fail "a run without any checkpoint: $(cat log)"
mv "$all/away" "$run/ckpt"
train 2 --resume "$run" --from "$all/child"
mkdir "$all/empty" && cp "$run/config.yaml" "$all/empty/" && cp "$run/state.json" "$all/empty/"
train 1 $base --from "$all/empty"
grep -q "^meopt: $all/empty: " log || fail "--from an unsaved run"

# diverged: each line that is reported is typed as it stands, until the run is through
PATH="$(dirname "$MEOPT"):$PATH"
diverges() { # the last command has: type what it says
    i=0
    while [ "$got" = 13 ]; do
        i=$((i + 1))
        [ $i -lt 5 ] || fail "the advice does not end: $(cat log)"
        line=$(sed -n 's/.*: \(meopt train .* optim.lr=.*\)/\1/p' log)
        [ -n "$line" ] || { cat log; fail "no line to type"; }
        got=0
        sh -c "$line" >out 2>log || got=$?
    done
    [ "$got" = 0 ] || { cat log; fail "$line: exit $got"; }
    [ $i -gt 0 ] || fail "nothing has diverged"
}
train 13 --resume "$run" --at 4 --name bad optim.lr=30.0 optim.min_lr=0.0
grep -q -- "--resume '$all/bad' --at 4 optim.lr=3.0" log || { cat log; fail "a checkpoint that was made after the rise is advised"; }
diverges
train 13 $base train.steps=8 optim.name=apsgd optim.clip_grad_norm=0 optim.warmup_steps=0 optim.lr=30.0 --run-dir "$all" --name hopeless
grep -q "meopt train '$all/hopeless/config.yaml' optim.lr=3.0" log || { cat log; fail "no beginning is advised"; }
diverges

# while it trains
start() { # WIDTH HEIGHT COMMAND
    terminal "$1" "$2" C.UTF-8 "NO_COLOR=1 HOME='$dir' OMP_NUM_THREADS=1" "'$MEOPT' $3"
}
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=1000000 train.log_every=50 --run-dir runs --name live >out 2>log &
echo $! >left
pid=$!
wait_for 10 grep -q '"step":20,' runs/live/metrics.jsonl 2>/dev/null || :
start 80 24 'attach live'
await 'e change'
keys e
await '^> optim.lr  *2.0e-3'
keys Enter C-u
keys -l 'abc'
await 'abc_'
keys Enter
await 'optim.lr.*number'
await '^> optim.lr  *abc_' # what was typed stays
keys C-u
keys -l '1e-4'
await '1e-4_'
keys Enter
await 'changed: optim.lr 2.0e-3 -> 1.0e-4'
keys 2
await '^ *[0-9].*\^' # on the axis
keys q
await 'status 0'
stop
grep -q '"event":"changed".*"changed":{"optim.lr":\["2.0e-3","1.0e-4"\]}' runs/live/events.jsonl || fail "no event of the change"
step=$(sed -n 's/.*"event":"changed".*"step":\([0-9]*\).*/\1/p' runs/live/events.jsonl)
rate() { sed -n "$1s/.*\"lr\":\([0-9.e-]*\).*/\1/p" runs/live/metrics.jsonl; }
awk "BEGIN { exit !($(rate "$step") > 1.9e-3 && $(rate $((step + 1))) < 1.1e-4) }" || fail "the rate is $(rate "$step"), then $(rate $((step + 1)))"
start 132 43 'attach live'
await 'changed: optim.lr'
keys e Down Down
await '^> train.checkpoint_steps '
keys Enter C-u
keys -l 100
await '100_'
keys Enter
await 'changed: train.checkpoint_steps [0-9]* -> 100' # a smaller one's checkpoints would push it off the screen at once
await 'step [0-9]*  checkpoint'
keys q
await 'status 0'
stop
"$MEOPT" stop runs/live >/dev/null 2>&1
wait "$pid" || [ $? = 10 ] || fail "the run ended otherwise"
train 10 --resume runs/live --stop-after 1
! grep '"event":"resumed"' runs/live/events.jsonl | grep -q changed || fail "what was changed is reported as changed again"
# what a comparison and a paper state of it is what was used
"$MEOPT" compare runs/live --json --paper paper >out 2>log
grep -q "\"2.0e-3 -> 1.0e-4 @$step\"" out || fail "compare does not tell the rate that e changed: $(grep -A9 '"optim.lr"' out)"
for file in table table_zh; do
    grep -q "2.0.*to.*1.0.*@$step" paper/$file.tex || fail "$file.tex does not report the rate that e changed"
done
