# Long form: each barrier of the kernels is needed. Without it (EMULATE_WITHOUT of tests/gpu/emulate.cc) the
# tests of the operations or of the optimizer end with a race that names the kernel (tests/gpu/fake_races.h).
# BARRIERS=FILE keeps what was found: an interrupted run resumes there, unless the kernels have changed. A barrier
# that no test needs has a comment that begins with "untested: ". With arguments, only the barriers of those files
# of kernels/gpu are removed. Most take a second or two, those of optim_total and optim_trust minutes.
set -eu
[ "${MEOPT_LONG-}" ] || { echo "skipped: long form, MEOPT_LONG=1" && exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
[ -f "$MEOPT_BUILD/tests/libfake_traffic.so" ] || { echo "skipped: this build has no emulated cards" && exit 77; }
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
export MEOPT_HIP_LIBRARY="$MEOPT_BUILD/tests/libfake_traffic.so" MEOPT_TEST_DEVICE=hip:0 FAKE_RACES=1
export MEOPT_ROCBLAS_LIBRARY=none MEOPT_HIPBLASLT_LIBRARY=none
ulimit -c 0
cd "$MEOPT_SOURCE/kernels/gpu"
found=${BARRIERS:-$work/found}
sources=$(cat -- *.hip *.h | sha256sum | cut -c1-16)
[ -f "$found" ] && [ "$(head -n 1 "$found")" = "$sources" ] || echo "$sources" >"$found"

# PROGRAM [FILTER]: whether it ends with a race without the barrier
races() {
    program=$MEOPT_BUILD/tests/test_$1
    shift
    EMULATE_WITHOUT=$place "$program" "$@" >"$work/out" 2>"$work/err" || :
    grep -q '^race: ' "$work/err"
}
clipping() { FAKE_CARDS=2 MEOPT_RCCL_LIBRARY="$MEOPT_BUILD/tests/libfake_rccl.so" races driver_calls; }
count=0 needless=
# shellcheck disable=SC2046,SC2086 # words are files
for place in $(grep -Hn 'barrier();' -- ${*:-$(ls -- *.hip *.h)} | cut -d: -f1,2); do
    line=${place#*:} file=${place%:*}
    count=$((count + 1))
    grep -q "^$place " "$found" && continue
    # the function around it, whose operation has its name or its beginning
    function=$(head -n "$line" "$file" | grep -E '^(KERNEL|template|DEVICE).*[(]' | tail -n 1 | grep -oE '[a-z_0-9]+[(,]' | head -n 1 | tr -d '(,')
    case $file in
    optim*) clipping || races optim_card ;;
    attention*) races ops '*attention*' ;;
    gemm*) races ops '*gemm*' ;;
    *) races ops "*${function%_rows}*" || races ops ;;
    esac && result=needed || result=needless
    ! sed -n "${line}p" "$file" | grep -q '/\* untested: ' || result="known $result"
    echo "$place $result in $function$(sed -n 's/.*\(, part .*\) on stream.*/\1/p' "$work/err" | head -n 1)" | tee -a "$found"
done
[ $count -ge 30 ] || [ $# -gt 0 ] || fail "only $count barriers were tried"
needless=$(grep ' needless' "$found" | grep -v ' known needless' | cut -d' ' -f1 | tr '\n' ' ') || :
[ -z "$needless" ] || fail "no race without the barrier at: $needless"
needed=$(grep ' known needed' "$found" | cut -d' ' -f1 | tr '\n' ' ') || :
[ -z "$needed" ] || fail "a test needs the barrier, whose comment says that none does: $needed"
echo "$count barriers, each one needed but $(grep -c ' known needless' "$found") that say so"
