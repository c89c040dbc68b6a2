#!/bin/sh
# Retired words (CONTRIBUTING.md, "Words"): none of them in an identifier, a comment, a message, a help text, a man page or
# a document of this repository. A row is a regular expression of whole words and what to write instead. What scripts read
# (keys of JSON and YAML, values of options, names of files) keeps its name: `kept`, with the reason.
# And tests search output for names and values, not for sentences: no pattern of grep, strstr or mentions, no text that a function
# of a script passes to grep and no text that a message of an error must equal has four plain words in a row. `sentences` lists the
# exceptions with reasons.
set -eu
SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
exec python3 - "$SOURCE" <<'END'
import functools, os, re, sys

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
    (r"(one|a) (thread|block|row|line|lane|byte|bit) an? (group|row|column|pair|chunk|kernel|step|rank|card|image)", "per"),
]
names = [ # parts of identifiers, between underscores
    "bear", "borne", "leads", "course", "talk", "givers", "unite", "unites", "united", "ununited", "rung", "rungs", "ladder",
    "climb", "mend", "mends", "verdict", "verdicts", "wish", "wishes", "obey", "obeyed", "farewell", "told", "tell", "tells",
    "room", "beside", "behind", "respell", "geometry", "manner", "cutter", "nonsense", "carrier", "today",
]
kept = { # literals that scripts read, as they are
    '"mend"': "start[].mend of meta.json",
    '"geometry"': "a key of JSON",
    '"rungs"': "fit.rungs of plan --json",
    '"geometry.json"': "a file of tests/data",
    "unite_ranks": "a kernel of code objects, looked up by name",
}
kept_text = ["else null) and mend (the remedy, or null)"]  # keys of meta.json's start[]
sentences = { # patterns of four words or more
    "referenced manual not found": "a warning of mandoc, which the test leaves out",
    '"state":"stopped by a signal"': "a value of live.json, meopt-run(5)",
}
skipped = re.compile(r"^(tests/data/|tests/fuzz/corpus/|tests/tools/language\.sh$|CHANGELOG\.md$|man/zh_CN/|LICENSE)")
token = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*", re.S)
text_of = re.compile(r"\b(?:%s)\b" % "|".join("(?P<w%d>%s)" % (i, r) for i, (r, _) in enumerate(retired)), re.I)

def words(text):
    flat = re.sub(r"\n[ \t]*[*#]?[ \t]*", " ", text)  # a phrase may be broken between lines
    for m in text_of.finditer(flat):
        yield m.group(0), retired[int(m.lastgroup[1:])][1]

@functools.cache
def in_token(t): # a comment, a literal or an identifier
    if t in kept or t[0] == "'": return []
    if t[0] in "/\"": return list(words(t))
    return [(t, "see the terms") for part in re.split("_+", t.lower()) if part in names]

def code(text):
    for m in token.finditer(text):
        for found in in_token(m.group(0)): yield (text.count("\n", 0, m.start()) + 1, *found)

def findings(path, text):
    if path.endswith((".c", ".h", ".hip", ".cc")): return code(text)
    for t in kept_text: text = text.replace(t, "")
    return ((0, *found) for found in words(text))

def check(path, text): return ["%s:%d: %s (write: %s)" % (path, *f) for f in findings(path, text)]

quoted = r"'[^'\n]*'|\"(?:\\.|[^\"\\\n])*\""
grep_of = re.compile(r"\bgrep\b(?:\s+(?!-e\b)-[\w-]+)*\s+(?:-e\s+)?(%s)" % quoted)
in_of = re.compile(r"(%s) (?:not )?in \w" % quoted)  # Python
strstr_of = re.compile(r"\b(?:strstr|mentions|assert_string_equal\(\w+(?:\.|->)(?:what|hint|message))\b[^\"]*?((?:(?:%s)\s*)+)\)" % quoted)
function_of = re.compile(r"^[ \t]*(\w+)\(\) *[{(](?:([^\n]*[})])[ \t]*$|(.*?)^[ \t]*[})]$)", re.M | re.S)
grep_argument = re.compile(r"\bgrep\b(?:\s+-[\w-]+)*\s+(?:\"[^\"\n]*\$[\w{]|\$\w)")
sourced = re.compile(r"^[ \t]*\. .*?(tests/[\w/]+\.sh)", re.M)
sentence = re.compile(r"(?<![\w.$/=-])[a-z]+(?: [a-z]+){3,}(?![\w./=-])")

