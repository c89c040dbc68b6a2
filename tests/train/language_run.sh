#!/bin/sh
# A language model of bytes from the YAML to the screen: the loss does not depend on how labels fall into micro-batches; eval gives the
# figures of the run; generate continues a text; keys of images are refused. Equal bytes of ranks: equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
write_text
cat >vit.yaml <<'END'
model: {family: llama, init: random, vocabulary: 256, context: 32, width: 32, depth: 2, heads: 4, kv_heads: 2, hidden: 48}
data: {root: train.txt, val: val.txt, end: 10}
train: {objective: language, global_batch: 12, micro_batch: 4, batch_size: 12, steps: 60, eval_steps: 20, precision: fp32}
optim: {lr: 1.0e-2, warmup_steps: 5}
device: {type: cpu}
END
train one 0
grep -q 'tokens/s' out || fail "no tokens/s on the screen"

# Labels are counted over the global batch: sentences end after different numbers of bytes in each micro-batch.
tr ' ' '\n' <train.txt >lines.txt
for micro in 1 2 8; do train "micro$micro" 0 data.root=lines.txt train.global_batch=0 train.batch_size=8 "train.micro_batch=$micro" train.steps=1; done
"$MEOPT" eval one --checkpoint last --json >eval.json 2>log || fail "eval: exit $?"
"$MEOPT" eval one --checkpoint last --json train.global_batch=0 train.batch_size=3 train.micro_batch=3 >eval3.json 2>log || fail "eval in batches of 3"
"$MEOPT" compare one micro8 --json >out 2>log || fail "compare: exit $?"
grep -q final_val_perplexity out || fail "compare: no perplexity"
"$MEOPT" runs --run-dir . --json >runs.json 2>log || fail "runs: exit $?"
"$MEOPT" plan vit.yaml --json >plan.json 2>log || fail "plan: exit $?"
python3 - <<'END' || fail "metrics"
import json, math
def lines(run): return {l["step"]: l for l in map(json.loads, open(run + "/metrics.jsonl"))}
one = lines("one")
assert sorted(s for s in one if "val_loss" in one[s]) == [20, 40, 60]
assert abs(one[1]["loss"] - math.log(256)) < 0.1 and one[60]["loss"] < 0.7 * one[1]["loss"], (one[1], one[60])
for line in one.values():
    assert 0 <= line["accuracy"] <= 1 and line["tokens_per_s"] > 0
    if "val_loss" in line: assert abs(line["val_perplexity"] / math.exp(line["val_loss"]) - 1) < 1e-6 and 0 <= line["val_accuracy"] <= 1
for name in ("eval.json", "eval3.json"):
    found = json.load(open(name))
    assert found["tokens"] == 699 and found["tokens_per_s"] > 0, found # each byte but the first
    for key in ("val_loss", "val_perplexity", "val_accuracy"): assert abs(found[key] / one[60][key] - 1) < 1e-5, (key, found, one[60])
first = [lines("micro%d" % m)[1]["loss"] for m in (1, 2, 8)]
assert max(first) / min(first) - 1 < 1e-6, first
meta = json.load(open("one/meta.json"))
assert meta["objective"] == "language" and meta["tokens"] == 9000 and meta["images"] == 280, meta
best = next(run["best"] for run in json.load(open("runs.json")) if run["name"] == "one")
found = {s: one[s]["val_loss"] for s in (20, 40, 60)}
assert best["metric"] == "val_loss" and best["step"] == min(found, key=found.get), (best, found)
assert abs(best["value"] / min(found.values()) - 1) < 1e-6, (best, found)
assert json.load(open("plan.json"))["context_tokens"] == 32
END

# Text in, text out: greedy is the same each time, draws follow their seed.
generate() { "$MEOPT" generate one --prompt "the light" --count 20 "$@" 2>log || fail "generate $*: exit $?"; }
generate >greedy
generate >again
cmp greedy again || fail "greedy answers differ"
[ "$(wc -c <greedy)" = 30 ] || fail "an answer of $(wc -c <greedy) bytes"
echo "the light" | "$MEOPT" generate one --count 20 >again 2>log || fail "generate of standard input: exit $?"
cmp -s greedy again || fail "standard input gives another answer than --prompt"
echo "the light" | generate --prompt - >again
cmp -s greedy again || fail "--prompt - gives another answer than --prompt"
generate --temperature 1 --seed 1 >first
generate --temperature 1 --seed 1 >again
generate --temperature 1 --seed 2 >second
cmp first again || fail "draws of one seed differ"
cmp -s first second && fail "draws of two seeds are equal"
"$MEOPT" generate one --tokens 116,104,101 --json >out 2>log || fail "generate --tokens: exit $?"
python3 -c 'import json; a = json.load(open("out")); assert a["prompt"] == [116, 104, 101] and len(a["tokens"]) == 64, a' || fail "generate --json"

