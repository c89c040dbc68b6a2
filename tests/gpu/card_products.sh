#!/bin/sh
# A product that the cards' library refuses is asked of it once: that is reported, and others make it from then on.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
train() { # NAME CARD VARIABLE=VALUE...: four steps of one image
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

# cuBLASLt adds a bias of the results' type: those of q, k and v are cast, once per pass; every other one is added in fp32 by the operation
# that reads the result.
train plain cuda FAKE_COUNT=plain.count MEOPT_GRAPHS=none
train lt cuda FAKE_COUNT=lt.count MEOPT_GRAPHS=none "MEOPT_CUBLASLT_LIBRARY=$fakes/libfake_cublaslt.so"
launches() { # COUNT KERNEL...: their sum
    file=$1
    shift
    for kernel; do sed -n "s/.*\"$kernel\":\([0-9]*\).*/\1/p" "$file"; done | awk '{ n += $1 } END { print n + 0 }'
}
casts=$(($(launches lt.count cast_f32_bf16) - $(launches plain.count cast_f32_bf16)))
passes=$(launches lt.count attention_forward_f32 attention_forward_bf16_plain attention_forward_bf16_32 attention_forward_bf16_64 \
    attention_forward_bf16_80 attention_forward_bf16_96 attention_forward_bf16_128)
[ "$passes" -gt 0 ] && [ "$casts" -gt 0 ] && [ "$casts" -le $((passes + 1)) ] || # one to verify the library
    fail "$casts biases are cast in $passes passes of blocks"
