"""MEOpt's optimizers for PyTorch (2.4 and newer): torch.optim.Optimizer classes over libmeopt-optim.

    import meopt.torch
    model = model.bfloat16()
    optimizer = meopt.torch.AdamW(model.parameters(), lr=1e-3)  # 4.56 bytes per parameter with its weight

Arguments, their order and their defaults are those of torch.optim.Adam, AdamW, SGD and Muon, of timm's Lamb and
Lion, of schedulefree's AdamWScheduleFree, and of both Adafactors; preset, weights, first_moment, second_moment
and seed: see Meopt.
"""
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from torch import Tensor

from .._library import library
from ._adafactor import Adafactor, TransformersAdafactor
from ._optimizer import Meopt, _arguments, fp32_state_dict, load_fp32_state_dict
from ._points import Points
from ._release import Release, release_gradients

__all__ = ["ApAdam", "ApAdamW", "ApSGD", "LAMB", "Lion", "Muon", "AdamWScheduleFree", "Adafactor",
           "TransformersAdafactor", "Adam", "AdamW", "SGD", "Meopt", "fp32_state_dict", "load_fp32_state_dict",
           "Release", "release_gradients"]

Number = Union[float, Tensor]


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


class Muon(Meopt):
    """torch.optim.Muon: Nesterov momentum, orthogonalized by Newton-Schulz (arXiv:2502.16982). See Meopt.

    Parameters have two dimensions. A group with "use_muon": False has any others, embeddings and heads, which
    AdamW steps with betas and adam_eps; with "factored": True Adafactor, as of transformers, with a first moment
    by betas[0] (scale_parameter and relative_step False). rows: of up to four matrices that each parameter of the group consists
    of, which are orthogonalized apart, as [q, k, v] for the weight of a fused projection. ns_schedule:
    "quintic" (ns_coefficients) or "polar_express" (arXiv:2505.16932, its own). ns_dtype: "bf16" or "fp32".
    FSDP2: each rank has the momentum of its rows. step() gathers each matrix on one rank, which orthogonalizes
    it; ranks take turns by size. With release_gradients every rank orthogonalizes every matrix."""

    _rule = "muon"
    _moments = ("momentum_buffer", "")
    _adjust = {None: 1, "original": 1, "match_rms_adamw": 0, "spectral_unclamped": 2}  # enum meopt_adjust_lr
    _schedules = {"quintic": 0, "polar_express": 1}  # enum meopt_ns_schedule
    _dtypes = {"bf16": 1, "fp32": 0}  # enum meopt_dtype

    def __init__(self, params: Any, lr: Number = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
                 nesterov: bool = True, ns_coefficients: Tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
                 eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: Optional[str] = None, *,
                 ns_schedule: str = "quintic", ns_dtype: str = "bf16", rows: Optional[Sequence[int]] = None,
                 use_muon: bool = True, factored: bool = False, betas: Tuple[Number, Number] = (0.9, 0.999),
                 adam_eps: float = 1e-8, maximize: bool = False, preset: str = "balanced", weights: Optional[str] = None,
                 first_moment: Optional[str] = None, second_moment: Optional[str] = None,
                 seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))

    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        for name, choices in (("adjust_lr_fn", self._adjust), ("ns_schedule", self._schedules),
                              ("ns_dtype", self._dtypes)):
            if name in group and group[name] not in choices:
                raise ValueError(f"{name} is {group[name]!r}, expected one of {list(choices)}")
        if len(group.get("ns_coefficients", (0, 0, 0))) != 3:
            raise ValueError(f"ns_coefficients are {group['ns_coefficients']!r}, expected three numbers")
        if len(group.get("rows") or ()) > 4:
            raise ValueError(f"rows are {group['rows']!r}, expected at most four numbers")
        if group.get("factored") and group.get("use_muon", True):
            raise ValueError("factored is for a group with use_muon=False")
        for p in group.get("params", ()) if group.get("use_muon", True) else ():
            if isinstance(p, Tensor) and p.ndim != 2:  # a state has numbers
                raise ValueError(f"a parameter has shape {tuple(p.shape)}, expected two dimensions, or a group "
                                 "with use_muon=False, which AdamW steps")

    def _creation_options(self, group: Dict[str, Any]) -> Tuple[Any, ...]:
        names = ("ns_coefficients", "eps", "ns_steps", "adjust_lr_fn", "ns_schedule", "ns_dtype", "rows",
                 "use_muon", "factored")
        values = (group.get(name) for name in names)
        return (False, *super()._creation_options(group)[1:],
                *(tuple(v) if isinstance(v, (list, tuple)) else v for v in values))

    @staticmethod
    def _group_values(group: Dict[str, Any]) -> Tuple[Any, ...]:
        return Meopt._group_values({**group, "eps": 1e-30 if group.get("factored") else group["adam_eps"]})

    def _own_rule(self, group: Dict[str, Any]) -> Optional[Tuple[int, Sequence[int]]]:
        rows = [int(n) for n in group["rows"] or ()]
        others = "adafactor" if group.get("factored") else "apadamw"
        return (library().number("rule", "muon"), rows) if group["use_muon"] else (
            library().number("rule", others), ())

    def _factors_of(self, group: Dict[str, Any]) -> Tuple[str, ...]:
        return ("exp_avg_sq_row", "exp_avg_sq_col") if group.get("factored") else ()

    def _moment_names(self, handle: Any) -> Tuple[str, ...]:
        return self._moments if self.param_groups[handle.group_index]["use_muon"] else Meopt._moments

    def _options(self, group: Dict[str, Any], bf16: bool) -> Any:
        options = super()._options(group, bf16)
        options.ns_steps, options.ns_eps = int(group["ns_steps"]), float(group["eps"])
        options.ns_coefficients[:] = [float(x) for x in group["ns_coefficients"]]
        options.ns_schedule = self._schedules[group["ns_schedule"]]
        options.ns_dtype, options.adjust_lr = self._dtypes[group["ns_dtype"]], self._adjust[group["adjust_lr_fn"]]
        return options


class AdamWScheduleFree(Points):
    """schedulefree's AdamWScheduleFree (arXiv:2405.15682), whose learning rate is constant after the warm-up:
    train() before training, eval() before evaluation and before the model is saved. See Points and Meopt."""

    _rule = "schedule_free"

    def __init__(self, params: Any, lr: Number = 0.0025, betas: Tuple[Number, Number] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, warmup_steps: int = 0, r: float = 0.0,
                 weight_lr_power: float = 2.0, foreach: Optional[bool] = None, *, maximize: bool = False,
                 preset: str = "balanced", weights: Optional[str] = None, first_moment: Optional[str] = None,
                 second_moment: Optional[str] = None, seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))


Adam, AdamW, SGD = ApAdam, ApAdamW, ApSGD
