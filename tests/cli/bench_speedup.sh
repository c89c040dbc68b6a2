# meopt bench speedup compares one core with all and with a card, with spread; "card" is null without one.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
# the ratios follow from the times; places as named
right() { # PLACE...
    python3 - "$dir/json" "$@" <<'END' || fail "the JSON"
import json, math, sys
j = json.load(open(sys.argv[1]))
r, places = j["results"], sys.argv[2:]
assert [x["on"] for x in r] == places * 2 and r[0]["threads"] == 1 and r[1]["threads"] == j["threads"]
assert (j["card"] is not None) == ("card" in places)
for rows in r[:len(places)], r[len(places):]:
    one = rows[0]
    assert one["speedup"] == 1 and one["n"] == 4 and one["step_ms"] > 0
    for x in rows[1:]:
        assert x["step_ms"] > 0 and (x["threads"] is None) == (x["on"] == "card")
        assert math.isclose(x["speedup"], one["step_ms"] / x["step_ms"], rel_tol=1e-6)
        sd = x["speedup"] * math.hypot(one["step_ms_sd"] / one["step_ms"], x["step_ms_sd"] / x["step_ms"])
        assert math.isclose(x["speedup_sd"], sd, rel_tol=1e-5)
END
}
run() { "$MEOPT" bench speedup -n 1000000 --repeat 4 --json "$@" >"$dir/json" 2>"$dir/log"; }
run --device cpu || fail "exit"
right "one core" "all cores"

[ -f "$MEOPT_BUILD/tests/libfake_amdhip64.so" ] || exit 0
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
run || fail "exit with a card"
right "one core" "all cores" card
grep -q '"card": "hip:0 Emulated card' "$dir/json" || fail "the card is not named"
run --device cuda:0 || fail "exit with the card named"
right "one core" "all cores" card
grep -q '"card": "cuda:0 Emulated card' "$dir/json" || fail "the card that was asked for"
exits 6 run --device hip:4 && grep -q 'hip:4' "$dir/log" || fail "a card that is not there: exit code $code"
code=0
FAKE_MEMORY=20000000 run --device hip:0 || code=$?
[ "$code" = 11 ] || fail "out of memory: exit code $code"
