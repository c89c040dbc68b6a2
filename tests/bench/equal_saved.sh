#!/bin/sh
# Equal loss of train.save_activations 8bit and minimal: students of three families are trained against random teachers (equal_distill.c)
# with the same seeds. Prints the loss on held-out images, its gap and the p of a paired t-test. Runs in the results file are not repeated,
# so families can run in parallel.
#
#   sh tests/bench/equal_saved.sh [RESULTS]      default RESULTS: build/equal_saved.txt
#   FAMILIES="eva openclip dinov2" SEEDS="1 2 3 4 5" STEPS=300 PRESET=balanced
set -eu
cd "$(dirname "$0")/../.."
build=${MEOPT_BUILD:-build}
results=${1:-$build/equal_saved.txt}
program=$build/equal_distill
libraries="-fopenmp -ljpeg -lpng -lz -lyaml -ljansson -lpcre2-8 -lutf8proc -lm -ldl $(pkg-config --libs --silence-errors libwebp || true)"
[ -x "$program" ] && [ "$program" -nt "$build/libmeopt.a" ] && [ "$program" -nt tests/bench/equal_distill.c ] ||
    ${CC:-cc} -O3 -D_GNU_SOURCE -I. tests/bench/equal_distill.c "$build/libmeopt.a" -o "$program" $libraries
export OMP_NUM_THREADS=1
jpegs=$build/equal_loss_images
[ -d "$jpegs" ] || { mkdir "$jpegs" && tar -xzf configs/sample/COCO2014.tar.gz -C "$jpegs"; }
touch "$results"
for seed in ${SEEDS:-1 2 3 4 5}; do
    for family in ${FAMILIES:-eva openclip dinov2}; do
        for saved in minimal 8bit; do
            grep -q "^$family $saved $seed " "$results" && continue
            loss=$("$program" apadamw "${PRESET:-balanced}" "$seed" "${STEPS:-300}" "$jpegs/COCO2014/train2014" "$family" "$saved" \
                2>/dev/null | cut -d' ' -f5)
            echo "$family $saved $seed $loss" >>"$results"
        done
    done
done
awk '
    { loss[$1, $2, $3] = $4; families[$1] = 1; seeds[$3] = 1 }
    function integral(to, degrees,    sum, k) { # of cos^(degrees - 1), by the middles of 2000 parts
        for (k = 0; k < 2000; k++) sum += cos((k + 0.5) * to / 2000) ^ (degrees - 1)
        return sum * to / 2000
    }
    function two_sided(t, degrees) { # Student: t = sqrt(degrees) tan
        return 1 - integral(atan2(t, sqrt(degrees)), degrees) / integral(atan2(1, 0), degrees)
    }
    END {
        printf "%-10s %5s %12s %12s %9s %7s\n", "family", "seeds", "minimal", "8bit", "gap %", "p"
        for (f in families) {
            n = a = b = d = squares = 0
            for (s in seeds)
                if ((f, "minimal", s) in loss && (f, "8bit", s) in loss) {
                    x = loss[f, "minimal", s]; y = loss[f, "8bit", s]
                    n++; a += x; b += y; d += y - x; squares += (y - x) ^ 2
                }
            if (n < 2) continue
            mean = d / n; sd = sqrt((squares - n * mean ^ 2) / (n - 1)); t = sd > 0 ? mean / sd * sqrt(n) : 0
            if (t < 0) t = -t
            printf "%-10s %5d %12.6f %12.6f %+9.3f %7.3f\n", f, n, a / n, b / n, 100 * d / a, two_sided(t, n - 1)
        }
    }' "$results"
