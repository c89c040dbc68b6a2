#!/bin/sh
# meopt plan: published figures, what-if, JSON, and refusals.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
cd "$dir"
expect() { exits "$@" >out 2>err || fail "exit $code, expected $*"; } # code command...
checks=0
check() { # Python on stdin, of the plan j in out: run_checks runs all, for a start of Python each would take most of the time
    checks=$((checks + 1))
    cp out "plan.$checks"
    cat >"check.$checks"
}
json() { echo "assert ($1)" | check; } # EXPRESSION
run_checks() {
    python3 - $checks <<'END' || fail "see above"
import json, sys
for n in range(1, int(sys.argv[1]) + 1):
    text = open(f"check.{n}").read()
    try: exec(text, {"j": json.load(open(f"plan.{n}"))})
    except Exception: sys.exit(f"{text}\n{sys.exc_info()}")
END
}
number() { sed -n "s/^ *\"$1\": *\([0-9]*\).*/\1/p" | head -n 1; } # KEY
for name in eva_clip open_clip dinov2 quickstart qwen3_8b; do "$MEOPT" config new $name >/dev/null; done

while read -r name without with; do
    expect 0 "$MEOPT" plan "$name".yaml --card-memory 64G --what-if
    grep -q "published, MB *$without *$with" out || fail "published figures of $name"
    grep -q '^fits 65536.0 MiB' out || fail "fits"
    # Both figures are below the published ones, and MEOpt's below the baseline.
    awk '/here \/ published/ { if (!($4 < 1 && $5 < 1)) exit 1 } /^  here, MiB/ { if (!($5 < 0.7)) exit 1 }' out || fail "figures of $name"
    expect 0 "$MEOPT" plan "$name".yaml --card-memory 64G --what-if --json
    json 'j["fits"] and sum(r["cheapest_that_fits"] for r in j["what_if"]) == 1'
done <<TABLE
eva_clip 44175 30949
open_clip 31209 23183
dinov2 20861 15273
TABLE

expect 0 "$MEOPT" plan --card list
grep -q '^k100-ai  *64 GiB$' out || fail "the list of cards"
expect 0 "$MEOPT" plan --card list --json
check <<'END'
peaks = {c["name"]: (c["peak_flops"], c["peak_flops_f32"], c["peak_bytes_per_s"]) for c in j}
assert peaks["h100"] == (989.5e12, 67e12, 3350e9) and peaks["z100l"] == (None, None, None), peaks
assert sum(p[2] is not None for p in peaks.values()) >= 12, peaks
END
# The time of a step on a card by name: the operations of a dry step at the card's peaks, whose FLOPs are those of the formula.
for keys in '' optim.clip_mode=exact 'train.recompute=block train.micro_batch=4'; do
    expect 0 "$MEOPT" plan eva_clip.yaml --card h100 device.type=cuda --json $keys
    [ "$keys" ] || cp out h100
    check <<'END'
p = j["predicted"]
assert abs(p["flops"] / j["step_flops"] - 1) < 0.02, p
assert abs(p["compute_s"] + p["memory_s"] + p["update_s"] - p["step_s"]) < 1e-9 and min(p.values()) > 0, p
assert p["flops"] / p["peak_flops"] < p["step_s"] and p["bytes"] / p["peak_bytes_per_s"] < p["step_s"], p
assert abs(p["update_s"] - j["update_bytes"] / p["peak_bytes_per_s"]) < 1e-9, p
END
done
expect 0 "$MEOPT" plan eva_clip.yaml --card h200 device.type=cuda --json
check <<'END'
import json
h100, h200 = json.load(open("h100"))["predicted"], j["predicted"] # of which only the memory is faster
assert h200["peak_flops"] == h100["peak_flops"] and h200["bytes"] == h100["bytes"] and h200["flops"] == h100["flops"]
assert h200["step_s"] < h100["step_s"] and h200["memory_s"] < h100["memory_s"], (h100, h200)
END
expect 0 "$MEOPT" plan eva_clip.yaml --card z100l device.type=hip --json
json 'j["predicted"] is None' # no peaks are published
expect 0 "$MEOPT" plan eva_clip.yaml --card-memory 64G --json
json 'j["predicted"] is None'
expect 2 "$MEOPT" plan
# With train.memory the plan is that of the run: its peak is the chosen one, below the limit.
expect 0 "$MEOPT" plan eva_clip.yaml --card-memory 64G --json train.memory=8GiB --explain all
[ "$(sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p' out | head -n 1)" -le 8589934592 ] || fail "the plan's peak is above train.memory"
check <<'END'
for name, size in j["classes"].items():
    assert abs(sum(r["bytes"] for r in j["tensors"] if r["class"] == name) - size) <= 64, name
