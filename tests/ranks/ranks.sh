#!/bin/sh
# One run on any number of processes: `meopt train --workers N` writes the same checkpoint bytes for every N, but for states in parts, which
# each rank writes itself: of those the weights' bytes are the same, and all of it once one rank has resumed with them, so also of a run
# that moves from 4 ranks to 3, 1, 8 and 1. A run continues with the images per step that it began with. MEOPT_LONG=1: the move in
# every mode of dist.shard.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
# What each rank was planned to hold it holds; at the top stands the one that holds the most; where each is; what a checkpoint takes.
planned() { # RUN
    python3 - "$1" <<'END' || fail "$1: what is planned and reported of its ranks"
import json, os, sys
load = lambda name: json.load(open(sys.argv[1] + "/" + name))
plan, meta, cards = load("plan.json"), load("meta.json"), json.loads(open(sys.argv[1] + "/metrics.jsonl").readlines()[-1])["cards"]
each = plan.get("ranks", [dict(plan, rank=c["rank"]) for c in cards])
assert [(p["rank"], p["classes"]) for p in each] == [(c["rank"], c["classes"]) for c in cards], (each, cards)
assert plan["peak_bytes"] == meta["planned_peak_bytes"] == max(p["peak_bytes"] for p in each)
assert plan["classes"] == each[plan["rank"]]["classes"] and plan["baseline"]["peak_bytes"] == meta["planned_baseline_peak_bytes"]
assert [p["rank"] for p in meta["places"]] == list(range(len(cards))) and meta["places"][0]["pid"] == meta["pid"]
assert all(p["host"] == meta["host"] and p["device"] == c["device"] for p, c in zip(meta["places"], cards))
assert len({p["pid"] for p in meta["places"]}) == len(cards)
if meta["device"].startswith("fake"): assert len({p["pci"] for p in meta["places"]}) == len(cards)
last = sorted(os.listdir(sys.argv[1] + "/ckpt"))[-1]
takes = sum(os.path.getsize(f"{sys.argv[1]}/ckpt/{last}/{f}") for f in os.listdir(sys.argv[1] + "/ckpt/" + last) if f[0] != "M")
assert abs(takes - meta["checkpoint_bytes"]) < 0.05 * takes + 16384, (takes, meta["checkpoint_bytes"])
END
}
for archive in COCO2014 ModelWeight; do mkdir -p "$dir/sample" && tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C "$dir/sample"; done
mkdir "$dir/configs"
cp "$MEOPT_SOURCE/configs/quickstart.yaml" "$dir/configs/"
export OMP_NUM_THREADS=1
train() { # NAME ARGUMENT...
    name=$1
    shift
    "$MEOPT" train "$dir/configs/quickstart.yaml" --no-dashboard --steps 5 --run-dir "$dir/runs" --name "$name" "$@" >"$dir/log" 2>&1
}
resume() { # NAME ARGUMENT...
    name=$1
    shift
    "$MEOPT" train --resume "$dir/runs/$name" --no-dashboard "$@" >"$dir/log" 2>&1
}
same() { # NAME what
    for file in model.safetensors optimizer.bin MANIFEST.json; do
        cmp "$dir/runs/one/ckpt/step-00000005/$file" "$dir/runs/$1/ckpt/step-00000005/$file" || fail "$2: other bytes in $file"
    done
}
files() { # NAME STEP; its checkpoint's, in one line
    # shellcheck disable=SC2046
    echo $(ls "$dir/runs/$1/ckpt/step-0000000$2")
}
losses() { sed -n 's/.*"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2/p' "$dir/runs/$1/metrics.jsonl"; }

shape="train.global_batch=8 train.batch_size=1 train.micro_batch=1"
# shellcheck disable=SC2086
train one --workers 1 $shape || fail "one rank: $(cat "$dir/log")"
# shellcheck disable=SC2086
train three --workers 3 $shape dist.shard=optimizer || fail "three ranks: $(cat "$dir/log")"
cmp "$dir/runs/one/ckpt/step-00000005/model.safetensors" "$dir/runs/three/ckpt/step-00000005/model.safetensors" || fail "three ranks in parts: other weights"
[ "$(files three 5)" = "MANIFEST.json model.safetensors optimizer.0-of-3.bin optimizer.1-of-3.bin optimizer.2-of-3.bin" ] || fail "three ranks in parts: $(files three 5)"
[ "$(losses one)" = "$(losses three)" ] || fail "three ranks: other losses: $(losses one; losses three)"
[ "$(grep -o '"rank":[0-9]' "$dir/runs/three/metrics.jsonl" | sort -u | tr -d '\n')" = '"rank":0"rank":1"rank":2' ] || fail "the cards of all ranks are not reported"
planned "$dir/runs/three"
for shard in parameters ${MEOPT_LONG:+none optimizer}; do
    # shellcheck disable=SC2086
    train "moved-$shard" --workers 4 $shape "dist.shard=$shard" --stop-after 1 && fail "it did not stop"
    step=2 parts=4
    for ranks in 3 1 8; do
        found=$(files "moved-$shard" $((step - 1)) | grep -o "of-$parts" | wc -l)
        [ "$shard" = none ] || [ $parts = 1 ] || [ "$found" = $parts ] || fail "$parts ranks in parts: $(files "moved-$shard" $((step - 1)))"
        resume "moved-$shard" --workers $ranks --stop-after $step && fail "it did not stop at step $step"
        parts=$ranks step=$((step + 1))
    done
    resume "moved-$shard" --workers 1 || fail "one rank goes on: $(cat "$dir/log")"
    same "moved-$shard" "4, then 3, 1, 8 and 1 rank, $shard"
    [ "$(losses one)" = "$(losses "moved-$shard")" ] || fail "4, then 3, 1, 8 and 1 rank, $shard: other losses"
