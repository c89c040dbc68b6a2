#!/bin/sh
# The dashboard sets the title of the window and restores it. The bell rings when a run ends that the dashboard has seen running, and not
# for a run that had already ended.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
dash_run "$dir/old" 1 40
dash_run "$dir/new" 1 40
alive='{"state":"training","step":20,"total_steps":80,"epoch":1,"pid":%d,"host":"elsewhere","time":%d,"exit_code":null}\n'
printf "$alive" 1 "$(date +%s)" >"$dir/new/state.json"
titled() { [ "$(in_terminal display -p '#{pane_title}')" = "$1" ]; }
awaited() { # the title, within 10 s
    wait_for 10 titled "$1" || fail "the title is '$(in_terminal display -p '#{pane_title}')', not '$1'"
}
start() {
    terminal 80 24 C.UTF-8 '' "printf '\\033]0;before\\007'; '$MEOPT' attach $1"
    server set -g monitor-bell on >/dev/null
    server set -g bell-action any >/dev/null
    server set-hook -g alert-bell "run-shell 'echo rang >>\"$dir/bell\"'" >/dev/null
}
start old
awaited 'old done - meopt'
keys q
await 'status 0'
awaited before
[ ! -e "$dir/bell" ] || fail "the bell of a run that had ended"
stop
start new
awaited 'new 50% loss 0.00576 - meopt'
cp "$dir/old/state.json" "$dir/new/state.json"
awaited 'new done - meopt'
wait_for 5 [ -s "$dir/bell" ] || fail "no bell"
keys q
await 'status 0'
awaited before
stop
