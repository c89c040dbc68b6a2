#!/bin/sh
# 'meopt compare --paper' writes valid LaTeX: both tables compile for runs whose names contain every special character of LaTeX, and Chinese.
set -eu
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
cd "$dir"
awkward='a_b&c%1#2{3}$4~5^6\7<8>'
dash_run runs/plain 1 200
dash_run "runs/$awkward" 1 100
dash_run runs/dinov2-教师 2 60
"$MEOPT" compare runs/plain "runs/$awkward" runs/dinov2-教师 --paper paper >/dev/null
missing=
compile() { # ENGINE DOCUMENT
    command -v "$1" >/dev/null || { missing="$missing $1"; return 0; }
    [ "$1" != xelatex ] || kpsewhich ctexart.cls >/dev/null || { missing="$missing ctex"; return 0; }
    (cd paper && HOME="$dir" TEXMFVAR="$dir/texmf" timeout 250 "$1" -interaction=nonstopmode -halt-on-error "$2" >"../$2.log" 2>&1) ||
        fail "$1 $2: $(grep -A8 '^!' "$2.log" || tail -5 "$2.log")"
    [ "$(head -c 5 "paper/${2%.tex}.pdf")" = %PDF- ] || fail "$2 gave no PDF"
    if grep 'Overfull .hbox ([0-9][0-9]\{2,\}' "$2.log"; then fail "$2: beyond the page"; fi
}
for l in '' _zh; do
    class=article
    [ -z "$l" ] || class=ctexart
    printf '\\documentclass{%s}\n\\usepackage{booktabs}\n\\usepackage{graphicx}\n\\begin{document}\n\\input{table%s}\n\\end{document}\n' $class "$l" >"paper/paper$l.tex"
done
compile pdflatex paper.tex
compile xelatex paper_zh.tex
if command -v pdftotext >/dev/null && [ -f paper/paper.pdf ]; then
    pdftotext -layout paper/paper.pdf - | grep -q 'U+6559 U+5E08' || fail "a name is lost"
fi
if command -v pdftotext >/dev/null && [ -f paper/paper_zh.pdf ]; then
    pdftotext -layout paper/paper_zh.pdf - | grep -q 'dinov2-教师' || fail "a Chinese name is lost"
fi
[ -z "$missing" ] || { echo "not compiled: no$missing here"; exit 77; }
