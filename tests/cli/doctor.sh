#!/bin/sh
# meopt doctor against made-up machines: a root directory with the files that it reads.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
chmod 755 "$dir"
export MEOPT_HIP_LIBRARY=/nowhere/libamdhip64.so MEOPT_CUDA_LIBRARY=/nowhere/libcuda.so
unset HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL || true
says() { grep -q -- "$1" "$dir/out" || fail "does not say '$1'"; }

# this machine, everything measured; valid JSON whose counts agree with its lines
"$MEOPT" doctor --json --run-dir "$dir/not/there/yet" >"$dir/out"
for check in version system processor bandwidth gemm memory shm disk locale libraries terminal hardware permissions variables drivers "card libraries"; do
    says "\"name\": \"$check\""
done
says '"triad_gb_per_s"'
says '"write_gb_per_s"'
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
doctor() { "$MEOPT" doctor --quick --root "$root" --run-dir "$dir" >"$dir/out"; }
OMP_NUM_THREADS=2 CUDA_VISIBLE_DEVICES='' HIP_VISIBLE_DEVICES=0 ROCR_VISIBLE_DEVICES=1 doctor
says '1 card of Hygon'
says '1 card of NVIDIA'
says 'no /dev/nvidiactl'
says 'renderD128 can be read'
says '8.0 GiB, 1.0 GiB available'
says 'allows 4.0 GiB'
says 'allows 0.5 processors'
says 'CUDA_VISIBLE_DEVICES= hides every card'
says 'they compose'
HIP_VISIBLE_DEVICES=-1 ROCR_VISIBLE_DEVICES='' doctor
says 'HIP_VISIBLE_DEVICES=-1 hides every card'
says 'ROCR_VISIBLE_DEVICES= hides every card'
says 'unset the variable'
doctor
says 'MEOPT_HIP_LIBRARY=/nowhere/libamdhip64.so does not load'
grep -q "$(printf '\033')" "$dir/out" && fail "control characters reach the terminal"
if [ "$(id -u)" != 0 ]; then
    says 'this user has no access to it'
elif command -v setpriv >/dev/null && chmod 755 "$dir" "$root" && setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$MEOPT"; then
    setpriv --reuid=65534 --regid=65534 --clear-groups "$MEOPT" doctor --quick --root "$root" --run-dir "$dir" >"$dir/out"
    says 'this user has no access to it'
    says 'usermod -aG'
    says 'runs cannot be written'
fi
rm "$root/dev/kfd"
doctor
says 'modprobe amdgpu'

for option in $("$MEOPT" doctor --help | grep -o -- '--[a-z-]*' | sort -u); do
    case $option in --help | --json) continue ;; esac
    grep -q -- "Fl ${option#-}" "$MEOPT_SOURCE/man/meopt-doctor.1" || fail "$option is not documented"
done
