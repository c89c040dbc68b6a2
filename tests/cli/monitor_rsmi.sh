#!/bin/sh
# The real librocm_smi64 with a simulated /sys, bound over the machine's in a mount namespace: 1 and 4 cards, missing sensors, a Hygon card,
# a display card, a file that blocks, a file with invalid content, no card.
set -eu
print=$MEOPT_BUILD/tests/test_monitor
skip() {
    echo "skipped: $1"
    exit 77
}
unshare -rm true 2>/dev/null || skip "no user and mount namespaces here"
library=
for l in /usr/lib/librocm_smi64.so.1 /usr/lib/*/librocm_smi64.so.1 /opt/rocm/lib/librocm_smi64.so /opt/hyhal/lib/librocm_smi64.so; do
    [ -e "$l" ] && library=$l && break
done
[ -n "$library" ] || skip "no librocm_smi64 here (Debian: librocm-smi64-1)"
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
sys=$dir/sys

# card N VENDOR: as much of a card as the library asks for
card() (
    bus=$(printf %02x $((3 + $1)))
    device=$sys/devices/0000:$bus:00.0
    mkdir -p "$device/hwmon/hwmon$1" "$device/drm/renderD$((128 + $1))" "$device/drm/card$1" "$sys/class/drm" "$sys/class/hwmon"
    ln -s "../../devices/0000:$bus:00.0/drm/card$1" "$sys/class/drm/card$1"
    ln -s ../.. "$device/drm/card$1/device"
    ln -s "../../devices/0000:$bus:00.0/hwmon/hwmon$1" "$sys/class/hwmon/hwmon$1"
    cd "$device"
    echo "$2" >vendor
    echo 0x66a1 >device
    echo 113-D1631400 >vbios_version
    echo 17163091968 >mem_info_vram_total
    echo $((1000000000 * ($1 + 1))) >mem_info_vram_used
    echo $((20 * ($1 + 1))) >gpu_busy_percent
    cd "hwmon/hwmon$1"
    echo amdgpu >name
    echo edge >temp1_label
    echo $((40000 + 1500 * $1)) >temp1_input
    echo junction >temp2_label
    echo $((50000 + 1500 * $1)) >temp2_input
    echo vddgfx >in0_label
    echo $((100500000 + $1 * 1000000)) >power1_average
    node=$sys/class/kfd/kfd/topology/nodes/$(($1 + 1))
    mkdir -p "$node/io_links"
    echo $((1000 + $1)) >"$node/gpu_id"
    echo vega20 >"$node/name"
    printf 'hive_id 0\narray_count 4\nsimd_arrays_per_engine 1\ncu_per_simd_array 16\ndomain 0\nlocation_id %d\n' $((0x$bus << 8)) >"$node/properties"
    echo "$device"
)
fresh() {
    rm -rf "$sys"
    node=$sys/class/kfd/kfd/topology/nodes/0
    mkdir -p "$node/io_links" "$sys/class/kfd/kfd/proc" "$sys/class/drm" "$sys/class/hwmon"
    echo 0 >"$node/gpu_id"
    echo >"$node/name"
    printf 'hive_id 0\narray_count 0\nsimd_arrays_per_engine 0\ncu_per_simd_array 0\ndomain 0\nlocation_id 0\n' >"$node/properties"
}
# look PROVIDER SAMPLES [PERIOD]: what the monitor prints with that /sys
look() {
    # shellcheck disable=SC2016
    MEOPT_RSMI_LIB=$library unshare -rm sh -c 'mount --bind "$1" /sys && mount -t tmpfs none /dev/shm && exec "$2" print "$3" "" "$4" "$5"' - "$sys" "$print" "$1" "$2" "${3:-0.2}" >"$dir/out" 2>"$dir/err" || {
        cat "$dir/out" "$dir/err"
        exit 1
    }
}
expect() {
    grep -qF -- "$1" "$dir/out" && return
    echo "not found: $1, in:"
    cat "$dir/out" "$dir/err"
    exit 1
}

fresh
card 0 0x1002 >/dev/null
for provider in rsmi sysfs auto; do
    look $provider 1
    expect 'card 0 0000:03:00.0 ['
    expect '] used=1000000000 total=17163091968 busy=20 temp=50 power=100.5 process=N/A'
done
grep -q 'provider sysfs' "$dir/out"
echo "1 card: rsmi, sysfs and auto agree"

fresh
first=$(card 0 0x1002)
second=$(card 1 0x1d94)
third=$(card 2 0x1002)
card 3 0x1002 >/dev/null
rm "$second/gpu_busy_percent" "$third/hwmon/hwmon2/power1_average" "$third/hwmon/hwmon2/"temp2_*
mkdir "$sys/class/kfd/kfd/proc/1"
for provider in rsmi sysfs; do
    look $provider 1
    expect 'used=1000000000 total=17163091968 busy=20 temp=50 power=100.5 process=N/A'
    expect 'used=2000000000 total=17163091968 busy=N/A temp=51.5 power=101.5 process=N/A'
    expect 'used=3000000000 total=17163091968 busy=60 temp=43 power=N/A process=N/A'
    expect 'used=4000000000 total=17163091968 busy=80 temp=54.5 power=103.5 process=N/A'
    expect 'card 1 0000:04:00.0'
    expect 'card 3 0000:06:00.0'
done
echo "4 cards, one of Hygon's, with sensors missing: rsmi and sysfs agree"
[ -z "${MEOPT_LONG:-}" ] || for provider in rsmi sysfs; do
    look $provider 40 0.5
    echo "4 cards at 2 Hz, $provider: $(grep '^cost' "$dir/out")"
    # 1 % of a core at 2 Hz
    awk '/^cost/ { exit !($2 < 5) }' "$dir/out"
done

fresh
first=$(card 0 0x1002)
card 1 0x1002 >/dev/null
# hold CONDITION...: whoever opens that file hangs, as soon as the command succeeds
hold() {
    rm -f "$dir/held" "$dir/out"
    (wait_for 60 "$@"; exec "$print" lease "$first/mem_info_vram_used" >"$dir/held") &
    holder=$!
    echo $holder >"$dir/left"
}
hold true
if wait_for 2 [ -s "$dir/held" ]; then
    look rsmi 3
    expect 'card 0 0000:03:00.0'
    expect '] used=N/A total=17163091968 busy=20 temp=50 power=100.5'
    expect '] used=2000000000 total=17163091968 busy=40 temp=51.5 power=101.5'
    grep -q ' 1 s .*card 0$' "$dir/out" || { cat "$dir/out"; exit 1; }
    echo "a call that hangs: its field is N/A, the rest continues"
    kill $holder
    wait $holder 2>/dev/null || true
    for samples in 12 60 300; do # more where the one that holds the file comes late
        hold grep -qs sampled "$dir/out"
        look rsmi $samples
        ! grep -q '(stale)' "$dir/out" || break
        kill $holder
        wait $holder 2>/dev/null || true
    done
    expect '] used=1000000000(stale) total=17163091968 busy=20 temp=50 power=100.5'
    expect '] used=2000000000 total=17163091968 busy=40 temp=51.5 power=101.5'
    echo "a call that hangs later: its field is stale, the rest continues"
else
    echo "a call that hangs: not tried, this file system has no leases"
fi
kill $holder 2>/dev/null || true

fresh
first=$(card 0 0x1002)
echo nonsense >"$first/mem_info_vram_used"
look rsmi 2
expect 'used=N/A total=17163091968 busy=20 temp=50'
echo "garbage in one file: N/A"

fresh
look rsmi 4
expect 'provider rsmi'
grep -q '^card' "$dir/out" && exit 1
echo "no card: none shown"
