# Moments and steps on made gradients, next to AdamW in double on the same ones. Weights are fp32 and set to 0 before each
# step, so that the update is read from them exactly, whoever the optimizer is.
import math, time
import torch, torch.nn as nn
from meopt.torch import Meopt, fp32_state_dict
from peers import make

ROWS, COLUMNS = 64, 256


class One(nn.Module):
    def __init__(self, rows=ROWS, columns=COLUMNS, dtype=torch.float32, value=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.full((rows, columns), value, dtype=dtype))


class Exact:
    def __init__(self, beta2=0.999, eps=1e-15):
        self.t, self.m, self.v, self.beta2, self.eps = 0, 0.0, 0.0, beta2, eps

    def step(self, g):
        self.t += 1
        g = g.double()
        self.m, self.v = 0.9 * self.m + 0.1 * g, self.beta2 * self.v + (1 - self.beta2) * g * g
        return self.m / (1 - 0.9 ** self.t) / ((self.v / (1 - self.beta2 ** self.t)).sqrt() + self.eps)


class Measured:  # an optimizer whose updates are looked at
    def __init__(self, name, beta2=0.999):
        self.model = One()
        self.opt = make(name, self.model, 1.0, (0.9, beta2), 1e-15)

    def step(self, g):
        p = self.model.w
        p.data.zero_()
        p.grad = g.float().clone()
        self.opt.step()
        return -p.data.double()


def gradients(kind, steps, g):
    size = torch.ones(ROWS, COLUMNS)
    if kind.startswith("sigma"): size = torch.exp(float(kind[5:]) * torch.randn(ROWS, COLUMNS, generator=g))
    if kind == "columns": size[:, 17::64] = 1e4
    for t in range(steps):
        x = size * torch.randn(ROWS, COLUMNS, generator=g)
        if kind == "spikes50" and t % 50 == 49: x[:, 5::64] *= 1e4
        if kind == "sparse": x *= torch.rand(ROWS, COLUMNS, generator=g) < 0.02
        if kind == "loud": x *= 1e-4 if t < steps // 2 else 1.0
        if kind.startswith("one") and t == 200: x[:, 5::64] *= float(kind[3:])
        yield x


def drift(name, kind, beta2=0.999, steps=1500):
    """u_rel: error of the update over the last 200 steps, bias: of its length, travel and w_rel: of the whole way."""
    g, exact, mine = torch.Generator().manual_seed(3), Exact(beta2), Measured(name, beta2)
    s, way, exact_way = [0.0] * 3, 0.0, 0.0
    for t, x in enumerate(gradients(kind, steps, g)):
        e, u = exact.step(x), mine.step(x)
        way, exact_way = way + u, exact_way + e
        if t >= steps - 200: s = [s[0] + float(((u - e) ** 2).sum()), s[1] + float((e * e).sum()), s[2] + float((u * e).sum())]
    n = float((exact_way ** 2).sum())
    return {"u_rel": math.sqrt(s[0] / s[1]), "bias": s[2] / s[1] - 1, "travel": float((way * exact_way).sum()) / n,
            "w_rel": math.sqrt(float(((way - exact_way) ** 2).sum()) / n)}


def worst(name, kind, steps=600):
    g, exact, mine, largest, most = torch.Generator().manual_seed(4), Exact(), Measured(name), 0.0, 0.0
    for x in gradients(kind, steps, g):
        most = max(most, float(exact.step(x).abs().max()))
        largest = max(largest, float(mine.step(x).abs().nan_to_num(math.inf).max()))
    return {"largest": largest, "exact": most}


def neighbours(name, kind, steps=600):
    """Travel after ONE spike of those next to it, of exact AdamW's."""
    g, exact, mine = torch.Generator().manual_seed(5), Exact(), Measured(name)
    beside = torch.ones(COLUMNS, dtype=torch.bool)
    beside[5::64] = False
    sums = [0.0, 0.0]
    for t, x in enumerate(gradients(kind, steps, g)):
        e, u = exact.step(x)[:, beside], mine.step(x)[:, beside]
        if t > 200: sums = [sums[0] + float((u * e).sum()), sums[1] + float((e * e).sum())]
    return {"travel": sums[0] / sums[1]}


def tiny(name, w, lr, decay, steps):
    """Travel of weights of size w in steps far below their resolution, and noise: both of exact AdamW's way."""
    g = torch.Generator().manual_seed(6)
    model = One(value=0.0)
    start = w * torch.randn(ROWS, COLUMNS, generator=g)
    model.w.data.copy_(start)
    opt = make(name, model, lr, (0.9, 0.999), 1e-15, decay)
    value = lambda: (fp32_state_dict(model, opt)["w"] if isinstance(opt, Meopt) else model.w.detach()).double()
    exact, x, first = Exact(), start.double(), value()
    drift = torch.randn(ROWS, COLUMNS, generator=g)
    for t in range(steps):
        grad = drift + torch.randn(ROWS, COLUMNS, generator=g) if not decay else torch.zeros(ROWS, COLUMNS)
        x = x * (1 - lr * decay) - lr * exact.step(grad)
        model.w.grad = grad.to(model.w.dtype)
        opt.step()
    way, mine = x - start.double(), value() - first
    n = float((way * way).sum())
    return {"travel": float((way * mine).sum()) / n, "noise": math.sqrt(float(((mine - way) ** 2).sum()) / n)}


def cost(name, rounds=5):
    """Bytes held and the processor's time of one step, 16 Mi parameters, one thread."""
    model = One(4096, 4096)
    k = {"default": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    if name in k: opt = torch.optim.AdamW(model.parameters(), lr=1e-3, **k[name])
    else: opt = make(name, model, 1e-3)
    model.w.grad = torch.randn(4096, 4096).to(model.w.dtype)
    best = math.inf
    for _ in range(rounds + 1):
        began = time.process_time()
        opt.step()
        best = min(best, time.process_time() - began)
    return {"ms": best * 1e3, "bytes": opt.held_bytes()["per_param"] if isinstance(opt, Meopt) else None}