done
[ "$("$MEOPT" export "$dir/runs/one" --format safetensors -o "$dir/one.safetensors" >/dev/null 2>&1; "$MEOPT" export "$dir/runs/moved-parameters" --format safetensors -o "$dir/moved.safetensors" >/dev/null 2>&1
    cmp "$dir/one.safetensors" "$dir/moved.safetensors" && echo same)" = same ] || fail "the exported files differ"

# Without train.global_batch the run remembers the images of its steps.
train remembers --workers 2 train.batch_size=2 --stop-after 1 && fail "it did not stop"
grep -q 'global_batch: 4' "$dir/runs/remembers/config.yaml" || fail "the images of a step are not remembered"
resume remembers --workers 3 train.steps=6 && fail "more ranks than micro-batches continue"
[ "$(grep -c '^[a-z: ]*train.steps .*5 .*6' "$dir/log")" = 1 ] || fail "a change is told once a rank: $(cat "$dir/log")"
resume remembers --workers 1 --stop-after 2 && fail "it did not stop on one rank: $(cat "$dir/log")"
grep -q '"batch_images": 4' "$dir/runs/remembers/meta.json" || fail "one rank makes other steps"
train alone train.batch_size=2 --stop-after 1 && fail "it did not stop"
exits 7 resume alone --workers 2 && grep -q '^meopt: .*\<2 images.*\<2 ranks.*\<4$' "$dir/log" || fail "more images a step: $code: $(cat "$dir/log")"
code=0
train many --workers 3 train.batch_size=4 train.global_batch=8 || code=$?
[ $code = 7 ] && grep -q '^meopt: .*\<3 ranks.*\<2\>' "$dir/log" || fail "more ranks than micro-batches: $code: $(cat "$dir/log")"

# Cards, through this machine's memory and from card to card by the library that each maker has: the bytes of one.
if [ -f "$MEOPT_BUILD/tests/libfake_amdhip64.so" ]; then
    . "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
    export FAKE_CARDS=4 TMPDIR="$dir"
    cards() { # TYPE CARDS SHARD; several make a step, and the first of them another
        more=
        case $2 in *,*) more="--stop-after 1" ;; esac
        code=0
        by="--cards $2"
        case $2 in 0,1,2,3) by="device.cards=[$2]" ;; esac # as the published experiments name them
        # shellcheck disable=SC2086
        train "$1$2" $by --steps 2 data.image_size=28 train.global_batch=4 train.batch_size=1 train.micro_batch=1 "dist.shard=$3" device.type="$1" $more || code=$?
        [ "$code" = "${more:+1}0" ] || fail "$1 cards $2: $code: $(cat "$dir/log")"
        [ "$2" = 0 ] && return
        cp "$dir/log" "$dir/cards.log"
        planned "$dir/runs/$1$2"
        resume "$1$2" --cards 0 || fail "$1 cards $2: one goes on: $(cat "$dir/log")"
        for file in model.safetensors optimizer.bin; do
            cmp "$dir/runs/${1}0/ckpt/step-00000002/$file" "$dir/runs/$1$2/ckpt/step-00000002/$file" || fail "$1 cards $2: other bytes in $file"
        done
    }
    cards hip 0 none
    cards hip 0,1 parameters
    grep -q '^warning: collectives: .*rank 0.*\<RCCL\>' "$dir/cards.log" || fail "the host's way is taken in silence"
    export MEOPT_RCCL_LIBRARY="$fakes/libfake_rccl.so" MEOPT_NCCL_LIBRARY="$fakes/libfake_nccl.so"
    cards hip 0,1,2,3 parameters
    grep -q '^collectives  .*\<RCCL 2.22.3' "$dir/cards.log" || fail "RCCL is not used"
    [ "$(cat "$dir/runs/hip0,1,2,3/metrics.jsonl" | grep -o '"rank":[0-9]' | sort -u | wc -l)" = 4 ] || fail "device.cards: not one rank per card"
    cards cuda 0 none
    cards cuda 0,1 parameters
    cards cuda 0,1,2 optimizer
    grep -q '^collectives  .*\<NCCL 2.22.3' "$dir/cards.log" || fail "NCCL is not used"
    for group in 15 20; do # in the headers of a sum, in the arrays of a gather
        FAKE_NCCL_FAIL=$group train "broken$group" data.image_size=28 --cards 0,1 device.type=hip && fail "an error of the library is no error"
        grep -q '^meopt: .*libfake_rccl.so .*rank [01]\>.*(6)' "$dir/log" || fail "the library's error: $(cat "$dir/log")"
    done
    ! ls "$dir"/fake-nccl-* >/dev/null 2>&1 || fail "the ranks leave a file"
fi
