#!/bin/sh
# meopt doctor has cards compute, and finds what computes wrongly: each fault is planted in a stand-in of a driver or a library that says
# that all is well. And it finds what a site has not set up, from a made-up /sys, /proc, /dev and /opt.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
unset HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL HSA_FORCE_FINE_GRAIN_PCIE ROCM_PATH || true
fail() { echo "FAILED: $1" >&2; cut -c 1-200 "$work/out" "$work/err" >&2; exit 1; }
says() { grep -q -- "$1" out || fail "does not say '$1'"; }
never() { ! grep -q -- "$1" out || fail "says '$1'"; }
experiment="configs/quickstart.yaml train.batch_size=2"
device() { # CODE DEVICE NAME=VALUE...
    want=$1 spec=$2
    shift 2
    exits "$want" env "$@" "$MEOPT" doctor $experiment --device "$spec" >out 2>err || fail "$*: exit $code, expected $want"
}

# what is right is said to be right, at the experiment's shapes
device 0 hip:0 MEOPT_ROCBLAS_LIBRARY="$fakes/libfake_rocblas.so" MEOPT_HIPBLASLT_LIBRARY="$fakes/libfake_hipblaslt.so" FAKE_VERSION=60032830
for row in 'products .*teacher qkv, [0-9]* x [0-9]* x [0-9]* BF16 by hipBLASLt: ' 'products .*student mlp out, dW, .* by rocBLAS: ' 'products .*student qkv, dx.* by MEOpt: ' \
    'attention .*student, 2 x [0-9]* tokens' "optimizer .*a step of .* is bit-identical" 'graphs .* operations in .* ms as a graph' 'copies .*pinned copies' 'bandwidth .*triad' \
    'driver: .*HIP 6.0.32830' 'attention: .*(mfma)'; do says "$row"; done
never 'missing  '
device 0 cuda:0 MEOPT_CUBLASLT_LIBRARY="$fakes/libfake_cublaslt.so"
says 'products .* by cuBLASLt'
never 'missing  '

# what is wrong is found: the rows, the exit code, the next thing to do
device 1 hip:0 FAKE_WRONG=gemm_bf16
says 'missing  products .* by MEOpt: .*WRONG.* 1$'
grep -q '^meopt: hip:0 .*[1-9][0-9]* of [0-9]*' err || fail "no error"
device 1 hip:0 FAKE_WRONG=attention_forward
says 'missing  attention .*outputs.*WRONG'
device 1 hip:0 FAKE_WRONG=attention_backward_kv
says 'missing  attention .*gradients.*WRONG'
never 'outputs.*WRONG'
device 1 hip:0 FAKE_WRONG=optim_step
says 'missing  optimizer '
device 1 hip:0 FAKE_WRONG=residual_forward
says 'missing  bandwidth '
columns=$(sed -n 's/.*products .*student mlp in, [0-9]* x \([0-9]*\) x .*/\1/p' out | head -n 1)
device 1 hip:0 MEOPT_ROCBLAS_LIBRARY="$fakes/libfake_rocblas.so" FAKE_BLAS_WRONG="$columns"
says 'missing  products .*student mlp in.* by rocBLAS: .*WRONG'
says '-> .*MEOPT_ROCBLAS_LIBRARY=none'
device 1 hip:0 MEOPT_HIPBLASLT_LIBRARY="$fakes/libfake_hipblaslt.so" FAKE_VERSION=60032830 FAKE_LT_WRONG=large
says 'missing  products .* by hipBLASLt: .*WRONG.* 1$'
device 0 hip:0 FAKE_GRAPH=small
says 'warning  graphs .*off: .*(1)'
memory() { env FAKE_MEMORY=1073741824 "$@" "$MEOPT" doctor --quick --device hip:0 --root "$work/held" >out 2>err || fail "$*: exit $?"; }
memory FAKE_OTHERS=900000000
says 'warning  card .*0.2 of 1.0 GiB'
never 'kernel lists'
# who holds a card's memory is the kernel's to know
kfd=$work/held/sys/class/kfd/kfd
mkdir -p "$kfd/topology/nodes/0" "$kfd/topology/nodes/1" "$kfd/proc/4242"
echo 0 >"$kfd/topology/nodes/0/gpu_id"
echo 777 >"$kfd/topology/nodes/1/gpu_id"
printf 'cpu_cores_count 0\nlocation_id 768\ndomain 0\n' >"$kfd/topology/nodes/1/properties"
echo 4096 >"$kfd/proc/4242/vram_777"
memory FAKE_OTHERS=900000000
says 'warning  card .*0.2 of 1.0 GiB'
says '^  .*kernel lists' # no process that holds the rest
echo 800000000 >"$kfd/proc/4242/vram_777"
memory A=1
says 'warning  card .*process 4242 uses 0.7 of 1.0 GiB'
never '0.2 of 1.0 GiB'
"$MEOPT" doctor $experiment --device hip:0 --json >out
python3 - <<'PY' || fail "the report"
import json
checks = json.load(open("out"))["checks"]
names = {c["name"] for c in checks}
assert names >= {"card", "bandwidth", "products", "attention", "optimizer", "graphs", "copies"}, names
for c in checks:
    assert set(c) >= {"name", "status", "detail", "hint", "meaning", "device"} and c["device"] == "hip:0", c
