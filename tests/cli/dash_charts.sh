#!/bin/sh
# The charts on a real terminal: all recorded numbers, in pages at 80x24 and at once at 132x43. Also the cursor's value in each chart, zoom
# and pan, steps, epochs and minutes, clipped outliers, a baseline in each chart, and settings that are saved.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
dash_run "$dir/runs/one" 1 1000
dash_run "$dir/runs/other" 2 1000
sed -i 's/"family":"eva"}/"family":"eva","epoch_steps":100}/' "$dir/runs/one/meta.json"
sed -i '/"step":500,/s/"images_per_s":[0-9.]*/"images_per_s":7762.00/' "$dir/runs/one/metrics.jsonl"
mkdir "$dir/home"
start() { # WIDTH HEIGHT COMMAND
    terminal "$1" "$2" C.UTF-8 "NO_COLOR=1 HOME='$dir/home'" "'$MEOPT' $3"
}
value() { sed -n "$2p" "$dir/runs/one/metrics.jsonl" | sed "s/.*\"$1\":\([0-9.e-]*\).*/\1/"; } # KEY LINE

# small losses with outliers: the axis begins at the least of them, and its numbers are whole; the list reports them as well
dash_run "$dir/small/one" 1 400
awk 'BEGIN {
    for (i = 1; i <= 400; i++)
        printf "{\"step\":%d,\"epoch\":1,\"loss\":%.9g,\"cosine\":0.99,\"lr\":1e-4,\"grad_norm\":1,\"images_per_s\":100,\"step_ms\":10.0,\"data_wait_ms\":0.1}\n", i, i < 4 ? 0.5 : 1.3e-4 * exp(-i / 60) + 1.035e-6
}' >"$dir/small/one/metrics.jsonl"
start 80 24 'attach small/one'
await '^loss 1.[0-9]*e-06 .*outliers cut'
await '^1.[0-9]*e-06 '
if screen | grep -e '^-\|^[0-9.]*e-0 '; then fail "the axis of small losses"; fi
keys q
await 'status 0'
stop
"$MEOPT" runs --run-dir "$dir/small" | grep -q ' 1.[0-9]*e-06 ' || fail "small losses in the list: $("$MEOPT" runs --run-dir "$dir/small")"

start 80 24 'attach one'
await 'step 1000/1000'
keys 2
await '^charts 1 to 2 of 11 (PgDn, PgUp), by step'
for chart in 'grad norm 0\.' 'images/s 9[0-9.]*, 1 outlier cut' 'wait for data 1.5000 ms' 'busy 97.000%' 'power 309.00 W'; do
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
await 'by minutes'
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
resize 132 43
await '^charts 1 to 11 of 11, by minutes'
await 'loss .* cosine .* grad norm'
await 'temperature 61.000 C, log  *power 309.00 W'
keys q
await 'status 0'
stop

# what does not change has its value next to its line, and no other
dash_run "$dir/constant/same" 1 100
sed -i 's/"data_wait_ms":[0-9.]*/"data_wait_ms":0.0/;s/"lr":[^,]*/"lr":0.0001/' "$dir/constant/same/metrics.jsonl"
for size in '80 24' '132 43'; do
    # shellcheck disable=SC2086
    start $size 'attach constant/same'
    keys 2
    await '^charts 1'
    [ "$size" = '132 43' ] || keys NPage
    await '\(^\|  \)1.00e-04 [^ ][^ ]'
    [ "$size" = '132 43' ] || keys NPage NPage
    await 'wait for data 0 ms'
    await '\(^\|  \)0  *[^ 0-9][^ ]'
    if screen | grep -e '-1.0000\|1.05e-04'; then fail "a constant is given an axis"; fi
    keys q
    await 'status 0'
    stop
done

# the next one draws as this one did; what is not its own is nothing to it
start 80 24 'attach one --baseline other'
await '[▀▄█]'
keys 2
await 'by minutes'
await '^loss .*, log'
keys t l g Right
await '^loss [0-9.]* @1000, baseline [0-9.]*'
await '^cosine [0-9.]* @1000, baseline'
keys q
await 'status 0'
stop
# others are chosen from those next to it, and kept with the degree of smoothing; runs elsewhere have none of them
dash_run "$dir/runs/third" 1 500
dash_run "$dir/elsewhere/far" 1 100
start 132 43 'attach one'
keys 2
await 'by step, smoothed by 0.95 *$' # --baseline was of that time only
keys b
await '^>  *other'
keys Down Space
await '^> \* third'
keys Up Space Escape
await 'by step, smoothed by 0.95  third other$'
keys Home
await '@1, third 1\.[0-9]*, other 1\.[0-9]*'
keys Escape
await 'smoothed by 0.95'
keys s s
await 'smoothed by 0.99 '
keys S S S S S S
await 'charts 1 to [0-9]* of 11, by step  third'
keys s
await 'smoothed by 0.5 '
keys q
await 'status 0'
stop
start 132 43 'attach other'
keys 2 Home
await 'smoothed by 0.5 '
await 'loss [0-9.]* @1, [a-z]* 1\.'
keys Escape
keys q
await 'status 0'
stop
start 80 24 'attach elsewhere/far'
keys 2 Home
await '^loss [0-9.]* @1  raw smooth *$'
keys b
await 'no other run'
keys q
await 'status 0'
stop
# 80x24 has what a night at the machine asks for; in other locales and fonts, too
for how in 'C screen-256color' 'zh_CN.GBK screen-256color' 'C.UTF-8 linux'; do
    terminal 80 24 C.UTF-8 "NO_COLOR=1 HOME='$dir/other'" "LC_ALL=${how% *} TERM=${how#* } '$MEOPT' attach one"
    await 'lr 9.99e-08  norm 0.5562'
    await 'busy  temp  power'
    await '97%   61.*  309W'
    screen >"$dir/screen"
    case $how in
    zh*)
        if locale -a | grep -q zh_CN.gbk; then # tmux takes UTF-8: the bytes sent to it count
            in_terminal pipe-pane "cat >'$dir/bytes'"
            keys 4 1 C-l
            await 'best 0.00379'
            LC_ALL=C wait_for 10 grep -q "$(printf '\275\314\312\246 teacher.pt')" "$dir/bytes" || fail "$how: Chinese is not Chinese"
            ! LC_ALL=C grep -q "$(printf '\342\240')" "$dir/bytes" || fail "$how: UTF-8"
        fi ;;
    *linux) grep -q '[▀▄█]' "$dir/screen" || fail "$how: no blocks" ;;
    *) ! LC_ALL=C grep -q '[^ -~]' "$dir/screen" || fail "$how: not ASCII: $(cat "$dir/screen")"; grep -q '^one  ?? teacher.pt -> student.pt' "$dir/screen" || fail "$how: not one sign a character" ;;
    esac
    keys q
    await 'status 0'
    stop
done
# the help says all of it, also where it does not fit
start 80 24 'attach one'
await 'step 1000/1000'
keys '?'
await '^\.\.\.$'
keys NPage NPage
await '(n) stale'
keys q q
await 'status 0'
stop
printf '{"axis":99,"glyphs":"x","log":1' >"$dir/home/.local/state/meopt/dashboard.json"
start 80 24 'attach one'
keys 2
await 'by step'
keys q
await 'status 0'
stop
