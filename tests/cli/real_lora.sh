#!/bin/sh
# Adapters that meopt trains load in PEFT, which continues a text with the same tokens, and the merged model is PEFT's: GPT-2, Llama, and one with wide heads.
# Needs a Python with torch, transformers and safetensors (python.sh), and peft.
set -eu
set -- torch transformers safetensors
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
