#!/bin/sh
# meopt tokenize: documents and end tokens as in the files, the same bytes with any number of threads and after a stop, refusals by name.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work" || exit 1
tokenizers=$MEOPT_SOURCE/tests/data/tokenizers
cat >read.py <<'PYTHON'
import json, struct, sys
def read(base):
    index, data = open(base + ".idx", "rb").read(), open(base + ".bin", "rb").read()
    assert index[:9] == b"MMIDIDX\0\0" and struct.unpack("<QB", index[9:18]) == (1, 8), index[:18]
    n, d = struct.unpack("<QQ", index[18:34])
    lengths = struct.unpack("<%di" % n, index[34:34 + 4 * n])
    pointers = struct.unpack("<%dq" % n, index[34 + 4 * n:34 + 12 * n])
    documents = struct.unpack("<%dq" % d, index[34 + 12 * n:])
    assert list(documents) == list(range(n + 1)) and len(data) == 2 * sum(lengths)
    return [list(struct.unpack("<%dH" % l, data[p:p + 2 * l])) for l, p in zip(lengths, pointers)]
PYTHON
# Each document of the golden cases, with the end token.
python3 - "$tokenizers/qwen.cases" <<'PYTHON' || exit 1
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1], encoding="utf-8")]
with open("cases.jsonl", "w", encoding="utf-8") as f:
    for r in rows:
        f.write(json.dumps({"id": 1, "text": r["text"]}) + "\n")
with open("big.txt", "w", encoding="utf-8") as f:
    for i in range(30000):
        f.write("Line %d of a text, which is long enough to be cut; 床前明月光。\n%s" % (i, "\n" if i % 7 == 0 else ""))
PYTHON
"$MEOPT" tokenize cases.jsonl --tokenizer "$tokenizers/qwen.json" -o cases --json >out || fail "cases"
python3 - "$tokenizers/qwen.cases" <<'PYTHON' || fail "the tokens of .jsonl"
import json, sys
from read import read
rows = [json.loads(l)["ids"] for l in open(sys.argv[1], encoding="utf-8")]
assert read("cases") == [r + [0] for r in rows if r]
out, told = json.loads(open("out").read()), json.load(open("cases.json"))
assert out["documents"] == told["documents"] == sum(1 for r in rows if r)
assert out["tokens"] == told["tokens"] == sum(len(r) + 1 for r in rows if r) and told["end"] == 0 and len(told["sha256"]) == 64
PYTHON
# Documents of a text, and threads.
printf 'one\r\ntwo\n\n\n three\nfour' >small.txt
for documents in file line paragraph; do
    "$MEOPT" tokenize small.txt --tokenizer "$tokenizers/qwen.json" --documents $documents --end '<|im_end|>' -o $documents >out || fail "$documents"
    "$MEOPT" tokenize small.txt big.txt small.txt --tokenizer "$tokenizers/qwen.json" --documents $documents --threads 1 -o one-$documents >out || fail 1
    "$MEOPT" tokenize small.txt big.txt small.txt --tokenizer "$tokenizers/qwen.json" --documents $documents --threads 5 -o five-$documents >out || fail 5
    cmp one-$documents.bin five-$documents.bin && cmp one-$documents.idx five-$documents.idx || fail "threads: $documents"
