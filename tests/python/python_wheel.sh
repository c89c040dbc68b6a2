# The Python package: sources in a directory with a space make a source distribution, README's lines make a wheel of its tree and install
# it without network. The library in it steps, the code objects in it are found, and nothing else is needed.
# Long: the wheel straight from the sources has the same bytes. auditwheel, where $MEOPT_PYTHON has it, agrees with the tag.
set -eu
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && echo "skipped: the wheel is built without sanitizers" && exit 77
python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || { echo "skipped: no python3 of 3.8 or later"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
copy="$work/the sources" python="$work/an environment/bin/python"
if ! python3 -m venv "$work/an environment" >"$work/log" 2>&1; then
    echo "skipped: python3 makes no environment with pip (Debian: python3-venv)" && exit 77
fi
"$python" -m pip --version >/dev/null 2>&1 || { echo "skipped: no pip"; exit 77; }
mkdir "$copy" "$work/out" "$work/a directory" "$work/same"
(cd "$MEOPT_SOURCE" && cp -R CMakeLists.txt LICENSE core kernels "$copy")
find "$copy" -name __pycache__ -prune -exec rm -r {} +
cat >"$work/hipcc" <<'END'
#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo "emulated gfx90a" >"$2"
END
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt")
level=
if [ -z "${MEOPT_LONG:-}" ]; then # a minute of processor time less
    level=-O0
    sed -i 's/ __attribute__((always_inline))//' "$copy/kernels/cpu/optim_vector.h"
fi
printf '#!/bin/sh\nexec "%s" "$@" %s\n' "$cc" "$level" >"$work/cc"
chmod +x "$work/hipcc" "$work/cc"
unset SOURCE_DATE_EPOCH CC CFLAGS LDFLAGS PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1 PIP_CONFIG_FILE=/dev/null TMPDIR="$work/a directory"
export CMAKE_ARGS="-DMEOPT_GPU_ARCHS=gfx90a '-DMEOPT_HIPCC=$work/hipcc' '-DCMAKE_C_COMPILER=$work/cc' -DMEOPT_WERROR=ON"
unset PIP_FIND_LINKS PIP_REQUIRE_VIRTUALENV

sdist() { (cd "$copy/core/python" && "$python" -B -c 'import build_backend, sys; print(build_backend.build_sdist(sys.argv[1]))' "$1"); }
name=$(sdist "$work/out")
sdist "$work/same" >/dev/null
cmp "$work/out/$name" "$work/same/$name" || fail "two source distributions differ"
# README's lines, in the tree of the source distribution; PyTorch, which the last one looks for, is not installed
tar -xzf "$work/out/$name" -C "$work/a directory"
sed -n '/^## From PyTorch/,/import meopt/s/^    //p' "$MEOPT_SOURCE/README.md" | sed 's/  .*//' | grep '^p[iy]' >"$work/lines"
[ "$(wc -l <"$work/lines")" -ge 3 ] || fail "README's lines of the wheel: $(cat "$work/lines")"
while read -r line <&3; do
    code=0
    (cd "$work/a directory/${name%.tar.gz}" && PATH="$(dirname "$python"):$PATH" && eval "$line") >"$work/log" 2>&1 || code=$?
    [ $code = 0 ] || [ "$line $code" = "python -m meopt doctor 1" ] || fail "README: '$line' ends with $code"
done 3<"$work/lines"
cp "$work/a directory/${name%.tar.gz}"/meopt-*.whl "$work/out/"
rm -r "$work/a directory/${name%.tar.gz}"
wheel=$(cd "$work/out" && echo meopt-*.whl)
echo "$wheel"
if [ "$(uname -m)" = x86_64 ]; then
    case $wheel in *-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl) ;; *) fail "not for glibc 2.17: $wheel" ;; esac
fi
if [ "${MEOPT_LONG:-}" ]; then
    "$python" -m pip wheel --no-deps -w "$work/same" "$copy/core/python" >"$work/log" 2>&1 || fail "no wheel from the sources"
    cmp "$work/out/$wheel" "$work/same/$wheel" || fail "wheels of the sources and of the source distribution differ"
    "$python" -m pip wheel --no-deps -w "$work/same" "$work/out/$name" >"$work/log" 2>&1 || fail "no wheel from $name"
    cmp "$work/out/$wheel" "$work/same/$wheel" || fail "wheels of the source distribution and of its tree differ"
