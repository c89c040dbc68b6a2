#!/bin/sh
# Every fuzz target (tests/fuzz/NAME.c) for MEOPT_FUZZ_SECONDS each, default 600, under ASan and UBSan; any finding fails and is
# kept under build-fuzz/findings. Long: runs only with MEOPT_LONG=1. MEOPT_FUZZ_TARGETS="NAME ..." restricts it.
# New inputs go into build-fuzz/corpus; tests/fuzz/corpus holds the seeds and every input that ever found something.
set -eu
if [ "${MEOPT_LONG:-}" != 1 ]; then
    echo "skipped: long form, MEOPT_LONG=1"
    exit 77
fi
if ! command -v clang >/dev/null; then
    echo "skipped: no clang, whose libFuzzer this needs"
    exit 77
fi
source=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
seconds=${MEOPT_FUZZ_SECONDS:-600}
cd "$source"
cmake --preset fuzz >/dev/null
targets=${MEOPT_FUZZ_TARGETS:-$(for f in tests/fuzz/*.c; do basename "$f" .c; done)}
mkdir -p build-fuzz/findings
for name in $targets; do
    cmake --build build-fuzz --target "fuzz_$name" >build-fuzz/build.log 2>&1 || { cat build-fuzz/build.log; exit 1; }
    mkdir -p "build-fuzz/corpus/$name"
done
# One target a core. -timeout and the memory limit are the promises: a hostile file is refused in 2 s (with room for the sanitizers)
# and 256 MiB.
export seconds
printf '%s\n' $targets | xargs -P "$(nproc)" -I NAME sh -c '
    if build-fuzz/tests/fuzz_NAME -max_total_time="$seconds" -timeout=10 -malloc_limit_mb=256 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="build-fuzz/findings/NAME-" build-fuzz/corpus/NAME tests/fuzz/corpus/NAME 2>build-fuzz/NAME.log; then
        echo "NAME: no finding in $seconds s, $(sed -n "s/stat::number_of_executed_units: *//p" build-fuzz/NAME.log) runs"
    else
        echo "NAME: FINDING"
        tail -40 build-fuzz/NAME.log
        exit 1
    fi'
