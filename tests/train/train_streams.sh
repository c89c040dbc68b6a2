#!/bin/sh
# What is missing, lost or cut off under a process: descriptors 0 to 2, the reader of stdout, a mapped file. The run's own files hold
# nothing else, the error names the file, and the exit code says it.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
logs='*.err'
export OMP_NUM_THREADS=1 ASAN_OPTIONS="verify_asan_link_order=0:handle_sigbus=0:${ASAN_OPTIONS:-}"
set -- train configs/quickstart_dinov2.yaml --run-dir runs train.steps=6 train.checkpoint_steps=3 train.checkpoint_keep=2
whole() { # NAME CODE GOT
    test "$3" = "$2" || fail "$1: exit $3, expected $2"
    grep -q '"state": "done"' "runs/$1/state.json" || fail "$1: not done"
    test "$(grep -c '^{"step":.*}$' "runs/$1/metrics.jsonl")" = 6 || fail "$1: metrics.jsonl"
    test "$(wc -l <"runs/$1/metrics.jsonl")" = 6 || fail "$1: metrics.jsonl has other lines"
    ! grep -qv '^{.*}$' "runs/$1/events.jsonl" || fail "$1: events.jsonl has other lines"
}
got=0
"$MEOPT" "$@" --name none <&- >&- 2>&- || got=$?
whole none 5 $got
got=0
"$MEOPT" "$@" --name out_err >&- 2>&- || got=$?
whole out_err 5 $got
got=0
"$MEOPT" "$@" --name in_err <&- 2>&- >out || got=$?
whole in_err 0 $got
got=0
"$MEOPT" "$@" --name err 2>&- >out || got=$?
whole err 0 $got
got=0
"$MEOPT" "$@" --name full >/dev/full 2>full.err || got=$?
whole full 5 $got
grep -q '^meopt: ' full.err || fail "full: silent"
got=0
{ "$MEOPT" "$@" --name pipe 2>pipe.err || echo $? >pipe.code; } | true
whole pipe 5 "$(cat pipe.code)"
test "$("$MEOPT" --version <&- 2>&-)" = "$("$MEOPT" --version)" || fail "--version without 0 and 2"

# under a limit of address space there is a result or exit code 12, and never a crash; a higher limit than one with a result has one
if ! ldd "$MEOPT" | grep -q libasan; then
    enough=
    for limit in 45000 52500 57500 60000 62500 67500 85000 110000 150000 165000 175000 185000; do
        got=0
        (ulimit -v $limit && exec "$MEOPT" "$@" --name limit$limit >out 2>limit.err) || got=$?
        case $got in
        0) enough=$limit ;;
        12) [ -z "$enough" ] || fail "ulimit -v $enough is enough, and $limit is not: $(cat limit.err)" ;;
        127) continue ;; # the program itself does not load
        *) fail "ulimit -v $limit: exit $got" ;;
        esac
        [ $got = 0 ] || grep -q '^meopt: .*\(memory\|ulimit -v\)' limit.err || fail "ulimit -v $limit: no cause is reported: $(cat limit.err)"
        [ $got = 0 ] || [ "$(cat "runs/limit$limit/metrics.jsonl" 2>/dev/null | wc -l)" -lt "$(wc -l <runs/full/metrics.jsonl)" ] ||
            fail "ulimit -v $limit: all steps were made, and none is saved: $(cat limit.err)"
    done
fi

# preloaded by its name: a path in LD_PRELOAD ends at a space
export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" FAULT_UNDER="$(pwd -P)"
disk="env LD_PRELOAD=libfault.so"
cp -r runs/full runs/cut
got=0
$disk FAULT_CUT=step-00000006/model.safetensors "$MEOPT" export runs/cut --format safetensors --out cut.safetensors 2>export.err || got=$?
test $got = 1 || fail "export of a file that is cut off: exit $got"
grep -q '^meopt: .*step-00000006/model.safetensors: .*\<0\>' export.err || fail "export of a file that is cut off: no name"
test ! -e cut.safetensors || fail "export of a file that is cut off: half of it"
rm -r runs/cut
cp -r runs/full runs/cut
sed -i 's/steps: 6$/steps: 9/' runs/cut/config.yaml
got=0
$disk FAULT_CUT=step-00000006/model.safetensors "$MEOPT" train --resume runs/cut >out 2>resume.err || got=$?
test $got = 1 || fail "resume from a file that is cut off: exit $got"
grep -q '^meopt: .*model.safetensors: ' resume.err || fail "resume from a file that is cut off: no name"
grep -q '"message": ".*truncated' runs/cut/state.json || fail "resume from a file that is cut off: state.json"
echo "6 ways to lose a stream, 12 limits of memory, 2 files cut off: reported, and nothing else in the files of the run"
