#!/bin/sh
# One run on any number of processes: `meopt train --workers N` writes the same checkpoint bytes for every N, but for states in parts, which
# each rank writes itself: of those the weights' bytes are the same, and all of it once one rank has gone on with them. A run goes on with
# the images a step that it began with, or is told.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
for archive in COCO2014 ModelWeight; do mkdir -p "$dir/sample" && tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C "$dir/sample"; done
mkdir "$dir/configs"
cp "$MEOPT_SOURCE/configs/quickstart.yaml" "$dir/configs/"
export OMP_NUM_THREADS=1
train() { # NAME ARGUMENT...
    name=$1
    shift
    "$MEOPT" train "$dir/configs/quickstart.yaml" --no-dashboard --steps 3 --run-dir "$dir/runs" --name "$name" "$@" >"$dir/log" 2>&1
}
resume() { # NAME ARGUMENT...
    name=$1
    shift
    "$MEOPT" train --resume "$dir/runs/$name" --no-dashboard "$@" >"$dir/log" 2>&1
}
same() { # NAME what
    for file in model.safetensors optimizer.bin MANIFEST.json; do
        cmp "$dir/runs/one/ckpt/step-00000003/$file" "$dir/runs/$1/ckpt/step-00000003/$file" || fail "$2: other bytes in $file"
    done
}
files() { # NAME STEP; its checkpoint's, in one line
    # shellcheck disable=SC2046
    echo $(ls "$dir/runs/$1/ckpt/step-0000000$2")
}
losses() { sed -n 's/.*"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2/p' "$dir/runs/$1/metrics.jsonl"; }

shape="train.global_batch=8 train.batch_size=2 train.micro_batch=2"
# shellcheck disable=SC2086
train one --workers 1 $shape || fail "one rank: $(cat "$dir/log")"
# shellcheck disable=SC2086
train three --workers 3 $shape dist.shard=optimizer || fail "three ranks: $(cat "$dir/log")"
cmp "$dir/runs/one/ckpt/step-00000003/model.safetensors" "$dir/runs/three/ckpt/step-00000003/model.safetensors" || fail "three ranks in parts: other weights"
[ "$(files three 3)" = "MANIFEST.json model.safetensors optimizer.0-of-3.bin optimizer.1-of-3.bin optimizer.2-of-3.bin" ] || fail "three ranks in parts: $(files three 3)"
[ "$(losses one)" = "$(losses three)" ] || fail "three ranks: other losses: $(losses one; losses three)"
[ "$(grep -o '"rank":[0-9]' "$dir/runs/three/metrics.jsonl" | sort -u | tr -d '\n')" = '"rank":0"rank":1"rank":2' ] || fail "the cards of all ranks are not told"
# shellcheck disable=SC2086
train moved --workers 4 $shape dist.shard=optimizer --stop-after 1 && fail "it did not stop"
[ "$(files moved 1 | grep -o 'of-4' | wc -l)" = 4 ] || fail "four ranks in parts: $(files moved 1)"
resume moved --workers 3 --stop-after 2 && fail "it did not stop again"
resume moved --workers 1 || fail "one rank goes on: $(cat "$dir/log")"
same moved "4, then 3, then 1 rank"
[ "$("$MEOPT" export "$dir/runs/one" --format safetensors -o "$dir/one.safetensors" >/dev/null 2>&1; "$MEOPT" export "$dir/runs/moved" --format safetensors -o "$dir/moved.safetensors" >/dev/null 2>&1
    cmp "$dir/one.safetensors" "$dir/moved.safetensors" && echo same)" = same ] || fail "the exported files differ"

# Without train.global_batch the run remembers the images of its steps.
train remembers --workers 2 train.batch_size=2 --stop-after 1 && fail "it did not stop"
grep -q 'global_batch: 4' "$dir/runs/remembers/config.yaml" || fail "the images of a step are not remembered"
resume remembers --workers 1 --stop-after 2 && fail "it did not stop on one rank: $(cat "$dir/log")"
grep -q '"batch_images": 4' "$dir/runs/remembers/meta.json" || fail "one rank makes other steps"
train alone train.batch_size=2 --stop-after 1 && fail "it did not stop"
code=0
resume alone --workers 2 || code=$?
[ $code = 7 ] && grep -q 'a step of the run is of 2 images; on 2 ranks it would be of 4' "$dir/log" || fail "more images a step: $code: $(cat "$dir/log")"
code=0
train many --workers 3 train.batch_size=4 train.global_batch=8 || code=$?
[ $code = 7 ] && grep -q '3 ranks for 2 micro-batches' "$dir/log" || fail "more ranks than micro-batches: $code: $(cat "$dir/log")"

# Cards, through this machine's memory and from card to card by the library that each maker has: the bytes of one.
if [ -f "$MEOPT_BUILD/tests/libfake_amdhip64.so" ]; then
    . "$MEOPT_SOURCE/tests/fake_cards.sh"
    export FAKE_CARDS=4 TMPDIR="$dir"
    cards() { # TYPE CARDS SHARD; several make two steps, and the first of them the third
        more=
        case $2 in *,*) more="--stop-after 2" ;; esac
        code=0
        # shellcheck disable=SC2086
        train "$1$2" --cards "$2" train.global_batch=4 train.batch_size=1 train.micro_batch=1 "dist.shard=$3" device.type="$1" $more || code=$?
        [ "$code" = "${more:+1}0" ] || fail "$1 cards $2: $code: $(cat "$dir/log")"
        [ "$2" = 0 ] && return
        cp "$dir/log" "$dir/cards.log"
        resume "$1$2" --cards 0 || fail "$1 cards $2: one goes on: $(cat "$dir/log")"
        for file in model.safetensors optimizer.bin; do
            cmp "$dir/runs/${1}0/ckpt/step-00000003/$file" "$dir/runs/$1$2/ckpt/step-00000003/$file" || fail "$1 cards $2: other bytes in $file"
        done
    }
    cards hip 0 none
    cards hip 0,1 parameters
    grep -q "collectives: .*: computing waits while gradients go through the host's memory; rank 0 finds no RCCL" "$dir/cards.log" || fail "the host's way is taken in silence"
    export MEOPT_RCCL_LIBRARY="$fakes/libfake_rccl.so" MEOPT_NCCL_LIBRARY="$fakes/libfake_nccl.so"
    cards hip 0,1,2,3 optimizer
    grep -q 'collectives  *from card to card by RCCL 2.22.3' "$dir/cards.log" || fail "RCCL is not used"
    cards cuda 0 none
    cards cuda 0,1,2 parameters
    grep -q 'collectives  *from card to card by NCCL 2.22.3' "$dir/cards.log" || fail "NCCL is not used"
    FAKE_NCCL_FAIL=20 train broken --cards 0,1 device.type=hip && fail "an error of the library is no error"
    grep -q 'libfake_rccl.so on rank [01] of 2, in [a-z_]* [0-9]*: remote process exited or there was a network error (6)' "$dir/log" || fail "the library's words: $(cat "$dir/log")"
    ! ls "$dir"/fake-nccl-* >/dev/null 2>&1 || fail "the ranks leave a file behind"
fi
