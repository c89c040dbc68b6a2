#!/bin/sh
# meopt eval: the figures of the run's metrics, of its best and its last checkpoint and of a configuration; the table of classes adds up; what
# cannot be evaluated has its exit code.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
arrange 24 images cat dog 'emu,"wild"'
arrange 14 val cat dog 'emu,"wild"'
rm -r val/dog
cat >vit.yaml <<'END'
model: {family: dinov2, init: random, width: 32, depth: 2, heads: 2, hidden: 64, patch: 7, drop_path: 0.2}
data: {root: images, val: val, image_size: 28, workers: 1}
train: {objective: classify, micro_batch: 4, batch_size: 12, epochs: 4, label_smoothing: 0.1}
optim: {lr: 2.0e-2, warmup_steps: 2, head_lr_scale: 1}
device: {type: cpu}
END
check() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" eval "$@" >out 2>log || fail "eval $*: exit $code, expected $want"
}
"$MEOPT" train vit.yaml --run-dir . --name run --no-dashboard train.checkpoint_keep=9 >out 2>log || fail "training: exit $?"
check 0 run --json --per-class table.csv
cp out best.json
check 0 run --checkpoint last --json
cp out last.json
check 0 vit.yaml --json model.init=checkpoint model.weight=run/ckpt/step-00000008/model.safetensors
cp out config.json
check 0 run
grep -q 'top-1' out || fail "no figures for people"
python3 - <<'END' || fail "other figures"
import csv, json
lines = {l["step"]: l for l in map(json.loads, open("run/metrics.jsonl"))}
best, last, config = (json.load(open(n + ".json")) for n in ("best", "last", "config"))
kept = json.load(open("run/ckpt/best.json"))
assert last["step"] == 8 and best["step"] == kept["step"] and abs(best["val_top1"] - kept["value"]) < 1e-9 and config["step"] is None
for found in (best, last):
    for key in ("val_loss", "val_top1", "val_top5"): assert abs(found[key] - lines[found["step"]][key]) <= 1e-8 * abs(found[key]), (key, found, lines[found["step"]])
for key in ("images", "bad", "val_loss", "val_top1", "val_top5"): assert config[key] == last[key], (key, config, last)
rows = list(csv.DictReader(open("table.csv")))
assert [r["class"] for r in rows] == ["cat", "dog", 'emu,"wild"'], rows
assert sum(int(r["images"]) for r in rows) == best["images"] and rows[1]["images"] == "0" and rows[1]["top1"] == ""
assert abs(sum(int(r["correct"]) for r in rows) / best["images"] - best["val_top1"]) < 1e-9
for r in rows:
    if r["top1"]: assert abs(float(r["top1"]) - int(r["correct"]) / int(r["images"])) < 1e-5
END

export OMP_NUM_THREADS=2 # what loads a checkpoint holds is not planned: 2 MB, less than two threads of AMX take later
# Without states, gradients and activations for a backward pass: the planned memory, far below the training's, in every form of weights.
form() { # NAME ARGUMENT...
    name=$1
    shift
    "$MEOPT" train vit.yaml --run-dir . --name "$name" --no-dashboard --steps 2 model.width=192 model.hidden=768 model.depth=12 "$@" >out 2>log ||
        fail "$name: training: exit $?"
    "$MEOPT" plan "$name/config.yaml" --json >plan.json 2>log || fail "$name: plan: exit $?"
    check 0 "$name" --checkpoint last --json
    python3 - "$name" <<'END' || fail "$name: other figures or memory"
import json, sys
run = sys.argv[1]
plan, found = json.load(open("plan.json")), json.load(open("out"))
lines = {l["step"]: l for l in map(json.loads, open(run + "/metrics.jsonl"))}
for key in ("val_loss", "val_top1", "val_top5"): assert abs(found[key] - lines[2][key]) <= 1e-8 * abs(found[key]), (key, found, lines[2])
assert abs(found["peak_bytes"] - plan["evaluation_bytes"]) <= 0.01 * found["peak_bytes"], (found, plan["evaluation_bytes"])
assert found["peak_bytes"] < 0.5 * plan["peak_bytes"], (found, plan["peak_bytes"])
END
}
form quality optim.preset=quality
form fp32 train.precision=fp32
form amp optim.use_meopt=false
form minimal optim.preset=minimal train.save_activations=8bit
form shared train.global_batch=12 train.ema=0.99
form frozen model.freeze=2
form streamed model.place=streamed

