#!/bin/sh
# A product that the cards' library refuses is asked of it once: that is told, and others make it from then on.
set -eu
. "$MEOPT_SOURCE/tests/fake_cards.sh"
. "$MEOPT_SOURCE/tests/quickstart.sh"
fail() {
    echo "FAILED: $1" >&2
    tail -n 20 "$work/log" >&2
    exit 1
}
export OMP_NUM_THREADS=1 MEOPT_ROCBLAS_LIBRARY="$fakes/libfake_rocblas.so"
train() { # NAME VARIABLE=VALUE...
    name=$1
    shift
    env "$@" "$MEOPT" train configs/quickstart_dinov2.yaml device.type=hip train.steps=4 train.batch_size=1 --run-dir . --name "$name" >out 2>log ||
        fail "$name: exit $?"
}
# 87 products of 64 columns, of a dozen kinds.
for later in 1 20; do
    train "refused_$later" FAKE_ROCBLAS_REFUSES=64 "FAKE_ROCBLAS_LATER=$later"
    asked=$(grep -c '^fake rocBLAS refuses' log || true) told=$(grep -c 'libfake_rocblas.so refuses a product of .* with its error 5' log || true)
    [ "$asked" -gt 2 ] && [ "$asked" -le 14 ] || fail "refused $asked times in 4 steps"
    [ "$asked" = "$told" ] || fail "refused $asked times, told $told times"
done
