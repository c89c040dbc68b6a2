#!/bin/sh
# meopt tokenize: records as people have them. Each form has the tokens of its conversation, each container the same bytes; damaged files,
# unknown members and two forms in a record are refused by name; --skip-bad, --val and a resume of a compressed file.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work" || exit 1
mkdir chat
cp "$MEOPT_SOURCE/tests/data/tokenizers/qwen.json" chat/tokenizer.json
printf '{"eos_token": "<|im_end|>"}' >chat/tokenizer_config.json
tokenize() { "$MEOPT" tokenize "$@" --tokenizer chat --template chatml >out 2>err; }
same() { for same_end in bin idx labels; do [ ! -e "$1.$same_end" ] || cmp "$1.$same_end" "$2.$same_end" || fail "$2.$same_end: $3"; done; }
refused() { # CODE NAMED OPERANDS...
    want=$1 named=$2
    shift 2
    exits "$want" tokenize "$@" -o x && grep -q -- "$named" err || fail "exit $code, expected $want and '$named': $*"
    [ ! -e x.bin ] && [ ! -e x.idx ] && [ ! -e x.bin.part ] && [ ! -e x.skipped.part ] && [ ! -e x-val.bin.part ] || fail "files of a refused command: $*"
}

# Forms: the tokens and labels of the same conversations as messages, with a null and empty member of another form.
python3 - <<'PYTHON'
import json
def message(role, content, **more): return dict(role=role, content=content, **more)
def write(name, records): open(name, "w", encoding="utf-8").write("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
user, answer, system = (lambda c: message("user", c)), (lambda c: message("assistant", c)), message("system", "Be kind. 床")
write("messages.jsonl", [{"messages": [user("Add\n1 2"), answer("3")]},
                         {"messages": [system, user("a"), answer("b"), user("Q"), answer("A")]}])
write("alpaca.jsonl", [{"instruction": "Add", "input": "1 2", "output": "3", "id": 1, "text": None},
                       {"instruction": "Q", "input": "", "output": "A", "system": "Be kind. 床", "history": [["a", "b"]]}])
write("alpaca_input.jsonl", [{"instruction": "", "input": "Add\n1 2", "output": "3", "history": []},
                             {"instruction": "Q", "output": "A", "system": "Be kind. 床", "history": [["a", "b"]]}])
shared = lambda *pairs: [{"from": f, "value": v} for f, v in pairs]
write("sharegpt.jsonl", [{"conversations": shared(("human", "Add\n1 2"), ("gpt", "3")), "source": "x"},
                         {"conversations": shared(("human", "a"), ("gpt", "b"), ("human", "Q"), ("gpt", "A")), "system": "Be kind. 床", "tools": ""}])
write("sharegpt_roles.jsonl", [{"conversations": [user("Add\n1 2"), answer("3")], "system": ""},
                               {"conversations": shared(("system", "Be kind. 床"), ("user", "a"), ("assistant", "b"), ("human", "Q"), ("chatgpt", "A"))}])
write("last.jsonl", [{"messages": [user("a"), message("assistant", "b", weight=0), user("Q"), answer("A")]}])
write("joined.jsonl", [{"prompt": [user("a"), answer("b"), user("Q")], "completion": [answer("A")]}])
write("sharegpt_weight.jsonl", [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0}] + shared(("human", "Q"), ("gpt", "A"))}])
PYTHON
tokenize messages.jsonl -o messages || fail messages
tokenize last.jsonl -o last || fail last
for form in alpaca alpaca_input sharegpt sharegpt_roles; do
    tokenize $form.jsonl --json -o $form || fail $form
    same messages $form "not the tokens of messages"
    python3 -c 'import json; out = json.load(open("out")); assert out["forms"] == {"'${form%_*}'": 2} and out["skipped"] == 0, out' || fail "forms: $form"
    grep -q "${form%_*}" err || fail "the form is not named: $form"
done
for form in joined sharegpt_weight; do
    tokenize $form.jsonl -o $form || fail $form
    same last $form "not the tokens of messages"
