#!/bin/sh
# A run killed with SIGKILL at random moments and resumed equals the one that was left alone: metrics (without times), model
# and optimizer state, byte for byte; and nothing of the killed ones is left. Every step is saved, so that kills meet saves.
set -eu
kills=3
[ "${MEOPT_LONG:-0}" = 1 ] && kills=10
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/sample"
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C "$work/sample"; done
mkdir "$work/configs"
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" "$work/configs/"
set -- "$work/configs/quickstart_dinov2.yaml" train.steps=60 train.checkpoint_steps=1 train.checkpoint_keep=1
"$MEOPT" train "$@" --run-dir "$work" --name whole >"$work/whole.log" 2>&1
killed=0
"$MEOPT" train "$@" --run-dir "$work" --name cut >"$work/cut.log" 2>&1 &
pid=$!
while [ "$killed" -lt "$kills" ]; do
    sleep "0.$((killed % 3 + 2))"
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    killed=$((killed + 1))
    [ -d "$work/cut" ] || { echo "the first run did not start"; cat "$work/cut.log"; exit 1; }
    "$MEOPT" train --resume "$work/cut" >>"$work/cut.log" 2>&1 &
    pid=$!
done
wait "$pid" || { tail -5 "$work/cut.log"; exit 1; }
for run in whole cut; do
    sed -E 's/,"(images_per_s|step_ms|data_wait_ms)":[^,}]*//g; s/,"cards":.*//; s/}$//' "$work/$run/metrics.jsonl" >"$work/$run.steps"
done
cmp "$work/whole.steps" "$work/cut.steps"
[ "$(wc -l <"$work/cut.steps")" = 60 ]
cmp "$work/whole/ckpt/step-00000060/model.safetensors" "$work/cut/ckpt/step-00000060/model.safetensors"
cmp "$work/whole/ckpt/step-00000060/optimizer.bin" "$work/cut/ckpt/step-00000060/optimizer.bin"
left=$(find "$work" -name '.*.??????' -o -name '.trash*' -o -name '*.partial' -o -name '*.new' -o -name '*.damaged*')
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
[ "$(ls "$work/cut/ckpt" | tr '\n' ' ')" = "LATEST step-00000060 " ] || { ls "$work/cut/ckpt"; exit 1; }
echo "$kills kills, $(grep -c '^steps' "$work/cut.log") starts: the same bytes"
