#!/bin/sh
# Adapters (LoRA) of image towers: a classifier, whose head is trained as well, and distillations of three families. eval and embed read the
# adapters, and merged they give the same figures. Equal bytes of ranks: equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
logs='out log'
few_images 16
tar -xzf "$MEOPT_SOURCE/configs/sample/digits.tar.gz" -C sample
meopt() { "$MEOPT" "$@" >out 2>log || fail "meopt $*: exit $?"; }
cp "$MEOPT_SOURCE/configs/digits.yaml" configs/
meopt train configs/digits.yaml --name base --no-dashboard train.steps=30
meopt export base --out base.safetensors
cat >lora.yaml <<END
model: {weight: base.safetensors}
lora: {rank: 4, alpha: 8}
data: {root: sample/digits/train, val: sample/digits/val, image_size: 8, crop_pct: 1, workers: 1}
train: {objective: classify, steps: 40, batch_size: 32, micro_batch: 16, precision: fp32}
optim: {lr: 4.0e-3, clip_grad_norm: 0}
device: {type: cpu}
END
meopt train lora.yaml --name whole --no-dashboard
"$MEOPT" eval whole --checkpoint last --json >run.json 2>log || fail "eval of the run"
meopt export whole
meopt export whole --merge --format timm --out merged.safetensors
"$MEOPT" eval lora.yaml lora.adapter=runs/whole/adapter --json >adapter.json 2>log || fail "eval of the adapter"
"$MEOPT" eval lora.yaml model.weight=merged.safetensors lora.rank=0 lora.alpha=0 --json >merged.json 2>log || fail "eval of the merged model"
python3 - <<'END' || fail "figures"
import json, struct
def header(path):
    f = open(path, "rb")
    return {k: v["shape"] for k, v in json.loads(f.read(struct.unpack("<Q", f.read(8))[0])).items() if k != "__metadata__"}
run, adapter, merged = (json.load(open(name + ".json")) for name in ("run", "adapter", "merged"))
for key in "val_loss", "val_top1":
    assert abs(run[key] - adapter[key]) < 1e-6 and abs(run[key] - merged[key]) < 1e-6, (key, run, adapter, merged)
saved, config = header("runs/whole/adapter/adapter_model.safetensors"), json.load(open("runs/whole/adapter/adapter_config.json"))
assert config["modules_to_save"] == ["head"] and config["target_modules"] == ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"], config
assert saved["base_model.model.head.weight"] == [10, 64] and len(saved) == 3 * 4 * 2 + 2, saved
assert all("lora_" in key or "head" in key for key in saved)
END
compare() { # NAME: the embeddings of the run and of the merged model, in fp32
    meopt embed "$1" model_s.dtype=fp32 -o adapted.npy
    meopt export --merge "$1" --out student.safetensors
    meopt embed "configs/$1.yaml" --role student model_s.dtype=fp32 model_s.weight="$PWD/student.safetensors" -o merged.npy
    python3 - <<'END' || fail "$1: the merged model has other embeddings"
import json, struct
def values(path):
    f = open(path, "rb")
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    begin, end = next(v["data_offsets"] for k, v in header.items() if k != "__metadata__" and v["dtype"] == "F32")
    data = f.read()[begin:end]
    return struct.unpack("<%df" % (len(data) // 4), data)
a, b = values("adapted.npy"), values("merged.npy")
assert len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) < 1e-5 * max(map(abs, b))
END
}
for name in quickstart quickstart_openclip quickstart_dinov2; do
    meopt train "configs/$name.yaml" --name "$name" --no-dashboard lora.rank=4 train.steps=3 data.workers=1 train.batch_size=8 train.micro_batch=4
    compare "$name"
done
