#!/bin/sh
# A run has the same bytes in every layout: ranks, shards, stages of a pipeline, streamed weights, offloaded states, other orders of a step.
# Weights, states, metrics, evaluations and exports are compared with the run of one rank. A run of each objective is also killed while
# three ranks save, and resumed in two other layouts. Each rank holds the memory that is planned for it. In the short form one objective makes
# each layout; MEOPT_LONG=1: all do. Rules, orders of a step and what else is the trainer's alone: equal.c.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
cat >layouts <<'END'
one - each
moved - each --workers 3 dist.shard=parameters
ranks2 one classify --workers 2
workers one classify data.workers=3
optimizer one masked --workers 2 dist.shard=optimizer
gradients one language --workers 3 dist.shard=gradients
ranks2_packed one chats --workers 2
parameters one freeze --workers 3 dist.shard=parameters
kept one head --workers 2 optim.gradients=keep
pipeline one freeze --workers 2 dist.pipeline=2
tensor one sliced --workers 2 dist.tensor=2
tensor4 one sliced --workers 4 dist.tensor=4 dist.shard=optimizer
grid one sliced --workers 8 dist.tensor=2 dist.pipeline=2
pipeline3 one lora --workers 3 dist.pipeline=3 optim.gradients=release train.recompute=block
stages one texts --workers 4 dist.pipeline=2 dist.shard=parameters
offloaded one masked optim.offload=nvme
alone - classify train.global_batch=0
streamed alone classify train.global_batch=0 model_s.place=streamed
teacher_stages one distill --workers 4 dist.pipeline=2 dist.shard=parameters model_t.place=streamed
teacher_streamed alone distill train.global_batch=0 model_s.place=streamed model_t.place=streamed
END
# Name, the layout with the same bytes, the objective that makes it in the short form, settings.
begin() { # LAYOUT: trains it
    # shellcheck disable=SC2046
    "$MEOPT" train "$objective.yaml" train.global_batch=12 train.micro_batch=4 train.batch_size=12 train.steps=6 train.checkpoint_steps=2 \
        optim.warmup_steps=2 device.type=cpu --run-dir . --name "$objective-$1" --no-dashboard \
        $(sed -n "s/^$1 [^ ]* [^ ]*//p" layouts) >out 2>log
}
resume() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" train --resume "$objective-moved" --no-dashboard "$@" >out 2>log || fail "$objective-moved: exit $code on resume, expected $want"
}
equal() { # LAYOUT OTHER
    same "$objective-$1" "$objective-$2"
    cmp "$objective-$1/ckpt/best.json" "$objective-$2/ckpt/best.json" || fail "$objective-$2: another best checkpoint than $1"
}
objective() { # NAME EXPORT...|none: its configuration is the standard input; makes NAME.export of the run of one rank
    objective=$1
    shift
    cat >"$objective.yaml"
    begin one || fail "$objective-one: exit $?"
    head -c 65536 /dev/zero >shared
    (
        export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so FAULT_SHARED="$work/shared" FAULT_UNDER="$PWD/$objective-moved/ckpt"
        export FAULT_CALL=rename FAULT_K=4 FAULT_KILL=1
        begin moved
    )
    code=$?
    [ "$code $(cat "$objective-moved/ckpt/LATEST")" = '14 step-00000003' ] || fail "$objective-moved: exit $code, expected 14 after step 4 and before LATEST"
    resume 10 --workers 4 dist.pipeline=2 --stop-after 5
    resume 0 --workers 1 dist.pipeline=1 dist.shard=none
    equal one moved
    if [ "${1:-}" != none ]; then
        for run in one moved; do "$MEOPT" export "$objective-$run" --out "$run.export" "$@" >out 2>log || fail "$objective-$run: export: exit $?"; done
        diff -r one.export moved.export || fail "$objective-moved: another export"
        rm -rf moved.export
        mv one.export "$objective.export"
    fi
    while read -r layout base of settings; do
        [ "$of" = "$objective" ] || [ "${MEOPT_LONG:-}" ] || continue
        case $settings in
            *data.workers*) grep -q image_size "$objective.yaml" || continue ;;
            *dist.tensor*) grep -q slices "$objective.yaml" || continue ;;
            *dist.pipeline=3*) case $objective in quickstart* | wide) continue ;; esac ;; # of two blocks
            *model_t*) grep -q model_t "$objective.yaml" || continue ;;
        esac
        for name in "$layout" ${base#-}; do [ -d "$objective-$name" ] || begin "$name" || fail "$objective-$name: exit $?"; done
        [ "$base" = - ] || equal "$base" "$layout"
    done <layouts
}

