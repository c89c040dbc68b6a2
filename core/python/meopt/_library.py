"""libmeopt-optim through ctypes: structs, functions and errors of core/meopt.h, whose comments describe them.

The structs are this binding's own declarations. Their sizes go to the library with each call that takes one,
so that a newer or older library of the same major version works.
"""
import ctypes as C
import os
from typing import Any, Dict, List

FLAG_PART, FLAG_KEEP_BF16, FLAG_COPY_F16, FLAG_OWN_RULE = 4, 16, 32, 64
DTYPE_F32, DTYPE_BF16, DTYPE_F16 = 0, 1, 2
DEVICE_HIP, DEVICE_CUDA = 1, 2
STREAM_DEFAULT = 1
MEMORY_WEIGHTS, MEMORY_CORRECTION = 0, 2
WEIGHTS_F32, WEIGHTS_20, WEIGHTS_24, WEIGHTS_32 = 0, 4, 5, 6
STATE_8BIT, STATE_4BIT, NO_FORMAT = 3, 4, -1
VIEW_ROWS, VIEW_COLUMNS = 6, 7  # of enum meopt_view
GROUP = 64  # elements that share a scale
STATE_BYTES = {0: 256, 1: 128, 2: 128, STATE_8BIT: 64, STATE_4BIT: 32, NO_FORMAT: 0}  # of a group

ALLOCATE = C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_int, C.c_size_t, C.c_char_p)
RELEASE = C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_void_p, C.c_size_t)
REDUCE = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_size_t)


class Error(C.Structure):
    _fields_ = [("status", C.c_int), ("message", C.c_char * 252)]


class Options(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("tensor_size", C.c_size_t), ("rule", C.c_int), ("weights", C.c_int),
        ("first_moment", C.c_int), ("second_moment", C.c_int),
        *((name, C.c_double) for name in ("beta1", "beta2", "eps", "weight_decay", "momentum", "dampening")),
        ("nesterov", C.c_int), ("trust_clip", C.c_int), ("always_adapt", C.c_int), ("seed", C.c_uint64),
        ("threads", C.c_int), ("small_count", C.c_int64), ("accumulator", C.c_int),
        ("reserved", C.c_int * 5),
        ("allocate", ALLOCATE), ("release", RELEASE), ("context", C.c_void_p), ("dry", C.c_int),
        ("device", C.c_void_p), ("reduce", REDUCE), ("bias_correction", C.c_int),
        ("grad_averaging", C.c_int), ("max_grad_norm", C.c_double), ("all_or_nothing", C.c_int),
        ("offload", C.c_int), ("offload_fraction", C.c_double), ("offload_dir", C.c_char_p),
        ("offload_ring_bytes", C.c_size_t),
        ("decoupled_decay", C.c_int), ("combine", C.c_void_p), ("maximize", C.c_int),
        ("average_decay", C.c_double), ("accumulator_sets", C.c_void_p),
        *((name, C.c_int) for name in ("ns_steps", "ns_schedule", "ns_form", "ns_dtype", "adjust_lr")),
        ("ns_eps", C.c_double), ("ns_coefficients", C.c_double * 3), ("warmup_steps", C.c_int64),
        ("r", C.c_double), ("weight_lr_power", C.c_double),
        *((name, C.c_double) for name in ("eps2", "clip_threshold", "decay_rate")),
        *((name, C.c_int) for name in ("scale_parameter", "relative_step", "warmup_init", "torch_form", "rank",
                                       "ranks")),
    ]


class Tensor(C.Structure):
    _fields_ = [
        ("name", C.c_char_p), ("ndim", C.c_int), ("shape", C.c_int64 * 8), ("flags", C.c_uint),
        ("lr_scale", C.c_double), ("weights", C.c_void_p), ("copy", C.c_void_p), ("first", C.c_int64),
        ("count", C.c_int64), ("rule", C.c_int), ("rows", C.c_int64 * 4),
    ]


class Bytes(C.Structure):
    _fields_ = [("parameters", C.c_int64)] + [
        (name, C.c_size_t)
        for name in ("weights", "copy", "correction", "moments", "scales", "accumulators", "total", "callers",
                     "workspace", "point")
    ]


class Info(C.Structure):
    _fields_ = [
        ("name", C.c_char_p), ("count", C.c_int64), ("weights", C.c_int), ("first_moment", C.c_int),
        ("second_moment", C.c_int), ("updates", C.c_int64), ("bytes", Bytes),
    ]


GROUP_NUMBERS = ("weight_decay", "beta1", "beta2", "eps", "momentum", "dampening")


class Group(C.Structure):
    _fields_ = [("size", C.c_size_t), *((name, C.c_double) for name in ("lr_scale", *GROUP_NUMBERS)),
                ("maximize", C.c_int)]


class Gradient(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int)]


class Stats(C.Structure):
    _fields_ = [("grad_norm", C.c_double), ("bad_groups", C.c_int64), ("tensors", C.c_int64),
                ("matrices", C.c_int64)]


_P, _INT, _I64, _SIZE, _F64, _STR = C.c_void_p, C.c_int, C.c_int64, C.c_size_t, C.c_double, C.c_char_p
_ERROR = C.POINTER(Error)

