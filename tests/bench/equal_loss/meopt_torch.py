# A torch.optim.Optimizer over libmeopt-optim.so, written against core/meopt.h alone: what a binding needs, by ctypes.
# prepare(model, options) makes the parameters that a format of few bytes keeps as bf16 what forward reads, the
# optimizer's own half; the others stay fp32.
import ctypes as C
import os
import torch

RULES = {"apadam": 0, "apadamw": 1, "apsgd": 2, "lamb": 3, "lion": 4}
WEIGHTS = {"fp32": 0, "fp32+copy": 1, "bf16": 2, "bf16_sr": 3, "bf16+4": 4, "bf16+8": 5, "bf16+16": 6}
STATES = {"fp32": 0, "bf16": 1, "bf16_nearest": 2, "8bit": 3, "4bit": 4}


class Error(C.Structure):
    _fields_ = [("status", C.c_int), ("message", C.c_char * 252)]


class Options(C.Structure):
    _fields_ = [("size", C.c_size_t), ("tensor_size", C.c_size_t), ("rule", C.c_int), ("weights", C.c_int),
                ("first_moment", C.c_int), ("second_moment", C.c_int), ("beta1", C.c_double), ("beta2", C.c_double),
                ("eps", C.c_double), ("weight_decay", C.c_double), ("momentum", C.c_double), ("dampening", C.c_double),
                ("nesterov", C.c_int), ("trust_clip", C.c_int), ("always_adapt", C.c_int), ("seed", C.c_uint64),
                ("threads", C.c_int), ("small_count", C.c_int64), ("accumulator", C.c_int), ("adapt_every", C.c_int),
                ("adapt_threshold", C.c_double), ("report", C.c_void_p), ("allocate", C.c_void_p),
                ("release", C.c_void_p), ("context", C.c_void_p), ("dry", C.c_int), ("device", C.c_void_p),
                ("reduce", C.c_void_p)]


class Tensor(C.Structure):
    _fields_ = [("name", C.c_char_p), ("ndim", C.c_int), ("shape", C.c_int64 * 8), ("flags", C.c_uint),
                ("lr_scale", C.c_double), ("weights", C.c_void_p), ("copy", C.c_void_p), ("first", C.c_int64),
                ("count", C.c_int64)]


class Bytes(C.Structure):
    _fields_ = [("parameters", C.c_int64)] + [(n, C.c_size_t) for n in (
        "weights", "copy", "correction", "moments", "scales", "accumulators", "total", "callers")]


class Info(C.Structure):
    _fields_ = [("name", C.c_char_p), ("count", C.c_int64), ("weights", C.c_int), ("first_moment", C.c_int),
                ("second_moment", C.c_int), ("updates", C.c_int64), ("bytes", Bytes)]


class Gradient(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int)]


class Library:
    def __init__(self, path):
        self.so = C.CDLL(os.path.realpath(path))
        self.so.meopt_find.restype = C.c_int64

    def __call__(self, name, *arguments):
        err = Error()
        if getattr(self.so, name)(*arguments, C.byref(err)): raise RuntimeError(f"{name}: {err.message.decode()}")


class Meopt(torch.optim.Optimizer):
    """preset: a name of the library's, or (weights, state). Parameters are those of `prepare`."""

    def __init__(self, library, model, preset, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, seed=0,
                 rule="apadamw"):
        self.library, self.lr_used, self.count, self.handle = library, lr, 0, C.c_void_p()
        o = Options()
        if library.so.meopt_options_init(C.byref(o), C.c_size_t(C.sizeof(o)), RULES[rule]): raise RuntimeError("options")
        if isinstance(preset, str): library("meopt_options_preset", C.byref(o), preset.encode())
        else: o.weights, o.first_moment, o.second_moment = WEIGHTS[preset[0]], STATES[preset[1]], STATES[preset[1]]
        o.beta1, o.beta2, o.eps, o.weight_decay, o.seed, o.threads = *betas, eps, weight_decay, seed, 1
        named = list(model.named_parameters())
        table, values = (Tensor * len(named))(), []
        for row, (name, p) in zip(table, named):
            row.name, row.ndim = name.encode(), p.dim()
            for d in range(p.dim()): row.shape[d] = p.shape[d]
            if hasattr(p, "keep"): row.flags = 2  # MEOPT_KEEP_F32
            info = Info()
            library("meopt_plan_tensor", C.byref(o), C.byref(row), C.byref(info))
            values.append(p.detach().float().clone().contiguous())
            if info.weights >= 2: p.data = p.data.bfloat16()
            p.data = p.data.contiguous()
            row.weights = p.data_ptr()
        library("meopt_create", C.byref(self.handle), C.byref(o), table, C.c_size_t(len(named)))
        for i, x in enumerate(values):
            library("meopt_import", self.handle, C.c_size_t(i), C.c_int64(0), C.c_int64(x.numel()), C.c_void_p(x.data_ptr()))
        self.named, self.table = named, table
        super().__init__([p for _, p in named], {"lr": lr})

    def step(self, closure=None):
        self.count += 1
        gradients, keep = (Gradient * len(self.named))(), []
        for row, (_, p) in zip(gradients, self.named):
            if p.grad is None: continue
            g = p.grad.contiguous()
            keep.append(g)
            row.data, row.dtype = g.data_ptr(), int(g.dtype == torch.bfloat16)
        self.library("meopt_step", self.handle, C.c_int64(self.count), C.c_double(self.param_groups[0]["lr"]),
                     C.c_double(1.0), gradients, None)

    def exact(self, i):  # fp32 values of parameter i, with what its format keeps after the bf16 half
        out = torch.empty(self.named[i][1].numel())
        self.library("meopt_export", self.handle, C.c_size_t(i), C.c_int64(0), C.c_int64(out.numel()), C.c_void_p(out.data_ptr()))
        return out.view(self.named[i][1].shape)

    def zero_weights(self, i):  # of fp32 weights: the next step's update is then what is found there
        self.named[i][1].data.zero_()

    def held(self):
        b = Bytes()
        self.library.so.meopt_held(self.handle, C.byref(b))
        return b.total

    def __del__(self):
        if self.handle: self.library.so.meopt_destroy(self.handle)
