#!/bin/sh
# The cards tab on a real terminal: own memory by class, memory of other processes and the card's size on one scale, also after the end.
# Also cards of the node that the run does not use, "+N more" with the sum, the history of a card, the warning when other processes grow,
# and the energy in compare. tests/gpu/card_telemetry.sh tests the writer.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
hasten 4 # the dashboard draws every half a second
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
for cards in 1 2 16; do dash_run "$dir/runs/run$cards" $cards 300; done
start() { # WIDTH HEIGHT COMMAND...
    w=$1 h=$2
    shift 2
    terminal "$w" "$h" C.UTF-8 NO_COLOR=1 "'$MEOPT' $*"
}
start 80 24 attach run1
await 'ours+others/total'
await '15.4G+19.0G/64.0G    97%   61°   309W' # 14.4 of it, not 3, is the bar's first part: W O A T
await '^0  WOOAAAAT▏X\{11\}·\{17\} '
await 'lr 3.32e-07  norm 0.4978'
resize 132 43
await '0.5%\|1.5%\|0.[0-9]%' # the share of waiting, whole
keys 3
await ' X others           19.0G'
await 'used memory, GiB, by minute  34.4'
await 'power, W, by minute  309'
keys q
await 'status 0'
stop

start 80 24 attach run2
await '^-  X\{16\}.* 27.9G/64.0G    55%'
await 'all 2 .*30.8G+19.5G/128G'
keys q
stop

start 80 24 attach run16
await '^+10 more *all 16 '
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do keys Down; done
await '^15  *W'
resize 132 43
await '^2  *W' # no blank rows below the last card
await '^+2 more'
resize 80 24
keys 3 # the classes have their place, however many cards there are
await '^+10 more'
await '^ W weights  *1.88G  *1.88G  *5.65G'
await '^ X others '
keys q
stop

# what is in files, by class, and how long the last step waited for it
dash_run "$dir/runs/away" 1 300
sed 's/"data_wait_ms": *[^,}]*/&,"stream_wait_ms":3.14,"offload_wait_ms":0.25/; s/"classes": *{/"file_classes":{"teacher":2147483648,"optimizer":536870912},&/' \
    "$dir/runs/away/metrics.jsonl" >"$dir/changed"
mv "$dir/changed" "$dir/runs/away/metrics.jsonl"
start 132 43 attach away
await 'ours+others/total'
keys 3
await 'in files  *512M optimizer,  *2.00G teacher'
await 'waited  .* 3.1 ms, .* 0.2 ms '
keys q
stop

# ranks of a run that trains, wherever they are: each one's memory, images/s and waiting, the slowest marked, and one that gives no sign
for ranks in 2 4 8; do
    run=$dir/runs/ranks$ranks
    dash_run "$run" "$ranks" 300
    rm "$run/cards.jsonl"
    printf '{"state":"training","step":300,"total_steps":900,"epoch":1,"pid":1,"host":"elsewhere","time":%d,"exit_code":null}\n' "$(date +%s)" >"$run/state.json"
    awk -v ranks="$ranks" -v now="$(date +%s)" 'BEGIN {
        printf "{\"time\":%d,\"supervisor_pid\":1,\"worker\":{\"pid\":1,\"state\":\"running\",\"phase\":\"step\",\"silent_s\":0,\"step\":300},\"cards\":[],\"ranks\":[", now
        for (r = 0; r < ranks; r++)
            printf "%s{\"rank\":%d,\"host\":\"node%d\",\"state\":\"%s\",\"waiting_percent\":%.1f,\"mem_bytes\":1,\"peak_bytes\":1,\"slowest\":%s}", r ? "," : "", r, r / 4, r == 7 ? "silent" : "running", r == 1 ? 2.5 : 40 + r, r == 1 ? "true" : "false"
        print "]}"
    }' >"$run/live.json"
    for size in "80 24" "132 43"; do
        # shellcheck disable=SC2086
        start $size attach "ranks$ranks"
        await '^0  [W█]'
        await '^1< [W█]'
        await "all $ranks, slowest: 1 "
        [ "$ranks" != 8 ] || [ "$size" = "80 24" ] || await '^7? [W█]'
        [ "$size" = "80 24" ] || { await ' 101.00 *2.5%' && await ' 100.00 *40.0%'; }
        keys q
        stop
    done
done