now = [r for r in j["what_if"] if r["keys"] == ""]
assert now and all(r["peak_bytes"] == j["peak_bytes"] for r in now if r["possible"]), now
END

expect 7 "$MEOPT" plan eva_clip.yaml --card-memory 4G
grep -q '^meopt: .* [0-9.]* MiB .* 4096.0 MiB ' err || fail "peak and limit"
grep -q '^DOES NOT FIT 4096.0 MiB' out || fail "does not fit"
# of a language model: nothing of teachers; adapters where a checkpoint is trained, which are never the choice
cat >language.yaml <<END
model: {weight: $MEOPT_SOURCE/tests/data/readme/Qwen3-0.6B, context: 64}
data: {root: tokens.bin}
train: {objective: language, batch_size: 4}
device: {type: cpu}
END
expect 0 "$MEOPT" plan language.yaml --card-memory 64G --what-if --json
json 'not any("teacher" in r["name"] or "cache" in r["keys"] for r in j["what_if"])'
json '[r["cheapest_that_fits"] for r in j["what_if"] if r["keys"] == "lora.rank=16" and r["possible"]] == [False]'
expect 0 "$MEOPT" plan language.yaml lora.rank=8 --what-if --json
json 'not any(r["keys"] == "lora.rank=16" for r in j["what_if"])'
expect 7 "$MEOPT" plan eva_clip.yaml --card-memory 4G --what-if --json
json 'j["fits"] is False and j["largest_micro_batch_images"] == 0'
json 'not any(r["cheapest_that_fits"] for r in j["what_if"])'
expect 0 "$MEOPT" plan eva_clip.yaml --json --what-if --card-memory 16G --ranks 4 --gflops 1000
for key in peak_bytes classes weights activations fits largest_micro_batch_images step_flops step_s sent_bytes_per_step disk_bytes published what_if; do
    grep -q "\"$key\"" out || fail "key $key"
done
grep -q '"step_s": 68.3' out || fail "68 TFLOP at 1 TFLOP/s"
# 1.0126 G parameters, four ranks: 3/4 of the gradients in bf16 and of their sums in fp32
grep -q '"sent_bytes_per_step": 455[89]' out || fail "bytes sent"

# What several ranks may hold in parts is among the settings, with what it costs; of one rank there is nothing to part.
check <<'END'
rows = {r["name"]: r for r in j["what_if"]}
whole, states, weights = rows["balanced"], rows["+ shard: optimizer"], rows["+ shard: parameters"]
assert rows["+ shard: gradients"]["keys"] == "dist.shard=gradients"
assert weights["peak_bytes"] < states["peak_bytes"] < whole["peak_bytes"], rows
assert states["sent_bytes_per_step"] < whole["sent_bytes_per_step"] < weights["sent_bytes_per_step"], rows
END
expect 0 "$MEOPT" plan eva_clip.yaml --what-if --json
json 'not any("shard" in r["name"] or "dist.shard" in (r["keys"] or "") for r in j["what_if"])'

# The experiments as they were published, on four cards of 32 images: what a card holds, with states whole and in parts.
for name in eva_clip open_clip dinov2; do
    expect 0 "$MEOPT" plan "$name".yaml device.type=hip --card k100-ai 'device.cards=[0,1,2,3]'
    grep -q '^batch *32 .* 32;' out && grep -q '^network .* 4 ranks' out || fail "$name is not 4 x 32"
    expect 0 "$MEOPT" plan "$name".yaml device.type=hip --card k100-ai 'device.cards=[0,1,2,3]' --json
    json '(j["batch_images"], j["micro_batch_images"], j["ranks"]) == (32, 32, 4) and j["sent_bytes_per_step"] > 0'
    cp out four
    expect 0 "$MEOPT" plan "$name".yaml device.type=hip --card k100-ai --ranks 4 --json
    cmp -s out four || fail "$name: device.cards and --ranks give other plans"
done

