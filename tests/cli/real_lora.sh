#!/bin/sh
# Adapters that meopt trains load in PEFT, which continues a text with the same tokens, and the merged model is PEFT's: GPT-2, Llama, one
# with wide heads, and an image classifier in timm's class. Needs a Python with torch, transformers, timm and safetensors, and peft.
set -eu
set -- torch transformers timm safetensors
. "$MEOPT_SOURCE/tests/tools/python.sh"
"$python" -c 'import peft' 2>/dev/null || { echo "skipped: $python has no peft"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2
cd "$work"
yes 'the light and the darkness were upon the face of the waters' | head -c 9000 >train.txt
for model in "gpt2 all-linear" "llama q_proj,v_proj,down_proj" "wide all-linear"; do
    name=${model% *} targets=${model#* }
    head_dim='' && [ "$name" != wide ] || head_dim=', head_dim: 16'
    family=llama && [ "$name" != gpt2 ] || family=gpt2
    cat >$name.yaml <<END
model: {family: $family, init: random, vocabulary: 256, context: 32, width: 32, depth: 2, heads: 4, hidden: 48$head_dim}
data: {root: train.txt, end: 10}
train: {objective: language, batch_size: 4, steps: 30, precision: fp32}
optim: {lr: 1.0e-2, warmup_steps: 5}
device: {type: cpu}
END
    "$MEOPT" train $name.yaml --run-dir . --name "$name-first" --no-dashboard >out 2>log || fail "$name: exit $?"
    "$MEOPT" export "$name-first" --format hf --out "$name-base" >out 2>log || fail "$name: export of the base: exit $?"
    sed -i "s/^model: .*/model: {weight: $name-base, context: 32}\nlora: {rank: 4, alpha: 6, targets: \"$targets\"}/" $name.yaml
    "$MEOPT" train $name.yaml --run-dir . --name "$name" --no-dashboard optim.lr=0.05 >out 2>log || fail "$name: exit $? with adapters"
    "$MEOPT" export "$name" >out 2>log || fail "$name: export: exit $?"
    "$MEOPT" export "$name" --merge --out "$name-merged" >out 2>log || fail "$name: merged: exit $?"
    "$MEOPT" generate "$name" --checkpoint last --tokens 116,104,101 --count 24 --json >"$name.json" 2>log || fail "$name: generate: exit $?"
done
"$python" - <<'END' || fail "PEFT has other values"
import json, peft, torch, transformers
load = lambda path: transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
relative = lambda a, b: ((a - b).norm() / b.norm()).item()
for name in ("gpt2", "llama", "wide"):
    base = load(name + "-base")
    answer = json.load(open(name + ".json"))
    tokens = torch.tensor([answer["prompt"] + answer["tokens"]])
    plain = base(tokens).logits
    model, merged = peft.PeftModel.from_pretrained(base, name + "/adapter").eval(), load(name + "-merged")
    logits = model(tokens).logits
    assert relative(plain, logits) > 1e-2, name # the adapter does something
    greedy = logits[0, len(answer["prompt"]) - 1:-1].argmax(-1).tolist()
    assert greedy == answer["tokens"], (name, greedy, answer["tokens"])
    assert relative(merged(tokens).logits, logits) < 1e-5, name
    theirs, ours = dict(model.merge_and_unload().named_parameters()), dict(merged.named_parameters())
    worst = max(relative(ours[key], theirs[key]) for key in theirs)
    assert theirs.keys() == ours.keys() and worst < 1e-6, (name, worst)
    print(name, "logits", relative(merged(tokens).logits, logits), "merged", worst)
END
tar -xzf "$MEOPT_SOURCE/configs/sample/digits.tar.gz"
cat >vit.yaml <<'END'
model: {arch: vit_ti16, init: random, width: 64, depth: 3, heads: 4, hidden: 128, patch: 2, pos_grid: 4, classes: 10}
data: {root: digits/train, image_size: 8, crop_pct: 1, workers: 1}
train: {objective: classify, batch_size: 32, steps: 30, precision: fp32}
optim: {lr: 4.0e-3, warmup_steps: 0}
device: {type: cpu}
END
"$MEOPT" train vit.yaml --run-dir . --name vit-first --no-dashboard >out 2>log || fail "vit: exit $?"
"$MEOPT" export vit-first --run-dir . --format timm --out vit-base.safetensors >out 2>log || fail "vit: export of the base: exit $?"
sed -i 's/^model: .*/model: {weight: vit-base.safetensors}\nlora: {rank: 4, alpha: 6}/' vit.yaml
"$MEOPT" train vit.yaml --run-dir . --name vit --no-dashboard >out 2>log || fail "vit: exit $? with adapters"
"$MEOPT" export vit --run-dir . >out 2>log || fail "vit: export: exit $?"
"$MEOPT" export vit --run-dir . --merge --format timm --out vit-merged.safetensors >out 2>log || fail "vit: merged: exit $?"
"$python" - <<'END' || fail "PEFT has other values for a classifier"
import peft, timm, torch
from safetensors.torch import load_file
def load(path):
    model = timm.models.VisionTransformer(img_size=8, patch_size=2, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, num_classes=10)
    model.load_state_dict(load_file(path))
    return model.eval()
relative = lambda a, b: ((a - b).norm() / b.norm()).item()
torch.manual_seed(1)
images = torch.randn(16, 3, 8, 8)
base, merged = load("vit-base.safetensors"), load("vit-merged.safetensors")
plain = base(images)
model = peft.PeftModel.from_pretrained(base, "vit/adapter").eval()
logits = model(images)
assert relative(plain, logits) > 1e-2 # the adapter does something
assert relative(merged(images), logits) < 1e-5, relative(merged(images), logits)
theirs, ours = dict(model.merge_and_unload().named_parameters()), dict(merged.named_parameters())
worst = max(relative(ours[key], theirs[key]) for key in theirs)
assert theirs.keys() == ours.keys() and worst < 1e-6, worst
print("vit logits", relative(merged(images), logits), "merged", worst)
END
