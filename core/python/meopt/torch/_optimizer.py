"""The base class of MEOpt's optimizers: parameter groups over handles, state_dict, copies."""
import ctypes as C
import itertools
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _library as L
from ._handle import DTYPES, Device, Handle
from ._shards import is_dtensor, shard_of

if TYPE_CHECKING:
    from ._release import Release

# Options that the library takes when a handle is made, and the names under which groups have them.
CREATION_OPTIONS = ("nesterov", "trust_clip", "always_adapt", "bias_correction", "grad_averaging",
                    "decoupled_decay", "warmup_steps", "r", "weight_lr_power")
# Options of torch and timm that must be false. The first choose an implementation: files may have them.
IMPLEMENTATION = ("foreach", "capturable", "differentiable", "fused")
REFUSED = (*IMPLEMENTATION, "amsgrad", "decoupled_weight_decay", "caution", "corrected_weight_decay")
# Options of groups that choose formats: a loaded state does not change them.
FORMATS = {"weights": "weight_format", "first_moment": "state_format", "second_moment": "state_format"}
FORMAT_OPTIONS = ("preset", *FORMATS)
# Numbers from 0 to their limit.
RANGES = {"lr": math.inf, "eps": 1.0, "weight_decay": 1e6, "momentum": 1.0, "warmup_steps": math.inf,
          "r": 10.0, "weight_lr_power": 10.0}
STEPS = "steps"  # of a group: steps taken, which key the random numbers


