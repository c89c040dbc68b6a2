#!/bin/sh
# The shipped configurations of language models: each is planned, and is a template of config new; the text is fetched and learnt, and
# continued by generate.
set -u
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir configs
for name in bert_base gpt2_small gpt_1_3b qwen3_0_6b qwen3_8b qwen3_8b_lora bytes; do
    "$MEOPT" plan "$MEOPT_SOURCE/configs/$name.yaml" --json >"$name.json" 2>log || fail "$name: exit $?"
    "$MEOPT" config new "$name" >out 2>log || fail "template $name: exit $?"
    cp "$MEOPT_SOURCE/configs/$name.yaml" configs/
done
for name in bert_classify distilbert_classify bigbird_classify; do
    "$MEOPT" config new "$name" >out 2>log || fail "template $name: exit $?"
done
texts() { "$MEOPT" plan "$MEOPT_SOURCE/configs/distilbert_classify.yaml" model.init=random --json "$@" 2>log; }
texts --ranks 4 dist.shard=parameters >distilbert4.json && texts model_s.place=streamed optim.offload=nvme >distilbert.json ||
    fail "distilbert_classify: exit $?"
"$MEOPT" plan "$MEOPT_SOURCE/configs/bigbird_classify.yaml" model.init=random --json >bigbird.json 2>log || fail "bigbird_classify: exit $?"
"$MEOPT" plan configs/gpt_1_3b.yaml dist.pipeline=4 --json >pipeline.json 2>log || fail "gpt_1_3b in a pipeline: exit $?"
"$MEOPT" fetch genesis --dest sample >out 2>log || fail "fetch: exit $?"
"$MEOPT" train configs/bytes.yaml --run-dir . --name bytes --no-dashboard train.steps=150 train.eval_steps=75 device.type=cpu >out 2>log ||
    fail "bytes: exit $?"
python3 - <<'END' || fail "bytes: metrics"
import json, math
parameters = {"bert_base": 109514298, "gpt2_small": 124439808, "gpt_1_3b": 1313722368, "qwen3_0_6b": 596049920, "qwen3_8b": 8190735360} # published
for name, count in parameters.items(): assert json.load(open(name + ".json"))["student"]["parameters"] == count, name
assert json.load(open("bert_base.json"))["peak_bytes"] <= 3e9 # published: 12,698 MB
assert json.load(open("qwen3_8b_lora.json"))["peak_bytes"] <= 4e9
for name in ("distilbert4", "distilbert"): # published: 1.15 GB on each of 4 cards
    assert json.load(open(name + ".json"))["peak_bytes"] <= 0.4e9, name
assert json.load(open("bigbird.json"))["peak_bytes"] <= 1.2e9 # published: 4.03 GB on each of 4 cards
pipeline = json.load(open("pipeline.json"))
assert pipeline["stages"] == pipeline["ranks"] == 4 and pipeline["peak_bytes"] <= 3e9 and 0 < pipeline["bubble"] < 1, pipeline
lines = [json.loads(line) for line in open("bytes/metrics.jsonl")]
assert abs(lines[0]["loss"] - math.log(256)) < 0.2, lines[0]
assert lines[149]["val_loss"] < 2.6 and lines[149]["val_loss"] < lines[74]["val_loss"], lines[149] # about 2.3
END
"$MEOPT" generate bytes --prompt "And God said" --count 20 >out 2>log || fail "generate: exit $?"
grep -q '^And God said' out || fail "generate: no prompt"
