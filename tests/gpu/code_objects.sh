#!/bin/sh
# Code objects: those that were built have every kernel that the program asks for by name, none of which spills registers or takes
# more shared memory than is known of it; kernels/gpu/build.sh reports spills, removes temporary files of compilers, refuses archs that
# it cannot build, or reports them and leaves them out, and takes warnings for errors only where it is asked to. MEOPT_LONG=1: every arch that the
# compilers here take.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
build=$MEOPT_SOURCE/kernels/gpu/build.sh
sh "$build" tpu1 "$work/x.co" 2>"$work/log" && fail "an unknown arch is built"
grep -q tpu1 "$work/log" || fail "an unknown arch is not named"
mkdir "$work/tmp"
cat >"$work/hipcc" <<'FAKE'
#!/bin/sh
mktemp -d >/dev/null # is not removed, as with hipcc
case "$*" in *MEOPT_MATRIX=0*) MATRIX= ;; esac
case "$*" in *-Werror*) ;; *) WARN= ;; esac
[ "${BROKEN:-}" ] && echo "kernels.hip:1:1: error: no such thing" >&2 && exit 1
[ "${MATRIX:-}" ] && echo "fatal error: error in backend: Cannot select: intrinsic %llvm.amdgcn.mfma" >&2 && exit 1
[ "${WARN:-}" ] && echo "kernels.hip:1:1: error: unused variable [-Werror]" >&2 && exit 1
echo "a.hip:1:1: remark: Function Name: optim_step_8bit [-Rpass-analysis=kernel-resource-usage]" >&2
echo "a.hip:1:1: remark:     VGPRs Spill: ${SPILL:-0} [-Rpass-analysis=kernel-resource-usage]" >&2
while [ "$1" != -o ]; do shift; done
echo object >"$2"
FAKE
chmod +x "$work/hipcc"
TMPDIR=$work/tmp HIPCC=$work/hipcc sh "$build" gfx936 "$work/out/x.co" || fail "the made-up compiler builds nothing"
[ -z "$(ls -A "$work/tmp")" ] || fail "left $(ls -A "$work/tmp")"
mkdir -p "$work/sys/class/kfd/kfd/topology/nodes/0" "$work/sys/class/kfd/kfd/topology/nodes/1"
echo 'gfx_target_version 0' >"$work/sys/class/kfd/kfd/topology/nodes/0/properties"
printf 'simd_count 64\ngfx_target_version 90010\n' >"$work/sys/class/kfd/kfd/topology/nodes/1/properties"
printf '#!/bin/sh\necho 9.0\necho 9.0\n' >"$work/nvidia-smi"
cp "$work/hipcc" "$work/nvcc"
chmod +x "$work/nvidia-smi"
cards=$(PATH="$work:$PATH" HIPCC=$work/hipcc NVCC=$work/nvcc MEOPT_SYSFS="$work/sys" sh "$build" --cards | tr '\n' ' ')
[ "$cards" = "gfx90a sm_90 " ] || fail "the cards of the machine are '$cards'"
cards=$(PATH="$work:$PATH" HIPCC=$work/hipcc NVCC=$work/nvcc BROKEN=1 MEOPT_SYSFS="$work/sys" sh "$build" --cards 2>"$work/log")
[ -z "$cards" ] && grep -q sm_90 "$work/log" || fail "a card whose arch no compiler accepts is not named"
[ -f "$work/out/x.co" ] || fail "no object"
HIPCC=$work/hipcc SPILL=3 sh "$build" gfx936 "$work/y.co" 2>"$work/log" || fail "a user's build ends at spills"
grep -q 'optim_step_8bit 3' "$work/log" || fail "the build does not report spills"
HIPCC=$work/hipcc SPILL=3 MEOPT_WERROR=1 sh "$build" gfx936 "$work/y.co" 2>"$work/log" && fail "spills are accepted"
grep -q 'optim_step_8bit 3' "$work/log" || fail "spills are not reported"
[ ! -f "$work/y.co" ] || fail "an object with spills is left"
HIPCC=$work/hipcc WARN=1 sh "$build" gfx936 "$work/y.co" 2>"$work/log" || fail "a warning ends a user's build"
HIPCC=$work/hipcc WARN=1 MEOPT_WERROR=1 sh "$build" gfx936 "$work/y.co" 2>"$work/log" && fail "a warning is accepted"
grep -q 'kernels.hip:1:1: error' "$work/log" || fail "the compiler's words are lost"
echo old >"$work/y.co"
HIPCC=$work/hipcc BROKEN=1 sh "$build" gfx90a "$work/y.co" 2>"$work/log" && fail "a failed compilation ends with 0"
HIPCC=$work/hipcc BROKEN=1 sh "$build" --optional gfx90a "$work/y.co" 2>"$work/log" || fail "one arch that fails ends the build"
grep -q gfx90a "$work/log" && grep -q 'kernels.hip:1:1: error' "$work/y.co.report" || fail "an arch is left out silently"
[ ! -f "$work/y.co" ] || fail "an older object stays where the arch does not compile"
HIPCC=$work/hipcc MATRIX=1 sh "$build" gfx936 "$work/m.co" 2>"$work/log" || fail "an arch without matrix instructions is not built"
grep -q 'gfx936.*matrix' "$work/log" && grep -q 'llvm.amdgcn.mfma' "$work/log" || fail "a build without matrix instructions is silent"