fi
if "${MEOPT_PYTHON:-python3}" -c 'import auditwheel' 2>/dev/null; then
    "$MEOPT_PYTHON" -m auditwheel show "$work/out/$wheel" >"$work/log" 2>&1 || fail "auditwheel"
    cat "$work/log"
    case $wheel in *manylinux*) grep -q 'platform tag:.*manylinux_2_17' "$work/log" || fail "auditwheel has another tag" ;; esac
fi
"$python" -m pip check >"$work/log" 2>&1 || fail "pip check"
rm -rf "$copy"

cd "$work"
"$python" - "$work/out/$wheel" "$MEOPT_SOURCE" "$work" <<'END' || fail "contents of the wheel"
import ast, base64, csv, hashlib, io, re, sys, zipfile
archive = zipfile.ZipFile(sys.argv[1])
names = archive.namelist()
version = re.search(r"project\(meopt VERSION ([0-9.]+)", open(sys.argv[2] + "/CMakeLists.txt").read()).group(1)
info = "meopt-%s.dist-info/" % version
rows = list(csv.reader(io.StringIO(archive.read(info + "RECORD").decode())))
assert [row[0] for row in rows] == names and names[:-1] == sorted(names[:-1]) and names[-1] == info + "RECORD", names
for name, digest, size in rows[:-1]:
    data = archive.read(name)
    assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("="), name
    assert int(size) == len(data), name
    assert sys.argv[3].encode() not in data, name + " names the directory of its build"
    assert archive.getinfo(name).external_attr >> 16 == (0o100755 if name.endswith(".so") else 0o100644), name
    if name.endswith(".py"):
        ast.parse(data, name, feature_version=(3, 8))
for name in ("py.typed", "lib/libmeopt-optim.so", "lib/kernels/meopt-gfx90a.co"):
    assert "meopt/" + name in names, names
tags = ["Tag: py3-none-" + tag for tag in sys.argv[1][:-4].split("-none-")[1].split(".")]
assert [line for line in archive.read(info + "WHEEL").decode().split("\n") if line.startswith("Tag")] == tags
END

# A step through the C interface: gradients of one move each weight by the learning rate.
cat >"$work/step.py" <<'END'
import ctypes as C, os, sys
import meopt
assert "torch" not in sys.modules
so = C.CDLL(os.path.join(list(meopt.__path__)[0], "lib", "libmeopt-optim.so"))
class Tensor(C.Structure):
    _fields_ = [("name", C.c_char_p), ("ndim", C.c_int), ("shape", C.c_int64 * 8), ("flags", C.c_uint), ("lr_scale", C.c_double),
                ("weights", C.c_void_p), ("copy", C.c_void_p), ("first", C.c_int64), ("count", C.c_int64),
                ("rule", C.c_int), ("rows", C.c_int64 * 4)]
class Gradient(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int)]
class Error(C.Structure):
    _fields_ = [("status", C.c_int), ("message", C.c_char * 252)]
rows, columns = 100, 64
options, error, opt = C.create_string_buffer(1024), Error(), C.c_void_p()
def done(status): assert status == 0, error.message
done(so.meopt_options_init_sized(C.c_size_t(C.sizeof(Tensor)), options, C.c_size_t(len(options)), so.meopt_rule_from_name(b"apadam")))
done(so.meopt_options_preset(options, b"balanced", C.byref(error)))
table = Tensor(name=b"w", ndim=2, shape=(C.c_int64 * 8)(rows, columns))
done(so.meopt_create(C.byref(opt), options, C.byref(table), C.c_size_t(1), C.byref(error)))
gradient, weights = (C.c_float * (rows * columns))(*[1] * (rows * columns)), (C.c_float * (rows * columns))()
for step in (1, 2, 3):
    done(so.meopt_step_sized(C.c_size_t(0), opt, C.c_int64(step), C.c_double(0.5), C.c_double(1), C.byref(Gradient(C.addressof(gradient), 0)),
                             None, C.byref(error)))
