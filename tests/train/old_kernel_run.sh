#!/bin/sh
# Training, ranks, a checkpoint, and an export that replaces an existing one, on a kernel without system calls newer than Linux 3.10 (CentOS
# 7).
set -eu
old=$MEOPT_BUILD/tests/test_old_kernel
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
exits 77 "$old" true && { echo "no seccomp filter here"; exit 77; }
on_it() { "$old" "$MEOPT" "$@" >"$work/log" 2>&1 || fail "meopt $*"; }
on_it train "$work/configs/quickstart.yaml" device.type=cpu train.steps=2 train.batch_size=4 --run-dir "$work" --name old
on_it train "$work/configs/quickstart.yaml" device.type=cpu train.steps=2 train.batch_size=2 --workers 2 --run-dir "$work" --name two
on_it runs --run-dir "$work"
for _ in first second; do on_it export "$work/old" --format pt --out "$work/student.pt"; done
[ -s "$work/student.pt" ] || fail "nothing was exported"
