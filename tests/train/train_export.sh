#!/bin/sh
# meopt export --format pt: PyTorch opens the student with weights_only=True under the published keys and shapes, and its
# values are those of the safetensors export and of the checkpoint, bit for bit. Needs a Python with torch
# (python.sh).
set -eu
set -- torch
. "$MEOPT_SOURCE/tests/tools/python.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
for pair in quickstart quickstart_openclip quickstart_dinov2; do
    "$MEOPT" train "$work/configs/$pair.yaml" train.steps=3 train.batch_size=4 --run-dir "$work" --name "$pair" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    "$MEOPT" export "$work/$pair" --format pt
    "$MEOPT" export "$work/$pair" --format safetensors
    "$python" - "$work/$pair" "$(sed -n 's/^  weight: //p' "$work/$pair/config.yaml" | sed -n 2p)" <<'PYTHON'
import glob, json, struct, sys
import torch
run, original = sys.argv[1:]

def safetensors(path):
    raw = open(path, "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__": continue
        assert t["dtype"] == "F32"
        begin, end = t["data_offsets"]
        out[name] = torch.frombuffer(bytearray(raw[8 + n + begin:8 + n + end]), dtype=torch.float32).reshape(t["shape"])
    return out

student = torch.load(run + "/student.pt", map_location="cpu", weights_only=True)
checkpoint, = glob.glob(run + "/ckpt/step-*/model.safetensors")
for other in safetensors(run + "/student.safetensors"), safetensors(checkpoint):
    assert set(other) == set(student)
    for k in student: assert student[k].dtype == torch.float32 and torch.equal(student[k].view(torch.int32), other[k].view(torch.int32)), k
began = torch.load(original, map_location="cpu", weights_only=False)
for wrapper in "model", "module", "state_dict":
    if wrapper in began: began = began[wrapper]
began = {k.removeprefix("module."): v for k, v in began.items()}
moved = missing = 0
for k, v in student.items():
    source = began.get(k, began.get("visual." + k))
    if source is None:
        missing += 1
        continue
    assert source.shape == v.shape, k
    moved += not torch.equal(source.float(), v)
assert missing <= 4, "keys that the published file does not have: %d" % missing # the head that joins two widths
assert moved > len(student) / 2
print("%d tensors, %d trained, %d of the head" % (len(student), moved, missing))
PYTHON
done
