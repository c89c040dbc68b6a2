#!/bin/sh
# A DINOv2 teacher and a CLIP student, each with its own preprocessing (mean, filter, size) of the same images. Losses equal those of
# transformers' classes and PyTorch (tests/make/pairs.py), on several ranks and after a resume. Equal preprocessings change nothing.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
data=$MEOPT_SOURCE/tests/data
mkdir images t s
cp "$data"/names/dinov2/* t
cp "$data"/names/clip-vision/* s
python3 - "$data" <<'PYTHON'
import json, shutil, sys
golden = json.load(open(sys.argv[1] + "/pairs.json"))
for name in golden["images"]: shutil.copy("%s/preprocess/images/%s" % (sys.argv[1], name), "images")
for role in "teacher", "student": json.dump(golden["processors"][role], open(role[0] + "/preprocessor_config.json", "w"))
PYTHON
cat >c.yaml <<YAML
model: {weight_t: t/model.safetensors, weight_s: s/model.safetensors}
data: {root: images, shuffle: false}
train: {batch_size: 4, steps: 4, precision: fp32}
optim: {use_meopt: false, lr: 1.0e-3, schedule: constant, warmup_steps: 0, weight_decay: 0, clip_grad_norm: 0, min_lr: 0}
YAML
train() { # name, then options
    name=$1
    shift
    "$MEOPT" train c.yaml --no-dashboard --name "$name" "$@" >log 2>&1 || fail "$name"
}
losses() { # of the run $1 against those of PyTorch, or of the run $2: within 1e-5
    python3 - "$data" "$@" <<'PYTHON' || fail "$*: other losses"
import json, sys
of = lambda run: [json.loads(line)["loss"] for line in open("runs/%s/metrics.jsonl" % run)]
want = of(sys.argv[3]) if len(sys.argv) > 3 else json.load(open(sys.argv[1] + "/pairs.json"))["losses"]
mine = of(sys.argv[2])
assert len(mine) == len(want) == 4 and all(abs(a - b) <= 1e-5 * b for a, b in zip(mine, want)), (mine, want)
PYTHON
}
same() { cmp -s "runs/$1/ckpt/step-00000004/model.safetensors" "runs/$2/ckpt/step-00000004/model.safetensors" || fail "$1 and $2 ended with other weights"; }

train alone
losses alone
grep -q 'teacher.*\<42 px.*bicubic' log || fail "the teacher's preprocessing is not reported"
grep -q 'student.*\<28 px.*bilinear' log || fail "the student's preprocessing is not reported"
train cached train.cache_teacher=true
losses cached
train workers data.workers=1 data.prefetch=1
same alone workers
train uneven train.global_batch=4 train.batch_size=3 train.micro_batch=3
losses uneven
"$MEOPT" train c.yaml --no-dashboard --name stops --stop-after 2 >log 2>&1 || [ $? = 10 ] || fail "stop"
"$MEOPT" train --resume runs/stops --no-dashboard >log 2>&1 || fail "resume"
losses stops
same alone stops
train released optim.use_meopt=true optim.weights=fp32 optim.state_m=fp32 optim.state_v=fp32 train.micro_batch=2
losses released

# A run says all of it: the files are not asked again.
rm t/preprocessor_config.json s/preprocessor_config.json
"$MEOPT" embed runs/alone --role teacher --out runs/t.safetensors >log 2>&1 || fail "embed the teacher of a run"
grep -q '42 px.*0.485 0.456 0.406' log || fail "the run's teacher sees other images"
"$MEOPT" embed runs/alone --out runs/s.safetensors >log 2>&1 || fail "embed the student of a run"
grep -q '28 px.*bilinear.*0.5 0.5 0.5' log || fail "the run's student sees other images"

# Random crops and mirrors are the same box for both: with equal keys the two views are one.
for flip in true false; do
    train augmented$flip data.augment=true data.flip=$flip data.pipeline=clip data.image_size=28
    train two$flip data.augment=true data.flip=$flip data.pipeline=clip data.image_size=28 data_s.mean=0.48145467,0.4578275,0.4082107
    losses two$flip augmented$flip
done

# Without files each family's own preprocessing is assumed, and said; equal ones cost nothing.
plan() { "$MEOPT" plan c.yaml --json "$@" 2>log || fail "plan $*"; }
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }
for field in preprocessing preprocessing_student; do
    case $(plan | field $field) in *assumed*) ;; *) fail "plan does not say that $field is assumed" ;; esac
done
bytes() { plan "$@" | python3 -c 'import json, sys; print(json.load(sys.stdin)["classes"]["data"])'; }
[ "$(bytes data.image_size=28)" = $((2 * $(bytes data.image_size=28 data.pipeline=clip))) ] || fail "the memory of two views is not counted"
[ "$(plan data.pipeline=clip | field preprocessing)" = "$(plan data.pipeline=clip | field preprocessing_student)" ] || fail "one pipeline for both"
