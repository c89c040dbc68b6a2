#!/bin/sh
# A run of a Chinese user can be read by everybody: state.json, events.jsonl and the facts of hooks have messages in English, of whatever
# kind its end is. meopt attach shows them in the language of its user.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
[ -e "$MEOPT_BUILD/share/locale/zh_CN/LC_MESSAGES/meopt.mo" ] || { echo "no msgfmt when this was built"; exit 77; }
[ "$(LC_ALL=zh_CN.UTF-8 "$MEOPT" runs --help | grep -c '列出各次运行')" = 1 ] || { echo "no locale in UTF-8"; exit 77; }
logs='out err hook runs/*/state.json runs/*/events.jsonl'
train() { # CODE NAME ARGUMENT...: a run that fails under Chinese; its files are in English, its user has read Chinese
    want=$1 name=$2 got=0
    shift 2
    LC_ALL=zh_CN.UTF-8 timeout 60 "$MEOPT" train configs/quickstart.yaml --name "$name" --no-dashboard --on-end 'cat >hook' "$@" >out 2>err || got=$?
    [ "$got" = "$want" ] || fail "$name: exit $got, expected $want"
    grep '^meopt: ' err | LC_ALL=C grep -q '[^ -~]' || fail "$name: the error is not Chinese"
    ! LC_ALL=C grep -n '[^ -~]' "runs/$name"/*.json "runs/$name"/*.jsonl "runs/$name/config.yaml" hook >&2 || fail "$name: a file is Chinese"
    python3 - "runs/$name" <<'PY' || fail "$name: the message"
import json, sys
state, hook = json.load(open(sys.argv[1] + "/state.json")), json.load(open("hook"))
events = [json.loads(line) for line in open(sys.argv[1] + "/events.jsonl")]
assert state["message"] and state["hint"] and (hook["message"], hook["hint"]) == (state["message"], state["hint"]), (state, hook)
assert all(e["message"] == state["message"] for e in events if "message" in e), events
PY
}
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
train 13 diverged train.steps=40 optim.lr=900 optim.clip_grad_norm=0 optim.warmup_steps=0
# One of two ranks fails: it is named whatever the language in which ranks talk.
find sample/COCO2014/train2014 -name '*.jpg' | sort | sed -n '1,20p' | while read -r image; do echo none >"$image"; done
train 1 ranks train.steps=40 data.max_bad=0 --workers 2
LC_ALL=C.UTF-8 "$MEOPT" train configs/quickstart.yaml --name english --no-dashboard train.steps=40 data.max_bad=0 --workers 2 >out 2>err && fail "bad images"
message() { python3 -c 'import json, re, sys; print(re.sub(r"runs/\w+|pid \d+", "", json.load(open(sys.argv[1]))["message"]))' "runs/$1/state.json"; }
message english | grep -q '^rank [01] ' || fail "no rank in: $(message english)"
[ "$(message ranks)" = "$(message english)" ] || fail "under Chinese: $(message ranks), not: $(message english)"
find sample/COCO2014 -name '*.jpg' | while read -r image; do echo none >"$image"; done
train 1 images train.steps=40
zh=不是有限值 en='not finite' # of the loss, or first of a gradient: it depends on the instruction set
message diverged | grep -q "$en" || zh=无穷 en=infinity
for seen in "zh_CN.UTF-8 $zh" "C.UTF-8 $en"; do
    terminal 120 40 "${seen%% *}" '' "'$MEOPT' attach runs/diverged"
    await "${seen#* }"
    stop
done
