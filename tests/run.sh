#!/bin/sh
# Everything from a fresh machine: packages, build, all tests. `--long` adds what takes longer than 15 minutes.
set -eu
cd "$(dirname "$0")/.."
sh configs/packages.sh test
cmake --preset ci >/dev/null
cmake --build --preset ci
unset MEOPT_LONG
seconds=300
if [ "${1:-}" = --long ]; then
    export MEOPT_LONG=1
    seconds=21600
fi
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}" # tests share the cores: threads that spin for long starve each other
ctest --preset ci -j "$(nproc)" --timeout $seconds
