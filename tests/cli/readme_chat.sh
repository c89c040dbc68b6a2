#!/bin/sh
# README's lines from conversations to an answer, typed as they are into a terminal, on a small model in transformers' form under the name
# that they use. Only the learning rate and sizes are changed, by one more line.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
home="$dir/a home" copy="$dir/a clean copy"
mkdir -p "$home/bin" "$copy/tokens"
ln -s "$MEOPT" "$home/bin/meopt"
cd "$copy"
cp "$MEOPT_SOURCE/tests/data/tokenizers/qwen.json" tokens/tokenizer.json
i=0
while [ $i -lt 40 ]; do
    echo '{"messages": [{"role": "user", "content": "What is MEOpt?"}, {"role": "assistant", "content": "the light, 光。"}]}'
    i=$((i + 1))
done >chats.jsonl
"$MEOPT" tokenize chats.jsonl --tokenizer tokens --template chatml -o begin >out 2>&1 || fail "tokenize"
cat >begin.yaml <<END
model: {family: llama, init: random, vocabulary: 900, context: 64, width: 64, depth: 2, heads: 4, kv_heads: 2, hidden: 96}
data: {root: begin.bin}
train: {objective: language, batch_size: 1, steps: 1, precision: fp32}
device: {type: cpu}
END
"$MEOPT" train begin.yaml --name begin --no-dashboard >out 2>&1 || fail "train"
"$MEOPT" export begin --checkpoint last --format hf --out Qwen3-0.6B >out 2>&1 || fail "export"
cp tokens/tokenizer.json Qwen3-0.6B/
python3 - <<'END'
import importlib.util, json, os, shutil
# Qwen3's published template where trl is installed, which ships it; else ChatML's own
turn = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
end = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
open("Qwen3-0.6B/chat_template.jinja", "w").write("{% for message in messages %}" + turn + "{% endfor %}" + end)
trl = importlib.util.find_spec("trl")
if trl:
    shutil.copy(os.path.join(trl.submodule_search_locations[0], "chat_templates", "qwen3.jinja"), "Qwen3-0.6B/chat_template.jinja")
json.dump({"eos_token": "<|endoftext|>"}, open("Qwen3-0.6B/tokenizer_config.json", "w"))
END
commit=0123456789abcdef0123456789abcdef01234567 repo="$home/hf/hub/models--Qwen--Qwen3-0.6B" # as if it was fetched
mkdir -p "$repo/refs" "$repo/snapshots"
printf %s $commit >"$repo/refs/main"
mv Qwen3-0.6B "$repo/snapshots/$commit"
sed -n '/^From conversations/,/^`lora.rank/s/^    //p' "$MEOPT_SOURCE/README.md" | sed 's/  .*//' >"$dir/lines"
[ "$(wc -l <"$dir/lines")" -ge 8 ] || fail "README has $(wc -l <"$dir/lines") of these lines"
PATH="$home/bin:$PATH"
terminal 100 40 C.UTF-8 "HOME='$home' HF_HOME='$home/hf' HF_HUB_OFFLINE=1 HF_ENDPOINT=http://hub.invalid OMP_NUM_THREADS=1 PS1=" "sh -c 'cd \"$copy\"; stty -echo; exec sh'"
number=0
type() { # LINE: types it, and awaits that it ends with 0; q leaves the dashboard that it opens
    number=$((number + 1))
    keys C-u # what was typed into a screen that had closed
    keys -l "clear; $1; echo line $number ends: \$?"
    keys Enter
    wait_for 90 on_screen "1 overview\|^line $number ends: " || fail "'$1' opens no dashboard"
    on_screen "^line $number ends: " || keys q
    wait_for 90 on_screen "^line $number ends: " || fail "'$1' does not end"
    on_screen "^line $number ends: 0\$" || fail "'$1' does not end with 0"
}
while read -r line <&3; do
    [ "$line" != 'meopt generate chat --chat' ] || { # a dialogue
        number=$((number + 1))
        keys -l "clear; $line; echo line $number ends: \$?"
        keys Enter
        wait_for 90 on_screen '^>>>' || fail "no dialogue"
        keys -l 'What is MEOpt?'
        keys Enter
        wait_for 90 on_screen '^the light, 光。' || fail "no answer in the dialogue"
        keys -l /exit
        keys Enter
        wait_for 90 on_screen "^line $number ends: 0\$" || fail "the dialogue does not end with 0"
        continue
    }
    type "$line"
    case $line in
    'meopt config set'*)
        [ "$(HF_HOME="$home/hf" "$MEOPT" config get chat.yaml optim.lr)" = 2.0e-4 ] || fail "the learning rate of adapters"
        type "meopt config set chat.yaml optim.lr=1.0e-2 train.epochs=40 train.batch_size=1 model.context=64 train.precision=fp32" ;;
    'meopt train'*) wait_for 90 grep -qs '"state": *"done"' runs/chat/state.json || fail "the run does not finish" ;;
    'meopt generate'*) on_screen '^the light, 光。' || fail "the answer" ;;
    esac
done 3<"$dir/lines"

[ -s my-qwen3/model.safetensors ] && [ -s my-qwen3/tokenizer.json ] || fail "the merged model"
find runs/chat -name 'adapter_model.safetensors' | grep -q . || fail "the adapter"
# The merged model answers as the run does.
echo 'model: {weight: my-qwen3}
train: {objective: language}
device: {type: cpu}' >merged.yaml
"$MEOPT" generate merged.yaml --chat "What is MEOpt?" >answer 2>err || fail "generate with the merged model"
[ "$(cat answer)" = "the light, 光。" ] || fail "the merged model's answer"
# Refused: a question without a template, two kinds of prompt, data of a larger vocabulary.
code=0
"$MEOPT" generate begin --tokenizer tokens --chat "What?" >out 2>err || code=$?
[ $code = 2 ] || fail "--chat without a template: $code"
code=0
"$MEOPT" generate merged.yaml --chat "What?" --prompt "What?" >out 2>err || code=$?
[ $code = 2 ] || fail "--chat with --prompt: $code"
code=0
"$MEOPT" train begin.yaml --name small --no-dashboard model.vocabulary=600 >out 2>err || code=$?
[ $code = 7 ] || fail "a smaller vocabulary: $code"
