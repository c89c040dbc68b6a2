# Long: the Trainer of transformers, accelerate, Lightning and DeepSpeed train with meopt.torch (dropin.py).
set -eu
[ -n "${MEOPT_LONG:-}" ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
export HF_HUB_OFFLINE=1 DS_ACCELERATOR=cpu
modules='torch transformers accelerate lightning deepspeed' pattern=dropin.py
. "$MEOPT_SOURCE/tests/python/meopt_torch.sh"