# export and a new run choose the checkpoint, too. The first evaluation is the best at its time, so that step 2 has one.
echo '{"step": 2, "metric": "val_top1", "value": 0.5}' >run/ckpt/best.json
for which in best last; do
    "$MEOPT" export run --run-dir . --checkpoint $which -o $which.safetensors --json >out 2>log || fail "export $which: exit $?"
    [ $which = best ] && step=2 || step=8
    grep -q "\"step\": $step[,}]" out || fail "export $which: $(cat out), expected step $step"
    "$MEOPT" train vit.yaml --run-dir . --name from-$which --from run --checkpoint $which --steps 1 --no-dashboard >out 2>log ||
        fail "train --from $which: exit $?"
    grep -q "step-0000000$step/model.safetensors" from-$which/config.yaml || fail "train --from $which: other weights"
done
cmp -s best.safetensors last.safetensors && fail "export best: the last weights"
"$MEOPT" export run --run-dir . -o default.safetensors --json >out 2>log && grep -q '"step": 2[,}]' out && grep -q best log ||
    fail "export takes the best one, and says it: $(cat out log)"
# The run names the classes: neither the images of training nor a batch of them are needed. A part of the classes is enough.
check 0 run --checkpoint last --json
cp out with.json
mv images gone
mkdir few
cp -r val/cat few/
check 0 run --checkpoint last --json train.batch_size=400
python3 -c 'import json
a, b = json.load(open("with.json")), json.load(open("out"))
assert all(a[k] == b[k] for k in ("images", "val_loss", "val_top1")), (a, b)' || fail "other figures without data.root"
check 0 run --per-class table.csv data.val=few
grep -q '^dog,0,0,$' table.csv || fail "the table of a part: $(cat table.csv)"
mv gone images
"$MEOPT" train vit.yaml --run-dir . --name none --checkpoint best --no-dashboard >out 2>log
[ $? = 2 ] || fail "--checkpoint without --from is accepted"

# A new classifier or head would be evaluated: the file and the classes are named.
tower=$PWD/sample/ModelWeight/dinov2/dinov2_vitl14_pretrain.pth
cp run/ckpt/step-00000008/model.safetensors three.safetensors
mkdir -p four/val
cp -r images val four/
mkdir four/images/gnu
cp images/cat/* four/images/gnu/
check 2 vit.yaml model.init=checkpoint model.weight=three.safetensors data.root=four/images
grep -q three.safetensors log && grep -q '\<4 classes' log && grep -q '\<3 classes' log || fail "file or classes are not named"
sed 's/^model:.*/model: {family: dinov2}/' vit.yaml >tower.yaml
check 2 tower.yaml model.weight="$tower" data.image_size=56
grep -q "$tower" log && grep -q '\<3 classes' log || fail "file or classes are not named"
check 2 vit.yaml
echo broken >val/cat/broken.jpg
check 0 run --json data.max_bad=0.5
grep -q '"bad": 1' out || fail "the bad image is not counted"
rm val/cat/broken.jpg

check 2 vit.yaml --checkpoint last
check 2 run --checkpoint first
check 7 run --ema
check 7 run data.val=
grep -q data.val log || fail "data.val is not named"
check 7 run data.val=nowhere
check 7 configs/quickstart_dinov2.yaml
mkdir val/gnu
cp val/cat/* val/gnu/
check 1 run
grep -q gnu log || fail "the class is not named"
rm -r val/gnu
rm run/ckpt/best.json
check 1 run --checkpoint best
"$MEOPT" export run --run-dir . --checkpoint best >out 2>log
[ $? = 1 ] || fail "export without a best checkpoint"
check 0 run
rm -r run/ckpt/step-*
check 1 run
"$MEOPT" train vit.yaml --run-dir . --name damaged --no-dashboard >out 2>log || fail "training: exit $?"
for file in damaged/ckpt/step-*/model.safetensors; do printf x | dd of="$file" bs=1 seek=9000 conv=notrunc 2>/dev/null; done
check 3 damaged

# The average of the weights: the figures of the file that export --ema writes, whatever ranks saved it; a run without one is refused.
"$MEOPT" train vit.yaml --run-dir . --name averaged --no-dashboard train.ema=0.9 train.global_batch=12 --workers 2 dist.shard=optimizer \
    train.checkpoint_keep=9 >out 2>log || fail "training: exit $?"
for which in best last; do
    check 0 averaged --checkpoint $which --ema --json --per-class table.csv
    cp out ema.json
    "$MEOPT" export averaged --run-dir . --checkpoint $which --ema -o ema.safetensors >out 2>log || fail "export --ema: exit $?"
    check 0 vit.yaml model.init=checkpoint model.weight=ema.safetensors --json
    cp out file.json
    check 0 averaged --checkpoint $which --json
    python3 - <<'END' || fail "$which: other figures of the average"
import json
average, file, weights = json.load(open("ema.json")), json.load(open("file.json")), json.load(open("out"))
for key in ("images", "val_loss", "val_top1", "val_top5"): assert average[key] == file[key], (key, average, file)
assert average["step"] == weights["step"] and average["val_loss"] != weights["val_loss"], (average, weights)
END
done
check 2 vit.yaml --ema
