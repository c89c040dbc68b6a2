# What a card's kernels cannot do is refused with its numbers before anything is taken: by plan, on a machine with such a card, and by
# train. The CPU does it.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
"$MEOPT" config new quickstart_dinov2 >/dev/null
towers="model.family=dinov2 model_t.init=random model_s.init=random model_t.weight= model_s.weight= model_t.arch=custom model_s.arch=custom
    model_t.width=1408 model_s.width=1408 model_t.depth=1 model_s.depth=1 model_t.heads=11 data.root=$work/COCO2014"
tar -xzf "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz" -C "$work"
expect() { # code DEVICE command...
    want=$1 device=$2
    shift 2
    exits "$want" "$MEOPT" "$@" "device.type=$device" $towers >out 2>err || fail "exit $code, expected $want: $*, $device"
}
for device in hip cuda; do
    expect 7 $device plan quickstart_dinov2.yaml model_s.heads=8
    grep -q '^meopt: .*\<8 heads.*176.*1408.*128' err || fail "plan names no numbers"
    expect 7 $device train quickstart_dinov2.yaml model_s.heads=8 --run-dir "$work"
    grep -q '^meopt: .*\<8 heads.*176.*1408.*128' err || fail "train names no numbers"
    expect 0 $device plan quickstart_dinov2.yaml model_s.heads=11
    expect 7 $device plan quickstart_dinov2.yaml model_s.heads=11 train.batch_size=8192
    grep -q '^meopt: .*\<8192\>.*\<11 heads' err || fail "a grid of 90112 blocks"
done
expect 0 cpu plan quickstart_dinov2.yaml model_s.heads=8
