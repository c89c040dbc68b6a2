#!/bin/sh
# A run shows the card that it trains on, found by its PCI address among those of the machine, and no other.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
card() { printf '{"name": "card %s", "pci": "%s", "mem_used_bytes": %s, "mem_total_bytes": 16e9, "busy_percent": 50, "temp_c": 40, "power_w": 100, "clock_mhz": 1500, "throttle": 6, "ecc_uncorrected": 0, "processes": [{"pid": 4711, "name": "python", "bytes": 1e8}, {"pid": 9, "name": "Xorg", "bytes": 3e8}]}' "$1" "$2" "$3"; }
echo "{\"cards\": [$(card A 0000:03:00.0 1e9), $(card B 0000:04:00.0 2e9), $(card C 0000:05:00.0 3e9)]}" >cards.json
hasten 10
export MEOPT_MONITOR="fake:$work/cards.json" FAKE_CARDS=3 OMP_NUM_THREADS=1
train() { # NAME CARDS TYPE [NAME=VALUE...]: until it shows its card; cards are sampled twice a second and recorded every 5 s
    name=$1 cards=$2 type=$3
    shift 3
    env "$@" "$MEOPT" train configs/quickstart_dinov2.yaml "device.type=$type" train.steps=100000 train.batch_size=2 --cards "$cards" --run-dir . --name "$name" >out 2>log &
    pid=$!
    echo $pid >left
    wait_for 60 grep -q '"rank":0,"name":"card' "$name/live.json" 2>/dev/null || fail "$name: no card is shown: $(cat "$name/live.json")"
}
train run 1 hip
grep -o '"rank":[0-9]*,"name":"card [A-Z]","pci":"[^"]*"' run/live.json >shown || fail "no card is shown: $(cat run/live.json)"
cp run/live.json live
wait_for 30 eval '[ "$(wc -l <run/cards.jsonl 2>/dev/null || echo 0)" -ge 2 ]' || :
[ "$(cat shown)" = '"rank":0,"name":"card B","pci":"0000:04:00.0"' ] || fail "shown: $(cat shown)"
kill -TERM $pid
wait $pid || [ $? = 10 ] || fail "not stopped"
: >left
grep -q '"others":\[{"pid":9,"name":"Xorg","mem_bytes":300000000.0},{"pid":4711,"name":"python"' live || fail "who holds memory is not told: $(cat live)"
if grep -q Xorg run/cards.jsonl; then fail "names of processes in the history"; fi
grep -q '"rank":null,"name":"card A","pci":"0000:03:00.0"' live || fail "the node's other cards are not shown: $(cat live)"

# what the cards did stays with the run, and compare sums it up
[ ! -e run/live.json ] || fail "live.json is left"
[ "$(wc -l <run/cards.jsonl)" -ge 2 ] || fail "no history of the cards: $(cat run/cards.jsonl)"
python3 - <<'PY' || fail "cards.jsonl"
import json
lines = [json.loads(l) for l in open("run/cards.jsonl")]
assert [l["time"] for l in lines] == sorted(l["time"] for l in lines)
for l in lines:
    assert {c["name"]: c["rank"] for c in l["cards"]} == {"card A": None, "card B": 0, "card C": None}, l
    assert l["cards"][1]["mem_used_bytes"] == 2e9 and l["cards"][1]["power_w"] == 100, l
    assert l["cards"][1]["clock_mhz"] == 1500 and l["cards"][1]["throttle"] == ["heat", "hardware"] and l["cards"][1]["ecc_uncorrected"] == 0, l
assert 4 < lines[1]["time"] - lines[0]["time"] < 30
PY
# several ranks: each one's card, by its address
train two 2,0 hip
shown=$(grep -o '"rank":[0-9nul]*,"name":"card [A-Z]"' two/live.json | tr '\n' ' ')
kill -TERM $pid
wait $pid || [ $? = 10 ] || fail "two ranks are not stopped"
: >left
[ "$shown" = '"rank":1,"name":"card A" "rank":null,"name":"card B" "rank":0,"name":"card C" ' ] || fail "of two ranks is shown: $shown"
# variables that number the cards anew change nothing of which one is shown
reordered() { # CARD TYPE NAME=VALUE...
    want=$1 type=$2
    shift 2
    train "seen$#$type$want" 0 "$type" "$@"
    shown=$(grep -o '"rank":0,"name":"card [A-Z]"' "$name/live.json")
    kill -KILL $pid
    wait $pid || true
    : >left
    [ "$shown" = "\"rank\":0,\"name\":\"card $want\"" ] || fail "$*: $shown, expected card $want"
}
reordered C hip HIP_VISIBLE_DEVICES=2,0
reordered B hip CUDA_VISIBLE_DEVICES=1
reordered C hip ROCR_VISIBLE_DEVICES=0,2,1 HIP_VISIBLE_DEVICES=1
reordered B cuda CUDA_VISIBLE_DEVICES=1,2
"$MEOPT" compare run --csv >table 2>log || fail "compare"
grep -q '^facts,card_busy_percent,50' table || fail "compare has no busy cards: $(cat table)"
grep -q '^facts,card_energy_wh,[0-9]' table || fail "compare has no energy: $(cat table)"
