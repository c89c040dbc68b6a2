/* Is what MEOpt believes of the vendors' libraries what their headers say? Compiled by vendor_api.sh for one
 * library at a time, against each of its headers that this machine has. */
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/vendor.h"

extern "C" {
#include "core/device/blas_api.h"
#include "core/device/driver.h"
#include "core/monitor/nvml_api.h"
#include "core/monitor/rsmi_api.h"
}

#if defined(VENDOR_CUDA)
#include <cuda.h>
HANDLE(CUdeviceptr)
#define ENTRY(member, hip, cuda, arguments)  SAME_CALL(cuda, decltype(driver::member))
#define OWN_ENTRY(member, symbol, arguments) SAME_CALL(symbol, decltype(driver::member))
DRIVER_ENTRIES(ENTRY)
DRIVER_GRAPH_ENTRIES(ENTRY)
DRIVER_CUDA_ENTRIES(OWN_ENTRY)
SAME_NUMBER(CUDA_ERROR_OUT_OF_MEMORY, DRIVER_OUT_OF_MEMORY)
SAME_NUMBER(CUDA_ERROR_NO_DEVICE, DRIVER_NO_DEVICE)
SAME_NUMBER(CUDA_ERROR_INVALID_DEVICE, DRIVER_INVALID_DEVICE)
SAME_NUMBER(CUDA_ERROR_NOT_READY, DRIVER_NOT_READY)
SAME_NUMBER(CU_STREAM_NON_BLOCKING, DRIVER_STREAM_NON_BLOCKING)
SAME_NUMBER(CU_EVENT_DISABLE_TIMING, DRIVER_EVENT_NO_TIMING)
SAME_NUMBER(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, DRIVER_CAPTURE_THREAD_LOCAL)
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, DRIVER_CUDA_UNITS)
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, DRIVER_CUDA_MAJOR)
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, DRIVER_CUDA_MINOR)

#elif defined(VENDOR_HIP)
/* the C declarations: C++ also gets overloads of the same names */
#undef __cplusplus
extern "C" {
#include <hip/hip_runtime_api.h>
}
#define ENTRY(member, hip, cuda, arguments)  SAME_CALL(hip, decltype(driver::member))
#define OWN_ENTRY(member, symbol, arguments) SAME_CALL(symbol, decltype(driver::member))
DRIVER_ENTRIES(ENTRY)
DRIVER_GRAPH_ENTRIES(ENTRY)
DRIVER_HIP_ENTRIES(OWN_ENTRY)
SAME_CALL(hipGetErrorString, const char *(*)(int))
SAME_NUMBER(hipErrorOutOfMemory, DRIVER_OUT_OF_MEMORY)
SAME_NUMBER(hipErrorNoDevice, DRIVER_NO_DEVICE)
SAME_NUMBER(hipErrorInvalidDevice, DRIVER_INVALID_DEVICE)
SAME_NUMBER(hipErrorNotReady, DRIVER_NOT_READY)
SAME_NUMBER(hipStreamNonBlocking, DRIVER_STREAM_NON_BLOCKING)
SAME_NUMBER(hipEventDisableTiming, DRIVER_EVENT_NO_TIMING)
SAME_NUMBER(hipStreamCaptureModeThreadLocal, DRIVER_CAPTURE_THREAD_LOCAL)
SAME_NUMBER(hipDeviceAttributeMultiprocessorCount, DRIVER_HIP_UNITS)

#elif defined(VENDOR_CUBLAS)
#undef __cplusplus
extern "C" {
#include <cublas_v2.h>
}
#define ENTRY(member, symbol, arguments) SAME_CALL(symbol, decltype(cublas_api::member))
CUBLAS_ENTRIES(ENTRY)
CUBLAS_OPTIONAL(ENTRY)
SAME_NUMBER(CUBLAS_DEFAULT_MATH, CUBLAS_DEFAULT_MATH_MODE)
SAME_NUMBER(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION, CUBLAS_NO_REDUCED_PRECISION)
SAME_NUMBER(CUDA_R_32F, CUBLAS_F32)
SAME_NUMBER(CUDA_R_16BF, CUBLAS_BF16)
SAME_NUMBER(::CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_F32)
SAME_NUMBER(CUBLAS_GEMM_DEFAULT, CUBLAS_ALGORITHM)

