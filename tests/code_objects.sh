#!/bin/sh
# Code objects: those that were built have every kernel that the program asks for by name, their reports show no spills of the
# optimizer, and kernels/gpu/build.sh refuses spills, warnings and archs that it cannot build.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1" >&2; exit 1; }
build=$MEOPT_SOURCE/kernels/gpu/build.sh
sh "$build" tpu1 "$work/x.co" 2>"$work/log" && fail "an unknown arch is built"
grep -q 'no compiler for tpu1' "$work/log" || fail "an unknown arch is not named"
cat >"$work/hipcc" <<'FAKE'
#!/bin/sh
case "$*" in *MEOPT_MATRIX=0*) MATRIX= ;; esac
[ "${MATRIX:-}" ] && echo "fatal error: error in backend: Cannot select: intrinsic %llvm.amdgcn.mfma" >&2 && exit 1
[ "${WARN:-}" ] && echo "kernels.hip:1:1: error: unused variable [-Werror]" >&2 && exit 1
echo "a.hip:1:1: remark: Function Name: optim_step_8bit [-Rpass-analysis=kernel-resource-usage]" >&2
echo "a.hip:1:1: remark:     VGPRs Spill: ${SPILL:-0} [-Rpass-analysis=kernel-resource-usage]" >&2
while [ "$1" != -o ]; do shift; done
echo object >"$2"
FAKE
chmod +x "$work/hipcc"
HIPCC=$work/hipcc sh "$build" gfx936 "$work/out/x.co" || fail "the made-up compiler builds nothing"
[ -f "$work/out/x.co" ] || fail "no object"
HIPCC=$work/hipcc SPILL=3 sh "$build" gfx936 "$work/y.co" 2>"$work/log" && fail "spills are accepted"
grep -q 'optim_step_8bit 3' "$work/log" || fail "spills are not told"
[ ! -f "$work/y.co" ] || fail "an object with spills is left"
HIPCC=$work/hipcc WARN=1 sh "$build" gfx936 "$work/y.co" 2>"$work/log" && fail "a failed compilation ends with 0"
grep -q 'unused variable' "$work/log" || fail "the compiler's words are lost"
HIPCC=$work/hipcc MATRIX=1 sh "$build" gfx936 "$work/m.co" 2>"$work/log" || fail "an arch without matrix instructions is not built"
grep -q 'gfx936: built without matrix instructions' "$work/log" && grep -q 'Cannot select' "$work/log" || fail "a build without matrix instructions is silent"

# Spellings of Hygon's matrix instruction (matrix.h), by a compiler that is told it knows them; AMD's is never taken there.
# ARCH DEFINED PATH
spelling() {
    cat >"$work/dcu.hip" <<SOURCE
#include <hip/hip_runtime.h>
#define __$1__ 1
#undef __has_builtin
#define __has_builtin(name) name##_known
#define ${2}_known 1
#define $2(a, b, c, ...) __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0)
#include "kernels/gpu/gemm.hip"
#if defined(__AMDGCN__)
static_assert(MEOPT_MATRIX == $3, "$1 with $2");
#endif
SOURCE
    "$hipcc" --cuda-device-only --offload-arch=gfx90a -fsyntax-only -std=c++17 -Wno-builtin-macro-redefined "-I$MEOPT_SOURCE" \
        "$work/dcu.hip" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$1 with $2 does not go by $3"; }
}
if hipcc=$(command -v hipcc); then
    spelling gfx936 __builtin_hcu_mmac_f32_16x16x16_bf16 MATRIX_MMAC
    spelling gfx928 __builtin_amdgcn_mmac_f32_16x16x16bf16 MATRIX_MMAC
    spelling gfx938 __builtin_hcu_mmac_f32_16x16x16_bf16_lit_lts MATRIX_MMAC
    spelling gfx928 __builtin_nothing MATRIX_NONE
    spelling gfx90a __builtin_nothing MATRIX_MFMA
fi

count=0
# names in the sources of the host; those of both dtypes by their suffix
names=$(sed -n 's/.*[^X_]NAME2*("\([a-z_]*\)".*/\1_bf16/p; s/.*MATRIX_NAME("\([a-z_]*\)".*/\1_bf16\n\1_bf16_plain/p; s/.*MATRIX_NAME2("\([a-z_]*\)".*/\1_bf16_bf16_plain\n\1_f32_bf16/p; s/.*gpu_launch(d[a-z]*, "\([a-z_0-9]*\)".*/\1/p; s/.*"\(optim_step_[a-z0-9]*\)".*/\1/p' "$MEOPT_SOURCE"/core/device/gpu*.c "$MEOPT_SOURCE/core/optim/card.c" | sort -u)
[ "$(echo "$names" | wc -l)" -ge 30 ] || fail "only these names were found: $names"
for object in "$MEOPT_BUILD"/kernels/*.co; do
    [ -f "$object" ] || continue
    count=$((count + 1))
    for name in $names; do grep -aq "$name" "$object" || fail "$object lacks $name"; done
done
echo "$count code objects, $(echo "$names" | wc -l) names"
