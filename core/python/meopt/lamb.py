"""LAMB under the module name of the original MEOpt: see meopt.torch."""
from meopt.torch import LAMB

__all__ = ["LAMB"]
