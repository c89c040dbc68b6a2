#!/bin/sh
# Chinese in a terminal, in UTF-8 and in GBK. Every command of the program: its help, its errors and a typical output are Chinese, aligned,
# and no wider than the terminal (chinese_check.py). Screens are Chinese with aligned columns. What programs read is the same as in English.
# Without the locale, UTF-8 still works.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # with LOCPATH, glibc's newlocale leaks in libraries that are loaded
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
[ -e "$MEOPT_BUILD/share/locale/zh_CN/LC_MESSAGES/meopt.mo" ] || { echo "no msgfmt when this was built"; exit 77; }
for encoding in GBK UTF-8; do
    localedef -c -i zh_CN -f $encoding "$dir/zh_CN.$encoding" 2>/dev/null || { echo "localedef makes no zh_CN.$encoding: the package locales"; exit 77; }
done
# ---- every command ----

cat >"$dir/every.sh" <<'SH'
run() { # ARGUMENTS...
    echo "@@@ meopt $*"
    "$MEOPT" "$@" </dev/null
    echo "@@@ status $?"
}
with() { # KEY=VALUE WORD: one operand of a usage line, as it is or as it should not be
    case $2 in
    CONFIG) [ $1 = good ] && echo quick.yaml || echo nowhere.yaml ;;
    RUN) [ $1 = good ] && echo runs/one || echo runs/nowhere ;;
    FILE | DIR) [ $1 = good ] && echo quick.yaml || echo nowhere.yaml ;;
    KEY) [ $1 = good ] && echo optim.lr || echo optim.lrr ;;
    key=value) [ $1 = good ] && echo optim.lr=2.0e-3 || echo optim.lr=x ;;
    NAME) [ $1 = good ] && echo sample || echo nowhere ;;
    COMMAND) [ $1 = good ] && echo plan || echo nowhere ;;
    -*) echo "$2" ;;
    esac
}
card() { # from now on there is the emulated card of tests/gpu
    export MEOPT_CUDA_LIBRARY=$FAKES/libfake_cuda.so MEOPT_KERNELS=$FAKES/fake_kernels MEOPT_CUBLAS_LIBRARY=none MEOPT_CUBLASLT_LIBRARY=none \
        MEOPT_NCCL_LIBRARY=none FAKE_MEMORY=${FAKE_MEMORY:-300000000}
}
tried() { # NAME
    run $1 --help
    run $1 --nonsense
    words=$(LC_ALL=C "$MEOPT" help $1 | sed -n "1s/^Usage: meopt $1//p" | tr -d '[].' | sed 's/|[^ ]*//g; s/,[^ ]*//g; s/ options//')
    bad= good=
    for word in $words; do
        bad="${bad:+$bad }$(with bad $word)" good="$good $(with good $word)"
    done
    [ -z "$bad" ] || run $1 $bad
    case $1 in # the rest is enough without a row of its own
    fetch) good="$good --list" ;;
    'config new') good='digits new.yaml --force' ;;
    'config diff') good='quick.yaml optim.lr=2.0e-3' ;;
    tokenize) good="text.txt --tokenizer $MEOPT_SOURCE/tests/data/tokenizers/qwen.json -o tokens" ;;
    plan) good='quick.yaml --what-if --card-memory 64G' ;;
    train) good='quick.yaml train.steps=2 --name trained' && rm -rf runs/trained ;;
    compare) good='runs/one runs/two' ;;
    embed) good='runs/one -o vectors.npy' ;;
    eval) good='runs/one' ;;
    'bench optim') good='-w bf16 -n 10000 --repeat 1 --device cuda:0' && FAKE_MEMORY=30000000 card ;;
    'bench speedup') good='-n 100000 --repeat 1 --device cpu' ;;
    'bench ranks') good='--mib 1 --repeat 1' ;;
    'bench train') good='quick.yaml --steps 1 --no-peak --profile' ;;
    doctor) good='--quick quick.yaml' ;;
    esac
    run $1 $good
    case $1 in # further tables
    plan) run plan quick.yaml --ranks 4 --bandwidth 10 --step-ms 100 ;;
    doctor) # a site with two DCU, whose driver and toolkit do not fit; a card that works, and one that does not
        run doctor --quick --root ../site
        card
        run doctor quick.yaml train.batch_size=1 --device cuda:0
        FAKE_GRAPH=small FAKE_WRONG=attention_forward run doctor quick.yaml train.batch_size=1 --device cuda:0
        ;;
    train) # on a card
        card
        run train quick.yaml train.steps=1 train.batch_size=1 device.type=cuda --name cuda
        ;;
    esac
    unset MEOPT_CUDA_LIBRARY MEOPT_KERNELS MEOPT_CUBLAS_LIBRARY MEOPT_CUBLASLT_LIBRARY MEOPT_NCCL_LIBRARY FAKE_MEMORY
}
run
run --help
for first in $("$MEOPT" complete ''); do
    if LC_ALL=C "$MEOPT" help "$first" | grep -q "^Usage: meopt $first COMMAND "; then
        run "$first"
        run "$first" --help
        for second in $("$MEOPT" complete "$first" ''); do tried "$first $second"; done
    else tried "$first"; fi
