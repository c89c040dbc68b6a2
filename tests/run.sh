#!/bin/sh
# Packages, build and tests, on a fresh machine too. Three forms:
#   --quick  the tests of label quick (tests/CMakeLists.txt), for each change; what the build lacks is built first
#   (none)   all tests. PyTorch is installed in an environment of its own (tests/tools/python_env.sh; MEOPT_PYTHON=PYTHON takes another)
#   --long   also what takes hours: MEOPT_LONG=1, and timm, open_clip, transformers and Lightning
# MEOPT_CPU_ISA=SET tries one instruction set alone. The last lines say which sets ran, and what was skipped and why.
set -eu
cd "$(dirname "$0")/.."
form=${1:-}
case $form in '' | --quick | --long) ;; *) echo "usage: sh tests/run.sh [--quick|--long]" >&2 && exit 2 ;; esac
long=
[ "$form" != --long ] || long=long
sh configs/packages.sh test $long
unset MEOPT_LONG
seconds=300 missing=
if [ -n "$long" ]; then
    export MEOPT_LONG=1
    seconds=21600
fi
work=$(mktemp -d)
making='' libraries='' # PyTorch is downloaded, and the libraries of the tarball are built, while the program is compiled
clean() {
    for group in $making $libraries; do kill -- "-$group" 2>/dev/null || :; done
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM
if [ "$form" != --quick ]; then
    static=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/meopt-tests/static-$(cat configs/packaging/static_libs.sh /etc/os-release | sha256sum | cut -c1-12)
    setsid sh configs/packaging/static_libs.sh "$static" cc >"$work/static" 2>&1 &
    libraries=$!
    if [ -z "${MEOPT_PYTHON:-}" ]; then
        setsid sh tests/tools/python_env.sh "${long:-short}" >"$work/python" &
        making=$!
    fi
fi
archs=auto # except in the long form one of AMD, with matrix instructions, and one of NVIDIA
[ "$long" ] || archs=$(
    PATH=$PATH:/opt/dtk/bin:/opt/dtk/hip/bin:/opt/rocm/bin:/usr/local/cuda/bin
    for arch in gfx90a sm_90; do ! sh kernels/gpu/build.sh --accepts $arch || printf '%s;' $arch; done
)
# the preset ci, which requires CMake 3.21
cmake -S . -B build-ci -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEOPT_WERROR=ON -DMEOPT_GPU_ARCHS="${archs:-none}" >/dev/null
cmake --build build-ci
[ -z "$long" ] || cmake --build build-ci --target long
if [ -n "$making" ]; then
    code=0
    wait "$making" || code=$?
    making=''
    if [ $code = 0 ]; then
        MEOPT_PYTHON=$(cat "$work/python")
        export MEOPT_PYTHON
    else
        missing="no PyTorch (reason above): what needs it, timm, open_clip or transformers was skipped"
        [ $code = 3 ] || [ -z "$long" ] || { echo "the environment of the tests cannot be made" >&2; exit 1; }
    fi
fi
if [ -n "$libraries" ]; then
    if wait "$libraries"; then
        [ -e build-ci/static ] || ln -s "$static" build-ci/static
    else
        cat "$work/static" >&2 # the test tarball is skipped
    fi
    libraries=''
fi
case $(command -v python3) in # pyenv's is a script, which takes more processor time than the Python that it starts
*/shims/python3) PATH=$(python3 -c 'import sys; print(sys.prefix)')/bin:$PATH ;;
esac
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}" # tests share the cores: threads that spin for long starve each other
# more than there are cores: many tests wait for servers, screens and signals
label=
[ "$form" != --quick ] || label='-L quick'
{
    code=0
    # shellcheck disable=SC2086
    (cd build-ci && ctest --output-on-failure -j $(($(nproc) * 2 + 2)) --timeout $seconds $label) || code=$?
    echo $code >"$work/code"
} 2>&1 | tee "$work/log"
sh tests/tools/summary.sh build-ci "$work/log"
[ -z "$missing" ] || echo "$missing" >&2
exit "$(cat "$work/code")"