# Many ranks on paper: rows 1, 2, 4 ... and the number asked for; what it needs to know.
expect 0 "$MEOPT" plan eva_clip.yaml --ranks 12 --bandwidth 19.4 --step-ms 2000
[ "$(awk '/efficiency/ { on = 1; next } on && NF == 6 { printf "%s ", $1 }' out)" = "1 2 4 8 12 " ] || fail "rows of the table"
expect 0 "$MEOPT" plan eva_clip.yaml --ranks 4 --bandwidth 10 --latency 0 --step-ms 1000 optim.gradients=keep --json
check <<'END'
p = j
rows = p["scaling"]
assert [r["ranks"] for r in rows] == [1, 2, 4]
assert abs(rows[2]["sums_s"] - p["sent_bytes_per_step"] / 10e9) < 1e-9, rows
assert 1 < rows[2]["step_s"] < 1 + rows[2]["sums_s"] and abs(rows[2]["images_per_s"] - 4 * 32 / rows[2]["step_s"]) < 1e-6
assert p["advice"] is None
END
expect 0 "$MEOPT" plan "$MEOPT_SOURCE/configs/bytes.yaml" --ranks 2 --bandwidth 10 --step-ms 100 --json
json 'abs(j["tokens_per_s"] - 12 * 64 / 0.1) < 1e-6 and all(abs(r["tokens_per_s"] / r["images_per_s"] - 64) < 1e-9 for r in j["scaling"])'
# Advice: each form of sharding with memory and time, what fits, and what is assumed.
for memory in 64G 14G 12.5G 4G; do
    code=0
    "$MEOPT" plan eva_clip.yaml device.type=hip --ranks 16 --nodes 2 --advise --bandwidth 18 --step-ms 1000 --card-memory $memory --json \
        dist.pipeline=1 >out-$memory 2>err || code=$?
    [ $code = 0 ] || [ $code = 7 ] || fail "--advise: exit $code"
done
check <<'END'
import json
advice = {m: json.load(open("out-" + m))["advice"] for m in ("64G", "14G", "12.5G", "4G")}
a = advice["64G"]
none, optimizer, parameters = a["options"]
assert a["ranks"] == 16 and a["node_ranks"] == 8 and a["assumed"] == ["network", "latency"] and a["one_rank_step_s"] == 1, a
assert none["peak_bytes"] > optimizer["peak_bytes"] > parameters["peak_bytes"], a
assert optimizer["step_s"] < parameters["step_s"] and optimizer["step_s"] < none["step_s"], a # it sends the fewest bytes
assert all(abs(o["efficiency"] - 1 / o["step_s"]) < 1e-9 and o["fits"] for o in a["options"]), a
chosen = {m: [o["keys"] for o in advice[m]["options"] if o["chosen"]] for m in advice}
assert chosen == {"64G": ["dist.shard=optimizer"], "14G": ["dist.shard=optimizer"], "12.5G": ["dist.shard=parameters"], "4G": []}, chosen
END
# Six micro-batches on four ranks: a step is that of the ranks with two, in each choice.
expect 0 "$MEOPT" plan eva_clip.yaml device.type=hip --ranks 4 --advise --json train.micro_batch=8 train.global_batch=48 --gflops 1000 \
    --bandwidth 18
