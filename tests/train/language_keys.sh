#!/bin/sh
# Keys of a language model with a checkpoint: those that no tensor shows replace the values of config.json, others must agree
# with the file. Checkpoints of other objectives are refused on both sides.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir models
"$MEOPT_BUILD/tests/test_language_export" models >/dev/null 2>&1 || fail "no models"
printf 'model: {weight: models/llama}\ntrain: {objective: language}\ndata: {root: .}\n' >c.yaml

# five lines and a directory: config.json, weights in shards, tokens
"$MEOPT" config new qwen3 my.yaml >out 2>err || fail "config new qwen3: $(cat err)"
[ "$(grep -vc '^#' my.yaml)" -le 5 ] || fail "config new qwen3 has more than five lines"
python3 -c 'import sys; sys.stdout.buffer.write(bytes(v for i in range(9000) for v in (i * i % 80, 0)))' >text.bin
ln -s models/qwen3 Qwen3-0.6B
"$MEOPT" train my.yaml --name five --run-dir . --no-dashboard train.steps=2 device.type=cpu >out 2>err || fail "five lines: $(cat err)"
grep -q '"step":2' five/metrics.jsonl || fail "five lines: no steps"

plan() { "$MEOPT" plan c.yaml "$@" >out 2>err; }
shows() { # TEXT KEY=VALUE...
    text=$1 && shift
    plan "$@" || fail "plan $*: $(cat err)"
    head -1 out | grep -qF "$text" || fail "plan $*: no '$text' in $(head -1 out)"
}
never() { # CODE TEXT KEY=VALUE...: refused with both names
    want=$1 text=$2
    shift 2
    exits "$want" plan "$@" || fail "plan $*: exit $code"
    for word in $text; do grep -qF "$word" err || fail "plan $*: no '$word' in $(cat err)"; done
}
edited() { # MODEL KEY VALUE: models/edited with another value in config.json
    rm -rf models/edited
    cp -r "models/$1" models/edited
    sed "s/\"$2\": [^,]*,/\"$2\": $3,/" "models/$1/config.json" >models/edited/config.json
    ! cmp -s "models/$1/config.json" models/edited/config.json || fail "$2 of $1 is unchanged"
}
refuses() { # TEXT KEY=VALUE...
    text=$1 && shift
    exits 3 plan "$@" || [ $code = 7 ] || fail "plan $*: exit $code"
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
# a key that replaces a value of config.json is shown with that value
shows ' have rope_theta 10000:' model.rope_theta=777
shows ' have no window:' model.window=5
shows ' have window 16:' model.window=5 model.weight=models/mistral
shows ' have heads 8:' model.weight=models/gpt2 model.heads=4
shows ' have activation gelu_tanh:' model.weight=models/gpt2 model.activation=gelu
shows ' have norm_eps 1e-06:' model.norm_eps=1e-3
shows 'context of 64:' model.context=100
shows 'context 64 of 64:' model.family=llama model.ffn=swiglu model.rope_theta=10000
shows ', gelu_tanh 96 wide' model.weight=models/gpt2 model.ffn=mlp
# keys that the model cannot have
random='model.weight= model.init=random model.vocabulary=80 model.context=32 model.width=32 model.depth=1 model.heads=4'
never 7 'llama gpt2' model.family=gpt2
never 7 'gpt2 llama' model.family=llama model.weight=models/gpt2
never 7 'qwen3_0_6b llama model.family gpt2' model.arch=qwen3_0_6b model.family=gpt2
never 7 'qwen3_0_6b llama model.family gpt2' model.arch=qwen3_0_6b model.family=gpt2 model.weight= model.init=random
never 7 'eva02_b16 eva model.family dinov2' model.arch=eva02_b16 model.family=dinov2 model.init=random train.objective=classify
never 7 'model.ffn mlp swiglu' model.ffn=mlp
never 7 'model.activation gelu swiglu' model.activation=gelu
never 7 'model.rope_theta gpt2' model.rope_theta=5 model.weight=models/gpt2
never 7 'model.rope_theta gpt2' $random model.family=gpt2 model.rope_theta=5
never 7 'norm' model.norm=post
never 7 'norm' $random model.family=llama model.hidden=48 model.norm=post
# a config.json that is not that of the tensors
for pair in hidden_size:65 num_hidden_layers:1 num_attention_heads:4 num_key_value_heads:4 intermediate_size:97 vocab_size:81 head_dim:4; do
    edited llama "${pair%:*}" "${pair#*:}"
    never 7 "${pair#*:}" model.weight=models/edited
done
for pair in n_embd:65 n_layer:3 n_inner:97 n_positions:32 vocab_size:81; do
    edited gpt2 "${pair%:*}" "${pair#*:}"
    never 7 "${pair#*:}" model.weight=models/edited
done
edited gpt2 tie_word_embeddings false
never 7 lm_head.weight model.weight=models/edited
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
refuses 'kv_heads' $random model.family=llama model.hidden=48 model.kv_heads=3
refuses 'heads' $random model.family=gpt2 model.heads=7
plan $random model.arch=gpt2_small model.width=768 model.heads=6 && grep -q '6 heads of 128' out || fail "other heads than the arch's"
refuses '65' model.weight=models/gpt2 model.context=65 # positions
refuses 'objective' model.weight=models/qwen3 train.objective=classify data.root= model.classes=10
