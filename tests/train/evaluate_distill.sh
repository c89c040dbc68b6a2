#!/bin/sh
# Evaluation of a distillation on data.val: loss and cosine are those of the two towers' outputs, in a run and by meopt eval; the best
# checkpoint stays; images need no classes, and those that cannot be decoded are left out. Equal figures of ranks: equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
arrange 36 images cat
arrange 14 val dog
echo broken >val/dog/aaa.jpg
cat >vit.yaml <<'END'
model: {family: dinov2}
model_t: {init: random, width: 48, depth: 2, heads: 2, hidden: 64, patch: 7}
model_s: {init: random, width: 32, depth: 3, heads: 2, hidden: 64, patch: 7, drop_path: 0.2}
loss: {type: cosine}
data: {root: images, val: val, image_size: 28, workers: 1, max_bad: 0.5, augment: true}
train: {global_batch: 12, micro_batch: 4, batch_size: 12, epochs: 3, checkpoint_keep: 1, precision: fp32}
optim: {lr: 2.0e-2, warmup_steps: 2}
device: {type: cpu}
END
train one 0
train ranks2 0 --workers 2 # an image that cannot be decoded is left out by the rank that reads it
same one ranks2
train without 0 train.eval_every=0
cmp one/ckpt/step-00000009/model.safetensors without/ckpt/step-00000009/model.safetensors || fail "evaluation changes the weights"
"$MEOPT" eval one --checkpoint last --json >last.json 2>log || fail "eval: exit $?"
"$MEOPT" eval one >out 2>log || fail "eval: exit $?"
grep -q 'val cosine' out || fail "no figures for people"
"$MEOPT" compare one --json >compare.json 2>log || fail "compare: exit $?"
python3 - <<'END' || fail "metrics"
import json, os
lines = {l["step"]: l for l in map(json.loads, open("one/metrics.jsonl"))}
evaluated = sorted(s for s in lines if "val_loss" in lines[s])
assert evaluated == [3, 6, 9], evaluated
for step in evaluated:
    line = lines[step]
    assert abs(line["val_loss"] + line["val_cosine"] - 1) < 1e-6 and "val_top1" not in line, line # loss.type cosine
last = json.load(open("last.json"))
assert last["images"] == 14 and last["bad"] == 1 and last["step"] == 9, last
for key in ("val_loss", "val_cosine"): assert abs(last[key] - lines[9][key]) <= 1e-6 * abs(last[key]), (key, last, lines[9])
best = json.load(open("one/ckpt/best.json"))
value, step = min((lines[s]["val_loss"], s) for s in evaluated)
assert best["step"] == step and best["metric"] == "val_loss" and abs(best["value"] - value) < 1e-9, (best, value, step)
assert os.path.isdir("one/ckpt/step-%08d" % step)
facts = {f["key"]: f["values"] for f in json.load(open("compare.json"))["facts"]}
assert abs(facts["best_val_loss"][0] - value) < 1e-9 and "best_val_cosine" in facts, facts.keys()
END

# The cosine of the outputs that meopt embed writes: teacher and student begin with the same weights, and there is no head.
tower=sample/ModelWeight/dinov2/dinov2_vitl14_pretrain.pth
sed "s,^model_[ts]:.*,," vit.yaml >pair.yaml
"$MEOPT" train pair.yaml --run-dir . --name pair --no-dashboard train.steps=4 train.eval_every=0 data.image_size=56 model_t.weight=$tower \
    model_s.weight=$tower >out 2>log || fail "pair: exit $?"
"$MEOPT" eval pair --json >pair.json 2>log || fail "pair: exit $?"
for role in teacher student; do
    "$MEOPT" embed pair --role $role -o $role.safetensors --skip-bad data.root="$PWD/val" >out 2>log || fail "embed $role: exit $?"
done
python3 - <<'END' || fail "other cosine than that of the outputs"
import json, math, struct
def rows(name):
    data = open(name, "rb").read()
    length = struct.unpack_from("<Q", data)[0]
    t = next(v for v in json.loads(data[8:8 + length]).values() if v.get("dtype") == "F32")
    count, width = t["shape"]
    values = struct.unpack_from("<%df" % (count * width), data, 8 + length + t["data_offsets"][0])
    return [values[i * width:(i + 1) * width] for i in range(count)]
def cosine(a, b): return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
cosines = [cosine(t, s) for t, s in zip(rows("teacher.safetensors"), rows("student.safetensors"))]
found, mean = json.load(open("pair.json")), sum(cosines) / 14
assert len(cosines) == found["images"] == 14 and mean < 0.9999, (len(cosines), mean)
assert abs(found["val_cosine"] - mean) < 1e-5, (found, mean)
END

# Weights without the linear head are refused.
for head in auto:0 linear:2; do
    "$MEOPT" eval pair.yaml data.image_size=56 model_t.weight=$tower model_s.weight=$tower loss.head=${head%:*} >out 2>log
    [ $? = ${head#*:} ] || fail "eval with loss.head $head"
done
grep -q "$tower" log || fail "the file is not named"
train list 7 data.val=vit.yaml
train cached 7 data.augment=false train.cache_teacher=true
train missing 7 data.val=nowhere
"$MEOPT" eval one --per-class table.csv >out 2>log
[ $? = 7 ] || fail "--per-class without classes"
"$MEOPT" eval one data.val= >out 2>log
[ $? = 7 ] || fail "without data.val"
