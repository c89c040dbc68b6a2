#!/bin/sh
# Every command that computes waits with the short spin count unless the user has said how to wait: OpenMP's own listing of what it
# was reported says so.
set -u
unset GOMP_SPINCOUNT OMP_WAIT_POLICY
. "$MEOPT_SOURCE/tests/lib.sh"
failed=0
# The count that the last process began with.
count() { OMP_DISPLAY_ENV=verbose "$@" 2>&1 | sed -n "s/.*GOMP_SPINCOUNT = '\(.*\)'.*/\1/p" | tail -1; }
[ -n "$(count "$MEOPT" version)" ] || { echo "skipped: not libgomp"; exit 77; }
for command in worker embed compare plan doctor "bench optim" "bench speedup" "bench train"; do
    # shellcheck disable=SC2086
    [ "$(count "$MEOPT" $command --help)" = 1000 ] || { echo "meopt $command spins for long"; failed=1; }
    # shellcheck disable=SC2086
    [ "$(GOMP_SPINCOUNT=77 count "$MEOPT" $command --help)" = 77 ] || { echo "meopt $command: GOMP_SPINCOUNT is not obeyed"; failed=1; }
    # shellcheck disable=SC2086
    [ "$(OMP_WAIT_POLICY=passive count "$MEOPT" $command --help)" = 0 ] || { echo "meopt $command: OMP_WAIT_POLICY is not obeyed"; failed=1; }
done
for archive in COCO2014 ModelWeight; do mkdir -p "$work/sample" && tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C "$work/sample"; done
mkdir "$work/configs" && cp "$MEOPT_SOURCE/configs/quickstart.yaml" "$work/configs/"
# train and its worker: two processes, the worker's listing is the last
[ "$(count "$MEOPT" train "$work/configs/quickstart.yaml" train.steps=1 train.batch_size=2 --run-dir "$work" --name run)" = 1000 ] ||
    { echo "the worker of train spins for long"; failed=1; }
exit "$failed"
