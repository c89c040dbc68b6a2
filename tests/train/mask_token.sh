#!/bin/sh
# The mask and the tokens that are never masked are those that the tokenizer's files name: by texts, numbers or the class; meopt tokenize
# writes them next to the token files, and masked training takes them from there. Contradictions and a tokenizer without a mask are refused.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
python3 - "$MEOPT_SOURCE/tests/data/tokenizers/unigram.cases" <<'END'
import json, os, sys
rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
def write(name, row, **files):
    os.makedirs(name)
    for file, value in {"tokenizer": rows[row]["tokenizer"], **files}.items():
        json.dump(value, open("%s/%s.json" % (name, file), "w"))
write("xlmr", 0, tokenizer_config={"mask_token": {"content": "<mask>"}, "pad_token": "<pad>", "eos_token": "</s>"})
write("bigbird", 2, config={"model_type": "big_bird", "pad_token_id": 330}, tokenizer_config={"eos_token": "</s>", "keep_accents": False})
write("lower", 2, tokenizer_config={"do_lower_case": True})
os.makedirs("spiece")
open("spiece/spiece.model", "w")
write("map", 0, special_tokens_map={"mask_token": "<unk>"})
write("two", 0, special_tokens_map={"mask_token": "<unk>"}, tokenizer_config={"mask_token": "<mask>"})
write("absent", 0, special_tokens_map={"mask_token": "[MASK]"})
write("bytes", 8)
open("text", "w").write("".join("In the beginning God created the heaven and the earth %d.\n" % i for i in range(400)))
END
tokenize() { "$MEOPT" tokenize text --documents line --tokenizer "$1" -o "$1.tok" >out 2>log; }
for name in xlmr bigbird map bytes; do tokenize $name || fail "$name: exit $?: $(cat log)"; done
python3 - <<'END' || fail "roles"
import json, array
def read(name): return json.load(open(name + ".tok.json"))
for name, mask, pad, end, special in (("xlmr", 331, 1, 2, [0, 1, 2, 3, 331]), ("bigbird", 333, 330, 332, [0, 1, 2, 330, 331, 332, 333]),
                                      ("map", 3, None, 2, [0, 1, 2, 3, 331]), ("bytes", None, None, None, None)):
    facts = read(name)
    found = facts["mask"], facts.get("pad"), facts.get("special")
    assert found == (mask, pad, special), (name, found)
    assert end is None or facts["end"] == end, (name, facts["end"])
tokens = array.array("H", open("bigbird.tok.bin", "rb").read())
assert tokens[0] == 331 and tokens[-1] == 332 and 2 not in tokens # [CLS] ... [SEP], and no </s>
END
for name in two absent; do
    code=0
    tokenize $name || code=$?
    [ $code = 7 ] && grep -q special_tokens_map.json log || fail "$name: exit $code: $(cat log)"
done
code=0
tokenize lower || code=$?
[ $code = 7 ] && grep -q do_lower_case log || fail "lower: exit $code: $(cat log)"
! tokenize spiece && grep -q AutoTokenizer log || fail "spiece.model: $(cat log)"
cat >masked.yaml <<'YAML'
model: {family: bert, init: random, vocabulary: 400, context: 16, width: 16, depth: 1, heads: 2, hidden: 16}
data: {root: xlmr.tok.bin, val: xlmr.tok.bin}
train: {objective: masked, batch_size: 8, steps: 3, eval_steps: 3, precision: fp32}
device: {type: cpu}
YAML
train() { # CODE OBJECT ARGUMENT...
    want=$1 object=$2
    shift 2
    code=0
    "$MEOPT" train "$@" --no-dashboard >out 2>log || code=$?
    [ $code = "$want" ] && { [ -z "$object" ] || grep -q "$object" log; } || fail "$*: exit $code, expected $want: $(cat log)"
}
train 0 '' masked.yaml --run-dir . --name one
grep -q 'mask_token: 331' one/config.yaml || fail "the run's mask"
"$MEOPT" eval one --checkpoint last --json >eval.json 2>log || fail "eval: exit $?: $(cat log)"
train 0 '' --resume one train.steps=4
train 7 data.mask_token masked.yaml --run-dir . --name two data.mask_token=103
# a description that cannot be read is not taken for none, here a link to itself; one of others is
mkdir apart
cp xlmr.tok.bin xlmr.tok.idx apart
ln -s xlmr.tok.json apart/xlmr.tok.json
train 1 apart/xlmr.tok.json masked.yaml --run-dir . --name two data.root=apart/xlmr.tok.bin data.val=
! "$MEOPT" plan masked.yaml data.root=apart/xlmr.tok.bin data.val= >out 2>log && grep -q apart/xlmr.tok.json log || fail "plan: $(cat log)"
rm apart/xlmr.tok.json
echo '{"tokenizer":' >apart/xlmr.tok.json
train 0 '' masked.yaml --run-dir . --name others data.root=apart/xlmr.tok.bin data.val=
grep -q 'mask_token: 103' others/config.yaml || fail "a file of others names the mask"
train 7 data.mask_token masked.yaml --run-dir . --name two data.val=bigbird.tok.bin
train 7 mask_token masked.yaml --run-dir . --name two data.root=bytes.tok.bin data.val= model.vocabulary=600
train 0 '' masked.yaml --run-dir . --name three data.root=bytes.tok.bin data.val= model.vocabulary=600 data.mask_token=5
"$MEOPT" plan masked.yaml >out 2>log || fail "plan: exit $?: $(cat log)"
