#!/bin/sh
# The pause before a restart (--restarts): the run is not shown as failed, and `meopt stop` and SIGTERM end it with exit code 10, also while
# the ranks are still ending. A worker stopped by SIGSTOP is shown as stopped, its successor is not.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 8
export OMP_NUM_THREADS=1
fail() {
    echo "FAILED: $name: $*" >&2
    tail -n 5 "$name.err" >&2 || true
    cat "$name/state.json" >&2 || true
    exit 1
}
await() { wait_for 60 "$@" >"$name.await" 2>&1 || fail "not within 60 s: $*"; } # COMMAND...
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "$name/state.json"; } # of state.json, which has one key a line
state_is() { [ "$(field state)" = "$1" ]; }
pauses() { state_is starting && [ "$(field pid)" = $pid ]; } # the number is the supervisor's
worker() { sed -n 's/.*"worker": *{"pid": *\([0-9]*\).*/\1/p' "$name/live.json"; }
begin() { # NAME OPTIONS...: until it has saved
    name=$1
    shift
    "$MEOPT" train configs/quickstart.yaml train.batch_size=4 data.workers=1 train.checkpoint_steps=5 --steps 100000 --run-dir . --name "$name" \
        --restarts 3 "$@" >"$name.out" 2>"$name.err" &
    pid=$!
    echo $pid >>left
    await test -e "$name/ckpt/LATEST"
    await test -e "$name/live.json"
}
watch_states() { # while it lives: no state of an end
    while kill -0 $pid 2>/dev/null; do
        field state >>"$name.states"
        sleep 0.05
    done
}
ends() { # CODE
    exits "$1" wait $pid || fail "exit $code, expected $1"
    [ "$1" != 10 ] || state_is stopped || fail "it is called $(field state)"
    [ "$(field exit_code)" = "$1" ] || fail "exit_code is $(field exit_code)"
    [ ! -e "$name/request/stop" ] || fail "the request is left"
}

paused() { # HOW
    how=$1
    begin "$how" --workers 2
    kill -KILL "$(worker)"
    watch_states &
    watcher=$!
    await pauses
    [ "$(field exit_code)" = null ] || fail "it has an exit code"
    "$MEOPT" runs --run-dir . --json | grep -A30 "\"name\": \"$how\"" | grep -q '"state": "starting"' || fail "runs calls it something else"
    case $how in
    stop) asked=$("$MEOPT" stop --json "$name") ;;
    now) asked=$("$MEOPT" stop --json --now "$name") ;;
    term) kill -TERM $pid && asked='"asked": "SIGTERM"' ;;
    esac
    case $asked in *'"asked": null'*) fail "stop takes it for ended: $asked" ;; esac
    ends 10
    wait $watcher || true
    ! grep -q failed "$name.states" || fail "it was called failed while it lived"
    tail -n 1 "$name/events.jsonl" | grep -q '"event":"stopped"' || fail "no event of it"
    "$MEOPT" train --resume "$name" --stop-after $(($(wc -l <"$name/metrics.jsonl") + 2)) >"$name.out" 2>"$name.err" || [ $? = 10 ] || fail "it does not continue"
}

# at the moment when a rank is lost
lost() {
    begin moment --workers 2
    kill -KILL "$(worker)"
    asked=$("$MEOPT" stop --json moment)
    case $asked in *'"asked": "stop"'*) ;; *) fail "stop takes it for ended: $asked" ;; esac
    exits 10 wait $pid || [ $code = 14 ] || fail "exit $code"
}

# a worker that was stopped by a signal and killed: the next is not shown as stopped
frozen() {
    begin frozen
    kill -STOP "$(worker)"
    await grep -q '"state":"stopped by a signal"' frozen/live.json
    old=$(worker)
    kill -KILL "$old"
    await pauses
    again() { [ "$(worker)" != "$old" ] && grep -q '"phase": *"[a-z]' frozen/live.json && state_is training; }
    await again
    grep -q '"state": *"running"' frozen/live.json || fail "the new worker is shown as $(cat frozen/live.json)"
    "$MEOPT" stop frozen 2>said
    ends 10
}

# All at once: most of it is waiting.
cases=
for case in 'paused stop' 'paused now' 'paused term' lost frozen; do
    $case &
    cases="$cases $!"
done
for case in $cases; do wait $case || code=1; done
[ -z "${code-}" ] || exit $code
: >left
