# meopt.torch with DTensor parameters (FSDP2) on 2 and 3 ranks: tests/python/fsdp_*.py.
pattern='fsdp_*.py'
. "$MEOPT_SOURCE/tests/python/meopt_torch.sh"
