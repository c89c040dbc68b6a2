"""Gradient release: each parameter steps during backward when its gradient exists, which is then freed."""
import math
import threading
from typing import Any, Dict, List, Optional, Set

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .. import _library as L
from ._handle import Handle
from ._optimizer import STEPS, Meopt

NORM = "grad_norm"  # of a group: norm of its gradients in the last step, for clip="previous"


class Release:
    """Steps an optimizer's parameters during backward until `remove`. Made by release_gradients."""

    def __init__(self, model: torch.nn.Module, optimizer: Meopt, clip: Optional[str],
                 max_norm: Optional[float], accumulate: int) -> None:
        self._optimizer, self._clip, self._max_norm, self._accumulate = optimizer, clip, max_norm, accumulate
        self._lock = threading.Lock()  # hooks of DDP run in threads of their own
        self._hooks: List[Any] = []
        self._ddp_params: Set[Tensor] = set()  # parameters whose gradients DDP reduces
        self._find_unused = False  # DDP allows parameters that a graph does not reach
        self._reset_step()
        if clip == "exact":
            return
        params = [p for p in model.parameters() if p in optimizer._locations and p.requires_grad]
        if isinstance(model, DistributedDataParallel):
            self._ddp_params.update(params)
            self._find_unused = model.find_unused_parameters or model.static_graph
            if self._find_unused:
                self._hooks = [p.register_post_accumulate_grad_hook(self._mark_used) for p in params]
            model.register_comm_hook(model.process_group, self._reduce_hook())
        else:
            self._hooks = [p.register_post_accumulate_grad_hook(self._gradient_hook) for p in params]

    def _reset_step(self) -> None:
        self._gradient_counts: Dict[Tensor, int] = {}  # gradients of this step by parameter
        self._stepped: Set[Tensor] = set()
        self._used: Set[Tensor] = set()  # parameters with a gradient on this rank, where DDP allows others
        self._stepping: List[Handle] = []  # handles whose step began
        self._failure: Optional[Exception] = None

    def _begin_step(self, handle: Handle) -> None:
        optimizer = self._optimizer
        if not self._stepping:
            self._scale = 1.0
            if self._clip == "previous":
                norm = math.hypot(*(group.get(NORM, 0.0) for group in optimizer.param_groups))
                self._scale = L.library().clip_scale(norm, self._max_norm)
        group = optimizer.param_groups[handle.group_index]
        handle.set_group(optimizer._group_values(group))
        handle.begin_step(group[STEPS] + 1, float(group["lr"]))
        self._stepping.append(handle)

    @torch.no_grad()
    def _step(self, p: Tensor, gradient: Tensor) -> None:
        optimizer = self._optimizer
        with self._lock:
            if p in self._stepped:
                raise RuntimeError(f"{optimizer._names[p]}: a second gradient in one step: call "
                                   "optimizer.step() after the last backward of each step")
            if not self._stepping:
                optimizer._update_handles(stepping=True)
            handle, i = optimizer._locations[p]
            if handle not in self._stepping:
                self._begin_step(handle)
            self._stepped.add(p)
        try:
            handle.step_param(i, gradient, self._scale)
        except FloatingPointError as failure:
            self._failure = self._failure or failure

    def _gradient_hook(self, p: Tensor) -> None:
        """The hook of a parameter whose .grad has all of one backward."""
        self._gradient_counts[p] = self._gradient_counts.get(p, 0) + 1
        if self._gradient_counts[p] < self._accumulate or p.grad is None:
            return
        self._step(p, p.grad)
        p.grad = None
        if len(self._stepped) == len(self._optimizer._locations):
            self._end_step()

    def _mark_used(self, p: Tensor) -> None:
        self._used.add(p)

    def _reduce_hook(self) -> Any:
        """Returns a communication hook of DDP that averages a bucket over all ranks, then steps it. Like DDP,
        it leaves out a parameter without a gradient on any rank."""
        from torch.distributed import GradBucket, all_reduce
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def hook(group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            parameters = bucket.parameters()
            work = None
            if self._find_unused:  # before the bucket's own reduction, so that the callback need not wait
                used = torch.tensor([p in self._used for p in parameters], dtype=torch.int32,
                                    device=bucket.buffer().device)
                work = all_reduce(used, group=group, async_op=True)

            def step(_: Any) -> Tensor:
                counts = [1] * len(parameters)
                if work is not None:
                    work.wait()
                    counts = used.tolist()
                for p, gradient, count in zip(parameters, bucket.gradients(), counts):
                    if p in self._ddp_params and count:
                        self._step(p, gradient)
                return bucket.buffer()

            return allreduce_hook(group, bucket).then(step)

        return hook

    def _end_step(self) -> None:
        """Ends the step of all handles. FloatingPointError: a gradient was not finite."""
        groups, opened, failure = self._optimizer.param_groups, self._stepping, self._failure
        norms: Dict[int, List[float]] = {}
        self._reset_step()
        for handle in opened:
            found = norms.setdefault(handle.group_index, [])
            try:
                found.append(handle.end_step())
            except FloatingPointError as error:
                failure = failure or error
        for handle in self._optimizer._handles() if opened else ():
            handle.record_versions()
        for at in norms:
            groups[at][STEPS] += 1
        if failure is not None:
            raise failure
        for at, group in enumerate(groups if self._clip == "previous" and opened else ()):
            norm = math.hypot(*norms.get(at, ()))
            group[NORM] = norm if math.isfinite(norm) else group.get(NORM, 0.0)

    def finish(self) -> None:
        """Ends the step: parameters whose gradients are still there step now (all of them with clip="exact",
        and those that a graph or the last micro-batch did not reach). All gradients are freed.
        optimizer.step() calls it. FloatingPointError: a gradient was not finite; the others have stepped."""
        optimizer = self._optimizer
        try:
            if self._clip == "exact":
                optimizer._step(self._max_norm)
            else:
                for p in list(optimizer._locations):
                    if p.grad is not None and p not in self._stepped and p not in self._ddp_params:
                        self._step(p, p.grad)
                self._end_step()
        finally:
            optimizer.zero_grad()

    def remove(self) -> None:
        """Removes the hooks; optimizer.step() steps again as usual."""
        for hook in self._hooks:
            hook.remove()
        self._ddp_params.clear()
        self._optimizer._release = None


def release_gradients(model: torch.nn.Module, optimizer: Meopt, *, clip: Optional[str] = None,
                      max_norm: Optional[float] = None, accumulate: int = 1) -> Release:
    """Lets the optimizer's parameters step during backward, so that their gradients never exist at the same
    time.

    A training loop stays as it is: optimizer.step() ends the step, and steps what backward did not reach. The
    bits are those of a step without release. torch.amp.GradScaler cannot be used, as it needs all gradients.

    clip: None; "previous": each gradient is clipped by the global norm of the previous step; "exact":
    gradients stay until optimizer.step() has their global norm. max_norm: that of
    torch.nn.utils.clip_grad_norm_. accumulate: backward passes per step; .grad accumulates until the last of
    them. model: a DistributedDataParallel's gradients step when their bucket is reduced; use its no_sync()
    for all backward passes of a step but the last. Its buckets stay allocated. fully_shard (FSDP2):
    gradients step when they are reduced; with set_requires_gradient_sync(False) for all backward
    passes of a step but the last, accumulate is 1.

    ValueError: the options do not fit, or LAMB has max_grad_norm, which requires clip="exact".
    RuntimeError (in backward): a parameter has two gradients in one step.
    """
    if clip not in (None, "exact", "previous") or (clip is None) != (max_norm is None):
        raise ValueError(f"clip={clip!r}, max_norm={max_norm!r}, expected 'exact' or 'previous' and a norm")
    if accumulate < 1:
        raise ValueError(f"accumulate is {accumulate}, expected 1 or more")
    if clip != "exact" and optimizer.defaults.get("max_grad_norm"):
        raise ValueError("max_grad_norm requires all gradients: use clip='exact' or max_grad_norm=None")
    if optimizer._release is not None:
        raise ValueError("the optimizer releases gradients already")
    optimizer._release = Release(model, optimizer, clip, max_norm, accumulate)
    return optimizer._release
