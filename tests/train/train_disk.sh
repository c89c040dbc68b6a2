#!/bin/sh
# A disk that fills while a checkpoint is written: saving pauses, and the run reports that. The previous checkpoint stays complete, no
# partial one is left, and no line of metrics is lost. Saving resumes when there is space. If there is none after the last step, the run
# ends with exit code 5 and can be resumed later.
set -u
[ "$(id -u)" = 0 ] || { echo "needs root for a small tmpfs"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
mkdir "$work/disk" "$work/sample" "$work/configs"
mount -t tmpfs -o size=1500k none "$work/disk" 2>/dev/null || { rm -rf "$work"; echo "cannot mount a tmpfs"; exit 77; }
cleanup() { umount "$work/disk"; }
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C "$work/sample"; done
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" "$work/configs/"
steps() { sed -E 's/.*"step":([0-9]+),.*/\1/' "$work/disk/$1/metrics.jsonl"; }
set -- "$work/configs/quickstart_dinov2.yaml" train.checkpoint_steps=10 train.checkpoint_keep=5 --run-dir "$work/disk"

exits 5 "$MEOPT" train "$@" --name run >"$work/log" 2>&1 || fail "full at the end: exit $code"
[ "$(grep -c '"event":"saving_paused"' "$work/disk/run/events.jsonl")" = 1 ] || fail "no event, or more than one"
[ "$(grep -c '^warning: .*No space left' "$work/log")" = 1 ] || fail "not reported once"
grep -q 'meopt train --resume' "$work/log" || fail "no next step"
[ -z "$(find "$work/disk" -name '*.partial')" ] || fail "a half checkpoint is left"
"$MEOPT" export "$work/disk/run" -o "$work/student.safetensors" || exit 1
mount -o remount,size=64m "$work/disk"
"$MEOPT" train --resume "$work/disk/run" >"$work/log" 2>&1 || fail "resume"
[ "$(steps run)" = "$(seq 80)" ] || fail "metrics of the resumed run"

rm -rf "$work/disk/run"
mount -o remount,size=1500k "$work/disk"
"$MEOPT" train "$@" --steps 400 --name waits >"$work/log" 2>&1 &
pid=$!
wait_for 30 grep -qs '"event":"saving_paused"' "$work/disk/waits/events.jsonl" || fail "it does not meet the full disk"
wait_for 30 grep -qs '"message": ".*No space left' "$work/disk/waits/state.json" || fail "the state does not say so"
if kill -0 "$pid" 2>/dev/null; then
    mount -o remount,size=64m "$work/disk"
    wait "$pid"
    code=$?
    [ "$code" = 0 ] || fail "room again: exit $code"
    grep -q '"event":"saving_resumed"' "$work/disk/waits/events.jsonl" || fail "room again: no event"
    [ "$(steps waits)" = "$(seq 400)" ] || fail "room again: metric lines are lost"
    ! grep -q message "$work/disk/waits/state.json" || fail "room again: the state still says so"
    [ -d "$work/disk/waits/ckpt/step-00000400" ] || fail "room again: no last checkpoint"
else
    fail "too fast to be met while it waited"
fi

# A scratch file of streamed weights that has no room is reported before the first step.
rm -rf "$work"/disk/*
mount -o remount,size=64k "$work/disk"
"$MEOPT" train "$work/configs/quickstart_dinov2.yaml" --run-dir "$work" --name streamed model_s.place=streamed \
    train.scratch_dir="$work/disk" >"$work/log" 2>&1
code=$?
[ "$code" = 5 ] || fail "no room for streamed weights: exit $code"
grep -q "^meopt: .*$work/disk/.meopt-weights-" "$work/log" || fail "no room for streamed weights: not reported"
[ -z "$(ls -A "$work/disk")" ] || fail "a scratch file is left"
