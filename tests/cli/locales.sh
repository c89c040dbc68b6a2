#!/bin/sh
# The language of messages by LANG, LANGUAGE and the locales of this machine, and with a damaged catalogue. The list of runs in a locale that is
# not UTF-8. Under GBK, Chinese input finds the run, and names have the terminal's encoding, also in
# 'meopt runs'. Under C, each character that cannot be shown is one '?'.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # with LOCPATH, glibc's newlocale leaks in libraries that are loaded

catalogue=share/locale/zh_CN/LC_MESSAGES/meopt.mo
language() { # PROGRAM VARIABLE=VALUE...: zh or en
    program=$1
    shift
    env -u LANGUAGE -u LANG -u LC_ALL -u LC_CTYPE -u LC_MESSAGES LOCPATH=/nowhere "$@" "$program" help >"$dir/help" 2>&1 || fail "'meopt help' with $*"
    if grep -q 命令 "$dir/help"; then echo zh; else echo en; fi
}
if [ -e "$MEOPT_BUILD/$catalogue" ] && locale -a | grep -qi '^c\.utf'; then # no locale of Chinese is installed here: LOCPATH
    for expected in 'zh LANG=zh_CN.UTF-8' 'zh LC_ALL=zh_CN.utf8 LANG=C' 'zh LANG=zh_CN.UTF-8 LANGUAGE=zh_CN:en' 'zh LANG=de_DE.UTF-8 LC_ALL=C.UTF-8 LANGUAGE=zh_CN' \
        'en LANG=C' 'en LC_ALL=C LANG=zh_CN.UTF-8 LANGUAGE=zh_CN' 'en LANG=POSIX LANGUAGE=zh_CN' 'en LANG=zh_CN.GBK' 'en LANG=zh_CN' 'en LANG=zh_CN.UTF-8 LANGUAGE=en:zh_CN' \
        'en LANG=C.UTF-8' 'en LANG=de_DE.UTF-8' 'en LANG=C.UTF-8 LANGUAGE=../zh_CN' 'en'; do
        # shellcheck disable=SC2086
        [ "$(language "$MEOPT" ${expected#??})" = "${expected%% *}" ] || fail "not $expected"
    done
    cp -r "$MEOPT_BUILD/share" "$dir" && cp "$MEOPT" "$dir"
    size=$(wc -c <"$dir/$catalogue")
    for bytes in 0 3 19 20 28 1000 $((size / 2)) $((size - 1)); do
        head -c "$bytes" "$MEOPT_BUILD/$catalogue" >"$dir/$catalogue"
        language "$dir/meopt" LANG=zh_CN.UTF-8 >/dev/null || fail "a catalogue of $bytes bytes"
    done
    for value in 377 000; do # tables of impossible sizes and places
        for at in 8 12 16 28 32; do
            cp "$MEOPT_BUILD/$catalogue" "$dir/$catalogue"
            printf "\\$value\\$value\\$value\\$value" | dd of="$dir/$catalogue" bs=1 seek=$at conv=notrunc 2>/dev/null
            language "$dir/meopt" LANG=zh_CN.UTF-8 >/dev/null || fail "a catalogue with $value at $at"
        done
    done
    rm -rf "$dir/share" "$dir/meopt"
fi

localedef -c -i zh_CN -f GBK "$dir/zh_CN.GBK" 2>/dev/null || { echo "localedef makes no zh_CN.GBK: the package locales"; exit 77; }
export LOCPATH="$dir"
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
for run in dinov2-教师 dinov2-学生 eva_clip-lr1; do dash_run "$dir/runs/$run" 1 60; done
start() { # LOCALE COMMAND
    terminal 80 24 C.UTF-8 "NO_COLOR=1 LOCPATH='$dir'" "LC_ALL= LC_CTYPE=$1 LC_MESSAGES=C '$MEOPT' $2"
}
in_gbk() { printf %s "$1" | iconv -f UTF-8 -t GBK; }
sent() { LC_ALL=C wait_for 10 grep -q "$1" "$dir/bytes"; } # BYTES: tmux takes UTF-8; what it is given reports
start zh_CN.GBK ''
await '3 of 3'
in_terminal pipe-pane "cat >'$dir/bytes'"
keys /
await 'filter: _'
in_gbk 教师 >"$dir/typed"
server load-buffer "$dir/typed"
in_terminal paste-buffer -r
await '1 of 3'
keys Enter C-l
sent "$(in_gbk 'filter: 教师')" || fail "what is typed is not shown"
sent "$(in_gbk dinov2-教师)" || fail "the run's name is not Chinese"
keys Enter # its dashboard
await 'step 60/60'
keys q
await '1 of 3'
keys q
await 'status 0'
stop

start C ''
await '^  dinov2-??  *done'
keys q
await 'status 0'
if screen | LC_ALL=C grep '[^ -~]'; then fail "not ASCII"; fi
stop

# as a line on a terminal in its encoding, in a file as it is
command -v script >/dev/null || exit 0
cd "$dir"
COLUMNS=80 LC_ALL= LC_CTYPE=zh_CN.GBK script -qec "'$MEOPT' runs" /dev/null </dev/null >bytes
LC_ALL=C grep -q "$(in_gbk dinov2-学生) *done" bytes || fail "'meopt runs' under GBK"
LC_ALL= LC_CTYPE=zh_CN.GBK "$MEOPT" runs | grep -q '^dinov2-学生 ' || fail "a file has other names"
