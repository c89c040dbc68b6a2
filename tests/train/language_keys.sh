#!/bin/sh
# Keys of a language model with a checkpoint: those that no tensor shows replace the values of config.json, others must agree
# with the file. Checkpoints of other objectives are refused on both sides.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir models
"$MEOPT_BUILD/tests/test_language_export" models >/dev/null 2>&1 || fail "no models"
printf 'model: {weight: models/llama}\ntrain: {objective: language}\ndata: {root: .}\n' >c.yaml

plan() { "$MEOPT" plan c.yaml "$@" >out 2>err; }
shows() { # TEXT KEY=VALUE...
    text=$1 && shift
    plan "$@" || fail "plan $*: $(cat err)"
    head -1 out | grep -qF "$text" || fail "plan $*: no '$text' in $(head -1 out)"
}
refuses() { # TEXT KEY=VALUE...
    text=$1 && shift
    code=0
    plan "$@" || code=$?
    [ $code = 3 ] || [ $code = 7 ] || fail "plan $*: exit $code"
    grep -qF "$text" err || fail "plan $*: no '$text' in $(cat err)"
}

shows 'rotary base 10000,'
shows 'rotary base 777,' model.rope_theta=777
shows 'window 5,' model.window=5
shows 'norm eps 0.001,' model.norm_eps=1e-3
shows 'context 64 of 64' # the model's
shows 'context 20 of 64' model.context=20
shows '4 heads of 16' model.weight=models/gpt2 model.heads=4
shows 'window 16,' model.weight=models/mistral
shows '8 heads of 16' model.weight=models/qwen3
rm models/llama/config.json
refuses 'config.json'
shows '8 heads of 8' model.heads=8
shows '4 heads of 16' model.head_dim=16 model.weight=models/llama
refuses '3' model.head_dim=3
refuses 'tied' model.weight=models/gpt2 model.tied=false
refuses 'tied' model.weight=models/qwen3 model.tied=true
refuses '81' model.weight=models/qwen3 model.vocabulary=81
refuses '4' model.weight=models/qwen3 model.kv_heads=4
refuses 'width' model.weight=models/qwen3 model.arch=qwen3_8b
refuses '65' model.weight=models/gpt2 model.context=65 # positions
refuses 'objective' model.weight=models/qwen3 train.objective=classify data.root= model.classes=10