arrange 36 images cat dog emu
arrange 12 val cat dog emu
cp -r val val14 # whose last batch is smaller
arrange 2 val14 cat dog
write_text
awk 'BEGIN { for (i = 0; i < 120; i++) {
    answer = ""
    for (k = 0; k < i * 7 % 9; k++) answer = answer " the light of " k
    printf "{\"prompt\":\"upon %d\",\"completion\":\"the face%s\"}\n", i, answer } }' >chats.jsonl
for part in train val; do
    awk -v part=$part 'BEGIN { for (i = 0; i < (part == "train" ? 60 : 14); i++)
        printf "{\"text\":\"the light of %d\",\"label\":\"%s\"}\n", i * i, substr("xyz", i % 3 + 1, 1) }' >$part.jsonl
    "$MEOPT" tokenize $part.jsonl --tokenizer "$MEOPT_SOURCE/tests/data/tokenizers/bert.json" --label label -o $part.bin >out 2>log || fail "tokenize $part"
done
"$MEOPT" tokenize chats.jsonl --tokenizer "$MEOPT_SOURCE/tests/data/tokenizers/bert.json" -o chats.bin >out 2>log || fail "tokenize chats"
pictures='data: {root: images, image_size: 28, workers: 1'
text='data: {root: train.txt, val: val.txt, end: 10'
objective classify --ema <<END
model: {family: dinov2, init: random, width: 32, depth: 3, heads: 2, hidden: 64, patch: 7, drop_path: 0.4}
$pictures, val: val, augment: true, randaugment: 9, erasing: 0.25, mixup: 0.8, cutmix: 1.0}
train: {objective: classify, label_smoothing: 0.1, ema: 0.9}
optim: {lr: 1.0e-3, head_lr_scale: 1}
END
objective head <<END
model: {weight: classify.export, heads: 2}
lora: {rank: 4, alpha: 8}
$pictures, val: val}
train: {objective: classify}
optim: {lr: 4.0e-3}
END
objective distill <<END
model: {family: dinov2}
model_t: {init: random, width: 48, depth: 3, heads: 2, hidden: 64, patch: 7}
model_s: {init: random, width: 32, depth: 3, heads: 2, hidden: 64, patch: 7, drop_path: 0.2}
loss: {type: cosine}
$pictures, val: val14, augment: true, crops: 3, local_crops: 1}
train: {eval: knn+probe, eval_steps: 3, knn_bank: 20, precision: fp32}
optim: {lr: 2.0e-2}
END
for freeze in 2 ${MEOPT_LONG:+all_but_head embed -1}; do
    objective "freeze${freeze#2}" <<END
