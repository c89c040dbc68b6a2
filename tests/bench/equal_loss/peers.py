# The optimizers that are compared, by name: AdamW of PyTorch, torchao, bitsandbytes and of FlashOptim (its formats, from
# its source, in plain torch: its own kernels need Triton), and ours.
import torch
from meopt_torch import Meopt

PRESETS = ("quality", "balanced", "minimal")


class Flash(torch.optim.Optimizer):
    """FlashOptim's moments: groups of 32, fp16 scales; m companded by 2x / (1 + |x|), sqrt(v) linear with a zero; nearest."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None: continue
                s, x, small = self.state[p], p.grad.float(), p.dim() < 2 or p.numel() < 4096 or p.numel() % 32
                if not s: s.update(t=0, m=torch.zeros_like(x), v=torch.zeros_like(x))
                s["t"] += 1
                m, v = s["m"].lerp_(x, 1 - b1), s["v"].mul_(b2).addcmul_(x, x, value=1 - b2)
                p.mul_(1 - g["lr"] * g["weight_decay"])
                p.addcdiv_(m / (1 - b1 ** s["t"]), (v / (1 - b2 ** s["t"])).sqrt_().add_(g["eps"]), value=-g["lr"])
                if small: continue
                m, v = m.view(-1, 32), v.view(-1, 32)  # what the next step reads: codes decoded
                scale = m.abs().amax(1, keepdim=True).half().float().clamp_min(1e-12)
                y = (m / scale).clamp_(-1, 1)
                y = (127 * 2 * y / (1 + y.abs())).round_() / 127
                m.copy_(y / (2 - y.abs()) * scale)
                root = v.sqrt()
                scale = root.amax(1, keepdim=True).half().float().clamp_min(1e-12)
                v.copy_(((root / scale * 255).round_().clamp_(0, 255) / 255 * scale) ** 2)


def make(name, library, model, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, seed=0, rule="apadamw"):
    """Call before the first forward: parameters may become bf16."""
    k = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    if name in PRESETS: return Meopt(library, model, name, seed=seed, rule=rule, **k)
    if name == "library_fp32": return Meopt(library, model, "fp32", seed=seed, rule=rule, **k)
    if name == "4bit": return Meopt(library, model, ("bf16_sr", "4bit"), seed=seed, rule=rule, **k)
    if name == "moments8": return Meopt(library, model, ("fp32", "8bit"), seed=seed, **k)
    if name == "moments4": return Meopt(library, model, ("fp32", "4bit"), seed=seed, **k)
    if name in ("bf16", "ao8_sr"):
        for p in model.parameters():
            if p.dim() > 1 and p.numel() >= 4096 and not hasattr(p, "keep"): p.data = p.data.bfloat16()
    params = list(model.parameters())
    if name == "amp" or name == "bf16": return torch.optim.AdamW(params, fused=True, **k)
    if name == "flash": return Flash(params, **k)
    if name.startswith("bnb8"):
        import bitsandbytes
        return bitsandbytes.optim.AdamW8bit(params, min_8bit_size=4096, **k)
    from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
    kind = {"ao8": AdamW8bit, "ao8_sr": AdamW8bit, "ao4": AdamW4bit, "aofp8": AdamWFp8}[name]
    return kind(params, bf16_stochastic_round=name.endswith("_sr"), **k)
