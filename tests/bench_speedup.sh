# meopt bench speedup compares one core with all, with spread, and says that there is no card where there is none.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*" >&2; cat "$dir/log" >&2; exit 1; }
"$MEOPT" bench speedup -n 1000000 --repeat 4 --json >"$dir/json" 2>"$dir/log" || fail "exit"
python3 - "$dir/json" <<'END' || fail "the JSON"
import json, math, sys
j = json.load(open(sys.argv[1]))
r = j["results"]
assert [x["on"] for x in r] == ["one core", "all cores"] * 2 and r[0]["threads"] == 1 and r[1]["threads"] == j["threads"]
for one, every in (r[:2], r[2:]):
    assert one["speedup"] == 1 and one["n"] == 4 and one["step_ms"] > 0
    assert math.isclose(every["speedup"], one["step_ms"] / every["step_ms"], rel_tol=1e-6)
    sd = every["speedup"] * math.hypot(one["step_ms_sd"] / one["step_ms"], every["step_ms_sd"] / every["step_ms"])
    assert math.isclose(every["speedup_sd"], sd, rel_tol=1e-5)
END
grep -q '"card": null' "$dir/json" && { grep -q 'no card' "$dir/log" || fail "no word of the missing card"; }
exit 0
