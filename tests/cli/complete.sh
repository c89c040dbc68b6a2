#!/bin/sh
# Completion: the program's own answers, and bash with the shipped file. And every option of every command is in a page
# of the manual, every page is clean.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
says() { # EXPECTED WORD...
    expected=$1
    shift
    found=$("$MEOPT" complete -- "$@" | tr '\n' ' ')
    [ "$found" = "$expected" ] || fail "complete $*: '$found', expected '$expected'"
}
says "train " tra
says "optim " bench op
says "--run-dir " train --run
says ":files " train ""
says ":files " train --run-dir ""
says "optim.name=apadam optim.name=apadamw optim.name=apsgd " train x.yaml optim.name=ap
says "optim.name= " plan x.yaml optim.na
says "pt peft " export --format p
says "coco2014 " fetch coc
says "sample sample-coco2014 sample-model-weight " fetch --dest here sam
says "config " help con
says "eva_clip eva_clip_k100 " compare --published eva
says "k100-ai k100 " plan --card k1
says "a100-80g a100-40g a800 a6000 " plan x.yaml --card a
mkdir -p "$work/elsewhere/first" "$work/elsewhere/second" "$work/elsewhere/no-run" "$work/runs/third"
for run in elsewhere/first elsewhere/second runs/third; do touch "$work/$run/config.yaml"; done
says "first second " attach --run-dir "$work/elsewhere" ""
says "second " stop --run-dir="$work/elsewhere" s
says "first,second " compare --run-dir "$work/elsewhere" first,s
found=$(cd "$work" && "$MEOPT" complete -- train --resume t)
[ "$found" = third ] || fail "train --resume: $found"
found=$("$MEOPT" complete -- config new eva | head -1)
[ "$found" = eva_clip ] || fail "config new: $found"
says "optim.lr " config get x.yaml optim.lr
says "" nothing ""
says "memory " help mem
if command -v bash >/dev/null; then
    ln -s "$MEOPT" "$work/meopt"
    PATH="$work:$PATH" bash --norc -c '
        . "$1"
        COMP_WORDS=(meopt train --na) COMP_CWORD=2 COMP_LINE="meopt train --na" COMP_POINT=16
        _meopt_words
        [ "${COMPREPLY[*]}" = --name ] || { echo "bash: ${COMPREPLY[*]}" >&2; exit 1; }' bash "$MEOPT_SOURCE/configs/completion/meopt.bash"
fi

if fish --no-config -c true 2>/dev/null; then # fish 3.2 or later
    ln -sf "$MEOPT" "$work/meopt"
    for try in "meopt train --na/--name" "meopt bench op/optim" "meopt plan x.yaml optim.na/optim.name="; do
        found=$(PATH="$work:$PATH" HOME="$work" fish --no-config -c "source '$MEOPT_SOURCE/configs/completion/meopt.fish'; complete -C '${try%/*}'")
        [ "$found" = "${try##*/}" ] || fail "fish: ${try%/*}: $found"
    done
fi
# topics: one screen each, with its commands; a mistyped one is refused
for topic in $("$MEOPT" help | sed -n '/^Topics/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    "$MEOPT" help "$topic" >"$work/topic" || fail "help $topic"
    [ "$(wc -l <"$work/topic")" -le 24 ] && [ "$(wc -L <"$work/topic")" -le 100 ] || fail "help $topic is more than a screen"
    grep -o '^  meopt [a-z]*' "$work/topic" | sort -u | while read -r meopt command; do
        "$MEOPT" "$command" --help >/dev/null 2>&1 || "$MEOPT" help "$command" >/dev/null || fail "help $topic: no command $command"
    done
done
exits 2 "$MEOPT" help memry >/dev/null 2>&1 || fail "a mistyped topic: $code"

"$MEOPT" help | sed '/^Topics/,$d' | sed -n 's/^  \([a-z][a-z ]*[a-z]\)  .*/\1/p' | while read -r name; do
    case $name in help | version) continue ;; esac
    page=$MEOPT_SOURCE/man/meopt-$(echo "$name" | tr ' ' -).1
    [ -f "$page" ] || page=$MEOPT_SOURCE/man/meopt-${name%% *}.1
    [ -f "$page" ] || fail "no page for meopt $name"
    "$MEOPT" $name --help | sed -n 's/^  .*--\([a-z0-9-]*\).*/\1/p' | while read -r option; do
        [ "$option" = help ] || grep -q -e "Fl -$option\b" "$page" || fail "$page lacks --$option of meopt $name"
    done
done
if command -v mandoc >/dev/null; then
    for page in "$MEOPT_SOURCE"/man/*.[1-7] "$MEOPT_SOURCE"/man/zh_CN/man[1-7]/*; do
        mandoc -Tlint -W warning "$page" >"$work/lint" || true
        grep -v 'referenced manual not found' "$work/lint" >&2 && fail "$page"
    done
    grep -rho '^\.Xr [^ ]* [0-9]' "$MEOPT_SOURCE"/man | sort -u | while read -r xr name section; do
        case $name in meopt*|libmeopt) [ -f "$MEOPT_SOURCE/man/$name.$section" ] || fail "$name($section) is referenced and missing" ;; esac
    done
fi
# the first start in Chinese quotes messages as they are translated, but for those of the system and the driver
chinese=$MEOPT_SOURCE/man/zh_CN/man7/meopt-devices.7
tr -d '"\n' <"$MEOPT_SOURCE/po/zh_CN.po" >"$work/messages"
sed -n '/^\.Ss 在 DCU 上第一次启动/,/^\.Ss 旧系统/p' "$chinese" | sed -nE 's/^\.D[oq] (.*) Dc.*/\1/p; s/^\.Dq (.*)/\1/p' | grep -vE '^(Permission denied|launch failure|没有 hip 驱动|Hygon 加速卡)$' >"$work/words"
[ "$(wc -l <"$work/words")" -ge 10 ] || fail "the first start in Chinese has few words: $(cat "$work/words")"
while read -r words; do grep -qF -- "$words" "$work/messages" || fail "no message says '$words'"; done <"$work/words"
for fact in 6e-8 65504 gfx906 gfx926; do grep -q "$fact" "$chinese" || fail "$chinese lacks why products are not computed in fp16: $fact"; done
# a page in the reader's language is the one that man finds
if command -v man >/dev/null && locale -a 2>/dev/null | grep -q '^zh_CN.utf8$'; then
    found=$(LC_ALL=zh_CN.UTF-8 MANPATH="$MEOPT_SOURCE/man" man -w 7 meopt-devices 2>/dev/null) || found=none
    case $found in */zh_CN/man7/meopt-devices.7) ;; *) fail "man finds $found for a Chinese reader" ;; esac
fi
