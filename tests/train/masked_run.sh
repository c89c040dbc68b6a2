#!/bin/sh
# BERT by masked tokens from the YAML to the screen: the same weights and metrics on one and several ranks, sharded, streamed, offloaded
# and after a stop; eval gives the figures of the run, with the same masks; an export is read again; wrong keys are refused by name.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
python3 - <<'END'
words = "the light and the darkness were upon the face of the waters".split()
text = " ".join(words[(i * i + i // 7) % len(words)] for i in range(2000)) + "\n"
open("train.txt", "w").write(text[:9000])
open("val.txt", "w").write(text[9000:9700])
END
cat >vit.yaml <<'END'
model: {family: bert, init: random, vocabulary: 257, context: 32, width: 32, depth: 2, heads: 4, hidden: 48}
data: {root: train.txt, val: val.txt, tokens: bytes, end: 10, mask_token: 256, special_tokens: 0}
train: {objective: masked, global_batch: 12, micro_batch: 4, batch_size: 12, steps: 60, eval_steps: 20, precision: fp32}
optim: {lr: 1.0e-2, warmup_steps: 5}
device: {type: cpu}
END
same_on_ranks
train pipeline 0 --workers 4 dist.pipeline=2
same one pipeline
train alone 0 train.global_batch=0
train streamed 0 train.global_batch=0 model.place=streamed
same alone streamed
train offloaded 0 train.global_batch=0 optim.offload=nvme
same alone offloaded
train stopped 10 --stop-after 33
"$MEOPT" train --resume stopped --no-dashboard >out 2>log || fail "stopped: exit $? on resume"
same one stopped
"$MEOPT" eval one --checkpoint last --json >eval.json 2>log || fail "eval: exit $?"
"$MEOPT" eval one --checkpoint last --json train.global_batch=0 train.batch_size=3 train.micro_batch=3 train.seed=7 >eval3.json 2>log ||
    fail "eval in batches of 3: exit $?"
python3 - <<'END' || fail "metrics"
import json, math
one = {l["step"]: l for l in map(json.loads, open("one/metrics.jsonl"))}
assert sorted(s for s in one if "val_loss" in one[s]) == [20, 40, 60]
assert abs(one[1]["loss"] - math.log(257)) < 0.2 and one[60]["loss"] < 0.7 * one[1]["loss"], (one[1], one[60])
for name in ("eval.json", "eval3.json"):
    found = json.load(open(name))
    for key in ("val_loss", "val_perplexity", "val_accuracy"): assert abs(found[key] / one[60][key] - 1) < 1e-5, (key, found, one[60])
assert json.load(open("one/meta.json"))["objective"] == "masked"
END
"$MEOPT" export one --checkpoint last --format hf -o hf >out 2>log || fail "export: exit $?"
"$MEOPT" eval vit.yaml --json model.weight=hf model.init=checkpoint model.heads=4 >eval4.json 2>log || fail "eval of the export: exit $?"
python3 -c 'import json; a, b = (json.load(open(n))["val_loss"] for n in ("eval.json", "eval4.json")); assert abs(a / b - 1) < 1e-5, (a, b)' ||
    fail "eval of the export differs"

refused() { # OBJECT ARGUMENT...
    object=$1
    shift
    "$MEOPT" train vit.yaml --run-dir . --name refused --no-dashboard "$@" >out 2>log
    got=$?
    [ "$got" = 7 ] || fail "$*: exit $got, expected 7"
    grep -q "$object" log || fail "$*: no $object: $(cat log)"
}
refused rope_theta model.rope_theta=10000
refused window model.window=8
refused norm model.norm=pre
refused data.mask_token data.mask_token=257
refused train.objective train.objective=language data.mask_token=103 data.special_tokens=-1
refused train.objective model.family=gpt2
refused swiglu model.ffn=swiglu
refused tied model.tied=false
"$MEOPT" generate one --prompt the >out 2>log
[ $? = 7 ] || fail "generate with an encoder"
