#!/bin/sh
# Equal loss: trains small networks with fp32 and with each preset of libmeopt, several seeds each, and prints mean, sd, gap
# and Welch's p for every task. One run at a time on one thread; runs already in the results file are not repeated.
#
#   sh tests/bench/equal_loss.sh [RESULTS]      default RESULTS: build/equal_loss.txt
#   TASKS="lm image distill" RULES=apadamw PRESETS="fp32 quality balanced minimal pure_bf16" SEEDS="1 2 3 4 5"
set -eu
cd "$(dirname "$0")/../.."
build=${MEOPT_BUILD:-build}
results=${1:-$build/equal_loss.txt}
program=$build/equal_loss
libraries="-fopenmp -ljpeg -lpng -lz -lyaml -ljansson -lpcre2-8 -lutf8proc -lm -ldl"
${CC:-cc} -O3 -march=native -ffast-math -I. tests/bench/equal_loss.c "$build/libmeopt.a" -o "$program" $libraries
${CC:-cc} -O3 -D_GNU_SOURCE -I. tests/bench/equal_distill.c "$build/libmeopt.a" -o "$build/equal_distill" $libraries
export OMP_NUM_THREADS=1
# The text: one snapshot, so that all runs of a results file read the same.
text=$results.text
[ -s "$text" ] || find core cli kernels tests -name '*.[ch]' -type f | LC_ALL=C sort | xargs cat >"$text"
jpegs=$build/equal_loss_images
[ -d "$jpegs" ] || { mkdir "$jpegs" && tar -xzf configs/sample/COCO2014.tar.gz -C "$jpegs"; }
touch "$results"
for seed in ${SEEDS:-1 2 3 4 5}; do
    for task in ${TASKS:-lm image distill}; do
        for rule in ${RULES:-apadamw}; do
            for preset in ${PRESETS:-fp32 quality balanced minimal pure_bf16}; do
                grep -q "^$task $rule $preset $seed " "$results" && continue
                case $task in
                lm) nice -n 10 "$program" lm "$rule" "$preset" "$seed" 1000 "$text" ;;
                image) nice -n 10 "$program" image "$rule" "$preset" "$seed" 800 ;;
                distill) nice -n 10 "$build/equal_distill" "$rule" "$preset" "$seed" 300 "$jpegs/COCO2014/train2014" ;;
                esac 2>/dev/null >>"$results"
            done
        done
    done
done
"$program" table <"$results"
