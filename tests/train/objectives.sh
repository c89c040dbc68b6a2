#!/bin/sh
# A small training of each objective by the program: it ends with 0, its loss falls, and its student is exported. For the quick form of
# the tests; equal_runs.sh proves what each objective promises.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 16
for archive in digits genesis; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
cp "$MEOPT_SOURCE/configs/digits.yaml" "$MEOPT_SOURCE/configs/bytes.yaml" configs/
loss() { sed -n "$1s/.*\"loss\":\([^,]*\),.*/\1/p" "$name/metrics.jsonl"; } # LINE
objective() { # NAME CONFIG KEY=VALUE...
    name=$1 config=$2
    shift 2
    "$MEOPT" train "configs/$config.yaml" "$@" optim.warmup_steps=1 --run-dir . --name "$name" --no-dashboard >out 2>log || fail "$name: exit $?"
    awk -v first="$(loss 1)" -v last="$(loss '$')" 'BEGIN { exit !(last > 0 && last < 0.98 * first) }' || fail "$name: loss $(loss 1), then $(loss '$')"
    "$MEOPT" export "$name" -o "$name.safetensors" >out 2>log || fail "$name: export: exit $?"
    [ "$(od -An -tu8 -N8 "$name.safetensors")" -gt 2 ] || fail "$name: an empty export"
}
objective distill quickstart_dinov2 train.steps=8 train.batch_size=4
objective classify digits train.epochs=4
objective language bytes train.steps=20
objective masked bytes train.steps=20 model.family=bert train.objective=masked model.vocabulary=257 data.mask_token=256 data.special_tokens=0
