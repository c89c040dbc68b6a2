#!/bin/sh
# Adaptive precision across a restart: states are promoted during the run, saved in their new formats, resumed, and promoted
# further; the end equals an uninterrupted run in every byte. Without promotion the optimizer's file is smaller.
set -eu
. "$MEOPT_SOURCE/tests/quickstart.sh"
set -- "$work/configs/quickstart_dinov2.yaml" train.steps=12 train.batch_size=4 optim.preset=minimal optim.state_m=4bit optim.state_v=4bit
"$MEOPT" train "$@" --run-dir "$work" --name fixed >"$work/log" 2>&1
set -- "$@" optim.adaptive=true optim.adaptive_every=5 optim.adaptive_threshold=0.01 train.checkpoint_steps=7 train.checkpoint_keep=3
"$MEOPT" train "$@" --run-dir "$work" --name whole >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# step 5 promotes before the save at 7, step 10 after it; the run loses its last checkpoint
cp -R "$work/whole" "$work/cut"
rm -r "$work/cut/ckpt/step-00000012"
saved=$(wc -c <"$work/cut/ckpt/step-00000007/optimizer.bin")
"$MEOPT" train --resume "$work/cut" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for file in model.safetensors optimizer.bin; do cmp "$work/whole/ckpt/step-00000012/$file" "$work/cut/ckpt/step-00000012/$file"; done
fixed=$(wc -c <"$work/fixed/ckpt/step-00000012/optimizer.bin")
whole=$(wc -c <"$work/whole/ckpt/step-00000012/optimizer.bin")
echo "optimizer.bin: fixed $fixed, promoted at the save $saved, at the end $whole bytes"
[ "$saved" -gt "$fixed" ] && [ "$whole" -gt "$saved" ]