#elif defined(VENDOR_CUBLASLT)
#include <cublasLt.h>
#define ENTRY(member, name, arguments) SAME_CALL(cublasLt##name, decltype(lt_api::member))
LT_ENTRIES(ENTRY)
SAME_NUMBER(CUBLAS_OP_N, CUBLASLT_PLAIN)
SAME_NUMBER(CUBLAS_OP_T, CUBLASLT_TRANSPOSED)
SAME_NUMBER(CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_TRANSPOSE_A)
SAME_NUMBER(CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_TRANSPOSE_B)
SAME_NUMBER(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_OF)
SAME_NUMBER(CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_BIAS)
SAME_NUMBER(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_WORKSPACE)
SAME_NUMBER(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION)
SAME_NUMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_ALIGNMENT)
SAME_NUMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_ALIGNMENT + 3)
SAME_NUMBER(CUBLASLT_EPILOGUE_DEFAULT, LT_EPILOGUE_NONE)
SAME_NUMBER(::CUBLASLT_EPILOGUE_BIAS, LT_EPILOGUE_BIAS)
SAME_NUMBER(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, LT_REDUCTION_IN_COMPUTE_TYPE)
SAME_CALL(cublasLtGetVersion, size_t (*)(void))
static_assert(sizeof(cublasLtMatmulAlgo_t) == 64 && sizeof(cublasLtMatmulHeuristicResult_t) == 96 &&
                  offsetof(cublasLtMatmulHeuristicResult_t, state) == 72,
              "results have another layout than gpu_lt.c has");
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) <= LT_RESULT_BYTES, "a result has no room");
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, algo) == 0, "the algorithm is not at the front");

#elif defined(VENDOR_ROCBLAS)
#include <rocblas/rocblas.h>
#define ENTRY(member, symbol, arguments) SAME_CALL(symbol, decltype(rocblas_api::member))
ROCBLAS_ENTRIES(ENTRY)
ROCBLAS_OPTIONAL(ENTRY)
SAME_NUMBER(rocblas_atomics_not_allowed, ROCBLAS_NO_ATOMICS)
SAME_NUMBER(rocblas_operation_none, ROCBLAS_NONE)
SAME_NUMBER(rocblas_operation_transpose, ROCBLAS_TRANSPOSE)
SAME_NUMBER(rocblas_datatype_f32_r, ROCBLAS_F32)
SAME_NUMBER(rocblas_datatype_bf16_r, ROCBLAS_BF16)

#elif defined(VENDOR_HIPBLASLT)
#include <hipblaslt/hipblaslt.h>
#define ENTRY(member, name, arguments) SAME_CALL(hipblasLt##name, decltype(lt_api::member))
LT_ENTRIES(ENTRY)
SAME_NUMBER(HIPBLAS_COMPUTE_32F, HIPBLASLT_COMPUTE_F32)
SAME_NUMBER(HIP_R_32F, HIPBLASLT_F32)
SAME_NUMBER(HIP_R_16BF, HIPBLASLT_BF16)
SAME_NUMBER(HIPBLAS_OP_N, HIPBLASLT_PLAIN)
SAME_NUMBER(HIPBLAS_OP_T, HIPBLASLT_TRANSPOSED)
SAME_NUMBER(HIPBLASLT_MATMUL_DESC_TRANSA, HIPBLASLT_TRANSPOSE_A)
SAME_NUMBER(HIPBLASLT_MATMUL_DESC_TRANSB, HIPBLASLT_TRANSPOSE_B)
SAME_NUMBER(HIPBLASLT_MATMUL_DESC_EPILOGUE, HIPBLASLT_EPILOGUE)
SAME_NUMBER(HIPBLASLT_MATMUL_DESC_BIAS_POINTER, HIPBLASLT_BIAS)
SAME_NUMBER(HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, HIPBLASLT_WORKSPACE)
SAME_NUMBER(HIPBLASLT_EPILOGUE_DEFAULT, LT_EPILOGUE_NONE)
SAME_NUMBER(::HIPBLASLT_EPILOGUE_BIAS, LT_EPILOGUE_BIAS)
SAME_CALL(hipblasLtGetVersion, int (*)(void *, int *))
static_assert(sizeof(hipblasLtMatmulAlgo_t) == 24 && sizeof(hipblasLtMatmulHeuristicResult_t) == 56 &&
                  offsetof(hipblasLtMatmulHeuristicResult_t, state) == 32,
              "results have another layout than gpu_lt.c has");
static_assert(sizeof(hipblasLtMatmulHeuristicResult_t) <= LT_RESULT_BYTES, "a result has no room");
static_assert(offsetof(hipblasLtMatmulHeuristicResult_t, algo) == 0, "the algorithm is not at the front");

#elif defined(VENDOR_RSMI)
#include <rocm_smi/rocm_smi.h>
ALIKE(rsmi_error_count_t, rsmi_errors)
static_assert(sizeof(rsmi_error_count_t) <= sizeof(rsmi_errors), "errors have no room");
static_assert(offsetof(rsmi_error_count_t, uncorrectable_err) == offsetof(rsmi_errors, uncorrected),
              "errors");
