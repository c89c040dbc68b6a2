# Long: the Trainer of transformers, accelerate and Lightning train with meopt.torch (dropin.py).
set -eu
[ -n "${MEOPT_LONG:-}" ] || { echo "skipped: long form only (MEOPT_LONG=1)"; exit 77; }
export HF_HUB_OFFLINE=1
modules='torch transformers accelerate lightning' pattern=dropin.py
. "$MEOPT_SOURCE/tests/python/meopt_torch.sh"
