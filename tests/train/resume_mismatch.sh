#!/bin/sh
# A run continues as what it was, or not at all: checkpoints that are not there, a configuration or images that are others, are reported
# with exit code and name, and nothing of the run is touched.
set -u
unset MEOPT_CPU_ISA # the processor's own instruction set, but where the test names another
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
resume() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" train --resume run "$@" >out 2>log || fail "$label: exit $code, expected $want"
}
lines() { wc -l <run/metrics.jsonl; }
key() { # NAME VALUE: in the run's own configuration
    sed -i "s|^  $1: .*|  $1: $2|" run/config.yaml
    grep -q "^  $1: $2\$" run/config.yaml || fail "$1 is not in config.yaml"
}
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=12 train.checkpoint_keep=1 --stop-after 6 --run-dir . --name run >out 2>log
[ $? = 10 ] || fail "the first half"
cp run/config.yaml config.yaml

label="checkpoints moved away"
mv run/ckpt run/away
resume 3
grep -q '^meopt: .*run\>.*\<6\>' log || fail "$label: not reported"
[ "$(lines)" = 6 ] || fail "$label: metrics are cut"
[ ! -e run/ckpt ] || [ -z "$(find run/ckpt -name 'step-*')" ] || fail "$label: it has saved"
rm -rf run/ckpt
mv run/away run/ckpt

if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    label="checkpoints that may not be listed"
    chmod -R a+rwX . && chmod 000 run/ckpt
    setpriv --reuid 65534 --regid 65534 --clear-groups "$MEOPT" train --resume run >out 2>log
    got=$?
    [ "$got" != 0 ] && [ "$got" != 10 ] || fail "$label: exit $got"
    grep -q '^meopt: run/ckpt: .*Permission denied' log || fail "$label: not reported"
    [ "$(lines)" = 6 ] || fail "$label: metrics are cut"
    chmod 777 run/ckpt
fi

label="another beta"
key beta1 0.5
resume 7
grep -q '^meopt: run/config.yaml: .*optim.beta1 .*0.9 .*0.5' log || fail "$label: not reported"
grep -q -- '--force-resume optim.beta1' log || fail "$label: no next step"
label="another beta and batch"
key batch_size 8
resume 7
grep -q '^meopt: .*train.batch_size .*[0-9] .* 8\>.*optim.beta1 .*0.9 .*0.5' log || fail "$label: not both are reported"
label="only one of two is insisted on"
resume 7 --force-resume optim.beta1
grep -q '^warning: optim.beta1 ' log && grep -q '^meopt: .*config.yaml: .*train.batch_size ' log || fail "$label"
cp config.yaml run/config.yaml
label="a key that is none"
resume 2 --force-resume optim.beta3

label="images"
images=$(find sample -path '*train2014*' -name '*.jpg' | sort | sed -n '3p;5p;7p')
mkdir away
for image in $images; do mv "$image" away/; done
first=$(basename "$(echo "$images" | head -1)")
resume 7
grep -q "^meopt: .*\<3\>.*$first" log || fail "$label: the lost ones are not named"
[ "$(lines)" = 6 ] || fail "$label: metrics are cut"
for image in $images; do mv "away/$(basename "$image")" "$image"; done
copy=$(dirname "$(echo "$images" | head -1)")/zz_new.jpg
cp "$(echo "$images" | head -1)" "$copy"
resume 7
grep -q '^meopt: .*\<1\>.*zz_new.jpg' log || fail "$label: the new one is not named"
rm "$copy"
printf x >>"$(echo "$images" | head -1)"
resume 7
grep -q "^meopt: .*\<1\>.*$first" log || fail "$label: the changed one is not named"
truncate -s -1 "$(echo "$images" | head -1)"
ln -s nowhere "$copy"
resume 1
grep -q '^meopt: .*zz_new.jpg' log || fail "$label: a link to nothing is left out"
rm "$copy"

label="what may change"
key lr 1.0e-5
key min_lr 1.0e-7
resume 10 --stop-after 8
grep -q '^warning: optim.lr .*1.0e-5' log || fail "$label: no word"
grep -q '"event":"resumed".*"changed":{.*"optim.lr":\["[^"]*","1.0e-5"\]' run/events.jsonl || fail "$label: not in events"
tail -1 run/events.jsonl | grep -q '"time":[0-9]\{9,10\}\.[0-9]*[,}]' || fail "$label: the time is rounded"
label="it is what the run is now"
resume 10 --stop-after 9
! grep -q '^warning: optim.lr ' log || fail "$label"
! grep '"event":"resumed"' run/events.jsonl | tail -1 | grep -q '"\(optim.lr\|kernels\)":\[' || fail "$label: in events"
if grep -q '^flags.* fma .* avx2 ' /proc/cpuinfo; then
    label="another instruction set"
    export MEOPT_CPU_ISA=plain
    resume 10 --stop-after 10
    unset MEOPT_CPU_ISA
    grep -q '^kernels .*avx.*\<plain\>' log && grep -q '^warning: .*\<rounding' log || fail "$label: not reported"
    grep '"event":"resumed"' run/events.jsonl | tail -1 | grep -q '"kernels":\["[^"]*","plain, optimizer plain"\]' || fail "$label: not in events"
