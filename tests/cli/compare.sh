# meopt compare on the command line: every form gives the same numbers, thresholds decide the exit code, what is no run is
# refused, and a long run is read in time. MEOPT_LONG=1: runs of 2,000,000 steps (else 200,000, in a tenth of the time).
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
export LC_ALL=C.UTF-8

# name, steps, factor of time and loss, peak
cat >"$dir/make.py" <<'END'
import json, math, os, sys
root, name, steps, time, loss, peak = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6])
d = os.path.join(root, name)
os.makedirs(d, exist_ok=True)
json.dump({"version": 1, "device": "CPU <&\"'|>", "images": 160, "total_steps": steps, "student_parameters": 1000, "teacher_parameters": 2000, "family": "eva",
           "code_version": "0.1.0", "program_crc32c": "11111111", "data_crc32c": "22222222", "seed": 1, "batch_images": 8, "ranks": 1, "epoch_steps": 20,
           "optimizer_bytes_per_param": 14 * peak / 1e9, "checkpoint_bytes": 4000}, open(d + "/meta.json", "w"))
json.dump({"state": "done", "step": steps, "pid": 1, "host": "h", "exit_code": 0}, open(d + "/state.json", "w"))
open(d + "/config.yaml", "w").write("train:\n  seed: 1\noptim:\n  use_meopt: %s\n" % ("true" if loss != 1 else "false"))
card = ',"cards":[{"rank":0,"device":"CPU","mem_bytes":1,"peak_bytes":%d,"classes":{"weights":%d,"optimizer":%d}}]' % (peak, peak // 3, peak - peak // 3)
with open(d + "/metrics.jsonl", "w") as f:
    for i in range(1, steps + 1):
        f.write('{"step":%d,"epoch":%d,"loss":%.9g,"cosine":%.9g,"lr":%.9g,"grad_norm":%.9g,"images_per_s":%.9g,"step_ms":%.9g,"data_wait_ms":%.9g%s}\n' % (
            i, (i - 1) // 20, loss / (1 + 0.01 * i), 1 - 1 / i, 1e-3 / i, 2.0 / i, 80 / time, 100 * time, 0.1, card if i % 10 == 1 else ""))
END
make() { python3 "$dir/make.py" "$dir" "$@"; }
make without 60 1 1 1000000000
make with 60 0.5 1.01 400000000
c() { "$MEOPT" compare "$@"; }

c "$dir/without" "$dir/with" --html "$dir/page.html" --svg "$dir/svg" >"$dir/text" 2>"$dir/log" || fail "$(cat "$dir/log")"
c "$dir/without" "$dir/with" --json >"$dir/json"
c "$dir/without" "$dir/with" --csv >"$dir/csv"
c "$dir/without" "$dir/with" --md >"$dir/md"
sed -n 1,2p "$dir/text" | tr '\n' ' ' | grep -q '^with .*without: 60.0 % .*381.5 MiB .*953.7.* 50.0 % .*+1 % ' ||
    fail "the first sentence: $(head -3 "$dir/text")"
[ ! -s "$dir/log" ] || fail "warnings about two good runs: $(cat "$dir/log")"
python3 - "$dir" <<'END' || fail "the forms disagree"
import csv, html.parser, json, math, re, sys, xml.dom.minidom
d = sys.argv[1]
j = json.load(open(d + "/json"))
assert j["comparable"] and not j["not_comparable"] and not j["warnings"]
facts = {f["key"]: f for f in j["facts"]}
# what the files hold, computed here
assert facts["peak_bytes"]["values"] == [1e9, 4e8] and abs(facts["peak_bytes"]["ratio"][1] - 0.4) < 1e-12
assert abs(facts["peak_drop_percent"]["values"][1] - 60) < 1e-9
assert abs(facts["time_s"]["values"][0] - 6) < 1e-9 and abs(facts["time_s"]["values"][1] - 3) < 1e-9
assert abs(facts["final_loss"]["values"][1] - float("%.9g" % (1.01 / 1.6))) < 1e-15
gap = max((float("%.9g" % (1.01 / (1 + 0.01 * i))) - float("%.9g" % (1 / (1 + 0.01 * i))) for i in range(1, 61)), key=abs)
assert abs(facts["max_loss_gap"]["values"][1] - gap) < 1e-14
assert [c["key"] for c in j["config"]] == ["optim.use_meopt"]
rows = {r[1]: r[2:] for r in csv.reader(open(d + "/csv", newline="")) if r[0] == "facts"}
assert list(rows) == list(facts)
class Page(html.parser.HTMLParser):
    rows, key, cell = {}, None, None
    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag == "tr": self.key = a.get("data-key")
        if tag == "td" and self.key: self.rows.setdefault(self.key, []).append([a.get("data-value"), ""])
        if tag == "span" and a.get("class") == "v": self.cell = True
    def handle_endtag(self, tag):
        if tag == "span": self.cell = None
    def handle_data(self, data):
        if self.cell and self.key: self.rows[self.key][-1][1] += data
page = Page()
source = open(d + "/page.html").read()
page.feed(source)
assert "CPU <&" not in source and not re.search(r"(src|href)=.?http|url\(", source)
text = open(d + "/text").read()
md = open(d + "/md").read().replace("\\", "")
# bars first, and the whole in a sentence before them; the drop stands once, as the change beside the peak
ids = ["memory", "iteration-loss", "loss-difference", "epoch-loss", "throughput"]
at = [source.index(x) for x in ['class="lead"'] + ['id="%s"' % i for i in ids] + ["<h2>Facts"]]
assert at == sorted(at), at
assert text.index("WWWW") < text.index("\nFacts") and "data-key=\"peak_drop_percent" not in source and facts["peak_drop_percent"]["label"] not in text + md
for key, f in facts.items():
    if key == "peak_drop_percent": continue
    cells = page.rows[key][1:]
    line = next(l for l in text.split("\n") if l.strip().startswith(f["label"] + "  "))
    for k, v in enumerate(f["values"]):
        if isinstance(v, float) or isinstance(v, int):
            assert math.isclose(float(rows[key][k]), v, rel_tol=1e-11, abs_tol=1e-300), (key, rows[key][k], v)
            assert math.isclose(float(cells[k][0]), v, rel_tol=1e-11, abs_tol=1e-300), (key, cells[k], v)
        elif v is not None:
            assert rows[key][k] == v == cells[k][1], (key, v)
        assert cells[k][1] in line and cells[k][1] in md, (key, cells[k][1], line)
for name in ids:
    xml.dom.minidom.parse(d + "/svg/" + name + ".svg")
END
# the difference of the curves: the second run's loss is 1.01 times the first's, so it falls with it and is never negative
grep -q '^ *0.010[0-9]* ┤' "$dir/text" || fail "no difference plot"
# a small negative one, whose numbers are the longest, does not move the axis
make nearly 60 0.5 0.9999987 400000000
c "$dir/without" "$dir/nearly" >"$dir/negative" 2>&1 || fail "$(cat "$dir/negative")"
grep -q '^ *-[0-9.]*e-0[67] ' "$dir/negative" || fail "no small negative difference"
LC_ALL=C.UTF-8 python3 -c 'import re, sys
at = {re.search("[┤│]", l[:20]).start() for l in open(sys.argv[1], encoding="utf-8") if re.search("[┤│]", l[:20])}
assert len(at) == 1, at' "$dir/negative" || fail "the axis of a plot is not straight"

# a paper: tables in two languages that only LaTeX's own characters are left in, figures as SVG
cp -r "$dir/with" "$dir/with_50%_&_#{教师}"
c "$dir/without" "$dir/with_50%_&_#{教师}" --paper "$dir/paper" >/dev/null || fail "--paper"
python3 - "$dir" <<'END' || fail "the paper"
import os, sys
d = sys.argv[1] + "/paper/"
names = ["memory", "iteration-loss", "loss-difference", "epoch-loss", "throughput"]
assert set(os.listdir(d)) == {n + ".svg" for n in names} | {"table.tex", "table_zh.tex"}, os.listdir(d)
wide = "U+6559 U+5E08" # pdfLaTeX has no Chinese of its own
for l in ("", "_zh"):
    table = open(d + "table" + l + ".tex").read()
    assert "with\\_50\\%%\\_\\&\\_\\#\\{%s\\}" % ("教师" if l else wide) in table and "\\toprule" in table and "\\bottomrule" in table and "381.5 MiB ($-$60.0 \\%)" in table, table
    rows = [r for r in table.split("\n") if r.endswith("\\\\")]
    assert all(r.replace("\\&", "").count("&") == 2 for r in rows) and len(rows) > 8, rows
    assert table.count("{") == table.count("}")
END

grep -qF '⠤' "$dir/text" || fail "no braille curve"
LC_ALL=C "$MEOPT" compare "$dir/without" "$dir/with" >"$dir/ascii"
LC_ALL=C grep -q "$(printf '[\200-\377\033]')" "$dir/ascii" && fail "ASCII output has other bytes"

# thresholds
c "$dir/without" "$dir/with" --threshold 'peak_bytes:-20%' --threshold 'final_loss:+1.1%' >/dev/null || fail "thresholds that hold"
code=0
c "$dir/without" "$dir/with" --threshold 'peak_bytes:-20%' --threshold 'final_loss:+0.5%' --json >"$dir/json" 2>"$dir/log" || code=$?
[ $code = 8 ] || fail "a threshold that is exceeded: exit $code"
grep -q 'final_loss' "$dir/log" && python3 -c 'import json,sys; t=json.load(open(sys.argv[1]))["thresholds"]; assert [x["passed"] for x in t]==[True,False]' "$dir/json" || fail "results of the thresholds"

# published figures, repeats, reference
c "$dir/without" --published eva_clip >"$dir/out" 2>/dev/null
# only rows in which the original has a figure, and its hours; what it did not publish is not shown as nought
c "$dir/without" --published eva_clip --all >"$dir/all" 2>/dev/null
c "$dir/without" --published eva_clip --json >"$dir/json" 2>/dev/null
python3 - "$dir" <<'END' || fail "rows next to published figures: $(cat "$dir/out")"
import json, sys
d = sys.argv[1] + "/"
facts = {f["key"]: f for f in json.load(open(d + "json"))["facts"]}
def rows(name): # {key: its line} of the table of facts
    lines = open(d + name).read().split("\nFacts", 1)[1].split("\n\n")[0].split("\n")
    return {k: l for k, f in facts.items() for l in lines if l.strip().startswith(f["label"].strip() + "  ")}
shown, every = rows("out"), rows("all")
published = {k for k, f in facts.items() if any(v is not None for v in f["values"][1:])} - {"peak_drop_percent"}
assert set(shown) == published and len(shown) == 8, (shown, published)
assert set(every) > set(shown) and "final_loss" in every, every
assert "1.83 h" in shown["time_s"] and "44175.0 MiB" in shown["peak_bytes"] and "30949.0 MiB" in shown["peak_bytes"] and "-29.9 %" in shown["peak_bytes"]
assert not [k for k in facts if k.startswith("card_")], facts
END
for figures in "eva_clip 30949.0 6588 0.000153" "eva_clip_k100 38365.0 17568 0.000145" "open_clip 23183.0 5112 0.1338" "open_clip_k100 29818.0 11376 0.1328" \
    "dinov2 15273.0 10044 1.218" "dinov2_k100 19060.0 7920 1.325"; do
    set -- $figures # the original's table: memory, hours, loss of 4 cards with 32 images each
    c "$dir/without" --published "$1" --json >"$dir/published.json" 2>/dev/null
    python3 - "$dir/published.json" "$@" <<'END' || fail "published figures of $1"
import json, sys
facts = {f["key"]: f["values"] for f in json.load(open(sys.argv[1]))["facts"]}
mib, seconds, loss = map(float, sys.argv[3:])
last = [facts[k][2] for k in ("peak_bytes", "time_s", "converged_loss", "ranks", "batch_images")]
assert last == [mib * 1048576, seconds, loss, 4, 32], last
END
done
c "$dir/without" --published gpt_1_3b_grid --json 2>/dev/null | python3 -c 'import json, sys
peaks = {f["key"]: f["values"] for f in json.load(sys.stdin)["facts"]}["peak_bytes"][1:]
assert [p / 1048576 for p in peaks] == [25061, 11300, 5673, 12375, 8141, 6211], peaks' || fail "the published grid"
c "$dir/without" "$dir/with" --reference with --json | python3 -c 'import json,sys; assert json.load(sys.stdin)["columns"][1]["reference"]' || fail reference
make with-2 60 0.6 1.01 400000000
c "$dir/without,$dir/without" "$dir/with,$dir/with-2" >"$dir/out"
c "$dir/without,$dir/without" "$dir/with,$dir/with-2" --json | python3 -c 'import json, sys
facts = {f["key"]: f for f in json.load(sys.stdin)["facts"]}
assert facts["peak_bytes"]["p"][1] is None and facts["final_loss"]["p"][1] is not None' || fail "a p of counted bytes"
grep -q ' 6.00 s .* 3.30 ± 0.42 s .*-45.0 ± 7.1 %' "$dir/out" || fail "no spread"

# refusals
refuse() {
    expected=$1
    shift
    exits "$expected" c "$@" >"$dir/out" 2>"$dir/log" || fail "$*: exit $code, expected $expected"
    [ -s "$dir/log" ] || fail "$*: no message"
}
mkdir "$dir/foreign"
refuse 2 "$dir/foreign"
refuse 2 "$dir/nowhere"
refuse 2
refuse 2 "$dir/with" --json --csv
refuse 2 "$dir/with" "$dir/without" --threshold 'nothing:1%'
refuse 2 "$dir/with" --published nothing
cp -r "$dir/with" "$dir/newer"
echo '{"version":2}' >"$dir/newer/meta.json"
refuse 3 "$dir/without" "$dir/newer"
echo '{"version":"1"}' >"$dir/newer/meta.json" # no number: unknown, not absent
refuse 3 "$dir/without" "$dir/newer"
printf '{"step":61,"loss' >>"$dir/with/metrics.jsonl"
c "$dir/without" "$dir/with" --json 2>/dev/null | python3 -c 'import json, sys
(warning,) = json.load(sys.stdin)["warnings"]
assert "with" in warning and "metrics.jsonl" in warning' || fail "a torn line is not reported"
exits 1 c "$dir/without" "$dir/with" --html /nowhere/page.html >/dev/null 2>"$dir/log" || fail "a page that cannot be written: exit $code"

# long runs
steps=200000
[ -z "${MEOPT_LONG:-}" ] || steps=2000000
make long-1 $steps 1 1 1000000000 &
make long-2 $steps 0.5 1.01 400000000
wait $!
python3 - "$MEOPT" "$dir" $steps <<'END' || fail "a long run takes too long, or too much"
import json, resource, subprocess, sys, time
best = 1e9
for i in range(3):
    begin, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([sys.argv[1], "compare", sys.argv[2] + "/long-1", sys.argv[2] + "/long-2", "--json"], stdout=subprocess.PIPE, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall, cpu = time.time() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    best = min(best, wall, cpu)  # on a busy machine the processor time of both threads is the fairer clock
assert {f["key"]: f for f in json.loads(out)["facts"]}["steps"]["values"] == [int(sys.argv[3])] * 2
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print("two runs of %s steps: %.2f s, %.2f s of processor time, %.0f MiB" % (sys.argv[3], wall, cpu, peak))
sanitized = "libasan" in subprocess.run(["ldd", sys.argv[1]], stdout=subprocess.PIPE, universal_newlines=True).stdout
assert sanitized or peak < 200
assert sanitized or best < 2
END
