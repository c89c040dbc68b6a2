#!/bin/sh
# BERT by masked tokens from the YAML to the screen: eval gives the figures of the run, with the same masks; an export is read again; wrong
# keys are refused by name. Equal bytes of ranks: equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
write_text
cat >vit.yaml <<'END'
model: {family: bert, init: random, vocabulary: 257, context: 32, width: 32, depth: 2, heads: 4, hidden: 48}
data: {root: train.txt, val: val.txt, tokens: bytes, end: 10, mask_token: 256, special_tokens: 0}
train: {objective: masked, global_batch: 12, micro_batch: 4, batch_size: 12, steps: 60, eval_steps: 20, precision: fp32}
optim: {lr: 1.0e-2, warmup_steps: 5}
device: {type: cpu}
END
train one 0
"$MEOPT" eval one --checkpoint last --json >eval.json 2>log || fail "eval: exit $?"
"$MEOPT" eval one --checkpoint last --json train.global_batch=0 train.batch_size=3 train.micro_batch=3 train.seed=7 >eval3.json 2>log ||
    fail "eval in batches of 3: exit $?"
"$MEOPT" export one --checkpoint last --format hf -o hf >out 2>log || fail "export: exit $?"
"$MEOPT" eval vit.yaml --json model.weight=hf model.init=checkpoint model.heads=4 >eval4.json 2>log || fail "eval of the export: exit $?"
python3 - <<'END' || fail "metrics"
import json, math
one = {l["step"]: l for l in map(json.loads, open("one/metrics.jsonl"))}
assert sorted(s for s in one if "val_loss" in one[s]) == [20, 40, 60]
assert abs(one[1]["loss"] - math.log(257)) < 0.2 and one[60]["loss"] < 0.7 * one[1]["loss"], (one[1], one[60])
for name in ("eval.json", "eval3.json", "eval4.json"):
    found = json.load(open(name))
    for key in ("val_loss", "val_perplexity", "val_accuracy"): assert abs(found[key] / one[60][key] - 1) < 1e-5, (key, found, one[60])
assert json.load(open("one/meta.json"))["objective"] == "masked"
END

refused() { # OBJECT ARGUMENT...
    object=$1
    shift
    exits 7 "$MEOPT" train vit.yaml --run-dir . --name refused --no-dashboard "$@" >out 2>log || fail "$*: exit $code, expected 7"
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
# The mask and the special tokens: of the tokenizer.json next to the weights, else of the family.
sed -i 's/, mask_token: 256, special_tokens: 0//' vit.yaml
special() { # MASK SPECIAL ARGUMENT...
    mask=$1 first=$2
    shift 2
    rm -rf special
    "$MEOPT" train vit.yaml --run-dir . --name special --no-dashboard train.steps=1 "$@" >out 2>log || fail "$*: $(cat log)"
    grep -q "mask_token: $mask\$" special/config.yaml && grep -q "special_tokens: $first\$" special/config.yaml ||
        fail "$*: $(grep -E 'mask_token|special_tokens' special/config.yaml), expected $mask and $first"
}
special 103 104
special 256 4 model.family=roberta
special 200 4 data.mask_token=200
special 256 9 data.special_tokens=9 model.family=roberta
special 9 10 data.mask_token=9 model.family=distilbert
echo '{"added_tokens": [{"id": 7, "content": "<s>", "special": true}, {"id": 8, "content": "x", "special": false},
    {"id": 250, "content": "<other>", "special": true}, {"id": 256, "content": "<mask>", "special": true}]}' >hf/tokenizer.json
special 256 8 model.weight=hf model.init=checkpoint model.heads=4
special 40 41 model.weight=hf model.init=checkpoint model.heads=4 data.mask_token=40
sed -i '0,/{/s//{"tie_word_embeddings": false, /' hf/config.json
sed -i 's/^ *"tie_word_embeddings": true,*$//' hf/config.json
"$MEOPT" eval vit.yaml model.weight=hf model.init=checkpoint model.heads=4 >out 2>log
[ $? = 7 ] && grep -q tie_word_embeddings log || fail "a head apart from the token table: $(cat log)"
