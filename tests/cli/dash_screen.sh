#!/bin/sh
# The dashboard in a real terminal (tmux): golden screens of a replayed run at four sizes, with 1, 2 and 8 cards, UTF-8 and ASCII, with and
# without colour; every tab. The terminal is restored after quit, suspension and fatal signals. Without a terminal the output is plain text.
# MEOPT_UPDATE_GOLDEN=1 records the golden screens again.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
hasten 4 # the dashboard draws every half a second
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
golden=$MEOPT_SOURCE/tests/data/dash_screen
for cards in 1 2 8; do dash_run "$dir/runs/run$cards" $cards 300; done
start() { # width height locale environment command...
    width=$1 height=$2 locale=$3 more=$4
    shift 4
    rm -f "$dir/pid"
    terminal "$width" "$height" "$locale" "$more" "cd runs; sh -c 'echo \$\$ >../pid; exec \"\$@\"' sh '$MEOPT' $*"
}
is_golden() { screen | cmp -s - "$golden/$1.txt"; }
check() { # NAME: the screen against the golden one, as soon as it is equal
    if [ -n "${MEOPT_UPDATE_GOLDEN:-}" ]; then
        mkdir -p "$golden"
        wait_for 5 settled
        screen >"$golden/$1.txt"
        return
    fi
    wait_for 20 is_golden "$1" && return
    screen | diff -u "$golden/$1.txt" - >&2 || true
    fail "golden screen $1 (MEOPT_UPDATE_GOLDEN=1 sh tests/cli/dash_screen.sh writes it anew)"
}

for cards in 1 2 8; do
    for mode in utf8 ascii; do
        for colour in colour mono; do
            locale=C.UTF-8 more=
            [ $mode = utf8 ] || locale=C
            [ $colour = colour ] || more=NO_COLOR=1
            start 80 24 $locale "$more" train --replay run$cards --speed 0
            names="${names:-} $terminal:$cards-$mode-$colour"
        done
    done
done
for name in $names; do
    terminal=${name%%:*} name=${name#*:}
    await 'step 300/300'
    for size in 80x24 40x12 132x43 200x60; do
        resize "${size%x*}" "${size#*x}"
        check "$size-$name"
    done
    screen -e >"$dir/attributes"
    if grep -q "$(printf '\033')\[[0-9;]*\(38;5\|3[0-7]m\)" "$dir/attributes"; then found=colour; else found=mono; fi
    [ $found = "${name##*-}" ] || fail "colours: $found, expected ${name##*-}"
    case $name in *ascii*) ! LC_ALL=C grep -q '[^ -~]' "$golden/132x43-$name.txt" || fail "not ASCII" ;; esac
    keys q
    await 'status 0'
    restored quit
    stop
done

start 100 30 C.UTF-8 '' train --replay run2 --speed 0 --baseline run8
await baseline
for tab in charts memory log help; do
    keys Tab
    check "tab-$tab"
done
keys 1 l
await ', log'
keys z
await 'steps 0 to 300'
keys f g
resize 20 5
await '^too small: 36x10$'
resize 80 24
await 'step 300/300'
keys C-c
await 'status 130'
restored SIGINT
stop

for signal in TERM HUP SEGV; do
    start 80 24 C.UTF-8 '' attach run1
    await 'step 300/300'
    kill -$signal "$(cat "$dir/pid")"
    await 'status'
    restored SIG$signal
    stop
done

# suspended and continued by a shell with jobs
terminal 80 24 C.UTF-8 "PS1='shell> '" 'sh -i'
await 'shell>'
keys "'$MEOPT' attach '$dir/runs/run1'" Enter
await 'step 300/300'
keys C-z
await 'Stopped\|Suspended'
restored Ctrl-Z
keys 'fg' Enter
await '1 overview'
keys q
await 'shell>'
restored 'fg and quit'
stop

# speed: half of a run of 96 s, in about a second
start 80 24 C.UTF-8 '' train --replay run1 --speed 50
await 'step [0-9]*/300'
await 'replay, end'
keys q
await 'status 0'
stop

"$MEOPT" attach "$dir/runs/run1" >"$dir/out" 2>"$dir/err" </dev/null && fail "attach without a terminal"
grep -q attach "$dir/err" || fail "attach without a terminal: $(cat "$dir/err")"
! grep -q "$(printf '\033')" "$dir/out" "$dir/err" || fail "escape bytes without a terminal"
got=0
"$MEOPT" attach "$dir" 2>"$dir/err" </dev/null || got=$?
[ $got = 1 ] || fail "attach to what is no run: exit $got"
