# What is trained: a byte GPT on the source of Python's standard library, an MLP and a ViT on scikit-learn's digits, a ViT
# that learns the tokens of a random one on scikit-learn's photographs. Initial weights and batches depend on the seed alone.
# Every optimizer's forward reads its matrices rounded to bf16, so that what differs is the optimizer alone; the products are
# fp32, which on processors without tiles takes half the time of autocast and adds no noise of its own.
import glob, math, os, sysconfig, time
import torch, torch.nn as nn, torch.nn.functional as F
from meopt.torch import Meopt
from peers import make


def rounded(w): return w.bfloat16().float()


class Linear(nn.Linear):
    def forward(self, x): return F.linear(x, rounded(self.weight), self.bias.float())


class Block(nn.Module):
    def __init__(self, d, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj, self.up, self.down = Linear(d, 3 * d), Linear(d, d), Linear(d, 4 * d), Linear(4 * d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self, d, depth, heads, context):
        super().__init__()
        self.token, self.place = nn.Embedding(256, d), nn.Parameter(torch.randn(1, context, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, heads, True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), Linear(d, 256)

    def forward(self, x):
        x = rounded(self.token.weight)[x] + rounded(self.place)
        for b in self.blocks: x = b(x)
        return self.head(self.norm(x))


class Text:
    def __init__(self, d=64, depth=4, heads=4, context=64, batch=8):
        self.shape = (d, depth, heads, context)
        files = sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "*.py")))
        text = torch.frombuffer(bytearray(b"".join(open(f, "rb").read() for f in files)), dtype=torch.uint8).long()
        cut = len(text) * 9 // 10
        self.train, self.held, self.context, self.batch = text[:cut], text[cut:], context, batch
        g = torch.Generator().manual_seed(7)
        self.tests = [self.take(self.held, g, 16) for _ in range(8)]

    def model(self): return GPT(*self.shape)

    def take(self, text, g, n):
        at = torch.randint(len(text) - self.context - 1, (n,), generator=g)
        rows = torch.stack([text[i:i + self.context + 1] for i in at])
        return rows[:, :-1], rows[:, 1:]

    def batch_of(self, g): return self.take(self.train, g, self.batch)

    def loss(self, model, batch): return F.cross_entropy(model(batch[0]).flatten(0, 1).float(), batch[1].flatten())


class Stacked(nn.Module):
    """As many MLPs as there are seeds, side by side: AdamW does not see that their matrices are one tensor."""

    SIZES = (64, 256, 256, 64, 10)

    def __init__(self, seeds):
        super().__init__()
        layers = []
        for seed in seeds:
            torch.manual_seed(seed)
            layers.append([nn.Linear(a, b) for a, b in zip(self.SIZES, self.SIZES[1:])])
        stack = lambda i, what: nn.Parameter(torch.stack([getattr(l[i], what).detach() for l in layers]))
        self.w = nn.ParameterList(stack(i, "weight") for i in range(4))
        self.b = nn.ParameterList(stack(i, "bias") for i in range(4))
        for p in (*self.b, self.w[3]): p.keep = True  # fp32, as alone

    def forward(self, x):  # (seeds, B, 64)
        for i, (w, b) in enumerate(zip(self.w, self.b)):
            x = torch.baddbmm(b.unsqueeze(1).to(torch.bfloat16), x.bfloat16(), w.bfloat16().transpose(1, 2))
            if i < 3: x = x.relu()
        return x


