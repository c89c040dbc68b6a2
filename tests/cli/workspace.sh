#!/bin/sh
# The list of runs on a real terminal: 'meopt' alone opens it; columns at 80x24 and 132x43; filter, sort, marks, compare, the
# dashboard and back; a node that died is silent and not training; 1,000 runs. And 'meopt runs' with the same columns.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
for i in 1 2 3; do dash_run "$dir/runs/eva_clip-lr$i" 1 $((100 * i)); done
dash_run "$dir/runs/dinov2-教师" 2 60
now=$(date +%s)
dead="$dir/runs/dead_node"
dash_run "$dead" 1 50
printf '{"state":"training","step":50,"total_steps":100,"epoch":1,"pid":1,"host":"elsewhere","time":%d,"exit_code":null}\n' $((now - 7300)) >"$dead/state.json"
printf '{"time":%d,"worker":{"state":"running","phase":"training"},"cards":[]}\n' $((now - 7231)) >"$dead/live.json"
touch -d "@$((now - 7231))" "$dead/metrics.jsonl"
sed -i "s/\"started\":1700000000.0/\"started\":1800000000.0/" "$dir/runs/eva_clip-lr2/meta.json"
start() { # WIDTH HEIGHT COMMAND
    terminal "$1" "$2" C.UTF-8 "PAGER=cat" "'$MEOPT' $3"
}
start 80 24 ''
await '^runs in runs  *5 of 5  by age$'
await '^  run  *state  *step  *loss  *left  *peak saved$'
await '^  eva_clip-lr2  *done  *200/200  *0.0[0-9]*  *-  15.4G  -49%$'
await '^  dead_node  *silent 2h  *50/100'
await '^  dinov2-教师  *done'
[ "$(screen | sed -n 3p | cut -c3-14)" = eva_clip-lr2 ] || fail "the newest is not the first"
keys s
await 'by name$'
keys / l r 3
await 'filter: lr3_'
await '1 of 5  by name'
keys Enter
await 'runs in runs  filter: lr3'
keys Enter
await 'step 300/300'
keys q
await '1 of 5  by name'
keys Escape
await '5 of 5  by name'
keys G Space
await '^\* eva_clip-lr3'
keys k
keys k Enter # the one above, over the marked one
await 'baseline'
keys q
await '5 of 5  by name'
resize 132 43
await '^  run  *state .* saved bound by  *loss  *best  *rate$'
await '^  dinov2-教师 .* █.*▁ '
keys d
await '^\* eva_clip-lr3'
keys '?'
await 'any key: back'
keys x
await '5 of 5'
keys g j '?' # dinov2 has ended
await 'any key: back'
keys Escape
await '5 of 5'
keys x
await 'type stop, Enter'
keys stop
keys Enter
await 'it has ended'
keys n
await 'train the experiment'
keys nothing
await 'nothing_'
keys Enter
await 'Enter goes back'
screen | grep -q 'nothing' || fail "the failed start is not reported"
keys Enter
await '5 of 5'
dash_run "$dir/runs/new_one" 1 20
await '6 of 6'
keys q
await 'status 0'
restored quit
stop

# the comparison of two that are marked
start 80 24 'attach --run-dir runs'
await '6 of 6'
keys s Space Space
await '^\* eva_clip-lr3'
keys d
compared() { screen -S -500 | grep -q '^Facts  '; }
wait_for 10 compared || fail "no comparison"
await '6 of 6'
keys q
await 'status 0'
stop
start 40 10 attach
await '6 of 6'
keys q
await 'status 0'
stop

# the same columns as lines
cd "$dir"
terminal 80 24 C.UTF-8 '' "'$MEOPT' runs --sort name"
await '^run  *state  *step  *loss  *left  *peak saved$'
await '^new_one  *done  *20/20'
[ "$(screen | grep -c .)" = 8 ] || fail "'meopt runs' wraps at 80 columns"
stop
"$MEOPT" runs --state silent | grep -q '^dead_node  *silent 2h' || fail "--state"
[ "$("$MEOPT" runs --filter 'eva done' -n 2 --json | grep -c '"name"')" = 2 ] || fail "--filter, --limit"
[ "$("$MEOPT" runs --sort step -r | sed -n 2p | cut -d' ' -f1)" = new_one ] || fail "--sort, --reverse"
"$MEOPT" runs --json --filter dead | python3 -c '
import json, sys
(r,) = json.load(sys.stdin)
assert r["state"] == "training" and 7200 < r["silent_s"] < 7400 and r["left_s"] is None, r
assert r["planned_peak_bytes"] == 16576937984 and r["planned_baseline_peak_bytes"] == 32212254720 and r["device"] == "K100 AI", r' || fail "--json"
"$MEOPT" stop dead_node 2>err
grep -q 'runs/dead_node .* 2:0' err || fail "stop does not warn: $(cat err)"
timeout -s INT 1 "$MEOPT" runs --watch >watched || true
[ "$(grep -c '^run ' watched)" -ge 1 ] || fail "--watch"

# 1,000 runs: opened in less than half a second of the processor; then less than one part in a hundred of it
mkdir many
python3 - <<'PY'
import os
for i in range(1000):
    run, to = "runs/eva_clip-lr%d" % (i % 3 + 1), "many/r%d" % i
    os.mkdir(to)
    for name in ("config.yaml", "meta.json", "plan.json", "state.json", "metrics.jsonl"):
        os.link(run + "/" + name, to + "/" + name)
PY
python3 - "$MEOPT" <<'PY' || fail "1,000 runs take too long"
import resource, subprocess, sys
out = subprocess.run([sys.argv[1], "runs", "--run-dir", "many"], stdout=subprocess.PIPE, check=True).stdout
use = resource.getrusage(resource.RUSAGE_CHILDREN)
assert out.count(b"\n") == 1001 and use.ru_utime + use.ru_stime < 0.5, (out.count(b"\n"), use)
PY
hasten 10
start 80 24 'attach --run-dir many'
await '1000 of 1000'
used() { awk '{print $14 + $15}' "/proc/$program/stat"; }
rests 3
before=$(used)
rests 20 # of 200 ms each
[ $(($(used) - before)) -le 4 ] || fail "the list takes $(($(used) - before)) ticks in 4 s"
keys q
await 'status 0'
stop