# With a ptxas of an earlier CUDA, sm_... are made by it, of PTX that declares its version; other archs and builds are as before.
cat >"$work/nvcc" <<'FAKE'
#!/bin/sh
case "$*" in *-cubin*) text=nvcc ;; *) text=$(printf '.version 9.0\n.target sm_80\n') ;; esac
case "$*" in *-fatbin*) text=$(cat kernels.ptx) ;; esac
while [ "$1" != -o ]; do shift; done
echo "$text" >"$2"
FAKE
cat >"$work/ptxas" <<'FAKE'
#!/bin/sh
[ "$1 $2" = "-arch=$ARCH -v" ] || exit 3
echo "ptxas info    : Compiling entry function 'optim_step_8bit' for '$ARCH'" >&2
{ echo ptxas && cat "$3"; } >"$5"
FAKE
chmod +x "$work/nvcc" "$work/ptxas"
export NVCC="$work/nvcc"
for row in 'sm_80 8.0' 'sm_90 8.0' 'sm_100 8.7' 'sm_120 8.7'; do
    arch=${row% *}
    ARCH=$arch PTXAS=$work/ptxas sh "$build" "$arch" "$work/n.co" 2>"$work/log" || fail "$arch is not built with ptxas"
    [ "$(head -n 2 "$work/n.co" | tr '\n' ' ')" = "ptxas .version ${row#* } " ] || fail "$arch: $(head -n 2 "$work/n.co")"
done
PTXAS=$work/ptxas sh "$build" compute_80 "$work/n.co" && grep -q '^\.version 8\.0$' "$work/n.co" || fail "PTX that its drivers do not read"
sh "$build" compute_80 "$work/n.co" && grep -q '^\.version 9\.0$' "$work/n.co" || fail "PTX without ptxas is another one"
sh "$build" sm_90 "$work/n.co" 2>"$work/log" && grep -q '^nvcc$' "$work/n.co" || fail "an object without ptxas is another one"
unset NVCC

