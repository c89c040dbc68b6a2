#!/bin/sh
# Steps whose samples have no label: loss null, nothing changes, and they are reported once; curve and comparison have the others. Also on two
# ranks, in a pipeline and after a resume.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
python3 - <<'PYTHON'
import struct
count, length = 12, 17 # documents; tokens 1 to 16 of each are predicted
tokens = [(i * 7919) % 90 for i in range(count * length)]
open("x.bin", "wb").write(struct.pack(f"<{len(tokens)}H", *tokens))
open("x.idx", "wb").write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1) + struct.pack(f"<{count}i", *[length] * count) +
                          struct.pack(f"<{count}q", *[2 * length * i for i in range(count)]) + struct.pack(f"<{count + 1}q", *range(count + 1)))
bits = [80 <= i < 120 for i in range(len(tokens))] # answers in the middle alone
packed = bytearray((len(bits) + 7) // 8)
for i, bit in enumerate(bits): packed[i // 8] |= bit << i % 8
open("x.labels", "wb").write(b"MEOPTLBL" + struct.pack("<Q", len(tokens)) + bytes(packed))
PYTHON
cat >x.yaml <<'YAML'
model: {family: llama, init: random, vocabulary: 100, context: 16, width: 32, depth: 2, heads: 2, hidden: 48}
data: {root: x.bin, shuffle: false, documents: joined}
train: {objective: language, global_batch: 2, batch_size: 2, micro_batch: 1, steps: 6, precision: fp32, log_every: 1, checkpoint_steps: 1, checkpoint_keep: 9}
optim: {lr: 1.0e-2, warmup_steps: 0}
device: {type: cpu}
YAML
train() { # CODE NAME ARGUMENT...
    want=$1 name=$2 got=0
    shift 2
    "$MEOPT" train x.yaml --run-dir . --name "$name" --no-dashboard --json "$@" >"$name.lines" 2>"$name.log" || got=$?
    [ "$got" = "$want" ] || fail "$name: exit $got, expected $want: $(cat "$name.log")"
}
train 0 one
[ "$(grep -c 'step 1 ' one.log)" = 1 ] || fail "not reported once: $(cat one.log)"
train 0 two --workers 2
train 0 stages --workers 2 dist.pipeline=2 train.batch_size=2
train 10 again --stop-after 2
"$MEOPT" train --resume again --no-dashboard >out 2>log || fail "resume"
"$MEOPT" compare one two --json >cmp.json 2>log || fail "compare"
python3 - <<'PYTHON'
import json, struct
def tensors(run, step):
    data = open(f"{run}/ckpt/step-{step:08d}/model.safetensors", "rb").read()
    return data[8 + struct.unpack_from("<Q", data)[0]:]
runs = {}
for name in "one", "two", "stages", "again":
    lines = [json.loads(line) for line in open(name + "/metrics.jsonl")]
    runs[name] = [line["loss"] for line in lines]
    assert len(lines) == 6 and all((line["loss"] is None) == (line["accuracy"] is None) for line in lines), lines
assert all(run == runs["one"] for run in runs.values()), runs
nulls = [i + 1 for i, loss in enumerate(runs["one"]) if loss is None]
assert nulls and nulls[0] == 1 and len(nulls) < 6, runs["one"]
for step in nulls:
    if step > 1: assert tensors("one", step) == tensors("one", step - 1), step
assert all(json.loads(line)["loss"] is None for line in open("one.lines") if '"loss":null' in line)
def rows(value, key):
    if isinstance(value, dict):
        if value.get("key") == key: yield value
        value = list(value.values())
    for part in value if isinstance(value, list) else (): yield from rows(part, key)
found, last = json.load(open("cmp.json")), [loss for loss in runs["one"] if loss][-1]
for key, value in ("nan_steps", 0), ("converged_loss", last), ("final_loss", last):
    for row in rows(found, key): assert all(abs(v - value) <= 1e-6 * abs(value) for v in row["values"]), row
assert next(rows(found, "converged_loss"))
PYTHON
