#!/usr/bin/env python3
"""Golden data of tests/golden/golden_fine_tune.c: tests/data/fine_tune/NAME.

    env/bin/python tests/make/fine_tune.py tests/data/fine_tune

STEPS steps of torch.optim.AdamW in float64 on timm's VisionTransformer, every parameter redrawn, with timm's own drop path,
param_groups_layer_decay and ModelEmaV3, and the cross entropy of two smoothed labels. settings.json: the keys of a
configuration that does the same. model.safetensors: the beginning; final.safetensors: the weights after the last step;
average.safetensors: ModelEmaV3's; golden.safetensors: the images, the labels of each step, and the losses. Requires
tests/tools/requirements.txt.

Not timm's: which branches drop path drops (Philox4x32-10 as core/nn/drop_path.c draws), and the layer of the final norm of a class
token. BEiT, MAE and DINOv2 count it with the head; timm counts it with the last block, and fc_norm with the head.
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from timm.optim import param_groups_layer_decay
from timm.utils import ModelEmaV3

from classifiers import redraw

BATCH, CLASSES, STEPS, DEPTH, SEED = 4, 7, 6, 3, 5
LR, DECAY, EPS = 1e-2, 0.05, 1e-3  # LR / EPS bounds how far the rounding of a tiny gradient moves a weight
MIX, DROP, LAYERS, AVERAGE = {"smoothing": 0.1, "mixed": True}, {"drop_path": 0.4}, {"layer_decay": 0.65}, {"ema": 0.3}
CASES = {"mix": MIX, "drop-path": DROP, "layer-decay": LAYERS, "ema": AVERAGE, "all": MIX | DROP | LAYERS | AVERAGE | {"pool": "avg"}}
KEYS = {"smoothing": "train.label_smoothing", "drop_path": "model.drop_path", "layer_decay": "optim.layer_decay", "ema": "train.ema"}


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c


class Drawn:
    """Tensor.bernoulli_ of a step: the branches of the blocks after the first, attention before feed-forward."""

    def __init__(self, rate, step):
        self.rate, self.step, self.branch = rate, step, 2

    def __enter__(self):
        self.saved = torch.Tensor.bernoulli_
        torch.Tensor.bernoulli_ = lambda tensor, p: self.draw(tensor, p)

    def draw(self, tensor, keep):
        p = self.rate * (self.branch // 2) / (DEPTH - 1)
        assert abs(1 - p - keep) < 1e-6 and tensor.shape == (BATCH, 1, 1)
        for row in range(BATCH):
            tensor[row] = philox((row, self.step, 0, self.branch), (SEED, 0x64726F70))[0] * 2.0**-32 >= p
        self.branch += 1
        return tensor

    def __exit__(self, *_):
        torch.Tensor.bernoulli_ = self.saved
        assert self.branch == (2 * DEPTH if self.rate else 2)


def layer_of(name):
    """BEiT's get_num_layer_for_vit, MAE's get_layer_id_for_vit."""
    if name.startswith("blocks."):
        return int(name.split(".")[1]) + 1
    return 0 if name.startswith(("cls_token", "pos_embed", "patch_embed")) else DEPTH + 1


def groups_of(model, decay):
    names, groups = {p: name for name, p in model.named_parameters()}, []
    for group in param_groups_layer_decay(model, weight_decay=DECAY, layer_decay=decay, no_weight_decay_list=["cls_token"]):
        for p in group["params"]:
            scale = decay ** (DEPTH + 1 - layer_of(names[p]))
            assert abs(group["lr_scale"] - scale) < 1e-12 or names[p].startswith("norm."), names[p]
            groups.append({"params": [p], "weight_decay": group["weight_decay"], "lr": LR * scale})
    return groups


def make(name, o, root):
    torch.manual_seed(3)
    model = VisionTransformer(img_size=14, patch_size=7, embed_dim=16, depth=DEPTH, num_heads=1, mlp_ratio=1.5, num_classes=CLASSES,
                              drop_path_rate=o.get("drop_path", 0), global_pool=o.get("pool", "token"))
    redraw(model, seed=sum(map(ord, name)))
    state_of = lambda m: {k: v.float().contiguous() for k, v in m.state_dict().items()}
    state, labels = state_of(model), lambda: torch.randint(0, CLASSES, (STEPS, BATCH), dtype=torch.int32)
    golden = {"images": torch.randn(BATCH, 3, 14, 14), "labels": labels()}
    if o.get("mixed"):
        golden |= {"labels2": labels(), "share": torch.rand(STEPS, BATCH)}
        golden["share"][:, 0], golden["share"][::2, 1] = 1, 0
    model.double().train()
    optimizer = torch.optim.AdamW(groups_of(model, o.get("layer_decay", 1)), lr=LR, betas=(0.9, 0.95), eps=EPS)
    # decay t / (9 + t) up to o["ema"], in the first step 0
    average = ModelEmaV3(model, decay=o.get("ema", 0), use_warmup=True, warmup_gamma=9, warmup_power=1)
    losses = []
    for step in range(1, STEPS + 1):
        with Drawn(o.get("drop_path", 0), step):
            logits = model(golden["images"].double())
        each = lambda key: F.cross_entropy(logits, golden[key][step - 1].long(), reduction="none", label_smoothing=o.get("smoothing", 0))
        share = golden["share"][step - 1].double() if "share" in golden else 1
        loss = (share * each("labels") + ((1 - share) * each("labels2") if "share" in golden else 0)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model, step=step + 1 if step > 1 else 1)
        losses.append(loss.item())
    golden["loss"] = torch.tensor(losses, dtype=torch.float64)
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    files = {"model": state, "final": state_of(model), "golden": golden} | ({"average": state_of(average.module)} if "ema" in o else {})
    for file, tensors in files.items():
        save_file(tensors, os.path.join(directory, file + ".safetensors"))
    with open(os.path.join(directory, "settings.json"), "w") as f:
        json.dump([f"{KEYS[k]}={v}" for k, v in o.items() if k in KEYS], f)
        f.write("\n")
    print(name, sum(p.numel() for p in model.parameters()), losses[0], losses[-1])


for name, o in CASES.items():
    make(name, o, sys.argv[1])