class Digits:
    def __init__(self, batch=64):
        from sklearn.datasets import load_digits
        d = load_digits()
        x, y = torch.tensor(d.data).float() / 16, torch.tensor(d.target)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(7))
        cut = len(x) * 2 // 3
        self.x, self.y, self.held, self.batch = x[order[:cut]], y[order[:cut]], (x[order[cut:]], y[order[cut:]]), batch

    def run(self, name, seeds, steps, lr, clip=1.0, schedule=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
            spike=0.0, times=1.0, rule="apadamw"):
        """Of each seed: loss on held-out data, mean loss of the last tenth, bytes a parameter."""
        model, draws = Stacked(seeds), [torch.Generator().manual_seed(s + 1000) for s in seeds]
        opt = make(name, model, lr, betas, eps, weight_decay, 1, rule)
        noise, params = torch.Generator().manual_seed(2000), list(model.parameters())
        tail = torch.zeros(len(seeds))

        def losses(x, y):
            z = model(x).float()
            return F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="none").view(len(seeds), -1).mean(1)

        for step in range(steps):
            for group in opt.param_groups: group["lr"] = rate_of(lr, step, steps) if schedule else lr
            at = torch.stack([torch.randint(len(self.x), (self.batch,), generator=g) for g in draws])
            loss = losses(self.x[at], self.y[at])
            opt.zero_grad()
            (loss.sum() * times).backward()
            for p in params if spike else ():  # one element of each group of 64, in 1 % of steps
                if p.dim() < 3: continue
                flat = p.grad.view(-1)[5::64]
                flat[torch.rand(flat.shape, generator=noise) < 0.01] *= spike
            if clip:
                norm = sum(p.grad.float().pow(2).flatten(1).sum(1) for p in params).sqrt()
                scale = (clip / (norm + 1e-6)).clamp(max=1)
                for p in params: p.grad.mul_(scale.view(-1, *[1] * (p.dim() - 1)).to(p.grad.dtype))
            opt.step()
            if step >= steps * 9 // 10: tail += loss.detach()
        with torch.no_grad(): val = losses(*(t.expand(len(seeds), *t.shape) for t in self.held))
        count = sum(p.numel() for p in params)
        held = opt.held_bytes()["total"] / count if isinstance(opt, Meopt) else None
        return [{"val": float(v), "train": float(t) / (steps - steps * 9 // 10), "bytes": held} for v, t in zip(val, tail)]


class Vit(nn.Module):
    """16 tokens, one for each square patch."""

    def __init__(self, d, depth, out, side=8, channels=3):
        super().__init__()
        self.side, self.patch = side, Linear(channels * side * side, d)
        self.place = nn.Parameter(torch.randn(1, 16, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, 4, False) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), Linear(d, out)

    def forward(self, x):  # (B, channels, 4 side, 4 side) -> (B, 16, out)
        x = F.unfold(x, self.side, stride=self.side).transpose(1, 2)
        x = self.patch(x) + rounded(self.place)
        for b in self.blocks: x = b(x)
        return self.head(self.norm(x))


class Distill:
    def __init__(self, batch=32):
        from sklearn.datasets import load_sample_images
        self.images = [torch.tensor(i.copy()).permute(2, 0, 1).float() / 127.5 - 1 for i in load_sample_images().images]
        torch.manual_seed(11)
        self.teacher, self.batch = Vit(192, 4, 96).eval(), batch
        self.taught = {}  # of each state of the generator: half of the time, and the same for every optimizer
        g = torch.Generator().manual_seed(7)
        self.tests = [self.batch_of(g) for _ in range(8)]

    def model(self): return Vit(96, 3, 96)

    @torch.no_grad()
    def batch_of(self, g):
        crops, drawn = [], g.get_state().numpy().tobytes()
        for i in torch.randint(len(self.images), (self.batch,), generator=g).tolist():
            y, x = (int(torch.randint(s - 32, (1,), generator=g)) for s in self.images[i].shape[1:])
            crops.append(self.images[i][:, y:y + 32, x:x + 32])
        x = torch.stack(crops)
        if drawn not in self.taught: self.taught[drawn] = self.teacher(x)
        return x, self.taught[drawn]

    def loss(self, model, batch): return F.mse_loss(model(batch[0]).float(), batch[1])


class Drawn:
    """Classes of scikit-learn's digits, each somewhere in an image of 12 x 12 pixels with noise, so that no image comes
    twice."""

    def __init__(self, batch=64):
        from sklearn.datasets import load_digits
        d, g = load_digits(), torch.Generator().manual_seed(7)
        self.x, self.y, self.batch = torch.tensor(d.data).float().view(-1, 8, 8) / 8 - 1, torch.tensor(d.target), batch
        order, cut = torch.randperm(len(self.x), generator=g), len(self.x) * 2 // 3
        self.rows, held = order[:cut], order[cut:]
        self.tests = [self.take(held, g, 512) for _ in range(8)]

    def model(self): return Vit(64, 4, 10, 3, 1)

    def take(self, rows, g, n):
        at = rows[torch.randint(len(rows), (n,), generator=g)]
        x = 0.5 * torch.randn(n, 1, 12, 12, generator=g) - 1
        for image, digit, (top, left) in zip(x, self.x[at], torch.randint(5, (n, 2), generator=g).tolist()):
            image[0, top:top + 8, left:left + 8] += digit + 1
        return x, self.y[at]

    def batch_of(self, g): return self.take(self.rows, g, self.batch)

    def loss(self, model, batch): return F.cross_entropy(model(batch[0]).mean(1).float(), batch[1])


def rate_of(lr, step, steps):
    return lr * min(1, (step + 1) / (steps / 20)) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))


def run(task, name, seed, steps, lr, clip=1.0, weight_decay=0.01):
    """Trains; what came of it: loss on held-out data, mean loss of the last tenth, bytes a parameter, seconds of the CPU."""
    torch.manual_seed(seed)
    model = task.model()
    opt = make(name, model, lr, weight_decay=weight_decay, seed=seed)
    g, tail, began = torch.Generator().manual_seed(seed + 1000), [], time.process_time()
    for step in range(steps):
        for group in opt.param_groups: group["lr"] = rate_of(lr, step, steps)
        loss = task.loss(model, task.batch_of(g))
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        if step >= steps * 9 // 10: tail.append(float(loss.detach()))
    with torch.no_grad():
        held = sum(float(task.loss(model, b)) for b in task.tests) / len(task.tests)
    count = sum(p.numel() for p in model.parameters())
    return {"val": held, "train": sum(tail) / len(tail), "params": count,
            "bytes": opt.held_bytes()["total"] / count if isinstance(opt, Meopt) else None, "cpu_s": round(time.process_time() - began, 1)}