done
for topic in $("$MEOPT" complete help ''); do run help "$topic"; done
echo @@@ end
SH

cd "$dir"
"$MEOPT" config new quickstart quick.yaml >/dev/null 2>&1
"$MEOPT" fetch sample --dest sample --quiet
seq 100 >text.txt
for run in one two; do
    "$MEOPT" train quick.yaml train.steps=4 data.val=sample/COCO2014 --name $run --no-dashboard --run-dir every >/dev/null 2>&1 || fail "train"
done
for state in stopped failed diverged starting; do # in the list of runs
    cp -r every/one every/run-$state
    sed -i "s/\"state\": *\"done\"/\"state\":\"$state\"/" every/run-$state/state.json
    grep -q $state every/run-$state/state.json || fail "state.json"
done
for card in 03 04; do
    mkdir -p "site/sys/bus/pci/devices/0000:$card:00.0"
    for fact in vendor=0x1d94 device=0x6210 class=0x0b4000; do echo "${fact#*=}" >"site/sys/bus/pci/devices/0000:$card:00.0/${fact%%=*}"; done
done
mkdir -p site/sys/module/hycu site/opt/dtk/.info site/dev/dri site/proc/sys/kernel site/sys/class/iommu/ivhd0 site/dev/shm site/etc
echo 6.3.8-V1.2 >site/sys/module/hycu/version
echo 26.04 >site/opt/dtk/.info/rocm_version
echo 1 >site/proc/sys/kernel/numa_balancing
echo quiet >site/proc/cmdline
echo 'MemTotal: 8388608 kB' >site/proc/meminfo
: >site/dev/kfd
cp -r every/one every/实验
begin() { # FILE NAME WIDTH HEIGHT ENVIRONMENT COMMAND: in a terminal of the name and the file's encoding
    locale=zh_CN.UTF-8 bridge=
    case $1 in
    english) locale=C.UTF-8 ;;
    gbk) bridge="python3 '$MEOPT_SOURCE/tests/cli/gbk_terminal.py' env LC_ALL=zh_CN.GBK" ;;
    esac
    terminal "$3" "$4" $locale "LOCPATH='$dir' $5" "$bridge $6"
    in_terminal rename-session "$2"
    terminal=$2
}
for file in english chinese gbk; do # at once, in directories whose names are as long
    place=shown.$(printf %.3s $file)
    mkdir $place && cp -r quick.yaml text.txt sample $place && cp -r every $place/runs
    begin $file ${file}_every 100 6000 "MEOPT='$MEOPT' FAKES='$MEOPT_BUILD/tests' MEOPT_HIP_LIBRARY=/nowhere.so MEOPT_SOURCE='$MEOPT_SOURCE'" "sh -c 'cd $place; sh ../every.sh 2>&1'; : >$file.ended"
done
# ---- screens ----

. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
for run in one 实验; do dash_run "$dir/runs/$run" 2 60; done
cp "$MEOPT_SOURCE/configs/eva_clip.yaml" "$dir"
all() { # COMMAND ARGUMENT...: of tmux, in the three terminals
    command=$1
    shift
    server "$command" -t english "$@" \; "$command" -t chinese "$@" \; "$command" -t gbk "$@"
}
settled() { # the three screens, of 40 lines each, show TEXT and are not changing
    all capture-pane -p >before
    awk -v text="$1" '$0 ~ text { seen[int((NR - 1) / 40)] = 1 } END { exit !(seen[0] && seen[1] && seen[2]) }' before || return 1
    sleep 0.05
    all capture-pane -p | cmp -s - before
}
pages() { # NAME COMMAND TEXT KEY[=TEXT]...: adds the screens to the files, first when they show the text, and after each key
    name=$1 first=$3
    for file in english chinese gbk; do begin $file $file 100 40 '' "'$MEOPT' $2"; done
    shift 3
    for key in "=$first" "$@"; do
        [ -z "${key%%=*}" ] || all send-keys "${key%%=*}"
        case $key in *=*) text=${key#*=} ;; *) text='[^ ]' ;; esac
        wait_for 60 settled "$text" || fail "$name ${key%%=*} is not drawn"
        awk -v head="@@@ $name ${key%%=*}" '
            function put(line) { print line >>file; print line >>(file ".joined") }
            NR % 40 == 1 { file = NR < 40 ? "english" : NR < 80 ? "chinese" : "gbk"; put(head) }
            { put($0) }
            NR % 40 == 0 { put("@@@ status 0") }' before
    done
    for terminal in english chinese gbk; do stop; done
}
for locale in english:C.UTF-8 chinese:zh_CN.UTF-8 gbk:zh_CN.GBK; do
    file=${locale%%:*}
    LC_ALL=${locale#*:} LOCPATH="$dir" "$MEOPT" compare every/one every/two --html page.html >/dev/null || fail "compare --html"
    { echo '@@@ page'; sed '/^<style>/,/<\/style>/d; /^<script/,$d; s/<[^>]*>/  /g; s/&[a-z]*;//g' page.html; echo '@@@ status 0'; } | tee -a $file.joined >>$file
done
pages 'list of runs' '' 实验 '?=stop the run|停止运行' Escape / x Escape s Space Down Space d q n Escape x Escape
pages 'config list' 'config list' run.name
pages dashboard 'train --replay runs/one --speed 0' 60/60 1 Left Escape 2 f Escape t t t l R g '3=eacher|教师模型' f Escape 4 / x Enter Escape '?' Escape b Escape e Escape c x Escape r
pages form 'config edit --card-memory 64G eva_clip.yaml' 'family|系列' '?' Escape Down Down Enter Escape Down Down Space d Escape / x Enter u Tab x q
for file in english chinese gbk; do
    terminal=${file}_every
    wait_for 300 [ -e $file.ended ] && wait_for 5 on_screen '^@@@ end' || fail "the commands do not end: $file"
    screen >>$file
    screen -J >>$file.joined
    stop
done
python3 "$MEOPT_SOURCE/tests/cli/chinese_check.py" "$MEOPT_BUILD/share/locale/zh_CN/LC_MESSAGES/meopt.mo" english chinese gbk || fail "what commands show"

cat >columns.py <<'PY'
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
section() { sed -n "/^@@@ $1\$/,/^@@@ status/p" $file; } # HEADER: of the file
shows() { section "$1" | grep -q -- "$2" || fail "$file: no '$2' in $1"; } # HEADER TEXT
columns() { # HEADER TEXT...
    what=$1
    shift
    section "$what" | python3 columns.py "$@" || fail "$file: columns of $* in $what"
}
for file in chinese gbk; do
    shows 'meopt plan --help' '^用法：meopt plan'
    shows 'meopt plan --help' '^      --ranks N  *rank 数'
    shows 'meopt plan nowhere.yaml optim.lr=x' '无法打开'
    columns 'config list ' 运行的名称 文本 路径
    shows 'meopt runs' '^实验 '
    columns 'meopt runs' '完成 ' 状态
    shows 'list of runs ' '帮助  q'
    columns 'list of runs ' '完成 ' 状态
    shows 'list of runs ?' '保存并停止运行'
    shows 'form ' 单个
    columns 'form ' '│' '| '
    shows 'dashboard ' '步 60/60'
    shows 'dashboard 3' 教师模型
done
"$MEOPT" bench optim -w bf16 -n 100000 --repeat 1 -t 1 >log || fail "bench optim on the CPU"

# without the locale, as on many nodes of clusters; files and pipes are UTF-8 under GBK; JSON is English
[ "$(LC_ALL=zh_CN.UTF-8 LOCPATH=/nowhere "$MEOPT" runs --help | grep -c '列出各次运行')" = 1 ] || ! locale -a | grep -qi '^c\.utf' || fail "no Chinese without the locale"
LC_ALL=zh_CN.GBK LOCPATH="$dir" "$MEOPT" runs --help | grep -q '列出各次运行' || fail "a pipe under GBK is not UTF-8"
for command in 'config list --json' 'config list --json eva_clip.yaml' 'runs --json' 'plan eva_clip.yaml --json model_t.arch=eva02_tiny14 model_s.arch=eva02_tiny14' 'config get eva_clip.yaml optim.lr' \
    'compare every/one every/two -j' 'compare every/one every/two --csv' 'compare every/one runs/one --md'; do
    # shellcheck disable=SC2086
    "$MEOPT" $command >english || :
    # shellcheck disable=SC2086
    LC_ALL=zh_CN.UTF-8 LOCPATH="$dir" "$MEOPT" $command >chinese || :
    cmp english chinese >&2 || fail "'$command' depends on the language"
done
# files of a run trained under Chinese have the English words
LC_ALL=zh_CN.UTF-8 LOCPATH="$dir" "$MEOPT" train quick.yaml train.steps=2 --name chinese --no-dashboard --run-dir every >log 2>&1 || fail "a run under Chinese"
grep -q '"state": *"done"' every/chinese/state.json || fail "state.json: $(cat every/chinese/state.json)"
cut -d, -f1 every/chinese/events.jsonl | LC_ALL=C grep -q '[^ -~]' && fail "events.jsonl: $(cat every/chinese/events.jsonl)"
! LC_ALL=C grep '[^ -~]' every/chinese/*.json every/chinese/metrics.jsonl every/chinese/config.yaml >&2 || fail "a file is Chinese"
