"""ApAdamW under the module name of the original MEOpt: see meopt.torch."""
from meopt.torch import ApAdamW

__all__ = ["ApAdamW"]
