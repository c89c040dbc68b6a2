#!/bin/sh
# DINOv2's own class (facebookresearch/dinov2, DinoVisionTransformer of torch.hub.load) loads every export of a DINOv2 student strictly.
# From the same images it computes the embeddings of meopt embed, also for a student initialized from the class, with resized positions.
# Requires a Python with torch and dinov2 (python.sh).
set -eu
set -- torch dinov2 safetensors PIL
. "$MEOPT_SOURCE/tests/tools/python.sh"
export OMP_NUM_THREADS=2
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir images
cat >c.yaml <<YAML
model:
  weight_t: none
  weight_s: none
data:
  root: images
  image_size: 42
train:
  batch_size: 4
  precision: fp32
optim:
  use_meopt: false
  lr: 1.0e-2
  warmup_steps: 0
YAML
cat >hub.py <<'PYTHON'
import functools, logging, warnings
warnings.simplefilter("ignore")
from dinov2.layers import MemEffAttention, NestedTensorBlock
from dinov2.models.vision_transformer import DinoVisionTransformer
from torch import nn, zeros

def hub(registers=0, size=28, **more):
    model = DinoVisionTransformer(img_size=size, patch_size=7, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2, init_values=1.0,
                                  block_chunks=0, block_fn=functools.partial(NestedTensorBlock, attn_class=MemEffAttention), **more)
    if registers: # the one tensor that later versions of the class have beside these
        model.register_tokens = nn.Parameter(zeros(1, registers, 16))
    return model
PYTHON
"$python" - <<'PYTHON'
import torch
from PIL import Image
from hub import hub
g = torch.Generator().manual_seed(5)
for i in range(4):  # as large as they are looked at: no resize between
    for size in 28, 42:
        Image.fromarray(torch.randint(0, 256, (size, size, 3), generator=g, dtype=torch.uint8).numpy()).save("images/%d-%d.png" % (size, i))
for name, more in ("hub-mlp", {}), ("hub-swiglu", dict(ffn_layer="swiglufused")):
    model = hub(**more)
    for p in model.parameters(): p.data = p.data + 0.2 * torch.randn(p.shape, generator=g)
    torch.save(model.state_dict(), name + ".pth")
PYTHON
for name in hub-mlp hub-swiglu dinov2 dinov2-registers timm-dinov2 timm-dinov2-registers; do
    case $name in hub*) file=$name.pth ;; *) file=$MEOPT_SOURCE/tests/data/names/$name ;; esac
    "$MEOPT" train c.yaml "model.weight_t=$file" "model.weight_s=$file" model_t.heads=2 model_s.heads=2 --steps 2 --run-dir . \
        --name "$name" --no-dashboard >log 2>&1 || { cat log; exit 1; }
    for size in 28 42; do
        "$MEOPT" embed "$name" --role student data.image_size=$size data.pipeline=clip "data.include=$size-*" -o "$name/$size" >log 2>&1 || { cat log; exit 1; }
    done
    "$MEOPT" export "$name" --format pt -o "$name.pt"
    "$MEOPT" export "$name" -o "$name.safetensors"
done
"$python" - <<'PYTHON'
import numpy, torch
from PIL import Image
from hub import hub
from safetensors.torch import load_file
torch.set_grad_enabled(False)
mean, std = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])
read = lambda f: (torch.from_numpy(numpy.array(Image.open(f))).float() / 255 - mean) / std
for name, sizes in ("hub-mlp", (28, 42)), ("hub-swiglu", (28, 42)), ("dinov2", (28,)), ("timm-dinov2", (28,)), \
        ("dinov2-registers", ()), ("timm-dinov2-registers", ()):
    model = hub(4 if "registers" in name else 0, **(dict(ffn_layer="swiglufused") if "swiglu" in name else {})).eval()
    model.load_state_dict(load_file(name + ".safetensors"), strict=True)
    model.load_state_dict(torch.load(name + ".pt", weights_only=True), strict=True)
    for size in sizes:
        images = torch.stack([read("images/%d-%d.png" % (size, i)) for i in range(4)]).permute(0, 3, 1, 2)
        ours = load_file("%s/%d" % (name, size))["embeddings"]
        error = ((model(images) - ours).norm() / ours.norm()).item()
        print("%-24s at %d px %.2g" % (name, size, error))
        assert error <= 1e-5, name
PYTHON
