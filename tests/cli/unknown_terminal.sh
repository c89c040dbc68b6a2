#!/bin/sh
# A terminal type without a terminfo entry (kitty, ghostty, tmux over ssh) is used as xterm-256color, with a notice. A dumb terminal, and
# none, are refused by name. The mouse stays the terminal's if nothing handles it.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
dash_run "$dir/runs/run1" 1 300
start() { # TERM COMMAND
    terminal 80 24 C.UTF-8 "TERM=$1" "'$MEOPT' $2 2>err"
}
start xterm-ghostty 'attach run1'
await 'step 300/300'
[ "$(in_terminal display -p '#{mouse_any_flag}')" = 0 ] || fail "the dashboard takes the mouse"
keys q
await 'status 0'
grep -q 'TERM=xterm-ghostty ' "$dir/err" || fail "does not say so: $(cat "$dir/err")"
restored quit
stop
(cd "$dir" && "$MEOPT" config new quickstart x.yaml >/dev/null && "$MEOPT" fetch sample --dest sample --quiet)
for how in attach 'attach run1' 'config edit x.yaml' 'train x.yaml train.steps=1 --run-dir trained'; do
    for term in dumb ''; do
        start "$term" "$how"
        case $how in train*) await 'status 0' ;; *) await 'status 2' ;; esac
        case $term in dumb) why="TERM .*'dumb'" ;; *) why=TERM ;; esac
        grep -q "$why" "$dir/err" || fail "'$how' with TERM='$term': $(cat "$dir/err")"
        stop
    done
done
start foot-extra 'config edit x.yaml'
await 'Memory of one rank'
keys q
await 'status 0'
stop