check <<'END'
plan = j
rows = [r for r in plan["advice"]["options"] if r["possible"]]
assert plan["batch_images"] == 16 and len(rows) > 2, plan
assert all(0 < r["efficiency"] <= 1.01 for r in rows), rows
last = plan["scaling"][-1]
assert last["efficiency"] <= 1 and abs(last["images_per_s"] * last["step_s"] - 48) < 1e-6, last
END
expect 0 "$MEOPT" plan eva_clip.yaml device.type=hip --ranks 8 --advise train.micro_batch=8 optim.clip_mode=previous --json dist.pipeline=1
json '[o["keys"] for o in j["advice"]["options"]] == ["dist.shard=%s train.rounds=%s" % (s, r) for s in ("none", "optimizer", "parameters") for r in ("depth", "breadth")]'
json 'all(b["peak_bytes"] < d["peak_bytes"] for d, b in zip(j["advice"]["options"][::2], j["advice"]["options"][1::2]))'
json '0.45 < j["advice"]["options"][5]["sent_bytes_per_step"] / j["advice"]["options"][4]["sent_bytes_per_step"] < 0.55'
# Pipelines: those that divide a node or consist of whole ones, for the same images and clipping; what a pipeline refuses has its reason.
gpt=$MEOPT_SOURCE/configs/gpt_1_3b.yaml
expect 0 "$MEOPT" plan "$gpt" device.type=hip --ranks 16 --nodes 4 --advise --bandwidth 18 --network 3 --step-ms 1000 --card-memory 64G --json
check <<'END'
options = j["advice"]["options"]
assert [o["stages"] for o in options] == [1] * 3 + [2] * 3 + [4] * 3 + [8] * 3 + [16], options
whole, two, sixteen = options[0], options[3], options[12]
assert two["keys"] == "dist.pipeline=2 dist.shard=none train.global_batch=16 optim.clip_mode=previous", two
assert two["peak_bytes"] < 0.7 * whole["peak_bytes"] and all(o["possible"] and o["fits"] for o in options)
assert sixteen["sent_bytes_per_step"] < whole["sent_bytes_per_step"] and not whole["stages_apart"]
assert sum(o["chosen"] for o in options) == 1
END
expect 0 "$MEOPT" plan "$gpt" device.type=hip --ranks 2 dist.pipeline=2 train.global_batch=2 optim.clip_mode=previous --card-memory 64G --json
pair=$(number peak_bytes <out)
expect 0 "$MEOPT" plan "$gpt" device.type=hip --ranks 2 dist.pipeline=2 train.global_batch=2 optim.clip_mode=exact --card k100-ai --json # two passes
expect 0 "$MEOPT" plan "$gpt" device.type=hip --ranks 2 --node-ranks 2 --advise --card-memory 64G --json
json '[o["peak_bytes"] for o in j["advice"]["options"] if o["stages"] == 2] == ['"$pair"']'
expect 0 "$MEOPT" plan eva_clip.yaml --ranks 8 --advise train.rounds=depth train.micro_batch=8 --json
json 'len([o for o in j["advice"]["options"] if o["stages"] > 1 and "train.rounds" in o["why"]]) == 3'
expect 0 "$MEOPT" plan "$gpt" --ranks 8 --bandwidth 10 --step-ms 1000 dist.pipeline=2 train.batch_size=8 train.micro_batch=1 --json
json '[r["ranks"] for r in j["scaling"]] == [2, 4, 8] and 0.5 < j["scaling"][0]["step_s"] < 0.75'
# The grid: each division of the ranks, for the same steps, next to the published one.
expect 0 "$MEOPT" plan "$gpt" device.type=hip --ranks 4 --grid --card-memory 64G --step-ms 100 --json
check <<'END'
grid = j["grid"]
rows = {(r["tensor"], r["stages"], r["rounds"]): r for r in grid["options"]}
published = {(1, 1): (25061, 9.63), (2, 1): (11300, 7.59), (4, 1): (5673, 6.16), (1, 2): (12375, 8.46), (1, 4): (8141, 8.03), (2, 2): (6211, 7.37)}
assert {k[:2]: (r["published_peak_mib"], r["published_images_per_s"]) for k, r in rows.items()} == published, grid
assert {k[2] for k in rows if k[0] * k[1] == 1} == {None} and {k[2] for k in rows if k[:2] == (4, 1)} == {"depth", "breadth"}, rows
assert grid["images"] == 4 and grid["slices"] == 4 and grid["one_rank_step_s"] == 0.1 and sum(r["chosen"] for r in rows.values()) == 1, grid
for (tensor, stages, rounds), r in rows.items():
    assert r["possible"] and tensor * stages * r["replicas"] == 4 and "clip_mode=previous" in r["keys"], r
    assert abs(r["images_per_s"] * r["step_s"] - 4) < 1e-9 and 0 <= r["sums_s"] < r["step_s"], r
for cell, (mib, rate) in published.items(): # at most half of it in each cell
    assert min(r["peak_bytes"] for k, r in rows.items() if k[:2] == cell) < mib / 2 * 1048576, (cell, rows)
END
expect 0 "$MEOPT" plan "$gpt" device.type=hip --ranks 6 --grid --json model.slices=2 dist.tensor=2
json '[(r["tensor"], r["stages"], r["replicas"], r["rounds"], r["published_peak_mib"]) for r in j["grid"]["options"]] == [(2, 1, 3, None, None), (2, 3, 1, "breadth", None)] and j["tensor"] == 2'
expect 0 "$MEOPT" plan "$gpt" device.type=hip --ranks 4 --grid --card k100-ai
grep -q '25061 ' out && [ "$(grep -c '^  [> ]  *[124]  *[124]  *[124]  *[1db]' out)" = 8 ] || fail "--grid: $(cat out)"
expect 0 "$MEOPT" plan eva_clip.yaml --ranks 4 --advise
[ "$(grep -c '(assumed)' out)" -ge 2 ] || fail "--advise: assumed speeds"
expect 2 "$MEOPT" plan eva_clip.yaml --ranks 4 --bandwidth 10
grep -q -e '--bandwidth' err && grep -q -e '--step-ms' err || fail "--bandwidth without the time of a step"
expect 0 "$MEOPT" plan eva_clip.yaml train.batch_size=64 optim.use_meopt=false --json
json 'j["batch_images"] == 64 and j["published"]' # which is for 32 images whatever the batch

