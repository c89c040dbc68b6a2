#!/usr/bin/env python3
"""Golden data of tests/golden/golden_targets.c: tests/data/targets/NAME.

    env/bin/python tests/make/targets.py tests/data/targets

STEPS steps of torch.optim.AdamW in float64 on timm's VisionTransformer, the student of two teachers: another VisionTransformer
and transformers' SiglipVisionModel, each with its own images, size and patch. settings.json: the keys of loss in a configuration
that does the same. teacher, teacher2 and student.safetensors: the beginning; final.safetensors: the student after the last step;
golden.safetensors: the images, and the losses. Requires tests/tools/requirements.txt.

The losses and heads are those of torch.nn.functional: mse_loss, smooth_l1_loss, 1 - cosine_similarity, linear, layer_norm, gelu; grids
of patches are resized by interpolate (bicubic, antialias), tokens of blocks normalised by layer_norm without weights. targets.safetensors: the maps of loss.standardize, by torch.linalg.eigh.
"""
import json
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from transformers import SiglipVisionConfig, SiglipVisionModel

from classifiers import redraw

BATCH, STEPS, WIDTH, EPS = 2, 6, 16, 1e-6
LR, DECAY, ADAM_EPS = 1e-2, 0.05, 1e-3  # LR / ADAM_EPS bounds how far the rounding of a tiny gradient moves a weight
CLS, PATCH, BOTH, AVG = "cls", "patch", "cls+patch", "avg"
CASES = {
    "embedding": [dict(tokens=CLS, teacher=1, head="mlp"), dict(tokens=CLS, teacher=2, type="cosine", weight=0.5)],
    "patches": [dict(tokens=PATCH, teacher=1, type="smooth-l1", head="linear"), dict(tokens=PATCH, teacher=2, head="mlp", head_hidden=12)],
    "means": [dict(tokens=AVG, teacher=1), dict(tokens=AVG, teacher=2, head="mlp", normalize="true"), dict(tokens=CLS, teacher=1, weight=2)],
    "both": [dict(tokens=BOTH, teacher=1, reduction="sum-dim", weight=0.1), dict(tokens=PATCH, teacher=1, type="cosine"),
             dict(tokens=CLS, teacher=2, head="linear", weight=0.3)],
    "blocks": [dict(tokens=BOTH, teacher=1, block_t=2, block_s=1), dict(tokens=PATCH, teacher=2, block_t=1, block_s=2, head="mlp"),
               dict(tokens=CLS, teacher=1)],
    "headless": [dict(tokens=CLS, teacher=1, head="none"), dict(tokens=PATCH, teacher=1, head="none", type="cosine"),
                 dict(tokens=AVG, teacher=1, head="none", weight=3), dict(tokens=BOTH, teacher=1, head="none", type="smooth-l1"),
                 dict(tokens=PATCH, teacher=1, head="none", block_t=1, block_s=1), dict(tokens=CLS, teacher=2)],
    "shared": [dict(tokens=PATCH, teacher=1, type="cosine", weight=0.9, head="mlp"),
               dict(tokens=PATCH, teacher=1, type="smooth-l1", weight=0.1, head="previous"), dict(tokens=CLS, teacher=2, head="linear"),
               dict(tokens=CLS, teacher=2, head="previous", normalize="true")],
    "standardized": [dict(tokens=CLS, teacher=1, standardize="channel"), dict(tokens=PATCH, teacher=2, standardize="phi-s", type="smooth-l1"),
                     dict(tokens=PATCH, teacher=1, standardize="phi-s", head="mlp", block_t=1, block_s=2)],
}


class Tokens:
    """Class token (or None), patches and embedding after each block, of a timm or transformers model."""

    def __init__(self, model, images):
        self.of = {}
        if isinstance(model, VisionTransformer):
            x = model._pos_embed(model.patch_embed(images))
            for i, block in enumerate(model.blocks):
                x = block(x)
                self.of[i + 1] = self.split(F.layer_norm(x, x.shape[-1:], eps=EPS))
            self.last = self.split(model.norm(x))
            self.embedding = self.last[0]
        else:
            out = model(images, output_hidden_states=True)
            for i, x in enumerate(out.hidden_states[1:]):
                self.of[i + 1] = None, F.layer_norm(x, x.shape[-1:], eps=EPS)
            self.last, self.embedding = (None, out.last_hidden_state), out.pooler_output

    @staticmethod
    def split(x):
        return x[:, 0], x[:, 1:]

    def get(self, tokens, block):
        """The rows that have one mean each in the loss."""
        cls, patches = self.of[block] if block else self.last
        if not block:
            cls = self.embedding
        return {CLS: [cls], PATCH: [patches], BOTH: [cls, patches], AVG: [patches.mean(1)]}[tokens]


