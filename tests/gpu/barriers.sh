# Long form: each barrier of the kernels is needed. Without it (EMULATE_WITHOUT of tests/gpu/emulate.cc) the
# tests of the operations or of the optimizer end with a race that names the kernel (tests/gpu/fake_races.h).
set -eu
[ "${MEOPT_LONG-}" ] || { echo "skipped: long form, MEOPT_LONG=1" && exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
[ -f "$MEOPT_BUILD/tests/libfake_traffic.so" ] || { echo "skipped: this build has no emulated cards" && exit 77; }
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
export MEOPT_HIP_LIBRARY="$MEOPT_BUILD/tests/libfake_traffic.so" MEOPT_TEST_DEVICE=hip:0 FAKE_RACES=1
export MEOPT_ROCBLAS_LIBRARY=none MEOPT_HIPBLASLT_LIBRARY=none
ulimit -c 0
count=0 needless=
for place in $(cd "$MEOPT_SOURCE/kernels/gpu" && grep -n 'barrier();' -- *.hip *.h | cut -d: -f1,2); do
    case $place in
    optim*) set -- optim_card ;;
    attention*) set -- ops '*attention*' ;;
    gemm*) set -- ops '*gemm*' ;;
    *) set -- ops ;;
    esac
    program=$MEOPT_BUILD/tests/test_$1
    shift
    EMULATE_WITHOUT=$place "$program" "$@" >"$work/out" 2>"$work/err" || :
    case $place in # optim_total: of exact clipping
    optim*) grep -q '^race: ' "$work/err" || EMULATE_WITHOUT=$place FAKE_CARDS=2 MEOPT_RCCL_LIBRARY="$MEOPT_BUILD/tests/libfake_rccl.so" \
        "$MEOPT_BUILD/tests/test_driver_calls" >"$work/out" 2>"$work/err" || : ;;
    esac
    grep -q '^race: ' "$work/err" || needless="$needless $place"
    count=$((count + 1))
    echo "$place:$(sed -n 's/.*\(, part .*\) on stream.*/\1/p' "$work/err" | head -n 1)"
done
[ $count -ge 30 ] || fail "only $count barriers were tried"
# Kept without a test that needs them: block_max gives its array back free, though no caller uses it again at once; optim_total
# starts the next row's table after its sum, and no test has two rows of several chunks in it.
for known in vendor.h:248 optim.hip:432; do needless=$(echo "$needless" | sed "s/ $known//"); done
[ -z "$needless" ] || fail "no race without the barrier at:$needless"
echo "$count barriers, each one needed but two that are named here"
