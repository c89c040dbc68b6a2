#!/bin/sh
# Everything from a fresh machine: packages, build, all tests. `--long` adds what takes longer than 15 minutes, and an
# environment with PyTorch and its libraries (tests/tools/python_env.sh; MEOPT_PYTHON=PYTHON takes another).
set -eu
cd "$(dirname "$0")/.."
long=
[ "${1:-}" != --long ] || long=long
sh configs/packages.sh test $long
cmake --preset ci >/dev/null
cmake --build --preset ci
unset MEOPT_LONG
seconds=300 missing=
if [ -n "$long" ]; then
    export MEOPT_LONG=1
    seconds=21600
    if [ -z "${MEOPT_PYTHON:-}" ]; then
        code=0
        MEOPT_PYTHON=$(sh tests/tools/python_env.sh) || code=$?
        case $code in
        0) export MEOPT_PYTHON ;;
        3) missing="no package index answers: what needs PyTorch, timm, open_clip or transformers was skipped" ;;
        *) echo "the environment of the tests cannot be made" >&2 && exit 1 ;;
        esac
    fi
fi
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}" # tests share the cores: threads that spin for long starve each other
code=0
ctest --preset ci -j "$(nproc)" --timeout $seconds || code=$?
[ -z "$missing" ] || echo "$missing" >&2
exit $code
