#!/bin/sh
# Whatever is wrong with cards and drivers gets a clear answer: the exit code and what is at fault (the library, the card, the arch, the
# driver's number), on drivers made up by tests.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
# CODE NAMED [NAME=VALUE...]: open the card hip:0, or $device
expect() {
    want=$1 named=$2
    shift 2
    exits "$want" env "$@" "$MEOPT" doctor --quick --device "${device:-hip:0}" >"$dir/out" 2>&1 || fail "$named: exit code $code, expected $want"
    grep -q -- "$named" "$dir/out" || fail "does not name '$named'"
}
expect 0 'sentinel' A=1
expect 6 '^meopt: .*/libfake_amdhip64.so ' FAKE_CARDS=0
expect 6 '^meopt: .*/libfake_amdhip64.so ' FAKE_CARDS=0 FAKE_EMPTY=1
expect 6 '^meopt: .*/libfake_amdhip64.so ' FAKE_INIT=100
expect 6 '^meopt: .*/libfake_amdhip64.so .*(3)$' FAKE_INIT=3
expect 6 '^meopt: .*hip:0.*(46)$' FAKE_CONTEXT=46
expect 6 '^meopt: .*MEOPT_HIP_LIBRARY=/nowhere.so' MEOPT_HIP_LIBRARY=/nowhere.so
expect 6 '^meopt: .*/libfake_rocblas.so .*hipInit$' MEOPT_HIP_LIBRARY="$fakes/libfake_rocblas.so"
expect 6 '^meopt: .*hip:0.*gfx90a.*gfx90a.*(209)$' FAKE_ARCH=gfx936
expect 6 '^meopt: .*hip:0.*gfx936$' FAKE_ARCH=gfx936 MEOPT_GPU_ARCH=gfx936 MEOPT_KERNELS="$dir"
expect 6 '^meopt: .*hip:0.*gfx936.*gfx90a$' FAKE_ARCH=gfx936 MEOPT_GPU_ARCH=gfx936
expect 6 'MEOPT_GPU_ARCHS=gfx936' FAKE_ARCH=gfx936 MEOPT_GPU_ARCH=gfx936
expect 6 '^meopt: .*hip:0.*gfx90a: .*write nothing$' FAKE_SILENT=1
expect 1 'launch failure (719)' FAKE_LAUNCH=3 # what asks the card for its matrix instructions
expect 11 '^meopt: .*hip:0.*(2).*\<100 MiB 0 MiB.*\<100 MiB' FAKE_MEMORY=104857600 FAKE_OTHERS=104857600
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
device=hip:7 expect 6 '^meopt: .*hip:7.*hip:0$' A=1
device=hip:1 expect 0 'sentinel' FAKE_CARDS=2
device=cuda expect 0 'sentinel' A=1
device=cuda expect 6 '^meopt: .*cuda:0.*sm_80.*sm_90$' FAKE_ARCH=sm_80
expect 6 '^meopt: .*hip:0.*gfx90a: .*wave' FAKE_WAVE=32
mkdir "$dir/ptx"
echo 'emulated compute_80' >"$dir/ptx/meopt-compute_80.co"
device=cuda expect 0 '^warning: cuda:0.*sm_120.*/meopt-compute_80.co' FAKE_ARCH=sm_120 MEOPT_KERNELS="$dir/ptx"
device=cuda expect 6 '^meopt: .*cuda:0.*sm_75.*compute_80$' FAKE_ARCH=sm_75 MEOPT_KERNELS="$dir/ptx"
device=opencl expect 6 "^meopt: .*'opencl'" A=1
device=auto expect 0 'hip:0' A=1
device=auto expect 0 'cuda:0' MEOPT_HIP_LIBRARY=/nowhere.so
device=auto expect 0 '^warning: .*hip:0.*gfx90a' FAKE_ARCH=gfx936 FAKE_B=1 MEOPT_CUDA_LIBRARY=/nowhere.so
# The remedy of each error of the driver, where a site can do something: CODE, WHERE it occurs, what the hint names.
device=cuda
expect 6 'nvidia-smi -c 0' FAKE_CONTEXT=46
expect 6 '/dev/nvidia.*CUDA_VISIBLE_DEVICES' FAKE_INIT=100
expect 6 'nvidia-fabricmanager' FAKE_INIT=802
expect 6 'libcuda.so.1' FAKE_INIT=803
expect 6 'cuda-compat' FAKE_INIT=804
expect 6 'nvidia_uvm' FAKE_INIT=999
expect 1 'nvidia-smi --gpu-reset' FAKE_LAUNCH=3 FAKE_ERROR=214
for error in 700 716 719; do expect 1 'Xid.*--share' FAKE_LAUNCH=3 FAKE_ERROR=$error; done
expect 6 'dmesg' FAKE_INIT=3
! grep -q -e "-> see 'meopt doctor'" "$dir/out" || fail "doctor refers to itself"
device=hip
expect 1 'rocm-smi --gpureset' FAKE_LAUNCH=3 FAKE_ERROR=214
expect 1 'dmesg.*--share' FAKE_LAUNCH=3
expect 6 '/dev/kfd' FAKE_INIT=100
# Code objects of a later CUDA than the driver's: both versions and the driver that is needed; of the same CUDA: the arch.
device=cuda
mkdir "$dir/later"
printf 'emulated sm_90\nCuda compilation tools, release 13.0, V13.0.88\n' >"$dir/later/meopt-sm_90.co"
for error in 200 209 218 222; do
    expect 6 '\<580\>.* 13\.0.* 12\.2' FAKE_LOAD=$error FAKE_VERSION=12020 MEOPT_KERNELS="$dir/later"
    expect 6 'MEOPT_GPU_ARCHS=sm_90' FAKE_LOAD=$error FAKE_VERSION=13000 MEOPT_KERNELS="$dir/later"
done
expect 0 'sentinel' FAKE_VERSION=13000 MEOPT_KERNELS="$dir/later"
# of CUDA 12 by the ELF header of its objects
mkdir "$dir/twelve"
{ printf '\177ELF\002\001\001\063\007\0\0\0\0\0\0\0\002\0\276\0\201\0\0\0' && printf '%64s' ''; } >"$dir/twelve/meopt-sm_90.co"
expect 6 '\<525\>.* 12\.9.* 11\.8' FAKE_LOAD=218 FAKE_VERSION=11080 MEOPT_KERNELS="$dir/twelve"
expect 6 'MEOPT_GPU_ARCHS=sm_90' FAKE_LOAD=218 FAKE_VERSION=12020 MEOPT_KERNELS="$dir/twelve"
unset device
# Without any driver auto is the processor, whatever it is called: the same answer as cpu.
export MEOPT_HIP_LIBRARY=/nowhere.so MEOPT_CUDA_LIBRARY=/nowhere.so
"$MEOPT" doctor --quick --device cpu >"$dir/cpu" 2>&1
"$MEOPT" doctor --quick --device auto >"$dir/out" 2>&1 || fail "auto without drivers: exit code $?"
cmp "$dir/cpu" "$dir/out" || fail "auto without drivers is not the processor"
