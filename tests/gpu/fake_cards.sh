# Sourced by tests on cards made up by tests (tests/gpu/fake_driver.cc), without libraries of products but those that a test names: $fakes is
# where they are built. Skips where they are not.
fakes=$MEOPT_BUILD/tests
[ -f "$fakes/libfake_amdhip64.so" ] || { echo "skipped: no emulated cards"; exit 77; }
export MEOPT_HIP_LIBRARY="$fakes/libfake_amdhip64.so" MEOPT_CUDA_LIBRARY="$fakes/libfake_cuda.so" MEOPT_KERNELS="$fakes/fake_kernels" \
    MEOPT_ROCBLAS_LIBRARY=none MEOPT_CUBLAS_LIBRARY=none MEOPT_HIPBLASLT_LIBRARY=none MEOPT_CUBLASLT_LIBRARY=none MEOPT_RCCL_LIBRARY=none MEOPT_NCCL_LIBRARY=none