# A code object is built again after an edit of any file that its sources include: ninja knows each of them as an input.
if command -v ninja >/dev/null && command -v cmake >/dev/null; then
    cmake -S "$MEOPT_SOURCE" -B "$work/configured" -G Ninja -DMEOPT_HIPCC="$work/hipcc" -DMEOPT_GPU_ARCHS=gfx90a -DBUILD_TESTING=OFF \
        -DMEOPT_MPI=OFF >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "cmake does not configure"; }
    ninja -C "$work/configured" -t query kernels/meopt-gfx90a.co.report >"$work/inputs"
    cd "$MEOPT_SOURCE"
    included() { sed -n 's/^ *# *include "\(.*\)"/\1/p' "$@"; }
    included kernels/gpu/*.hip | sort -u >"$work/included"
    # shellcheck disable=SC2046 # words are files of the repository
    while included $(cat "$work/included") | sort -u - "$work/included" >"$work/more" && ! cmp -s "$work/more" "$work/included"; do
        mv "$work/more" "$work/included"
    done
    cd "$work"
    [ "$(grep -c . "$work/included")" -ge 8 ] || fail "only $(grep -c . "$work/included") headers of the code objects are found"
    while read -r header; do
        grep -q "/$header\$" "$work/inputs" || fail "a code object does not depend on $header, which its sources include"
    done <"$work/included"
fi

# Spellings of Hygon's matrix instruction (matrix.h), by a compiler that claims to know them; AMD's is never taken there.
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

# All kernels are compiled for blocks of 256 threads, those of attention_matrix.hip for four waves (vendor.h), so that these always find their
# registers: by what the compilers leave in the object, EIATTR_MAX_THREADS 256 or 128, 1, 1 and .max_flat_workgroup_size 256. More is refused by tests/gpu/fake_driver.cc as by a driver.
# OBJECT KERNELS
bound() {
    each=1
    case ${1##*/} in *sm_1??.*) each=2 ;; esac # Blackwell's objects have the attributes of each kernel a second time, in .nv.merc.nv.info
    case ${1##*/} in
    *sm_*) n=$(LC_ALL=C grep -aoP '\x04\x05\x0c\x00(\x00\x01|\x80\x00)\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00' "$1" | wc -l) ;;
    *) n=$(LC_ALL=C grep -aoP 'max_flat_workgroup_size\xcd\x01\x00' "$1" | wc -l) ;;
    esac
    [ "$n" = $(($2 * each)) ] || fail "$1: $((n / each)) of $2 kernels are bound to their threads"
}
# NAME SPILLED SHARED REGISTERS, a line a kernel: nothing is spilled, 256 threads have their registers, and shared memory is what leaves
# room for a second block on a multiprocessor (tiles of attention; 64 KiB are an AMD or Hygon compute unit's, 100 the least of NVIDIA's since sm_80; attention_code.sh counts the blocks).
bounded() {
    awk '{ most = $1 ~ /^attention_[fb]/ ? 47360 : $1 ~ /^gemm/ ? 10240 : $1 ~ /^(head_norm_g|add_shares)/ ? 8192 : $1 ~ /^optim_step/ ? 7424 : $1 ~ /^optim_t(otal|rust)$/ ? 4096 : $1 ~ /^optim_factor_(columns|means)$/ ? 2056 : 1024 }
        $4 > 256 { print FILENAME ": " $1 " takes " $4 " registers"; bad = 1 }
        $2 > 0 || $3 > most { print FILENAME ": " $1 " spills " $2 " bytes, has " $3 " of shared memory, at most " most " are known of it"; bad = 1 }
        END { exit bad }' "$1" >&2 || fail "kernels spill, or have more shared memory than before"
}
# No operation divides 64 bits for each element. PTX names what the card has no instruction for: once a kernel, of nvcc's own, for how
# often a loop goes round that it unrolls.
if nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc); then
    "$nvcc" -ptx -arch=compute_80 -std=c++17 -x cu "-I$MEOPT_SOURCE" "$MEOPT_SOURCE/kernels/gpu/elementwise.hip" -o "$work/elements.ptx"
    grep -q 'entry residual_forward_bf16' "$work/elements.ptx" || fail "no PTX of the elementwise kernels"
    [ "$(grep -c '\.entry' "$work/elements.ptx")" = "$(grep -c '\.maxntid 256, 1, 1' "$work/elements.ptx")" ] || fail "kernels without a bound"
    awk '/\.entry/ { kernel = $3 } /(div|rem)\.[su]64/ { if (++n[kernel] == 2) { print kernel; bad = 1 } } END { exit bad }' \
        "$work/elements.ptx" >&2 || fail "these kernels divide 64 bits"
fi
# Accesses of the optimizer's kernels: pairs of fp32 as 8 bytes, of bf16 as 4, of 8-bit codes as 2; single bytes are scales, one a group.
# All go to memory as such (LDG, STG), not to what may be shared (LD, ST).
cuobjdump=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump \
    "${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}"/meopt-tests/env-*/lib/python3*/site-packages/triton/backends/nvidia/bin/cuobjdump 2>/dev/null | head -n 1)