def passes_on(text): # names of the functions of a script that pass an argument to grep
    bodies, names = [(name, one or many) for name, one, many in function_of.findall(text) if name != "fail"], set()
    while True:
        more = {n for n, body in bodies if grep_argument.search(body) or any(re.search(r"\b%s\b" % k, body) for k in names)}
        if more <= names: return names
        names |= more

def patterns(path, text): # (line, pattern) of what a test searches for
    expressions = [strstr_of]
    if path.endswith((".sh", ".py")):
        names = passes_on(text).union(*(passes_on(open(s, encoding="utf-8").read()) for s in sourced.findall(text) if os.path.exists(s)))
        expressions = [grep_of, in_of]
        if names: expressions.append(re.compile(r"(?:^|[;&|({!]|\bthen|\bdo|\belse)[ \t]*(?:%s)\b((?:%s|\\\n|[^'\"\n;|&])*)" % ("|".join(names), quoted), re.M))
    for expression in expressions:
        for m in expression.finditer(text):
            line = text.count("\n", 0, m.start(1)) + 1
            if expression is strstr_of: yield line, "".join(q[1:-1] for q in re.findall(quoted, m.group(1)))
            else:
                for q in re.findall(quoted, m.group(1)): yield line, q[1:-1]

def wording(path, text):
    return ["%s:%d: searches for a sentence: %s (write: exit code, name, value or key)" % (path, line, pattern)
            for line, pattern in sorted(set(patterns(path, text))) if sentence.search(pattern) and pattern not in sentences]

planted = [("a.sh", "grep -q 'no such file is here' err"), ("a.sh", "said() { grep -q \"$1\" err || fail; }\nsaid 'no such file is here'"),
           ("a.sh", "says() {\n    grep -e \"^$2\" err\n}\nx || says 1 \"no such file is here\""), ("a.py", 'x = "no such file is here" not in err'),
           ("a.c", 'f(strstr(err.what, "no such "\n"file is here"));'),
           ("a.c", 'f(mentions(err.what, "a.c|no such file is here"));'), ("a.c", 'assert_string_equal(err->hint, "no such file is here");')]
for path, text in planted:
    if len(wording(path, text)) != 1: sys.exit("a planted sentence is not found: " + text)
if wording("a.sh", "grep 'here: no such file: meopt fetch sample --dest' x || fail 'no such file is here'"): sys.exit("a name is taken for a sentence")
planted = [("a.c", "int rank_told(void);"), ("a.c", "/* lies\n * in a file */"), ("a.c", 'f("the run goes on");'), ("man/a.1", "the file beside it")]
for path, text in planted:
    if not check(path, text): sys.exit("a planted word is not found: " + text)
os.chdir(sys.argv[1])
files = [os.path.relpath(os.path.join(d, f)) for top in ("core", "cli", "fetch", "kernels", "tests", "man", "configs") for d, _, fs in os.walk(top) for f in fs]
files += [f for f in os.listdir(".") if f.endswith(".md")]
files = [f for f in sorted(files) if f.endswith((".c", ".h", ".hip", ".cc", ".md", ".1", ".3", ".5", ".7", ".yaml")) and not skipped.match(f)]
if len(files) < 300: sys.exit("only %d files: the search is broken" % len(files))
all_found = [line for f in files for line in check(f, open(f, encoding="utf-8").read())]
tests = {os.path.join(d, f): None for d, _, fs in os.walk("tests") for f in fs if f.endswith((".c", ".h", ".sh", ".py")) and f != "language.sh"}
for f in tests: tests[f] = open(f, encoding="utf-8").read()
count = sum(len(list(patterns(f, text))) for f, text in tests.items())
if count < 500: sys.exit("only %d patterns in tests: the search is broken" % count)
in_names = ["%s: %s in the name of a file (write: see the terms)" % (f, part) for f in sorted({*files, *tests})
            for part in re.split("[_.]", os.path.basename(f)) if part in names or part in ("goes", "alike", "untold")]
said = [line for f in sorted(tests) for line in wording(f, tests[f])]
unused = ["%s: an exception that no test needs" % s for s in sentences if not any(s in text for text in tests.values())]
all_found += in_names
print("\n".join(all_found + said + unused))
print("%d files, %d retired words; %d patterns of tests, %d sentences" % (len(files), len(all_found), count, len(said)))
sys.exit(1 if all_found or said or unused else 0)
END
