#!/bin/sh
# Two resolutions in a run: images get another size on resume, with the student's optimizer states and the schedule of the learning rate. One
# rank and two have the same weights, also with a teacher's cached outputs, which are computed again; a tower that cannot have the size is refused.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 16
common='train.steps=4 train.batch_size=4 train.global_batch=4 train.micro_batch=2 train.precision=fp32 optim.warmup_steps=1 optim.clip_mode=exact data.augment=false loss.tokens=cls+patch'
halves() { # NAME OPTION... -- KEY=VALUE...: two steps, then two of images of twice the side
    name=$1 options=
    shift
    while [ "$1" != -- ]; do options="$options $1" && shift; done
    shift
    exits 10 "$MEOPT" train configs/quickstart_dinov2.yaml $common "$@" --stop-after 2 $options --run-dir . --name "$name" --no-dashboard >out 2>log ||
        fail "$name: exit $code"
    "$MEOPT" train --resume "$name" data.image_size=$large $options --no-dashboard >out 2>log || fail "$name: exit $? at the larger size"
    grep -q 'data.image_size' log || fail "$name: the change was not logged"
    [ "$(wc -l <"$name/metrics.jsonl")" = 4 ] || fail "$name: not 4 steps"
}
small=$("$MEOPT" config list configs/quickstart_dinov2.yaml --json | sed -n 's/.*"data.image_size": *\([0-9]*\).*/\1/p' | head -1)
case $small in '' | 0) small=28 ;; esac
large=$((2 * small)) common="$common data.image_size=$small"
halves one --
halves two --workers 2 -- train.batch_size=2
halves cached -- train.cache_teacher=true
for other in two cached; do
    cmp -s one/ckpt/step-00000004/model.safetensors $other/ckpt/step-00000004/model.safetensors || fail "$other: other weights than one rank"
done
"$MEOPT" train configs/quickstart_dinov2.yaml $common --run-dir . --name whole --no-dashboard >out 2>log || fail "whole: exit $?"
! cmp -s one/ckpt/step-00000004/model.safetensors whole/ckpt/step-00000004/model.safetensors || fail 'the larger images changed nothing'
[ "$(sed -n 's/.*"lr":\([^,]*\),.*/\1/p' one/metrics.jsonl)" = "$(sed -n 's/.*"lr":\([^,]*\),.*/\1/p' whole/metrics.jsonl)" ] || fail 'another learning rate'
exits 7 "$MEOPT" train --resume one --steps +1 data.image_size=$((large + 1)) --no-dashboard >out 2>log || fail "exit $code: $((large + 1)) pixels"
