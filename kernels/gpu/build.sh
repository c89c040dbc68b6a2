#!/bin/sh
# Compile kernels/gpu/*.hip to one code object: build.sh ARCH OUTPUT. gfx... takes $HIPCC (hipcc), sm_.. takes $NVCC (nvcc).
# The compiler's report on registers stays beside it as OUTPUT.report; a kernel of the optimizer that spills is an error,
# because its speed is the memory's. `build.sh --accepts ARCH` only asks whether the compiler knows the arch. A compiler may
# claim matrix instructions that the arch lacks (kernels/gpu/matrix.h): where the sources fail with them, they are built without.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile() { # ARCH SOURCE OUTPUT [FLAG]
    case $1 in
    gfx*) "${HIPCC:-hipcc}" --genco "--offload-arch=$1" -O3 -std=c++17 -Wall -Wextra -Werror -fhip-fp32-correctly-rounded-divide-sqrt \
        -Rpass-analysis=kernel-resource-usage "-I$root" ${4:-} "$2" -o "$3" ;;
    sm_*) "${NVCC:-nvcc}" -cubin "-arch=$1" -O3 -std=c++17 -Werror all-warnings -Xptxas -v -x cu "-I$root" ${4:-} "$2" -o "$3" ;;
    *) echo "build.sh: no compiler for $1: gfx... or sm_..." >&2 && return 2 ;;
    esac
}
if [ "$1" = --accepts ]; then
    echo '__global__ void nothing() {}' >"$work/nothing.hip"
    case $2 in gfx*) sed -i '1i#include <hip/hip_runtime.h>' "$work/nothing.hip" ;; esac
    compile "$2" "$work/nothing.hip" "$work/nothing" >"$work/log" 2>&1
    exit
fi
arch=$1 output=$2
for source in "$here"/*.hip; do echo "#include \"kernels/gpu/$(basename "$source")\""; done >"$work/kernels.hip"
if ! compile "$arch" "$work/kernels.hip" "$work/object" >"$work/report" 2>&1; then
    grep -v 'remark:' "$work/report" >"$work/errors" || true
    case $arch in gfx90a | gfx94? | sm_*) has_matrix=1 ;; *) has_matrix= ;; esac
    if [ $has_matrix ] || ! compile "$arch" "$work/kernels.hip" "$work/object" -DMEOPT_MATRIX=0 >"$work/report" 2>&1; then
        cat "$work/errors" >&2
        exit 1
    fi
    echo "build.sh: $arch: built without matrix instructions, because with them:" >&2
    head -n 5 "$work/errors" >&2
fi
# NAME SPILLED, a line a kernel, from either compiler's report
awk '/Function Name:/ { for (i = 1; i < NF; i++) if ($i == "Name:") name = $(i + 1) }
    /VGPRs Spill:/ { for (i = 1; i < NF; i++) if ($i == "Spill:" && $(i - 1) == "VGPRs") print name, $(i + 1) }
    /ScratchSize/ { for (i = 1; i < NF; i++) if ($i == "[bytes/lane]:") print name, $(i + 1) }
    /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
    /spill stores/ { for (i = 1; i < NF; i++) if ($(i + 1) == "bytes" && $(i + 2) == "spill") print name, $i }' "$work/report" >"$work/spills"
grep -q '^optim_step' "$work/spills" || echo "build.sh: $arch: the compiler reports no registers: spills are not checked" >&2
if grep '^optim_step' "$work/spills" | grep -v ' 0$' >&2; then
    echo "build.sh: $arch: the optimizer's kernels spill registers" >&2
    exit 1
fi
mkdir -p "$(dirname "$output")"
cp "$work/report" "$output.report"
mv "$work/object" "$output"
