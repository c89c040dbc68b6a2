# Names and values that would steer a terminal, or are no text: shown escaped in every output, JSON stays JSON,
# and no run is made under such a name.
set -u
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
bad=0
fail() {
    echo "FAILED: $*"
    bad=1
}
python3 - <<'END'
import os, json
for i, name in enumerate((b"plain", b"esc\x1b[31m", b"c1\xc2\x9b31m", b"bidi\xe2\x80\xae", b"no\xff\xfeutf8")):
    d = b"runs/" + name
    os.makedirs(d)
    open(d + b"/config.yaml", "w").write("train: {seed: %d}\n" % i)
    json.dump({"state": "\x1b]0;P\a\u009b", "host": "h\u009b\u202e", "step": i, "pid": 7, "exit_code": 1, "message": "a\u2066b\u001b[0m"},
              open(d + b"/state.json", "w"), ensure_ascii=False)
    open(d + b"/meta.json", "w").write('{"version": 1, "device": "d\u009b\u202e"}')
    open(d + b"/metrics.jsonl", "w").write('{"step":1,"epoch":0,"loss":0.5,"cosine":0.1,"lr":1e-3,"grad_norm":1,"images_per_s":1,"step_ms":1,"data_wait_ms":0}\n')
END
cat >check.py <<'END'
import re, sys
for name in sys.argv[1:]:
    try:
        text = open(name, "rb").read().decode().replace("\r\n", "\n")  # CSV
    except UnicodeDecodeError as e:
        sys.exit("%s is not UTF-8: %s" % (name, e))
    found = re.search("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]", text)
    if found:
        sys.exit("%s: %r in %r" % (name, found[0], text[max(0, found.start() - 30):found.end()]))
END
# look NAME command...
look() {
    what=$1
    shift
    "$@" >out 2>err </dev/null
    python3 check.py out err || fail "$what"
}
look runs "$MEOPT" runs
look "runs --json" "$MEOPT" runs --json
python3 - <<'END' || fail "runs --json: rows"
import json
rows = json.load(open("out"))
assert len(rows) == 5
for r in rows:
    assert r["name"] and r["directory"] and "state" in r and r["pid"] == 7 and r["host"], r
assert [r["name"] for r in rows if "utf8" in r["name"]] == ["no\\xff\\xfeutf8"]
END
for option in "" --json --csv --md "--html page.html"; do
    look "compare $option" "$MEOPT" compare $option runs/*
done
python3 check.py page.html || fail "compare --html: the page"
for run in runs/*; do
    look stop "$MEOPT" stop "$run"
    look checkpoint "$MEOPT" checkpoint "$run"
    look export "$MEOPT" export "$run" x.safetensors
    look attach "$MEOPT" attach "$run"
    look "config get" "$MEOPT" config get "$run/config.yaml" train.seed --json
done

# a run's name is one plain component
tar -xzf "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz"
tower='{init: random, width: 64, depth: 2, heads: 2, hidden: 256, out: 32, patch: 14}'
cat >tiny.yaml <<END
model: {family: eva}
model_t: $tower
model_s: $tower
data: {root: COCO2014, image_size: 28, workers: 1}
train: {steps: 1, batch_size: 4}
END
esc=$(printf '\033') byte=$(printf '\377') line='
'
for name in ../up a/b .. . .hidden "x${esc}[31m" "x${line}y" "x$byte" "$(printf 'x\302\233')"; do
    "$MEOPT" train tiny.yaml --run-dir made --name "$name" >out 2>err
    got=$?
    python3 check.py err || fail "--name: stderr"
    test $got = 2 || fail "--name '$name': exit $got"
    test ! -e made || fail "--name '$name': made $(ls -A made)"
done
test ! -e up || fail "--name ../up left --run-dir"
# a path that is not UTF-8 cannot be written in config.yaml: nothing is begun
mv COCO2014 "COCO$byte"
"$MEOPT" train tiny.yaml "data.root=COCO$byte" --run-dir made --name plain >out 2>err
got=$?
test $got = 7 || fail "data.root that is not UTF-8: exit $got"
grep -q 'tiny.yaml:[0-9]*:[0-9]*: .*0xff' err || fail "data.root that is not UTF-8: the byte is not named"
test ! -e made/plain || fail "data.root that is not UTF-8: made a run"
exit $bad
