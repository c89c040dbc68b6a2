#!/bin/sh
# Token files as people have them: a start and config check --data name the files of a directory and count what is left out; links, empty and
# growing files; damaged pairs of X.bin and X.idx, and a token out of the vocabulary that one rank alone reads, are refused by file and position.
set -u
. "$MEOPT_SOURCE/tests/lib.sh"
logs='out log'
cd "$work"
mkdir -p t/sub
printf 'hello world %.0s' $(seq 100) >t/a.txt
printf 'licence %.0s' $(seq 50) >t/LICENSE
echo x >t/.hidden
echo y >t/sub/b.txt
: >t/empty.txt
ln -s ../t/a.txt t/link.txt
cat >c.yaml <<'END'
model: {family: llama, init: random, vocabulary: 256, context: 16, width: 16, depth: 1, heads: 2, hidden: 16}
data: {root: t}
train: {objective: language, batch_size: 4, steps: 3, precision: fp32}
device: {type: cpu}
END
check() { # CODE NAME...: of config check --data
    want=$1 got=0
    shift
    "$MEOPT" config check --data c.yaml >out 2>log || got=$?
    [ "$got" = "$want" ] || fail "config check --data: exit $got, expected $want"
    for name; do grep -qF "$name" log || fail "config check --data does not name $name"; done
}
train() { # CODE NAME ARGUMENT...
    want=$1 run=$2 got=0
    shift 2
    "$MEOPT" train c.yaml --run-dir . --name "$run" --no-dashboard "$@" >out 2>log || got=$?
    [ "$got" = "$want" ] || fail "train $*: exit $got, expected $want"
}
says() { for text; do grep -qF "$text" log || fail "no '$text'"; done; }

check 0 LICENSE a.txt 'empty.txt (' link.txt '1 hidden' '1 directories'
grep -q '^2800 tokens' out || fail "other tokens: $(cat out)"
train 0 all
says LICENSE a.txt link.txt '1 directories'
! grep -q bicubic log || fail "images of a language model"
train 0 some 'data.include=*.txt' data.exclude=link.txt
says a.txt '(empty)'
! grep -q LICENSE log || fail "an excluded file is read"
train 7 none data.root=t/empty.txt
says empty.txt
cp t/a.txt t/pair.bin
check 7 pair.bin '5 without .bin'
rm t/pair.bin
ln -s nowhere t/dead.txt
check 1 t/dead.txt
train 1 dead
says t/dead.txt
rm t/dead.txt
cat t/LICENSE >>t/a.txt
"$MEOPT" train --resume all --steps +3 --no-dashboard >out 2>log
[ $? = 7 ] || fail "a file that has grown: resumed"
says a.txt

# pairs of megatron-core
cp "$MEOPT_SOURCE"/tests/data/megatron/*.bin "$MEOPT_SOURCE"/tests/data/megatron/*.idx .
cat >c.yaml <<'END'
model: {family: llama, init: random, vocabulary: 65536, context: 8, width: 8, depth: 1, heads: 2, hidden: 8}
data: {root: uint16.bin, shuffle: false}
train: {objective: language, global_batch: 8, batch_size: 8, micro_batch: 2, steps: 1, precision: fp32}
device: {type: cpu}
END
check 0
train 0 whole
cp int16.idx uint16.idx # of other lengths
check 3 uint16.idx
train 3 foreign
says uint16.idx 180 240
cp "$MEOPT_SOURCE/tests/data/megatron/uint16.idx" .
head -c 200 "$MEOPT_SOURCE/tests/data/megatron/uint16.bin" >uint16.bin
check 3 uint16.idx 'byte '
train 3 truncated --workers 2
says uint16.idx 'byte '
train 3 modes data.root=modes.bin
says modes.idx 'byte '

# Micro-batches 0 and 2 are rank 0's, 1 and 3 rank 1's: a token of micro-batch 3 is out of the vocabulary.
awk 'BEGIN { for (i = 0; i < 90; i++) printf "%c%c", 65 + i % 9, i == 60 ? 5 : 1 }' >one.bin
train 7 one --workers 2 data.root=one.bin model.vocabulary=512
says one.bin 'token 60 (byte 120)' 512
[ ! -d one/ckpt ] || fail "a checkpoint after a bad token"

# A text is no data of a model with another vocabulary, wherever it is named; of a small one the tokens are counted.
printf '{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A, and B, and C"}]}\n%.0s' 1 2 3 4 5 6 >chats.jsonl
sed 's|uint16.bin|chats.jsonl|' c.yaml >text.yaml
for command in 'config check --data' plan 'train --name text --no-dashboard'; do
    got=0
    # shellcheck disable=SC2086
    "$MEOPT" $command text.yaml >out 2>log || got=$?
    [ "$got" = 7 ] || fail "$command of a text: $got"
    says chats.jsonl 65536 tokenize
done
train 7 scored data.val=chats.jsonl train.eval_every=1 data.root=one.bin
says chats.jsonl
train 7 short data.root=one.bin model.context=40
says '90 tokens' ' 2 samples' 'of 40' 'of 8' model.context

# Parts of the files of meopt tokenize: each that is lost is missed.
mkdir chat
cp "$MEOPT_SOURCE/tests/data/tokenizers/qwen.json" chat/tokenizer.json
for i in 1 2 3 4 5 6 7 8; do cat chats.jsonl; done >many.jsonl
"$MEOPT" tokenize many.jsonl --tokenizer chat --template chatml -o kept >out 2>&1 || fail "tokenize: $(cat out)"
grep -q '"type": "uint16"' kept.json || fail "the type in kept.json"
for lost in idx labels; do
    rm -f part.*
    for end in bin idx labels json; do [ $end = $lost ] || cp kept.$end part.$end; done
    train 3 "lost-$lost" data.root=part.bin
    says part.bin ".$lost"
done
cp kept.idx part.idx
cp kept.labels part.labels
train 0 nothing-lost data.root=part.bin model.context=24 train.global_batch=4 train.batch_size=4
! grep -q assumed log || fail "something is assumed of whole files"
rm part.json part.labels
train 0 assumed data.root=part.bin
says assumed
"$MEOPT" tokenize chats.jsonl --tokenizer chat --template chatml -o other >out 2>&1 || fail "tokenize: $(cat out)"
cp other.json part.json
cp kept.labels part.labels
train 3 other data.root=part.bin
says part.bin .json