# Beyond the context of 32 tokens the answer is that of the last 32 alone: each token as from a prompt of its own.
"$MEOPT" generate one --prompt "the light and the darkness" --count 40 --json >long.json 2>log || fail "generate beyond the context"
grep -q 32 log || fail "an answer beyond the context is not reported"
python3 - <<'END' || fail "an answer beyond the context"
import json, os, subprocess
long = json.load(open("long.json"))
text = long["prompt"] + long["tokens"]
assert len(long["tokens"]) == 40, long
for at in (30, 32, 33, 50, 65):
    tokens = ",".join(map(str, text[max(0, at - 32):at]))
    done = subprocess.run([os.environ["MEOPT"], "generate", "one", "--tokens", tokens, "--count", "1", "--json"], check=True, stdout=subprocess.PIPE)
    assert json.loads(done.stdout)["tokens"] == text[at:at + 1], at
END

# Printed as they come; Ctrl-C ends the answer, and --json prints what there is. Bytes that are no text are escaped.
: >out # the last output is not that of this command
"$MEOPT" generate one --prompt "the light" --count 1000000 >out 2>log &
echo $! >left
wait_for 60 eval '[ "$(wc -c <out)" -gt 60 ]' || fail "tokens are not printed as they come"
kill -TERM "$(cat left)"
wait "$(cat left)"
got=$?
[ $got = 143 ] || fail "an answer that was ended: exit $got"
[ "$(tail -c 1 out | od -An -tx1)" = " 0a" ] || fail "an answer that was ended has no newline"
"$MEOPT" generate one --prompt "the light" --count 1000000 --json >out 2>log &
echo $! >left
wait_for 60 eval '[ "$(cut -d " " -f 14 "/proc/$(cat left)/stat")" -ge 20 ]' || fail "--json: no processor time" # in its answer for long
kill -TERM "$(cat left)"
wait "$(cat left)"
got=$?
: >left
[ $got = 143 ] || fail "--json that was ended: exit $got"
python3 -c 'import json, os; assert not os.path.getsize("out") or json.load(open("out"))["tokens"]' || fail "--json that was ended"
"$MEOPT" generate one --tokens 195,188,226,130,172,226,130,0,255,27,9,65 --count 1 >out 2>log || fail "generate of bytes: exit $?"
printf '\303\274\342\202\254\\xe2\\x82\\x00\\xff\\x1b\tA' >want
head -c "$(wc -c <want)" out | cmp - want || fail "bytes that are no text"
refuse() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" "$@" >out 2>log || fail "$*: exit $code, expected $want"
}
refuse 2 generate one </dev/null
head -c 1048577 /dev/zero >long.txt
refuse 2 generate one <long.txt
cp one/config.yaml before.yaml
refuse 7 train --resume one model.weight=missing.pt
cmp -s one/config.yaml before.yaml || fail "a refused change is in config.yaml"
"$MEOPT" export one --format hf --shard-size 100KiB -o shards >out 2>log || fail "export --shard-size: exit $?"
[ "$(ls shards/model-* | wc -l)" -gt 1 ] || fail "--shard-size 100KiB has no effect"
refuse 2 export one --format hf --shard-size 1XB
echo '{}' >shards/tokenizer.json # of its user: the run has none
"$MEOPT" export one --format hf --shard-size 100KiB -o shards >out 2>log || fail "export over an earlier one: exit $?"
[ "$(cat shards/tokenizer.json)" = '{}' ] && grep -q shards/tokenizer.json log || fail "the tokenizer of an earlier export's user is lost"
refuse 2 generate one --prompt the --tokens 1
refuse 2 generate one --tokens 256
refuse 2 generate one --tokens 1,x
refuse 2 generate one --prompt ''
refuse 7 train vit.yaml --name no data.image_size=224
refuse 7 train vit.yaml --name no data.augment=true
refuse 7 train vit.yaml --name no model.classes=10
refuse 7 train vit.yaml --name no train.objective=classify
refuse 7 train vit.yaml --name no model.family=dinov2
refuse 7 train vit.yaml --name no model.vocabulary=100
grep -q 100 log || fail "the vocabulary is not named"
refuse 7 train vit.yaml --name no model.context=10000
refuse 7 embed one --out x
"$MEOPT" config check --data vit.yaml >out 2>log || fail "config check --data: exit $?"
sed 's/vocabulary: 256/vocabulary: 64/' vit.yaml >narrow.yaml
refuse 7 config check --data narrow.yaml
grep -q 64 log || fail "config check --data does not name the vocabulary"
"$MEOPT" bench train vit.yaml --random-weights --no-peak --steps 1 --json >out 2>log || fail "bench: exit $?"
grep -q tokens_per_s out || fail "bench: no tokens/s"
