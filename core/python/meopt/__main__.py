"""python -m meopt doctor: reports what the package finds on this machine; cards are optional."""
import argparse
import ctypes as C
import glob
import importlib.util
import os
import re
import subprocess
import sys
from typing import Callable, Iterator, Tuple

from . import __version__
from ._library import DEVICE_CUDA, DEVICE_HIP, library

DEVICE_CPU = 0  # enum meopt_device_kind
OLDEST_TORCH = (2, 4)
# What a check yields: "ok", "missing", "warning" or "failed", and the text.
Findings = Iterator[Tuple[str, str]]

# Run in a process of its own: PyTorch may fail to import, and libmeopt-optim takes the HIP runtime that is
# loaded. Prints PyTorch's version, CUDA and HIP, then the loaded files.
PROBE = """
import ctypes, torch
print(torch.__version__, torch.version.cuda or "-", torch.version.hip or "-")
if torch.version.hip:
    torch.cuda.is_available()
    from meopt._library import DEVICE_HIP, library
    try:
        library().device_open(ctypes.byref(ctypes.c_void_p()), DEVICE_HIP, 0, None, None)
    except (ImportError, RuntimeError, MemoryError):
        pass
print(open("/proc/self/maps").read())
"""
HIP_RUNTIME = re.compile(r"/\S*/lib(?:amdhip64|galaxyhip)\.so[.0-9]*$", re.MULTILINE)


def open_device(kind: int, ordinal: int) -> C.c_void_p:
    device = C.c_void_p()
    library().device_open(C.byref(device), kind, ordinal, None, None)
    return device


def check_version() -> Findings:
    yield "ok", f"meopt {__version__}, Python {sys.version.split()[0]}"


def check_library() -> Findings:
    version = library().version().decode()
    yield "ok" if version == __version__ else "warning", f"{library().path}, version {version}"


def check_kernels() -> Findings:
    names = glob.glob(os.path.join(os.path.dirname(os.path.abspath(library().path)), "kernels", "meopt-*.co"))
    archs = sorted(os.path.basename(name)[len("meopt-"):-len(".co")] for name in names)
    if archs:
        yield "ok", f"code objects for {', '.join(archs)}"
    else:
        yield "missing", "code objects next to the library: parameters on cards require them (MEOPT_GPU_ARCHS)"


def check_processor() -> Findings:
    device = open_device(DEVICE_CPU, 0)
    yield "ok", f"{library().device_name(device).decode()}: {library().instruction_set().decode()}"
    library().device_close(device)


def check_cards() -> Findings:
    for name, kind in (("hip", DEVICE_HIP), ("cuda", DEVICE_CUDA)):
        count, ordinal = 1, 0
        while ordinal < count:
            try:
                device = open_device(kind, ordinal)
            except (RuntimeError, MemoryError) as error:
                yield "warning" if ordinal else "missing", f"{name}:{ordinal}: {error}"
            else:
                count = library().device_count(device)
                card = library().device_name(device).decode()
                yield "ok", f"{card}, driver {library().device_driver(device).decode()}"
                library().device_close(device)
            ordinal += 1


def check_torch() -> Findings:
    if not importlib.util.find_spec("torch"):
        yield "failed", "PyTorch is not installed; meopt.torch requires %d.%d or later" % OLDEST_TORCH
        return
    ran = subprocess.run([sys.executable, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         universal_newlines=True)
    if ran.returncode:
        yield "failed", f"import torch: {(ran.stderr.strip().splitlines() or [ran.returncode])[-1]}"
        return
    first, maps = ran.stdout.split("\n", 1)
    version, cuda, hip = first.split()
    build = f"HIP {hip}" if hip != "-" else f"CUDA {cuda}" if cuda != "-" else "for CPUs"
    if tuple(map(int, re.findall("[0-9]+", version)[:2])) < OLDEST_TORCH:
        yield "failed", f"PyTorch {version}, {build}; meopt.torch requires %d.%d or later" % OLDEST_TORCH
        return
    yield "ok", f"PyTorch {version}, {build}"
    if hip == "-":
        return
    runtimes = sorted({os.path.realpath(path) for path in HIP_RUNTIME.findall(maps)})
    yield ("ok" if len(runtimes) == 1 else "failed",
           f"{len(runtimes)} HIP runtimes of PyTorch and libmeopt-optim, expected 1: {', '.join(runtimes)}")


CHECKS: Tuple[Tuple[str, Callable[[], Findings]], ...] = (
    ("version", check_version),
    ("library", check_library),
    ("kernels", check_kernels),
    ("processor", check_processor),
    ("cards", check_cards),
    ("torch", check_torch),
)


def doctor() -> int:
    """Prints the findings. Returns 1 if one of them is "failed", else 0."""
    code = 0
    for name, check in CHECKS:
        try:
            for status, text in check():
                print(f"{status:<8} {name:<15} {text}")
                code = 1 if status == "failed" else code
        except (ImportError, RuntimeError) as error:
            print(f"{'failed':<8} {name:<15} {error}")
            return 1
    return code


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m meopt",
                                     description="Optimizers for Python programs, see meopt-torch(7).",
                                     epilog="Exit status: 0 success, 1 a check failed, 2 usage.")
    parser.add_argument("--version", action="version", version=f"meopt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("doctor", help="check library, processor, cards and PyTorch of this machine")
    parser.parse_args()
    return doctor()


if __name__ == "__main__":
    sys.exit(main())
