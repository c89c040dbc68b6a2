#!/bin/sh
# Frozen parts of a model: trained blocks take the same step as in full training, frozen tensors keep their bytes and no activations; the
# learning rate decays by layer. Equal bytes of ranks: equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
arrange 24 images cat dog
cat >vit.yaml <<'END'
model: {family: dinov2, init: random, width: 64, depth: 4, heads: 2, hidden: 192, patch: 7, pos_grid: 5, layerscale: without}
data: {root: images, image_size: 28, workers: 1}
train: {objective: classify, batch_size: 12, steps: 4, checkpoint_steps: 2, checkpoint_keep: 3}
# the gradient of a new classifier is 0: blocks move from the second step on
optim: {lr: 1.0e-3, warmup_steps: 0, schedule: constant, clip_grad_norm: 0, weight_decay: 0}
device: {type: cpu}
END
# Stochastic rounding depends on a tensor's place among the trained ones.
fp32="train.steps=2 train.precision=fp32 optim.preset=quality optim.state_m=fp32 optim.state_v=fp32"
# shellcheck disable=SC2086
train full 0 $fp32
# shellcheck disable=SC2086
train begun 0 $fp32 optim.lr=0 optim.min_lr=0
for freeze in embed 2 -1 all_but_head; do
    # shellcheck disable=SC2086
    train "two$freeze" 0 $fp32 model.freeze=$freeze
    train "frozen$freeze" 0 model.freeze=$freeze train.micro_batch=4
    # shellcheck disable=SC2086
    "$MEOPT" plan vit.yaml --json $fp32 model.freeze=$freeze >"plan$freeze" 2>log || fail "plan $freeze: exit $?"
    "$MEOPT" plan vit.yaml --explain activations model.freeze=$freeze >"explain$freeze" 2>log || fail "plan --explain $freeze: exit $?"
done
# shellcheck disable=SC2086
{
    train rate 0 $fp32
    train decayed 0 $fp32 optim.layer_decay=0.5
}
python3 - <<'END' || fail "frozen tensors"
import json, re, struct
def tensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in head.items() if k != "__metadata__"}
def step(run, n): return tensors("%s/ckpt/step-%08d/model.safetensors" % (run, n))
def group(name, depth=4):
    if name.startswith("blocks."): return int(name.split(".")[1]) + 1
    return 0 if name.split(".")[0] in ("cls_token", "pos_embed", "patch_embed", "mask_token") else depth + 1
full, begun = step("full", 2), step("begun", 2)
for freeze, lowest in ("embed", 1), ("2", 3), ("-1", 4), ("all_but_head", 5):
    two, first, last = step("two" + freeze, 2), step("frozen" + freeze, 2), step("frozen" + freeze, 4)
    changed = set()
    for name in full:
        trained = group(name) >= lowest and (freeze != "all_but_head" or name.startswith("classifier."))
        if trained: assert two[name] == full[name], (freeze, name) # as in full training
        else: assert first[name] == last[name] and two[name] == begun[name], (freeze, name)
        if trained and name.startswith("classifier"): assert first[name] != last[name], (freeze, name)
    line = json.loads(open("two%s/metrics.jsonl" % freeze).readline())
    plan, card = json.load(open("plan" + freeze)), line["cards"][0]
    assert plan["peak_bytes"] == card["peak_bytes"], (freeze, plan["peak_bytes"], card["peak_bytes"])
    kept = [re.search(r" x (\d+) ", line) for line in open("explain" + freeze) if "queries, keys, values" in line]
    assert sum(int(found.group(1)) if found else 1 for found in kept) == 5 - lowest, freeze # blocks with activations
# Each layer has a part of the next one's rate.
def norm(a, b):
    x, y = (struct.unpack("<%df" % (len(v) // 4), v) for v in (a, b))
    return sum((p - q) ** 2 for p, q in zip(x, y)) ** .5
begun, rate, decayed = (step(run, 2) for run in ("begun", "rate", "decayed"))
checked = 0
for name in rate:
    moved = norm(rate[name], begun[name])
    if moved < 1e-6: continue
    checked += 1
    want = 1 if name.startswith("classifier.") else .5 ** (5 - group(name))
    assert abs(norm(decayed[name], begun[name]) / moved - want) < .02 * want, (name, want)
assert checked > 20
END

for freeze in 5 -5 all last 2x; do
    train refused 7 model.freeze=$freeze
    grep -q freeze log || fail "model.freeze=$freeze: not named"
done
"$MEOPT" plan configs/quickstart_dinov2.yaml model_s.freeze=1 >out 2>log || fail "a distillation with a frozen block: exit $?"
