#!/bin/sh
# Compile kernels/gpu/*.hip to one code object: build.sh ARCH OUTPUT. gfx... uses $HIPCC (hipcc), sm_... and compute_... (PTX, which
# drivers compile for future cards) use $NVCC (nvcc). With $PTXAS, that of an earlier CUDA makes sm_... of nvcc's PTX, so that earlier
# drivers accept them. Also writes OUTPUT.report, the compiler's output, and OUTPUT.kernels: NAME, spilled,
# shared bytes and registers, one line per kernel, if the compiler reports them. Warns if a kernel of the optimizer spills registers: these
# kernels are limited by memory bandwidth. With MEOPT_WERROR set, that and every warning is an error.
#   build.sh --accepts ARCH          only test whether the compiler supports the arch
#   build.sh --cards                 print the archs of this machine's cards that a compiler here accepts, one per line
#   build.sh --optional ARCH OUTPUT  if the arch does not compile, warn and exit with success
# Compilers for DCU may have different names for matrix instructions than matrix.h: if the sources fail, they are built without them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work" # hipcc leaves empty directories
gfx_strict='' nv_strict=''
if [ "${MEOPT_WERROR:-}" ]; then gfx_strict=-Werror nv_strict='-Werror all-warnings'; fi
# PTX in $work/kernels.ptx, without the hash of the source's path that names of local variables contain. For $PTXAS, and for drivers of its
# version, it declares an earlier PTX ISA: that of CUDA 12.0, or of 12.8 where the arch is as new. The kernels need no later one.
ptx() { # ARCH SOURCE FLAG
    # shellcheck disable=SC2086 # words of flags
    "${NVCC:-nvcc}" -ptx "-arch=$1" -O3 -std=c++17 $nv_strict -x cu "-I$root" $3 "$2" -o "$work/text" || return
    case $1 in compute_???*) isa=8.7 ;; *) isa=8.0 ;; esac
    [ "${PTXAS:-}" ] || isa='\1'
    sed -E "s/_INTERNAL_[0-9a-f]{8}_/_INTERNAL_00000000_/g; s/^\.version ([0-9.]+)/.version $isa/" "$work/text" >"$work/kernels.ptx"
}
compile() { # ARCH SOURCE OUTPUT [FLAG]
    # shellcheck disable=SC2086 # words of flags
    case $1 in
    gfx*) "${HIPCC:-hipcc}" --genco "--offload-arch=$1" -O3 -std=c++17 -Wall -Wextra $gfx_strict -fhip-fp32-correctly-rounded-divide-sqrt \
        -Rpass-analysis=kernel-resource-usage "-I$root" ${4:-} "$2" -o "$3" ;;
    sm_*)
        if [ "${PTXAS:-}" ]; then
            ptx "compute_${1#sm_}" "$2" "${4:-}" && "$PTXAS" "-arch=$1" -v "$work/kernels.ptx" -o "$3"
        else "${NVCC:-nvcc}" -cubin "-arch=$1" -O3 -std=c++17 $nv_strict -Xptxas -v -x cu "-I$root" ${4:-} "$2" -o "$3"; fi ;;
    compute_*) ptx "$1" "$2" "${4:-}" && (cd "$work" && "${NVCC:-nvcc}" -fatbin "-gencode=arch=$1,code=$1" kernels.ptx -o "$3") ;;
    *) echo "build.sh: no compiler for $1: gfx..., sm_... or compute_..." >&2 && return 2 ;;
    esac
}
accepts() { # ARCH
    echo '__global__ void nothing() {}' >"$work/nothing.hip"
    case $1 in gfx*) sed -i '1i#include <hip/hip_runtime.h>' "$work/nothing.hip" ;; esac
    compile "$1" "$work/nothing.hip" "$work/nothing" >"$work/log" 2>&1
}
# gfx90a from KFD's gfx_target_version 90010 (0 for a processor), sm_90 from the driver's compute capability 9.0
cards() {
    { cat "${MEOPT_SYSFS:-/sys}"/class/kfd/kfd/topology/nodes/*/properties 2>/dev/null || true; } |
        awk '$1 == "gfx_target_version" && $2 > 0 { printf "gfx%d%x%x\n", $2 / 10000, int($2 / 100) % 100, $2 % 100 }'
    { nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } | sed -n 's/^\([0-9]*\)\.\([0-9]\)$/sm_\1\2/p'
}
optional=
case $1 in
--accepts)
    accepts "$2"
    exit
    ;;
--cards)
    cards | sort -u | while read -r arch; do
        if accepts "$arch"; then echo "$arch"; else echo "build.sh: no compiler here accepts $arch, a card of this machine" >&2; fi
    done
    exit
    ;;
--optional) optional=1 && shift ;;
esac
arch=$1 output=$2
mkdir -p "$(dirname "$output")"
rm -f "$output" "$output.kernels"
refused() { # the words stand in the file $work/errors
    cp "$work/errors" "$output.report"
    cat "$work/errors" >&2
    [ "$optional" ] || exit 1
    echo "build.sh: $arch does not compile here and is left out: cards of it will not be used; the words are in $output.report" >&2
    exit 0
}
for source in "$here"/*.hip; do echo "#include \"kernels/gpu/$(basename "$source")\""; done >"$work/kernels.hip"
if ! compile "$arch" "$work/kernels.hip" "$work/object" >"$work/report" 2>&1; then
    grep -v 'remark:' "$work/report" >"$work/errors" || true
    case $arch in gfx928 | gfx92a | gfx936 | gfx938 | gfx946) ;; *) refused ;; esac
    compile "$arch" "$work/kernels.hip" "$work/object" -DMEOPT_MATRIX=0 >"$work/report" 2>&1 || refused
    echo "build.sh: $arch: built without matrix instructions, because with them:" >&2
    head -n 5 "$work/errors" >&2
fi
# NAME SPILLED SHARED REGISTERS, one line per kernel, from either compiler's report
awk '/Function Name:/ { for (i = 1; i < NF; i++) if ($i == "Name:") seen[name = $(i + 1)] }
    / VGPRs:/ { for (i = 1; i < NF; i++) if ($i == "VGPRs:") registers[name] = $(i + 1) }
    /VGPRs Spill:/ { for (i = 1; i < NF; i++) if ($i == "Spill:" && $(i - 1) == "VGPRs") spilled[name] += $(i + 1) }
    /ScratchSize/ { for (i = 1; i < NF; i++) if ($i == "[bytes/lane]:") spilled[name] += $(i + 1) }
    /LDS Size/ { for (i = 1; i < NF; i++) if ($i == "[bytes/block]:") shared[name] = $(i + 1) }
    /Compiling entry function/ { split($0, part, "\047"); seen[name = part[2]] }
    /spill stores/ { for (i = 1; i < NF; i++) if ($(i + 1) == "bytes" && $(i + 2) == "spill") spilled[name] += $i }
    /Used [0-9]+ registers/ {
        for (i = 1; i < NF; i++) if ($i == "Used") registers[name] = $(i + 1)
        for (i = 1; i < NF; i++) if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared[name] = $i
    }
    END { for (name in seen) print name, spilled[name] + 0, shared[name] + 0, registers[name] + 0 }' "$work/report" |
    sort >"$output.kernels"
case $arch in compute_*) ;; *)
    grep -q '^optim_step' "$output.kernels" || echo "build.sh: $arch: the compiler reports no registers: spills are not checked" >&2
    if grep -E '^optim_step[^ ]* [1-9]' "$output.kernels" >"$work/spills"; then
        cat "$work/spills" >&2
        echo "build.sh: $arch: the optimizer's kernels spill registers: they will be slower than the memory" >&2
        if [ "${MEOPT_WERROR:-}" ]; then exit 1; fi
    fi ;;
esac
cp "$work/report" "$output.report"
mv "$work/object" "$output"
