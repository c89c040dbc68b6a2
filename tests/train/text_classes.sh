#!/bin/sh
# BERT as a classifier of texts, from .jsonl to a directory for transformers, by the shipped configuration: documents and their classes, eval
# and export with the figures of the run; wrong files are refused by name. Equal bytes of ranks: equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
python3 - <<'PYTHON'
import json, random
random.seed(3)
of = {"good": "light land gold bread blessed come give take house father", "bad": "sin earth wind under shall not offer fire dust",
      "other": "men sons daughters children people brother wife"}
common = "and the of in to he it was with they".split()
def text(name):
    own = of[name].split()
    return " ".join(random.choice(own if random.random() < 0.7 else common) for _ in range(random.randrange(3, 30)))
for file, count in (("train", 120), ("val", 31)):
    names = [random.choice(sorted(of)) for _ in range(count)]
    with open(file + ".jsonl", "w") as f:
        for name in names: f.write(json.dumps({"id": 7, "text": text(name), "label": name}) + "\n")
    with open(file + "2.jsonl", "w") as f: # numbers, and their number in the order of the names
        for line, name in zip(open(file + ".jsonl"), names): f.write(json.dumps({"text": json.loads(line)["text"], "mark": sorted(of).index(name)}) + "\n")
PYTHON
mkdir -p bert configs
cp "$MEOPT_SOURCE/tests/data/tokenizers/bert.json" bert/tokenizer.json
cp "$MEOPT_SOURCE/configs/bert_classify.yaml" configs
tokenize() { # FILE.jsonl OUT ARGUMENT...
    file=$1 out=$2
    shift 2
    "$MEOPT" tokenize "$file" --tokenizer bert --json "$@" -o "$out" >told 2>log || fail "tokenize $file: exit $?: $(cat log)"
}
for part in train val; do
    tokenize $part.jsonl reviews_$part --label label
    grep -q '"classes":3' told || fail "no classes: $(cat told)"
    tokenize ${part}2.jsonl numbers_$part --label mark
    cmp reviews_$part.bin numbers_$part.bin || fail "other tokens with numbers"
done
# A model without pooler and classifier, as masked training leaves it.
cat >masked.yaml <<'YAML'
model: {family: bert, init: random, vocabulary: 900, context: 24, width: 32, depth: 2, heads: 4, hidden: 64}
data: {root: reviews_train.bin, mask_token: 4}
train: {objective: masked, batch_size: 8, steps: 5, precision: fp32}
device: {type: cpu}
YAML
"$MEOPT" train masked.yaml --run-dir . --name masked --no-dashboard >out 2>log || fail "masked: exit $?"
"$MEOPT" export masked --format hf --out bert-base-uncased >out 2>log || fail "masked: export: exit $?"
cp bert/tokenizer.json bert-base-uncased
train_by() { # NAME CODE CONFIG ARGUMENT...
    name=$1 want=$2 config=$3
    shift 3
    "$MEOPT" train "$config" --run-dir . --name "$name" --no-dashboard model.arch=custom model.family=bert model.classes=0 model.context=24 \
        model.heads=4 train.precision=fp32 train.batch_size=12 train.epochs=12 optim.warmup_steps=5 optim.lr=3.0e-3 device.type=cpu "$@" >out 2>log
    got=$?
    [ "$got" = "$want" ] || fail "$name: exit $got, expected $want: $(tail -3 log)"
}
train_by shipped 0 configs/bert_classify.yaml
grep -q 'no pooler' log || fail "a new pooler is not reported"
python3 - <<'PYTHON' || fail "the shipped configuration"
import json, math
lines = [json.loads(line) for line in open("shipped/metrics.jsonl")]
assert abs(lines[0]["loss"] - math.log(3)) < 1e-5 and len(lines) == 120, lines[0] # a new classifier is zero
assert lines[-1]["val_top1"] > 0.5 and lines[-1]["val_loss"] < 0.75, lines[-1] # about 0.58 and 0.55
meta = json.load(open("shipped/meta.json"))
assert meta["classes"] == ["bad", "good", "other"] and meta["objective"] == "classify" and meta["images"] == 120, meta
PYTHON
"$MEOPT" eval shipped --checkpoint last --json --per-class classes.csv >eval.json 2>log || fail "eval: exit $?"
"$MEOPT" eval shipped --checkpoint last --json train.batch_size=5 >eval5.json 2>log || fail "eval in batches of 5: exit $?"
"$MEOPT" export shipped --checkpoint last --format hf --out hf >out 2>log || fail "export: exit $?"
cat >again.yaml <<'YAML'
model: {family: bert, weight: hf, context: 24}
data: {root: reviews_train.bin, val: reviews_val.bin}
train: {objective: classify, batch_size: 7, precision: fp32}
device: {type: cpu}
YAML
"$MEOPT" eval again.yaml --json >again.json 2>log || fail "eval of the export: exit $?"
"$MEOPT" eval again.yaml --json data.root=numbers_train.bin data.val=numbers_val.bin >numbers.json 2>log || fail "eval of numbers: exit $?"
mkdir both
for end in bin idx classes; do # classes of two files, in another order
    cp reviews_train.$end both/a.$end
    cp reviews_val.$end both/b.$end
