# The optimizers that are compared, by name: AdamW of PyTorch, torchao, bitsandbytes and of FlashOptim (its formats, from
# its source, in plain torch: its own kernels need Triton), and ours.
import torch
import meopt.torch as mt

PRESETS = ("quality", "balanced", "minimal")
OURS = {**{name: {"preset": name} for name in PRESETS}, "library_fp32": {"preset": "fp32"},
        "4bit": {"preset": "minimal", "first_moment": "4bit", "second_moment": "4bit"},
        "moments8": {"preset": "fp32", "first_moment": "8bit", "second_moment": "8bit"},
        "moments4": {"preset": "fp32", "first_moment": "4bit", "second_moment": "4bit"}}
RULES = {"apadamw": (mt.AdamW, {}), "lion": (mt.Lion, {}), "lamb": (mt.LAMB, {"max_grad_norm": None}),
         "apsgd": (mt.SGD, {"momentum": 0.9})}


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


def kept(p):
    """Is the parameter fp32 whatever the optimizer, with fp32 moments of ours?"""
    return p.dim() < 2 or p.numel() < 4096 or hasattr(p, "keep")


def ours(model, formats, rule, seed, lr, betas, eps, weight_decay):
    """Matrices are bf16 if the format is, with residual bits that restore their fp32 values."""
    start = {name: p.detach().clone() for name, p in model.state_dict().items()}
    if formats["preset"] in PRESETS:
        for p in model.parameters():
            if not kept(p): p.data = p.data.bfloat16()
    made, k = RULES[rule]
    k = {**k, **({"betas": betas} if rule != "apsgd" else {}), **({"eps": eps} if rule in ("apadamw", "lamb") else {})}
    named = list(model.named_parameters())
    groups = [{"params": [x for x in named if not kept(x[1])], **formats}, {"params": [x for x in named if kept(x[1])], "preset": "fp32"}]
    opt = made([g for g in groups if g["params"]], lr, weight_decay=weight_decay, seed=seed, **k)
    mt.load_fp32_state_dict(model, opt, start)
    return opt


def make(name, model, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, seed=0, rule="apadamw"):
    """Call before the first forward: parameters may become bf16."""
    k = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    if name in OURS: return ours(model, OURS[name], rule, seed, **k)
    if name in ("bf16", "ao8_sr"):
        for p in model.parameters():
            if not kept(p): p.data = p.data.bfloat16()
    params = list(model.parameters())
    if name == "amp" or name == "bf16": return torch.optim.AdamW(params, fused=True, **k)
    if name == "flash": return Flash(params, **k)
    if name.startswith("bnb8"):
        import bitsandbytes
        return bitsandbytes.optim.AdamW8bit(params, min_8bit_size=4096, **k)
    from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
    kind = {"ao8": AdamW8bit, "ao8_sr": AdamW8bit, "ao4": AdamW4bit, "aofp8": AdamWFp8}[name]
    return kind(params, bf16_stochastic_round=name.endswith("_sr"), **k)
