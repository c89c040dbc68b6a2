"""Adafactor under a module name like those of the original MEOpt: see meopt.torch."""
from meopt.torch import Adafactor

__all__ = ["Adafactor"]
