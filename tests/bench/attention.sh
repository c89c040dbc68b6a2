#!/bin/sh
# Attention, full and causal, on each instruction set that this processor has, one thread: tests/bench/attention.c; with PYTHON set, also
# PyTorch's scaled_dot_product_attention on the same shapes (attention.py).
#
#   sh tests/bench/attention.sh [SECONDS]    SECONDS of each call (0.5)
#   MEOPT_SETS='avx2 plain'                  only these
set -eu
cd "$(dirname "$0")/../.."
build=${MEOPT_BUILD:-build}
${CC:-cc} -O2 -D_GNU_SOURCE -I. tests/bench/attention.c "$build/libmeopt.a" -o "$build/bench_attention" -fopenmp -ljpeg -lpng -lwebp -lz \
    -lyaml -ljansson -lpcre2-8 -lutf8proc -lm -ldl
export OMP_NUM_THREADS=1
for set in ${MEOPT_SETS:-avx512_bf16 avx512 avx2_fma plain}; do
    echo "# $set"
    MEOPT_CPU_ISA=$set "$build/bench_attention" "$@"
done
[ -z "${PYTHON:-}" ] || "$PYTHON" tests/bench/attention.py
