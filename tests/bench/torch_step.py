"""Time of a step of meopt.torch's AdamW, bytes held, and the peak of gradient release, on the CPU:

    MEOPT_OPTIM_LIBRARY=build/libmeopt-optim.so PYTHONPATH=core/python \\
        python3 tests/bench/torch_step.py [small] [peak] [vit_l]

small: next to torch's AdamW, on many small parameters and on a large one. peak: memory of a step with
released gradients. vit_l: the 304 M parameters of timm's vit_large_patch16_224, next to torch, torchao,
bitsandbytes and DeepSpeed where they are installed. It needs 16 GB and several minutes. Each step is timed in
turn with one of torch's fused AdamW on fp32 parameters and one on bf16 parameters; a ratio is the median over
all turns, so that other load on the machine matters little.
ONLY="torchao balanced": rows whose name contains one of these words. THREADS="1 2". SECONDS_PER_ROW=25.
"""
import gc
import multiprocessing
import os
import resource
import statistics
import sys
import time

import torch
from torch import nn

import meopt.torch as mt

F32, BF16 = torch.float32, torch.bfloat16
DTYPES = {F32: "fp32", BF16: "bf16"}
FUSED = "torch fused"
OPTIMIZERS = {"meopt": mt.AdamW, "torch foreach": lambda p: torch.optim.AdamW(p, foreach=True),
              FUSED: lambda p: torch.optim.AdamW(p, fused=True)}


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
    parameters = [nn.Parameter(torch.randn(shape, dtype=BF16)) for _ in range(count)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    for name, made in OPTIMIZERS.items():
        print(f"{title:34}{name:16}{seconds(made(parameters)) * scale:8.2f} {unit}", flush=True)


def small():
    torch.set_num_threads(1)
    steps("1000 parameters of 8 x 8", 1000, (8, 8), "us each", 1e3)
    steps("one of 4096 x 4096", 1, (4096, 4096), "ms", 1e3)


def peak_of(kind):
    """Prints the memory that two steps of 24 matrices (101 million parameters) add to that of the model."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(24))).bfloat16()
    torch.optim.SGD([nn.Parameter(torch.ones(1))]).zero_grad()  # its first call loads modules
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    optimizer = OPTIMIZERS[kind.partition(",")[0]](model.parameters())
    if "," in kind:
        mt.release_gradients(model, optimizer)
    for _ in range(2):
        model(torch.randn(4, 2048, dtype=BF16)).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{'peak over the model, 101 M':34}{kind:16}{added / 1024:8.0f} MiB", flush=True)


def peak():
    for kind in (FUSED, "meopt", "meopt, released"):
        process = multiprocessing.get_context("spawn").Process(target=peak_of, args=(kind,))
        process.start()
        process.join()


# ---- ViT-L

# Shapes of vit_large_patch16_224, as timm lists them
BLOCK = [(1024,), (1024,), (3072, 1024), (3072,), (1024, 1024), (1024,), (1024,), (1024,), (4096, 1024),
         (4096,), (1024, 4096), (1024,)]
VIT_L = [(1, 1, 1024), (1, 197, 1024), (1024, 3, 16, 16), (1024,), *BLOCK * 24, (1024,), (1024,),
         (1000, 1024), (1000,)]


def torchao(bits):
    def make(params):
        from torchao import optim
        torch._dynamo.config.cache_size_limit = 64  # one graph for each shape
        kind = {8: optim.AdamW8bit, 4: optim.AdamW4bit}[bits]
        return kind(params, bf16_stochastic_round=params[0].dtype == BF16)
    return make


def bitsandbytes(params):
    import bitsandbytes
    return bitsandbytes.optim.AdamW8bit(params)


def deepspeed(params):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(params)


def preset(name):
    return lambda params: mt.AdamW(params, preset=name)


OTHERS = {FUSED: OPTIMIZERS[FUSED], "torch foreach": OPTIMIZERS["torch foreach"],
          "torch default": torch.optim.AdamW, "DeepSpeedCPUAdam": deepspeed,
          "bitsandbytes 8-bit": bitsandbytes, "torchao 8-bit": torchao(8), "torchao 4-bit": torchao(4)}
PRESETS = {F32: {"fp32": "fp32", "pure_bf16": "pure_bf16", "quality, balanced, minimal": "balanced"},
           BF16: {name: name for name in ("fp32", "quality", "balanced", "minimal", "pure_bf16")}}
ROWS = [(dtype, name, make) for dtype, presets in PRESETS.items()
        for name, make in [*OTHERS.items(), *((f"meopt {of}", preset(one)) for of, one in presets.items())]]


def tensors_of(value):
    """Yields the plain tensors in a value of optimizer.state."""
    if isinstance(value, torch.Tensor):
        inner = value.__tensor_flatten__()[0] if hasattr(value, "__tensor_flatten__") else ()
        if not inner:
            yield value
        for name in inner:
            yield from tensors_of(getattr(value, name))
    if isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)


def state_bytes(optimizer):
    """Returns the bytes that an optimizer keeps in addition to parameters, each storage once."""
    if isinstance(optimizer, mt.Meopt):
        held = optimizer.held_bytes()
        return held["residual"] + held["moments"]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for p in optimizer.state.values()
                for t in tensors_of(p)}
    return sum(storages.values())


def settle(optimizer):
    """Gives meopt the moments of a run that has settled: in the first steps v grows, and codes change their
    grids."""
    group = optimizer.param_groups[0]
    gradients = [p.grad.float() for p in group["params"]]
    state = {i: {"step": torch.tensor(1e4), "exp_avg": g, "exp_avg_sq": g * g}
             for i, g in enumerate(gradients)}
    optimizer.load_state_dict({"state": state, "param_groups": [{**group, "params": list(state)}]})


class Stepper:
    """An optimizer with parameters of its own; gradients are shared."""

    def __init__(self, make, gradients):
        self.params = [nn.Parameter(torch.empty_like(g).normal_(std=0.02)) for g in gradients]
        for p, g in zip(self.params, gradients):
            p.grad = g
        self.optimizer = make(self.params)
        if isinstance(self.optimizer, mt.Meopt):
            settle(self.optimizer)
        self.optimizer.step()  # others make their states

    def timed(self):
        """Returns the seconds of a step: of the processor, and elapsed."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.optimizer.step()
        return time.process_time() - cpu, time.perf_counter() - wall


def measure(stepper, references, least=3, most=25):
    """Returns the median processor's time in ms, ratios to each reference (of the processor's time, and of
    elapsed time), and the number of turns, which it takes for `enough` seconds."""
    enough = float(os.environ.get("SECONDS_PER_ROW", 25))
    turns, began = [], time.perf_counter()
    stepper.timed()
    while len(turns) < least or (len(turns) < most and time.perf_counter() - began < enough):
        turns.append([each.timed() for each in (stepper, *references)])
    ratios = [statistics.median(turn[0][clock] / turn[1 + i][clock] for turn in turns)
              for i in range(len(references)) for clock in (0, 1)]
    return statistics.median(turn[0][0] for turn in turns) * 1e3, ratios, len(turns)


def vit_l():
    only = os.environ.get("ONLY", "").split()
    count = sum(torch.Size(shape).numel() for shape in VIT_L)
    gradients = {F32: [torch.randn(shape) * 1e-3 for shape in VIT_L]}
    gradients[BF16] = [g.bfloat16() for g in gradients[F32]]
    print(f"{count} parameters; ratios of processor's and elapsed time to torch fused")
    print(f"{'threads':8}{'params':7}{'optimizer':34}{'B/p':>6}{'CPU ms':>9}{'fp32: CPU':>10}{'elapsed':>8}"
          f"{'bf16: CPU':>10}{'elapsed':>8}{'turns':>6}{'load':>6}")
    for threads in map(int, os.environ.get("THREADS", "1 2").split()):
        torch.set_num_threads(threads)
        references = [Stepper(OPTIMIZERS[FUSED], gradients[dtype]) for dtype in (F32, BF16)]
        for dtype, name, make in ROWS:
            if only and not any(word in name for word in only):
                continue
            row = f"{threads:<8}{DTYPES[dtype]:7}{name:34}"
            try:
                stepper = Stepper(make, gradients[dtype])
                ms, ratios, turns = measure(stepper, references)
                held = dtype.itemsize + state_bytes(stepper.optimizer) / count
                numbers = "".join(f"{ratio:{width}.2f}" for ratio, width in zip(ratios, (10, 8, 10, 8)))
                load = os.getloadavg()[0]
                print(f"{row}{held:6.2f}{ms:9.1f}{numbers}{turns:6}{load:6.1f}", flush=True)
            except (ImportError, RuntimeError, ValueError, NotImplementedError) as error:
                print(f"{row} {type(error).__name__}: {str(error).splitlines()[0][:90]}", flush=True)
            stepper = None
            gc.collect()
        del references


if __name__ == "__main__":
    for section in sys.argv[1:] or ["small", "peak"]:
        {"small": small, "peak": peak, "vit_l": vit_l}[section]()
