#!/bin/sh
# The bottleneck of a run on the dashboard, with the measured cause and the remedy: one run per kind, at two sizes, and a real run.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
now=$(date +%s)
run() { # NAME: one that trains now, elsewhere, with a card that is 97 % busy
    run=$dir/runs/$1
    dash_run "$run" 1 300
    printf '{"state":"training","step":300,"total_steps":900,"epoch":1,"pid":1,"host":"elsewhere","time":%d,"exit_code":null}\n' "$((now + 6000))" >"$run/state.json"
    printf '{"time":%d,"worker":{"pid":1,"state":"running","phase":"training","silent_s":0,"step":300},"cards":[{"rank":0,"name":"K100 AI","pci":"0000:03:00.0","mem_used_bytes":2e10,"mem_total_bytes":6e10,"busy_percent":97,"temp_c":61,"power_w":300,"age_s":0}]%s}\n' \
        "$((now + 6000))" "${2:-}" >"$run/live.json"
}
waits() { sed -i "s/\"data_wait_ms\":[0-9.]*/\"data_wait_ms\":$1/" "$run/metrics.jsonl"; }
check_bottleneck() { # NAME KIND CAUSE REMEDY
    for size in '80 24' '132 43'; do
        # shellcheck disable=SC2086
        terminal $size C.UTF-8 "NO_COLOR=1 HOME='$dir'" "'$MEOPT' attach $1"
        await "training, $2$"
        [ -z "$3" ] || await "$2: $3"
        [ -z "$4" ] || await "$4"
        keys q
        await 'status 0'
        stop
    done
}
run compute
check_bottleneck compute compute-bound '' ''
run data
waits 160.0
printf 'data:\n  workers: 2\n' >>"$run/config.yaml"
check_bottleneck data data-bound '50 % ' 'meopt train --resume runs/data data.workers=4'
run disk ',"io_pressure_percent":64.5'
waits 160.0
check_bottleneck disk disk-bound '50 % .* 6[45] %' 'data.root='
run full
sed -i 's/"exit_code":null/"exit_code":null,"message":"saving is paused since step 200: No space left on device"/' "$run/state.json"
check_bottleneck full disk-bound '' 'df -h runs/full'
run slow ',"ranks":[{"rank":0,"host":"node1","waiting_percent":41.0,"slowest":false},{"rank":1,"host":"node7","waiting_percent":2.0,"slowest":true}]'
check_bottleneck slow straggler 'rank 1 on node7: .* 39 %' 'ssh node7 meopt doctor'
run fallback
sed -i 's/"version":1,/&"start":[{"name":"graphs","is":"off","cost":"slow","mend":null},{"name":"products","is":"librocblas.so.4 does not work","cost":"several times slower","mend":"install it"}],/' "$run/meta.json"
check_bottleneck fallback 'fallback kernel' 'products: several times slower: librocblas.so.4 does not work' 'meopt doctor'
run hot
awk 'BEGIN { for (i = 0; i <= 100; i++) printf "{\"time\":%d,\"step\":%d,\"cards\":[{\"rank\":0,\"name\":\"K100 AI\",\"pci\":\"0000:03:00.0\",\"mem_used_bytes\":2e10,\"mem_total_bytes\":6e10,\"busy_percent\":97,\"temp_c\":%d,\"power_w\":%d}]}\n", 1700000000 + 5 * i, 3 * i, i < 60 ? 60 : 92, i < 60 ? 310 : 220 }' >"$run/cards.jsonl"
awk '{ if (NR > 180) sub(/"step_ms":[0-9.]*/, "\"step_ms\":400.0"); print }' "$run/metrics.jsonl" >"$dir/metrics" && mv "$dir/metrics" "$run/metrics.jsonl"
check_bottleneck hot throttled 'card 0: 92 C, 220 of 310 W.* 2[0-9] %' 'train --resume runs/hot --cards N'

# the same words in the list of runs: a column where it fits, else in place of the state, and as JSON
list() { # WIDTH COMMAND
    terminal "$1" 24 C.UTF-8 "NO_COLOR=1 HOME='$dir'" "'$MEOPT' $2"
}
for how in runs ''; do
    list 132 "$how"
    for word in compute-bound data-bound disk-bound straggler 'fallback kernel' throttled; do
        await "^ *[a-z]*  *training .*-49% $word  *[█▇]"
    done
    [ "$how" = runs ] || { keys q && await 'status 0'; }
    stop
    list 80 "$how"
    await '^ *compute  *training '
    await '^ *data  *data-bound  *300/900 '
    await '^ *fallback  *fallback  *300/900 '
    [ "$how" = runs ] || { keys q && await 'status 0'; }
    stop
done
(cd "$dir" && "$MEOPT" runs --sort name --json) | python3 -c '
import json, sys
found = {r["name"]: r["bound_by"] for r in json.load(sys.stdin)}
assert found == {"compute": "compute-bound", "data": "data-bound", "disk": "disk-bound", "fallback": "fallback kernel",
                 "full": "disk-bound", "hot": "throttled", "slow": "straggler"}, found' || fail "runs --json"
[ "$(cd "$dir" && "$MEOPT" runs --filter straggler | wc -l)" = 2 ] || fail "--filter straggler"
# on a machine where that takes long, too
[ "$(hasten 500 && cd "$dir" && "$MEOPT" runs --filter straggler | wc -l)" = 2 ] || fail "--filter straggler on a slow machine"

# the next steps are better: so is the word
run mended
waits 160.0
terminal 80 24 C.UTF-8 "NO_COLOR=1 HOME='$dir'" "'$MEOPT' attach mended"
await 'training, data-bound$'
awk 'BEGIN { for (i = 301; i <= 400; i++) printf "{\"step\":%d,\"epoch\":1,\"loss\":0.1,\"cosine\":0.9,\"lr\":1e-4,\"grad_norm\":1,\"images_per_s\":100,\"step_ms\":160.0,\"data_wait_ms\":0.1}\n", i }' >>"$run/metrics.jsonl"
await 'training, compute-bound$'
keys q
await 'status 0'
stop

. "$MEOPT_SOURCE/tests/train/quickstart.sh"
mkdir -p root/proc/pressure
printf 'some avg10=12.50 avg60=1.00 avg300=1.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n' >root/proc/pressure/io
OMP_NUM_THREADS=1 MEOPT_MONITOR_ROOT=$work/root "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=30 --run-dir runs --name real >out 2>log
! [ -s runs/real/cards.jsonl ] || grep -q '"io_pressure_percent":12.5' runs/real/cards.jsonl || fail "the disks' pressure is not kept: $(cat runs/real/cards.jsonl)"