fi
label="insisting"
key beta1 0.5
resume 0 --force-resume optim.beta1
grep -q '^warning: optim.beta1 .*0.9 .*0.5.*--force-resume' log || fail "$label: no word"
[ "$(lines)" = 12 ] || fail "$label: $(lines) lines"

label="a finished run"
before=$(stat -c %i run/ckpt/step-00000012/model.safetensors)
resume 0
[ "$(stat -c %i run/ckpt/step-00000012/model.safetensors)" = "$before" ] || fail "$label: it was saved again"

label="a damaged newest one, keep 1"
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=12 train.checkpoint_steps=3 train.checkpoint_keep=2 --stop-after 6 --run-dir . --name run2 >out 2>log
rm -rf run && mv run2 run
key checkpoint_keep 1
printf x | dd of=run/ckpt/step-00000006/optimizer.bin bs=1 seek=500 conv=notrunc 2>/dev/null
resume 10 --stop-after 5
[ -d run/ckpt/step-00000006.damaged ] || fail "$label: not renamed"
grep -q '^warning: .*step-00000006 .*step-00000006.damaged' log || fail "$label: not reported"
[ "$(ls run/ckpt)" = "LATEST
step-00000005
step-00000006.damaged" ] || fail "$label: $(ls run/ckpt)"
resume 0
[ "$(lines)" = 12 ] || fail "$label: $(lines) lines"

label="more steps, by an option"
resume 0 --steps 14
[ "$(lines)" = 14 ] || fail "$label: $(lines) lines"
grep -q '^  steps: 14$' run/config.yaml || fail "$label: the run does not know it"
resume 2 --name other
grep -q '^meopt: .*--name.*--resume' log || fail "$label: a name is ignored"

label="activations in 8 bits"
begin() { # NAME CODE ARGUMENT...
    name=$1 want=$2
    shift 2
    "$MEOPT" train configs/quickstart_dinov2.yaml train.save_activations=8bit train.steps=6 --run-dir . --name "$name" "$@" >out 2>log
    got=$?
    [ "$got" = "$want" ] || fail "$label, $name: exit $got"
}
begin whole 0
begin cut 10 --stop-after 3
"$MEOPT" train --resume cut >out 2>log || fail "$label: the second half"
for file in model.safetensors optimizer.bin; do
    cmp "whole/ckpt/step-00000006/$file" "cut/ckpt/step-00000006/$file" || fail "$label: other bytes in $file"
done
"$MEOPT" train --resume cut --steps 7 train.save_activations=minimal >out 2>log || fail "$label: as they are, from here on"
grep -q '^warning: train.save_activations .*8bit .*minimal' log || fail "$label: no word"

label="a start that fails leaves nothing"
start() { # NAME
    "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=1 --run-dir starts --name "$1" >out 2>log
}
mkdir -p starts/.killed.new/ckpt starts/mine # what a killed start has left is taken up; another's directory is not
: >starts/.killed.new/metrics.jsonl
: >starts/.killed.new/.config.yaml.a1B2c3
mkdir starts/.killed.new/ckpt/deep
start killed || fail "$label: a killed one"
[ "$(ls -A starts | sort | tr '\n' ' ')" = "killed mine " ] || fail "$label: $(ls -A starts)"
[ -z "$(find starts/killed -name '.config*')" ] || fail "$label: a side file"
mkdir -p theirs/kept # what a stranger puts under the name of a start is neither emptied nor trained in
echo words >theirs/kept/thesis
ln -s ../theirs starts/.linked.new
start linked
[ $? = 1 ] || fail "$label: a link under its name"
[ "$(cat theirs/kept/thesis)" = words ] && [ "$(ls -A theirs)" = kept ] || fail "$label: $(ls -A theirs) behind a link"
rm starts/.linked.new
if [ "$(id -u)" = 0 ]; then
    mkdir -m 777 starts/.given.new
    chown 65534 starts/.given.new
    start given
    [ $? = 1 ] || fail "$label: another user's directory under its name"
    grep -q 'another user' log && [ ! -e starts/given ] || fail "$label: another user's directory: $(cat log)"
    rmdir starts/.given.new
fi
start mine
[ $? = 9 ] || fail "$label: another's directory"
[ -z "$(ls -A starts/mine)" ] || fail "$label: it wrote into another's directory"
start killed
[ $? = 9 ] || fail "$label: a run of this name"
mount -t tmpfs -o size=16k none starts/mine 2>/dev/null && {
    dd if=/dev/zero of=starts/mine/full bs=1k count=64 2>/dev/null
    "$MEOPT" train configs/quickstart_dinov2.yaml --run-dir starts/mine --name full-disk >out 2>log
    got=$?
    ls -A starts/mine >listing
    umount starts/mine
    [ "$got" = 5 ] || fail "$label: full: exit $got"
    [ "$(cat listing)" = full ] || fail "$label: full: $(cat listing)"
}
echo "continues as what it was, or not at all"
