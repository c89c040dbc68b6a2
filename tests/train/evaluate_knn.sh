#!/bin/sh
# train.eval knn+probe: nearest neighbours and linear probe of a student's features during a distillation of handwritten digits. The figures are
# those of a float64 reference over the outputs that meopt embed writes, of the run's average too; the training is that of a run without it,
# whichever images are in the bank; the memory is planned; what has no classes, or too many, is refused before training. Equal figures of ranks:
# equal_runs.sh. MEOPT_LONG=1: the scores rise.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
tar -xzf "$MEOPT_SOURCE/configs/sample/digits.tar.gz" -C sample
digits=sample/digits
mkdir train val
for class in 0 1 2 3 4 5 6 7 8 9; do
    mkdir "train/$class" "val/$class"
    find "$digits/train/$class" -name '*.png' | sort | head -30 | while read -r image; do cp "$image" "train/$class/"; done
    find "$digits/val/$class" -name '*.png' | sort | head -9 | while read -r image; do cp "$image" "val/$class/"; done
done
# without LayerScale, and the mean of the patches: the class tokens of all images begin alike
tower="init: random, width: 32, depth: 2, heads: 2, hidden: 64, patch: 2, pos_grid: 4, layerscale: without, pool: avg"
cat >vit.yaml <<END
model: {family: dinov2}
model_t: {$tower}
model_s: {$tower, drop_path: 0.1}
data: {root: train, val: val, image_size: 8, crop_pct: 1, workers: 1}
train: {eval: knn+probe, probe_l2: 3, global_batch: 60, micro_batch: 20, batch_size: 60, epochs: 2, precision: fp32, checkpoint_keep: 1}
optim: {lr: 6.0e-3, warmup_steps: 4}
device: {type: cpu}
END
train one 0 train.ema=0.8
train small 0 train.knn_bank=50 train.eval=knn
train probe 0 train.eval=probe
train without 0 train.eval=loss
cmp "$(last one)/model.safetensors" "$(last small)/model.safetensors" || fail "the bank changes the training"
cmp "$(last one)/model.safetensors" "$(last without)/model.safetensors" || fail "the evaluation changes the training"
cmp "$(last one)/model.safetensors" "$(last probe)/model.safetensors" || fail "the probe changes the training"
"$MEOPT" eval one --checkpoint last --json --per-class table.csv >last.json 2>log || fail "eval: exit $?"
"$MEOPT" eval one --checkpoint last --json train.eval=knn --per-class neighbours.csv >neighbours.json 2>log || fail "eval: exit $?"
"$MEOPT" eval one --checkpoint last --ema --json >average.json 2>log || fail "eval --ema: exit $?"
"$MEOPT" export one --checkpoint last --ema --out ema.safetensors >out 2>log || fail "export --ema: exit $?"
"$MEOPT" eval vit.yaml --json model_s.weight=ema.safetensors model_s.init=checkpoint >ema.json 2>log || fail "eval: exit $?"
"$MEOPT" eval vit.yaml --json model_s.weight="$(last one)/model.safetensors" model_s.init=checkpoint train.seed=1 >eval.json 2>log || fail "eval: exit $?"
# The features of random values are so alike that rounding decides between neighbours: matrices five times as large tell images apart.
python3 - "$(last one)/model.safetensors" <<'END'
import array, json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
length = struct.unpack_from("<Q", data)[0]
for tensor in json.loads(data[8:8 + length]).values():
    if len(tensor.get("shape", ())) >= 2:
        assert tensor["dtype"] == "F32", tensor
        begin, end = (8 + length + at for at in tensor["data_offsets"])
        data[begin:end] = array.array("f", [5 * v for v in array.array("f", bytes(data[begin:end]))]).tobytes()
open("apart.safetensors", "wb").write(data)
END
apart="vit.yaml model_s.weight=apart.safetensors model_s.init=checkpoint train.seed=1"
"$MEOPT" eval $apart --json >apart.json 2>log || fail "eval: exit $?"
for images in train val; do
    "$MEOPT" embed $apart --role student -o $images.safetensors data.root="$PWD/$images" >out 2>log || fail "embed $images: exit $?"
