#!/usr/bin/env python3
"""Golden data of tests/golden/golden_muon.c: tests/data/muon.

    python3 tests/make/muon.py MUON MOONLIGHT tests/data/muon

MUON: muon.py of github.com/KellerJordan/Muon (857d1ad). MOONLIGHT: examples/toy_train.py of github.com/MoonshotAI/Moonlight
(c2ad5b2), of which the class Muon and its Newton-Schulz are taken. Needs torch with torch.optim.Muon (made with 2.15.0).

Each case of index.json is a real class with its arguments, STEPS steps of the matrices in SHAPES with the gradients of
`fill`, which the test computes as well. The classes multiply in bf16; here their conversion to it gives float64, so that
NAME.I (fp32) is the exact trajectory's last weight. bf16.I is the first case by the class as it is. polar_express is torch's class
whose Newton-Schulz is replaced by a singular value decomposition: the polynomials of arXiv:2505.16932, listing 1, of the singular values.
"""
import ast
import json
import math
import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file

SHAPES, STEPS = [(24, 40), (40, 24), (32, 32), (6, 80)], 20
OUTLIERS = {"outliers100": 100, "outliers3000": 3000}


def fill(n, seed, scale):
    values, seed = np.empty(n, dtype=np.float32), int(seed)
    for i in range(n):
        seed = (seed * 1664525 + 1013904223) % 2**32
        values[i] = np.float32(np.float32(np.float32(seed >> 8) / np.float32(16777216)) - np.float32(0.5)) * np.float32(scale)
    return values


def classes(muon, moonlight):
    spaces = []
    for path, names in ((muon, None), (moonlight, ("Muon", "zeropower_via_newtonschulz5"))):
        tree = ast.parse(open(path).read())
        if names:
            tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
            for node in tree.body:
                node.decorator_list = []
        space = {"torch": torch, "math": math}
        exec(compile(tree, path, "exec"), space)
        spaces.append(space)
    return {"torch": torch.optim.Muon, "keller": spaces[0]["SingleDeviceMuon"], "moonshot": spaces[1]["Muon"]}


POLAR = [(8.28721201814563, -23.595886519098837, 17.300387312530933), (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
         (3.9486908534822946, -2.908902115962949, 0.5518191394370137), (3.3184196573706015, -2.488488024314874, 0.51004894012372),
         (2.300652019954817, -1.6689039845747493, 0.4188073119525673), (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
         (1.8750014808534479, -1.2500016453999487, 0.3750001645474248), (1.875, -1.25, 0.375)]


def polar(grad, _coefficients, steps, eps):
    u, s, v = torch.linalg.svd(grad.double(), full_matrices=False)
    s = s / s.norm().clamp(min=eps) / 1.01
    for k in range(steps):
        a, b, c = POLAR[min(k, 7)]
        x = s / 1.01 if k < 7 else s  # the safety factor of all but the last polynomial
        s = a * x + b * x**3 + c * x**5
    return u @ torch.diag(s) @ v


BASE = dict(lr=0.02, weight_decay=0.1, momentum=0.95)
CASES = {
    "default": ("torch", BASE),
    "plain_momentum": ("torch", {**BASE, "nesterov": False}),
    "momentum": ("torch", {**BASE, "momentum": 0.8}),
    "no_momentum": ("torch", {**BASE, "momentum": 0.0}),
    "rms_match": ("torch", {**BASE, "adjust_lr_fn": "match_rms_adamw"}),
    "spectral": ("torch", {**BASE, "adjust_lr_fn": "spectral_unclamped"}),
    "steps": ("torch", {**BASE, "ns_steps": 3}),
    "coefficients": ("torch", {**BASE, "ns_coefficients": (2.0, -1.5, 0.5)}),
    "eps": ("torch", {**BASE, "eps": 1.0}),
    "polar_express": ("torch", BASE),
    "polar_express9": ("torch", {**BASE, "ns_steps": 9}),
    "outliers100": ("torch", BASE),
    "outliers3000": ("torch", BASE),
    "keller": ("keller", BASE),
    "moonshot": ("moonshot", dict(lr=0.02, wd=0.1, momentum=0.95)),
    "moonshot_plain": ("moonshot", dict(lr=0.02, wd=0.1, momentum=0.9, nesterov=False)),
}


def trajectory(make, kind, arguments, outlier, exact):
    keep = torch.bfloat16, torch.Tensor.bfloat16
    params = [torch.tensor(fill(r * c, 7 + i, 1).reshape(r, c)) for i, (r, c) in enumerate(SHAPES)]
    params = [torch.nn.Parameter(p.double() if exact else p) for p in params]
    name = "muon_params" if kind == "moonshot" else "params"
    optimizer = make[kind](**{name: params}, **arguments)
    if exact:
        torch.bfloat16, torch.Tensor.bfloat16 = torch.float64, lambda t: t.clone()
    try:
        for step in range(1, STEPS + 1):
            for i, p in enumerate(params):
                g = fill(p.numel(), 100 * step + i, 0.1)
                g[step] *= np.float32(outlier)
                p.grad = torch.tensor(g.reshape(p.shape)).to(p.dtype)
            optimizer.step()
    finally:
        torch.bfloat16, torch.Tensor.bfloat16 = keep
    return [p.detach().float().contiguous() for p in params]


def main():
    make, out = classes(*sys.argv[1:3]), sys.argv[3]
    tensors = {}
    usual = torch.optim._muon._zeropower_via_newtonschulz
    for name, (kind, arguments) in CASES.items():
        torch.optim._muon._zeropower_via_newtonschulz = polar if name.startswith("polar") else usual
        for i, w in enumerate(trajectory(make, kind, arguments, OUTLIERS.get(name, 1), True)):
            tensors[f"{name}.{i}"] = w
    for i, w in enumerate(trajectory(make, "torch", BASE, 1, False)):
        tensors[f"bf16.{i}"] = w
    os.makedirs(out, exist_ok=True)
    save_file(tensors, os.path.join(out, "muon.safetensors"))
    index = {"steps": STEPS, "shapes": SHAPES,
             "cases": {name: {"class": kind, "polar_express": name.startswith("polar"), "outlier": OUTLIERS.get(name, 1), **arguments}
                       for name, (kind, arguments) in CASES.items()}}
    with open(os.path.join(out, "index.json"), "w") as f:
        json.dump(index, f, indent=1)
        f.write("\n")


main()
