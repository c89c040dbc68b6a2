#!/bin/sh
# A function of a header has a caller in another file of the source, or its own file calls it and a test does. Else it is static, or dead.
set -eu
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
cd "${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}"
exec python3 - <<'END'
import glob, re, sys

COUNTERS = ("dp_gathered_bytes", "weight_stream_moved_bytes")  # with which tests compare a plan
DECLARED = re.compile(r"^(?!static|typedef|return|#)\w[\w *]*?[ *](\w+)\((?!\*)[^;{}]*\)[^;{}]*;", re.M)


def read(path):
    text = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', " ", open(path, errors="replace").read(), flags=re.S)
    words = {}
    for w in re.findall(r"\w+", text): words[w] = words.get(w, 0) + 1
    return text, words


files = {p: read(p) for top in ("core", "cli", "fetch", "kernels", "tests") for e in "c h hip cc".split() for p in glob.glob("%s/**/*.%s" % (top, e), recursive=True)}
declared = [(h, name) for h in sorted(files) if h.endswith(".h") and not h.startswith("tests/") and h != "core/meopt.h" for name in DECLARED.findall(files[h][0])]
bad = 0
for header, name in declared:
    users = {p: words[name] for p, (_, words) in files.items() if name in words and (p != header or words[name] > 1)}
    source = [p for p in users if not p.startswith("tests/")]
    if name not in COUNTERS and len(source) < 2 and (sum(users[p] for p in source) < 2 or len(source) == len(users)):
        print("%s: %s has no caller in another file" % (header, name))
        bad = 1
sys.exit(bad or ("few declarations: the search is broken" if len(declared) < 800 else 0))
END
