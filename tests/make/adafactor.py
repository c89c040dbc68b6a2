#!/usr/bin/env python3
"""Makes tests/data/optim/adafactor*.safetensors and adafactor.json: 20 steps of torch.optim.Adafactor and of transformers' Adafactor
in float64, over vectors, matrices and tensors of three and four dimensions, with outliers of 100 to 3,000 times in the
gradients, for tests/golden/golden_optim.c. The names of the options are those of struct meopt_options. A step's factor scales
its gradient. Needs torch and transformers (made with 2.15.0, 5.24.0):

    python3 tests/make/adafactor.py tests/data/optim
"""
import json
import sys

import torch
from safetensors.torch import save_file
from transformers.optimization import Adafactor

STEPS, EPS = 20, torch.finfo(torch.float32).eps
SHAPES = [[7], [9, 17], [24, 40], [3, 5, 7], [4, 2, 3, 3], [1, 12], [12, 1], [130]]
SCALES = [1, 1e-3, 10, 1, 0, 1e-6, 1, 100, 0.1, 1, 1e-8, 0.5, 1, 3, 1, 30, 1e-2, 1, 1, 2]
TORCH = {"torch_form": True, "scale_parameter": True, "relative_step": True, "eps": EPS, "lr": 1e-2}
PLAIN = {"lr": 1e-3}
# name: options, differing from libmeopt's defaults
CASES = {
    "torch": TORCH, "torch_decay": {**TORCH, "weight_decay": 0.1}, "torch_d": {**TORCH, "clip_threshold": 3.0},
    "torch_rate": {**TORCH, "decay_rate": -0.5, "lr": 0.5}, "torch_eps": {**TORCH, "eps": 1e-3, "eps2": 0.5},
    "hf": PLAIN, "hf_decay": {**PLAIN, "weight_decay": 0.1}, "hf_clip": {**PLAIN, "clip_threshold": 0.5},
    "hf_rate": {**PLAIN, "decay_rate": -0.5}, "hf_eps": {**PLAIN, "eps": 1e-6, "eps2": 0.5, "scale_parameter": True},
    "hf_beta1": {**PLAIN, "beta1": 0.9, "weight_decay": 0.01},
    "hf_relative": {"lr": 1e-2, "scale_parameter": True, "relative_step": True, "weight_decay": 0.1},
    "hf_warmup": {"lr": 1e-2, "scale_parameter": True, "relative_step": True, "warmup_init": True, "beta1": 0.5},
}


def made(params, o):
    """Returns the original's optimizer with these options."""
    decay, eps2 = o.get("weight_decay", 0.0), o.get("eps2", 1e-3)
    if o.get("torch_form"):
        return torch.optim.Adafactor(params, lr=o["lr"], beta2_decay=o.get("decay_rate", -0.8), eps=(o["eps"], eps2),
                                     d=o.get("clip_threshold", 1.0), weight_decay=decay)
    relative = o.get("relative_step", False)
    return Adafactor(params, lr=None if relative else o["lr"], eps=(o.get("eps", 1e-30), eps2),
                     clip_threshold=o.get("clip_threshold", 1.0), decay_rate=o.get("decay_rate", -0.8),
                     beta1=o.get("beta1"), weight_decay=decay, scale_parameter=o.get("scale_parameter", False),
                     relative_step=relative, warmup_init=o.get("warmup_init", False))


def run(init, grads, options, dtype):
    params = [p.to(dtype, copy=True).requires_grad_() for p in init]
    optimizer, found = made(params, options), [[] for _ in params]
    for step in range(STEPS):
        for p, g in zip(params, grads):
            p.grad = g[step].to(dtype)
        optimizer.step()
        for p, values in zip(params, found):
            values.append(p.detach().clone())
    return [torch.stack(values) for values in found]


def main(folder):
    generator = torch.Generator().manual_seed(58)
    init = [torch.randn(shape, generator=generator) for shape in SHAPES]
    grads = []
    for shape in SHAPES:
        g = torch.randn([STEPS, *shape], generator=generator)
        outlier = torch.rand(g.shape, generator=generator) < 0.01
        size = 100 * 30 ** torch.rand(g.shape, generator=generator)
        grads.append(torch.where(outlier, g * size, g) * torch.tensor(SCALES).view(-1, *[1] * len(shape)))
    tensors = {f"init.p{i}": p for i, p in enumerate(init)} | {f"grad.p{i}": g for i, g in enumerate(grads)}
    save_file(tensors, f"{folder}/adafactor_grads.safetensors")
    configs = {}
    for name, options in CASES.items():
        exact, single = (run(init, grads, options, dtype) for dtype in (torch.float64, torch.float32))
        far = max(((e - s.double()).norm() / e.norm()).item() for e, s in zip(exact, single))
        print(f"{name}: fp32 of the original differs by {far:.1e}")
        out = {f"f64.p{i}": e.float() for i, e in enumerate(exact[:2])}
        out |= {f"f64.p{i}.last": e[-1].clone() for i, e in enumerate(exact) if i >= 2}
        save_file(out, f"{folder}/adafactor_{name}.safetensors")
        configs["adafactor_" + name] = {"optimizer": "adafactor", **options}
    with open(f"{folder}/adafactor.json", "w", encoding="utf-8") as file:
        json.dump({"steps": STEPS, "shapes": SHAPES, "grads": "adafactor_grads.safetensors",
                   "configs": configs}, file, indent=1)
        file.write("\n")


main(sys.argv[1])