# How gradients are clipped: exactly wherever that costs nothing; else the plan names the keys that make it exact.
clipping() { # MODE AND KEYS, key=value...
    mode=$1
    shift
    expect 0 "$MEOPT" plan dinov2.yaml model_t.depth=1 model_s.depth=1 "$@"
    grep -q "^clipping $mode" out || fail "expected $mode: $*"
}
clipping exact: optim.gradients=keep
clipping exact: optim.use_meopt=false
clipping exact: optim.gradients=keep train.micro_batch=16
clipping exact: train.micro_batch=16
clipping exact: optim.clip_mode=exact
clipping 'previous: .*optim.clip_mode=exact.*optim.gradients=keep.*train.micro_batch'
clipping 'previous: .*optim.clip_mode=exact' train.micro_batch=32
clipping 'block' optim.clip_mode=block
clipping exact: train.micro_batch=16 optim.clip_mode=previous                                 # one rank: the sums' norm
clipping 'previous' train.micro_batch=16 train.global_batch=32 optim.clip_mode=previous
clipping none optim.clip_grad_norm=0
clipping 'previous' optim.clip_grad_norm=0 optim.name=lamb optim.max_grad_norm=1
clipping none optim.clip_grad_norm=0 optim.max_grad_norm=1
expect 0 "$MEOPT" plan dinov2.yaml --json
grep -q '"clip_mode": "previous"' out || fail "the mode in JSON"
expect 0 "$MEOPT" plan dinov2.yaml --json optim.clip_grad_norm=0
grep -q '"clip_mode": null' out || fail "no mode in JSON"

# Which tensors have which rule, and what the matrices of muon take: at most 3.6 bytes per parameter between steps.
for name in eva_clip dinov2; do
    expect 0 "$MEOPT" plan $name.yaml --card-memory 64G --json optim.name=muon
    check <<'END'
rules, classes = j["rules"], j["classes"]
trained = sum(r["parameters"] for r in rules.values())
assert set(rules) == {"muon", "apadamw"} and rules["muon"]["parameters"] > 0.98 * trained, rules
assert all(n.startswith("blocks.*.") and n.endswith(".weight") for n in rules["muon"]["names"].split(", ")), rules
assert "patch_embed.proj.weight" in rules["apadamw"]["names"] and 0 < j["update_flops"] < j["step_flops"]
assert abs(j["update_share"] * (j["update_flops"] + j["step_flops"]) / j["update_flops"] - 1) < 1e-9
assert classes["weights"] + classes["optimizer"] <= 3.6 * trained, classes
END
done
expect 0 "$MEOPT" plan dinov2.yaml --card-memory 64G --explain workspace optim.name=muon
grep -q 'matrices of muon' out || fail "the workspace of muon"
expect 0 "$MEOPT" plan dinov2.yaml --card-memory 64G --json optim.name=muon optim.offload=nvme
json '1.9 < j["offload_read_bytes_per_step"] / (j["file_classes"]["optimizer"] + j["file_classes"]["weights"]) < 2' # both sweeps of a matrix

expect 0 "$MEOPT" plan qwen3_8b.yaml optim.name=adafactor optim.preset=minimal --json
python3 -c '
import json
p = json.load(open("out"))
held = p["classes"]["weights"] + p["classes"]["optimizer"]
assert held <= 2.1 * 8190735360 and p["peak_bytes"] <= 22e9, (held, p["peak_bytes"])' || fail "Qwen3-8B with adafactor: $(cat out)"
for wrong in optim.warmup_init=true train.ema=0.9 "optim.eps2=0 optim.scale_parameter=true" optim.decay_rate=0.5 optim.clip_threshold=0; do
    # shellcheck disable=SC2086
    expect 7 "$MEOPT" plan eva_clip.yaml optim.name=adafactor $wrong
