#!/bin/sh
# Everything from a fresh machine: packages, build, all tests. `--long` adds what takes longer than 15 minutes.
set -eu
cd "$(dirname "$0")/.."
sh configs/packages.sh test
cmake --preset ci >/dev/null
cmake --build --preset ci
export MEOPT_LONG=0
[ "${1:-}" = --long ] && MEOPT_LONG=1
ctest --preset ci
