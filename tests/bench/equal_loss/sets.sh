#!/bin/sh
# Training with products of one instruction set compared with training with those of another (MEOPT_CPU_ISA): the same pairs, rules, seeds
# and batches, so that whatever differs is how products are rounded. What bits alone do, with nothing lost, is seen by two sets
# that both multiply floats (avx512 plain).
# One line a run: pair rule preset seed set, mean loss of the last third of the steps, spikes (steps of the second half whose loss is over
# three times the median of the ten before them), exit code. Runs that are there are not repeated, so it may be stopped at any time.
#
#   sh tests/bench/equal_loss/sets.sh RESULTS         MEOPT=build/meopt  SEEDS="1 2 3 4 5"  STEPS=30  BATCH=4
#   SETS="avx512 avx512_vnni avx2 plain"  PAIRS="quickstart quickstart_openclip quickstart_dinov2"  RULES="apadamw/balanced apsgd/balanced"
#   EXTRA="model_s.width=256": options for every run
#   sh tests/bench/equal_loss/sets.sh table RESULTS [SET]  gap to SET (avx512) in %, paired by seed: mean, standard error, sd, t
set -eu
if [ "$1" = table ]; then
    printf '%-20s%-9s%-10s%-12s%6s%10s%9s%9s%9s%7s%7s%7s\n' pair rule preset set seeds loss 'gap %' se sd t spikes failed
    awk -v than="${3:-avx512}" '{ key = $1 " " $2 " " $3; loss[key, $5, $4] = $6; keys[key]; sets[$5]; seeds[$4]
        spikes[key, $5] += $7; failed[key, $5] += $8 != 0; bad[key, $5, $4] = $8 }
    END {
        for (key in keys) for (set in sets) {
            n = sum = squares = mean = 0
            for (s in seeds) if ((key, set, s) in loss && (key, than, s) in loss && !bad[key, set, s] && !bad[key, than, s]) {
                gap = 100 * (loss[key, set, s] / loss[key, than, s] - 1); n++; sum += gap; squares += gap * gap; mean += loss[key, set, s]
            }
            if (!n) continue
            sd = n > 1 ? sqrt((squares - sum * sum / n) / (n - 1)) : 0
            split(key, w, " ")
            t = sd > 0 ? sum / n / (sd / sqrt(n)) : 0
            printf "%-20s%-9s%-10s%-12s%6d%10.5f%+9.3f%9.3f%9.3f%7.2f%7d%7d\n", w[1], w[2], w[3], set, n, mean / n, sum / n, sd / sqrt(n), sd,
                t, spikes[key, set], failed[key, set]
        }
    }' "$2" | LC_ALL=C sort
    exit
fi
. "$(dirname "$0")/engine.sh"
for seed in ${SEEDS:-1 2 3 4 5}; do
    for pair in ${PAIRS:-quickstart quickstart_openclip quickstart_dinov2}; do
        for form in ${RULES:-apadamw/balanced apadamw/quality apsgd/balanced lion/balanced}; do
            rule=${form%/*} preset=${form#*/}
            lr=$(rate_of "$rule")
            for set in ${SETS:-avx512 avx512_vnni avx2 plain}; do
                grep -q "^$pair $rule $preset $seed $set " "$results" && continue
                rm -rf run
                code=0
                MEOPT_CPU_ISA=$set "$MEOPT" train "configs/$pair.yaml" "optim.name=$rule" "optim.lr=$lr" "optim.preset=$preset" \
                    optim.clip_mode=exact "train.steps=$steps" "train.batch_size=${BATCH:-4}" "train.seed=$seed" ${EXTRA:-} \
                    --run-dir . --name run >log 2>&1 || code=$?
                [ $code = 0 ] || [ $code = 13 ] || { cat log >&2; exit 1; }
                sed -nE 's/.*"loss":([^,]*).*/\1/p' run/metrics.jsonl |
                    awk -v run="$pair $rule $preset $seed $set" -v steps="$steps" -v code=$code '{ loss[NR] = $1 }
                    END {
                        for (i = NR - int(steps / 3) + 1; i <= NR; i++) sum += loss[i]
                        for (i = int(NR / 2) + 1; i <= NR; i++) {
                            for (j = 0; j < 10; j++) last[j] = loss[i - 1 - j]
                            for (j = 1; j < 10; j++)
                                for (k = j; k > 0 && last[k - 1] > last[k]; k--) { t = last[k]; last[k] = last[k - 1]; last[k - 1] = t }
                            spikes += loss[i] > 1.5 * (last[4] + last[5])
                        }
                        printf "%s %.8f %d %d\n", run, sum / int(steps / 3), spikes, code
                    }' >>"$results"
            done
        done
    done
done
