#!/bin/sh
# Two training steps on processors emulated by qemu-user: each uses its own instruction set, executes no instruction that it lacks, and is
# bit-identical to this processor with that set (MEOPT_CPU_ISA). qemu 7.2 emulates no AVX-512; -avx512bw disables it.
set -eu
[ "${MEOPT_LONG:-}" ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
command -v qemu-x86_64 >/dev/null || { echo "skipped: no qemu-x86_64 (package qemu-user)"; exit 77; }
[ "$(uname -m)" = x86_64 ] || { echo "skipped: the sets are those of x86-64"; exit 77; }
grep -q '^flags.* fma .* avx2 ' /proc/cpuinfo || { echo "skipped: this processor has no AVX2 to compare with"; exit 77; }
version=$(qemu-x86_64 --version | sed -n 's/.*version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
[ "$(echo "${version:-0 0}" | awk '{ print $1 * 1000 + $2 }')" -ge 7002 ] || { echo "skipped: qemu $version emulates no AVX2, 7.2 does"; exit 77; }
ldd "$MEOPT" | grep -q libasan && { echo "skipped: AddressSanitizer does not run under qemu"; exit 77; }
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
# With a spin count the worker does not begin once more, outside qemu.
export GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=1
unset MEOPT_CPU_ISA
few_images 2
sums() { cat run/ckpt/step-00000002/model.safetensors run/ckpt/step-00000002/optimizer.bin | sha256sum; }

for set in plain avx2_fma avx2; do
    rm -rf run
    MEOPT_CPU_ISA=$set "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=2 train.batch_size=2 data.workers=1 --run-dir . --name run >log 2>&1 ||
        { cat log; exit 1; }
    sums >"expected.$set"
done
[ "$(cat expected.* | sort -u | wc -l)" = 3 ] || { echo "two instruction sets give the same bits: nothing would be proved"; exit 1; }

failed=0
truncate -s 65536 report
while read -r processor set; do
    rm -r run/ckpt run/metrics.jsonl
    if ! qemu-x86_64 -cpu "$processor" "$MEOPT" worker --report 9 -- run >log 2>&1 9<>report; then
        echo "$processor: the worker fails"
        grep -v "TCG doesn't support" log
        exit 1
    fi
    sums >found
    cmp -s found "expected.$set" && continue
    echo "$processor: not the bits of $set"
    grep -l "$(cat found)" expected.* || true
    failed=1
done <<'END'
Nehalem plain
Haswell avx2_fma
Skylake-Server,-avx512bw avx2
EPYC avx2_fma
Dhyana avx2_fma
EPYC-Milan avx2
END

# Tiles in plain C, on a processor that has neither these nor AVX.
for test in ops_on_tiles attention_tiles; do
    MEOPT_CPU_ISA=amx qemu-x86_64 -cpu Nehalem "$MEOPT_BUILD/tests/test_$test" >log 2>&1 || { tail -5 log; echo "Nehalem: test_$test"; failed=1; }
done
exit $failed