product = [c for c in checks if c["name"] == "products"]
assert len(product) == 4 + 12 and all(c["first_ms"] > 0 and c["ms"] > 0 and c["tflop_per_s"] > 0 for c in product)
PY

# what is sent has the figures, and no directory, host or user
"$MEOPT" doctor $experiment --device hip:0 --run-dir "$work" --share sent.json >out 2>err
[ ! -s out ] && python3 - "$work" "$fakes" <<'PY' || fail "what is sent"
import json, socket, sys
text = open("sent.json").read()
names = {c["name"] for c in json.loads(text)["checks"]}
assert names >= {"card", "products", "attention", "optimizer", "copies"}, names
for private in sys.argv[1:] + [h for h in [socket.gethostname()] if len(h) > 7]:
    assert private not in text, private
assert "libfake_amdhip64.so" in text and "meopt-gfx90a.co" in text
PY
"$MEOPT" doctor --quick --run-dir "$work/runs" --share all.json >out 2>err
! grep -q -e "$work" -e "$fakes" all.json || fail "a directory is sent: $(grep -e "$work" -e "$fakes" all.json)"

# a site: a DCU with its driver and toolkit
root=$work/site
mkdir -p "$root/sys/bus/pci/devices/0000:03:00.0" "$root/sys/bus/pci/devices/0000:04:00.0" "$root/sys/module/hycu" "$root/opt/dtk/.info" "$root/opt/hyhal" "$root/dev/dri" \
    "$root/proc/sys/kernel" "$root/proc/self" "$root/proc/1" "$root/sys/class/iommu/ivhd0" "$root/dev/shm" "$root/etc"
for card in 03 04; do
    echo 0x1d94 >"$root/sys/bus/pci/devices/0000:$card:00.0/vendor"
    echo 0x6210 >"$root/sys/bus/pci/devices/0000:$card:00.0/device"
    echo 0x0b4000 >"$root/sys/bus/pci/devices/0000:$card:00.0/class"
done
: >"$root/dev/kfd"
echo 6.3.8-V1.2 >"$root/sys/module/hycu/version"
echo 25.04.1 >"$root/opt/dtk/.info/rocm_version"
echo 'MemTotal: 8388608 kB' >"$root/proc/meminfo"
echo 0 >"$root/proc/sys/kernel/numa_balancing"
echo 'quiet iommu=pt' >"$root/proc/cmdline"
export MEOPT_HIP_LIBRARY=/nowhere/libamdhip64.so MEOPT_CUDA_LIBRARY=/nowhere/libcuda.so
site() { env "$@" "$MEOPT" doctor --quick --root "$root" --run-dir "$work" >out 2>err || fail "doctor ends with $?"; }
site HSA_FORCE_FINE_GRAIN_PCIE=1
says 'ok       hardware .*2 cards of Hygon.*K100 AI'
says 'ok       toolkit .*driver hycu 6.3.8-V1.2 with DTK 25.04.1'
says 'ok       settings'
echo 26.04 >"$root/opt/dtk/.info/rocm_version"
site A=1
says 'warning  toolkit .*driver hycu 6.3.8-V1.2 with DTK 26.04'
says '-> install DTK 25.04\>.*6.3.30\>'
says 'warning  settings .*HSA_FORCE_FINE_GRAIN_PCIE'
for card in 03 04; do echo 0x6430 >"$root/sys/bus/pci/devices/0000:$card:00.0/device"; done
echo 25.04 >"$root/opt/dtk/.info/rocm_version"
site A=1
says 'hardware .*BW1100'
says 'warning  toolkit .*driver hycu 6.3.8-V1.2 with DTK 25.04' # right for all cards before it
says '-> install driver 6.3.30\>.*DTK'
for card in 03 04; do echo 0x6210 >"$root/sys/bus/pci/devices/0000:$card:00.0/device"; done
echo 23.10 >"$root/opt/dtk/.info/rocm_version"; echo 5.16.29 >"$root/sys/module/hycu/version"
site A=1
says 'warning  toolkit .*DTK 23.10' # right for a K100, not for a K100 AI
echo 1 >"$root/proc/sys/kernel/numa_balancing"
echo quiet >"$root/proc/cmdline"
# what the kernel does with cards counts, whatever it was booted with
for card in 03 04; do
    mkdir -p "$root/sys/kernel/iommu_groups/$card"
    echo identity >"$root/sys/kernel/iommu_groups/$card/type"
    ln -s "../../../../kernel/iommu_groups/$card" "$root/sys/bus/pci/devices/0000:$card:00.0/iommu_group"
