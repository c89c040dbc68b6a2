#!/bin/sh
# A run killed with SIGKILL at random moments, the worker, the supervisor or both, and resumed each time equals the one that was left
# alone: metrics (without times), model and optimizer state, byte for byte; and nothing of the killed ones is left. Every step is
# saved, one checkpoint or two are kept, so that kills meet saves. 20 kills; MEOPT_LONG=1: 1,000. MEOPT_KILL_SEED draws other moments.
set -eu
kills=20
[ "${MEOPT_LONG:-0}" = 1 ] && kills=1000
seed=${MEOPT_KILL_SEED:-1}
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 8
steps=12
set -- "$work/configs/quickstart.yaml" train.steps=$steps train.checkpoint_steps=1 train.batch_size=4 data.workers=1 --run-dir "$work"
fail() {
    echo "FAILED after $killed kills, seed $seed: $*" >&2
    tail -n 8 cut.log >&2
    ls -A cut cut/ckpt >&2 || true
    exit 1
}
numbers() { sed -E 's/,"(images_per_s|step_ms|data_wait_ms)":[^,}]*//g; s/,"cards":.*//; s/}$//' "$1/metrics.jsonl" >"$1.steps"; }
killed=0 chains=0 resumes=0 half=0
"$MEOPT" train "$@" --name whole train.checkpoint_keep=1 >cut.log 2>&1 || fail "the undisturbed run"
numbers whole
begun=$(date +%s%N)
"$MEOPT" train "$@" --name timed train.checkpoint_keep=1 >cut.log 2>&1 || fail "the undisturbed run"
range=$((($(date +%s%N) - begun) / 1000000))
# moments, in milliseconds, over the whole of an undisturbed run: most starts are killed on their way
awk -v seed="$seed" -v n=$((4 * kills)) -v range=$range 'BEGIN {
    srand(seed); split("worker supervisor both", who)
    for (i = 0; i < n; i++) printf "%.3f %s\n", rand() * range / 1000, who[1 + int(3 * rand())] }' >moments
last=$(printf 'step-%08d' $steps)
same() { # the run has ended: it is the undisturbed one
    numbers cut
    cmp whole.steps cut.steps || fail "other metrics"
    for part in model.safetensors optimizer.bin; do
        cmp "whole/ckpt/$last/$part" "cut/ckpt/$last/$part" || fail "another $part"
    done
    left=$(find . -name '.*.??????' -o -name '.trash*' -o -name '*.partial' -o -name '*.new' -o -name '*.damaged*')
    [ -z "$left" ] || fail "left: $left"
    kept="LATEST $last "
    [ $keep = 1 ] || kept="LATEST $(printf 'step-%08d' $((steps - 1))) $last "
    [ "$(ls cut/ckpt | tr '\n' ' ')" = "$kept" ] || fail "keep $keep"
}
begin() { # the run, or what is to come of it
    if [ -d cut ]; then
        "$MEOPT" train --resume cut >>cut.log 2>&1 &
        resumes=$((resumes + 1))
    else
        "$MEOPT" train "$@" --name cut train.checkpoint_keep=$keep >>cut.log 2>&1 &
    fi
    pid=$!
    echo $pid >left
}
ends() { # CODES: of what was begun
    got=0
    wait $pid 2>/dev/null || got=$?
    : >left
    case " $1 " in *" $got "*) ;; *) fail "exit $got, expected $1" ;; esac
}
exec 3<moments
while [ $killed -lt $kills ]; do
    keep=$((chains % 2 + 1))
    rm -rf cut
    : >cut.log
    got=1
    while [ $got != 0 ] && [ $killed -lt $kills ] && read -r moment who <&3; do
        begin "$@"
        sleep "$moment"
        worker=
        read -r worker _ 2>/dev/null <"/proc/$pid/task/$pid/children" || true
        case "$who${worker:+ }" in
        "worker ") kill -KILL $worker 2>/dev/null || true ;;
        "both ") kill -KILL ${worker:-$pid} $pid 2>/dev/null || true ;;
        *) kill -KILL $pid 2>/dev/null || true ;;
        esac
        ends "0 137"
        [ $got = 0 ] || killed=$((killed + 1))
        [ ! -e cut/ckpt ] || [ -z "$(find cut/ckpt -name '*.partial')" ] || half=$((half + 1))
    done
    while [ $got != 0 ]; do
        begin "$@"
        ends 0
    done
    same
    chains=$((chains + 1))
done
[ $half -ge $((kills / 20)) ] || fail "only $half kills met a save"
echo "seed $seed: $killed kills, $resumes resumes, $half of them amid a save, $chains runs: the same bytes"
