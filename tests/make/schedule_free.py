"""Writes tests/data/optim/schedule_free: 20 steps of schedulefree.AdamWScheduleFree (fp32, CPU) for each option.

    pip install torch safetensors schedulefree==1.4.1
    python3 tests/make/schedule_free.py tests/data/optim/schedule_free

trajectories.safetensors: init.pI and grad.pI (steps, ...); of each configuration NAME.y.pI after each step
(steps, ...) for p0, after the last one for the others, and NAME.x.pI, the weights of eval() then. Gradients have
outliers of 100 to 3,000 times. index.json: steps, shapes, and the arguments of each configuration; lr_late: the
learning rate from step 11 on; eval_at: the step after which eval() and train() were called once.
"""
import json
import os
import sys

import schedulefree
import torch
from safetensors.torch import save_file

STEPS, SHAPES = 20, [[7], [33, 17]]
CONFIGS = {
    "default": {},
    "foreach_off": {"lr": 0.01, "foreach": False},
    "decay": {"lr": 0.01, "weight_decay": 0.1},
    "warmup": {"lr": 0.01, "warmup_steps": 6, "weight_decay": 0.05},
    "warmup_longer": {"lr": 0.02, "warmup_steps": 50},
    "r": {"lr": 0.01, "r": 1.0, "warmup_steps": 3},
    "no_lr_power": {"lr": 0.01, "weight_lr_power": 0.0, "warmup_steps": 8},
    "lr_power": {"lr": 0.01, "weight_lr_power": 1.0, "r": 0.5, "warmup_steps": 8},
    "betas": {"lr": 0.01, "betas": [0.95, 0.98], "eps": 1e-6, "weight_decay": 0.02},
    "lr_falls": {"lr": 0.01, "lr_late": 0.002},
    "lr_rises": {"lr": 0.002, "lr_late": 0.02},
    "points": {"lr": 0.01, "weight_decay": 0.1, "eval_at": 9},
}


def gradients(generator):
    grads = []
    for shape in SHAPES:
        g = torch.randn(STEPS, *shape, generator=generator)
        g *= 0.01 + torch.rand(shape, generator=generator)
        factor = 100 * 30 ** torch.rand(STEPS, *shape, generator=generator)
        g = torch.where(torch.rand(STEPS, *shape, generator=generator) < 0.02, g * factor, g)
        g.view(STEPS, -1)[6, :] *= 0
        g.view(STEPS, -1)[12, :] *= 3000
        g.view(STEPS, -1)[:10, 1] = 0  # an element without gradients at first
        grads.append(g)
    return grads


def run(config, init, grads, out, name):
    options = {k: v for k, v in config.items() if k not in ("lr_late", "eval_at")}
    params = [torch.nn.Parameter(p.clone()) for p in init]
    optimizer = schedulefree.AdamWScheduleFree(params, **options)
    optimizer.train()
    first = []
    for step in range(STEPS):
        if step == 10 and "lr_late" in config:
            optimizer.param_groups[0]["lr"] = config["lr_late"]
        for p, g in zip(params, grads):
            p.grad = g[step].clone()
        optimizer.step()
        if config.get("eval_at") == step + 1:
            optimizer.eval()
            optimizer.train()
        first.append(params[0].detach().clone())
    for i, p in enumerate(params):
        out[f"{name}.y.p{i}"] = torch.stack(first) if i == 0 else p.detach().clone()
    optimizer.eval()
    for i, p in enumerate(params):
        out[f"{name}.x.p{i}"] = p.detach().clone()


def main(directory):
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    init = [torch.randn(shape, generator=generator) * 0.5 for shape in SHAPES]
    grads = gradients(generator)
    out = {f"init.p{i}": p for i, p in enumerate(init)}
    out.update({f"grad.p{i}": g for i, g in enumerate(grads)})
    for name, config in CONFIGS.items():
        run(config, init, grads, out, name)
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(directory, "trajectories.safetensors"))
    with open(os.path.join(directory, "index.json"), "w") as f:
        json.dump({"steps": STEPS, "shapes": SHAPES, "configs": CONFIGS}, f, indent=1)
        f.write("\n")


main(sys.argv[1])
