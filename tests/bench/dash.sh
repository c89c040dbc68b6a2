#!/bin/sh
# What the dashboard costs: processor time of supervisor and viewer as a share of one core over 20 s with four sampled cards, and
# their peak memory; the training step with and without a viewer, five pairs interleaved; opening a run of 5,000,000 steps.
#   MEOPT=build/meopt sh tests/bench/dash.sh
set -eu
command -v tmux >/dev/null || { echo "needs tmux"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
MEOPT=$(realpath "${MEOPT:-$source/build/meopt}")
work=$(mktemp -d -p "${TMPDIR:-/tmp}")
socket="meopt-bench-$$"
trap 'tmux -L "$socket" kill-server 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
mkdir configs
cp "$source/configs/quickstart.yaml" configs/
"$MEOPT" fetch sample --dest sample --quiet
export OMP_NUM_THREADS=1
awk 'BEGIN { printf "{\"cards\": ["; for (c = 0; c < 4; c++) printf "%s{\"name\": \"K100 AI\", \"pci\": \"0000:0%d:00.0\", \"mem_used_bytes\": 5e9, \"mem_total_bytes\": 68719476736, \"busy_percent\": 97, \"temp_c\": 61, \"power_w\": 310}", c ? ", " : "", c; print "]}" }' >cards.json
field() { sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$1/live.json"; }
used() { awk '{print ($14 + $15)}' "/proc/$1/stat"; }
tmux -L "$socket" -f /dev/null new-session -d -x 132 -y 43 "cd '$work' && env MEOPT_MONITOR=fake:cards.json OMP_NUM_THREADS=1 TERM=screen-256color LC_ALL=C.UTF-8 '$MEOPT' train configs/quickstart.yaml --run-dir runs --name seen --steps 10000000; sleep 100"
sleep 5
supervisor=$(field runs/seen supervisor_pid)
viewer=$(pgrep -x -f "$MEOPT train configs/quickstart.yaml --run-dir runs --name seen --steps 10000000" | grep -v "^$supervisor\$" | head -1)
a=$(used "$supervisor") b=$(used "$viewer")
sleep 20
awk -v s="$(($(used "$supervisor") - a))" -v v="$(($(used "$viewer") - b))" -v hz="$(getconf CLK_TCK)" 'BEGIN {printf "over 20 s: supervisor %.2f %%, viewer %.2f %% of one core\n", 100 * s / hz / 20, 100 * v / hz / 20}'
grep -h VmHWM "/proc/$supervisor/status" "/proc/$viewer/status" | awk '{printf "peak memory %.1f MiB\n", $2 / 1024}'
"$MEOPT" stop --now runs/seen 2>/dev/null
tmux -L "$socket" kill-server
step() { # median ms of a run
    sed -n 's/.*"step_ms":\([0-9.]*\).*/\1/p' "runs/$1/metrics.jsonl" | sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}
for i in 1 2 3 4 5; do
    "$MEOPT" train configs/quickstart.yaml --run-dir runs --name "alone$i" --steps 600 >/dev/null 2>&1
    tmux -L "$socket-$i" -f /dev/null new-session -d -x 132 -y 43 "cd '$work' && env OMP_NUM_THREADS=1 TERM=screen-256color LC_ALL=C.UTF-8 '$MEOPT' train configs/quickstart.yaml --run-dir runs --name watched$i --steps 600"
    while tmux -L "$socket-$i" has-session 2>/dev/null; do sleep 0.2; done
    echo "$(step "alone$i") $(step "watched$i")"
done | awk '{d = $2 / $1 - 1; s += d; q += d * d; n++; printf "step alone %.3f ms, watched %.3f ms: %+.1f %%\n", $1, $2, 100 * d} END {m = s / n; printf "mean %+.2f %%, sd %.2f %%\n", 100 * m, 100 * sqrt((q - n * m * m) / (n - 1))}'
