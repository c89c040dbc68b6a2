"""Gradient release: each parameter steps during backward when its gradient exists, which is then freed."""
import math
import threading
from typing import Any, Dict, List, Optional, Set, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .. import _library as L
from ._handle import Handle
from ._optimizer import STEPS, Meopt, raise_failures
from ._shards import dtensor_like, is_dtensor, local_tensor

NORM = "grad_norm"  # of a group: norm of its gradients in the last step, for clip="previous"


class Released(Tensor):
    """The .grad of a parameter that has stepped: it has no memory, a use of its values raises RuntimeError.

    Else a second backward would begin another step, and clip_grad_norm_ would return 0 and clip nothing.
    norm: of the gradient; then clip_grad_norm_ returns the norm of all, and raises where it would clip.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl
    parameter_name: str
    norm_2: Optional[Tensor]

    @staticmethod
    def __new__(cls, gradient: Tensor, name: str, norm: Optional[Tensor]) -> "Released":
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, gradient.shape, strides=gradient.stride(), dtype=gradient.dtype, device=gradient.device)
        return cast(Released, made)

    def __init__(self, gradient: Tensor, name: str, norm: Optional[Tensor]) -> None:
        self.parameter_name, self.norm_2 = name, norm

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"<released gradient of {self.parameter_name}>"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        each = args[0] if args and isinstance(args[0], (list, tuple)) else args[:1]
        owned = [t for t in each if isinstance(t, cls)]
        with_norms = bool(owned) and all(t.norm_2 is not None for t in owned)
        if name in ("view", "detach") and owned:  # DTensor.from_local, .data
            return cls(args[0], args[0].parameter_name, args[0].norm_2)
        is_norm = name in ("linalg_vector_norm", "_foreach_norm")
        if is_norm and with_norms and args[1:] in ((), (2,), (2, None)):
            norms = [t.norm_2 if isinstance(t, cls) else torch.linalg.vector_norm(t) for t in each]
            return norms if name == "_foreach_norm" else norms[0]
        if name in ("mul_", "_foreach_mul_") and with_norms:
            factor = torch.as_tensor(args[1])
            if bool((factor.eq(1) | factor.isnan()).all()):  # NaN: step() raises FloatingPointError
                return None if name == "_foreach_mul_" else args[0]
        found = next((t.parameter_name for t in (*owned, *args) if isinstance(t, cls)), "a parameter")
        if name in ("add", "add_"):
            raise second_gradient(found)
        raise use_of_released(name, found)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        """Replaces methods that would read memory, and end the process, without a dispatch."""
        raise use_of_released("share_memory_, save or dlpack", self.parameter_name)

    share_memory_ = __reduce_ex__ = __dlpack__ = _refuse


def use_of_released(operation: str, name: str) -> RuntimeError:
    return RuntimeError(f"{operation}: the gradient of {name} is released, and the parameter has stepped: "
                        "clip by clip= and max_norm= of release_gradients; norms=True keeps norms for logs")


def second_gradient(name: str) -> RuntimeError:
    return RuntimeError(f"{name}: a second gradient in one step: call optimizer.step() after each backward, "
                        "or give release_gradients accumulate=")


def released(gradient: Tensor, name: str, norms: bool) -> Tensor:
    """Returns what replaces the .grad of a parameter that has stepped; of a DTensor, one of its layout."""
    local = local_tensor(gradient)
    made = Released(local, name, torch.linalg.vector_norm(local) if norms else None)
    return dtensor_like(gradient, made) if is_dtensor(gradient) else made


class Release:
    """Steps an optimizer's parameters during backward until `remove`. Made by release_gradients."""

    def __init__(self, model: torch.nn.Module, optimizer: Meopt, clip: Optional[str],
                 max_norm: Optional[float], accumulate: int, norms: bool) -> None:
        self._optimizer, self._clip, self._max_norm, self._accumulate = optimizer, clip, max_norm, accumulate
        self._norms = norms
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
        self._failures: List[Exception] = []
        self._ddp_waits = False  # _release_buckets runs at the end of this backward

    def _begin_step(self, handle: Handle) -> None:
        optimizer = self._optimizer
        if not self._stepping:
            self._scale = 1.0
            if self._clip == "previous":
                norm = math.hypot(*(group.get(NORM, 0.0) for group in optimizer.param_groups))
                self._scale = L.library().clip_scale(norm, self._max_norm)
        group = optimizer.param_groups[handle.group_index]
        handle.set_group(optimizer._group_values(group))
        handle.begin_step(group[STEPS] + 1, optimizer._lr(group))
        self._stepping.append(handle)

    @torch.no_grad()
    def _step(self, p: Tensor, gradient: Tensor) -> None:
        optimizer = self._optimizer
        with self._lock:
            if p in self._stepped:
                raise second_gradient(optimizer._names[p])
            if not self._stepping:
                optimizer._update_handles(stepping=True)
            handle, i = optimizer._locations[p]
            if handle not in self._stepping:
                self._begin_step(handle)
            self._stepped.add(p)
        try:
            handle.step_param(i, gradient, self._scale)
        except FloatingPointError as failure:
            self._failures.append(failure)

    def _gradient_hook(self, p: Tensor) -> None:
        """The hook of a parameter whose .grad has all of one backward."""
        self._gradient_counts[p] = self._gradient_counts.get(p, 0) + 1
        if self._gradient_counts[p] < self._accumulate or p.grad is None:
            return
        gradient = p.grad
        p.grad = released(gradient, self._optimizer._names[p], self._norms)
        self._step(p, gradient)

    def _mark_used(self, p: Tensor) -> None:
        self._used.add(p)

    def _release_buckets(self) -> None:
        """Replaces the gradients that DDP writes to parameters at the end of backward."""
        self._ddp_waits = False
        for p in self._stepped & self._ddp_params:
            if p.grad is not None:
                p.grad = released(p.grad, self._optimizer._names[p], self._norms)

    def _reduce_hook(self) -> Any:
        """Returns a communication hook of DDP that averages a bucket over all ranks, then steps it. Like DDP,
        it leaves out a parameter without a gradient on any rank."""
        from torch.distributed import GradBucket, all_reduce
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def hook(group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            parameters = bucket.parameters()
            work = None
            if not self._ddp_waits:  # DDP queues a callback of its own after this one
                engine = torch.autograd.Variable._execution_engine
                self._ddp_waits = True
                engine.queue_callback(lambda: engine.queue_callback(self._release_buckets))
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
        groups, opened, failures = self._optimizer.param_groups, self._stepping, self._failures
        norms: Dict[int, List[float]] = {}
        self._reset_step()
        for handle in opened:
            found = norms.setdefault(handle.group_index, [])
            try:
                found.append(handle.end_step())
            except FloatingPointError as error:
                failures.append(error)
        for handle in self._optimizer._handles() if opened else ():
            handle.record_versions()
        for at in norms:
            groups[at][STEPS] += 1
        raise_failures(failures)
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

    def discard(self) -> None:
        """Frees released gradients, and ends a step that backward left unfinished: what has stepped stays so.
        optimizer.zero_grad() calls it. FloatingPointError: a gradient of that step was not finite."""
        for p in self._stepped:
            p.grad = None
        self._end_step()

    def remove(self) -> None:
        """Ends the step as zero_grad does, and removes the hooks; optimizer.step() steps again as usual."""
        for hook in self._hooks:
            hook.remove()
        self._ddp_params.clear()
        self._optimizer._release = None
        self.discard()


def release_gradients(model: torch.nn.Module, optimizer: Meopt, *, clip: Optional[str] = None,
                      max_norm: Optional[float] = None, accumulate: int = 1,
                      norms: bool = False) -> Release:
    """Lets the optimizer's parameters step during backward, so that their gradients never exist at the same
    time.

    A training loop calls optimizer.step() as before, which ends the step, and steps what backward did not
    reach; it does not clip, see below. The bits are those of a step without release. A released gradient has
    no values: each use of them raises RuntimeError (clip_grad_norm_, torch.amp.GradScaler, a second
    backward). optimizer.zero_grad() ends a step that an exception has interrupted.

    clip: None; "previous": each gradient is clipped by the global norm of the previous step; "exact":
    gradients stay until optimizer.step() has their global norm. max_norm: that of
    torch.nn.utils.clip_grad_norm_. accumulate: backward passes per step; .grad accumulates until the last of
    them. model: a DistributedDataParallel's gradients step when their bucket is reduced; use its no_sync()
    for all backward passes of a step but the last. Its buckets stay allocated. fully_shard (FSDP2):
    gradients step when they are reduced; with set_requires_gradient_sync(False) for all backward
    passes of a step but the last, accumulate is 1. norms: clip_grad_norm_ on released gradients returns
    their norm, which takes one more pass over them, and raises where it would clip: the Trainer of
    transformers logs it at every step.

    ValueError: the options do not fit, or LAMB has max_grad_norm, which requires clip="exact".
    RuntimeError: a parameter has two gradients in one step (in backward), or a released gradient is used.
    """
    if clip not in (None, "exact", "previous") or (clip is None) != (max_norm is None):
        raise ValueError(f"clip={clip!r}, max_norm={max_norm!r}, expected 'exact' or 'previous' and a norm")
    if accumulate < 1:
        raise ValueError(f"accumulate is {accumulate}, expected 1 or more")
    if clip != "exact" and optimizer.defaults.get("max_grad_norm"):
        raise ValueError("max_grad_norm requires all gradients: use clip='exact' or max_grad_norm=None")
    if optimizer._release is not None:
        raise ValueError("the optimizer releases gradients already")
    optimizer._release = Release(model, optimizer, clip, max_norm, accumulate, norms)
    return optimizer._release