done
"$MEOPT" plan vit.yaml --json >knn.json 2>log || fail "plan: exit $?"
"$MEOPT" plan vit.yaml --json train.eval=loss >loss.json 2>log || fail "plan: exit $?"
"$MEOPT" plan vit.yaml --json train.eval=probe >probe.json 2>log || fail "plan: exit $?"
python3 - <<'END' || fail "other figures"
import csv, json, math, struct
def read(name):
    data = open(name, "rb").read()
    length = struct.unpack_from("<Q", data)[0]
    tensors = json.loads(data[8:8 + length])
    tensors.pop("__metadata__", None)
    def bytes_of(t): return data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]]
    values = next(t for t in tensors.values() if t["dtype"] == "F32")
    names = next(t for t in tensors.values() if t["dtype"] != "F32")
    count, width = values["shape"]
    flat = struct.unpack("<%df" % (count * width), bytes_of(values))
    rows = []
    for i in range(count):
        row = flat[i * width:(i + 1) * width]
        norm = math.sqrt(sum(v * v for v in row))
        rows.append([v / norm for v in row])
    labels = [n.split("/")[0] for n in bytes_of(names).decode().split("\0") if n]
    assert len(labels) == count
    return rows, labels
bank, classes = read("train.safetensors")
queries, wanted = read("val.safetensors")
top1 = top5 = near = 0 # near: a difference of 1e-6 of a cosine may decide otherwise
for query, label in zip(queries, wanted):
    cosines = [sum(a * b for a, b in zip(query, row)) for row in bank]
    votes, ranked = {}, sorted(range(len(bank)), key=lambda i: (-cosines[i], i))
    for i in ranked[:20]: # k = 20, temperature 0.07
        votes[classes[i]] = votes.get(classes[i], 0) + math.exp(cosines[i] / 0.07)
    order = sorted(votes, key=lambda c: (-votes[c], c))
    top1 += order[0] == label
    top5 += label in order[:5]
    gaps = [(votes[a] - votes[b]) / votes[a] for a, b in ((order[i], order[i + 1]) for i in (0, 4) if i + 1 < len(order))]
    near += cosines[ranked[19]] - cosines[ranked[20]] < 2e-6 or min(gaps, default=1) < 2e-6 / 0.07
assert near < 10, near
def ridge(l2): # of standardised features, targets -1 and 1: coefficients and intercept per class
    mean = [sum(row[k] for row in bank) / len(bank) for k in range(32)]
    deviation = [math.sqrt(sum((row[k] - mean[k]) ** 2 for row in bank) / len(bank)) + 1e-5 for k in range(32)]
    standard = lambda row: [(row[k] - mean[k]) / deviation[k] for k in range(32)]
    z, names = [standard(row) for row in bank], sorted(set(classes))
    lines = [[l2 * (i == j) + sum(row[i] * row[j] for row in z) for j in range(32)] for i in range(32)]
    for i in range(32):
        lines[i] += [sum(row[i] * (1 if label == name else -1) for row, label in zip(z, classes)) for name in names]
    for j in range(32):
        lines[j] = [v / lines[j][j] for v in lines[j]]
        for i in range(32):
            if i != j: lines[i] = [a - lines[i][j] * b for a, b in zip(lines[i], lines[j])]
    return standard, {name: ([lines[k][32 + c] for k in range(32)], 2 * classes.count(name) / len(classes) - 1) for c, name in enumerate(names)}
standard, model = ridge(3)
probe1 = probe5 = close = 0 # close: a difference of 1e-5 of a score may decide otherwise
for query, label in zip(queries, wanted):
    z = standard(query)
    scores = {name: b + sum(p * q for p, q in zip(w, z)) for name, (w, b) in model.items()}
    order = sorted(scores, key=lambda c: (-scores[c], c))
    probe1 += order[0] == label
    probe5 += label in order[:5]
    close += min(scores[order[i]] - scores[order[i + 1]] for i in (0, 4)) < 1e-5
assert close < 5, close
lines = {l["step"]: l for l in map(json.loads, open("one/metrics.jsonl"))}
last, config, apart, average, ema, neighbours = (json.load(open(name + ".json")) for name in "last eval apart average ema neighbours".split())
scores = ("knn_top1", "knn_top5", "probe_top1", "probe_top5")
assert all(sorted(s for s in lines if key in lines[s]) == [5, 10] for key in scores)
alone = [json.loads(line) for line in open("probe/metrics.jsonl")][-1]
assert all(alone[key] == lines[10][key] for key in scores[2:]) and "knn_top1" not in alone, alone
assert all(average[key] == ema[key] for key in scores + ("val_loss",)) and average["val_loss"] != last["val_loss"], (average, ema)
assert neighbours["knn_top1"] == last["knn_top1"] and "probe_top1" not in neighbours, neighbours
for name, count in (("probe_top1", probe1), ("probe_top5", probe5)):
    assert abs(apart[name] * 90 - count) < close + 0.1 and last[name] == config[name], (name, apart, count, close)