def resized(patches, count):
    side, to = round(patches.shape[1] ** 0.5), round(count**0.5)
    if side == to:
        return patches
    grid = patches.transpose(1, 2).reshape(len(patches), -1, side, side)
    return F.interpolate(grid, (to, to), mode="bicubic", antialias=True).flatten(2).transpose(1, 2)


def distance(y, t, o):
    y, t = y.flatten(0, -2), t.flatten(0, -2)
    if o.get("normalize") == "true":
        y, t = F.normalize(y, dim=-1), F.normalize(t, dim=-1)
    kind = o.get("type", "mse")
    if kind == "cosine":
        return (1 - F.cosine_similarity(y, t)).mean()
    each = (F.mse_loss if kind == "mse" else F.smooth_l1_loss)(y, t, reduction="none")
    return (each.sum(-1) if o.get("reduction") == "sum-dim" else each.mean(-1)).mean()


def hadamard(order):
    """Sylvester's, of an order of Paley's first kind."""
    if order % 2 == 0 and (order // 2 == 1 or order // 2 % 4 == 0):
        half = hadamard(order // 2)
        return torch.cat([torch.cat([half, half], 1), torch.cat([half, -half], 1)])
    if order == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    q = order - 1
    chi = torch.tensor([0] + [1 if any(y * y % q == x for y in range(1, q)) else -1 for x in range(1, q)], dtype=torch.float64)
    h = torch.eye(order, dtype=torch.float64)
    h[0, 1:], h[1:, 0] = 1, -1
    h[1:, 1:] += torch.tensor([[chi[(i - j) % q] for j in range(q)] for i in range(q)])
    return h


def map_of(number, o, rows):
    """The map of loss.standardize for these rows, under the names of meopt's file."""
    if "standardize" not in o:
        return {}
    rows, width = rows.reshape(-1, rows.shape[-1]), rows.shape[-1]
    mean, covariance = rows.mean(0), torch.cov(rows.T, correction=0)
    if o["standardize"] == "channel":
        matrix = torch.diag(covariance.diagonal() ** -0.5)
    else:
        values, vectors = torch.linalg.eigh(covariance)
        vectors = vectors[:, values.argsort(descending=True)].T
        vectors *= vectors.gather(1, vectors.abs().argmax(1, keepdim=True)).sign()
        matrix = hadamard(width) @ vectors / (covariance.trace() / width).sqrt() / width**0.5
    return {f"target{number}.mean": mean, f"target{number}.matrix": matrix, f"target{number}.shift": -matrix @ mean}


def head_of(number, o, width, target):
    """The parameters of a head, under the names of meopt's files."""
    kind = o.get("head", "auto")
    name = "distill_head." + (f"{number}." if number > 1 else "")
    if kind == "none" or (kind == "auto" and width == target):
        return {}
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64) * 0.3
    if kind != "mlp":
        return {name + "weight": draw(target, width), name + "bias": draw(target)}
    hidden = o.get("head_hidden", WIDTH)
    return {name + "fc1.weight": draw(hidden, width), name + "fc1.bias": draw(hidden), name + "norm.weight": 1 + draw(hidden),
            name + "norm.bias": draw(hidden), name + "fc2.weight": draw(target, hidden), name + "fc2.bias": draw(target)}


def apply(head, x):
    p = {k.split(".", 1)[1].removeprefix(k.split(".")[1] + ".") if k.split(".")[1].isdigit() else k.split(".", 1)[1]: v for k, v in head.items()}
    if "weight" in p:
        return F.linear(x, p["weight"], p["bias"])
    if not p:
        return x
    x = F.layer_norm(F.linear(x, p["fc1.weight"], p["fc1.bias"]), p["norm.weight"].shape, p["norm.weight"], p["norm.bias"], EPS)
    return F.linear(F.gelu(x), p["fc2.weight"], p["fc2.bias"])


def make(name, losses, root):
    torch.manual_seed(sum(map(ord, name)))
    vit = lambda **o: VisionTransformer(num_classes=0, mlp_ratio=1.5, num_heads=2, depth=3, **o)
    first, student = vit(img_size=28, patch_size=7, embed_dim=24 if name != "headless" else WIDTH), vit(img_size=21, patch_size=7, embed_dim=WIDTH)
    second = SiglipVisionModel(SiglipVisionConfig(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
                                                  image_size=40, patch_size=8, attn_implementation="eager"))
    for i, model in enumerate((first, second, student)):
        redraw(model, seed=i + sum(map(ord, name)))
        model.double().eval()
    images = [torch.randn(BATCH, 3, side, side) for side in (28, 40, 21)]
    with torch.no_grad():
        teachers = [Tokens(first, images[0].double()), Tokens(second, images[1].double())]
    width = lambda o: teachers[o["teacher"] - 1].get(o["tokens"], o.get("block_t", 0))[0].shape[-1]
    heads, own = [], []
    for o in losses:
        if o.get("head") != "previous":
            own.append(head_of(len(own) + 1, o, WIDTH, width(o)))
        heads.append(own[-1])
    for head in own:
        for p in head.values():
            p.requires_grad_()
    rows = lambda o: teachers[o["teacher"] - 1].get(o["tokens"], o.get("block_t", 0))[0]
    maps = [map_of(i + 1, o, torch.cat([rows(o), torch.randn(9, *rows(o).shape[1:], dtype=torch.float64)])) for i, o in enumerate(losses)]
    state_of = lambda m: {k: v.detach().float().contiguous() for k, v in m.state_dict().items()}
    all_of = lambda: state_of(student) | {k: v.detach().float() for head in own for k, v in head.items()}
    files = {"teacher": state_of(first), "teacher2": state_of(second), "student": all_of()}
    parameters = list(student.parameters()) + [p for head in own for p in head.values()]
    decays = lambda p: len([n for n in p.shape if n > 1]) > 1
    optimizer = torch.optim.AdamW([{"params": [p], "weight_decay": DECAY if decays(p) else 0} for p in parameters], lr=LR,
                                  betas=(0.9, 0.95), eps=ADAM_EPS)
    golden = []
    for _ in range(STEPS):
        ours, loss = Tokens(student, images[2].double()), 0
        for i, (o, head) in enumerate(zip(losses, heads)):
            y = ours.get(o["tokens"], o.get("block_s", 0))
            t = teachers[o["teacher"] - 1].get(o["tokens"], o.get("block_t", 0))
            if maps[i]:
                m, shift = maps[i][f"target{i + 1}.matrix"], maps[i][f"target{i + 1}.shift"]
                t = [F.linear(b, m, shift) for b in t]
            t = [resized(b, a.shape[1]) if a.ndim == 3 else b for a, b in zip(y, t)]
            loss = loss + o.get("weight", 1) * sum(distance(apply(head, a), b, o) for a, b in zip(y, t))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        golden.append(loss.item())
    files |= {"final": all_of(), "golden": {f"images{i}": x for i, x in enumerate(images)} | {"loss": torch.tensor(golden, dtype=torch.float64)}}
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    for file, tensors in files.items():
        save_file(tensors, os.path.join(directory, file + ".safetensors"))
    if any(maps):
        save_file({k: v.float().contiguous() for m in maps for k, v in m.items()}, os.path.join(directory, "targets.safetensors"),
                  {"standardize": " ".join(o.get("standardize", "none") for o in losses)})
    with open(os.path.join(directory, "settings.json"), "w") as f:
        json.dump([f"loss{i + 1 if i else ''}.{k}={v}" for i, o in enumerate(losses) for k, v in o.items()], f)
        f.write("\n")
    print(name, golden[0], golden[-1])


for name, losses in CASES.items():
    make(name, losses, sys.argv[1])