def _arguments(given: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the arguments of a constructor from its locals()."""
    return {name: value for name, value in given.items() if name not in ("self", "__class__")}


class GroupHandles(NamedTuple):
    """The handles of a parameter group, and what they were made from."""

    options: Tuple[Any, ...]
    ids: List[int]
    handles: List[Handle]


def raise_failures(failures: Sequence[Exception]) -> None:
    """Raises FloatingPointError with the texts of all failures, if there are any."""
    if failures:
        raise FloatingPointError("; ".join(dict.fromkeys(map(str, failures))))


class Unconverted:
    """A tensor that Optimizer.load_state_dict does not copy, cast or move."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Meopt(torch.optim.Optimizer):
    """An optimizer of libmeopt with the interface of torch.optim.Optimizer.

    preset: "quality", "balanced", "minimal", "fp32", "amp" or "pure_bf16"; weights, first_moment,
    second_moment: formats that replace those of the preset. All names are those of meopt-optimizers(7).
    Groups may have their own, such as {"params": embeddings, "preset": "fp32"}. seed: of stochastic rounding;
    its other keys are the names of the parameters (those of named_parameters() if given, else p0, p1, ...)
    and the steps taken.

    Parameters are dense fp32, bf16 or fp16 tensors on the CPU or a card. bf16: the parameter is the weight
    rounded to bf16, and the library holds the residual bits. fp32: weights are fp32, moments have the
    preset's formats. fp16: the library holds fp32 weights. Small and one-dimensional parameters have the
    precision of fp32. Parameters without elements and without gradients are skipped. DTensors (FSDP2) may be
    sharded by rows: every rank then takes part in each step and in fp32_state_dict.

    Raises ValueError (an option or parameter that is not supported), FloatingPointError (step: a gradient
    with a NaN or an infinity; weights never receive it: groups of 64 elements with one keep their values,
    all others have moved), MemoryError or torch.OutOfMemoryError, RuntimeError (the card failed).

    Values written to parameters between steps (load_state_dict, averaging, clamp_) are taken as they are.
    """

    _rule = ""
    _moments: Tuple[str, ...] = ("exp_avg", "exp_avg_sq")  # torch's names
    _factors: Tuple[str, ...] = ()  # of Adafactor's row and column means
    _factor_dims = False  # they have a dimension of 1 in place of the one that was averaged

    def __init__(self, params: Any, seed: int, **defaults: Any) -> None:
        self._seed = seed
        self._reset()
        self._check_group(defaults)
        super().__init__(params, defaults)

    def _reset(self) -> None:
        self._group_handles: List[GroupHandles] = []
        self._unplaced: Dict[Tensor, Dict[str, Any]] = {}  # states for which no handles could be made
        self._locations: Dict[Tensor, Tuple[Handle, int]] = {}
        self._names: Dict[Tensor, str] = {}
        self._devices: Dict[torch.device, Device] = {}
        self._release: Optional["Release"] = None

    # ---- Options

    def _check_group(self, group: Dict[str, Any]) -> None:
        for name in REFUSED:
            if group.get(name) and not (name == "decoupled_weight_decay" and self._rule == "apadamw"):
                raise ValueError(f"{name}={group[name]!r} is not supported")
        for name, limit in RANGES.items():
            if name in group and not 0 <= float(group[name]) <= limit:
                raise ValueError(f"{name} is {group[name]}, expected 0 to {limit}")
        for i, beta in enumerate(group.get("betas", ())):
            if not 0 <= float(beta) < 1:
                raise ValueError(f"betas[{i}] is {beta}, expected at least 0 and below 1")
        if "dampening" in group and group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("nesterov requires a momentum and zero dampening")

    @staticmethod
    def _lr(group: Dict[str, Any]) -> float:
        return float(group["lr"])

    @staticmethod
    def _group_values(group: Dict[str, Any]) -> Tuple[Any, ...]:
        """Returns the options of a group in the order of Handle.set_group."""
        beta1, beta2 = group.get("betas", (0.9, 0.99))
        others = [float(group.get(name, 0)) for name in ("eps", "momentum", "dampening")]
        maximize = int(bool(group.get("maximize")))
        return (float(group["weight_decay"]), float(beta1), float(beta2), *others, maximize)

    def _creation_options(self, group: Dict[str, Any]) -> Tuple[Any, ...]:
        """Returns the options of a group with which its handles were made and checked."""
        names = (*CREATION_OPTIONS, *FORMAT_OPTIONS, *REFUSED)
        return (group.get("momentum") == 0, *(group.get(name) for name in names))

    def _own_rule(self, group: Dict[str, Any]) -> Optional[Tuple[int, Sequence[int]]]:
        """Returns the rule of a group's tensors and the rows of their matrices; None: the class's rule."""
        return None

    def _moment_names(self, handle: Handle) -> Tuple[str, ...]:
        return self._moments

    def _factors_of(self, group: Dict[str, Any]) -> Tuple[str, ...]:
        return self._factors

    def _options(self, group: Dict[str, Any], bf16: bool) -> L.Options:
        lib, options = L.library(), L.Options()
        rule = lib.number("rule", self._rule)
        lib.options_init_sized(C.sizeof(L.Tensor), C.byref(options), C.sizeof(options), rule)
        lib.options_preset(C.byref(options), group["preset"].encode())
        for field, kind in FORMATS.items():
            if group[field] is not None:
                setattr(options, field, lib.number(kind, group[field]))
        if not bf16:
            options.weights = L.WEIGHTS_F32
        for name in CREATION_OPTIONS:
            default = getattr(options, name)
            setattr(options, name, type(default)(group.get(name, default)))
        for name, value in zip(L.GROUP_NUMBERS, self._group_values(group)):
            setattr(options, name, value)
        options.seed, options.threads = self._seed, torch.get_num_threads()
        return options

    # ---- Handles

    def _check_param(self, name: str, p: Tensor) -> None:
        if p.layout is not torch.strided:
            raise ValueError(f"parameter {name} is {p.layout}, expected a dense tensor")
        if p.dtype not in DTYPES:
            raise ValueError(f"parameter {name} is {p.dtype}, expected float32, bfloat16 or float16")

    def _card(self, device: torch.device) -> Optional[Device]:
        if device.type != "cpu" and device not in self._devices:
            self._devices[device] = Device(device)
        return self._devices.get(device)

    def _create_handles(self, index: int) -> GroupHandles:
        group = self.param_groups[index]
        self._check_group(group)
        group.setdefault(STEPS, 0)
        by_handle: Dict[Tuple[Any, ...], List[Tensor]] = {}
        given = group.get("param_names") or [None] * len(group["params"])
        for p, name in dict(zip(group["params"], given)).items():  # torch warns of duplicates
            name = self._names.setdefault(p, name or f"p{len(self._names)}")
            self._check_param(name, p)
            if p.numel():
                ranks = (shard_of(name, p).group,) if is_dtensor(p) else ()
                by_handle.setdefault((p.device, p.dtype == torch.bfloat16, *ranks), []).append(p)
        handles = []
        for (device, bf16, *_), params in by_handle.items():
            names = [self._names[p] for p in params]
            handles.append(Handle(self._options(group, bf16), params, names, self._card(device), index,
                                  self._own_rule(group)))
        for handle in handles:
            handle.factor_names, handle.factor_dims = self._factors_of(group), self._factor_dims
            for i, p in enumerate(handle.params):
                self._locations[p] = handle, i
                self.state[p] = {"step": handle.steps[i]}
        return GroupHandles(self._creation_options(group), list(map(id, group["params"])), handles)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group, as in torch. Raises what the constructor raises; then nothing was added."""
        super().add_param_group(param_group)
        try:
            self._group_handles.append(self._create_handles(len(self.param_groups) - 1))
        except BaseException:
            self.param_groups.pop()
            raise

    def _recreate_handles(self, saved: Dict[Tensor, Dict[str, Any]]) -> None:
        """Replaces all handles. saved: states of parameters; a parameter without one starts anew. They are
        kept where an option of a group is refused."""
        self._group_handles, self._locations, self._unplaced = [], {}, saved
        self.state.clear()
        self._group_handles = [self._create_handles(i) for i in range(len(self.param_groups))]
        self._unplaced = {}
        for p, (handle, i) in self._locations.items():
            handle.load(i, saved.get(p, {}), self._moment_names(handle))

    def _finish_modes(self) -> None:
        """Called before handles are replaced: their states have all that was written to parameters."""

    def _check_weights(self) -> None:
        """Raises RuntimeError if the parameters are not the model that training makes."""

    def _change_moments(self, saved: Dict[Tensor, Dict[str, Any]], p: Tensor) -> None:
        """Removes from the saved state what a rule that gains or loses its first moment cannot load."""
        saved.get(p, {}).pop("meopt", None)

    def _handles(self) -> List[Handle]:
        return [handle for entry in self._group_handles for handle in entry.handles]

    def _sync_params(self, stepping: bool) -> bool:
        return all([handle.sync_params(stepping) for handle in self._handles()])

    def _update_handles(self, stepping: bool = False) -> None:
        """Reports to the library what changed since the last step: values, memory, parameters, options."""
        same = len(self._group_handles) == len(self.param_groups) and all(
            entry.options == self._creation_options(group) and entry.ids == list(map(id, group["params"]))
            for entry, group in zip(self._group_handles, self.param_groups))
        if self._sync_params(stepping) and same:
            return
        self._finish_modes()
        saved = self._unplaced or {p: handle.save(i) for p, (handle, i) in self._locations.items()}
        for entry, group in zip(self._group_handles, self.param_groups):
            if entry.options[0] != self._creation_options(group)[0]:  # momentum appears or ends
                for p in group["params"]:
                    self._change_moments(saved, p)
        self._recreate_handles(saved)
        self._sync_params(stepping)

    # ---- Steps

    def _scale(self, max_norm: Optional[float]) -> float:
        """Returns the factor of the collected gradients: LAMB's division by their norm, then clipping."""
        limit = self.defaults.get("max_grad_norm")
        if not limit and max_norm is None:
            return 1.0
        norm = math.hypot(*(handle.norm() for handle in self._handles()))
        if not math.isfinite(norm):
            return 1.0  # the step refuses what is not finite
        scale = limit / norm if limit and norm > limit else 1.0
        return scale if max_norm is None else scale * L.library().clip_scale(norm * scale, max_norm)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Updates all parameters that have a gradient of fp32, bf16 or fp16 and the parameter's shape.

        closure: computes and returns the loss, which step returns. FloatingPointError: see the class.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._release is not None:
            self._release.finish()
        else:
            self._step(None)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Frees the gradients, as in torch; ends a step of release_gradients that was interrupted."""
        try:
            if self._release is not None:
                self._release.discard()
        finally:
            super().zero_grad(set_to_none)

    def _step(self, max_norm: Optional[float]) -> None:
        """Steps all parameters with a gradient, clipped to max_norm."""
        self._update_handles(stepping=True)
        gradients = [handle.collect_gradients() for handle in self._handles()]
        scale = self._scale(max_norm)
        failures: List[Exception] = []
        for entry, group in zip(self._group_handles, self.param_groups):
            group[STEPS] += any(handle.with_gradient for handle in entry.handles)
            for handle in entry.handles:
                handle.set_group(self._group_values(group))
                try:
                    handle.step(group[STEPS], self._lr(group), scale)
                except FloatingPointError as error:
                    failures.append(error)
        del gradients
        for handle in self._handles():
            handle.record_versions()
        raise_failures(failures)

    # ---- State

    def state_dict(self, *, portable: bool = False) -> Dict[str, Any]:  # type: ignore[override]
        """Returns the state as torch does, all tensors in this machine's memory.

        Per parameter: "step" (0-d), "meopt" (uint8: the record of its moments) and, where its format has any,
        "residual" (uint8: residual bits of the weight). A reload is bit-exact, before or after the model's.
        portable: torch's keys instead, with fp32 moments, which torch's own optimizers load.

        Of a DTensor: torch's keys as DTensors of its layout, on its device. Without portable, "residual_bits"
        (uint8, 2 bytes per element) or, of an fp16 parameter, "fp32_weight" as well, and codes of moments
        ("codes4_m", "codes4_v", "codes4_scales", uint8) in place of fp32 where rows are multiples of 64
        elements. They load on any number of ranks, into the same formats.
        """
        live = self.state

        def save(handle: Handle, i: int) -> Dict[str, Tensor]:
            names = self._moment_names(handle)
            if portable:
                return handle.save_portable(i, names)
            return handle.save_sharded(i, names) if handle.sharded else handle.save(i)

        def fill(_: torch.optim.Optimizer) -> None:
            self._update_handles()
            self.state = defaultdict(dict, {p: save(*where) for p, where in self._locations.items()})

        hook = self.register_state_dict_pre_hook(fill)
        try:
            saved = super().state_dict()
        finally:
            hook.remove()
            self.state = live
        for group in saved["param_groups"] if portable else ():
            for name in (STEPS, *FORMAT_OPTIONS):
                group.pop(name, None)
        return saved

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Loads what state_dict returned, with any preset, or what torch's optimizer of this rule returned.

        ValueError: groups of different sizes, a damaged record, or an option that is not supported (amsgrad).
        After a damaged record, load another state: some parameters have theirs from the damaged one.
        """

        def wrap(_: torch.optim.Optimizer, given: Dict[str, Any]) -> Dict[str, Any]:
            for group in given["param_groups"]:
                self._check_group({k: v for k, v in group.items() if k not in IMPLEMENTATION})
            return {**given, "state": {key: {name: Unconverted(value) if isinstance(value, Tensor) else value
                                             for name, value in values.items()}
                                       for key, values in given["state"].items()}}

        hook = self.register_load_state_dict_pre_hook(wrap)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()

    def __getstate__(self) -> Dict[str, Any]:
        self._update_handles()
        state = {p: handle.save(i) for p, (handle, i) in self._locations.items()}
        return {**super().__getstate__(), "state": state, "_seed": self._seed, "_names": self._names}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        saved = {p: {name: v.tensor if isinstance(v, Unconverted) else v for name, v in values.items()}
                 for p, values in state["state"].items()}
        own: List[Dict[str, Any]] = []
        defaults = dict(state["defaults"] if "defaults" in state else self.defaults)
        if "defaults" in state:  # a copy; else load_state_dict
            self._reset()
        else:
            own = [{name: group[name] for name in FORMAT_OPTIONS} for group in self.param_groups]
            self._sync_params(stepping=False)
            for p, (handle, i) in self._locations.items():
                if not {"residual", "residual_bits", "fp32_weight"}.intersection(saved.setdefault(p, {})):
                    saved[p].update(handle.save_residual(i))
        super().__setstate__({**state, "state": defaultdict(dict), "defaults": dict(defaults)})
        self.defaults = defaults  # torch adds differentiable, which Lion and LAMB do not have
        group: Dict[str, Any]
        for group, formats in zip(self.param_groups, own or itertools.repeat({})):
            for name, value in self.defaults.items():
                group[name] = value if name in IMPLEMENTATION else group.get(name, value)
            group.update(formats)
            states = [saved.setdefault(p, {}) for p in group["params"]]
            if "step" in group:  # timm's LAMB
                for each in states:
                    each.setdefault("step", group["step"])
            group.setdefault(STEPS, max([int(each.get("step", 0)) for each in states], default=0))
        self._recreate_handles(saved)

    def held_bytes(self) -> Dict[str, float]:
        """Returns bytes by class: "weights" (parameters, fp32 weights of fp16 parameters), "shadows" (of
        strided parameters), "residual" (bits of weights), "moments", of Muon "workspace", "point" (weights of
        training in eval mode), "total", and "per_param"."""
        held = dict.fromkeys(("weights", "shadows", "residual", "moments", "point"), 0)
        count = 0
        for handle in self._handles():
            found = handle.held()
            held["weights"] += found.weights + found.copy
            held["shadows"] += sum(s.numel() * s.element_size() for s in handle.shadows.values())
            held["residual"] += found.correction
            held["moments"] += found.moments
            if found.workspace:
                held["workspace"] = held.get("workspace", 0) + found.workspace
            held["point"] += found.point
            count += found.parameters
        total = sum(held.values())
        return {**held, "total": total, "per_param": total / max(count, 1)}


def fp32_state_dict(model: torch.nn.Module, optimizer: Meopt) -> Dict[str, Tensor]:
    """Returns model.state_dict() with the optimizer's parameters as fp32 with their residual bits, in this
    machine's memory; all other entries are the model's own. RuntimeError: AdamWScheduleFree in train mode."""
    optimizer._check_weights()
    optimizer._update_handles()
    saved = model.state_dict()
    for name, p in model.named_parameters(remove_duplicate=False):
        if p in optimizer._locations:
            handle, i = optimizer._locations[p]
            saved[name] = handle.export(i)
    return saved


@torch.no_grad()
def load_fp32_state_dict(model: torch.nn.Module, optimizer: Meopt, state_dict: Dict[str, Tensor]) -> None:
    """Loads what fp32_state_dict returned into the model and the residual bits of the optimizer.
    RuntimeError: keys or shapes differ (as model.load_state_dict); AdamWScheduleFree in train mode."""
    optimizer._check_weights()
    model.load_state_dict(state_dict)
    optimizer._update_handles()
    for name, p in model.named_parameters():
        if p in optimizer._locations:
            handle, i = optimizer._locations[p]
            handle.import_values(i, state_dict[name])
