#!/bin/sh
# The log tab on a real terminal: horizontal scrolling, oldest and newest lines, search. End moves in the log without changing the time. The
# header reports a full disk of a resumed run.
set -eu
[ "$(id -u)" = 0 ] || [ "${1:-}" = inside ] || ! unshare -rm true 2>/dev/null || exec unshare -rm sh "$0" inside # for a disk of its own
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
dash_run "$dir/runs/one" 1 300
awk 'BEGIN { for (i = 1; i <= 150; i++) printf "line %d of the log, which is long%*s and ends %d%s\n", i, 60, "", i, i % 40 ? "" : " Odd一" }' >"$dir/runs/one/worker.log"
start() { # COMMAND
    terminal 80 24 C.UTF-8 "NO_COLOR=1 HOME='$dir'" "'$MEOPT' $1"
}
start 'attach runs/one'
await 'step 300/300'
keys 4
await '^line 150 of the log'
keys Home
await '^line 1 of the log'
await 'worker.log, [0-9]* lines back'
keys Up Down End
await '^line 150 of the log'
screen | head -1 | grep -q ' done$' || fail "End in the log moves the time"
for i in 1 2 3; do keys Right; done
await 'worker.log, from column 49'
await 'and ends 150$'
keys Left Left Left
await '^line 150 of the log'
keys /
await 'search: _'
keys oDD
await 'search: oDD_'
keys Enter
await '/oDD (n older'
keys n
keys Right Right Right Right
await 'ends 80 Odd一$'
keys n
await 'ends 40 Odd一$'
keys N N
await 'ends 120 Odd一$'
keys N
await 'no newer line'
keys q
await 'status 0'
stop

mkdir "$dir/disk"
if mount -t tmpfs -o size=256k none "$dir/disk" 2>/dev/null; then
    cleanup() {
        end_terminals
        umount "$dir/disk"
    }
    dash_run "$dir/disk/full" 1 20
    now=$(date +%s)
    tail -f /dev/null &
    pid=$!
    echo $pid >"$dir/left"
    printf '{"state":"training","step":20,"total_steps":80,"epoch":1,"pid":%d,"host":"elsewhere","time":%d,"exit_code":null}\n' $pid $((now - 40)) >"$dir/disk/full/state.json"
    printf '{"time":%d,"worker":{"state":"running","phase":"training"},"cards":[]}\n' $((now - 31)) >"$dir/disk/full/live.json"
    start 'attach disk/full'
    await 'no activity'
    dd if=/dev/zero of="$dir/disk/filling" bs=4k 2>/dev/null || true
    await 'disk full: .* [3-9][0-9]s'
    rm "$dir/disk/filling"
    await 'no activity'
    keys q
    await 'status 0'
    stop
else
    echo "no small disk can be mounted here: a full one was not looked at"
fi