done
"$MEOPT" eval again.yaml --json data.root=both >both.json 2>log || fail "eval with two files: exit $?"
python3 - <<'PYTHON' || fail "the figures of eval and export"
import csv, json
last = [json.loads(line) for line in open("shipped/metrics.jsonl")][-1]
for name in ("eval", "eval5", "again", "numbers", "both"):
    found = json.load(open(name + ".json"))
    assert found["documents"] == 31 and "bad" not in found, found
    assert abs(found["val_loss"] / last["val_loss"] - 1) < 1e-5 and abs(found["val_top1"] - last["val_top1"]) < 1e-6 and found["val_top5"] == 1, (name, found, last)
rows = list(csv.DictReader(open("classes.csv")))
assert [r["class"] for r in rows] == ["bad", "good", "other"] and sum(int(r["images"]) for r in rows) == 31, rows
assert abs(sum(int(r["correct"]) for r in rows) / 31 - last["val_top1"]) < 1e-6, rows
config = json.load(open("hf/config.json"))
assert config["architectures"] == ["BertForSequenceClassification"] and config["id2label"] == {"0": "bad", "1": "good", "2": "other"}, config
assert open("hf/tokenizer.json").read() == open("bert/tokenizer.json").read()
PYTHON
# A linear probe of a model without pooler and classifier.
cat >vit.yaml <<'YAML'
model: {family: bert, weight: bert-base-uncased, context: 24}
data: {root: reviews_train.bin, val: reviews_val.bin}
train: {objective: classify, global_batch: 12, micro_batch: 4, batch_size: 12, steps: 10, precision: fp32, label_smoothing: 0.1}
optim: {lr: 3.0e-3, warmup_steps: 5}
device: {type: cpu}
YAML
train one 0
train probe 0 model.freeze=all_but_head
python3 - <<'PYTHON' || fail "a linear probe: what is frozen has changed"
import json, struct
def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    return {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}
import glob
a, b = (read(sorted(glob.glob(p + "/ckpt/step-*/model.safetensors"))[-1]) for p in ("one", "probe"))
hf = read("bert-base-uncased/model.safetensors")
word = "bert.embeddings.word_embeddings.weight"
assert b[word] == hf[word] and a[word] != hf[word] and any(b["classifier.weight"])
PYTHON
# Kin of BERT: an export of each is read again, as what it is.
for family in distilbert roberta electra; do
    train "$family" 0 model.family=$family model.init=random model.weight= model.vocabulary=900 model.width=32 model.depth=2 model.heads=4 \
        model.hidden=64 train.steps=6 optim.lr=1.0e-3
    "$MEOPT" export "$family" --checkpoint last --format hf --out "hf_$family" >out 2>log || fail "$family: export: exit $?"
    "$MEOPT" eval again.yaml --json model.family=$family model.weight="hf_$family" >"$family.json" 2>log || fail "$family: eval of the export: exit $?"
    exits 7 "$MEOPT" eval again.yaml model.weight="hf_$family" >out 2>log && grep -q "$family" log || fail "$family as bert: $(cat log)"
    python3 - "$family" <<'PYTHON' || fail "$family: the figures of the export"
