#!/bin/sh
# Mistakes of a user: one clear message each, the documented exit code, no partial files.
set -u
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
mkdir "$work/empty"
failed=0
# expect CODE TEXT key=value...
expect() {
    code=$1 text=$2
    rm -rf "$work/runs"
    shift 2
    "$MEOPT" train "$work/configs/quickstart.yaml" "$@" --run-dir "$work/runs" --name bad >"$work/out" 2>&1
    got=$?
    if [ "$got" != "$code" ] || ! grep -q "^meopt: .*$text" "$work/out" || [ -e "$work/runs/bad" ]; then
        echo "expected exit $code and '$text' for: $*; got $got:"
        cat "$work/out"
        failed=1
    fi
    rm -rf "$work/runs"
}
dino=$work/sample/ModelWeight/dinov2/dinov2_vitl14_pretrain.pth
expect 7 'model_s.weight.*/nonexistent.pt' model.weight_s=/nonexistent.pt
expect 7 'dinov2.*eva' model.family=eva "model.weight_s=$dino"
expect 7 'width.* 88 .* 96' model_s.width=96
expect 1 "$work/empty" "data.root=$work/empty"
expect 7 'optim.learning_rate' optim.learning_rate=1
expect 7 'optim.lr.* -1' optim.lr=-1
expect 7 ' 160 .* 1000' train.batch_size=1000
printf 'model: [\n' >"$work/configs/broken.yaml"
"$MEOPT" train "$work/configs/broken.yaml" >"$work/out" 2>&1
[ $? = 7 ] && grep -q 'broken.yaml:' "$work/out" || { cat "$work/out"; failed=1; }
# a learning rate that diverges: exit 13, and the weights of the last checkpoint are finite
"$MEOPT" train "$work/configs/quickstart.yaml" optim.lr=1000 optim.name=apsgd optim.warmup_steps=0 optim.clip_grad_norm=0 --run-dir "$work/runs" --name nan >"$work/out" 2>&1
got=$?
[ "$got" = 13 ] || { echo "diverged run: exit $got"; tail -3 "$work/out"; failed=1; }
"$MEOPT" train "$work/configs/quickstart.yaml" --run-dir "$work/runs" --name one --stop-after 3 >"$work/out" 2>&1
[ $? = 10 ] || { echo "stop-after"; tail -3 "$work/out"; failed=1; }
"$MEOPT" train "$work/configs/quickstart.yaml" --run-dir "$work/runs" --name one >"$work/out" 2>&1
[ $? = 9 ] || { echo "an existing run was taken"; failed=1; }
# four of one experiment that begin together, most of them in one second: each has a directory of its own
pids=
for i in 1 2 3 4; do
    "$MEOPT" train "$work/configs/quickstart.yaml" --run-dir "$work/together" --stop-after 1 >"$work/out$i" 2>&1 &
    pids="$pids $!"
done
for pid in $pids; do
    wait "$pid"
    got=$?
    [ "$got" = 10 ] || { echo "of four that begin together: exit $got"; tail -n 3 "$work"/out?; failed=1; }
done
[ "$(ls "$work/together" | wc -l)" = 4 ] || { ls "$work/together"; failed=1; }
exit "$failed"
