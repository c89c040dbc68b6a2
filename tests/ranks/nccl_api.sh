#!/bin/sh
# MEOpt calls RCCL and NCCL as their header says: types of arguments and results, numbers, the configuration's layout. Against a table that
# is kept here, and every nccl.h and rccl.h of this machine (MEOPT_NCCL_HEADERS: directories of more, between colons). No stand-in has a
# symbol that the real one has not.
set -eu
command -v c++ >/dev/null || { echo "no c++ here"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
# What the vendors' headers want of their runtimes.
mkdir "$work/stub" "$work/kept"
for header in cuda_runtime.h cuda_fp16.h cuda_bf16.h hip/hip_runtime_api.h hip/hip_runtime.h hip/hip_fp16.h; do
    mkdir -p "$(dirname "$work/stub/$header")"
    printf '#pragma once\n#include <cstddef>\ntypedef struct CUstream_st *cudaStream_t;\ntypedef cudaStream_t hipStream_t;\n' >"$work/stub/$header"
done
cp "$MEOPT_SOURCE/tests/ranks/nccl_2_22.h" "$work/kept/nccl.h"
check() { c++ -std=c++17 -fsyntax-only -Werror=narrowing -I "$MEOPT_SOURCE" -I "$1" -I "$work/stub" "$MEOPT_SOURCE/tests/ranks/nccl_api.cc" 2>"$work/log"; }
check "$work/kept" || fail "the kept table: $(cat "$work/log")"
sed -i 's/size_t count, ncclDataType_t datatype, int peer/int count, ncclDataType_t datatype, int peer/' "$work/kept/nccl.h"
! check "$work/kept" || fail "another type of an argument is not seen"
grep -q 'ncclSend' "$work/log" || fail "it is not named: $(cat "$work/log")"

headers=0
IFS=:
for place in ${MEOPT_NCCL_HEADERS:-} /usr/include /usr/local/include /usr/local/cuda/include /opt/rocm/include /opt/rocm/include/rccl /opt/dtk/include \
    /opt/dtk/include/rccl; do
    for name in nccl.h rccl.h; do
        [ -f "$place/$name" ] || continue
        mkdir -p "$work/real"
        printf '#include "%s"\n' "$place/$name" >"$work/real/nccl.h"
        check "$work/real" || fail "$place/$name: $(cat "$work/log")"
        headers=$((headers + 1))
    done
done
unset IFS
echo "$headers headers of this machine"

for fake in rccl nccl; do
    library="$MEOPT_BUILD/tests/libfake_$fake.so"
    [ -f "$library" ] && command -v nm >/dev/null || continue
    nm -D --defined-only "$library" | awk '$3 ~ /^nccl/ {print $3}' | sort >"$work/fake"
    { sed -n 's/.*X([a-z_]*, \(nccl[A-Za-z]*\),.*/\1/p' "$MEOPT_SOURCE/core/comm/nccl_api.h"; printf 'ncclCommSplit\nncclGetErrorString\nncclGetLastError\n'; } | sort >"$work/ours"
    cmp "$work/fake" "$work/ours" || fail "the stand-in $fake has other calls: $(diff "$work/fake" "$work/ours")"
done
