"""ApAdam under the module name of the original MEOpt: see meopt.torch."""
from meopt.torch import ApAdam

__all__ = ["ApAdam"]
