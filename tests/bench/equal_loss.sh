#!/bin/sh
# Equal loss: trains small networks with fp32 and with each preset of libmeopt, several seeds each, and prints mean, sd, gap
# and Welch's p for every task. One run at a time on one thread; runs already in the results file are not repeated.
#
#   sh tests/bench/equal_loss.sh [RESULTS]      default RESULTS: build/equal_loss.txt
#   TASKS="lm image" RULES=apadamw PRESETS="fp32 quality balanced minimal pure_bf16" SEEDS="1 2 3 4 5"
set -eu
cd "$(dirname "$0")/../.."
build=${MEOPT_BUILD:-build}
results=${1:-$build/equal_loss.txt}
program=$build/equal_loss
${CC:-cc} -O3 -march=native -ffast-math -I. tests/bench/equal_loss.c "$build/libmeopt.a" -o "$program" -fopenmp -ldnnl -lm
export OMP_NUM_THREADS=1
# The text: one snapshot, so that all runs of a results file read the same.
text=$results.text
[ -s "$text" ] || find core cli kernels fetch tests -name '*.[ch]' -type f | LC_ALL=C sort | xargs cat >"$text"
touch "$results"
for seed in ${SEEDS:-1 2 3 4 5}; do
    for task in ${TASKS:-lm image}; do
        case $task in lm) steps=1000 ;; *) steps=800 ;; esac
        for rule in ${RULES:-apadamw}; do
            for preset in ${PRESETS:-fp32 quality balanced minimal pure_bf16}; do
                grep -q "^$task $rule $preset $seed " "$results" && continue
                nice -n 10 "$program" "$task" "$rule" "$preset" "$seed" "$steps" "$text" 2>/dev/null >>"$results"
            done
        done
    done
done
"$program" table <"$results"
