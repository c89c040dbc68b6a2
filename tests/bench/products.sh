#!/bin/sh
# The products of training on each instruction set that this processor has, one thread: tests/bench/products.c.
#
#   sh tests/bench/products.sh [SECONDS [ROWS...]]    SECONDS of each product (0.3), ROWS: 514 (a batch of 2), 2056 (of 8), ...
#   MEOPT_SETS='avx2 plain'                            only these
set -eu
cd "$(dirname "$0")/../.."
build=${MEOPT_BUILD:-build}
${CC:-cc} -O2 -D_GNU_SOURCE -I. tests/bench/products.c "$build/libmeopt.a" -o "$build/bench_products" -fopenmp -ljpeg -lpng -lwebp -lz -lyaml \
    -ljansson -lpcre2-8 -lutf8proc -lm -ldl
export OMP_NUM_THREADS=1
for set in ${MEOPT_SETS:-avx512_bf16 avx512_vnni avx512 avx2_vnni avx2 avx2_fma plain}; do
    echo "# $set"
    MEOPT_CPU_ISA=$set "$build/bench_products" "$@"
done
