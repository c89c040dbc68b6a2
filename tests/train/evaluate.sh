#!/bin/sh
# Evaluation of a classifier on data.val: each train.eval_every epochs and at the end, the same figures on one, two and three ranks, sharded,
# streamed and after a kill; the weights are those of a run without it; the best checkpoint stays; what cannot be evaluated is refused before
# training.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
arrange 36 images cat dog emu
arrange 14 val cat dog emu
cat >vit.yaml <<'END'
model: {family: dinov2, init: random, width: 32, depth: 3, heads: 2, hidden: 64, patch: 7, drop_path: 0.2}
data: {root: images, val: val, image_size: 28, workers: 1, mixup: 0.2}
train: {objective: classify, global_batch: 12, micro_batch: 4, batch_size: 12, epochs: 4, checkpoint_keep: 1, label_smoothing: 0.1}
optim: {lr: 2.0e-2, warmup_steps: 2, head_lr_scale: 1}
device: {type: cpu}
END
same_on_ranks
train without 0 train.eval_every=0
cmp one/ckpt/step-00000012/model.safetensors without/ckpt/step-00000012/model.safetensors || fail "evaluation changes the weights"
cmp one/ckpt/step-00000012/optimizer.bin without/ckpt/step-00000012/optimizer.bin || fail "evaluation changes the states"
grep -q val_loss without/metrics.jsonl && fail "without: evaluated"
train alone 0 train.global_batch=0
train streamed 0 train.global_batch=0 model.place=streamed
same alone streamed

# Stopped in the second epoch; each third epoch, and the last step.
train stopped 10 --stop-after 4
"$MEOPT" train --resume stopped --no-dashboard >out 2>log || fail "stopped: exit $? on resume"
same one stopped
train second 0 train.eval_every=3
python3 - <<'END' || fail "metrics"
import json, math, os
def lines(run): return {l["step"]: l for l in map(json.loads, open(run + "/metrics.jsonl"))}
one, second = lines("one"), lines("second")
assert sorted(s for s in one if "val_loss" in one[s]) == [3, 6, 9, 12], one
assert sorted(s for s in second if "val_loss" in second[s]) == [9, 12]
for step in (9, 12):
    for key in ("val_loss", "val_top1", "val_top5"): assert second[step][key] == one[step][key]
for line in one.values():
    if "val_loss" not in line: continue
    assert math.isfinite(line["val_loss"]) and line["val_top5"] == 1, line
    assert abs(line["val_top1"] * 14 - round(line["val_top1"] * 14)) < 1e-6, line # 14 images
assert len({line["val_top1"] for line in one.values() if "val_top1" in line}) > 1 # not all equal
value, step = max((one[s]["val_top1"], -s) for s in (3, 6, 9, 12))
for run in ("one", "ranks3", "stopped"):
    best = json.load(open(run + "/ckpt/best.json"))
    assert best["step"] == -step and best["metric"] == "val_top1" and abs(best["value"] - value) < 1e-6, (run, best, value, step)
    kept = sorted(n for n in os.listdir(run + "/ckpt") if n.startswith("step-"))
    assert kept == sorted({"step-%08d" % -step, "step-00000012"}), kept # checkpoint_keep 1, and the best one
END
"$MEOPT" compare one --json >out 2>log || fail "compare: exit $?"
grep -q best_val_top1 out || fail "compare: no validation"

# Killed at each rename of the checkpoints' files, best.json among them, and resumed: the best evaluation is not lost.
export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" FAULT_UNSYNCED=1
lost=0
for k in 1 2 3 4 5 6 7 8 9 10 11 12; do
    rm -rf killed
    head -c 65536 /dev/zero >shared
    env LD_PRELOAD=libfault.so FAULT_UNDER="$(pwd -P)/killed/ckpt" FAULT_SHARED="$(pwd -P)/shared" FAULT_CALL=rename FAULT_K=$k FAULT_KILL=1 \
        "$MEOPT" train vit.yaml --run-dir . --name killed --no-dashboard >out 2>log && break
    [ -e killed/ckpt/best.json ] && lost=$((lost + 1))
    "$MEOPT" train --resume killed --no-dashboard >out 2>log || fail "killed at rename $k: exit $? on resume"
    cmp one/ckpt/best.json killed/ckpt/best.json || python3 - <<'END' || fail "killed at rename $k: another best checkpoint"
import json
one, killed = (json.load(open(run + "/ckpt/best.json")) for run in ("one", "killed"))
assert [one[k] for k in ("step", "metric", "value")] == [killed[k] for k in ("step", "metric", "value")], (one, killed)
END
    [ -e "killed/ckpt/$(python3 -c 'import json; print("step-%08d" % json.load(open("killed/ckpt/best.json"))["step"])')/MANIFEST.json" ] ||
        fail "killed at rename $k: the best checkpoint is gone"
done
[ $lost -ge 3 ] || fail "only $lost kills after the first evaluation"

# A stop during the evaluation of step 3 ends it: the step is saved, its figures are left out, and the rest is that of the undisturbed run.
for ranks in 1 2; do
    rm -rf ended
    env LD_PRELOAD=libfault.so FAULT_UNDER="$(pwd -P)/val" FAULT_SLOW=open:400000:/val/ \
        "$MEOPT" train vit.yaml --run-dir . --name ended --no-dashboard --workers $ranks >out 2>log &
    pid=$!
    wait_for 60 grep -qs '"step":2,' ended/metrics.jsonl || fail "ended: no second step"
    sleep 0.5
    kill -TERM $pid
    wait $pid
    got=$?
    [ $got = 10 ] || fail "ended: exit $got, expected 10"
    [ -e ended/ckpt/step-00000003/MANIFEST.json ] || fail "ended: step 3 is not saved"
    "$MEOPT" train --resume ended --no-dashboard >out 2>log || fail "ended: exit $? on resume"
    cmp one/ckpt/step-00000012/model.safetensors ended/ckpt/step-00000012/model.safetensors || fail "ended: other weights"
    python3 - <<'END' || fail "ended: metrics"
import json
one, ended = ({l["step"]: l for l in map(json.loads, open(run + "/metrics.jsonl"))} for run in ("one", "ended"))
assert sorted(s for s in ended if "val_loss" in ended[s]) == [6, 9, 12], ended
for step in (6, 9, 12): assert ended[step]["val_loss"] == one[step]["val_loss"]
END
done

# The best checkpoint stays whatever is saved after it.
train kept 10 --stop-after 3 train.checkpoint_steps=1
sed -i 's/"value":[^}]*/"value":1.5/' kept/ckpt/best.json
"$MEOPT" train --resume kept --no-dashboard >out 2>log || fail "kept: exit $? on resume"
[ -e kept/ckpt/step-00000003/MANIFEST.json ] || fail "kept: the best checkpoint was removed"
[ -e kept/ckpt/step-00000012/MANIFEST.json ] || fail "kept: no last checkpoint"
[ ! -e kept/ckpt/step-00000011 ] || fail "kept: an old checkpoint stays"

# Refused before training: a class only in validation, no directory.
mkdir val/gnu
cp val/cat/* val/gnu/
train unknown 1
grep -q gnu log || fail "the class is not named"
rm -r val/gnu
train missing 7 data.val=nowhere
