#!/bin/sh
# Classes are numbered as the id2label of a BertForSequenceClassification and a Dinov2ForImageClassification does: eval, train and export have the
# figures of these classes. Other names are refused with both; eval needs neither data.root nor a batch of training.
# Needs a Python with torch, transformers and safetensors (python.sh).
set -eu
set -- torch transformers safetensors
. "$MEOPT_SOURCE/tests/tools/python.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2
cd "$work"
"$python" "$MEOPT_SOURCE/tests/tools/class_order.py" make "$MEOPT_SOURCE/tests/data/tokenizers/bert.json" >out 2>&1 || fail "$(tail -20 out)"
for part in train val; do
    "$MEOPT" tokenize $part.jsonl --tokenizer bert --label label -o $part >out 2>&1 || fail "tokenize: $(cat out)"
done
cat >text.yaml <<'YAML'
model: {family: bert, weight: bert, context: 24}
data: {root: train.bin, val: val.bin}
train: {objective: classify, batch_size: 8, steps: 6, precision: fp32}
optim: {lr: 1.0e-3, warmup_steps: 2}
device: {type: cpu}
YAML
cat >image.yaml <<'YAML'
model: {weight: dinov2}
data: {root: train, val: val, image_size: 28, resize: exact, mean: "0.4, 0.5, 0.6", std: "0.3, 0.2, 0.25", augment: false, workers: 1}
train: {objective: classify, batch_size: 6, steps: 4, precision: fp32}
optim: {lr: 1.0e-3, warmup_steps: 2}
device: {type: cpu}
YAML
meopt() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" "$@" >out 2>log || fail "$*: exit $code, expected $want: $(tail -5 log)"
}
for kind in text image; do
    meopt 0 eval $kind.yaml --json
    cp out $kind.json
    grep -q config.json log || fail "$kind: the order is not reported: $(cat log)"
    meopt 0 eval $kind.yaml --json data.root= train.batch_size=500
    "$python" -c 'import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert all(a[k] == b[k] for k in ("val_loss", "val_top1")), (a, b)' $kind.json out || fail "$kind: other figures without data.root"
    meopt 0 plan $kind.yaml
    grep -q config.json log || fail "plan $kind: the order is not reported: $(cat log)"
    meopt 10 train $kind.yaml --run-dir . --name $kind --no-dashboard --stop-after 2
    [ "$(grep -c 'config.json: ' log)" = 2 ] || fail "$kind: the order of data.root and data.val: $(cat log)"
    meopt 0 train --resume $kind --no-dashboard
    meopt 0 export $kind --checkpoint last --format hf --out $kind-hf
    meopt 0 eval $kind --checkpoint last --json
    cp out ${kind}_run.json
    # The order goes with the weights: to the next run, and with a file.
    meopt 0 export $kind --checkpoint last --out $kind.safetensors
    meopt 0 eval $kind.yaml --json model.weight=$kind.safetensors
    cmp -s out ${kind}_run.json || "$python" -c 'import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:])
assert a["val_loss"] == b["val_loss"], (a, b)' ${kind}_run.json out || fail "$kind: other figures of the file"
    meopt 0 train $kind.yaml --run-dir . --name $kind-more --from $kind --checkpoint last --no-dashboard
    mv train.bin gone.bin
    mv train gone
    meopt 0 eval $kind --checkpoint last --json
    mv gone train
    mv gone.bin train.bin
done
"$python" "$MEOPT_SOURCE/tests/tools/class_order.py" compare >out 2>&1 || fail "$(tail -20 out)"
tail -4 out
"$python" - <<'PYTHON'
import json
for run, order in ("text", ["positive", "negative", "neutral"]), ("image", ["zebra", "ant"]):
    assert json.load(open(run + "-more/meta.json"))["classes"] == order
PYTHON
# Other names than those of the classifier: both are named, by all commands. Names that say nothing, a new head or the user's word: sorted.
mv train/zebra train/horse
for command in eval plan 'train --run-dir . --name refused --no-dashboard'; do
    # shellcheck disable=SC2086
    meopt 7 ${command%% *} image.yaml ${command#"${command%% *}"} data.val=train
    grep -q horse log && grep -q zebra log || fail "$command: the names: $(cat log)"
done
meopt 0 eval image.yaml data.val=train data.class_order=sorted
mkdir train/third
cp train/ant/* train/third/
meopt 0 train image.yaml --run-dir . --name new --no-dashboard data.val= --steps 1
mv train/horse train/zebra
rm -r train/third
sed -i 's/"zebra"/"LABEL_0"/; s/"ant"/"LABEL_1"/' dinov2/config.json
meopt 0 eval image.yaml
meopt 0 eval text.yaml data.class_order=sorted
# A part of the classes is enough for an evaluation; a class that the classifier has not is refused.
rm -r val/zebra
meopt 0 eval image --json --per-class table.csv
grep -q '^zebra,0' table.csv || fail "the table: $(cat table.csv)"
mkdir val/horse
cp val/ant/0.png val/horse/
meopt 1 eval image
grep -q horse log || fail "the class is not named: $(cat log)"
