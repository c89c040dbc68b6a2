#!/bin/sh
# Chinese in a terminal, in UTF-8 and in GBK: help, errors, tables and screens are Chinese, the columns of each line stay where those of the
# others are, and what programs read is the same as in English. Without the locale, UTF-8 still works.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
[ -e "$MEOPT_BUILD/share/locale/zh_CN/LC_MESSAGES/meopt.mo" ] || { echo "no msgfmt when this was built"; exit 77; }
for encoding in GBK UTF-8; do
    localedef -c -i zh_CN -f $encoding "$dir/zh_CN.$encoding" 2>/dev/null || { echo "localedef makes no zh_CN.$encoding: the package locales"; exit 77; }
done
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
for run in one 实验; do dash_run "$dir/runs/$run" 2 60; done
cp "$MEOPT_SOURCE/configs/eva_clip.yaml" "$dir"
cat >"$dir/columns.py" <<'PY'
# columns.py TEXT...: the column at which each text begins must be the same in all lines of stdin that contain one, and there are such lines.
import sys, unicodedata
width = lambda s: sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in s)
found = {}
for line in sys.stdin.read().splitlines():
    if "\ufffd" in line or width(line) > 100:
        sys.exit("garbled or too long: " + line)
    for text in sys.argv[1:]:
        if text in line:
            found.setdefault(width(line[: line.index(text)]), []).append(line)
if len(found) != 1:
    sys.exit("columns: %s" % found)
PY
columns() { tmux -L "$socket" capture-pane -p | python3 "$dir/columns.py" "$@" || fail "$encoding: columns of $*"; }
start() { # COMMAND, in the encoding
    bridge=
    [ $encoding = UTF-8 ] || bridge="python3 '$MEOPT_SOURCE/tests/cli/gbk_terminal.py' env LC_ALL=zh_CN.$encoding"
    locale=zh_CN.UTF-8
    terminal 100 40 $locale "LOCPATH='$dir'" "sh -c \"cd '$dir'; $bridge '$MEOPT' $1; echo status \\\$?; sleep 60\""
}

for encoding in UTF-8 GBK; do
    start 'plan --help'
    await '用法：meopt plan'
    await '^      --ranks N  *rank 数'
    stop
    start 'plan nowhere.yaml'
    await '无法打开'
    await 'status'
    stop
    start 'config list'
    await 'run.name'
    columns 运行的名称 文本 路径
    stop
    start 'runs'
    await '实验'
    columns 'done ' 状态
    stop
    start '' # the list of runs
    await '帮助  q'
    columns 'done ' 状态
    keys '?'
    await '保存并停止运行'
    keys q q
    stop
    start 'config edit --card-memory 64G eva_clip.yaml'
    await 单个
    columns '│' '| '
    keys q
    stop
    start 'train --replay runs/one --speed 0'
    await '步 60/60'
    keys 3
    await '教师模型'
    keys q
    stop
done

# without the locale, as on many nodes of clusters; files and pipes are UTF-8 under GBK; JSON is English
cd "$dir"
[ "$(LC_ALL=zh_CN.UTF-8 LOCPATH=/nowhere "$MEOPT" runs --help | grep -c '列出各次运行')" = 1 ] || ! locale -a | grep -qi '^c\.utf' || fail "no Chinese without the locale"
LC_ALL=zh_CN.GBK LOCPATH="$dir" "$MEOPT" runs --help | grep -q '列出各次运行' || fail "a pipe under GBK is not UTF-8"
for command in 'config list --json' 'config list --json eva_clip.yaml' 'runs --json' 'plan eva_clip.yaml --json model_t.arch=eva02_tiny14 model_s.arch=eva02_tiny14' 'config get eva_clip.yaml optim.lr'; do
    # shellcheck disable=SC2086
    "$MEOPT" $command >english || :
    # shellcheck disable=SC2086
    LC_ALL=zh_CN.UTF-8 LOCPATH="$dir" "$MEOPT" $command >chinese || :
    cmp english chinese >&2 || fail "'$command' depends on the language"
done
