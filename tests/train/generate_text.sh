#!/bin/sh
# From .jsonl to an answer: tokens and labels of conversations, a training on them, and text in and out with the tokenizer, which is named or
# next to the weights.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
mkdir chat
cp "$MEOPT_SOURCE/tests/data/tokenizers/qwen.json" chat/tokenizer.json
i=0
while [ $i -lt 60 ]; do
    echo '{"messages": [{"role": "user", "content": "say"}, {"role": "assistant", "content": "the light, 光。"}]}'
    i=$((i + 1))
done >chats.jsonl
"$MEOPT" tokenize chats.jsonl --tokenizer chat --template chatml -o chats >out || fail tokenize
end=$(python3 -c 'import json; print(json.load(open("chat/tokenizer.json"))["model"]["vocab"]["<|im_end|>"])')
cat >chat.yaml <<END
model: {family: llama, init: random, vocabulary: 900, context: 64, width: 32, depth: 2, heads: 4, kv_heads: 2, hidden: 48}
data: {root: chats.bin, end: $end}
train: {objective: language, batch_size: 8, steps: 60, precision: fp32}
optim: {lr: 1.0e-2, warmup_steps: 5}
device: {type: cpu}
END
"$MEOPT" train chat.yaml --name chat-run --no-dashboard >out 2>log || fail "train: exit $?"
prompt='<|im_start|>user
say<|im_end|>
<|im_start|>assistant
'
"$MEOPT" generate chat-run --tokenizer chat --prompt "$prompt" --json >answer.json 2>log || fail "generate: exit $?"
python3 - "$end" <<'PYTHON' || fail "the answer"
import json, sys
answer = json.load(open("answer.json"))
assert answer["tokens"][-1] == int(sys.argv[1]) and answer["text"] == "the light, 光。", answer
PYTHON
# The same on standard output, after the prompt, without special tokens.
printf "%s\n" "$prompt" | "$MEOPT" generate chat-run --tokenizer chat --prompt - >text 2>log || fail "generate of standard input: exit $?"
grep -q 'the light, 光。$' text && ! grep -q im_end text || fail "text"
# Numbers stay numbers without a tokenizer; a text requires one.
"$MEOPT" generate chat-run --tokens 1,2,3 --count 3 >numbers 2>log || fail "numbers: exit $?"
grep -Eq '^[0-9,]+$' numbers || fail "numbers"
"$MEOPT" generate chat-run --prompt say >out 2>log
[ $? = 2 ] || fail "a text without a tokenizer"
# The tokenizer next to the weights.
"$MEOPT" export chat-run --format hf --out model >out 2>log || fail "export: exit $?"
cp chat/tokenizer.json model
sed 's/^model:.*/model: {weight: model}/' chat.yaml >from.yaml
"$MEOPT" generate from.yaml --prompt "$prompt" --json >directory.json 2>log || fail "generate from a directory: exit $?"
cmp answer.json directory.json || fail "a different answer from the directory"
