#!/bin/sh
# MEOpt calls drivers, products and telemetry as their headers say: types of arguments and results, numbers, layouts. Against every header of
# CUDA, HIP, cuBLAS(Lt), rocBLAS, hipBLASLt, rocm_smi and NVML of this machine (MEOPT_VENDOR_HEADERS: directories of more, between colons).
# RCCL and NCCL: nccl_api.sh.
set -eu
command -v c++ >/dev/null || { echo "no c++ here"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
places="${MEOPT_VENDOR_HEADERS:+$MEOPT_VENDOR_HEADERS:}/usr/include:/usr/local/include:/usr/local/cuda/include:/opt/rocm/include:/opt/dtk/include:/opt/dtk/hip/include"
check() { # LIBRARY PLACE [OURS]
    c++ -std=c++17 -fsyntax-only -w -I "${3:-$MEOPT_SOURCE}" -I "$MEOPT_SOURCE" -I "$2" -D "VENDOR_$1" -D __HIP_PLATFORM_AMD__ ${newer:+-D "$newer"} \
        "$MEOPT_SOURCE/tests/gpu/vendor_api.cc" 2>"$work/log"
}
checked=0
# LIBRARY HEADER OUR-HEADER CALL FROM TO: with another type in our declaration of CALL the check must name it
against() {
    library=$1 header=$2 ours=$3 call=$4 from=$5 to=$6 found=
    IFS=:
    for place in $places; do
        unset IFS
        [ -f "$place/$header" ] || continue
        real=$(readlink -f "$place/$header")
        case " $found " in *" $real "*) continue ;; esac
        newer=
        if [ "$library" = RSMI ] && grep -q rsmi_dev_current_socket_power_get "$place/$header"; then newer=RSMI_NEWER; fi
        check "$library" "$place" || fail "$place/$header: $(grep error: "$work/log" | head -5)"
        found="$found $real"
        rm -rf "$work/ours"
        mkdir -p "$work/ours/$(dirname "$ours")"
        sed "s/$from/$to/" "$MEOPT_SOURCE/$ours" >"$work/ours/$ours"
        ! cmp -s "$work/ours/$ours" "$MEOPT_SOURCE/$ours" || fail "$ours has no $from"
        ! check "$library" "$place" "$work/ours" || fail "another type in $call is not seen"
        grep -q "$call" "$work/log" || fail "$call is not named: $(head -3 "$work/log")"
        echo "$library: $place/$header"
        checked=$((checked + 1))
    done
    unset IFS
    [ -n "$found" ] || echo "$library: skipped, no $header here"
}
against CUDA cuda.h core/device/driver.h cuMemsetD8Async 'unsigned char byte' 'unsigned byte'
against HIP hip/hip_runtime_api.h core/device/driver.h hipMalloc '(void \*\*p, size_t bytes)' '(void **p, int bytes)'
against CUBLAS cublas_v2.h core/device/blas_api.h cublasSetStream_v2 '(set_stream, cublasSetStream_v2, (void \*handle' '(set_stream, cublasSetStream_v2, (int handle'
against CUBLASLT cublasLt.h core/device/blas_api.h cublasLtMatrixLayoutCreate 'uint64_t columns' 'int columns'
against ROCBLAS rocblas/rocblas.h core/device/blas_api.h rocblas_gemm_ex 'int32_t solution' 'int64_t solution'
against HIPBLASLT hipblaslt/hipblaslt.h core/device/blas_api.h hipblasLtMatrixLayoutCreate 'uint64_t columns' 'int columns'
against RSMI rocm_smi/rocm_smi.h core/monitor/rsmi_api.h rsmi_dev_busy_percent_get 'rsmi_dev_busy_percent_get, false, (uint32_t, uint32_t' \
    'rsmi_dev_busy_percent_get, false, (uint32_t, uint64_t'
against NVML nvml.h core/monitor/nvml_api.h nvmlDeviceGetPowerUsage 'nvmlDeviceGetPowerUsage, false, (void \*, unsigned' 'nvmlDeviceGetPowerUsage, false, (void *, unsigned long'
[ "$checked" -gt 0 ] || { echo "no vendor's header is here"; exit 77; }
