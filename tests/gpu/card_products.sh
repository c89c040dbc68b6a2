#!/bin/sh
# A product that the cards' library refuses is asked of it once: that is reported, and others make it from then on.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
train() { # NAME CARD VARIABLE=VALUE...
    name=$1 card=$2
    shift 2
    env "$@" "$MEOPT" train configs/quickstart_dinov2.yaml "device.type=$card" train.steps=4 train.batch_size=1 --run-dir . --name "$name" >out 2>log ||
        fail "$name: exit $?"
}
# 87 products of 64 columns, of a dozen kinds.
refused() { # CARD LIBRARY ERROR LATER
    train "refused_$2_$4" "$1" "MEOPT_ROCBLAS_LIBRARY=$fakes/libfake_rocblas.so" "MEOPT_CUBLAS_LIBRARY=$fakes/libfake_cublas.so" \
        FAKE_BLAS_REFUSES=64 "FAKE_BLAS_LATER=$4"
    asked=$(grep -c '^fake BLAS refuses' log || true) told=$(grep -c "^warning: .*$2.so .* $3\\>" log || true)
    [ "$asked" -gt 2 ] && [ "$asked" -le 14 ] || fail "refused $asked times in 4 steps"
    [ "$asked" = "$told" ] || fail "refused $asked times, reported $told times"
}
refused hip libfake_rocblas 5 1
refused hip libfake_rocblas 5 20
refused cuda libfake_cublas 15 20
