#!/bin/sh
# Retired words (CONTRIBUTING.md, "Words"): none of them in an identifier, a comment, a message, a help text, a man page or
# a document of this repository. A row is a regular expression of whole words and what to write instead. What scripts read
# (keys of JSON and YAML, values of options, names of files) keeps its name: `kept`, with the reason.
set -eu
SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
exec python3 - "$SOURCE" <<'END'
import os, re, subprocess, sys

retired = [ # in text: expression, what to write
    (r"beside", "next to, in parallel with, sidecar config"), (r"behind", "after, under"),
    (r"(go|goes|going|gone|went) on", "resume, continue"), (r"so many", "N"),
    (r"(is|are|was|were|be|been) told|tells?", "is reported, logs, prints"), (r"borne", "warned"),
    (r"mends?|mended", "fix, remedy"), (r"obeys?|obeyed", "handle"), (r"hears?", "receives"), (r"nonsense", "invalid"),
    (r"by turns", "round-robin, double-buffered"), (r"hand(ed)? round", "all-gathered, broadcast"),
    (r"past the page cache", "with O_DIRECT"), (r"working files?", "scratch file"), (r"a rank a card|a line a step", "per"),
    (r"(another|others?) than", "different from"), (r"verdicts?", "bottleneck, diagnosis"), (r"rungs?|ladders?", "memory option"),
    (r"givers?", "contributing ranks"), (r"unite[ds]?|ununited", "combine, all-reduce"), (r"farewells?", "exit message"),
    (r"geometry|geometries", "model shape"), (r"respell(s|ed)?|namings?", "rename keys, key mapping"),
    (r"by whole numbers", "integer GEMM"), (r"products? of matrices|matrix products?", "GEMM, matmul"),
    (r"the house|rooms? of the", "source layout, module"), (r"stands? in|lies? in", "is stored in, is located in"),
    (r"(somebody|nobody|whoever)", "name the actor"),
]
names = [ # parts of identifiers, between underscores
    "bear", "borne", "leads", "course", "talk", "givers", "unite", "unites", "united", "ununited", "rung", "rungs", "ladder",
    "climb", "mend", "mends", "verdict", "verdicts", "wish", "wishes", "obey", "obeyed", "farewell", "told", "tell", "tells",
    "room", "beside", "behind", "respell", "geometry", "manner", "cutter", "nonsense",
]
kept = { # literals that scripts read, as they are
    '"mend"': "start[].mend of meta.json",
    '"geometry"': "a key of JSON",
    '"rungs"': "fit.rungs of plan --json",
    '"geometry.json"': "a file of tests/data",
    "unite_ranks": "a kernel of code objects, looked up by name",
}
kept_text = ["else null) and mend (the remedy, or null)"]  # keys of meta.json's start[]
skipped = re.compile(r"^(tests/data/|tests/fuzz/corpus/|tests/tools/language\.sh$|CHANGELOG\.md$|man/zh_CN/|LICENSE)")
token = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*", re.S)
text_of = re.compile("|".join(r"(?P<w%d>\b(?:%s)\b)" % (i, r) for i, (r, _) in enumerate(retired)), re.I)

def words(text):
    flat = re.sub(r"\n[ \t]*[*#]?[ \t]*", " ", text)  # a phrase may be broken between lines
    for m in text_of.finditer(flat):
        yield m.group(0), retired[int(m.lastgroup[1:])][1]

def code(text):
    for m in token.finditer(text):
        t, line = m.group(0), text.count("\n", 0, m.start()) + 1
        if t[0] in "/\"":
            if t not in kept:
                for found in words(t): yield (line, *found)
        elif t[0] != "'" and t not in kept:
            for part in re.split("_+", t.lower()):
                if part in names: yield line, t, "see the terms"

def findings(path, text):
    if path.endswith((".c", ".h", ".hip", ".cc")): return code(text)
    for t in kept_text: text = text.replace(t, "")
    return ((0, *found) for found in words(text))

def check(path, text): return ["%s:%d: %s (write: %s)" % (path, *f) for f in findings(path, text)]

planted = [("a.c", "int rank_told(void);"), ("a.c", "/* lies\n * in a file */"), ("a.c", 'f("the run goes on");'), ("man/a.1", "the file beside it")]
for path, text in planted:
    if not check(path, text): sys.exit("a planted word is not found: " + text)
os.chdir(sys.argv[1])
files = [os.path.relpath(os.path.join(d, f)) for top in ("core", "cli", "fetch", "kernels", "tests", "man", "configs") for d, _, fs in os.walk(top) for f in fs]
files += [f for f in os.listdir(".") if f.endswith(".md")]
files = [f for f in sorted(files) if f.endswith((".c", ".h", ".hip", ".cc", ".md", ".1", ".3", ".5", ".7", ".yaml")) and not skipped.match(f)]
if len(files) < 300: sys.exit("only %d files: the search is broken" % len(files))
all_found = [line for f in files for line in check(f, open(f, encoding="utf-8").read())]
print("\n".join(all_found))
print("%d files, %d retired words" % (len(files), len(all_found)))
sys.exit(1 if all_found else 0)
END
