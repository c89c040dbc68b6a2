#!/bin/sh
# meopt doctor on simulated machines: a root directory with the files that it reads.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
chmod 755 "$dir"
export MEOPT_HIP_LIBRARY=/nowhere/libamdhip64.so MEOPT_CUDA_LIBRARY=/nowhere/libcuda.so
unset HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL || true
has() { # EXPRESSION of the keys of one of the checks in the JSON
    python3 - "$dir/out" "$1" <<'PY' || fail "no check is so: $1"
import collections, json, sys
assert any(eval(sys.argv[2], {}, collections.defaultdict(str, c)) for c in json.load(open(sys.argv[1]))["checks"])
PY
}

# this machine, everything measured; valid JSON whose counts agree with its lines
"$MEOPT" doctor --json --run-dir "$dir/not/there/yet" >"$dir/out"
for check in version system processor bandwidth gemm memory shm disk locale libraries terminal hardware permissions variables drivers "card libraries"; do
    has "name == '$check'"
done
has 'name == "bandwidth" and triad_gb_per_s'
has 'name == "disk" and write_gb_per_s'
python3 - "$dir/out" <<'PY' || fail "the report does not add up"
import json, sys
r = json.load(open(sys.argv[1]))
for f in ("ok", "warning", "missing"):
    assert r[f] == sum(c["status"] == f for c in r["checks"])
for c in r["checks"]:
    assert set(c) >= {"name", "status", "detail", "hint"} and c["detail"], c
    assert c["status"] == "ok" or c["meaning"], c
assert all(c["gflop_per_s"] > 0 and c["status"] == "ok" for c in r["checks"] if c["name"] == "gemm")
PY
[ ! -d "$dir/not" ] || fail "the disk check leaves a file"

# the module of this program is needed for mpirun, not only the machine's MPI
MEOPT_MPI_MODULE=/nowhere/libmeopt_mpi.so "$MEOPT" doctor --quick --json --run-dir "$dir/not/there/yet" >"$dir/out"
has 'name == "card libraries" and "/nowhere/libmeopt_mpi.so" in detail and status == "missing" and "libopenmpi-dev" in hint'

# a card of Hygon, one of NVIDIA, device files without permission, limits of a control group
root=$dir/root
mkdir -p "$root/sys/bus/pci/devices/0000:03:00.0" "$root/sys/bus/pci/devices/0000:04:00.0" "$root/dev/dri" "$root/proc/self" "$root/sys/fs/cgroup/job" "$root/dev/shm" "$root/etc"
echo 0x1d94 >"$root/sys/bus/pci/devices/0000:03:00.0/vendor"; echo 0x0b4000 >"$root/sys/bus/pci/devices/0000:03:00.0/class"
echo 0x10de >"$root/sys/bus/pci/devices/0000:04:00.0/vendor"; echo 0x030200 >"$root/sys/bus/pci/devices/0000:04:00.0/class"
printf 'MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n' >"$root/proc/meminfo"
echo 0::/job >"$root/proc/self/cgroup"; echo 4294967296 >"$root/sys/fs/cgroup/job/memory.max"; echo '50000 100000' >"$root/sys/fs/cgroup/cpu.max"
printf 'NAME=x\nPRETTY_NAME="A \033[31mred Linux"\n' >"$root/etc/os-release"
: >"$root/dev/kfd"; : >"$root/dev/dri/renderD128"
chmod 000 "$root/dev/kfd"
doctor() { "$MEOPT" doctor --quick --root "$root" --run-dir "$dir" --json >"$dir/out"; }
OMP_NUM_THREADS=2 CUDA_VISIBLE_DEVICES='' HIP_VISIBLE_DEVICES=0 ROCR_VISIBLE_DEVICES=1 doctor
has 'name == "hardware" and cards == 1 and "Hygon" in detail'
has 'name == "hardware" and cards == 1 and "NVIDIA" in detail'
has 'name == "permissions" and status == "missing" and "/dev/nvidiactl" in detail'
has 'name == "permissions" and status == "ok" and "/dev/dri/renderD128" in detail'
has 'name == "memory" and "8.0 GiB" in detail and "1.0 GiB" in detail'
has 'name == "memory" and limit_bytes and "4.0 GiB" in detail'
has 'name == "processor" and status == "warning" and " 0.5 " in detail'
has 'name == "variables" and status == "warning" and "CUDA_VISIBLE_DEVICES= " in detail'
has 'name == "variables" and status == "warning" and "HIP_VISIBLE_DEVICES=0" in detail and "ROCR_VISIBLE_DEVICES=1" in detail'
HIP_VISIBLE_DEVICES=-1 ROCR_VISIBLE_DEVICES='' doctor
has 'name == "variables" and status == "warning" and "HIP_VISIBLE_DEVICES=-1 " in detail and "unset" in hint'
has 'name == "variables" and status == "warning" and "ROCR_VISIBLE_DEVICES= " in detail and "unset" in hint'
doctor
has 'name == "drivers" and status == "warning" and driver == "hip" and "MEOPT_HIP_LIBRARY=/nowhere/libamdhip64.so" in detail'
"$MEOPT" doctor --quick --root "$root" --run-dir "$dir" >"$dir/text"
grep -q "$(printf '\033')" "$dir/text" && fail "control characters reach the terminal"
grep -q '031\|x1b' "$dir/text" || fail "the system's name is not printed"
if [ "$(id -u)" != 0 ]; then
    has 'name == "permissions" and status == "warning" and "/dev/kfd" in detail'
elif command -v setpriv >/dev/null && chmod 755 "$dir" "$root" && setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$MEOPT"; then
    setpriv --reuid=65534 --regid=65534 --clear-groups "$MEOPT" doctor --quick --root "$root" --run-dir "$dir" --json >"$dir/out"
    has 'name == "permissions" and status == "warning" and "/dev/kfd" in detail and "usermod -aG" in hint'
    has 'name == "disk" and status == "missing" and "--run-dir" in hint'
fi
rm "$root/dev/kfd"
doctor
has 'name == "permissions" and status == "missing" and "/dev/kfd" in detail and "modprobe amdgpu" in hint'

for option in $("$MEOPT" doctor --help | grep -o -- '--[a-z-]*' | sort -u); do
    case $option in --help | --json) continue ;; esac
    grep -q -- "Fl ${option#-}" "$MEOPT_SOURCE/man/meopt-doctor.1" || fail "$option is not documented"
done