done
cat messages.jsonl alpaca.jsonl sharegpt.jsonl joined.jsonl >all.jsonl
printf '{"text": "x"}\n{"prompt": "a", "completion": "b"}\n' >>all.jsonl
tokenize all.jsonl --json -o all || fail all
python3 -c 'import json; f = json.load(open("out"))["forms"]; assert f == {"messages": 2, "alpaca": 2, "sharegpt": 2, "prompt-completion": 2, "text": 1}, f' || fail "forms of a mixed file"

# Refused by name: two forms, half a form, preferences, wrong types, members that are not known. --ignore leaves a member out.
wrong() { printf '%s\n' "$1" >wrong.jsonl; refused 1 "$2" wrong.jsonl; }
wrong '{"prompt": "a", "chosen": "b", "rejected": "c"}' 'wrong.jsonl:1.*chosen'
wrong '{"rejected": [{"role": "user", "content": "x"}]}' 'rejected'
wrong '{"text": "a", "messages": []}' 'messages.*text'
wrong '{"instruction": "a", "output": "b", "text": "c"}' 'instruction.*text'
wrong '{"prompt": "a", "messages": [{"role": "user", "content": "x"}]}' 'messages.*prompt'
wrong '{"prompt": "a"}' 'prompt.*completion'
wrong '{"output": "a"}' 'output.*instruction'
wrong '{"prompt": "a", "completion": [{"role": "assistant", "content": "x"}]}' 'prompt.*completion'
wrong '{"prompt": "a", "completion": ""}' completion
wrong '{"instruction": "a", "output": ""}' output
wrong '{"instruction": ["a"], "output": "b"}' instruction
wrong '{"instruction": "a", "output": "b", "history": [["c"]]}' history
wrong '{"conversations": [{"from": "cat", "value": "x"}]}' 'cat'
wrong '{"conversations": [{"from": "function_call", "value": "x"}]}' 'function_call'
wrong '{"conversations": [{"from": "human"}, {"from": "gpt", "value": "x"}]}' 'content'
wrong '{"conversations": "x"}' conversations
wrong '{"conversations": [{"from": "human", "value": "x", "content": "y"}, {"from": "gpt", "value": "z"}]}' 'value.*content'
wrong '{"messages": [{"role": "assistant", "content": "x"}], "chat_template_kwargs": "enable_thinking"}' chat_template_kwargs
wrong '{"conversations": [{"from": "system", "value": "x"}, {"from": "gpt", "value": "y"}], "system": "z"}' system
wrong '{"text": "a", "weight": 0}' weight
wrong '{"question": "a", "answer": "b"}' prompt
wrong '{"text": "a", "text": "b"}' 'text'
wrong '["a"]' 'wrong.jsonl:1'
for member in '"made_up": 1' '"label": 1' '"images": ["a"]' '"weight": 0.5' '"tools": [{"name": "add"}]'; do
    name=${member#\"} name=${name%%\"*}
    wrong "{\"text\": \"a\", $member}" "$name"
    tokenize wrong.jsonl --ignore other,$name -o "ignore-$name" || fail "--ignore $name"
    printf '{"text": "a"}\n' >plain.jsonl
    [ -e plain.bin ] || tokenize plain.jsonl -o plain || fail plain
    same plain "ignore-$name" "a member that is left out"
done
printf '{"instruction": "Q", "output": "A", "text": "QA", "p": 1, "q": 2}\n' >wrong.jsonl
tokenize wrong.jsonl --ignore p,q --ignore text -o ignore-several || fail "--ignore, several"
printf '{"messages": [{"role": "user", "content": "Q", "at": 1}, {"role": "assistant", "content": "A"}]}\n' >wrong.jsonl
tokenize wrong.jsonl --ignore at -o ignore-inside || fail "--ignore of a message"
same ignore-several ignore-inside "--ignore"

# Containers: the same bytes, compressed or not, by the content.
python3 - <<'PYTHON'
import gzip, json, lzma
records = [{"messages": [{"role": "user", "content": "What is %d + %d? 床前明月光" % (i, 7919 * i)}, {"role": "assistant", "content": str(7920 * i)}]} for i in range(9600)]
lines = "".join(json.dumps(r, ensure_ascii=i % 2 == 0) + "\n" for i, r in enumerate(records)).encode()
array, objects = json.dumps(records, indent=1).encode(), "\n".join(json.dumps(r, indent=2) for r in records).encode()
half = lines.index(b"\n", len(lines) // 2) + 1
packed = gzip.compress(lines)
for name, data in {"many.jsonl": lines, "lines.json": lines, "lines.txt": lines, "array.txt": b"\n " + array, "many.NDJSON": lines, "many.jsonlines": lines, "many.JSON": array, "objects.json": objects, "many.jsonl.gz": packed,
                   "array.json.GZ": gzip.compress(array), "objects.json.gz": gzip.compress(objects), "none.gz": gzip.compress(b"\xef\xbb\xbf" + array), "packed.jsonl": packed,
                   "many.jsonl.xz": lzma.compress(lines), "members.jsonl.gz": gzip.compress(lines[:half]) + gzip.compress(lines[half:]) + bytes(512),
                   "first.jsonl": lines[:half], "second.jsonl": lines[half:]}.items():
    open(name, "wb").write(data)
bad = bytearray(packed)
bad[len(bad) // 2] ^= 0x55
for name, data in {"cut.jsonl.gz": packed[:-5], "half.jsonl.gz": packed[:len(packed) // 2], "bad.jsonl.gz": bytes(bad), "junk.jsonl.gz": packed + b"junk",
                   "twice.jsonl.gz": gzip.compress(packed), "tar.jsonl.gz": gzip.compress(bytes(257) + b"ustar" + bytes(800)), "nul.txt.gz": gzip.compress(b"a\n\0b"),
                   "bytes.txt.gz": gzip.compress(b"a\nb\xff"), "table.csv.gz": gzip.compress(b"a,b\n")}.items():
    open(name, "wb").write(data)
PYTHON
containers='lines.json lines.txt array.txt many.NDJSON many.jsonlines many.JSON objects.json many.jsonl.gz array.json.GZ objects.json.gz none.gz packed.jsonl many.jsonl.xz members.jsonl.gz'
damaged='cut.jsonl.gz half.jsonl.gz bad.jsonl.gz junk.jsonl.gz'
if command -v zstd >/dev/null; then
    zstd -q many.jsonl -o many.jsonl.zst
    zstd -q first.jsonl second.jsonl
    cat first.jsonl.zst second.jsonl.zst >frames.jsonl.zst
    head -c 20000 many.jsonl.zst >cut.jsonl.zst
    cp many.jsonl.zst bad.jsonl.zst
    printf 'XXXXXXXX' | dd of=bad.jsonl.zst bs=1 seek=30000 conv=notrunc 2>/dev/null
    { cat many.jsonl.zst; echo junk; } >junk.jsonl.zst
    containers="$containers many.jsonl.zst frames.jsonl.zst" damaged="$damaged cut.jsonl.zst bad.jsonl.zst junk.jsonl.zst"
fi
tokenize many.jsonl --threads 1 -o many || fail many
for file in $containers; do
    tokenize "$file" --threads 3 -o "of-$file" || fail "$file"
    same many "of-$file" "a different container"
done
for file in $damaged; do refused 3 "$file" "$file"; done
refused 1 twice.jsonl.gz twice.jsonl.gz
refused 1 tar.jsonl.gz tar.jsonl.gz
refused 1 table.csv.gz table.csv.gz
refused 1 'nul.txt.gz:2' nul.txt.gz
refused 1 'bytes.txt.gz:2' bytes.txt.gz
i=0
while [ $i -lt 40 ]; do i=$((i + 1)) && cat "$MEOPT_SOURCE/README.md"; done >long.txt
gzip -k long.txt
for documents in file line paragraph; do
    tokenize long.txt --documents $documents --val 50% -o "text-$documents"
    code=$?
    tokenize long.txt.gz --documents $documents --val 50% -o "packed-$documents"
    [ $? = $code ] || fail "documents of a compressed text: $documents"
    [ $documents != file ] || { [ $code = 1 ] && grep -q 'text-file\|packed-file' err || fail "one document in two parts"; continue; }
    [ $code = 0 ] || fail "documents: $documents"
    same text-$documents packed-$documents "a compressed text"
    same text-$documents-val packed-$documents-val "a compressed text"
done

# --skip-bad: what is left out is listed with line and reason, alike for any number of threads, and one more is refused.
python3 - <<'PYTHON'
lines = open("many.jsonl", "rb").read().splitlines(True)
for i, text in {4: b'{"text": \n', 5: b'{"made_up": 1}\n', 5000: b'{"text": "\xff"}\n', 9599: b'{"messages": [{"role": "user", "content": "x"}]}\n'}.items(): lines[i] = text
open("spoilt.jsonl", "wb").write(b"".join(lines))
open("whole.jsonl", "wb").write(b"".join(l for i, l in enumerate(lines) if i not in (4, 5, 5000, 9599)))
PYTHON
gzip -k spoilt.jsonl
tokenize whole.jsonl -o whole || fail whole
for file in spoilt.jsonl spoilt.jsonl.gz; do
    for threads in 1 5; do
        tokenize $file --skip-bad 4 --threads $threads --json -o left-$threads-$file || fail "--skip-bad: $file"
        same whole left-$threads-$file "--skip-bad"
        [ "$(cut -d: -f1-2 left-$threads-$file.skipped | tr '\n' ' ')" = "$file:5 $file:6 $file:5001 $file:9600 " ] || fail "the list: $(cat left-$threads-$file.skipped)"
        python3 -c 'import json; assert json.load(open("out"))["skipped"] == 4 == json.load(open("left-'$threads-$file'.json"))["skipped"]' || fail "skipped"
        refused 1 "$file:9600" $file --skip-bad 3 --threads $threads
    done
    refused 1 "$file:5" $file
done
mkdir base && cp chat/tokenizer.json base && printf '{"eos_token": "<|im_end|>"}' >base/tokenizer_config.json
"$MEOPT" tokenize spoilt.jsonl --tokenizer base --skip-bad 99999 -o x >out 2>err && fail "a missing template is no fault of a record"

# --val: each document in one part, equal ones in the same, whatever order, white space, origin, container and threads.
cat >parts.py <<'PYTHON'
import struct, sys
def documents(base):
    index, data = open(base + ".idx", "rb").read(), open(base + ".bin", "rb").read()
    n, = struct.unpack("<Q", index[18:26])
    at, found = 0, []
    for length in struct.unpack("<%di" % n, index[34:34 + 4 * n]):
        found.append(data[at:at + 2 * length])
        at += 2 * length
    return found
PYTHON
python3 - <<'PYTHON'
import json, random
lines = [json.loads(l) for l in open("whole.jsonl", encoding="utf-8")]
lines += [dict(r, id=i, source="twice") for i, r in enumerate(lines[:500])]
random.Random(1).shuffle(lines)
open("shuffled.json", "w", encoding="utf-8").write(json.dumps([dict(reversed(list(r.items()))) for r in lines], indent=2))
PYTHON
tokenize whole.jsonl --val 5% --threads 1 --json -o five || fail "--val 5%"
cp out five.out
tokenize whole.jsonl --val 0.1 --threads 4 -o ten || fail "--val 0.1"
tokenize shuffled.json --val 5% --threads 3 -o mixed || fail "--val of an array"
python3 - <<'PYTHON' || fail "--val"
import json
from parts import documents
train, val, whole = documents("five"), documents("five-val"), documents("whole")
assert sorted(train + val) == sorted(whole) and 0.03 < len(val) / len(whole) < 0.07, len(val)
assert [d for d in whole if d in set(val)] == val and set(val) <= set(documents("ten-val"))
assert set(documents("mixed-val")) == set(val) and set(documents("mixed")) == set(train) and len(documents("mixed")) + len(documents("mixed-val")) == len(whole) + 500
out = json.load(open("five.out"))
assert out["documents"] == len(train) and out["val"] == dict(out["val"], out="five-val", documents=len(val)), out
facts = json.load(open("five-val.json"))
assert facts["documents"] == len(val) and facts["labels"] == out["val"]["labels"] < facts["tokens"]
PYTHON
printf '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n{"text": "c", "label": "z"}\n{"text": "d", "label": "x"}\n' >classes.jsonl
tokenize classes.jsonl --label label --val 50% -o classes || fail "--val with --label"
python3 - <<'PYTHON' || fail "classes of both parts"
names = [open(n + ".classes", "rb").read().split(b"\0x\0y\0z\0")[1:] for n in ("classes", "classes-val")]
assert names == [[b""]] * 2 or all(open(n + ".classes", "rb").read().endswith(b"x\0y\0z\0") for n in ("classes", "classes-val"))
PYTHON
refused 1 x-val.bin plain.jsonl --val 1%
refused 1 x.bin plain.jsonl --val 99.99%
for share in 0 5 100% 1 x -5% ''; do refused 2 val plain.jsonl "--val=$share"; done
tokenize plain.jsonl --val 5% -o five && fail "files of the output were overwritten"
touch new-val.bin
tokenize whole.jsonl --val 5% -o new && fail "new-val.bin was overwritten"

# Killed again and again in compressed files, and at each rename: the same bytes and the same list. With fast clocks a state is saved after each part.
for file in many.jsonl.gz spoilt.jsonl.gz; do i=0; while [ $i -lt 4 ]; do i=$((i + 1)) && cat $file; done >more-$file; done
all() { tokenize more-spoilt.jsonl.gz more-many.jsonl.gz --val 5% --skip-bad 16 -o "$1" "--threads=${2:-2}"; }
all reference || fail reference
if [ -e "$MEOPT_BUILD/tests/libfault.so" ]; then
    kills=0
    while [ $kills -lt 5 ]; do
        head -c 65536 /dev/zero >shared
        (export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so:libfast_clock.so FAST_CLOCK=100000 FAULT_UNDER="$work" FAULT_SHARED="$work/shared"
            export FAULT_CALL=rename FAULT_K=$((2 + kills % 3)) FAULT_KILL=1
            all killed $((1 + kills % 3))) 2>/dev/null && fail "not killed"
        [ $kills != 2 ] || grep -q 'resum' err || fail "nothing was resumed: $(cat err)"
        kills=$((kills + 1))
    done
    python3 -c 'import json; s = json.load(open("killed.part.json")); assert s["file"] == 1 and s["offset"] and s["skipped"] == 16, s' || fail "the state after kills: $(cat killed.part.json)"
    all killed && grep -q 'resum' err || fail "resume: $(cat err)"
    for part in '' -val; do same "reference$part" "killed$part" "a resumed command"; done
    cmp reference.skipped killed.skipped || fail "the list of a resumed command"
    cp spoilt.jsonl.gz few.jsonl.gz
    few() { tokenize few.jsonl.gz --val 5% --skip-bad 4 -o "$1"; }
    few few || fail few
    k=0 ended=0
    while [ $ended = 0 ] && [ $k -lt 30 ]; do
        k=$((k + 1))
        rm -f named*
        head -c 65536 /dev/zero >shared
        (export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so FAULT_UNDER="$work" FAULT_SHARED="$work/shared" FAULT_CALL=rename FAULT_K=$k FAULT_KILL=1
            few named) 2>/dev/null && ended=1
        [ $ended = 1 ] || few named || fail "killed at rename $k: exit $?"
        for part in '' -val; do same "few$part" "named$part" "killed at rename $k" && cmp "few$part.json" "named$part.json" || fail "killed at rename $k"; done
        cmp few.skipped named.skipped || fail "killed at rename $k: the list"
        [ -z "$(ls | grep '^named.*part')" ] || fail "killed at rename $k: unfinished files stay"
    done
    [ $k -ge 9 ] && [ $ended = 1 ] || fail "$k renames"
fi
(ulimit -f 64 && all full)
code=$?
[ $code = 5 ] || fail "a file that cannot grow: exit $code, expected 5"
