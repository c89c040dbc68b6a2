#!/bin/sh
# Classifiers of texts of transformers (BERT, DistilBERT, RoBERTa, XLM-RoBERTa, ELECTRA, BigBird with blocks), fine-tuned by meopt and by PyTorch on the same texts: tokens,
# losses of all steps, and the logits of the export, which its class loads strictly.
# Needs a Python with torch, transformers and safetensors (python.sh).
set -eu
set -- torch transformers safetensors
. "$MEOPT_SOURCE/tests/tools/python.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2
for row in bert:Bert distilbert:DistilBert roberta:Roberta xlm_roberta:XLMRoberta electra:Electra big_bird:BigBird; do
    kind=${row#*:} family=${row%:*}
    mkdir "$work/$kind"
    cd "$work/$kind"
    "$python" "$MEOPT_SOURCE/tests/tools/text_classes.py" make "$kind" "$MEOPT_SOURCE/tests/data/tokenizers/bert.json" >out 2>&1 || fail "$(tail -20 out)"
    for part in train val; do
        "$MEOPT" tokenize $part.jsonl --tokenizer model --label label -o $part >out 2>&1 || fail "tokenize: $(cat out)"
    done
    cat >text.yaml <<YAML
model: {family: $family, weight: model, context: 24}
data: {root: train.bin, val: val.bin, shuffle: false}
train: {objective: classify, batch_size: 12, steps: 40, precision: fp32, log_every: 1}
optim: {lr: 2.0e-3, warmup_steps: 5, clip_grad_norm: 0, weight_decay: 0.05, beta2: 0.95, eps: 1.0e-8}
device: {type: cpu}
YAML
    "$MEOPT" train text.yaml --run-dir . --name run --no-dashboard >out 2>&1 || fail "train: $(tail -5 out)"
    "$MEOPT" export run --checkpoint last --format hf --out hf >out 2>&1 || fail "export: $(cat out)"
    "$python" "$MEOPT_SOURCE/tests/tools/text_classes.py" compare "$kind" >out 2>&1 || fail "$(tail -20 out)"
    tail -1 out
done
