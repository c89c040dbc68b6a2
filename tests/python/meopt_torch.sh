# The PyTorch optimizers of core/python (meopt.torch) with this build's library: tests/python/torch_*.py.
set -eu
set -- ${modules:-torch}
. "$MEOPT_SOURCE/tests/tools/python.sh"
[ -f "$MEOPT_BUILD/libmeopt-optim.so" ] || { echo "skipped: no libmeopt-optim.so in $MEOPT_BUILD"; exit 77; }
if [ -f "$MEOPT_BUILD/tests/libfake_amdhip64.so" ]; then
    . "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
fi
. "$MEOPT_SOURCE/tests/lib.sh"
export MEOPT_OPTIM_LIBRARY="$MEOPT_BUILD/libmeopt-optim.so" PYTHONPATH="$MEOPT_SOURCE/core/python"
export OMP_NUM_THREADS=1
cd "$work"
"$python" -m unittest discover -s "$MEOPT_SOURCE/tests/python" -t "$MEOPT_SOURCE/tests/python" -p "${pattern:-torch_*.py}"
