"""Builds the Python package `meopt` (PEP 517): libmeopt-optim.so and code objects with CMake, then the wheel.

Nothing is downloaded. CMake 3.16 and a C compiler are required; hipcc and nvcc are used if installed, for every
card that they accept: minutes, of which pip shows nothing without -v. CMAKE_ARGS=-DMEOPT_GPU_ARCHS=native builds
for the cards of this machine, none for no card.
Environment: CMAKE_ARGS, CC, CMAKE_BUILD_PARALLEL_LEVEL, SOURCE_DATE_EPOCH. The same sources, compiler and
SOURCE_DATE_EPOCH give the same files.
"""

import base64
import gzip
import hashlib
import io
import os
import re
import shlex
import shutil
import struct
import subprocess
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Sources of the library, the code objects and the package: the files of a source distribution.
SOURCES = """CMakeLists.txt LICENSE core/meopt.h core/meopt.map
    core/base/*.[ch] core/base/*.sh core/device/*.[ch] core/optim/*.[ch]
    kernels/*.h kernels/cpu/*.[ch] kernels/gpu/* core/python/*.py core/python/*.toml core/python/meopt/**/*.py
    core/python/meopt/py.typed""".split()
PACKAGE = HERE / "meopt"
SUMMARY = "PyTorch optimizers that need a fraction of the usual memory"
OLDEST_TIME = 315532800  # 1980, where zip files begin


