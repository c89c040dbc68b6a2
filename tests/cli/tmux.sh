# Sourced by the tests of screens: programs in a terminal of tmux's. Makes $dir, a directory that is gone at the end as the terminal is.
command -v tmux >/dev/null || { echo "no tmux"; exit 77; }
dir=$(mktemp -d)
socket= terminals=0
trap '[ -z "$socket" ] || tmux -L "$socket" kill-server 2>/dev/null || :; rm -rf "$dir"' EXIT
fail() {
    echo "FAILED: $*" >&2
    [ -z "$socket" ] || tmux -L "$socket" capture-pane -p >&2 || true
    exit 1
}
terminal() { # WIDTH HEIGHT LOCALE ENVIRONMENT COMMAND: in a new one; a new socket each time, reusing one races with its server's end
    terminals=$((terminals + 1))
    socket="meopt-$$-$terminals"
    tmux -L "$socket" -f /dev/null new-session -d -x "$1" -y "$2" "env -i PATH='$PATH' TERM=screen-256color LC_ALL=$3 $4 ASAN_OPTIONS='${ASAN_OPTIONS:-}' $5"
    tmux -L "$socket" set -g window-size manual >/dev/null
}
await() { # text on the screen, within a minute
    i=0
    until tmux -L "$socket" capture-pane -p 2>/dev/null | grep -q -- "$1"; do
        i=$((i + 1))
        [ $i -lt 1200 ] || fail "no '$1' on the screen"
        sleep 0.05
    done
}
keys() { tmux -L "$socket" send-keys "$@"; }
restored() { [ "$(tmux -L "$socket" display -p '#{alternate_on},#{cursor_flag}')" = 0,1 ] || fail "terminal not restored after $1"; }
stop() {
    tmux -L "$socket" kill-server
    socket=
}
