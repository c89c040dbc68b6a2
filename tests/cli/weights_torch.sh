#!/bin/sh
# PyTorch loads files written by meopt (with weights_only=True), and meopt loads files written by PyTorch; values are equal. Requires a
# Python with torch (python.sh).
set -eu
set -- torch numpy
. "$MEOPT_SOURCE/tests/tools/python.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
"$MEOPT_BUILD/tests/test_weights" write "$dir"
"$python" - "$dir" <<'PYTHON'
import collections, json, struct, sys, warnings, zipfile
import torch
warnings.simplefilter("ignore")
dir = sys.argv[1]
types = dict(F32=torch.float32, F16=torch.float16, BF16=torch.bfloat16, F64=torch.float64, I64=torch.int64, I32=torch.int32,
             I16=torch.int16, I8=torch.int8, U8=torch.uint8, BOOL=torch.bool)

def safetensors(path):
    raw = open(path, "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    out = collections.OrderedDict()
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        data = bytearray(raw[8 + n + begin:8 + n + end])
        flat = torch.frombuffer(data, dtype=types[t["dtype"]]) if data else torch.empty(0, dtype=types[t["dtype"]])
        out[name] = flat.reshape(t["shape"])
    return out

def same(a, b):
    assert list(a) == list(b), (list(a), list(b))
    for k in a:
        assert a[k].dtype == b[k].dtype and a[k].shape == b[k].shape, k
        bits = lambda t: t.contiguous().reshape(-1).numpy().tobytes() if t.dtype != torch.bfloat16 else t.reshape(-1).view(torch.int16).numpy().tobytes()
        assert bits(a[k]) == bits(b[k]), k

assert zipfile.ZipFile(dir + "/sample.pt").testzip() is None
ours = torch.load(dir + "/sample.pt", map_location="cpu", weights_only=True)
assert isinstance(ours, collections.OrderedDict)
same(safetensors(dir + "/sample.safetensors"), ours)
if "mmap" in torch.load.__code__.co_varnames:
    same(ours, torch.load(dir + "/sample.pt", map_location="cpu", weights_only=True, mmap=True))

# the way back: every form that this torch can write
torch.save(ours, dir + "/zip.pt")
torch.save(ours, dir + "/legacy.pt", _use_new_zipfile_serialization=False)
torch.save({"model": {"module." + k: torch.nn.Parameter(v) if v.is_floating_point() else v for k, v in ours.items()}, "epoch": 3}, dir + "/wrapped.pt")
if hasattr(torch.serialization, "set_crc32_options"):
    torch.serialization.set_crc32_options(False)
torch.save(ours, dir + "/nocrc.pt")
print("torch", torch.__version__)
PYTHON
for form in zip legacy wrapped nocrc; do
    "$MEOPT_BUILD/tests/test_weights_damage" same "$dir/$form.pt" "$dir/sample.safetensors" || { echo "$form.pt differs"; exit 1; }
done
# nanoGPT's ckpt.pt says its heads itself (model_args); without them heads of 64 are assumed. Its GELU is the exact one.
(cd "$dir" && "$python" - <<'PYTHON'
import torch
n, d, v, context = 2, 128, 80, 32
state = {"transformer.wte.weight": torch.randn(v, d), "transformer.wpe.weight": torch.randn(context, d), "transformer.ln_f.weight": torch.ones(d),
         "transformer.ln_f.bias": torch.zeros(d)}
for i in range(n):
    for key, rows, columns in (("attn.c_attn", 3 * d, d), ("attn.c_proj", d, d), ("mlp.c_fc", 4 * d, d), ("mlp.c_proj", d, 4 * d)):
        state[f"_orig_mod.transformer.h.{i}.{key}.weight"] = torch.randn(rows, columns)
        state[f"_orig_mod.transformer.h.{i}.{key}.bias"] = torch.randn(rows)
    for key in ("ln_1", "ln_2"):
        state[f"_orig_mod.transformer.h.{i}.{key}.weight"], state[f"_orig_mod.transformer.h.{i}.{key}.bias"] = torch.ones(d), torch.zeros(d)
state = {k if k.startswith("_orig") else "_orig_mod." + k: t for k, t in state.items()}
state["_orig_mod.lm_head.weight"] = state["_orig_mod.transformer.wte.weight"]
model_args = dict(n_layer=n, n_head=4, n_embd=d, block_size=context, bias=True, vocab_size=v, dropout=0.0)
torch.save({"model": state, "model_args": model_args, "iter_num": 5, "config": {"dataset": "x"}}, "ckpt.pt")
torch.save({"model": state, "model_args": {**model_args, "n_embd": 64}}, "other.pt")
torch.save({"model": state, "model_args": {**model_args, "n_head": 0}}, "zero.pt")
torch.save(state, "alone.pt")
PYTHON
)
echo "{model: {context: 16}, train: {objective: language}, data: {root: tokens.bin}, device: {type: cpu}}" >"$dir/gpt.yaml"
shape() { # FILE: heads and activation, and whether they are assumed
    "$MEOPT" plan "$dir/gpt.yaml" model.weight="$dir/$1" --json 2>"$dir/log" |
        "$python" -c 'import json, sys; m = json.load(sys.stdin)["student"]; print(m["heads"], m["heads_assumed"], m["activation"], m["activation_assumed"], m["sources"]["heads"])'
}
[ "$(shape ckpt.pt)" = "4 False gelu False metadata" ] || fail "model_args of nanoGPT: $(shape ckpt.pt)"
[ "$(shape alone.pt)" = "2 True gelu True assumed" ] || fail "nanoGPT without model_args: $(shape alone.pt)"
code=0
"$MEOPT" plan "$dir/gpt.yaml" model.weight="$dir/other.pt" >"$dir/out" 2>"$dir/log" || code=$?
[ "$code" = 7 ] && grep -q 64 "$dir/log" || fail "model_args of another model: exit $code, $(cat "$dir/log")"
code=0
"$MEOPT" plan "$dir/gpt.yaml" model.weight="$dir/zero.pt" >"$dir/out" 2>"$dir/log" || code=$?
[ "$code" = 7 ] && grep -q 'n_head.*0' "$dir/log" || fail "no heads in model_args: exit $code, $(cat "$dir/log")"