def version():
    found = re.search(r"project\(meopt VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    return found.group(1)


def metadata():
    return (f"Metadata-Version: 2.1\nName: meopt\nVersion: {version()}\nSummary: {SUMMARY}\n"
            "License: Apache-2.0\nRequires-Python: >=3.8\n"
            "Classifier: Operating System :: POSIX :: Linux\nClassifier: Typing :: Typed\n"
            "Provides-Extra: torch\nRequires-Dist: torch>=2.4; extra == \"torch\"\n")


def entry_time():
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", OLDEST_TIME)), OLDEST_TIME)


def check_sources():
    if not (ROOT / "kernels" / "optim_rules.h").exists():
        raise SystemExit(f"{ROOT} has no sources of the library; pip before 21.3 requires the source "
                         "distribution, meopt-VERSION.tar.gz")


# ---- The library --------------------------------------------------------------------------------------


def build_library(build):
    """Builds in the directory `build`; returns the library and the code objects."""
    check_sources()
    cmake = shutil.which("cmake")
    if not cmake:
        raise SystemExit("no cmake in PATH; the build of meopt requires CMake 3.16 and a C compiler")
    ninja = ["-G", "Ninja"] if shutil.which("ninja") and "CMAKE_GENERATOR" not in os.environ else []
    level = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DMEOPT_OPTIM_ONLY=ON", "-DBUILD_TESTING=OFF"]
    options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    subprocess.run([cmake, "-S", str(ROOT), "-B", str(build), *ninja, *options], check=True)
    print("meopt: building the library and code objects; -DMEOPT_GPU_ARCHS in CMAKE_ARGS: native, none or archs",
          flush=True)
    targets = ["--target", "meopt_optim", "code_objects"]
    subprocess.run([cmake, "--build", str(build), "--parallel", level, *targets], check=True)
    return build / "libmeopt-optim.so", sorted((build / "kernels").glob("*.co"))


# The libraries that manylinux allows and ours may need: those of glibc.
GLIBC_LIBRARIES = re.compile(r"(lib(c|m|dl|pthread|rt)|ld-linux.*)\.so\.[0-9]+")
MACHINES = {0x3E: "x86_64", 0xB7: "aarch64", 0xF3: "riscv64"}


def needs_of(path):
    """Returns the machine of an ELF file (64 bits, little-endian), its libraries and its symbol versions."""
    data = Path(path).read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no ELF file of 64 bits, little-endian")
    machine, = struct.unpack_from("<H", data, 18)
    table, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    libraries, versions = [], []

    def string(link, at):
        begin = sections[link][4] + at
        return data[begin:data.index(b"\0", begin)].decode()

    for _, kind, _, _, offset, length, link, info, _, _ in sections:
        if kind == 6:  # SHT_DYNAMIC: DT_NEEDED is 1
            for tag, value in struct.iter_unpack("<QQ", data[offset:offset + length]):
                if tag == 1:
                    libraries.append(string(link, value))
        if kind == 0x6FFFFFFE:  # SHT_GNU_verneed: one list of versions per library
            for _ in range(info):
                _, auxiliaries, _, first, following = struct.unpack_from("<HHIII", data, offset)
                at = offset + first
                for _ in range(auxiliaries):
                    _, _, _, name, onward = struct.unpack_from("<IHHII", data, at)
                    versions.append(string(link, name))
                    at += onward
                offset += following
    return MACHINES.get(machine, os.uname().machine), libraries, versions


def platform_tags(path):
    """Returns manylinux_2_N for the newest glibc that the library needs, linux if it needs anything else."""
    machine, libraries, versions = needs_of(path)
    newest = (2, 17)
    for name in versions:
        found = re.fullmatch(r"GLIBC_([0-9]+)\.([0-9]+)(\.[0-9]+)?", name)
        if not found:
            return [f"linux_{machine}"]
        newest = max(newest, (int(found.group(1)), int(found.group(2))))
    if not all(GLIBC_LIBRARIES.fullmatch(name) for name in libraries):
        return [f"linux_{machine}"]
    old = [f"manylinux2014_{machine}"] if newest == (2, 17) else []
    return [*old, f"manylinux_{newest[0]}_{newest[1]}_{machine}"]


# ---- Wheel --------------------------------------------------------------------------------------------


def dist_info():
    return f"meopt-{version()}.dist-info"


def write_wheel(path, files, tags):
    """files: pairs of a name and bytes. Entries are sorted, RECORD is last."""
    wheel = "Wheel-Version: 1.0\nGenerator: meopt\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    info = dist_info()
    files = sorted([*files, (f"{info}/METADATA", metadata().encode()), (f"{info}/WHEEL", wheel.encode()),
                    (f"{info}/LICENSE", (ROOT / "LICENSE").read_bytes())])
    record = ""
    for name, data in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    when = time.gmtime(entry_time())[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in [*files, (f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix: the upper half of external_attr is the file's mode
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, data)


def package_files():
    """The Python files of the package, and its marker for type checkers."""
    return [(f"meopt/{path.relative_to(PACKAGE).as_posix()}", path.read_bytes())
            for path in [*PACKAGE.glob("**/*.py"), PACKAGE / "py.typed"]]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory(prefix="meopt-build-") as build:
        library, objects = build_library(Path(build))
        archs = ", ".join(path.stem[len("meopt-"):] for path in objects)
        print(f"meopt: code objects in the wheel: {archs or 'none, for CPUs alone'}", flush=True)
        tags = platform_tags(library)
        files = [("meopt/lib/libmeopt-optim.so", library.read_bytes())]
        files += [(f"meopt/lib/kernels/{path.name}", path.read_bytes()) for path in objects]
    name = f"meopt-{version()}-py3-none-{'.'.join(tags)}.whl"
    write_wheel(Path(wheel_directory) / name, [*package_files(), *files], tags)
    return name


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    directory = Path(metadata_directory) / dist_info()
    directory.mkdir()
    (directory / "METADATA").write_text(metadata())
    return directory.name


# ---- Source distribution ------------------------------------------------------------------------------


def sdist_files():
    """Names and bytes. The tree is that of the repository; pip looks for pyproject.toml at its root."""
    check_sources()
    paths = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()})
    for path in paths:
        yield path.relative_to(ROOT).as_posix(), path.read_bytes(), path.stat().st_mode & 0o111
    project = (HERE / "pyproject.toml").read_text().replace('["."]', '["core/python"]')
    yield "pyproject.toml", project.encode(), 0
    yield "PKG-INFO", metadata().encode(), 0


def build_sdist(sdist_directory, config_settings=None):
    top = f"meopt-{version()}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data, executable in sorted(sdist_files()):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), entry_time(), 0o755 if executable else 0o644
            archive.addfile(entry, io.BytesIO(data))
    path = Path(sdist_directory) / f"{top}.tar.gz"
    with open(path, "wb") as file, gzip.GzipFile("", "wb", mtime=entry_time(), fileobj=file) as compressed:
        compressed.write(packed.getvalue())
    return path.name