SAME_NUMBER(RSMI_GPU_BLOCK_UMC, RSMI_UMC)
#define ENTRY(name, required, arguments) SAME_CALL(name, int(*) arguments)
RSMI_ENTRIES(ENTRY)
#ifdef RSMI_NEWER
RSMI_NEWER_ENTRIES(ENTRY)
#endif
SAME_NUMBER(RSMI_INIT_FLAG_ALL_GPUS, RSMI_ALL_GPUS)
SAME_NUMBER(RSMI_TEMP_TYPE_JUNCTION, RSMI_JUNCTION)
SAME_NUMBER(RSMI_TEMP_TYPE_EDGE, RSMI_EDGE)
SAME_NUMBER(RSMI_MEM_TYPE_VRAM, RSMI_VRAM)
SAME_NUMBER(RSMI_TEMP_CURRENT, RSMI_CURRENT)
SAME_NUMBER(RSMI_STATUS_NOT_SUPPORTED, RSMI_NOT_SUPPORTED)
SAME_NUMBER(RSMI_STATUS_FILE_ERROR, RSMI_FILE_ERROR)
SAME_NUMBER(RSMI_STATUS_PERMISSION, RSMI_PERMISSION)
SAME_NUMBER(RSMI_STATUS_NOT_YET_IMPLEMENTED, RSMI_NOT_YET_IMPLEMENTED)
SAME_NUMBER(RSMI_STATUS_NOT_FOUND, RSMI_NOT_FOUND)

#elif defined(VENDOR_NVML)
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
ALIKE(nvmlPciInfo_t, nvml_pci)
ALIKE(nvmlMemory_t, nvml_memory)
ALIKE(nvmlUtilization_t, nvml_utilization)
ALIKE(nvmlProcessInfo_v2_t, nvml_process)
#define ENTRY(name, required, arguments) SAME_CALL(name, int(*) arguments)
NVML_ENTRIES(ENTRY)
SAME_CALL(nvmlErrorString, const char *(*)(int))
static_assert(sizeof(nvmlPciInfo_t) == offsetof(nvml_pci, reserve), "pci");
static_assert(offsetof(nvmlPciInfo_t, busId) == offsetof(nvml_pci, bus_id), "pci");
static_assert(sizeof(nvmlMemory_t) == sizeof(nvml_memory), "memory");
static_assert(offsetof(nvmlMemory_t, total) == offsetof(nvml_memory, total), "memory");
static_assert(offsetof(nvmlMemory_t, free) == offsetof(nvml_memory, free), "memory");
static_assert(offsetof(nvmlMemory_t, used) == offsetof(nvml_memory, used), "memory");
static_assert(sizeof(nvmlUtilization_t) == sizeof(nvml_utilization), "utilization");
static_assert(offsetof(nvmlUtilization_t, gpu) == offsetof(nvml_utilization, gpu), "utilization");
static_assert(sizeof(nvmlProcessInfo_v2_t) == sizeof(nvml_process), "process");
static_assert(offsetof(nvmlProcessInfo_v2_t, pid) == offsetof(nvml_process, pid), "process");
static_assert(offsetof(nvmlProcessInfo_v2_t, usedGpuMemory) == offsetof(nvml_process, used), "process");
SAME_NUMBER(NVML_TEMPERATURE_GPU, NVML_CELSIUS_OF_GPU)
SAME_NUMBER(NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_UNCORRECTED)
SAME_NUMBER(NVML_VOLATILE_ECC, NVML_SINCE_LOADED)
SAME_NUMBER(NVML_CLOCK_SM, NVML_MULTIPROCESSORS)
SAME_NUMBER(nvmlClocksThrottleReasonApplicationsClocksSetting, NVML_APPLICATION_CLOCKS)
SAME_NUMBER(nvmlClocksThrottleReasonSwPowerCap, ::NVML_SW_POWER_CAP)
SAME_NUMBER(nvmlClocksThrottleReasonHwSlowdown, NVML_HW_SLOWDOWN)
SAME_NUMBER(nvmlClocksThrottleReasonSwThermalSlowdown, NVML_SW_THERMAL)
SAME_NUMBER(nvmlClocksThrottleReasonHwThermalSlowdown, NVML_HW_THERMAL)
SAME_NUMBER(nvmlClocksThrottleReasonHwPowerBrakeSlowdown, NVML_HW_POWER_BRAKE)
SAME_NUMBER(NVML_ERROR_UNKNOWN, NVML_UNKNOWN)
SAME_NUMBER(NVML_ERROR_NOT_SUPPORTED, NVML_NOT_SUPPORTED)
SAME_NUMBER(NVML_ERROR_NO_PERMISSION, NVML_NO_PERMISSION)
SAME_NUMBER(NVML_ERROR_NOT_FOUND, NVML_NOT_FOUND)
SAME_NUMBER(NVML_ERROR_INSUFFICIENT_SIZE, NVML_INSUFFICIENT_SIZE)
SAME_NUMBER(NVML_ERROR_GPU_IS_LOST, NVML_GPU_IS_LOST)
#endif
