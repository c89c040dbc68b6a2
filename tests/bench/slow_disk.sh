#!/bin/sh
# Runs a command while the disk of a directory is limited to MB/s for reads and for writes. Uses io.max or blkio.throttle of a control
# group, which also limit O_DIRECT. Requires root.
#
#     sh tests/bench/slow_disk.sh 200 /scratch build/meopt bench train configs/dinov2.yaml --random-weights --batch 8 --no-peak \
#         train.scratch_dir=/scratch model_t.place=streamed model_s.place=streamed optim.offload=nvme
#
# Exits with 77 where nothing here can throttle that disk.
set -eu
cannot() {
    echo "slow_disk: $*" >&2
    exit 77
}
[ $# -ge 3 ] || {
    echo "usage: slow_disk.sh MB/s DIRECTORY COMMAND..." >&2
    exit 2
}
bytes=$(($1 * 1000000)) directory=$2
shift 2
number=$(stat -c %d "$directory")
disk=$((number >> 8 & 0xfff)):$((number & 0xff | number >> 12 & 0xfff00))
[ -e "/sys/dev/block/$disk" ] || cannot "$directory lies on no disk ($disk)"
if [ -e "/sys/dev/block/$disk/partition" ]; then disk=$(cat "/sys/dev/block/$disk/../dev"); fi

group=
if [ -w /sys/fs/cgroup/blkio/cgroup.procs ]; then
    group=/sys/fs/cgroup/blkio/slow_disk.$$
    mkdir "$group" || cannot "no control group may be made"
    for way in read write; do echo "$disk $bytes" >"$group/blkio.throttle.${way}_bps_device"; done
elif grep -qw io /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null; then
    group=/sys/fs/cgroup/slow_disk.$$
    mkdir "$group" || cannot "no control group may be made"
    echo "$disk rbps=$bytes wbps=$bytes" >"$group/io.max"
else cannot "no control group throttles disks here"; fi
trap 'rmdir "$group"' EXIT
code=0
sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$group" "$@" || code=$?
exit "$code"
