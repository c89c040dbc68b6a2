#!/bin/sh
# Equal loss compared with torch, torchao, bitsandbytes and FlashOptim's formats, through libmeopt-optim.so: updates and ways by
# distribution, worst step, spikes, steps below a weight's resolution, bytes and time, and trainings paired by seed (MLP,
# byte GPT of 0.24 and 1.07 M parameters, distillation, the edge of stability, 20,000 steps; vit: a ViT of 0.20 M parameters and
# a byte GPT of 0.39 M, 2,000 steps). Hours of one core in all (a
# GPT of 1,000 steps 65 s, the 20 seeds of an MLP 45 s, 100 runs at the edge 60 s); runs
# that the results file has are not repeated, so it may be stopped at any time.
#
#   sh tests/bench/equal_loss/run.sh [SECTION ...]   moments worst tiny cost mlp edge spikes regimes long train vit gpt (all)
#   sh tests/bench/equal_loss/run.sh table           what there is
#   MEOPT_BUILD=build  RESULTS=FILE  SEEDS=5  FIRST_SEED=1  EDGE_RUNS=100  GPT_STEPS=1000  GPT_BATCH=4  NAMES="amp balanced"  WHATS="lms;w .03 lr 1e-6"
#   TORCH=PYTHON  an interpreter that has torch, whose packages are used: else torch is fetched, too (gigabytes)
# The packages go to $ENVIRONMENT (build/equal_loss_env), to be removed at will.
set -eu
cd "$(dirname "$0")/../../.."
build=${MEOPT_BUILD:-build}
env=${ENVIRONMENT:-$build/equal_loss_env}
results=${RESULTS:-$build/equal_loss.jsonl}
if [ ! -e "$env/whole" ]; then
    rm -rf "$env"
    "${TORCH:-python3}" -m venv "$env"
    if [ -n "${TORCH:-}" ]; then
        site='import site; print(site.getsitepackages()[0])'
        "$TORCH" -c "$site" >"$("$env/bin/python" -c "$site")/torch.pth"
        "$env/bin/python" -m pip install -q --no-deps torchao==0.18.0 bitsandbytes==0.50.2
    else
        "$env/bin/python" -m pip install -q torch==2.15.0 torchao==0.18.0 bitsandbytes==0.50.2 numpy
    fi
    "$env/bin/python" -m pip install -q scikit-learn pillow packaging
    touch "$env/whole"
fi
[ $# -gt 0 ] || set -- moments worst tiny cost mlp edge spikes regimes long train vit gpt table
export OMP_NUM_THREADS=1 MEOPT_OPTIM_LIBRARY="$build/libmeopt-optim.so" PYTHONPATH=core/python
exec "$env/bin/python" tests/bench/equal_loss/equal_loss.py "$results" "$@"
