"""Time of a step of meopt.torch and of torch's AdamW, and the peak of gradient release, on one CPU thread:

    MEOPT_OPTIM_LIBRARY=build/libmeopt-optim.so PYTHONPATH=core/python python3 tests/bench/torch_step.py
"""
import multiprocessing
import resource
import time

import torch
from torch import nn

import meopt.torch as mt

OPTIMIZERS = {"meopt": mt.AdamW, "torch foreach": lambda p: torch.optim.AdamW(p, foreach=True),
              "torch fused": lambda p: torch.optim.AdamW(p, fused=True)}


def seconds(optimizer, rounds=10):
    """Returns the processor's time of the fastest step."""
    optimizer.step()
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        optimizer.step()
        best = min(best, time.process_time() - began)
    return best


def steps(title, count, shape, unit, scale):
    parameters = [nn.Parameter(torch.randn(shape, dtype=torch.bfloat16)) for _ in range(count)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    for name, made in OPTIMIZERS.items():
        print(f"{title:34}{name:16}{seconds(made(parameters)) * scale:8.2f} {unit}", flush=True)


def peak(kind):
    """Prints the memory that two steps of 24 matrices (101 million parameters) add to that of the model."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(24))).bfloat16()
    torch.optim.SGD([nn.Parameter(torch.ones(1))]).zero_grad()  # its first call loads modules
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer = OPTIMIZERS[kind.partition(",")[0]](model.parameters())
    if "," in kind:
        mt.release_gradients(model, optimizer)
    for _ in range(2):
        model(torch.randn(4, 2048, dtype=torch.bfloat16)).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{'peak over the model, 101 M':34}{kind:16}{added / 1024:8.0f} MiB", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    steps("1000 parameters of 8 x 8", 1000, (8, 8), "us each", 1e3)
    steps("one of 4096 x 4096", 1, (4096, 4096), "ms", 1e3)
    for kind in ("torch fused", "meopt", "meopt, released"):
        process = multiprocessing.get_context("spawn").Process(target=peak, args=(kind,))
        process.start()
        process.join()
