#!/bin/sh
# Training a classifier: one, two and three ranks, sharded or not, killed and resumed, streamed and offloaded, it ends with the same bytes; the
# plan is the measured memory; the classes belong to the run; what the objective does not read is refused.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
arrange 36 images cat dog emu
cat >vit.yaml <<'END'
model: {family: dinov2, init: random, width: 32, depth: 3, heads: 2, hidden: 64, patch: 7, drop_path: 0.4}
data: {root: images, image_size: 28, workers: 1}
train: {objective: classify, batch_size: 12, steps: 6, checkpoint_steps: 2, label_smoothing: 0.1, ema: 0.9}
optim: {lr: 1.0e-3, warmup_steps: 2, head_lr_scale: 1}
device: {type: cpu}
END
same_states() { # A B
    same "$1" "$2"
    cmp "$1/ckpt/step-00000006/optimizer.bin" "$2/ckpt/step-00000006/optimizer.bin" || fail "$2: other states than $1"
}

# Ranks share the micro-batches of a step.
shared="train.global_batch=12 train.micro_batch=4"
# shellcheck disable=SC2086
{
    train one 0 $shared
    for ranks in 2 3; do
        train "ranks$ranks" 0 $shared --workers "$ranks"
        same one "ranks$ranks"
    done
    train optimizer 0 $shared --workers 2 dist.shard=optimizer
    train parameters 0 $shared --workers 3 dist.shard=parameters
    train kept 0 $shared --workers 2 optim.gradients=keep
}
same one optimizer
same one parameters
for name in one ranks3 optimizer parameters; do
    "$MEOPT" export "$name" --ema --out "$name.ema" >out 2>log || fail "$name: export --ema: exit $?"
    cmp one.ema "$name.ema" || fail "$name: another average than one"
done
"$MEOPT" export one --out one.last >out 2>log || fail "one: export: exit $?"
! cmp -s one.ema one.last || fail "one: the average is the last weights"
[ -z "$(find . -name '*.ema.safetensors')" ] || fail "export --ema left a file"
python3 - <<'END' || fail "one: metrics"
import json, math
lines = [json.loads(line) for line in open("one/metrics.jsonl")]
assert abs(lines[0]["loss"] - math.log(3)) < 1e-6, lines[0] # a new classifier is zero
assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
for line in lines:
    assert math.isfinite(line["loss"]) and "cosine" not in line
    assert abs(line["top1"] * 12 - round(line["top1"] * 12)) < 1e-6 and line["top5"] == 1.0, line # three classes are all among five
meta = json.load(open("one/meta.json"))
assert meta["classes"] == ["cat", "dog", "emu"] and meta["objective"] == "classify" and meta["teacher_parameters"] == 0
END

# Mixed and augmented images are functions of seed, step and row of the global batch.
mixed="$shared data.augment=true data.mixup=0.8 data.cutmix=1.0"
# shellcheck disable=SC2086
{
    train mixed 0 $mixed
    train mixed3 10 $mixed --workers 3 dist.shard=parameters --stop-after 3
    "$MEOPT" train --resume mixed3 --no-dashboard >out 2>log || fail "mixed3: exit $? on resume"
}
same mixed mixed3
! cmp -s one/metrics.jsonl mixed/metrics.jsonl || fail "mixed: nothing is mixed"

# One rank: accumulation, weights and states elsewhere, killed in the middle.
train alone 0 train.micro_batch=4
train streamed 0 train.micro_batch=4 model.place=streamed
same_states alone streamed
train whole 0
train offloaded 0 optim.offload=nvme
same_states whole offloaded
"$MEOPT" train vit.yaml --run-dir . --name killed --no-dashboard >out 2>log &
pid=$!
while [ ! -e killed/ckpt/step-00000002/MANIFEST.json ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
worker=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' killed/state.json)
kill -9 "$worker" $pid 2>/dev/null
wait $pid 2>/dev/null
"$MEOPT" train --resume killed --no-dashboard >out 2>log || fail "killed: exit $? on resume"
same_states whole killed

# The plan is the measured memory.
"$MEOPT" plan vit.yaml --json >out 2>log || fail "plan: exit $?"
python3 - <<'END' || fail "plan: other memory than measured"
import json
plan = json.load(open("out"))
card = json.loads(open("whole/metrics.jsonl").readline())["cards"][0]
assert plan["teacher"] is None and plan["peak_bytes"] == card["peak_bytes"], (plan["peak_bytes"], card["peak_bytes"])
END

# Refused: the classes belong to the run; keys without effect; classes that the classifier does not have.
train moved 10 --stop-after 2
mv images/emu images/gnu
"$MEOPT" train --resume moved --no-dashboard >out 2>log
[ $? = 7 ] || fail "moved: resumed with other classes"
grep -q images log || fail "moved: the images are not named"
mv images/gnu images/emu
for key in model_t.width=64 loss.type=cosine data_s.image_size=14 train.cache_teacher=true model.classes=2; do
    train refused 7 "$key"
    grep -q "${key%%=*}\|classes" log || fail "$key: not named"
done
for key in train.label_smoothing=0.1 model_s.classes=3 model.width=64; do
    "$MEOPT" plan configs/quickstart_dinov2.yaml "$key" >out 2>log
    [ $? = 7 ] || fail "$key: taken by a distillation"
done
