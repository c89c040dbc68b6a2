#!/bin/sh
# The engine's own three pairs of models (the quickstarts): every rule with every preset compared with use_meopt: false, the same batches,
# several seeds. Gradients are clipped by their own norm in both; under gradient release the default is that of the step before.
# One line a run goes to the results file: pair rule preset seed, mean loss of the last third of the steps. Runs that are there
# are not repeated, so it may be stopped at any time.
#
#   sh tests/bench/equal_loss/pairs.sh RESULTS        MEOPT=build/meopt  SEEDS="1 2 3 4 5"  STEPS=30  BATCH=4
#   PAIRS="quickstart quickstart_openclip quickstart_dinov2"  RULES="apadamw apadam apsgd lamb lion"  PRESETS="quality balanced minimal"
#   sh tests/bench/equal_loss/pairs.sh table RESULTS  gap to use_meopt: false in %, paired by seed: mean, sd, t
set -eu
if [ "$1" = table ]; then
    printf '%-22s%-9s%-10s%6s%10s%9s%9s%8s\n' pair rule preset seeds loss 'gap %' sd t
    awk '{ loss[$1 " " $2 " " $3, $4] = $5; if ($3 != "baseline") { seen[$1 " " $2 " " $3] = $1 " " $2 " baseline"; seed[$4] } }
    END {
        for (run in seen) {
            n = sum = squares = mean = 0
            for (s in seed) if ((run, s) in loss && (seen[run], s) in loss) {
                gap = 100 * (loss[run, s] / loss[seen[run], s] - 1); n++; sum += gap; squares += gap * gap; mean += loss[run, s]
            }
            if (!n) continue
            sd = n > 1 ? sqrt((squares - sum * sum / n) / (n - 1)) : 0
            split(run, w, " ")
            t = sd > 0 ? sum / n / (sd / sqrt(n)) : 0
            printf "%-22s%-9s%-10s%6d%10.5f%+9.3f%9.3f%8.2f\n", w[1], w[2], w[3], n, mean / n, sum / n, sd, t
        }
    }' "$2" | LC_ALL=C sort
    exit
fi
. "$(dirname "$0")/engine.sh"
for seed in ${SEEDS:-1 2 3 4 5}; do
    for pair in ${PAIRS:-quickstart quickstart_openclip quickstart_dinov2}; do
        for rule in ${RULES:-apadamw apadam apsgd lamb lion}; do
            lr=$(rate_of "$rule")
            for preset in baseline ${PRESETS:-quality balanced minimal}; do
                grep -q "^$pair $rule $preset $seed " "$results" && continue
                form="optim.preset=$preset optim.clip_mode=exact"
                [ "$preset" != baseline ] || form=optim.use_meopt=false
                rm -rf run
                "$MEOPT" train "configs/$pair.yaml" "optim.name=$rule" "optim.lr=$lr" $form "train.steps=$steps" \
                    "train.batch_size=${BATCH:-4}" "train.seed=$seed" --run-dir . --name run >log 2>&1 || { cat log >&2; exit 1; }
                sed -nE 's/.*"loss":([^,]*).*/\1/p' run/metrics.jsonl | tail -n "$((steps / 3))" |
                    awk -v run="$pair $rule $preset $seed" '{ sum += $1 } END { printf "%s %.8f\n", run, sum / NR }' >>"$results"
            done
        done
    done
done
