#!/bin/sh
# A file that cannot be examined for a moment (EIO, ESTALE) is neither missing nor something else: a command ends with an error, or its result
# is that of the undisturbed one. The files next to a model and next to a tokenizer, token files.
set -u
[ -f "$MEOPT_BUILD/tests/libfault.so" ] || { echo "skipped: no libfault.so"; exit 77; }
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && echo "skipped: libfault.so and the sanitizers both replace calls" && exit 77
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work" || exit 1
export OMP_NUM_THREADS=1
mkdir model tokens images
cp "$MEOPT_SOURCE/tests/data/names/clip-vision/model.safetensors" "$MEOPT_SOURCE/tests/data/names/clip-vision/config.json" model/
chmod u+w model/*
echo '{"image_processor_type": "CLIPImageProcessor", "image_mean": [0.1, 0.1, 0.1], "image_std": [0.5, 0.5, 0.5], "size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}' >model/preprocessor_config.json
tar -xzf "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz"
find COCO2014 -name '*.jpg' | sort | head -4 | while read -r f; do cp "$f" images/; done
cat >tower.yaml <<'END'
model: {weight_t: model, weight_s: model}
data: {root: images, image_size: 28}
train: {batch_size: 4, steps: 1}
device: {type: cpu}
END
mkdir -p held/all held/val
cp images/* held/all/
mv "$(find held/all -name '*.jpg' | sort | head -1)" held/val/
sed 's|root: images|root: held, val: held/val|' tower.yaml >held.yaml
cp "$MEOPT_SOURCE/tests/data/tokenizers/llama2.json" tokens/tokenizer.json
echo '{"bos_token": "<s>", "eos_token": "</s>"}' >tokens/tokenizer_config.json
head -c 3000 "$MEOPT_SOURCE/README.md" >text.txt
head -c 3000 "$MEOPT_SOURCE/LICENSE" >stream.txt
cat >bytes.yaml <<'END'
model: {family: gpt2, init: random, width: 32, depth: 1, heads: 2, vocabulary: 256, context: 32}
data: {root: stream.txt, val: stream.txt}
train: {objective: language, batch_size: 2, steps: 1}
device: {type: cpu}
END
faulty() { # CALL ERRNO K DIRECTORY COMMAND...: the K-th such call on a file of the directory fails once
    head -c 65536 /dev/zero >shared
    call=$1 errno=$2 k=$3 under=$4
    shift 4
    env LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so FAULT_SHARED="$work/shared" FAULT_CALL="$call" FAULT_ERRNO="$errno" FAULT_K="$k" \
        FAULT_UNDER="$work/$under" "$@" >out 2>log
}
model() { rm -f rows.safetensors; "$1" "$2" "$3" "$4" model "$MEOPT" embed tower.yaml --role teacher --out rows.safetensors; }
tokenizer() { rm -f text.bin text.idx text.json; "$1" "$2" "$3" "$4" tokens "$MEOPT" tokenize text.txt --tokenizer tokens -o text; }
stream() { "$1" "$2" "$3" "$4" stream.txt "$MEOPT" config check --data bytes.yaml --json; }
held() { "$1" "$2" "$3" "$4" held/val "$MEOPT" config check --data held.yaml; } # images of data.val are not trained on
plain() { shift 4; "$@" >out 2>log; }
for what in model:rows.safetensors tokenizer:text.bin stream:out held:out; do
    result=${what#*:} what=${what%:*} failed=0
    $what plain . . . || fail "$what: exit $?"
    cp "$result" expected
    for call in stat open; do
        for errno in 5 116; do
            for k in 1 2 3 4 5 6 7 8; do
                if $what faulty $call $errno $k; then
                    cmp -s expected "$result" || fail "$what: another result after a failed $call $k"
                else
                    failed=$((failed + 1))
                    ! grep -q 'Not a directory' log || fail "$what: a failed $call $k is reported as something else"
                    grep -q "^meopt: .*\($work\|\.bin\|text\|tokens\|model\)" log || [ "$result" = out ] || fail "$what: a failed $call $k names no file"
                fi
            done
        done
    done
    [ $failed -gt 0 ] || fail "$what: no call failed"
done