[ "$cuobjdump" ] || echo "widths of accesses not looked at: no cuobjdump"
# ARCH KERNEL PATTERN LEAST MOST
accesses() {
    n=$(grep -cE "$3" "$work/$2.sass" || true)
    [ "$n" -ge "$4" ] && [ "$n" -le "$5" ] || fail "$1, $2: $n accesses $3, expected $4 to $5"
}
for arch in sm_80 sm_90 sm_100 sm_120; do
    object=$MEOPT_BUILD/kernels/meopt-$arch.co
    [ "$cuobjdump" ] && [ -f "$object" ] || continue
    "$cuobjdump" -sass "$object" >"$work/sass" 2>/dev/null || { echo "$arch: this cuobjdump does not read it" && continue; }
    for kernel in optim_step_f32 optim_step_bf16 optim_step_8bit optim_step_4bit; do
        awk -v k=$kernel '/Function :/ { on = $3 == k } on' "$work/sass" >"$work/$kernel.sass"
        accesses $arch $kernel ' LDG\.E\.64' 20 500
        accesses $arch $kernel ' STG\.E\.64' 8 500
        accesses $arch $kernel ' STG\.E ' 16 500
        accesses $arch $kernel ' LDG\.E\.U16' 48 500
        accesses $arch $kernel ' STG\.E\.U16' 48 500
        accesses $arch $kernel ' (LD|ST)G?\.E\.[US]8' 0 12
        accesses $arch $kernel ' (LD|ST)\.E' 0 8
    done
    for kernel in optim_check optim_squares; do # what reads gradients before a step
        awk -v k=$kernel '/Function :/ { on = $3 == k } on' "$work/sass" >"$work/$kernel.sass"
        accesses $arch $kernel ' LDG\.E' 20 500
        accesses $arch $kernel ' (LD|ST)G?\.E\.[US]8' 0 0
        accesses $arch $kernel ' (LD|ST)\.E' 0 2
    done
done
if [ "${MEOPT_LONG:-}" ]; then
    for arch in gfx900 gfx906 gfx908 gfx90a gfx90c gfx940 gfx942 gfx950 gfx1010 gfx1030 gfx1100 gfx1200 sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 \
        sm_103 sm_120 compute_80 compute_90; do
        sh "$build" --accepts "$arch" 2>/dev/null || continue
        MEOPT_WERROR=1 sh "$build" "$arch" "$work/$arch.co" 2>"$work/log" || { cat "$work/log" >&2; fail "$arch does not compile"; }
        bound "$work/$arch.co" "$(wc -l <"$work/$arch.co.kernels")"
        echo "$arch: $(awk '{ s += $2; if ($3 > m) m = $3; if ($4 > r) r = $4 } END { print NR " kernels, spilled " s + 0 ", shared at most " m + 0 ", registers at most " r + 0 }' "$work/$arch.co.kernels")"
    done
fi

count=0
# names in the sources of the host; those of both dtypes by their suffix
names=$(sed -n 's/.*[^X_]NAME2*("\([a-z_]*\)".*/\1_bf16/p; s/.*MATRIX_NAME("\([a-z_]*\)".*/\1_bf16\n\1_bf16_plain/p; s/.*MATRIX_NAME2("\([a-z_]*\)".*/\1_bf16_bf16_plain\n\1_f32_bf16/p; s/.*ATTENTION_KERNELS("\([a-z_]*\)").*/\1_f32\n\1_bf16_plain/p; s/.*gpu_launch(d[a-z]*, "\([a-z_0-9]*\)".*/\1/p; s/.*"\(optim_[a-z0-9_]*\)".*/\1/p; s/.*{"\(sum_ranks_f32\)", "\(sum_ranks_bf16\)", "\(sum_tree_f32\)",.*/\1\n\2\n\3/p; s/.*"\(unite_ranks\)"}.*/\1/p' "$MEOPT_SOURCE"/core/device/gpu*.c | sort -u)
[ "$(echo "$names" | wc -l)" -ge 30 ] || fail "only these names were found: $names"
for report in "$MEOPT_BUILD"/kernels/*.report; do
    object=${report%.report}
    [ -f "$report" ] || continue
    [ -f "$object" ] || fail "$object was left out: $(cat "$report")"
    count=$((count + 1))
    case $object in *compute_*) continue ;; esac # compressed
    for name in $names; do grep -aq "$name" "$object" || fail "$object lacks $name"; done
    case $object in # matrix instructions; DCU's compilers may have none
    *sm_7* | *sm_6*) ;;
    *sm_* | *gfx90a* | *gfx94* | *gfx950*)
        [ "$(grep -cE '^attention_(forward|backward_q|backward_kv)_bf16_(32|64|80|96|128) ' "$object.kernels")" = 15 ] ||
            fail "$object lacks attention on matrix instructions" ;;
    esac
    bounded "$object.kernels"
    bound "$object" "$(wc -l <"$object.kernels")"
done
echo "$count code objects, $(echo "$names" | wc -l) names"
