# Sourced by the tests of screens: runs programs in terminals of one tmux server. $dir is the temporary directory of tests/lib.sh.
# $terminal is the one that the functions mean: the newest, or one whose name was kept.
command -v tmux >/dev/null || { echo "no tmux"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work terminal= terminals=0
server() { tmux -L "meopt-$$" -f /dev/null "$@"; }
in_terminal() { # COMMAND ARGUMENT...: of tmux
    command=$1
    shift
    server "$command" -t "$terminal" "$@"
}
end_terminals() {
    [ $terminals = 0 ] || server kill-server 2>/dev/null || :
    rm -f "${TMUX_TMPDIR:-/tmp}/tmux-$(id -u)/meopt-$$" # which tmux leaves
}
cleanup() { end_terminals; }
screen() { in_terminal capture-pane -p "$@"; }
report() { [ -z "$terminal" ] || screen; }
terminal() { # WIDTH HEIGHT LOCALE ENVIRONMENT COMMAND: runs it in $dir in a new terminal, then shows its status
    terminals=$((terminals + 1))
    terminal=t$terminals
    printf 'trap : INT\ncd "%s"\n%s\necho "status $?"\nexec tail -f /dev/null\n' "$dir" "$5" >"$dir/.$terminal"
    server start-server \; set -s exit-empty off \; new-session -d -s $terminal -x "$1" -y "$2" \
        "exec env -i PATH='$PATH' TERM=screen-256color LC_ALL=$3 $4 ASAN_OPTIONS='${ASAN_OPTIONS:-}' ${MEOPT_CPU_ISA:+MEOPT_CPU_ISA=$MEOPT_CPU_ISA} ${FAST_CLOCK:+FAST_CLOCK=$FAST_CLOCK LD_PRELOAD=$LD_PRELOAD LD_LIBRARY_PATH='$LD_LIBRARY_PATH'} sh '$dir/.$terminal'" \; set -w window-size manual
}
on_screen() { screen 2>/dev/null | grep -q -- "$1"; }
settled() { # the screen does not change in .15 s
    screen >"$dir/before"
    sleep 0.15
    screen | cmp -s - "$dir/before"
}
await() { # text on the screen, within a minute
    wait_for 60 on_screen "$1" || fail "no '$1' on the screen"
}
switches() { sed -n 's/^voluntary_ctxt_switches:[[:space:]]*//p' "/proc/$program/status"; }
rests() { # N: the program has begun N waits for a key from now on, and so has read all that was typed before; $program is its number
    program=$(pgrep -P "$(in_terminal display -p '#{pane_pid}')")
    rests_at=$(($(switches) + $1))
    wait_for 60 eval '[ "$(switches)" -ge $rests_at ]' || fail "the program does not wait for keys"
}
keys() { in_terminal send-keys "$@"; }
resize() { in_terminal resize-window -x "$1" -y "$2"; } # WIDTH HEIGHT
restored() { [ "$(in_terminal display -p '#{alternate_on},#{cursor_flag}')" = 0,1 ] || fail "terminal not restored after $1"; }
stop() {
    in_terminal kill-session
    terminal=
}
