"""Rules whose weights of training and of evaluation differ (schedule-free): train(), eval(), states."""
from typing import Any, Dict, List

import torch
from torch import Tensor

from ._handle import Handle, local_tensor
from ._optimizer import Meopt

NOT_TRAINING = "optimizer is not in train mode: call train() before training, and eval() before evaluation"
SUMS = ("weight_sum", "lr_max")  # of a group in schedulefree's states: the library has them per parameter


class Points(Meopt):
    """An optimizer with the modes of schedulefree: gradients are computed in train mode, in which the
    parameters hold y; in eval mode they hold x, the average, which is the model that training makes.

    A new optimizer is in eval mode. step() in eval mode raises RuntimeError, where schedulefree raises
    Exception, and so does fp32_state_dict in train mode, because y is not the model. train() restores the
    bits of y; from values that were written to parameters in eval mode it computes their y. eval() holds a
    copy of the parameters in host memory ("point" of held_bytes). A state has y in fp32, and is complete in
    both modes. The first moment is z - y.
    """

    _moments = ("z_minus_y", "exp_avg_sq")

    def __init__(self, params: Any, seed: int, **defaults: Any) -> None:
        super().__init__(params, seed, train_mode=False, **defaults)

    def _set_point(self, evaluate: bool) -> None:
        handles = self._handles()
        try:
            for handle in handles:
                handle.set_point(evaluate)
        except MemoryError:
            for handle in handles:
                handle.set_point(not evaluate)
            raise
        for group in self.param_groups:
            group["train_mode"] = not evaluate

    @torch.no_grad()
    def eval(self) -> None:
        """Sets the parameters to x. MemoryError: they stay as they are."""
        self._update_handles()
        self._set_point(True)

    @torch.no_grad()
    def train(self) -> None:
        """Sets the parameters to y."""
        self._update_handles()
        self._set_point(False)

    def _update_handles(self, stepping: bool = False) -> None:
        if stepping and not all(group["train_mode"] for group in self.param_groups):
            raise RuntimeError(NOT_TRAINING)
        super()._update_handles(stepping)

    def _finish_modes(self) -> None:
        for handle in self._handles():
            if all(map(handle.fits, range(len(handle.params)))):  # else a parameter has other memory or type
                handle.set_point(False)

    def _check_weights(self) -> None:
        if any(group["train_mode"] for group in self.param_groups):
            raise RuntimeError("the parameters are those of training: call eval() first")

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group, in the mode of the others."""
        if self.param_groups:
            param_group.setdefault("train_mode", self.param_groups[0]["train_mode"])
        super().add_param_group(param_group)

    # ---- State

    def state_dict(self, *, portable: bool = False) -> Dict[str, Any]:  # type: ignore[override]
        saved = super().state_dict(portable=portable)
        for group, own in zip(saved["param_groups"], self.param_groups) if portable else ():
            group["k"], group["scheduled_lr"] = own.get("steps", 0), 0.0
            where = [self._locations[p] for p in own["params"] if p in self._locations]
            sums = [handle.sums(i) for handle, i in where]
            group.update(zip(SUMS, max(sums, default=(0.0, -1.0))))
            for key, p in zip(group["params"], own["params"]):
                if p in self._locations:
                    self._make_portable(saved["state"][key], *self._locations[p])
        return saved

    @staticmethod
    def _make_portable(state: Dict[str, Any], handle: Handle, i: int) -> None:
        """Replaces z - y by z, as the class of schedulefree has it."""
        difference = state.pop("z_minus_y")
        state.pop("average_sums", None)
        state["z"] = handle.export(i, training=True) + difference

    def _read_portable(self, p: Tensor, state: Dict[str, Any], group: Dict[str, Any]) -> None:
        """Replaces z by z - y; in eval mode the parameter holds x."""
        local, z = local_tensor(p), state.pop("z")
        z = local_tensor(z).to(local.device, torch.float32)
        values, beta1 = local.detach().float(), float(group["betas"][0])
        y = values if group["train_mode"] else values + (1 - beta1) * (z - values)
        state["z_minus_y"] = z - y
        state["step"] = torch.tensor(float(group["steps"]))
        state["average_sums"] = torch.tensor([max(float(group.get(name, 0)), 0) for name in SUMS],
                                             dtype=torch.float64)
        if not group["train_mode"]:
            state["y"] = y

    @torch.no_grad()
    def _recreate_handles(self, saved: Dict[Tensor, Dict[str, Any]]) -> None:
        evaluating: List[bool] = [not group["train_mode"] for group in self.param_groups]
        for group in self.param_groups:
            if "k" in group:
                group["steps"] = int(group.pop("k"))
            for p in group["params"]:
                if "z" in saved.get(p, {}):
                    self._read_portable(p, saved[p], group)
            for name in (*SUMS, "scheduled_lr"):
                group.pop(name, None)
        super()._recreate_handles(saved)
        for entry, evaluate in zip(self._group_handles, evaluating):
            for handle in entry.handles:
                handle.set_point(evaluate)
