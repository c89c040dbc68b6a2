"""One C optimizer (struct meopt) over torch parameters: memory from torch's allocator, steps, records."""
import ctypes as C
import struct
import weakref
import zlib
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _library as L
from ._shards import RankSum, dtensor_like, is_dtensor, local_tensor, shard_of

DTYPES = {torch.float32: L.DTYPE_F32, torch.bfloat16: L.DTYPE_BF16, torch.float16: L.DTYPE_F16}
FLAGS = {torch.float32: 0, torch.bfloat16: L.FLAG_KEEP_BF16, torch.float16: L.FLAG_COPY_F16}
RESIDUAL_HEAD = struct.Struct("<iI")  # of a saved "residual": weight format, CRC of the weights
CODES = ("codes4_m", "codes4_v", "codes4_scales")  # states by enum meopt_view; 4: the version of their codes
UNUSED_BITS = {L.WEIGHTS_20: 12, L.WEIGHTS_24: 8, L.WEIGHTS_32: 0}  # of the 16 bits below a bf16 half
ONE = 0x3F800000  # bits of 1.0
NO_ELEMENTS = C.create_string_buffer(64)  # address of memory without elements


def host_bytes(t: Tensor) -> Tensor:
    """Returns the bytes of a tensor as a contiguous uint8 tensor in this machine's memory; may share
    memory."""
    return t.detach().contiguous().reshape(-1).view(torch.uint8).cpu()


def properties_of(p: Tensor) -> Tuple[Any, ...]:
    """Returns the properties that cannot change during the life of a handle."""
    return p.device, p.dtype, p.shape, p.is_contiguous()


def version_of(p: Tensor) -> int:
    return p._version + local_tensor(p)._version if is_dtensor(p) else p._version


def crc_of(t: Tensor) -> int:
    data = host_bytes(t)
    return zlib.crc32((C.c_char * data.numel()).from_address(data.data_ptr())) if data.numel() else 0


class Device:
    """A card opened for the library, in torch's context. Every handle on it keeps it open."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise ValueError(f"parameters on {device}, expected cpu or cuda (also of ROCm and DTK)")
        self.device, self.pointer, self.stream = device, C.c_void_p(), self._stream(device)
        kind = L.DEVICE_CUDA if torch.version.hip is None else L.DEVICE_HIP
        L.library().device_open(C.byref(self.pointer), kind, device.index, None, self.stream)
        weakref.finalize(self, L.library().device_close, self.pointer)

    @staticmethod
    def _stream(device: torch.device) -> int:
        return torch.cuda.current_stream(device).cuda_stream or L.STREAM_DEFAULT

    def use_current_stream(self) -> None:
        """Issues later work to the calling thread's current stream."""
        stream = self._stream(self.device)
        if stream != self.stream:
            L.library().device_stream(self.pointer, stream)
            self.stream = stream


