#!/bin/sh
# Adapters (LoRA) of a language model from the YAML to the merged model: checkpoints have the adapters alone; eval and generate read them;
# merged, and as an adapter to begin with, they give the figures of the run; a base that is gone or other, and keys without a meaning, are
# refused. Equal bytes of ranks: equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
write_text
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
"$MEOPT" eval one --checkpoint last --json >eval.json 2>log || fail "eval: exit $?"
"$MEOPT" generate one --prompt "the light" --count 20 --checkpoint last >text 2>log || fail "generate: exit $?"
"$MEOPT" export one >out 2>log || fail "export: exit $?"
"$MEOPT" export one >out 2>log || fail "export over an export: exit $?"
"$MEOPT" export one --format hf --out merged >out 2>log || fail "export --format hf: exit $?"
"$MEOPT" export one --format safetensors >out 2>log || fail "export --format safetensors: exit $?"
find . -name '*.merged.*' | grep . && fail "a temporary file stays"
"$MEOPT" generate vit.yaml model.weight=merged lora.rank=0 lora.alpha=0 --prompt "the light" --count 20 >again 2>log || fail "generate of merged: $?"
cmp text again || fail "the merged model writes another text"
"$MEOPT" generate merged train.precision=fp32 device.type=cpu --prompt "the light" --max-new-tokens 20 >again 2>log || fail "generate of a model: $?"
cmp text again || fail "the merged model alone writes another text"
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
assert json.load(open("cut/meta.json"))["planned_peak_bytes"] > 0 # the plan of a resumed run
assert config["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], config
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
while read -r name value; do
    python3 - "$name" "$value" <<'MEMBER'
import json, sys
members = json.load(open("one/adapter/adapter_config.json"))
members[sys.argv[1]] = json.loads(sys.argv[2])
json.dump(members, open("odd/adapter_config.json", "w"))
MEMBER
    refused 7 "$name" lora.adapter=odd
done <<'END'
made_up 1
init_lora_weights "pissa_niter_16"
init_lora_weights "olora"
kasa_config {"k":1}
alora_invocation_tokens [5]
END
# an adapter in the model's directory: transformers applies both
cp one/adapter/adapter_config.json base/
refused 7 adapter_config.json lora.rank=0 lora.alpha=0
rm base/adapter_config.json
# the names of a compiled model, and of the state dict of a whole PeftModel
for change in 's/lora_[AB]/&.default/g' 's/base_model.model./&_orig_mod./g'; do
    rm -rf renamed && cp -r one/adapter renamed
    python3 - "$change" <<'END'
import json, re, struct, sys
file = open("one/adapter/adapter_model.safetensors", "rb").read()
size = struct.unpack("<Q", file[:8])[0]
_, find, put, _ = sys.argv[1].split("/")
header = re.sub(find, lambda m: put.replace("&", m[0]), file[8 : 8 + size].decode()).encode()
open("renamed/adapter_model.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + file[8 + size :])
END
    "$MEOPT" eval vit.yaml lora.adapter=renamed --json >renamed.json 2>log || fail "$change: exit $? $(cat log)"
    [ "$(grep val_loss adapter.json)" = "$(grep val_loss renamed.json)" ] || fail "$change: another loss"
done
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
