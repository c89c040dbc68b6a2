#!/bin/sh
# Model FLOPs utilization on made-up cards with the name of a card whose peak is published: in the metrics, of one and of two ranks, in
# compare, runs and bench train. Cards without a published peak have none.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
export FAKE_NAME="NVIDIA RTX A6000" FAKE_UNITS=84 FAKE_CARDS=2
cd "$work"
head -c 3000 "$MEOPT_SOURCE/LICENSE" >train.txt
cat >bytes.yaml <<'END'
model: {family: gpt2, init: random, vocabulary: 256, context: 16, width: 32, depth: 2, heads: 2}
data: {root: train.txt}
train: {objective: language, batch_size: 2, steps: 2}
device: {type: cuda}
END
train() { # NAME ARGUMENT...
    run=$1
    shift
    "$MEOPT" train bytes.yaml --run-dir . --name "$run" --no-dashboard "$@" >out 2>log || fail "$run: exit $? $(tail -3 log)"
}
train one --cards 0
train recomputed --cards 0 train.recompute=block
train two --cards 0,1
FAKE_NAME=unknown train unknown --cards 0
"$MEOPT" compare one unknown --json >compare.json
"$MEOPT" runs --run-dir . --json >runs.json
"$MEOPT" bench train bytes.yaml --random-weights --no-peak --steps 1 --json >bench.json 2>log || fail "bench: $(cat log)"
python3 - <<'END'
import json
N, d, V, depth, B, peak = 16, 32, 256, 2, 2, 154.8e12
step = 3 * B * (depth * (24 * N * d * d + 4 * N * (N + 1) / 2 * d) + 2 * N * d * V) # forward, and backward of twice the work
close = lambda a, b: abs(a / b - 1) < 1e-5
for run, ranks in (("one", 1), ("recomputed", 1), ("two", 2)):
    meta = json.load(open(run + "/meta.json"))
    assert close(meta["model_flops_per_step"], step * ranks) and close(meta["peak_flops"], peak * ranks), (run, meta)
    lines = [json.loads(l) for l in open(run + "/metrics.jsonl")]
    for l in lines: assert close(l["mfu"], step * ranks / (l["step_ms"] * 1e-3) / (peak * ranks)), (run, l)
    if run == "one": mean = sum(l["mfu"] * l["step_ms"] for l in lines) / sum(l["step_ms"] for l in lines)
assert json.load(open("unknown/meta.json"))["peak_flops"] is None
assert "mfu" not in open("unknown/metrics.jsonl").read()
facts = {f["key"]: f["values"] for f in json.load(open("compare.json"))["facts"]}
assert close(facts["mfu_percent"][0], 100 * mean) and facts["mfu_percent"][1] is None, facts["mfu_percent"]
runs = {r["name"]: r for r in json.load(open("runs.json"))}
assert close(runs["one"]["mfu"], json.loads(open("one/metrics.jsonl").readlines()[-1])["mfu"])
assert runs["unknown"]["mfu"] is None
bench = json.load(open("bench.json"))
assert close(bench["mfu_peak_gflops"], peak * 1e-9) and close(bench["mfu"], step / (bench["step_ms"] * 1e-3) / peak), bench
END
