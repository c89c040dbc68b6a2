"""Lion under the module name of the original MEOpt: see meopt.torch."""
from meopt.torch import Lion

__all__ = ["Lion"]
