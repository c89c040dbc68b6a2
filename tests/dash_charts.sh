#!/bin/sh
# The charts on a real terminal: every recorded number, in pages at 80x24 and all at once at 132x43; the cursor's value in each of
# them; zoom and pan; steps, epochs and minutes; outliers cut off; a baseline in each; choices that are kept for the next time.
set -eu
. "$MEOPT_SOURCE/tests/tmux.sh"
. "$MEOPT_SOURCE/tests/dash_run.sh"
dash_run "$dir/runs/one" 1 1000
dash_run "$dir/runs/other" 2 1000
sed -i 's/"family":"eva"}/"family":"eva","epoch_steps":100}/' "$dir/runs/one/meta.json"
sed -i '/"step":500,/s/"images_per_s":[0-9.]*/"images_per_s":7762.00/' "$dir/runs/one/metrics.jsonl"
mkdir "$dir/home"
start() { # WIDTH HEIGHT COMMAND
    terminal "$1" "$2" C.UTF-8 "NO_COLOR=1 HOME='$dir/home'" "sh -c \"cd '$dir'; '$MEOPT' $3; echo status \\\$?; sleep 60\""
}
value() { sed -n "$2p" "$dir/runs/one/metrics.jsonl" | sed "s/.*\"$1\":\([0-9.e-]*\).*/\1/"; } # KEY LINE

start 80 24 'attach one'
await 'step 1000/1000'
keys 2
await '^charts 1 to 2 of 11 (PgDn, PgUp), by step'
for chart in 'grad norm 0\.' 'images/s 9[0-9.]*, 1 outlier cut' 'wait for images 1.5000 ms' 'busy 97.000%' 'power 309.00 W'; do
    keys NPage
    await "^$chart"
done
await '^charts 11 to 11 of 11'
for i in 1 2 3 4 5; do keys PPage; done
await '^charts 1 to 2 of 11'
keys Left Left # the newest step, then a hundredth of the run before it
await "^loss $(value loss 990 | cut -c1-6)[0-9]* @990 "
await '^cosine [0-9.]* @990'
keys + + # a quarter of the run about it
await 'loss [0-9.]* @990, steps 750 to 1000'
keys '['
await 'steps 68[78] to 93[78]'
keys 0
await '^loss [0-9.]* @990  '
keys Escape
await '^loss [0-9.]*  best '
keys t
await 'by epoch'
await '^  *0.01  *10.00$'
keys t
await 'by minutes of training'
await '^  *0.01  *5.3[0-9]$'
keys z z
await 'steps 800 to 1000'
await '^  *4.2[0-9]  *5.3[0-9]$'
keys z Enter
await '^charts 1 to 1 of 11'
keys Enter l s o
await '^loss .*, log'
keys g
await '[▀▄█]'
tmux -L "$socket" resize-window -x 132 -y 43
await '^charts 1 to 11 of 11, by minutes'
await 'loss .* cosine .* grad norm'
await 'temperature 61.000 C, log  *power 309.00 W'
keys q
await 'status 0'
stop

# the next one draws as this one did; what is not its own is nothing to it
start 80 24 'attach one --baseline other'
await '[▀▄█]'
keys 2
await 'by minutes of training'
await '^loss .*, log'
keys t l g Right
await '^loss [0-9.]* @1000, baseline [0-9.]*'
await '^cosine [0-9.]* @1000, baseline'
keys q
await 'status 0'
stop
printf '{"axis":99,"glyphs":"x","log":1' >"$dir/home/.local/state/meopt/dashboard.json"
start 80 24 'attach one'
keys 2
await 'by step'
keys q
await 'status 0'
stop