# a thousand ranks: the worst of them, a summary of all, and the hosts
run=$dir/runs/ranks1000 now=$(date +%s)
dash_run "$run" 1 300
rm "$run/cards.jsonl"
range='{"min":16e9,"median":16.2e9,"max":17e9,"min_rank":1,"max_rank":640}'
sed -i 's/"cards":\[\(.*\)\]}$/"cards":[\1,{"rank":640,"mem_bytes":17000000000,"peak_bytes":17000000000}],"cards_summary":{"ranks":1000,"peak_bytes":'"$range"'}}/' "$run/metrics.jsonl"
printf '{"state":"training","step":300,"total_steps":900,"epoch":1,"pid":1,"host":"elsewhere","time":%d,"exit_code":null}\n' "$now" >"$run/state.json"
printf '{"time":%d,"worker":{"pid":1,"state":"running","phase":"step","silent_s":0,"step":300},"cards":[],"ranks":[{"rank":777,"host":"node97","state":"silent","waiting_percent":40}],"ranks_summary":{"ranks":1000,"running":999,"hosts":125,"waiting_percent":%s,"peak_bytes":%s},"hosts":[{"host":"node97","first_rank":776,"ranks":8,"running":7,"peak_bytes":16000000000},{"host":"node3","first_rank":24,"ranks":8,"running":8,"peak_bytes":16000000000}]}\n' "$now" "$range" "$range" >"$run/live.json"
start 132 43 attach ranks1000
await '^777? '
await '^640  *[W·]'
await '^all 1000 on 125 hosts, 1 .*14.9G .*15.8G (rank 640)'
keys 3
await '^node97  *8  *7  *776 '
await '^node3  *8  *8  *24 '
keys q
stop

# a run that trains, next to others that grow: by 2 GB in a minute, and 25 GB are left
run=$dir/runs/grows
cp -R "$dir/runs/run1" "$run"
now=$(date +%s)
# shellcheck disable=SC2016
grow='BEGIN { for (i = 0; i <= 12; i++) printf "{\"time\":%d,\"step\":%d,\"cards\":[{\"rank\":0,\"name\":\"K100 AI\",\"pci\":\"0000:03:00.0\",\"mem_used_bytes\":%.0f,\"mem_total_bytes\":68719476736}]}\n", now - 60 + 5 * i, i, 16576937984 + first + by * i / 12 }'
sed -i 's/"peak_bytes":16576937984,"classes"/"peak_bytes":17576937984,"classes"/' "$run/plan.json"
printf '{"state":"training","step":300,"total_steps":900,"epoch":1,"pid":1,"host":"elsewhere","time":%d,"exit_code":null}\n' "$now" >"$run/state.json"
awk -v now="$now" -v first=2e10 -v by=2e9 "$grow" >"$run/cards.jsonl"
start 80 24 attach grows
await 'card 0: .* 1.86G in 1:00; .* 1[34]:'
awk -v now="$now" -v first=5.15e10 -v by=0 "$grow" >>"$run/cards.jsonl"
await 'card 0: .* 48.0G, .* 16.4G '
keys q
stop

# who they are, where the driver reports
printf '{"time":%d,"worker":{"pid":1,"state":"running","phase":"training","silent_s":0,"step":300},"cards":[{"rank":0,"name":"K100 AI","pci":"0000:03:00.0","mem_used_bytes":6.8e10,"mem_total_bytes":68719476736,"age_s":0,"others":[{"pid":4711,"name":"python","mem_bytes":5e10},{"pid":99,"name":"","mem_bytes":1e9}]}]}\n' "$((now + 600))" >"$run/live.json"
for size in '80 24' '132 43'; do
    # shellcheck disable=SC2086
    start $size attach grows
    if [ "$size" = '132 43' ]; then await ' 16.4G .*: 4711 python 46.6G, 99 954M'; fi
    keys 3
    await '^ X others  *47.9G  now: 4711 python 46.6G, 99 954M'
    keys q
    stop
done

"$MEOPT" compare "$dir/runs/run1" "$dir/runs/run16" --json >"$dir/table.json" 2>"$dir/err"
python3 - "$dir/table.json" <<'PY' || fail "compare's figures of the cards"
import json, sys
rows = {r["key"]: r["values"] for r in json.load(open(sys.argv[1]))["facts"]}
busy, energy = rows["card_busy_percent"], rows["card_energy_wh"]
assert busy[0] == 97 and 89 < busy[1] < 97, busy
# 250 W + 60 W (1 - exp(-t / 108 s)) over an hour
assert abs(energy[0] - (250 + 60 * (1 - 108 / 3600))) < 1, energy
assert 15 * energy[0] < energy[1] < 17 * energy[0], energy
assert abs(rows["card_temp_c"][0] - 61) < 0.01, rows["card_temp_c"]
PY
