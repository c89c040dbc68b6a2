#!/bin/sh
# A disk that fills while a checkpoint is written: exit 5, the checkpoint before stays whole, no half one is left, and the run
# resumes when there is room.
set -u
[ "$(id -u)" = 0 ] || { echo "needs root for a small tmpfs"; exit 77; }
work=$(mktemp -d)
mkdir "$work/disk" "$work/sample" "$work/configs"
mount -t tmpfs -o size=1500k none "$work/disk" 2>/dev/null || { rm -rf "$work"; echo "cannot mount a tmpfs"; exit 77; }
trap 'umount "$work/disk"; rm -rf "$work"' EXIT
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C "$work/sample"; done
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" "$work/configs/"
"$MEOPT" train "$work/configs/quickstart_dinov2.yaml" train.checkpoint_steps=10 train.checkpoint_keep=5 --run-dir "$work/disk" --name run >"$work/log" 2>&1
code=$?
[ "$code" = 5 ] || { echo "exit $code"; tail -3 "$work/log"; exit 1; }
[ -z "$(find "$work/disk" -name '*.partial')" ] || { echo "a half checkpoint is left"; exit 1; }
"$MEOPT" export "$work/disk/run" -o "$work/student.safetensors" || exit 1
mount -o remount,size=64m "$work/disk"
"$MEOPT" train --resume "$work/disk/run" >"$work/log" 2>&1 || { tail -3 "$work/log"; exit 1; }
[ "$(wc -l <"$work/disk/run/metrics.jsonl")" = 80 ]
