#!/bin/sh
# The quickstart with every rule and preset, and with fp32 weights next to MEOpt's states: the loss falls, and memory by class at the end
# is that of the plan. MEOPT_LONG=1: all presets for all rules on all three pairs; else each rule with one preset, each preset with one rule.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
pairs="quickstart_dinov2"
size="train.steps=40 train.batch_size=8"
runs="apadamw:quality apadam:balanced apsgd:balanced lamb:minimal lion:balanced schedule_free:balanced adafactor:minimal apadamw:fp32+copy"
if [ "${MEOPT_LONG:-0}" = 1 ]; then
    pairs="quickstart quickstart_openclip quickstart_dinov2"
    size="train.steps=60 train.batch_size=16"
    runs=""
    for rule in apadamw apadam apsgd lamb lion schedule_free adafactor; do
        for preset in baseline quality balanced minimal fp32 fp32+copy; do runs="$runs $rule:$preset"; done
    done
fi
classes() { tr ',{}' '\n\n\n' | sed -nE 's/^ *"(weights|gradients|optimizer|activations|teacher|workspace|data)": *([0-9]+).*/\1 \2/p'; }
for pair in $pairs; do
    for run in $runs; do
        rule=${run%:*} preset=${run#*:}
        case $rule in
        lion) lr=3.0e-4 ;;
        apsgd) lr=5.0e-2 ;;
        lamb) lr=1.0e-2 ;;
        *) lr=2.0e-3 ;;
        esac
        case $preset in
        baseline) form="optim.use_meopt=false" ;;
        fp32*) form="optim.weights=$preset" ;;
        *) form="optim.preset=$preset" ;;
        esac
        set -- "$work/configs/$pair.yaml" "optim.name=$rule" "optim.lr=$lr" "$form" $size
        "$MEOPT" train "$@" --run-dir "$work" --name "$pair-$rule-$preset" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
        metrics=$work/$pair-$rule-$preset/metrics.jsonl
        "$MEOPT" plan "$@" --json | classes >"$work/planned"
        tail -1 "$metrics" | classes >"$work/measured"
        paste -d' ' "$work/planned" "$work/measured" | awk -v run="$pair $run" '
            $1 != $3 { print run ": classes differ"; exit 1 }
            ($2 - $4) ^ 2 > (0.01 * $4) ^ 2 { print run ": " $1 " planned " $2 ", measured " $4; bad = 1 }
            END { exit bad || NR != 7 }'
        sed -nE '1s/.*"loss":([^,]*).*/\1/p;$s/.*"loss":([^,]*).*/\1/p' "$metrics" | tr '\n' ' ' |
            awk -v run="$pair $run" '{ printf "%s: loss %s -> %s, a %.1fth\n", run, $1, $2, $1 / $2; exit !($1 > 2.5 * $2) }'
    done
done
