#!/bin/sh
# A day, cut short: many steps, a checkpoint every hundred, viewers that come and go (and are killed, and lose their terminal): neither
# memory nor descriptors nor the time of a step grow. A checkpoint every 10 steps and 6 viewers, then it is stopped; MEOPT_LONG=1: 20,000
# steps to their end, a checkpoint every 100, and 200 viewers.
set -eu
steps=300 last=100000 every=10 viewers=6 batch=4 code=10
[ "${MEOPT_LONG:-0}" = 1 ] && steps=20000 last=20000 every=100 viewers=200 batch=16 code=0
command -v script >/dev/null || { echo "no script(1)"; exit 77; }
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 16
export OMP_NUM_THREADS=1 LC_ALL=C.UTF-8 TERM=xterm MEOPT="$MEOPT"
logs='log samples'
"$MEOPT" train configs/quickstart.yaml train.steps=$last train.checkpoint_steps=$every train.batch_size=$batch data.workers=1 --run-dir . --name day \
    --tensorboard --metrics-file day.prom >out 2>log &
pid=$!
echo $pid >left
until [ -s day/metrics.jsonl ]; do
    kill -0 $pid 2>/dev/null || fail "it has not begun"
    sleep 0.02
done
wait_for 30 eval '[ -s day/cards.jsonl ]' || fail "no reading of the cards" # the supervisor has opened all that it needs
read -r worker _ <"/proc/$pid/task/$pid/children" || test -n "$worker" # no newline ends it
of() { sed -n "s/^$2:[[:space:]]*\([0-9]*\).*/\1/p" "/proc/$1/status" 2>/dev/null; }
descriptors() { # the fewest of three looks: a file may be open for a moment
    for _ in 1 2 3; do ls "/proc/$1/fd" 2>/dev/null | wc -l; done | sort -n | head -n 1
}
ticks() { sed 's/.*) //' "/proc/$worker/stat" 2>/dev/null | awk '{ print $12 + $13 }'; }
sample() { # step, memory and descriptors of both, processor time of the worker; nothing where one of them ends meanwhile
    line="$at $(of $worker RssAnon) $(of $pid RssAnon) $(descriptors $worker) $(descriptors $pid) $(ticks)"
    [ ! -e "/proc/$worker/fd/0" ] || [ ! -e "/proc/$pid/fd/0" ] || echo "$line" >>samples
}
n=0
while kill -0 $pid 2>/dev/null; do
    at=$(wc -l <day/metrics.jsonl)
    [ $code = 0 ] || [ $n -lt $viewers ] || [ "$at" -lt $steps ] || break
    if [ $n -ge $viewers ] || [ "$at" -lt $((n * (steps * 6 / 10) / viewers)) ]; then
        sleep 0.02
        continue
    fi
    sample
    how=q
    case $((n % 4)) in 1) how=TERM ;; 2) how=KILL ;; 3) how=HUP ;; esac
    # typed as soon as the terminal is there; a signal comes when something is drawn
    {
        wait_for 10 eval '[ $how = q ] || [ -s screen ]' || :
        [ $how = q ] || kill -$how "$(cat viewer)"
        printf q # and no end of file after it: a key that comes with others is ignored
        for _ in $(seq 500); do
            [ ! -s viewer ] || kill -0 "$(cat viewer)" 2>/dev/null || break
            sleep 0.02
        done
    } | timeout 60 script -qefc 'echo $$ >viewer; exec "$MEOPT" attach day 2>viewer.err' screen >/dev/null 2>&1 || [ $how != q ] || fail "viewer $n"
    rm -f screen viewer
    n=$((n + 1))
done
[ $code = 0 ] || sample
[ $code = 0 ] || "$MEOPT" stop day >/dev/null
got=0
wait $pid || got=$?
: >left
[ $got = $code ] || fail "exit $got"
[ $n = $viewers ] || fail "$n viewers of $viewers"
[ $code = 10 ] || [ "$(wc -l <day/metrics.jsonl)" = $steps ] || fail "$(wc -l <day/metrics.jsonl) lines of metrics"
steps=$(wc -l <day/metrics.jsonl)
grep -q "^meopt_train_step.* $steps\$" day.prom || fail "figures for others: $(cat day.prom)"
# From a quarter on against the end. Less than 32 bytes a step and some pages, and one file that may be open for a moment: what a step, a
# checkpoint or a viewer forgot to give back would be more. The short form has room for the malloc arenas that threads begin late on a
# loaded machine (248 KiB were seen), and finds 3 KiB a step.
awk -v steps=$steps '
    NR == 1 { next }
    $1 >= steps / 4 && !from { from = NR; split($0, first) }
    { split($0, end); cost[NR] = $6; step[NR] = $1; n = NR }
    END {
        span = end[1] - first[1]
        room = 32 * span / 1024 + (steps < 10000 ? 640 : 128)
        middle = from; while (middle < n && step[middle] < (first[1] + end[1]) / 2) middle++
        early = (cost[middle] - cost[from]) / (step[middle] - step[from]); late = (cost[n] - cost[middle]) / (step[n] - step[middle])
        printf "steps %d to %d: worker %d to %d KiB, supervisor %d to %d KiB, descriptors %d to %d and %d to %d, processor time of a step %.2f to %.2f ms\n",
            first[1], end[1], first[2], end[2], first[3], end[3], first[4], end[4], first[5], end[5], 10 * early, 10 * late
        bad = end[2] - first[2] > room || end[3] - first[3] > room || end[4] > first[4] + 1 || end[5] > first[5] + 1 || (steps > 10000 && late > 1.25 * early)
        exit bad || n < 4
    }' samples || fail "something grows"
echo "$steps steps, $viewers viewers"
