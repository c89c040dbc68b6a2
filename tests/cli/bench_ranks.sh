# meopt bench ranks: local ranks, ranks of mpirun, ranks on cards; the printed options are accepted by 'meopt plan'; what cannot be measured
# is refused.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
right() { # RANKS BACKEND DEVICE
    python3 - "$@" <<'END' || fail "the JSON of $*"
import json, sys
j = json.load(open("out"))
assert [j["ranks"], j["backend"], j["device"]] == [int(sys.argv[1]), sys.argv[2], sys.argv[3]], j
assert j["hosts"] == 1 and j["network_gb_s"] is None and j["n"] == 3 and j["bytes"] == 1 << 20
assert all(j[k] > 0 for k in ("bandwidth_gb_s", "message_gb_s", "latency_us")), j
END
}
bench() { "$MEOPT" bench ranks --mib 1 --repeat 3 --json "$@" >out 2>err; }
refused() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" bench "$@" && [ -s err ] || fail "exit code $code of $*"
}
bench --workers 3 || fail "exit"
right 3 local cpu
"$MEOPT" bench ranks --mib 1 --repeat 3 >out 2>err || fail "exit"
options=$(sed -n 's/^use: meopt plan CONFIG //p' out)
"$MEOPT" plan "$MEOPT_SOURCE/configs/digits.yaml" --step-ms 100 $options >out 2>err || fail "plan does not take: $options"
refused 2 --workers 1
refused 2 --workers 2000

if command -v mpirun >/dev/null && [ -f "$(dirname "$MEOPT")/libmeopt_mpi.so" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    mpirun --oversubscribe -n 2 "$MEOPT" bench ranks --mib 1 --repeat 3 --json >out 2>err || fail "mpirun"
    right 2 mpi cpu
    exits 2 mpirun --oversubscribe -n 2 "$MEOPT" bench ranks --workers 2 >out 2>err || fail "--workers below mpirun: $code"
fi

[ -f "$MEOPT_BUILD/tests/libfake_amdhip64.so" ] || exit 0
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
export FAKE_CARDS=2
refused 7 --device hip
export MEOPT_RCCL_LIBRARY="$fakes/libfake_rccl.so"
bench --device hip || fail "exit with cards"
right 2 nccl hip:0
refused 6 --device hip --workers 3
