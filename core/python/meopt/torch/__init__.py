"""MEOpt's optimizers for PyTorch (2.4 and newer): torch.optim.Optimizer classes over libmeopt-optim.

    import meopt.torch
    model = model.bfloat16()
    optimizer = meopt.torch.AdamW(model.parameters(), lr=1e-3)  # 4.56 bytes per parameter with its weight

Arguments, their order and their defaults are those of torch.optim.Adam, AdamW and SGD, and of timm's Lamb and
Lion; preset, weights, first_moment, second_moment and seed: see Meopt.
"""
from typing import Any, Dict, Optional, Tuple, Union

from torch import Tensor

from ._optimizer import Meopt, fp32_state_dict, load_fp32_state_dict
from ._release import Release, release_gradients

__all__ = ["ApAdam", "ApAdamW", "ApSGD", "LAMB", "Lion", "Adam", "AdamW", "SGD", "Meopt", "fp32_state_dict",
           "load_fp32_state_dict", "Release", "release_gradients"]

Number = Union[float, Tensor]

def _arguments(given: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the arguments of a constructor from its locals()."""
    return {name: value for name, value in given.items() if name not in ("self", "__class__")}


class ApAdam(Meopt):
    """torch.optim.Adam: weight decay is added to the gradient. See Meopt."""

    _rule = "apadam"

    def __init__(self, params: Any, lr: Number = 1e-3, betas: Tuple[Number, Number] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *,
                 foreach: Optional[bool] = None, maximize: bool = False, capturable: bool = False,
                 differentiable: bool = False, fused: Optional[bool] = None,
                 decoupled_weight_decay: bool = False, preset: str = "balanced",
                 weights: Optional[str] = None, first_moment: Optional[str] = None,
                 second_moment: Optional[str] = None, seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))


class ApAdamW(Meopt):
    """torch.optim.AdamW: decoupled weight decay. See Meopt."""

    _rule = "apadamw"

    def __init__(self, params: Any, lr: Number = 1e-3, betas: Tuple[Number, Number] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *,
                 maximize: bool = False, foreach: Optional[bool] = None, capturable: bool = False,
                 differentiable: bool = False, fused: Optional[bool] = None, preset: str = "balanced",
                 weights: Optional[str] = None, first_moment: Optional[str] = None,
                 second_moment: Optional[str] = None, seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))


class ApSGD(Meopt):
    """torch.optim.SGD. Without momentum there is no state. See Meopt."""

    _rule = "apsgd"
    _moments = ("momentum_buffer", "")

    def __init__(self, params: Any, lr: Number = 1e-3, momentum: float = 0, dampening: float = 0,
                 weight_decay: Number = 0, nesterov: bool = False, *, maximize: bool = False,
                 foreach: Optional[bool] = None, differentiable: bool = False, fused: Optional[bool] = None,
                 preset: str = "balanced", weights: Optional[str] = None, first_moment: Optional[str] = None,
                 second_moment: Optional[str] = None, seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))


class LAMB(Meopt):
    """timm's Lamb (arXiv:1904.00962). max_grad_norm: all gradients are divided by their global norm /
    max_grad_norm where that is above 1; None: never. A card is waited for. See Meopt."""

    _rule = "lamb"

    def __init__(self, params: Any, lr: Number = 1e-3, bias_correction: bool = True,
                 betas: Tuple[Number, Number] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01,
                 grad_averaging: bool = True, max_grad_norm: Optional[float] = 1.0, trust_clip: bool = False,
                 always_adapt: bool = False, caution: bool = False, decoupled_decay: bool = False,
                 corrected_weight_decay: bool = False, foreach: Optional[bool] = None, *,
                 maximize: bool = False, preset: str = "balanced", weights: Optional[str] = None,
                 first_moment: Optional[str] = None, second_moment: Optional[str] = None,
                 seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))


class Lion(Meopt):
    """timm's Lion (arXiv:2302.06675): decoupled weight decay. See Meopt."""

    _rule = "lion"
    _moments = ("exp_avg", "")

    def __init__(self, params: Any, lr: Number = 1e-4, betas: Tuple[Number, Number] = (0.9, 0.99),
                 weight_decay: float = 0.0, caution: bool = False, corrected_weight_decay: bool = False,
                 maximize: bool = False, foreach: Optional[bool] = None, *, preset: str = "balanced",
                 weights: Optional[str] = None, first_moment: Optional[str] = None,
                 second_moment: Optional[str] = None, seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))


Adam, AdamW, SGD = ApAdam, ApAdamW, ApSGD
