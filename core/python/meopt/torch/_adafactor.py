"""Adafactor with the arguments of torch.optim and of transformers."""
from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor

from .. import _library as L
from ._optimizer import Meopt, _arguments

Number = Union[float, Tensor]
Eps = Tuple[Optional[float], float]
RELATIVE_LR = 1e-2  # the largest relative step of the paper


class Factored(Meopt):
    """The second moment as means of rows and columns. No first moment unless beta1 is set."""

    _rule = "adafactor"
    _torch_form = False
    # fields of struct meopt_options, and their names in groups
    _fields: Dict[str, str] = {}

    @staticmethod
    def _lr(group: Dict[str, Any]) -> float:
        return RELATIVE_LR if group["lr"] is None else float(group["lr"])

    @classmethod
    def _eps(cls, group: Dict[str, Any]) -> Tuple[float, float]:
        eps1, eps2 = group["eps"]
        return torch.finfo(torch.float32).eps if eps1 is None else float(eps1), float(eps2)

    def _check_group(self, group: Dict[str, Any]) -> None:
        eps1, eps2 = self._eps(group)
        super()._check_group({**group, "eps": eps1, "lr": self._lr(group)})
        beta1 = group.get("beta1")
        if beta1 is not None and not 0 <= float(beta1) < 1:
            raise ValueError(f"beta1 is {beta1}, expected None, or at least 0 and below 1")
        if not 0 <= eps2 <= 1:
            raise ValueError(f"eps[1] is {eps2}, expected 0 to 1")

    @classmethod
    def _group_values(cls, group: Dict[str, Any]) -> Tuple[Any, ...]:  # type: ignore[override]
        maximize = int(bool(group.get("maximize")))
        return (float(group["weight_decay"]), float(group.get("beta1") or 0), 0.0, cls._eps(group)[0], 0.0, 0.0,
                maximize)

    def _creation_options(self, group: Dict[str, Any]) -> Tuple[Any, ...]:
        return (not group.get("beta1"), *super()._creation_options(group)[1:], self._eps(group)[1],
                *(group.get(name) for name in self._fields.values()))

    def _options(self, group: Dict[str, Any], bf16: bool) -> L.Options:
        options = super()._options(group, bf16)
        options.eps2, options.torch_form = self._eps(group)[1], self._torch_form
        options.scale_parameter = options.relative_step = True
        for field, name in self._fields.items():
            setattr(options, field, group[name])
        return options

    def _create_handles(self, index: int) -> Any:
        for p in self.param_groups[index]["params"]:
            if p.dim() > 8:
                raise ValueError(f"a parameter has {p.dim()} dimensions, Adafactor supports at most 8")
        return super()._create_handles(index)

    def _change_moments(self, saved: Dict[Tensor, Dict[str, Any]], p: Tensor) -> None:
        """Keeps the second moment."""
        handle, i = self._locations.get(p, (None, 0))
        kept = {} if handle is None else handle.save_portable(i, self._moment_names(handle))
        kept.pop(self._moments[0], None)
        saved[p] = {**{name: value for name, value in saved.get(p, {}).items() if name.startswith("residual")},
                    **kept}


class Adafactor(Factored):
    """torch.optim.Adafactor. eps[0] None is 1.19e-7 for every dtype. beta1: a first moment, as of
    transformers. See Meopt."""

    _torch_form = True
    _moments = ("exp_avg", "variance")
    _factors, _factor_dims = ("row_var", "col_var"), True
    _fields = {"clip_threshold": "d", "decay_rate": "beta2_decay"}

    def __init__(self, params: Any, lr: Number = 1e-2, beta2_decay: float = -0.8, eps: Eps = (None, 1e-3),
                 d: float = 1.0, weight_decay: float = 0.0, *, foreach: Optional[bool] = None,
                 maximize: bool = False, beta1: Optional[float] = None, preset: str = "balanced",
                 weights: Optional[str] = None, first_moment: Optional[str] = None,
                 second_moment: Optional[str] = None, seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))

    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        if not float(group["d"]) >= 1:
            raise ValueError(f"d is {group['d']}, expected at least 1")
        if not float(group["beta2_decay"]) <= 0:
            raise ValueError(f"beta2_decay is {group['beta2_decay']}, expected at most 0")


class TransformersAdafactor(Factored):
    """transformers.optimization.Adafactor. See Meopt."""

    _moments = ("exp_avg", "exp_avg_sq")
    _factors = ("exp_avg_sq_row", "exp_avg_sq_col")
    _fields = {name: name for name in ("clip_threshold", "decay_rate", "scale_parameter", "relative_step",
                                       "warmup_init")}

    def __init__(self, params: Any, lr: Optional[Number] = None, eps: Tuple[float, float] = (1e-30, 1e-3),
                 clip_threshold: float = 1.0, decay_rate: float = -0.8, beta1: Optional[float] = None,
                 weight_decay: float = 0.0, scale_parameter: bool = True, relative_step: bool = True,
                 warmup_init: bool = False, *, preset: str = "balanced", weights: Optional[str] = None,
                 first_moment: Optional[str] = None, second_moment: Optional[str] = None,
                 seed: int = 0) -> None:
        super().__init__(**_arguments(locals()))

    def _check_group(self, group: Dict[str, Any]) -> None:
        super()._check_group(group)
        if group["lr"] is not None and group["relative_step"]:
            raise ValueError("lr and relative_step=True: set one of them")
        if group["lr"] is None and not group["relative_step"]:
            raise ValueError("lr is None without relative_step=True")
        if group["warmup_init"] and not group["relative_step"]:
            raise ValueError("warmup_init=True requires relative_step=True")
