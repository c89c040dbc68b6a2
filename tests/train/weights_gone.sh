#!/bin/sh
# A run whose model directory or weight file is gone resumes from its own checkpoint, to the same bits, and is evaluated, exported and (a
# language model) asked; a run without a checkpoint is refused by the path. A file that says another model than the run's is refused.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
same() { # A B: weights, optimizer states and the facts of meta.json
    for file in model.safetensors optimizer.bin; do cmp "$1/ckpt/step-00000004/$file" "$2/ckpt/step-00000004/$file" || fail "$2: another $file than $1"; done
    for key in config_hash student_crc32c student_model planned_peak_bytes; do
        [ "$(grep "\"$key\"" "$1/meta.json")" = "$(grep "\"$key\"" "$2/meta.json")" ] || fail "$2: another $key than $1"
    done
}
ok() { "$MEOPT" "$@" >out 2>log || fail "$*: exit $?"; }
resume() { # CODE RUN ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" train --no-dashboard --resume "$@" >out 2>log || fail "resume $*: exit $code, expected $want"
}
orphan() { # WEIGHTS FORMAT: runs begun with them, one of which resumes without
    train "$1-kept" 10 --stop-after 2
    cp -R "$1-kept" "$1-orphan"
    cp -R "$1-kept" "$1-unsaved" && rm -r "$1-unsaved/ckpt"
    cp -R "$1-kept" "$1-edited"
    resume 0 "$1-kept"
    mv "$1" away
    resume 0 "$1-orphan"
    same "$1-kept" "$1-orphan"
    resume 7 "$1-unsaved"
    grep -q "^meopt: .*/$1" log || fail "a run without any checkpoint does not name $1"
    ok eval "$1-orphan" --json
    grep -q val_loss out || fail "eval of $1-orphan"
    ok export "$1-orphan" --format "$2" --out "$1-exported"
    mv away "$1"
}

mkdir models
"$MEOPT_BUILD/tests/test_language_export" models >/dev/null 2>&1 || fail "no models"
cp -R models/llama llama
awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%c%c", 33 + i * i % 40, 0 }' >tokens.bin
cat >vit.yaml <<'END'
model: {weight: llama, context: 32}
data: {root: tokens.bin, val: tokens.bin}
train: {objective: language, batch_size: 4, steps: 4, precision: fp32}
device: {type: cpu}
END
orphan llama hf
ok generate llama-orphan --tokens 1,2,3 --count 4
[ -s llama-exported/config.json ] || fail "no config.json"
sed 's/"rope_theta": 10000/"rope_theta": 5000/' models/llama/config.json >llama/config.json
resume 7 llama-edited
grep -q '10000' log || fail "another rotary base is not named"
cp models/llama/config.json llama/
sed 's/\("student_model": ".*norms=[a-z]*\) .*/\1",/' llama-edited/meta.json >meta && cp meta llama-edited/meta.json
resume 0 llama-edited # written by a version with fewer properties
same llama-kept llama-edited

arrange 12 pictures 0 1
cp sample/ModelWeight/dinov2/dinov2_vitg14_pretrain.pth vit.pt
cat >vit.yaml <<'END'
model: {weight: vit.pt}
data: {root: pictures, val: pictures}
train: {objective: classify, batch_size: 4, steps: 4, precision: fp32}
device: {type: cpu}
END
orphan vit.pt safetensors
