#!/bin/sh
# Every message has a translation in every po/*.po: xgettext over the sources and the tables of the program, compared with the files. A new,
# changed, fuzzy or obsolete message fails, and so does a translation whose conversions are not those of its message. Texts that are
# printed without a mark fail, too.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
for tool in xgettext msgfmt msgmerge msgattrib msgcat; do
    command -v $tool >/dev/null || { echo "no $tool: the package gettext"; exit 77; }
done
sh "$MEOPT_SOURCE/po/extract.sh" "$MEOPT_BUILD/messages" "$work/all.pot" 2>"$work/err" || fail "xgettext"
count=$(grep -c '^msgid' "$work/all.pot")
[ "$count" -gt 3000 ] || fail "only $count messages found: the search is broken"
for po in "$MEOPT_SOURCE"/po/*.po; do
    name=$(basename "$po")
    msgfmt --check-format -o "$work/meopt.mo" "$po" 2>"$work/out" || fail "$name: conversions differ"
    msgmerge --quiet --no-fuzzy-matching --no-location -o "$work/merged.po" "$po" "$work/all.pot"
    for kind in untranslated only-fuzzy only-obsolete; do
        msgattrib --$kind --no-location "$work/merged.po" | grep -E '^(#~ )?(msgid|")' | sed 1d >"$work/left" || :
        grep -q 'msgid' "$work/left" || continue
        cp "$work/left" "$work/out"
        fail "$name: $kind messages; to update the file: cmake --build BUILD --target translations"
    done
done
# A literal of several words that is printed as it is. The files write formats of their own: pages, scripts, JSON.
cd "$MEOPT_SOURCE"
grep -nE '\b(printf|fprintf|fputs|snprintf|xasprintf)\((stdout, |stderr, |out, |[a-z]+, sizeof [a-z]+, )?"[^"<]*[a-z]{3,} [a-z]{3,}' -r cli fetch --include='*.c' |
    grep -vE '^cli/(commands/(cmd_complete|cmd_config_man|cmd_sbatch)|slurm/script|supervisor/hooks)\.c|^fetch/partial\.c' >"$work/out" || :
[ ! -s "$work/out" ] || fail "texts without _(): see CONTRIBUTING.md, Messages"
# Of `condition ? "one" : "other"` xgettext reads the first text alone: the other needs N_().
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
python3 - "$work/all.pot" <<'PYTHON' >"$work/out" || fail "texts without N_() in ?:, or characters that GBK does not have"
import json, re, subprocess, sys

KEPT = {  # names and values that files of a run or programs read
    "left out", " (whole numbers)", "attentional_pool of all queries", "unknown status", "; its files have "}
known = set()
for entry in open(sys.argv[1], encoding="utf-8").read().split("\n\n"):
    message = re.search(r'^msgid ((?:".*"\n?)+)', entry, re.M)
    known.add("".join(json.loads(s) for s in re.findall(r'^".*"$', message[1], re.M))) if message else None
for line in open("po/zh_CN.po", encoding="utf-8"):
    missing = {c for c in line if not c.encode("gbk", "ignore")} - set("▒▏┊")  # drawn in ASCII under GBK
    if missing:
        sys.exit(f"not in GBK: {missing}: {line}")
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|\'(?:[^\'\\]|\\.)*\'|"(?:[^"\\]|\\.)*"|\w+|[^\s\w]', re.S)
found = 0
for path in subprocess.run("find core cli fetch -name '*.c'", shell=True, capture_output=True, text=True).stdout.split():
    if re.match("core/(compare/(paper|plot_svg|output_html)|run/prometheus|weights/write_pt)|cli/supervisor/hooks", path):
        continue
    tokens = [t for t in TOKEN.findall(open(path, encoding="utf-8").read()) if t[:2] not in ("/*", "//")]
    for i in range(1, len(tokens)):
        if tokens[i][0] != '"' or tokens[i - 1] not in ("?", ":"):
            continue
        text = ""
        for part in tokens[i:]:
            if part[0] != '"':
                break
            text += part[1:-1]
        text = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text)
        if re.search("[a-z]{2,} [a-z]{2,}", text) and text not in known | KEPT and not text.startswith("meopt "):
            print(f"{path}: {text}")
            found = 1
sys.exit(found)
PYTHON
echo "$count messages"