done
site A=1
never 'settings .*IOMMU translates'
echo DMA-FQ >"$root/sys/kernel/iommu_groups/04/type"
echo 'quiet iommu=pt' >"$root/proc/cmdline"
site A=1
says 'warning  settings .*the IOMMU translates .*(DMA-FQ)'
rm "$root"/sys/bus/pci/devices/*/iommu_group
echo quiet >"$root/proc/cmdline"
rm -r "$root/opt/dtk" "$root/opt/hyhal"
site CUDA_VISIBLE_DEVICES=
says '-> sudo sysctl kernel.numa_balancing=0'
says '-> .*\<iommu=pt\>'
says 'warning  toolkit .*no DTK in /opt/dtk'
says 'warning  toolkit .*no /opt/hyhal'
says 'warning  variables .*CUDA_VISIBLE_DEVICES= '
rm -r "$root/sys/module/hycu" "$root/dev/kfd"
mkdir -p "$root/opt/dtk/.info"
echo 25.04 >"$root/opt/dtk/.info/version"
site A=1
says 'missing  toolkit .*DTK 25.04.*no Hygon driver is loaded' # meopt-devices(7)
: >"$root/.dockerenv"
site A=1
says 'missing  permissions .*no /dev/kfd in this container'
says '-> .*--device=/dev/kfd --device=/dev/dri --group-add video -v /opt/hyhal:/opt/hyhal:ro'

# the state of a card: what its telemetry reads is shown, what it cannot read is unknown, and a fault has its remedy
mkdir -p "$work/log/dev"
export MEOPT_CUDA_LIBRARY="$fakes/libfake_cuda.so" MEOPT_NVML_LIB="$fakes/libfake_smi.so"
state() { # FAKE_SMI NAME=VALUE...: the state of cuda:0, whose address is that of the telemetry's second card
    smi=$1
    shift
    env FAKE_CARDS=2 FAKE_BUS=194 FAKE_SMI="$smi" "$@" "$MEOPT" doctor --quick --device cuda:0 --root "$work/log" --json >out 2>err || fail "$smi: exit $?"
    python3 - "$smi $*" <<'PY' >rows || fail "$smi"
import json
for c in json.load(open("out"))["checks"]:
    if c["name"] == "state" or "process 88" in (c["detail"] or ""):
        print(c["status"], " ".join("%s=%s" % (k, c[k]) for k in sorted(c) if k not in ("name", "status", "detail", "device", "meaning")))
PY
}
row() { grep -q -- "$1" rows || { cat rows >&2; fail "no row '$1'"; }; }
state "" CUDA_VISIBLE_DEVICES=1 FAKE_BUS=193
row '^ok clock_max_mhz=1980.0 clock_mhz=1980.0 ecc=1.0 ecc_uncorrected=0.0 hint=None index=1.0 mig=0.0 power_cap_default_w=700.0 power_cap_w=700.0$'
if grep -q '^warning' rows; then fail "warnings: $(cat rows)"; fi
state "value=1.6.3 value=1.11.500000 value=1.8.72"
row '^warning ecc_uncorrected=3.0 hint=.*nvidia-smi'
row '^warning hint=sudo nvidia-smi -i 1 -pl 700 power_cap_w=500.0'
row '^warning .*throttle=heat'
row '^warning .*throttle=hardware'
row '^warning hint=.*CUDA_DEVICE_ORDER=PCI_BUS_ID index=1.0'
state "holds=7000000000"
row '^warning hint=.*device.cards'
state "status=1.6.999 status=1.9.3 status=1.11.15"
row '^warning .*ecc=None ecc_uncorrected=None .*power_cap_w=None'
state "value=1.13.1 instances=1"
row '^ok hint=None instance_bytes=10000000000.0'
state "value=1.13.1 instances=2"
row '^warning hint=CUDA_VISIBLE_DEVICES=MIG.* instance_bytes=None'
state "" MEOPT_NVML_LIB=/nowhere/libnvidia-ml.so.1
row '^warning hint='
printf '%s\n' '6,1,2,-;NVRM: Xid (PCI:0000:c2:00): 31, pid=1' '6,1,2,-;NVRM: Xid (PCI:0000:c2:00): 79, pid=2' \
    '6,1,2,-;NVRM: Xid (PCI:0000:c1:00): 64' >"$work/log/dev/kmsg"
state ""
row '^warning .*xid=79.0'
