#!/bin/sh
# Adapters (LoRA) of a language model from the YAML to the merged model: the same weights and metrics with a streamed base, on two and three
# ranks with every dist.shard, in stages of a pipeline, in other rounds and after a stop; checkpoints have the adapters alone; eval and generate read them; merged, and as an adapter to begin with,
# they give the figures of the run; a base that is gone or other, and keys without a meaning, are refused. The plan is what is held.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
python3 - <<'END'
words = "the light and the darkness were upon the face of the waters".split()
text = " ".join(words[(i * i + i // 7) % len(words)] for i in range(2000)) + "\n"
open("train.txt", "w").write(text[:9000])
open("val.txt", "w").write(text[9000:9700])
END
common='data: {root: train.txt, val: val.txt, end: 10}
optim: {lr: 1.0e-2, warmup_steps: 5}
device: {type: cpu}'
cat >vit.yaml <<END
model: {family: llama, init: random, vocabulary: 256, context: 32, width: 32, depth: 3, heads: 4, kv_heads: 2, hidden: 48}
train: {objective: language, batch_size: 4, steps: 10, precision: fp32}
$common
END
train first 0
"$MEOPT" export first --format hf --out base >out 2>log || fail "export of the base: exit $?"
cat >vit.yaml <<END
model: {weight: base, context: 32}
lora: {rank: 4, alpha: 8}
train: {objective: language, global_batch: 4, micro_batch: 2, batch_size: 4, steps: 20, eval_steps: 10, precision: fp32}
$common
END
train one 0
train ranks2 0 --workers 2
same one ranks2
for shard in optimizer gradients parameters; do
    for ranks in 2 3; do
        train "$shard$ranks" 0 --workers $ranks dist.shard=$shard train.micro_batch=1
    done
done
train small 0 train.micro_batch=1
for run in optimizer2 optimizer3 gradients2 gradients3 parameters2 parameters3; do same small $run; done
train kept 0 --workers 3 dist.shard=parameters train.micro_batch=1 optim.gradients=keep
same small kept
train turns 0 --workers 2 dist.shard=parameters train.micro_batch=1 train.rounds=breadth train.recompute=block
same small turns
for stages in 2 3; do
    train "pipeline$stages" 0 --workers "$stages" dist.pipeline=$stages train.micro_batch=1 optim.gradients=release train.recompute=block
    same small "pipeline$stages"
done
train divided 10 --workers 4 dist.pipeline=2 dist.shard=parameters train.micro_batch=1 optim.gradients=release train.recompute=block \
    --stop-after 9
"$MEOPT" train --resume divided --no-dashboard --workers 3 dist.pipeline=3 dist.shard=none --stop-after 14 >out 2>log
[ $? = 10 ] || fail "divided: resumed with three stages"
"$MEOPT" train --resume divided --no-dashboard --workers 2 dist.pipeline=1 dist.shard=optimizer >out 2>log || fail "divided: exit $? on resume"
same small divided
train moved 10 --workers 3 dist.shard=parameters train.micro_batch=1 --stop-after 7
"$MEOPT" train --resume moved --no-dashboard --workers 2 dist.shard=optimizer --stop-after 13 >out 2>log
[ $? = 10 ] || fail "moved: resumed with two ranks and dist.shard optimizer"
"$MEOPT" train --resume moved --no-dashboard --workers 3 dist.shard=parameters >out 2>log || fail "moved: exit $? on resume"
same small moved
# Adapters and a base of more elements than the smallest part; a rank is lost.
wide="model.weight= model.init=random model.vocabulary=256 model.width=256 model.depth=2 model.heads=4 model.kv_heads=4 model.hidden=384
    model.family=llama lora.rank=192 train.micro_batch=1 train.steps=4 train.eval_steps=4 train.precision=bf16"
# shellcheck disable=SC2086
{
    train wide 0 $wide
    train wide-optimizer 0 $wide --workers 3 dist.shard=optimizer
    train wide-parameters 0 $wide --workers 3 dist.shard=parameters
    train wide-twice 0 $wide --workers 2 dist.shard=parameters train.batch_size=2 train.micro_batch=2
    train wide-whole 0 $wide --workers 2 train.batch_size=2 train.micro_batch=2
}
same wide wide-optimizer
same wide wide-parameters
same wide-whole wide-twice
pid_of() { # NAME RANK: prints its process once it has made steps
    python3 -c 'import json, sys
print([r["pid"] for r in json.load(open(sys.argv[1] + "/live.json"))["ranks"] if r["rank"] == int(sys.argv[2]) and r["pid"] > 1 and r["step"] > 0][0])' \
        "$1" "$2" >pid 2>pid.error
}
# shellcheck disable=SC2086
"$MEOPT" train vit.yaml --run-dir . --name lost --no-dashboard $wide --workers 3 dist.shard=parameters train.steps=100000 \
    train.eval_steps=100000 >out 2>log &
run=$!
wait_for 60 pid_of lost 2 || fail "no step: $(cat log pid.error)"
kill -KILL "$(cat pid)"
wait "$run"
[ $? = 14 ] || fail "a lost rank: $(cat log)"
"$MEOPT" export small >out 2>log && "$MEOPT" export parameters3 >out 2>log || fail "export of a sharded run"
cmp small/adapter/adapter_model.safetensors parameters3/adapter/adapter_model.safetensors || fail "other adapters exported"
train alone 0 train.global_batch=0
same one alone
train streamed 0 train.global_batch=0 model.place=streamed
same one streamed
train breadth 0 train.global_batch=0 train.rounds=breadth train.recompute=block model.place=streamed
same one breadth
train offloaded 0 train.global_batch=0 optim.offload=nvme
same one offloaded
train released 0 train.global_batch=0 train.micro_batch=4 model.place=streamed
train resident 0 train.global_batch=0 train.micro_batch=4
same resident released
train stopped 10 --stop-after 13
"$MEOPT" train --resume stopped --no-dashboard >out 2>log || fail "stopped: exit $? on resume"
same one stopped
train bf16 0 train.global_batch=0 train.precision=bf16
train bf16streamed 0 train.global_batch=0 train.precision=bf16 model.place=streamed
same bf16 bf16streamed

"$MEOPT" eval one --checkpoint last --json >eval.json 2>log || fail "eval: exit $?"
"$MEOPT" generate one --prompt "the light" --count 20 --checkpoint last >text 2>log || fail "generate: exit $?"
"$MEOPT" export one >out 2>log || fail "export: exit $?"
"$MEOPT" export one >out 2>log || fail "export over an export: exit $?"
"$MEOPT" export one --format hf --out merged >out 2>log || fail "export --format hf: exit $?"
"$MEOPT" export one --format safetensors >out 2>log || fail "export --format safetensors: exit $?"
find . -name '*.merged.*' | grep . && fail "a temporary file stays"
"$MEOPT" generate vit.yaml model.weight=merged lora.rank=0 lora.alpha=0 --prompt "the light" --count 20 >again 2>log || fail "generate of merged: $?"
cmp text again || fail "the merged model writes another text"
"$MEOPT" eval vit.yaml model.weight=merged lora.rank=0 lora.alpha=0 --json >merged.json 2>log || fail "eval of merged: exit $?"
"$MEOPT" eval vit.yaml lora.adapter=one/adapter --json >adapter.json 2>log || fail "eval of the adapter: exit $?"
"$MEOPT" eval vit.yaml model.weight=one/student.safetensors model.heads=4 lora.rank=0 lora.alpha=0 --json >file.json 2>log || fail "eval of the file: $?"
train begun 0 lora.adapter=one/adapter train.steps=1
train from 0 --from one train.steps=1
same begun from
# The adapter that a run began with is gone: its own checkpoint has them.
train whole 0 lora.adapter=one/adapter train.steps=4
cp -r one/adapter source
train cut 10 lora.adapter=source train.steps=4 --stop-after 2
mv source moved
"$MEOPT" train --resume cut --no-dashboard >out 2>log || fail "without the adapter that it began with: exit $?"
same whole cut
python3 -c 'import json; assert json.load(open("cut/meta.json"))["planned_peak_bytes"] > 0' || fail "no plan of the resumed run"
"$MEOPT" plan vit.yaml train.global_batch=0 --json >plan.json 2>log || fail "plan: exit $?"
python3 - <<'END' || fail "figures"
import json, struct
def lines(run): return {l["step"]: l for l in map(json.loads, open(run + "/metrics.jsonl"))}
def tensors(path):
    f = open(path, "rb")
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return {k: v["shape"] for k, v in header.items() if k != "__metadata__"}
one, first, begun = lines("one"), lines("first"), lines("begun")
assert one[20]["val_loss"] < one[10]["val_loss"], one[20]
found = {name: json.load(open(name + ".json"))["val_loss"] for name in ("eval", "merged", "adapter", "file")}
for name, loss in found.items(): assert abs(loss / one[20]["val_loss"] - 1) < 1e-6, (name, found, one[20])
assert begun[1]["loss"] < one[1]["loss"] - 1e-3, (begun[1], one[1])
own, peft = tensors("one/ckpt/step-00000020/model.safetensors"), tensors("one/adapter/adapter_model.safetensors")
assert len(own) == 3 * 7 * 2 and {"base_model.model." + k: v for k, v in own.items()} == peft, own
assert own["model.layers.2.mlp.up_proj.lora_B.weight"] == [48, 4] and own["model.layers.0.self_attn.k_proj.lora_A.weight"] == [4, 32]
manifest = json.load(open("one/ckpt/step-00000020/MANIFEST.json"))
assert manifest["base"]["path"].endswith("/base") and len(manifest["base"]["crc32c"]) == 8, manifest
config = json.load(open("one/adapter/adapter_config.json"))
assert config["peft_type"] == "LORA" and config["r"] == 4 and config["lora_alpha"] == 8 and config["bias"] == "none", config
assert config["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], config
for run in ("alone", "streamed", "resident", "bf16streamed", "optimizer2", "optimizer3", "parameters2", "parameters3", "pipeline2", "pipeline3", "wide-parameters"):
    meta = json.load(open(run + "/meta.json"))
    assert meta["planned_peak_bytes"] == max(c["peak_bytes"] for l in lines(run).values() for c in l.get("cards", [])), (run, meta["planned_peak_bytes"])
END

refused() { # CODE WORD ARGUMENT...
    want=$1 word=$2
    shift 2
    train refused "$want" "$@"
    grep -q "$word" log || fail "$*: nothing about $word: $(cat log)"
}
refused 7 lora.rank lora.rank=40
refused 7 q_proj lora.targets=query
refused 7 lora.alpha lora.adapter=one/adapter lora.alpha=9
refused 7 lora.targets lora.adapter=one/adapter lora.targets=q_proj
refused 7 model_s.place --workers 2 dist.shard=parameters model.place=streamed
refused 7 lora.rank train.ema=0.9
refused 7 lora.rank model.freeze=1
sed 's/"bias": "none"/"bias": "all"/' one/adapter/adapter_config.json >config
cp -r one/adapter odd
mv config odd/adapter_config.json
refused 7 bias lora.adapter=odd
# A module that PEFT trained as a whole (modules_to_save).
python3 - <<'END'
import json, struct
file = open("one/adapter/adapter_model.safetensors", "rb").read()
size = struct.unpack("<Q", file[:8])[0]
header, values = json.loads(file[8 : 8 + size]), file[8 + size :]
header["base_model.model.lm_head.weight"] = {"dtype": "F32", "shape": [256, 32], "data_offsets": [len(values), len(values) + 32768]}
header = json.dumps(header).encode()
open("odd/adapter_model.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + values + bytes(32768))
END
cp one/adapter/adapter_config.json odd/
refused 7 lm_head lora.adapter=odd
"$MEOPT" export first --format peft >out 2>log && fail "adapters of a run without them"
mv base gone
"$MEOPT" train --resume one train.steps=22 --no-dashboard >out 2>log && fail "resumed without its base"
"$MEOPT" export one --format hf --out merged2 >out 2>log && fail "merged without its base"
"$MEOPT" export first --format safetensors --out other.safetensors >out 2>log || fail "export of the base: exit $?"
mv merged base
"$MEOPT" train --resume one train.steps=22 --no-dashboard >out 2>log
[ $? = 7 ] || fail "resumed with another base"
grep -q model_s.weight log || fail "nothing about the base: $(cat log)"