done
python3 - <<'PYTHON' || fail "documents"
from read import read
assert [len(read(d)) for d in ("file", "line", "paragraph")] == [1, 4, 2]
assert all(d[-1] == 2 and d.count(2) == 1 for k in ("file", "line", "paragraph") for d in read(k))
assert [len(read("one-" + d)) for d in ("file", "line", "paragraph")] == [3, 30008, 4287 + 4]
PYTHON
# A long text has the tokens that it has as one record, also where the tokenizer joins a letter and what follows it, or changes the ends of a text.
python3 - "$tokenizers/qwen.json" <<'PYTHON'
import json, sys
text = open("big.txt", encoding="utf-8").read()[:1300000]
open("long.txt", "w", encoding="utf-8").write(text)
open("long.jsonl", "w", encoding="utf-8").write(json.dumps({"text": text}) + "\n")
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
split = lambda pattern: {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, level]}
for name, change in {"published": {}, "lines": {"pre_tokenizer": split("\n+")}, "ends": {"pre_tokenizer": split("$")}, "words": {"pre_tokenizer": split("\\w+\\s")},
                     "strip": {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
                     "spaces": {"normalizer": {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}}}.items():
    form = dict(json.load(open(sys.argv[1], encoding="utf-8")), **change)
    if name in ("lines", "ends", "words"):
        for joined, left, right in (("tĠ", "t", "Ġ"), ("eĊ", "e", "Ċ")):
            form["model"]["vocab"][joined] = max(max(form["model"]["vocab"].values()), *(t["id"] for t in form["added_tokens"])) + 1
            form["model"]["merges"].append([left, right] if isinstance(form["model"]["merges"][0], list) else left + " " + right)
    json.dump(form, open("long-%s.json" % name, "w", encoding="utf-8"))
PYTHON
for name in published lines ends words strip spaces; do
    for file in long.txt long.jsonl; do
        "$MEOPT" tokenize $file --tokenizer "long-$name.json" -o "$file-$name" >out || fail "long: $name"
    done
    cmp "long.txt-$name.bin" "long.jsonl-$name.bin" || fail "a long text: $name"
done
rm -f long.*
# Conversations: the text of the template, and labels on the assistant's turns alone, also when stopped in between.
mkdir chat
cp "$tokenizers/qwen.json" chat/tokenizer.json
python3 - <<'PYTHON'
import json
# ChatML's own, of which meopt knows the checksum
turn = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
template = "{% for message in messages %}" + turn + "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
json.dump({"chat_template": template, "eos_token": "<|im_end|>", "bos_token": "<|endoftext|>", "model_max_length": int(1e30)},
          open("chat/tokenizer_config.json", "w"))
PYTHON
cat >chats.jsonl <<'JSONL'
{"text": "plain text"}
{"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "\nHello"}, {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]}
{"prompt": "2+2=", "completion": "4"}
JSONL
printf '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}\n' >turn.jsonl
"$MEOPT" tokenize chats.jsonl --tokenizer chat -o chats --json >out || fail chats
for template in qwen2 qwen3; do "$MEOPT" tokenize turn.jsonl --tokenizer chat --template $template -o $template >out || fail $template; done
# What is learnt of the first document is shown, and its text is that of the template.
"$MEOPT" tokenize turn.jsonl --tokenizer chat -o shown --json >first-shown 2>err && [ ! -s err ] || fail "shown"
"$MEOPT" tokenize turn.jsonl --tokenizer chat -o shown-text >out 2>err && grep -qx '\[\[Yes<|im_end|>' err || fail "shown: $(cat err)"
"$MEOPT" tokenize small.txt --tokenizer chat -o plain --json >first-plain 2>err || fail "plain"
python3 - <<'PYTHON' || fail "what is learnt of the first document"
import json
shown = json.load(open("first-shown"))
pieces = shown["first"]["pieces"]
assert [p["label"] for p in pieces] == [False, True] and "first" not in json.load(open("first-plain")), pieces
assert "".join(p["text"] for p in pieces) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n", pieces
assert sum(p["tokens"] for p in pieces if p["label"]) == shown["labels"] and sum(p["tokens"] for p in pieces) == shown["first"]["tokens"], shown
PYTHON
cat >labels.py <<'PYTHON'
import json
from read import read
def labels(base):
    raw = open(base + ".labels", "rb").read()
    assert raw[:8] == b"MEOPTLBL"
    n = int.from_bytes(raw[8:16], "little")
    assert len(raw) == 16 + (n + 7) // 8 and n == sum(map(len, read(base)))
    return [raw[16 + i // 8] >> i % 8 & 1 for i in range(n)]
model = json.load(open("chat/tokenizer.json", encoding="utf-8"))
texts = {i: t for t, i in model["model"]["vocab"].items()}
def text(ids): return "".join(texts[i] for i in ids).replace("\u0120", " ").replace("\u010a", "\n")
def documents(base):
    at, bits = 0, labels(base)
    for d in read(base):
        yield text(d), text(t for t, b in zip(d, bits[at:]) if b)
        at += len(d)
PYTHON
python3 - <<'PYTHON' || fail "labels"
import json
from labels import *
end = "<|im_end|>"
assert list(documents("chats")) == [
    ("plain text" + end, "plain text" + end),
    ("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\nHello<|im_end|>\n"
     "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n", "\nHello<|im_end|>\n2<|im_end|>\n"),
    ("2+2=4" + end, "4" + end)], list(documents("chats"))
told = json.load(open("chats.json"))
assert told["template"] == "chatml" and told["labels"] == sum(labels("chats")) < told["tokens"]
assert list(documents("qwen2")) == [("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                                     "<|im_start|>assistant\nYes<|im_end|>\n", "Yes<|im_end|>\n")]
assert list(documents("qwen3")) == [("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nYes<|im_end|>\n",
                                     "Yes<|im_end|>\n")]
PYTHON
# What a record says of its answers: no label where it says so, thoughts where the template writes them; bos_token.
cat >said.jsonl <<'JSONL'
{"id": 7, "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "weight": 0}, {"role": "user", "content": "R"}, {"role": "assistant", "content": "B", "weight": 1}]}
{"messages": [{"role": "user", "content": "Q", "train": false}, {"role": "assistant", "content": "A", "train": false}, {"role": "user", "content": "R"}, {"role": "assistant", "content": "B", "train": true}]}
JSONL
printf '{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "reasoning_content": "\\nHm.", "content": "A", "tool_calls": []}], "tools": []}\n' >thought.jsonl
"$MEOPT" tokenize said.jsonl --tokenizer chat -o said >out || fail said
"$MEOPT" tokenize thought.jsonl --tokenizer chat --template qwen3 -o thought >out || fail thought
"$MEOPT" tokenize turn.jsonl --tokenizer chat --template chatml-bos -o begins >out || fail begins
printf '%s\n' '{"prompt": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "R"}], "completion": [{"role": "assistant", "content": "B"}]}' >split.jsonl
"$MEOPT" tokenize split.jsonl --tokenizer chat -o split >out || fail split
python3 - <<'PYTHON' || fail "what records say"
from labels import *
assert list(documents("split")) == list(documents("said"))[:1], list(documents("split"))
assert [l for _, l in documents("said")] == ["B<|im_end|>\n"] * 2, list(documents("said"))
assert list(documents("thought")) == [("<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n<think>\nHm.\n</think>\n\nA<|im_end|>\n",
                                       "<think>\nHm.\n</think>\n\nA<|im_end|>\n")], list(documents("thought"))
assert list(documents("begins"))[0][0].startswith("<|endoftext|><|im_start|>user\nHi")
PYTHON
# Stopped and resumed: the same bytes.
for i in 1 2 3; do cat big.txt; done >bigger.txt
i=0
while [ $i -lt 15 ]; do cat chats.jsonl; i=$((i + 1)); done >some.jsonl
"$MEOPT" tokenize some.jsonl bigger.txt some.jsonl --tokenizer chat -o whole >out || fail whole
"$MEOPT" tokenize some.jsonl bigger.txt some.jsonl --tokenizer chat --threads 1 -o part >out 2>err &
process=$!
echo $process >left
wait_for 30 test -s part.bin.part
kill -TERM $process
wait $process
code=$?
: >left
if [ $code = 10 ]; then
    [ -e part.part.json ] && [ ! -e part.bin ] || fail "the files of a stopped command"
    mv part.part.json kept.json && ln -s part.part.json part.part.json
    "$MEOPT" tokenize some.jsonl bigger.txt some.jsonl --tokenizer chat -o part >out 2>err && fail "a state that cannot be read began again"
    grep -q part.part.json err && [ -s part.bin.part ] || fail "a state that cannot be read: $(cat err)"
    mv kept.json part.part.json
    "$MEOPT" tokenize some.jsonl bigger.txt some.jsonl --tokenizer chat -o part >out 2>err || fail "resume"
else [ $code = 0 ] || fail "stop: $code"; fi
cmp whole.bin part.bin && cmp whole.idx part.idx && cmp whole.labels part.labels || fail "a resumed command wrote different bytes"
[ ! -e part.part.json ] && [ ! -e part.bin.part ] && [ ! -e part.idx.part ] && [ ! -e part.labels.part ] || fail "unfinished files stay"
# Killed at each rename, while it gives the files their names: the same command resumes. A file that the user put under one of the names stays.
once() { "$MEOPT" tokenize some.jsonl --tokenizer chat -o "$1" >out 2>err; }
once few || fail few
if [ -e "$MEOPT_BUILD/tests/libfault.so" ]; then
    for k in 1 2 3 4 5 6 7; do
        rm -f named.*
        head -c 65536 /dev/zero >shared
        (export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so FAULT_UNDER="$work" FAULT_SHARED="$work/shared" FAULT_CALL=rename FAULT_K=$k FAULT_KILL=1
            once named) 2>/dev/null && break
        [ ! -e named.json ] || cp named.json ours.json
        echo mine >named.json
        once named && fail "killed at rename $k: the user's file was overwritten"
        grep -q 'named.json.*exists already' err && [ "$(cat named.json)" = mine ] || fail "killed at rename $k: $(cat err)"
        rm named.json
        [ ! -e ours.json ] || mv ours.json named.json
        once named || fail "killed at rename $k: exit $?: $(cat err)"
        for end in bin idx labels json; do cmp "few.$end" "named.$end" || fail "killed at rename $k: $end"; done
        [ ! -e named.part.json ] && [ ! -e named.bin.part ] && [ ! -e named.labels.part ] || fail "killed at rename $k: unfinished files stay"
    done
    [ $k -ge 5 ] || fail "only $k renames"
fi
# Refusals: exit code, and the name of the object at fault.
printf '{"text":"a"}\n{"text":1}\n' >type.jsonl
printf '{"text":"a"}\n\n{"text":"b"\n' >cut.jsonl
printf 'a\nb\377c\n' >bytes.txt
printf '{"messages":[{"role":"tool","content":"x"}]}\n' >role.jsonl
printf '{"messages":[{"role":"user","content":"x"}]}\n' >user.jsonl
: >empty.txt
: >tokenizer.model
refused() { # CODE NAMED OPERANDS...
    want=$1 named=$2
    shift 2
    exits "$want" "$MEOPT" tokenize "$@" >out 2>err && grep -q -- "$named" err || fail "exit $code, expected $want and '$named': $*"
    [ ! -e x.bin ] && [ ! -e x.idx ] && [ ! -e x.bin.part ] && [ ! -e x.idx.part ] || fail "files of a refused command: $*"
}
refused 1 'type.jsonl:2' type.jsonl --tokenizer "$tokenizers/qwen.json" -o x
refused 1 'cut.jsonl:3' cut.jsonl --tokenizer "$tokenizers/qwen.json" -o x
refused 1 'role.jsonl:1' role.jsonl --tokenizer chat -o x
refused 1 'user.jsonl:1' user.jsonl --tokenizer chat -o x
refused 1 'turn.jsonl:1' turn.jsonl --tokenizer "$tokenizers/qwen.json" -o x
refused 1 'reasoning_content' thought.jsonl --tokenizer chat -o x
refused 2 'bos_token' turn.jsonl --tokenizer "$tokenizers/qwen.json" --template lfm2 -o x
mkdir other # a template that is no published one: only what needs it is refused
cp chat/*.json other
printf '{# <|im_start|> #}{%% for m in messages %%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%% endfor %%}' >other/chat_template.jinja
refused 1 'turn.jsonl:1.*chat_template.jinja' turn.jsonl --tokenizer other -o x
"$MEOPT" tokenize turn.jsonl --tokenizer other --template chatml -o other-named >out || fail "--template"
"$MEOPT" tokenize small.txt --tokenizer other -o other-text >out || fail "a text with an unknown template"
for wrong in 'weight 0.5' 'weight "1"' 'train 1'; do
    printf '{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "%s": %s}]}\n' "${wrong% *}" "${wrong#* }" >wrong.jsonl
    refused 1 "wrong.jsonl:1.*${wrong% *}" wrong.jsonl --tokenizer chat -o x
done
# What else a record or a message says: refused where it would change what is learnt, or is not known; what is empty says nothing.
for more in '"tools": [{"name": "add"}]' '"functions": [1]' '"images": ["a.png"]' '"chat_template_kwargs": {"preserve_thinking": true}' '"weight": 2'; do
    key=${more#\"}
    printf '{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}], %s}\n' "$more" >wrong.jsonl
    refused 1 "wrong.jsonl:1.*${key%%\"*}" wrong.jsonl --tokenizer chat -o x
done
for more in '"thinking": "Hm."' '"made_up": 1' '"tool_calls": [{"name": "add"}]' '"function_call": {"name": "add"}'; do
    key=${more#\"}
    printf '{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", %s}]}\n' "$more" >wrong.jsonl
    refused 1 "wrong.jsonl:1.*message 1.*${key%%\"*}" wrong.jsonl --tokenizer chat -o x
done
printf '{"id": 3, "source": "web", "tools": [], "system": null, "chat_template_kwargs": {"enable_thinking": false},
 "messages": [{"role": "user", "content": "Hi", "name": "Ann"}, {"role": "assistant", "content": "Yes", "tool_calls": null, "refusal": null}]}' >origin.json
"$MEOPT" tokenize origin.json --tokenizer chat --template qwen2 -o from >out || fail "where a record comes from"
cmp from.bin qwen2.bin || fail "where a record comes from is learnt"
printf '{"text": "Q", "text_pair": "A", "label": 1}\n' >wrong.jsonl
refused 1 'text_pair' wrong.jsonl --tokenizer chat --label label -o x
# Members of the files next to the tokenizer: unknown ones, and those that contradict tokenizer.json.
other() { # FILE MEMBERS CODE NAMED
    rm -rf next
    mkdir next
    cp "$tokenizers/qwen.json" next/tokenizer.json
    printf '{"eos_token": "<|im_end|>", "transformers_version": "5.0", "padding_side": "left", %s}' "$2" >"next/$1"
    refused "$3" "$1.*$4" small.txt --tokenizer next -o x
}
other tokenizer_config.json '"made_up": 1' 7 made_up
other tokenizer_config.json '"split_special_tokens": true' 7 split_special_tokens
other tokenizer_config.json '"add_bos_token": true, "bos_token": "<|endoftext|>"' 7 add_bos_token
other tokenizer_config.json '"add_prefix_space": true' 7 add_prefix_space
other tokenizer_config.json '"pad_token": "<pad>"' 7 pad_token
other tokenizer_config.json '"added_tokens_decoder": {"3": {"content": "<x>"}}' 7 '<x>'
rm -rf next && mkdir next && cp "$tokenizers/qwen.json" next/tokenizer.json
printf '{"eos_token_id": [2], "temperature": 0.6, "made_up": 1}' >next/generation_config.json
refused 7 'generation_config.json.*made_up' small.txt --tokenizer next -o x
printf '{"eos_token_id": [2], "temperature": 0.6, "suppress_tokens": [1]}' >next/generation_config.json
refused 7 'generation_config.json.*suppress_tokens' small.txt --tokenizer next -o x
printf '{"messages": [{"role": "user", "content": "Q", "train": true}, {"role": "assistant", "content": "A"}]}\n' >wrong.jsonl
refused 1 'train' wrong.jsonl --tokenizer chat -o x
printf '{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", "weight": 0}]}\n' >wrong.jsonl
refused 1 'wrong.jsonl:1' wrong.jsonl --tokenizer chat -o x
names=$("$MEOPT" complete -- tokenize --template '' | grep -v '^FILE')
[ "$(echo "$names" | head -1)" = chatml ] || fail "the names of templates: $names"
for name in $names; do # each is a row: the tokens of most are not in this tokenizer
    code=0
    "$MEOPT" tokenize turn.jsonl --tokenizer chat --template "$name" -o "row-$name" >out 2>err || code=$?
    [ $code = 0 ] || [ $code = 2 ] || [ $code = 1 ] || fail "--template $name: $code"
    for page in man man/zh_CN/man1; do # the pages name each
        grep -q "^\.Cm.* $name\( \|\$\)" "$MEOPT_SOURCE/$page/meopt-tokenize.1" || fail "$page: $name"
    done
done
for name in chatml qwen3 mistral-v0.1 deepseek; do [ -f "row-$name.bin" ] || fail "--template $name"; done
refused 2 'llama3' turn.jsonl --tokenizer chat --template llama3 -o x
refused 2 'llama3\.9' turn.jsonl --tokenizer chat --template llama3.9 -o x
# A template of one's own writes what the row with its parts does, and is known by its content.
printf '%s\n' '{"system": {"before": "<|im_start|>system\n", "end": "<|im_end|>\n"}, "user": {"before": "<|im_start|>user\n", "end": "<|im_end|>\n"},
 "assistant": {"before": "<|im_start|>assistant\n", "end": "<|im_end|>", "between": "\n"}, "tokens": "<|im_start|> <|im_end|>"}' >own.json
"$MEOPT" tokenize chats.jsonl --tokenizer other --template own.json -o self >out || fail "--template own.json"
cmp self.bin chats.bin && cmp self.labels chats.labels || fail "a template of one's own"
grep -q '"template": "own-[0-9a-f]*"' self.json || fail "the name of a template of one's own"
refused 1 'absent.json' turn.jsonl --tokenizer chat --template absent.json -o x
sed 's/"tokens"/"tokenz"/' own.json >wrong.json
refused 7 'wrong.json.*tokenz' turn.jsonl --tokenizer chat --template wrong.json -o x
sed 's/"<|im_start|> /"<|absent|> /' own.json >wrong.json
refused 2 '<|absent|>' turn.jsonl --tokenizer chat --template wrong.json -o x
# Tools, and lists of parts, are written or refused by what they are.
printf '%s\n' '{"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "messages": [{"role": "user", "content": "Q"},
 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "content": "1"},
 {"role": "assistant", "content": "A"}]}' | tr -d '\n' >tools.jsonl
"$MEOPT" tokenize tools.jsonl --tokenizer chat --template qwen3 -o tools >out || fail tools
refused 1 'tools' tools.jsonl --tokenizer chat --template qwen2 -o x
sed 's/"arguments": {/"argument": {/' tools.jsonl >wrong.jsonl
refused 1 'argument' wrong.jsonl --tokenizer chat --template qwen3 -o x
printf '{"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, {"role": "assistant", "content": "A"}]}' >parts.jsonl
"$MEOPT" tokenize parts.jsonl --tokenizer chat --template qwen2-vl -o parts >out || fail parts
refused 1 'qwen3' parts.jsonl --tokenizer chat --template qwen3 -o x
printf 'text,label\na,1\n' >table.csv
printf 'a\n\0b\n' >nul.txt
printf 'ARROW1\0\0' >table.data
printf 'PAR1' >table.txt
printf '[{"text":"a"},\n{"text":"b"}' >open.json
printf '[{"text":"a"}]\n[]' >after.json
printf '["a"]' >texts.json
printf '{"text":"a"}\n{"text":' >half.json
printf 'a text' >text.json
for wrong in table.csv table.data table.txt nul.txt:2 open.json:2 after.json:2 texts.json:1 half.json:2 text.json; do
    refused 1 "$wrong" "${wrong%:*}" --tokenizer "$tokenizers/qwen.json" -o x
done
refused 1 'bytes.txt:2' bytes.txt --tokenizer "$tokenizers/qwen.json" -o x
refused 1 'text' empty.txt --tokenizer "$tokenizers/qwen.json" -o x
refused 1 'absent.txt' absent.txt --tokenizer "$tokenizers/qwen.json" -o x
refused 1 'cases.bin' small.txt --tokenizer "$tokenizers/qwen.json" -o cases
refused 1 'tokenizer.model' small.txt --tokenizer tokenizer.model -o x
refused 1 'SentencePiece' small.txt --tokenizer . -o x
refused 2 'nonsense' small.txt --tokenizer "$tokenizers/qwen.json" --end nonsense -o x
refused 2 'tokenizer' small.txt -o x
refused 2 '-o' small.txt --tokenizer "$tokenizers/qwen.json"
(ulimit -f 64 && "$MEOPT" tokenize big.txt --tokenizer "$tokenizers/qwen.json" -o full >out 2>err)
code=$?
[ $code = 5 ] || fail "a file that cannot grow: exit $code, expected 5"