# Arguments of the functions that return a status and end in `struct meopt_error *`, without the latter.
_CHECKED: Dict[str, List[Any]] = {
    "meopt_options_preset": [C.POINTER(Options), _STR],
    "meopt_create": [C.POINTER(_P), C.POINTER(Options), C.POINTER(Tensor), _SIZE],
    "meopt_set_group": [_P, _SIZE, C.POINTER(Group)],
    "meopt_rebind": [_P, _SIZE, _P, _P],
    "meopt_sync": [_P, _SIZE],
    "meopt_moments_import": [_P, _SIZE, _I64, _I64, _P, _P, _I64],
    "meopt_moments_export": [_P, _SIZE, _I64, _I64, _P, _P],
    "meopt_import": [_P, _SIZE, _I64, _I64, _P],
    "meopt_export": [_P, _SIZE, _I64, _I64, _P],
    "meopt_set_point": [_P, _INT],
    "meopt_average_shared": [_P, _SIZE],
    "meopt_export_point": [_P, _SIZE, _INT, _I64, _I64, _P],
    "meopt_average_sums": [_P, _SIZE, C.POINTER(_F64), C.POINTER(_F64)],
    "meopt_state_view": [_P, _SIZE, _INT, C.POINTER(_P), C.POINTER(_SIZE), C.POINTER(_INT)],
    "meopt_step_sized": [_SIZE, _P, _I64, _F64, _F64, C.POINTER(Gradient), C.POINTER(Stats)],
    "meopt_step_begin": [_P, _I64, _F64, _INT],
    "meopt_step_tensor": [_P, _SIZE, _P, _INT, _F64],
    "meopt_step_end_sized": [_SIZE, _P, C.POINTER(Stats)],
    "meopt_gradient_norm": [_P, C.POINTER(Gradient), C.POINTER(_F64), C.POINTER(_INT)],
    "meopt_state_save": [_P, _SIZE, _P, _SIZE],
    "meopt_state_load": [_P, _SIZE, _P, _SIZE],
    "meopt_device_open": [C.POINTER(_P), _INT, _INT, _P, _P],
    "meopt_device_stream": [_P, _P],
}
# The others: result, arguments.
_PLAIN: Dict[str, List[Any]] = {
    "meopt_options_init_sized": [_INT, _SIZE, C.POINTER(Options), _SIZE, _INT],
    "meopt_destroy": [None, _P],
    "meopt_held_sized": [_INT, _SIZE, _P, C.POINTER(Bytes)],
    "meopt_info_sized": [_INT, _SIZE, _P, _SIZE, C.POINTER(Info)],
    "meopt_state_bytes": [_SIZE, _P, _SIZE],
    "meopt_device_close": [None, _P],
    "meopt_clip_scale": [_F64, _F64, _F64],
    "meopt_device_count": [_INT, _P],
    "meopt_device_driver": [_STR, _P],
    "meopt_device_name": [_STR, _P],
    "meopt_instruction_set": [_STR],
    "meopt_version": [_STR],
    "meopt_rule_from_name": [_INT, _STR],
    "meopt_weight_format_from_name": [_INT, _STR],
    "meopt_state_format_from_name": [_INT, _STR],
}

# enum meopt_status; others are RuntimeError.
_EXCEPTIONS = {1: ValueError, 2: MemoryError, 3: FloatingPointError, 4: ValueError, 6: OSError, 8: OSError}


def _method(name: str) -> str:
    return "import_" if name == "meopt_import" else name[len("meopt_"):]


class Library:
    """The functions of core/meopt.h. Those that take a `struct meopt_error *` take it no more and raise
    instead: ValueError (bad argument, bad state), MemoryError, FloatingPointError (not finite), OSError (I/O,
    disk full), RuntimeError (wrong order, device failed)."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._so = C.CDLL(path)
        for name, arguments in _CHECKED.items():
            setattr(self, _method(name), self._checked(name, arguments))
        for name, (result, *arguments) in _PLAIN.items():
            function = getattr(self._so, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, _method(name), function)

    def _checked(self, name: str, arguments: List[Any]) -> Any:
        function = getattr(self._so, name)
        function.restype, function.argtypes = _INT, [*arguments, _ERROR]

        def call(*values: Any) -> None:
            error = Error()
            status = function(*values, C.byref(error))
            if status:
                raise _EXCEPTIONS.get(status, RuntimeError)(error.message.decode("utf-8", "replace"))

        return call

    def __getattr__(self, name: str) -> Any:  # for type checkers: all are set by __init__
        raise AttributeError(name)

    def number(self, kind: str, name: str) -> int:
        """Returns the number of a rule, weight_format or state_format; ValueError if there is no such
        name."""
        found: int = getattr(self, kind + "_from_name")(name.encode())
        if found < 0:
            raise ValueError(f"no {kind.replace('_', ' ')} {name!r}: see meopt-optimizers(7)")
        return found


def candidates() -> List[str]:
    """Returns the files and names that are tried, in order: $MEOPT_OPTIM_LIBRARY alone if it is set, else the
    package's own library, then the loader's search path."""
    own = os.environ.get("MEOPT_OPTIM_LIBRARY")
    if own:
        return [own]
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libmeopt-optim.so")
    return [inside, "libmeopt-optim.so.0"]


_loaded: List[Library] = []


def library() -> Library:
    """Returns the library, opened at the first call. ImportError: none of candidates() could be opened."""
    if not _loaded:
        reasons = []
        for path in candidates():
            try:
                _loaded.append(Library(path))
                break
            except (OSError, AttributeError) as error:
                reasons.append(f"{path}: {error}")
        else:
            raise ImportError("could not load libmeopt-optim: " + "; ".join(reasons))
    return _loaded[0]
