#!/bin/sh
# Kills one rank, or every process, while ranks read the checkpoint on resume. The killed rank is reported, and the checkpoint does not
# change. The next resume, on any number of ranks, is bit-identical to an uninterrupted run. MEOPT_LONG=1: at every ninth read.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
[ -e "$MEOPT_BUILD/tests/libfault.so" ] || { echo "no libfault.so"; exit 77; }
mkdir sample configs
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" configs/
export OMP_NUM_THREADS=1
train() { # STEPS NAME MORE...
    steps=$1 name=$2
    shift 2
    "$MEOPT" train configs/quickstart_dinov2.yaml device.type=cpu train.global_batch=8 train.micro_batch=2 dist.shard=optimizer train.steps="$steps" \
        --workers 3 --no-dashboard --run-dir runs --name "$name" "$@" >log 2>&1
}
sums() { (cd "$1/ckpt/step-00000001" && sha256sum ./*) }
train 2 whole || fail "the run that is left alone"
exits 10 train 2 half --stop-after 1 || fail "exit $code of a run that is stopped"
sums runs/half >before
killed() { # K EVER RANKS: the k-th read in ckpt/ (EVER: each from there on) ends the process that makes it; then RANKS continue
    rm -rf runs/hurt
    cp -r runs/half runs/hurt
    head -c 65536 /dev/zero >counters
    code=0
    LD_LIBRARY_PATH="$MEOPT_BUILD/tests${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" LD_PRELOAD=libfault.so FAULT_SHARED="$work/counters" \
        FAULT_UNDER="$work/runs/hurt/ckpt" FAULT_CALL=read FAULT_K="$1" FAULT_KILL=1 FAULT_EVER="$2" \
        "$MEOPT" train --resume runs/hurt --workers 3 --no-dashboard >log 2>&1 || code=$?
    [ $code != 0 ] || return 0
    if [ "$2" ]; then # the supervisor, too, when it looks for what is there
        [ $code = 137 ] || fail "all killed from read $1 on: exit $code, expected 137"
    elif [ $code = 137 ]; then # the supervisor, which reads first: the ranks that it has started train on
        ! grep ' signal 9' log || fail "killed at read $1: the supervisor does not end with 14"
        wait_for 60 flock -n runs/hurt/.lock true || fail "killed at read $1: the ranks do not end"
    else
        [ $code = 14 ] || fail "killed at read $1: exit $code, expected 14"
        grep -q '^meopt: rank [0-2] (host .*, pid [0-9]*) .* signal 9\>' log || fail "killed at read $1: no rank is named"
    fi
    if [ "$2" ] || [ $code = 14 ]; then
        sums runs/hurt >after
        cmp before after || fail "killed at read $1: another checkpoint"
    fi
    "$MEOPT" train --resume runs/hurt --workers "$3" --no-dashboard >log 2>&1 || fail "killed at read $1: it does not continue"
    cmp runs/whole/ckpt/step-00000002/model.safetensors runs/hurt/ckpt/step-00000002/model.safetensors || fail "killed at read $1: other weights"
}
killed 14 '' 3
[ $code = 14 ] || fail "no rank was killed"
killed 20 1 4 # whoever reads
[ $code = 137 ] || fail "not all were killed"
[ "${MEOPT_LONG:-}" = 1 ] || exit 0
k=1
until [ $code = 0 ]; do
    killed $k '' $((k % 4 + 1))
    k=$((k + 9))
done
echo "killed at reads 1 to $((k - 18))"