done
expect 2 "$MEOPT" plan eva_clip.yaml --card-memory lots
expect 7 "$MEOPT" plan quickstart.yaml
grep -q '/EVA01_CLIP_g_14_plus_psz14_s11B.pt: ' err && grep -q 'model_t.arch' err || fail "a missing checkpoint without arch is named"
expect 7 "$MEOPT" plan nothing.yaml
expect 7 "$MEOPT" plan eva_clip.yaml optim.lrr=1
mkdir -p sample && tar -xzf "$MEOPT_SOURCE/configs/sample/ModelWeight.tar.gz" -C sample && mkdir -p here && "$MEOPT" config new quickstart here/quickstart.yaml >out
expect 0 "$MEOPT" plan here/quickstart.yaml --json
json 'j["teacher"]["width"] == j["student"]["width"] == 88' # from the checkpoints
# What is streamed and offloaded is so of MEOpt, and not of what it is compared with.
expect 0 "$MEOPT" plan dinov2.yaml --what-if --json
cp out resident
expect 0 "$MEOPT" plan dinov2.yaml model_t.place=streamed model_s.place=streamed optim.offload=nvme --what-if --json
check <<'END'
import json
alone, streamed = ((p["published"]["here_without_mib"], [(w["possible"], w["peak_bytes"]) for w in p["what_if"][:2]]) for p in (json.load(open("resident")), j))
assert alone == streamed, (alone, streamed)
END
# The lifetime of a drive follows from the bytes written per day.
expect 0 "$MEOPT" plan dinov2.yaml optim.offload=nvme --step-ms 34000
cp out lasts
expect 0 "$MEOPT" plan dinov2.yaml optim.offload=nvme --json
check <<'END'
import re
day = j["offload_written_bytes_per_step"] / 34 * 86400
printed = re.search(r" ([0-9.e+]+) TB .* 600 TBW .*?([0-9.e+]+) days", open("lasts").read())
assert abs(float(printed[1]) / (day / 1e12) - 1) < 0.01 and abs(float(printed[2]) / (600e12 / day) - 1) < 0.01, day
END
for option in $("$MEOPT" plan --help | grep -o -- '--[a-z-]*' | sort -u); do
    [ "$option" = --help ] || grep -q -- "Fl -${option#--}" "$MEOPT_SOURCE/man/meopt-plan.1" || fail "$option is not documented"
done

# On a card the scratch is the card's, whether it is here or not, and its memory is known where it is.
fakes=$MEOPT_BUILD/tests
if [ -f "$fakes/libfake_cuda.so" ]; then
    workspace() { "$MEOPT" plan dinov2.yaml "device.type=$1" --json | number workspace; }
    export MEOPT_CUDA_LIBRARY="$fakes/libfake_cuda.so" MEOPT_HIP_LIBRARY=/nowhere.so MEOPT_CUBLASLT_LIBRARY=none
    [ "$(workspace cuda)" != "$(workspace cpu)" ] || fail "scratch of a card"
    # whose driver is not here, as on a login node: its libraries are as they usually are, and that is said
    [ $(($(workspace cuda) + (32 << 20))) = "$(workspace hip)" ] || fail "scratch of a card that is not here"
    for ranks in 1 2; do "$MEOPT" plan dinov2.yaml device.type=hip --ranks $ranks --json >ranks$ranks; done
    check <<'END'
import json
a, b = (json.load(open("ranks%d" % n)) for n in (1, 2))
assert a["libraries_assumed"] and b["classes"]["comm"] >= a["classes"]["comm"] + (32 << 20), b["classes"]
END
    [ $(($(workspace cuda) + (32 << 20))) = "$(MEOPT_CUBLASLT_LIBRARY=$fakes/libfake_cublaslt.so workspace cuda)" ] || fail "scratch of cuBLASLt"
    expect 0 "$MEOPT" plan dinov2.yaml device.type=cuda
    grep -q '^fits 8192.0 MiB (cuda:0 Emulated card' out || fail "memory of the card"
    expect 0 "$MEOPT" plan dinov2.yaml device.type=cuda --json
    json 'j["fits"] and j["card_bytes"] == 8 << 30 and not j["libraries_assumed"]'
    expect 0 "$MEOPT" plan dinov2.yaml device.type=hip
    grep -q '^assumed ' out || fail "what is assumed is not printed"
    expect 0 "$MEOPT" plan dinov2.yaml device.type=hip --json
    json 'j["fits"] is None and j["card_bytes"] is None and j["libraries_assumed"]'
    MEOPT_CUDA_LIBRARY=/nowhere.so expect 0 "$MEOPT" plan dinov2.yaml 'device.cards=[0,1]'
    grep -q 'device.type=auto ' err || fail "planned for the CPU without a warning"
fi
run_checks
echo ok