import json, sys
name = sys.argv[1]
last, found = [json.loads(line) for line in open(name + "/metrics.jsonl")][-1], json.load(open(name + ".json"))
assert abs(found["val_loss"] / last["val_loss"] - 1) < 1e-5, (found, last)
config = json.load(open(f"hf_{name}/config.json"))
assert config["model_type"] == name and config["architectures"][0].lower() == name + "forsequenceclassification", config
assert config.get("type_vocab_size") == {"distilbert": None, "roberta": 1, "electra": 2}[name], config
PYTHON
done
# A stopped command of tokenize resumes with the same classes.
i=0
while [ $i -lt 200 ]; do cat train.jsonl; i=$((i + 1)); done >many.jsonl
tokenize many.jsonl whole --label label
"$MEOPT" tokenize many.jsonl --tokenizer bert --threads 1 --label label -o part >out 2>err &
process=$!
wait_for 30 test -s part.bin.part -o -e part.bin
kill -TERM $process
wait $process
code=$?
if [ $code = 10 ]; then
    "$MEOPT" tokenize many.jsonl --tokenizer bert --label label -o part >out 2>err || fail "resume of tokenize"
else [ $code = 0 ] || fail "tokenize, stopped: $code"; fi
cmp whole.bin part.bin && cmp whole.classes part.classes || fail "a resumed command wrote different bytes"
[ -z "$(find . -maxdepth 1 -name 'part.*part*')" ] || fail "unfinished files stay"

refused() { # CODE OBJECT COMMAND...
    want=$1 object=$2
    shift 2
    exits "$want" "$MEOPT" "$@" >out 2>log || fail "$*: exit $code, expected $want: $(cat log)"
    grep -q "$object" log || fail "$*: no $object: $(cat log)"
}
record() { # NAME RECORD: a file of three records, whose second is this one
    printf '{"text":"a","label":"x"}\n%s\n{"text":"b","label":"y"}\n' "$2" >"$1.jsonl"
    refused 1 "$1.jsonl:2" tokenize "$1.jsonl" --tokenizer bert --label label -o refused
    [ -z "$(find . -maxdepth 1 -name 'refused*')" ] || fail "$1: files stay"
}
record none '{"text":"c"}'
record empty '{"text":"c","label":""}'
record negative '{"text":"c","label":-1}'
record real '{"text":"c","label":0.5}'
record prompt '{"prompt":"c","completion":"d","label":"x"}'
echo text >text.txt
refused 1 text.txt tokenize text.txt --tokenizer bert --label label -o refused
again() { refused "$1" "$2" train again.yaml --run-dir . --name refused --no-dashboard "$3"; }
cp reviews_train.bin bare.bin
cp reviews_train.idx bare.idx
again 7 bare.bin data.root=bare.bin
cp reviews_val.classes bare.classes
again 3 bare.classes data.root=bare.bin
head -c 100 reviews_train.classes >bare.classes
again 3 bare.classes data.root=bare.bin
printf '{"text":"a","label":"one"}\n{"text":"b","label":"one"}\n' >same.jsonl
tokenize same.jsonl same --label label
again 1 one data.root=same.bin
again 1 one data.val=same.bin
again 7 model.classes model.classes=2
again 7 data.augment data.augment=true
again 7 data.documents data.documents=joined
again 7 data.mask_token data.mask_token=5
again 7 mixup data.mixup=0.5
refused 7 model.family train again.yaml --run-dir . --name refused --no-dashboard model.family=auto model.context=0
again 7 model.family model.family=auto
again 7 model.family model.family=gpt2
cp numbers_train.classes reviews_train.classes
refused 7 reviews_train train --resume one --no-dashboard --steps +1
# Kin of BERT with its tensors are refused by their name.
for kind in roberta distilbert xlm-roberta; do
    mkdir $kind
    cp hf/model.safetensors $kind
    echo "{\"model_type\": \"$kind\"}" >$kind/config.json
    again 7 $kind model.weight=$kind
done