class Memory:
    """The library's memory as torch tensors, so that torch's allocator counts it (struct
    meopt_options.allocate)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.blocks: Dict[int, Tensor] = {}
        self.residual: Dict[bytes, Tensor] = {}  # residual bits, or fp32 weights of fp16 parameters, by name
        self.failure: Optional[BaseException] = None
        self.allocate, self.release = L.ALLOCATE(self._allocate), L.RELEASE(self._release)

    def _allocate(self, _context: Any, kind: int, size: int, name: bytes) -> Optional[int]:
        try:  # nothing can be raised through the library
            block = torch.empty(size + 63, dtype=torch.uint8, device=self.device)
        except BaseException as failure:
            self.failure = failure
            return None
        at = -block.data_ptr() % 64
        block = block[at : at + size]
        self.blocks[block.data_ptr()] = block
        if kind in (L.MEMORY_CORRECTION, L.MEMORY_WEIGHTS):
            self.residual[name] = block
        return block.data_ptr()

    def _release(self, _context: Any, _kind: int, pointer: int, _size: int) -> None:
        self.blocks.pop(pointer, None)


def _destroy(pointer: C.c_void_p, memory: Memory, _device: Optional[Device], _sum: Optional[RankSum]) -> None:
    L.library().destroy(pointer)
    memory.residual.clear()


class Handle:
    """The parameters of one group on one device with one weight format; all are DTensors or none is.

    params: not empty, fp32, bf16 or fp16. The library works in their memory; one that is not contiguous has a
    contiguous `shadow`, which is copied to it after each step. The library's tensor of a DTensor is this
    rank's shard, also one without elements; all have their other shards in the same process group. options:
    all but memory, device and reduce are set. own_rule: number of the tensors' rule, and rows of the matrices
    in each (Muon). Raises what L.Library and shard_of raise.
    """

    def __init__(self, options: L.Options, params: Sequence[Tensor], names: Sequence[str],
                 device: Optional[Device], group_index: int,
                 own_rule: Optional[Tuple[int, Sequence[int]]] = None) -> None:
        lib, n = L.library(), len(params)
        self.lib, self.params, self.names, self.device = lib, list(params), list(names), device
        self.group_index = group_index
        self.has_points = options.rule == lib.number("rule", "schedule_free")
        self.evaluating = False
        self.sharded = is_dtensor(params[0])
        self.shards = [shard_of(name, p) for name, p in zip(names, params)] if self.sharded else []
        self.memory = Memory(params[0].device)
        options.allocate, options.release = self.memory.allocate, self.memory.release
        options.device = device.pointer if device else None
        self.rank_sum: Optional[RankSum] = None
        if self.sharded and self.shards[0].group is not None:
            self.rank_sum = RankSum(self.shards[0].group, params[0].device)
            options.reduce = self.rank_sum.reduce
            options.rank, options.ranks = self.rank_sum.rank, self.rank_sum.ranks
        table = (L.Tensor * n)()
        self.shadows: Dict[int, Tensor] = {}
        locals_ = [local_tensor(p) for p in params]
        for i, (row, p, t) in enumerate(zip(table, params, locals_)):
            row.name, row.ndim, row.shape[:] = self._name(i), *self._shape(p)
            row.flags = FLAGS[p.dtype]
            if own_rule is not None:
                row.flags |= L.FLAG_OWN_RULE
                row.rule, row.rows[: len(own_rule[1])] = own_rule
            if self.rank_sum:
                row.flags |= L.FLAG_PART
                row.first = self.shards[i].row * (p.numel() // p.shape[0])
                row.count = t.numel()
            if not t.is_contiguous():
                self.shadows[i] = t.detach().clone(memory_format=torch.contiguous_format)
            row.weights, row.copy = self._weight_pointers(i)
        self.opt = C.c_void_p()
        try:
            lib.create(C.byref(self.opt), C.byref(options), table, n)
        except MemoryError as error:
            raise self.memory.failure or error
        weakref.finalize(self, _destroy, self.opt, self.memory, device, self.rank_sum)
        infos = [self.info(i) for i in range(n)]
        self.formats = [info.weights for info in infos]
        self.moment_formats = [(info.first_moment, info.second_moment) for info in infos]
        self.moments = [(m != L.NO_FORMAT, v != L.NO_FORMAT) for m, v in self.moment_formats]
        self.steps = torch.zeros(n, dtype=torch.float32, device="cpu")  # updates of each parameter
        self.properties = [properties_of(t) for t in locals_]
        self.pointers = [t.data_ptr() for t in locals_]
        self.versions = [version_of(p) for p in params]
        # CRC of the weights that loaded residual bits belong to; None: those of the next step
        self.residual_crc: Dict[int, Optional[int]] = {}
        for i, p in enumerate(params):
            if p.dtype == torch.float16:
                lib.sync(self.opt, i)
        self.stats = L.Stats()  # of the last step
        self.gradients = (L.Gradient * n)()
        self.rows = list(self.gradients)
        self.with_gradient: List[int] = []  # parameters with collected gradients
        self.group_options: Tuple[Any, ...] = ()
        self.factor_names: Sequence[str] = ()  # of Adafactor's row and column means in portable states
        self.factor_dims = False  # these have a dimension of 1 in place of the one that was averaged

    def _name(self, i: int) -> bytes:
        return self.names[i].encode()

    def _weight_pointers(self, i: int) -> Tuple[Optional[int], Optional[int]]:
        """Returns the parameter's memory as the library's weights and copy."""
        p = self.shadows[i] if i in self.shadows else local_tensor(self.params[i])
        pointer = p.data_ptr() or C.addressof(NO_ELEMENTS)
        return (None, pointer) if p.dtype == torch.float16 else (pointer, None)

    @staticmethod
    def _shape(p: Tensor) -> Tuple[int, List[int]]:
        shape = list(p.shape)
        if len(shape) > 8:  # the library's limit; only the product and "is it a matrix" matter to it
            shape = [p.shape[0], p.numel() // max(p.shape[0], 1)]
        return len(shape), shape + [0] * (8 - len(shape))

    def info(self, i: int) -> L.Info:
        info = L.Info()
        self.lib.info_sized(C.sizeof(info), self.opt, i, C.byref(info))
        return info

    def set_group(self, values: Tuple[Any, ...]) -> None:
        """Sets weight_decay, beta1, beta2, eps, momentum, dampening and maximize of all tensors, if they
        changed."""
        if values == self.group_options:
            return
        group = L.Group(C.sizeof(L.Group), 1.0, *values)
        for i in range(len(self.params)):
            self.lib.set_group(self.opt, i, C.byref(group))
        self.group_options = values

    # ---- Steps

    def _sync_written(self, i: int, stepping: bool) -> None:
        """Accepts values that were written to a parameter. Residual bits stay if they were loaded for these
        values; until a step, the values may still come. fp32 weights stay where they round to fp16 values."""
        if self.evaluating:  # train() finds values that were written, and computes y of them
            self.versions[i] = version_of(self.params[i])
            return
        p, waits = local_tensor(self.params[i]), i in self.residual_crc and not stepping
        crc = self.residual_crc.get(i, -1)
        bits = self.memory.residual.get(self._name(i))
        if bits is not None and p.dtype == torch.float16:
            weights = bits.view(torch.float32)[: p.numel()].view(p.shape)
            if not waits:
                weights.copy_(torch.where(weights.half() == p, weights, p.float()))
        elif bits is not None and crc is not None and crc != crc_of(p):
            if waits:
                return
            self.lib.sync(self.opt, i)
        self.versions[i] = version_of(self.params[i])

    @torch.no_grad()
    def sync_params(self, stepping: bool) -> bool:
        """Reports moved memory and written values of all parameters to the library. Returns whether it could:
        not after a change of dtype, device, shape or layout, which need a new handle."""
        if self.device:
            self.device.use_current_stream()
        fits = True
        for i, p in enumerate(map(local_tensor, self.params) if self.sharded else self.params):
            version = version_of(self.params[i]) if self.sharded else p._version
            if properties_of(p) != self.properties[i]:  # memory may be the same: p.data = p.data[:n]
                fits = False
                continue
            if p.data_ptr() != self.pointers[i]:
                if i not in self.shadows:
                    self.lib.rebind(self.opt, i, *self._weight_pointers(i))
                self.pointers[i] = p.data_ptr()
            if i in self.shadows:
                self.shadows[i].copy_(p)
            if version != self.versions[i] or p.dtype == torch.float16:  # p.data.copy_ changes no version
                self._sync_written(i, stepping)
        return fits

    def _contiguous_gradient(self, i: int, g: Tensor) -> Tensor:
        if g.layout is not torch.strided:
            raise RuntimeError(f"{self.names[i]}: sparse gradients are not supported")
        return g.to(g.dtype if g.dtype in DTYPES else torch.float32).contiguous()

    def _check_shape(self, i: int, g: Tensor) -> None:
        if g.shape != self.properties[i][2]:
            raise RuntimeError(f"{self.names[i]}: the gradient has shape {tuple(g.shape)}, the parameter "
                               f"{tuple(self.properties[i][2])}")

    def collect_gradients(self) -> List[Tensor]:
        """Points self.gradients at the parameters' .grad. Returns the tensors that own them."""
        self.with_gradient, kept = [], []
        for i, (row, p) in enumerate(zip(self.rows, self.params)):
            g = p.grad
            if g is None:
                row.data = None
                continue
            if self.sharded:
                g = local_tensor(g)
            if g.layout is not torch.strided or g.dtype not in DTYPES or not g.is_contiguous():
                g = self._contiguous_gradient(i, g)
            self._check_shape(i, g)
            row.data, row.dtype = g.data_ptr() or C.addressof(NO_ELEMENTS), DTYPES[g.dtype]
            kept.append(g)
            self.with_gradient.append(i)
        return kept

    def _call_reducing(self, call: Any, *values: Any) -> None:
        """Calls a function of the library that adds over ranks, and raises what failed there."""
        try:
            call(*values)
        except OSError as error:
            raise (self.rank_sum and self.rank_sum.failure) or error

    def norm(self) -> float:
        """Returns the global norm of the collected gradients; infinite if one is not finite."""
        norm, finite = C.c_double(), C.c_int()
        self._call_reducing(self.lib.gradient_norm, self.opt, self.gradients, C.byref(norm), C.byref(finite))
        return norm.value if finite.value else float("inf")

    def step(self, number: int, lr: float, scale: float) -> None:
        """Steps the parameters with collected gradients. FloatingPointError: one of them is not finite."""
        if not self.with_gradient:
            return
        failure = None
        try:
            self._call_reducing(self.lib.step_sized, C.sizeof(L.Stats), self.opt, number, lr, scale,
                                self.gradients, C.byref(self.stats))
        except FloatingPointError as error:
            failure = error
        self.steps[self.with_gradient if len(self.with_gradient) < len(self.params) else slice(None)] += 1
        for i in self.with_gradient:
            self._mark_written(i)
        if failure is not None:
            names = ", ".join(self.names[i] for i in self.with_gradient if not self._finite(i))
            raise FloatingPointError(f"gradient of {names or 'another rank'}: {failure}") from None

    def _finite(self, i: int) -> bool:
        gradient = self.params[i].grad
        return gradient is None or bool(torch.isfinite(local_tensor(gradient)).all())

    def _mark_written(self, i: int) -> None:
        """Lets torch know that the library has written a parameter, or copies its shadow to it."""
        p = local_tensor(self.params[i]) if self.sharded else self.params[i]
        if i in self.shadows:
            p.copy_(self.shadows[i])
        else:
            torch.autograd.graph.increment_version(p)

    def begin_step(self, number: int, lr: float) -> None:
        """Begins a step whose gradients come one by one."""
        self.lib.step_begin(self.opt, number, lr, 0)
        self.with_gradient = []

    def step_param(self, i: int, gradient: Tensor, scale: float) -> None:
        """Steps one parameter; the gradient may be freed. FloatingPointError: not finite (on a card: end)."""
        if self.device:
            self.device.use_current_stream()
        if self.sharded:
            gradient = local_tensor(gradient)
            if gradient.is_cuda:  # allocated on a stream of FSDP2, which may differ from that of its hooks
                gradient.record_stream(torch.cuda.current_stream(gradient.device))
        gradient = self._contiguous_gradient(i, gradient)
        self._check_shape(i, gradient)
        p = local_tensor(self.params[i]) if self.sharded else self.params[i]
        if p.data_ptr() != self.pointers[i] or properties_of(p) != self.properties[i]:
            raise RuntimeError(f"{self.names[i]}: the parameter's memory changed during the step")
        try:
            self._call_reducing(self.lib.step_tensor, self.opt, i, _pointer(gradient), DTYPES[gradient.dtype],
                                scale)
        finally:
            self.with_gradient.append(i)
            self.steps[i] += 1
            self._mark_written(i)

    def end_step(self) -> float:
        """Ends such a step. Returns the norm of its gradients. FloatingPointError: one was not finite."""
        self._call_reducing(self.lib.step_end_sized, C.sizeof(L.Stats), self.opt, C.byref(self.stats))
        return self.stats.grad_norm

    def record_versions(self) -> None:
        """Records that the values now in the parameters are those of the step."""
        self.versions = [version_of(p) if self.sharded else p._version for p in self.params]
        self.residual_crc.clear()

    # ---- Weights of training and of evaluation

    def set_point(self, evaluate: bool) -> None:
        """Sets the parameters to the weights of evaluation, or back."""
        if evaluate == self.evaluating:
            return
        if self.device:
            self.device.use_current_stream()
        self.lib.set_point(self.opt, int(evaluate))
        self.evaluating = evaluate
        for i in range(len(self.params)):
            self._mark_written(i)
        self.record_versions()

    def fits(self, i: int) -> bool:
        """Returns whether a parameter is still what this handle was made for."""
        return properties_of(local_tensor(self.params[i])) == self.properties[i]

    def sums(self, i: int) -> Tuple[float, float]:
        """Returns the sum of the average's weights, and the largest learning rate."""
        found = (C.c_double * 2)()
        self.lib.average_sums(self.opt, i, None, found)
        return found[0], found[1]

    # ---- Records

    def save(self, i: int) -> Dict[str, Tensor]:
        """Returns {"step": fp32, 0-d, "meopt": uint8 record of the moments, "residual": uint8, if there is
        any}."""
        record = torch.empty(self.lib.state_bytes(self.opt, i), dtype=torch.uint8, device="cpu")
        self.lib.state_save(self.opt, i, record.data_ptr(), record.numel())
        saved = {"step": self.steps[i].clone(), "meopt": record}
        saved.update(self.save_residual(i))
        return saved

    def save_residual(self, i: int) -> Dict[str, Tensor]:
        """Returns {"residual": ...}, of what the weights have beyond the parameter, if there is any."""
        bits = self.memory.residual.get(self._name(i))
        if bits is None or self.has_points:  # a record has the weights
            return {}
        crc = self.residual_crc.get(i)
        crc = crc_of(local_tensor(self.params[i])) if crc is None else crc
        head = torch.frombuffer(bytearray(RESIDUAL_HEAD.pack(self.formats[i], crc)), dtype=torch.uint8)
        return {"residual": torch.cat([head, host_bytes(bits)])}

    def save_portable(self, i: int, names: Sequence[str]) -> Dict[str, Tensor]:
        """Returns torch's state: "step" and fp32 moments in the parameter's shape and layout, under these
        names."""
        saved = {"step": self.steps[i].clone()}
        moments = [self._host_empty(i) if has else None for has in self.moments[i]]
        if any(self.moments[i]):
            count, m = local_tensor(self.params[i]).numel(), moments[0]
            m = self._host_empty(i) if m is None else m  # the library's is 0 then
            self.lib.moments_export(self.opt, i, 0, count, _pointer(m), _pointer(moments[1]))
        saved.update((name, self._like(i, m)) for name, m in zip(names, moments) if m is not None)
        if self.has_points:
            saved["average_sums"] = torch.tensor(self.sums(i), dtype=torch.float64)
        return {**saved, **self._save_factors(i)}

    def _factors(self, i: int) -> List[Tensor]:
        """Returns the memory of Adafactor's row and column means, which are those of all ranks; else []."""
        found = []
        for which in (L.VIEW_ROWS, L.VIEW_COLUMNS):
            pointer, count, form = C.c_void_p(), C.c_size_t(), C.c_int()
            self.lib.state_view(self.opt, i, which, C.byref(pointer), C.byref(count), C.byref(form))
            begin = begin if found else pointer.value or 0
            if begin:
                at = (pointer.value or begin) - begin
                found.append(self.memory.blocks[begin][at : at + count.value].view(torch.float32))
        return found

    def _save_factors(self, i: int) -> Dict[str, Tensor]:
        factors, shape = self._factors(i), tuple(self.params[i].shape)
        if not factors:
            return {}
        rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
        if not self.factor_dims:
            rows, columns = shape[:-1], (*shape[:-2], shape[-1])
        return {name: f.cpu().clone().view(s) for name, f, s in zip(self.factor_names, factors, (rows, columns))}

    def _load_factors(self, i: int, saved: Dict[str, Any]) -> None:
        for name, f in zip(self.factor_names, self._factors(i)):
            if name not in saved:
                continue
            values = saved[name].detach().to("cpu", torch.float32).reshape(-1)
            if values.numel() != f.numel() or not bool((values >= 0).all()) or not bool(values.isfinite().all()):
                raise ValueError(f"{self.names[i]}: {name} has {values.numel()} values, expected {f.numel()}, not "
                                 "negative and finite")
            f.copy_(values)

    def _host_empty(self, i: int) -> Tensor:
        """Returns an fp32 tensor of this rank's shape, whatever torch's default dtype and device are."""
        return torch.empty(local_tensor(self.params[i]).shape, dtype=torch.float32, device="cpu")

    def save_sharded(self, i: int, names: Sequence[str]) -> Dict[str, Tensor]:
        """Returns what torch.distributed.checkpoint can load on any number of ranks: "step", moments (codes,
        else as save_portable), and what save_weight returns."""
        codes = {name: self._like(i, memory.clone()) for name, memory in self._codes(i).items()}
        saved = self.save_portable(i, names) if not codes else {
            "step": self.steps[i].clone(), **codes, **self._save_factors(i)}
        if self.has_points:
            saved["average_sums"] = torch.tensor(self.sums(i), dtype=torch.float64)
        return {**saved, **self.save_weight(i)}

    def _codes(self, i: int) -> Dict[str, Tensor]:
        """Returns the memory of a parameter's codes and scales: uint8, this rank's rows x bytes per row. {}:
        it has none, or its rows are not whole groups, so that groups depend on the number of ranks."""
        p, (m, v) = self.params[i], self.moment_formats[i]
        if not {m, v} & {L.STATE_8BIT, L.STATE_4BIT} or (p.numel() // p.shape[0]) % L.GROUP:
            return {}
        joint = m == v == L.STATE_8BIT
        sizes = (2 * L.STATE_BYTES[m], 0, 4) if joint else (
            L.STATE_BYTES[m], L.STATE_BYTES[v], 2 if (m, v) == (L.STATE_8BIT, L.NO_FORMAT) else 1)
        shape = local_tensor(p).shape[0], p.numel() // p.shape[0] // L.GROUP
        found, begin = {}, 0
        for which, (name, size) in enumerate(zip(CODES, sizes)):
            pointer, count, form = C.c_void_p(), C.c_size_t(), C.c_int()
            self.lib.state_view(self.opt, i, which, C.byref(pointer), C.byref(count), C.byref(form))
            begin = begin or pointer.value or 0  # of the block, in which M comes first
            block = self.memory.blocks.get(begin, torch.empty(0, dtype=torch.uint8, device=p.device))
            at = (pointer.value or begin) - begin
            if size:
                found[name] = block[at : at + count.value].view(shape[0], shape[1] * size)
        return found

    def _load_codes(self, i: int, saved: Dict[str, Any], updates: int) -> None:
        codes = self._codes(i)
        if set(codes) != set(CODES).intersection(saved):
            raise ValueError(f"{self.names[i]}: the state has codes of different formats than the optimizer")
        for name, memory in codes.items():
            shape = (self.params[i].shape[0], memory.shape[1])
            memory.copy_(self._host_values(i, saved[name], torch.uint8, shape))
        self.lib.moments_import(self.opt, i, 0, 0, None, None, updates)
        record = self.save(i)["meopt"]  # is checked when it is loaded
        self.lib.state_load(self.opt, i, record.data_ptr(), record.numel())

    def save_weight(self, i: int) -> Dict[str, Tensor]:
        """Returns what a weight has beyond the parameter, if anything, for any number of ranks.
        "residual_bits": uint8, 2 bytes per element in a last dimension of their own. "fp32_weight"."""
        p = local_tensor(self.params[i])
        if self.evaluating:
            return {"y": self.export(i, training=True)}
        if p.dtype != torch.float16 and self.formats[i] not in UNUSED_BITS:
            return {}
        weights = self._exported(i)
        if p.dtype == torch.float16:
            return {"fp32_weight": self._like(i, weights)}
        halves = p.detach().contiguous().cpu().view(torch.int16).to(torch.int32) << 16
        bits = (weights.view(torch.int32) - halves).to(torch.int16)
        return {"residual_bits": self._like(i, bits.unsqueeze(-1).view(torch.uint8))}

    def _like(self, i: int, local: Tensor) -> Tensor:
        return dtensor_like(self.params[i], local) if self.sharded else local

    def _host_values(self, i: int, values: Tensor, dtype: torch.dtype = torch.float32,
                     shape: Optional[Tuple[int, ...]] = None) -> Tensor:
        """Returns this rank's values in this machine's memory. values: of `shape`, or the parameter's; a
        DTensor of the parameter's layout, or a tensor with all rows."""
        p, name = self.params[i], self.names[i]
        shape = tuple(p.shape) if shape is None else shape
        if tuple(values.shape) != shape:
            raise ValueError(f"{name}: values of shape {list(values.shape)}, expected {list(shape)}")
        if is_dtensor(values):
            found, expected = (getattr(t, "placements", None) for t in (values, p))
            if found != expected:
                raise ValueError(f"{name}: values have placements {found}, expected {expected}")
            values = local_tensor(values)
        elif self.sharded and self.rank_sum:
            values = values[self.shards[i].row :][: self.shards[i].rows]
        return values.detach().to("cpu", dtype).contiguous()

    def load(self, i: int, saved: Dict[str, Any], names: Sequence[str]) -> None:
        """Loads what save, save_portable or save_sharded, or torch with moments of these names, saved.
        Tensors may have been cast to any float. Residual bits of save for a different weight format are
        ignored. ValueError: damaged, or of a different shape."""
        p = local_tensor(self.params[i])
        updates = int(saved.get("step", 0))
        if "meopt" in saved:
            record = host_bytes(saved["meopt"].to(torch.uint8))
            self.lib.state_load(self.opt, i, record.data_ptr(), record.numel())
            updates = self.info(i).updates
        elif CODES[0] in saved:
            self._load_codes(i, saved, updates)
        elif any(self.moments[i]) or self._factors(i):
            values = [saved.get(name) if has else None for name, has in zip(names, self.moments[i])]
            values = [None if v is None else self._host_values(i, v) for v in values]
            if values[0] is not None:  # torch's SGD counts no updates; its buffer exists after the first
                updates = max(updates, 1)
            if values[0] is None and values[1] is not None and (self.factor_names or not self.moments[i][0]):
                values[0] = torch.zeros_like(values[1])
            count = p.numel() if values[0] is not None else 0
            self.lib.moments_import(self.opt, i, 0, count, *map(_pointer, values), updates)
        if "meopt" not in saved:
            self._load_factors(i, saved)
        self.steps[i] = updates
        if "average_sums" in saved and "meopt" not in saved:
            sums = saved["average_sums"].to(torch.float64).tolist()
            self.lib.average_sums(self.opt, i, (C.c_double * 2)(*sums), None)
        bits = self.memory.residual.get(self._name(i))
        if self.has_points and ("meopt" in saved or "y" in saved):
            if "meopt" not in saved:
                values = self._host_values(i, saved["y"])
                self.lib.import_(self.opt, i, 0, values.numel(), _pointer(values))
            self._mark_written(i)
            self.residual_crc[i], self.versions[i] = crc_of(p), -1
        elif "residual" in saved and bits is not None:
            residual = host_bytes(saved["residual"].to(torch.uint8))
            head, body = bytes(residual[: RESIDUAL_HEAD.size].tolist()), residual[RESIDUAL_HEAD.size :]
            if len(head) != RESIDUAL_HEAD.size or RESIDUAL_HEAD.unpack(head)[0] != self.formats[i]:
                return
            if body.numel() != bits.numel():
                found, name = body.numel(), self.names[i]
                raise ValueError(f"{name}: {found} bytes of residual bits, expected {bits.numel()}")
            bits.copy_(body)
            self.residual_crc[i], self.versions[i] = RESIDUAL_HEAD.unpack(head)[1], -1
        elif bits is not None:
            self._load_weight(i, saved)

    def _load_weight(self, i: int, saved: Dict[str, Any]) -> None:
        """Loads what save_weight returned; the parameter's values may come later."""
        p = local_tensor(self.params[i])
        unused = UNUSED_BITS.get(self.formats[i])
        if "fp32_weight" in saved and p.dtype == torch.float16:
            weights = self._host_values(i, saved["fp32_weight"]).reshape(-1)
            self.memory.residual[self._name(i)].view(torch.float32)[: p.numel()].copy_(weights)
        elif "residual_bits" in saved and unused is not None:
            shape = (*self.params[i].shape, 2)
            bits = self._host_values(i, saved["residual_bits"], torch.uint8, shape).view(torch.int16)
            bits = bits.to(torch.int32).clamp(max=(1 << 15) - (1 << unused))
            weights, place = (bits + ONE).view(torch.float32), self.shadows.get(i, p)
            values = place.clone()
            self.lib.import_(self.opt, i, 0, weights.numel(), weights.data_ptr())
            place.copy_(values)
        else:
            return
        self.residual_crc[i], self.versions[i] = None, -1

    def _exported(self, i: int, evaluation: bool = False) -> Tensor:
        out = self._host_empty(i)
        self.lib.export_point(self.opt, i, int(evaluation), 0, out.numel(), _pointer(out))
        return out

    def export(self, i: int, training: bool = False) -> Tensor:
        """Returns the weights with their residual bits, in eval mode those of evaluation: fp32, in this
        machine's memory, the parameter's shape and layout."""
        return self._like(i, self._exported(i, self.evaluating and not training))

    def import_values(self, i: int, values: Tensor) -> None:
        """Sets weights and residual bits to fp32 values of the parameter's shape."""
        values = self._host_values(i, values)
        self.lib.import_(self.opt, i, 0, values.numel(), _pointer(values))
        self._mark_written(i)
        self.versions[i] = version_of(self.params[i])
        self.residual_crc.pop(i, None)

    def held(self) -> L.Bytes:
        held = L.Bytes()
        self.lib.held_sized(C.sizeof(held), self.opt, C.byref(held))
        return held


def _pointer(t: Optional[Tensor]) -> Optional[int]:
    return None if t is None else t.data_ptr() or C.addressof(NO_ELEMENTS)
