# Long: the Trainer of transformers, accelerate and Lightning train with meopt.torch (dropin.py).
set -eu
[ -n "${MEOPT_LONG:-}" ] || { echo "skipped: long form only (MEOPT_LONG=1)"; exit 77; }
set -- torch transformers accelerate lightning
. "$MEOPT_SOURCE/tests/tools/python.sh"
[ -f "$MEOPT_BUILD/libmeopt-optim.so" ] || { echo "skipped: no libmeopt-optim.so in $MEOPT_BUILD"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
export MEOPT_OPTIM_LIBRARY="$MEOPT_BUILD/libmeopt-optim.so" PYTHONPATH="$MEOPT_SOURCE/core/python"
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
cd "$work"
"$python" "$MEOPT_SOURCE/tests/python/dropin.py"