done(so.meopt_export(opt, C.c_size_t(0), C.c_int64(0), C.c_int64(rows * columns), weights, C.byref(error)))
so.meopt_destroy(opt)
assert all(abs(w + 1.5) < 0.02 for w in weights), weights[:4]
END
"$python" "$work/step.py" >"$work/log" 2>&1 || fail "a step of the installed library"

# doctor: PyTorch is missing or too old, two HIP runtimes in one process are a failure, and a library that does not load is one.
doctor() { # EXIT PATTERN [NAME=VALUE...]: the report has a line that matches
    code=0 && expected=$1 pattern=$2
    shift 2
    env "$@" "$python" -m meopt doctor >"$work/log" 2>&1 || code=$?
    [ $code = "$expected" ] || fail "doctor: $code, not $expected"
    grep -qE "$pattern" "$work/log" || fail "doctor: no $pattern"
}
"$python" -m meopt --help >"$work/log" && "$python" -m meopt --version >"$work/log" || fail "--help"
code=0 && "$python" -m meopt nothing >"$work/log" 2>&1 || code=$?
[ $code = 2 ] || fail "an unknown command: $code, not 2"
doctor 1 '^failed +torch'
doctor 1 "^ok +version +meopt [0-9.]+, Python $("$python" -c 'import sys; print(sys.version.split()[0])')$"
doctor 1 '^ok +kernels .* gfx90a$'
doctor 1 '^ok +library .*/an environment/.*libmeopt-optim.so'
doctor 1 '^ok +processor .*: (avx512|avx2|plain)$'
doctor 1 '^ok +processor .*: plain$' MEOPT_CPU_ISA=plain
doctor 1 '^failed +library' MEOPT_OPTIM_LIBRARY=/nowhere.so
inside=$(find "$work/an environment" -name libmeopt-optim.so) # without it, the loader's search path has one
mkdir loader && mv "$inside" loader/libmeopt-optim.so.0
doctor 1 '^failed +library'
doctor 1 '^ok +library +libmeopt-optim.so.0,' LD_LIBRARY_PATH="$work/loader"
doctor 1 "^ok +library +$work/loader/" MEOPT_OPTIM_LIBRARY="$work/loader/libmeopt-optim.so.0"
mv loader/libmeopt-optim.so.0 "$inside"
mkdir broken && echo 'raise OSError("libother.so: no such file")' >broken/torch.py
doctor 1 '^failed +torch .*libother' PYTHONPATH="$work/broken"
fakes=$MEOPT_BUILD/tests
if [ -f "$fakes/libfake_amdhip64.so" ]; then # a card, with the code objects of the package
    mkdir torch theirs ours
    cp "$fakes/libfake_amdhip64.so" theirs/libamdhip64.so.6
    cp "$fakes/libfake_amdhip64.so" ours/libamdhip64.so.7
    cat >torch/__init__.py <<'END'
import ctypes, types
__version__, version = "2.99", types.SimpleNamespace(cuda=None, hip="6.3")
cuda = types.SimpleNamespace(is_available=lambda: ctypes.CDLL("theirs/libamdhip64.so.6"))
END
    export MEOPT_ROCBLAS_LIBRARY=none MEOPT_HIPBLASLT_LIBRARY=none PYTHONPATH="$work"
    doctor 0 '^ok +cards .*hip:1.*/theirs/' MEOPT_HIP_LIBRARY="$work/theirs/libamdhip64.so.6" FAKE_CARDS=2
    doctor 0 '^ok +torch +1 HIP' MEOPT_HIP_LIBRARY="$work/theirs/libamdhip64.so.6"
    sed -i 's/2.99/2.3.1/' torch/__init__.py
    doctor 1 '^failed +torch +PyTorch 2.3.1' MEOPT_HIP_LIBRARY="$work/theirs/libamdhip64.so.6"
    sed -i 's/2.3.1/2.99/' torch/__init__.py
    doctor 1 '^failed +torch +2 HIP' MEOPT_HIP_LIBRARY="$work/ours/libamdhip64.so.7"
fi
