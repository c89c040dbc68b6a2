"""Colossal-AI's own CPUAdam and NVMe optimizer over the shapes of GPT2-S, next to tests/bench/offload_states.c: seconds of three steps and the
most memory that the process had, with what it had before the first step next to it (torch itself).

    pip download --no-deps colossalai==0.5.0 (unpacked: SOURCE); pip install tensornvme==0.1.0 (builds liburing and libaio from GitHub, or,
    without them: DISABLE_AIO=1 and liburing.a in LIBRARY_PATH)
    python tests/bench/offload_colossal.py SOURCE DIRECTORY FRACTION

Only its optimizer is loaded, not its package; its kernel is that of its source, built here for the processor alone, as its loader, which
wants a GPU, would."""

import importlib.util
import os
import resource
import sys
import time
import types

import torch

source, directory, fraction = sys.argv[1], sys.argv[2], float(sys.argv[3])


def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def kernel():
    from torch.utils.cpp_extension import load

    folder = source + "/extensions/csrc"
    return load(
        name="cpu_adam_x86",
        sources=[folder + "/kernel/x86/cpu_adam.cpp"],
        extra_include_paths=[folder, folder + "/common", os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/include"],
        extra_cflags=["-O3", "-std=c++20", "-fopenmp", "-march=native", "-Wno-reorder"],
    )


class Loader:
    def load(self):
        return kernel()


for name in ("colossalai", "colossalai.kernel", "colossalai.kernel.kernel_loader", "colossalai.nn", "colossalai.nn.optimizer"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
sys.modules["colossalai.kernel.kernel_loader"].CPUAdamLoader = Loader
for name in ("nvme_optimizer", "cpu_adam"):
    full = "colossalai.nn.optimizer." + name
    spec = importlib.util.spec_from_file_location(full, f"{source}/colossalai/nn/optimizer/{name}.py")
    sys.modules[full] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[full])

WIDTH = 768
shapes = [(50257, WIDTH), (1024, WIDTH)]
for _ in range(12):
    shapes += [(2, WIDTH), (3 * WIDTH, WIDTH + 1), (WIDTH, WIDTH + 1), (2, WIDTH), (4 * WIDTH, WIDTH + 1), (WIDTH, 4 * WIDTH + 1)]
shapes.append((2, WIDTH))
kernel()
before = resident()
parameters = [torch.nn.Parameter(torch.zeros(s)) for s in shapes]
gradient = (torch.arange(50257 * WIDTH) % 97 - 48).float() * 1e-3  # one buffer, as of released gradients
for p in parameters:
    p.grad = gradient[: p.numel()].view(p.shape)
optimizer = sys.modules["colossalai.nn.optimizer.cpu_adam"].CPUAdam(
    parameters, lr=1e-3, nvme_offload_fraction=fraction, nvme_offload_dir=directory if fraction else None
)
optimizer.step()  # memory is touched, the files are made
begin = time.perf_counter()
for _ in range(3):
    optimizer.step()
seconds = time.perf_counter() - begin
print(
    f"{sum(p.numel() for p in parameters)} parameters, fp32, {100 * fraction:.0f} % on NVMe: {seconds:.3f} s for 3 steps, "
    f"{resident():.1f} MB resident at most, {before:.1f} before its parameters; {torch.get_num_threads()} threads",
    flush=True,
)