model: {family: dinov2, init: random, width: 64, depth: 4, heads: 2, hidden: 192, patch: 7, pos_grid: 5, freeze: $freeze}
$pictures, val: val}
train: {objective: classify}
optim: {lr: 1.0e-3, schedule: constant}
END
done
objective language --format hf <<END
model: {family: llama, init: random, vocabulary: 256, context: 32, width: 32, depth: 3, heads: 4, kv_heads: 2, hidden: 48}
$text}
train: {objective: language, eval_steps: 3, precision: fp32}
optim: {lr: 1.0e-2}
END
objective sliced --format hf <<END
model: {family: llama, init: random, vocabulary: 256, context: 32, width: 32, depth: 3, heads: 4, kv_heads: 4, hidden: 48, slices: 4}
$text}
train: {objective: language, eval_steps: 3, precision: fp32}
optim: {lr: 1.0e-2}
END
# States are of slices, so no force makes those of others.
rm -rf sliced-moved
cp -r sliced-tensor sliced-moved
resume 7 --workers 1 dist.tensor=1 train.steps=8 model_s.slices=2 --force-resume model_s.slices
resume 0 --workers 1 dist.tensor=1 train.steps=8
objective lora <<END
model: {weight: language.export, context: 32}
lora: {rank: 4, alpha: 8}
$text}
train: {objective: language, eval_steps: 3, precision: fp32}
optim: {lr: 1.0e-2}
END
objective chats <<END
model: {family: llama, init: random, vocabulary: 900, context: 40, width: 32, depth: 3, heads: 4, kv_heads: 2, hidden: 48}
data: {root: chats.bin, val: chats.bin, too_long: cut}
train: {objective: language, eval_steps: 3, precision: fp32}
optim: {lr: 1.0e-2}
END
objective masked <<END
model: {family: bert, init: random, vocabulary: 257, context: 32, width: 32, depth: 3, heads: 4, hidden: 48}
$text, tokens: bytes, mask_token: 256, special_tokens: 0}
train: {objective: masked, eval_steps: 3, precision: fp32}
optim: {lr: 1.0e-2}
END
objective texts <<END
model: {family: bert, init: random, vocabulary: 900, context: 24, width: 32, depth: 3, heads: 4, hidden: 64}
data: {root: train.bin, val: val.bin}
train: {objective: classify, eval_steps: 3, precision: fp32, label_smoothing: 0.1}
optim: {lr: 3.0e-3}
END
# BERT's kin: an embedding wider than the blocks, positions that begin at 2, no token types.
[ -z "${MEOPT_LONG:-}" ] || for kin in electra roberta distilbert; do
    case $kin in electra) is="arch: electra_small" ;; *) is="family: $kin" ;; esac
    objective masked_$kin <<END
model: {$is, init: random, vocabulary: 257, context: 32, width: 32, depth: 3, heads: 2, hidden: 48}
$text, tokens: bytes, special_tokens: 0, mask_token: 256}
train: {objective: masked, eval_steps: 3, precision: fp32}
optim: {lr: 1.0e-2}
END
    objective texts_$kin <<END
model: {$is, init: random, vocabulary: 900, context: 24, width: 32, depth: 3, heads: 2, hidden: 64}
data: {root: train.bin, val: val.bin}
train: {objective: classify, eval_steps: 3, precision: fp32}
optim: {lr: 3.0e-3}
END
done
# Adapters and a base of more elements than the smallest part of a shard.
objective wide none <<END # its base is random
model: {family: llama, init: random, vocabulary: 256, context: 8, width: 256, depth: 2, heads: 4, hidden: 384}
lora: {rank: 192}
$text}
train: {objective: language, eval_steps: 3}
optim: {lr: 1.0e-2}
END
[ -z "${MEOPT_LONG:-}" ] || for name in quickstart quickstart_openclip quickstart_dinov2; do
    for pair in "data.root=$PWD/images" "data.val=$PWD/val14" lora.rank=4 data.workers=1; do
        "$MEOPT" config set configs/$name.yaml "$pair" >out 2>log || fail "$name: $pair"
    done
    sed -i 's,\.\./sample,sample,' configs/$name.yaml
    objective $name <configs/$name.yaml
done
python3 - <<'END' || fail "a rank holds other memory than planned"
import glob, json, os
for run in map(os.path.dirname, glob.glob("*/meta.json")):
    plan, cards = json.load(open(run + "/plan.json")), json.loads(open(run + "/metrics.jsonl").readlines()[-1])["cards"]
    each = plan.get("ranks", [dict(plan, rank=c["rank"]) for c in cards])
    planned, held = ([(r["rank"], r["peak_bytes"], r["classes"]) for r in ranks] for ranks in (each, cards))
    assert planned == held, (run, planned, held)
END
