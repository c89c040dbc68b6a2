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