for name, count in (("knn_top1", top1), ("knn_top5", top5)):
    assert abs(lines[10][name] - last[name]) < 1e-8 and last[name] == config[name], (name, lines[10], last, config)
    assert abs(apart[name] * 90 - count) < near + 0.1, (name, apart, count, near)
assert last["images"] == 90, last
best = json.load(open("one/ckpt/best.json"))
assert best["metric"] == "probe_top1" and abs(best["value"] - max(l.get("probe_top1", 0) for l in lines.values())) < 1e-9, best
assert json.load(open("small/ckpt/best.json"))["metric"] == "knn_top1"
for table, key in (("table.csv", "probe_top1"), ("neighbours.csv", "knn_top1")):
    rows = list(csv.DictReader(open(table)))
    assert [r["class"] for r in rows] == list("0123456789") and all(r["images"] == "9" for r in rows)
    assert sum(int(r["correct"]) for r in rows) == round(last[key] * 90)
small = [json.loads(line) for line in open("small/metrics.jsonl")][-1]
assert "knn_top1" in small and small["val_loss"] == lines[10]["val_loss"], small
# The plan has the bank, 4 bytes per value, and the probe, 8 bytes per value.
knn, loss, probe = (json.load(open(name + ".json")) for name in ("knn", "loss", "probe"))
assert loss["knn_bytes"] == 0 and 10000 * 32 * 4 <= knn["knn_bytes"] < 11000 * 32 * 4, knn["knn_bytes"]
assert probe["probe_bytes"] == knn["probe_bytes"] and 0 <= probe["probe_bytes"] - 8 * 32 * (32 + 1000 + 20) < 20000, probe["probe_bytes"]
assert loss["probe_bytes"] == 0 and 0 < probe["knn_bytes"] < 20 * 32 * 4 + 64, probe["knn_bytes"]
for plan in (knn, probe): assert plan["classes"]["data"] - loss["classes"]["data"] == plan["knn_bytes"] + plan["probe_bytes"], plan["classes"]
END

train labels 7 train.eval=loss data.labels=vit.yaml
train classify 7 train.objective=classify
train nothing 7 data.val=
train many 7 train.probe_classes=9
mkdir val/gnu
cp val/0/* val/gnu/
train unknown 1
grep -q gnu log || fail "the class is not named"
rm -r val/gnu
mkdir flat
cp val/0/* flat/
train flat 1 data.root=flat train.global_batch=0 train.batch_size=4 train.micro_batch=4

[ "${MEOPT_LONG:-}" ] || exit 0
# All digits, with a teacher that knows them: the score rises, from about 0.26 to 0.74 after the eight epochs.
sed "s/^model_t:.*/model_t: {weight: teacher.safetensors, heads: 2}/" vit.yaml >all.yaml
cat >vit.yaml <<END
model: {family: dinov2, $tower}
data: {root: $digits/train, image_size: 8, crop_pct: 1, workers: 1}
train: {objective: classify, epochs: 20, batch_size: 60, precision: fp32}
optim: {lr: 6.0e-3, warmup_steps: 40, clip_grad_norm: 0}
device: {type: cpu}
END
train classifier 0
"$MEOPT" export classifier --run-dir . --no-head -o teacher.safetensors >out 2>log || fail "export: exit $?"
mv all.yaml vit.yaml
train all 0 data.root=$digits/train data.val=$digits/val train.epochs=8 optim.warmup_steps=20 train.global_batch=0
python3 - <<'END' || fail "all: the score does not rise"
import json
for key in ("knn_top1", "probe_top1"):
    scores = [l[key] for l in map(json.loads, open("all/metrics.jsonl")) if key in l]
    print(key, scores)
    assert len(scores) == 8 and scores[-1] > 0.5 and scores[-1] > scores[0] + 0.1, scores # chance is 0.1
END
