#!/bin/sh
# Whatever is wrong with cards and drivers gets a clear answer: the words and the exit code, on drivers made up by tests.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
# CODE WORDS [NAME=VALUE...]: open the card hip:0, or $device
expect() {
    code=$1 words=$2 got=0
    shift 2
    env "$@" "$MEOPT" doctor --quick --device "${device:-hip:0}" >"$dir/out" 2>&1 || got=$?
    [ "$got" = "$code" ] || fail "$words: exit code $got, expected $code"
    grep -q -- "$words" "$dir/out" || fail "does not say '$words'"
}
expect 0 'sentinel' A=1
expect 6 'sees no card' FAKE_CARDS=0
expect 6 'sees no card' FAKE_CARDS=0 FAKE_EMPTY=1
expect 6 'sees no card' FAKE_INIT=100
expect 6 'does not initialise: another error (3)' FAKE_INIT=3
expect 6 'cannot be started: another error (46)' FAKE_CONTEXT=46
expect 6 'does not load' MEOPT_HIP_LIBRARY=/nowhere.so
expect 6 'has no hipInit' MEOPT_HIP_LIBRARY="$fakes/libfake_rocblas.so"
expect 6 'built for gfx90a; tried gfx90a: no kernel image' FAKE_ARCH=gfx928
expect 6 'is gfx928' FAKE_ARCH=gfx928 MEOPT_GPU_ARCH=gfx928 MEOPT_KERNELS="$dir"
expect 6 'no code object works on .*gfx928' FAKE_ARCH=gfx928 MEOPT_GPU_ARCH=gfx928
expect 6 'MEOPT_GPU_ARCHS=gfx928' FAKE_ARCH=gfx928 MEOPT_GPU_ARCH=gfx928
expect 6 'its kernels start but write nothing' FAKE_SILENT=1
expect 1 'launch failure (719)' FAKE_LAUNCH=3 # what asks the card for its matrix instructions
expect 11 "out of memory (2); of 100 MiB 0 MiB are free, 100 MiB are neither free nor this process's" FAKE_MEMORY=104857600 FAKE_OTHERS=104857600
lt=MEOPT_HIPBLASLT_LIBRARY=$fakes/libfake_hipblaslt.so
expect 0 "GEMM by MEOpt's own kernel" "$lt"
export FAKE_VERSION=60032830
expect 0 'GEMM by .*libfake_hipblaslt' "$lt" MEOPT_ROCBLAS_LIBRARY="$fakes/libfake_rocblas.so"
expect 0 'GEMM by .*libfake_rocblas' "$lt" MEOPT_ROCBLAS_LIBRARY="$fakes/libfake_rocblas.so" FAKE_LT_WRONG=1
expect 0 "GEMM by MEOpt's own kernel" "$lt" FAKE_LT_WRONG=1
expect 0 "GEMM by MEOpt's own kernel" MEOPT_HIPBLASLT_LIBRARY="$fakes/libfake_cublaslt.so"
expect 0 "GEMM by MEOpt's own kernel" "$lt" FAKE_MEMORY=20000000
device=cuda expect 0 'GEMM by .*libfake_cublaslt' MEOPT_CUBLASLT_LIBRARY="$fakes/libfake_cublaslt.so"
unset FAKE_VERSION
device=hip:7 expect 6 'no card hip:7: the driver sees 1' A=1
device=hip:1 expect 0 'sentinel' FAKE_CARDS=2
device=cuda expect 0 'sentinel' A=1
device=cuda expect 6 'built for sm_90' FAKE_ARCH=sm_80
expect 6 'gfx90a: its wave size differs from the card' FAKE_WAVE=32
mkdir "$dir/ptx"
echo 'emulated compute_80' >"$dir/ptx/meopt-compute_80.co"
device=cuda expect 0 'the driver compiles .*compute_80.co, which takes a while' FAKE_ARCH=sm_120 MEOPT_KERNELS="$dir/ptx"
device=cuda expect 6 'built for compute_80' FAKE_ARCH=sm_75 MEOPT_KERNELS="$dir/ptx"
device=opencl expect 6 "no device 'opencl'" A=1
device=auto expect 0 'hip:0' A=1
device=auto expect 0 'cuda:0' MEOPT_HIP_LIBRARY=/nowhere.so
device=auto expect 0 'no code object works' FAKE_ARCH=gfx928 FAKE_B=1 MEOPT_CUDA_LIBRARY=/nowhere.so
# Without any driver auto is the processor, whatever it is called: the same answer as cpu.
export MEOPT_HIP_LIBRARY=/nowhere.so MEOPT_CUDA_LIBRARY=/nowhere.so
"$MEOPT" doctor --quick --device cpu >"$dir/cpu" 2>&1
"$MEOPT" doctor --quick --device auto >"$dir/out" 2>&1 || fail "auto without drivers: exit code $?"
cmp "$dir/cpu" "$dir/out" || fail "auto without drivers is not the processor"
