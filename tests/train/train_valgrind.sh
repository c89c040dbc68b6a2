#!/bin/sh
# Two steps of the quickstart's worker under valgrind: no invalid access, no use of what was never written, nothing lost.
set -eu
command -v valgrind >/dev/null || { echo "skipped: no valgrind"; exit 77; }
ldd "$MEOPT" | grep -q libasan && { echo "skipped: AddressSanitizer is watching already"; exit 77; }
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
# With a spin count the worker does not begin once more, outside valgrind.
export GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=1 MEOPT_CPU_ISA=avx2 JSIMD_FORCENONE=1 # libjpeg-turbo 2.0 by SIMD: false reports
grep -q '^flags.* fma .* avx2 ' /proc/cpuinfo || MEOPT_CPU_ISA=plain
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=2 train.batch_size=2 data.workers=1 --run-dir . --name run >log 2>&1 || { cat log; exit 1; }
rm -r run/ckpt run/metrics.jsonl
truncate -s 65536 report
valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite "$MEOPT" worker --report 9 -- run >log 2>&1 9<>report || { cat log; exit 1; }
grep -q '^==' log && { cat log; exit 1; }
[ "$(wc -l <run/metrics.jsonl)" = 2 ]
