#!/bin/sh
# Each start prints one table, on stderr and in meta.json, of the devices, libraries and kernels in use. It has the same rows on every kind
# of device, and a warning with the cost of each slower method.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
rows="device driver kernels products attention graphs collectives telemetry"
start() { # NAME TYPE VARIABLE=VALUE...
    name=$1 type=$2
    shift 2
    env OMP_NUM_THREADS=1 "$@" "$MEOPT" train configs/quickstart_dinov2.yaml "device.type=$type" "train.steps=${steps:-1}" train.batch_size=1 --run-dir . --name "$name" >out 2>log || fail "$name: $?"
    python3 - "$name" "$rows" <<'PY' || fail "$name: meta.json"
import json, sys
start = json.load(open(sys.argv[1] + "/meta.json"))["start"]
assert [r["name"] for r in start] == sys.argv[2].split(), start
log = open("log").read()
for r in start:
    assert set(r) == {"name", "is", "cost", "mend"} and r["is"], r
    assert "%-28s %s\n" % (r["name"], r["is"]) in log, r
    assert (r["cost"] is None) == ("warning: %s: %s" % (r["name"], r["is"]) not in log), r
PY
}
says() { grep -q -- "$1" log || fail "does not say '$1'"; }
never() { ! grep -q -- "$1" log || fail "says '$1'"; }

if grep -q '^flags.* fma .* avx2 ' /proc/cpuinfo; then
    start cpu cpu MEOPT_CPU_ISA=avx2
    never warning
fi
start plain cpu MEOPT_CPU_ISA=plain
says '^driver  *none\>'
says '^telemetry  *proc'
says '^warning: kernels: plain, .*\<AVX2\>.*\<MEOPT_CPU_ISA\>'
for set in vnni amx; do # amx: where there are tiles it is had
    code=0
    MEOPT_CPU_ISA=$set "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=1 --run-dir . --name refused >out 2>log || code=$?
    [ $set = amx ] && [ $code = 0 ] && break
    [ $code = 2 ] && [ ! -e refused ] || fail "MEOPT_CPU_ISA=$set: exit code $code"
    says "^meopt: MEOPT_CPU_ISA=$set\\>"
    says '^   .*\<plain\>' # of the names that it may have
    MEOPT_CPU_ISA=$set "$MEOPT" doctor --quick >out 2>log || true
    grep -A2 '^warning  processor' out | grep -q "MEOPT_CPU_ISA=$set\\>" || fail "doctor does not report"
done

start own hip MEOPT_ROCBLAS_LIBRARY=/nowhere/librocblas.so
says '^device  *hip:0 Emulated card.*8.0 GiB.*PCI 0000:03:00.0'
says '^driver  *.*libfake_amdhip64.so, HIP 5.7.31921'
says '^kernels  *.*meopt-gfx90a.co, wave 64'
says '^warning: products: .*/nowhere/librocblas.so.*\<rocBLAS\>'
says '^graphs  *on'
says '^warning: telemetry: proc\>'

mkdir -p tree/sys/class/drm/card0/device
echo 0x1d94 >tree/sys/class/drm/card0/device/vendor
echo 1 >tree/sys/class/drm/card0/device/mem_info_vram_used
steps=3 start roc hip MEOPT_ROCBLAS_LIBRARY="$fakes/libfake_rocblas.so" MEOPT_MONITOR_ROOT="$work/tree"
says '^products  *rocBLAS (.*libfake_rocblas.so).*hipBLASLt.* HIP 6'
says '^warning: products: .*\<bias\>'
says '^warning: hip:0 .*\<graphs\>' # this library waits in a recording
says '^telemetry  *sysfs'
never 'warning: telemetry'
start lt hip MEOPT_HIPBLASLT_LIBRARY="$fakes/libfake_hipblaslt.so" FAKE_LT_WRONG=1 FAKE_VERSION=60032830 FAKE_GRAPH=small
says '^warning: products: .*libfake_hipblaslt.so'
says '^warning: graphs: off: .*(1)'
start old hip MEOPT_HIPBLASLT_LIBRARY="$fakes/libfake_hipblaslt.so" FAKE_GRAPH=none MEOPT_GRAPHS=none
says 'hipBLASLt.* HIP 6 .* HIP 5.7.31921'
says '^warning: graphs: off: MEOPT_GRAPHS=none'
start lane hip FAKE_LANE=7
says '^attention  .*\<mfma\>'
says '^warning: attention: .*\<mfma\>'
start cuda cuda MEOPT_CUBLASLT_LIBRARY="$fakes/libfake_cublaslt.so" FAKE_VERSION=12040
says '^driver  *.*libfake_cuda.so, CUDA 12.4'
says '^products  *cuBLASLt (.*libfake_cublaslt.so).*MEOPT_CUBLAS_LIBRARY=none'
says '^attention  .*(mma)'
never 'warning: \(products\|attention\|graphs: off\)'
