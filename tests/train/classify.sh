#!/bin/sh
# Training a classifier: its metrics and averaged weights; a list, directories and CIFAR-10 as it is downloaded give the same run; images are
# listed once; the classes belong to the run; what does not fit or has no effect is refused before training. Equal bytes: equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
arrange 24 images/train cat dog emu
arrange 6 images/val cat dog emu
cat >vit.yaml <<'END'
model: {family: dinov2, init: random, width: 32, depth: 2, heads: 2, hidden: 64, patch: 7}
data: {root: images, val: images, image_size: 28, workers: 1, augment: true, randaugment: 9, erasing: 0.25, mixup: 0.8, cutmix: 1.0}
train: {objective: classify, batch_size: 12, micro_batch: 4, global_batch: 12, steps: 6, label_smoothing: 0.1, ema: 0.9}
optim: {lr: 1.0e-3, warmup_steps: 2, head_lr_scale: 1}
device: {type: cpu}
END
train one 0
train plain 0 data.mixup=0 data.cutmix=0
cmp -s one/ckpt/step-00000006/model.safetensors plain/ckpt/step-00000006/model.safetensors && fail "mixing changes nothing"
"$MEOPT" export one --ema --out one.ema >out 2>log || fail "one: export --ema: exit $?"
"$MEOPT" export one --out one.last >out 2>log || fail "one: export: exit $?"
! cmp -s one.ema one.last || fail "one: the average is the last weights"
[ -z "$(find . -name '*.ema.safetensors')" ] || fail "export --ema left a file"

# A list of the same images and classes.
(cd images && find train -name '*.jpg' | sort | sed 's,^train/\([a-z]*\)/.*,&\,\1,') >classes.csv
train list 0 data.labels=classes.csv
same one list
python3 - <<'END' || fail "metrics"
import json, math, os
lines = [json.loads(line) for line in open("plain/metrics.jsonl")]
assert abs(lines[0]["loss"] - math.log(3)) < 1e-6, lines[0] # a new classifier is zero
assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
for line in lines:
    assert math.isfinite(line["loss"]) and "cosine" not in line
    assert abs(line["top1"] * 12 - round(line["top1"] * 12)) < 1e-6 and line["top5"] == 1.0, line # three classes are all among five
one, other = (json.load(open(f"{run}/meta.json")) for run in ("one", "list"))
assert one["classes"] == other["classes"] == ["cat", "dog", "emu"] and one["classes_crc32c"] == other["classes_crc32c"]
assert one["objective"] == "classify" and one["teacher_parameters"] == 0
# CIFAR-10 as it is downloaded
os.mkdir("cifar-10-batches-bin")
for n, name in enumerate(["data_batch_%d.bin" % i for i in range(1, 6)] + ["test_batch.bin"]):
    with open("cifar-10-batches-bin/" + name, "wb") as file:
        for image in range(10):
            file.write(bytes([image]) + bytes((image * 25 + n * 3 + i * i // 7) % 256 for i in range(3072)))
with open("cifar-10-batches-bin/batches.meta.txt", "w") as file:
    file.write("".join("class%d\n" % i for i in range(10)))
END
# The run of the unpacked files; the ranks share what is decompressed once, also after a resume.
mkdir packed
tar -czf packed/cifar-10-binary.tar.gz cifar-10-batches-bin
cifar='data.image_size=32 model.patch=8 data.root=cifar-10-batches-bin data.val=cifar-10-batches-bin'
# shellcheck disable=SC2086
train unpacked 0 $cifar
export MEOPT_LOG=debug
# shellcheck disable=SC2086
train packed2 10 --workers 2 --stop-after 2 $cifar data.root=packed data.val=packed
[ "$(grep -c 'packed/cifar-10-binary.tar.gz: decompressed' log)" = 1 ] || fail "packed2: decompressed by several processes"
"$MEOPT" train --resume packed2 --workers 2 --no-dashboard >out 2>log || fail "packed2: exit $? on resume"
[ "$(grep -c 'packed/cifar-10-binary.tar.gz: decompressed' log)" = 1 ] || fail "packed2: decompressed by several processes of a resume"
unset MEOPT_LOG
same unpacked packed2

# The supervisor lists the images once: as many directories are opened as by two listings, its own and the worker's.
export LD_LIBRARY_PATH="$MEOPT_BUILD/tests"
opened() { # ARGUMENT...: directories below images/train that a command opens
    head -c 65536 /dev/zero >shared
    env LD_PRELOAD=libfault.so FAULT_UNDER="$(pwd -P)/images/train" FAULT_SHARED="$(pwd -P)/shared" "$MEOPT" "$@" >out 2>log
    python3 -c '
import struct
data = open("shared", "rb").read()
names = [data[i * 16 : i * 16 + 16].split(b"\0")[0].decode() for i in range(32)]
print(struct.unpack_from("32Q", data, 512)[names.index("opendir")])'
}
once=$(opened plan vit.yaml data.val=) starts=$(opened train vit.yaml --run-dir . --name listed --no-dashboard --steps 1 data.val=)
[ "$once" -ge 4 ] || fail "plan opens $once directories"
[ "$starts" = $((2 * once)) ] || fail "a start opens $starts directories, a listing $once"

# Refused before training, with the name of what is wrong.
# 'meopt config check --data' reports what a start does.
refused() { # CODE WORD ARGUMENT...
    code=$1 word=$2
    shift 2
    train refused "$code" "$@"
    grep -q "$word" log || fail "$*: $word is not named"
    cp vit.yaml checked.yaml
    for pair in "$@"; do "$MEOPT" config set checked.yaml "$pair" >out 2>log || : >checked.yaml; done
    if [ -s checked.yaml ]; then
        "$MEOPT" config check --data checked.yaml >out 2>&1 && fail "$*: config check --data accepts it"
        grep -q "$word" out || fail "$*: config check --data does not name $word"
    fi
    [ ! -e refused ] || fail "$*: it trained, or its directory stays"
}
train moved 10 --stop-after 2 data.val=
mv images/train/emu images/train/gnu
"$MEOPT" train --resume moved --no-dashboard >out 2>log
[ $? = 7 ] || fail "moved: resumed with other classes"
grep -q images log || fail "moved: the images are not named"
mv images/train/gnu images/train/emu
mkdir images/val/gnu
cp "$(find images/val/cat -name '*.jpg' | head -1)" images/val/gnu/
refused 1 gnu
rm -r images/val/gnu
sed 's/,emu$/,-1/; s/,dog$/,1/; s/,cat$/,0/' classes.csv >wrong.csv
refused 1 'wrong.csv:[0-9]*:' data.labels=wrong.csv
printf 'path,label\r\ntrain/cat/none.jpg,0\r\n' >wrong.csv
refused 1 'wrong.csv:2:' data.labels=wrong.csv
refused 1 dog 'data.include=train/dog/*' data.val=
refused 7 data.labels data.labels=coarse
refused 7 data.val data.val=nowhere
refused 7 data.randaugment data.augment=false
for key in model_t.width=64 loss.type=cosine data_s.image_size=14 train.cache_teacher=true model.classes=2; do
    train refused 7 "$key"
    grep -q "${key%%=*}\|classes" log || fail "$key: not named"
done
for key in data.mixup=0.8 data.cutmix=1 data.labels=classes.csv train.label_smoothing=0.1 model_s.classes=3 model.width=64; do
    "$MEOPT" plan configs/quickstart_dinov2.yaml "$key" >out 2>log
    [ $? = 7 ] || fail "$key: taken by a distillation"
done
