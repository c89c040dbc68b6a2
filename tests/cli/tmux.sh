# Sourced by the tests of screens: runs programs in a terminal of tmux. $dir is the temporary directory of tests/lib.sh.
command -v tmux >/dev/null || { echo "no tmux"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work socket= terminals=0
cleanup() { [ -z "$socket" ] || tmux -L "$socket" kill-server 2>/dev/null; }
report() { [ -z "$socket" ] || tmux -L "$socket" capture-pane -p; }
terminal() { # WIDTH HEIGHT LOCALE ENVIRONMENT COMMAND: in a new one; a new socket each time, reusing one races with its server's end
    terminals=$((terminals + 1))
    socket="meopt-$$-$terminals"
    tmux -L "$socket" -f /dev/null new-session -d -x "$1" -y "$2" "env -i PATH='$PATH' TERM=screen-256color LC_ALL=$3 $4 ASAN_OPTIONS='${ASAN_OPTIONS:-}' $5"
    tmux -L "$socket" set -g window-size manual >/dev/null
}
on_screen() { tmux -L "$socket" capture-pane -p 2>/dev/null | grep -q -- "$1"; }
await() { # text on the screen, within a minute
    wait_for 60 on_screen "$1" || fail "no '$1' on the screen"
}
keys() { tmux -L "$socket" send-keys "$@"; }
restored() { [ "$(tmux -L "$socket" display -p '#{alternate_on},#{cursor_flag}')" = 0,1 ] || fail "terminal not restored after $1"; }
stop() {
    tmux -L "$socket" kill-server
    socket=
}
