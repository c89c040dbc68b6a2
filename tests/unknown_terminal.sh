#!/bin/sh
# A terminal whose name this machine does not know (kitty, ghostty, tmux over ssh) is drawn on as xterm-256color, with a word;
# a dumb one, and none, are refused by name. The mouse stays the terminal's where nothing answers it.
set -eu
. "$MEOPT_SOURCE/tests/tmux.sh"
. "$MEOPT_SOURCE/tests/dash_run.sh"
dash_run "$dir/runs/run1" 1 300
start() { # TERM COMMAND
    terminal 80 24 C.UTF-8 "TERM=$1" "sh -c \"cd '$dir'; '$MEOPT' $2 2>err; echo status \\\$?; sleep 60\""
}
start xterm-ghostty 'attach run1'
await 'step 300/300'
[ "$(tmux -L "$socket" display -p '#{mouse_any_flag}')" = 0 ] || fail "the dashboard takes the mouse"
keys q
await 'status 0'
grep -q 'TERM=xterm-ghostty is not known on this machine' "$dir/err" || fail "does not say so: $(cat "$dir/err")"
restored quit
stop
start dumb 'attach run1'
await 'status 2'
stop
"$MEOPT" config new quickstart "$dir/x.yaml" >/dev/null
start foot-extra 'config edit x.yaml'
await 'Memory of one rank'
keys q
await 'status 0'
stop
start dumb 'config edit x.yaml'
await 'status 2'
grep -q "TERM is 'dumb'" "$dir/err" || fail "dumb: $(cat "$dir/err")"
stop
