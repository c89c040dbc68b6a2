"""ApSGD under the module name of the original MEOpt: see meopt.torch."""
from meopt.torch import ApSGD

__all__ = ["ApSGD"]
