"""Gradient errors of PyTorch's autocast to bf16 compared with float64 in the towers of tests/train/tower_outliers.c, as rows of its table.

    python tests/bench/tower_outliers.py [SEEDS]

The towers' random values depend on a parameter's name and a seed; the C test has seed 0. The limits are means over SEEDS (default 1)."""
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F

B, SIDE, PATCH, D, DEPTH, OUT, HEADS, CHANNEL, GAMMA, UNIT = 8, 28, 7, 256, 4, 64, 4, 7, 11, 5
P = (SIDE // PATCH) ** 2
CASES = [("no outlier", None, 1), ("channel of the stream 100", "stream", 100), ("channel of the stream 3,000", "stream", 3000),
         ("tokens times 1,000", "tokens", 1000), ("hidden unit 3,000", "hidden", 3000), ("gamma times 300", "gamma", 300),
         ("gamma times 3,000", "gamma", 3000)]


def normal(name, shape, seed=0):
    h = np.uint64(2166136261)
    for c in (name + (f"#{seed}" if seed else "")).encode():
        h = (h ^ np.uint64(c)) * np.uint64(16777619) & np.uint64(0xFFFFFFFF)
    i = np.arange(4 * int(np.prod(shape)), dtype=np.uint64)
    m = np.uint64(0xFFFFFFFF)
    x = (i * np.uint64(0x9E3779B1) + h * np.uint64(0x85EBCA77)) & m
    x = (x ^ x >> np.uint64(16)) * np.uint64(0x21F0AAAD) & m
    x = (x ^ x >> np.uint64(15)) * np.uint64(0xD35A2D97) & m
    x = (x ^ x >> np.uint64(15)).astype(np.float64) / 2**32
    return torch.from_numpy(((x.reshape(-1, 4).sum(1) - 2) * math.sqrt(3)).reshape(shape))


# (key of the tower, what it is here, shape)
def timm(family):
    eva = family.startswith("eva")
    yield "cls_token", "cls", (1, 1, D)
    yield "pos_embed", "pos", (1, 1 + P, D)
    if not eva:
        yield "register_tokens", "registers", (1, 4, D)
    yield "patch_embed.proj.weight", "patch_w", (D, 3, PATCH, PATCH)
    yield "patch_embed.proj.bias", "patch_b", (D,)
    for n in range(DEPTH):
        b = f"blocks.{n}."
        for norm in "norm1", "norm2":
            yield f"{b}{norm}.weight", f"{n}.{norm}_w", (D,)
            yield f"{b}{norm}.bias", f"{n}.{norm}_b", (D,)
        yield f"{b}attn.qkv.weight", f"{n}.qkv_w", (3 * D, D)
        if eva:
            yield f"{b}attn.q_bias", f"{n}.q_b", (D,)
            yield f"{b}attn.v_bias", f"{n}.v_b", (D,)
        else:
            yield f"{b}attn.qkv.bias", f"{n}.qkv_b", (3 * D,)
            yield f"{b}ls1.gamma", f"{n}.ls1", (D,)
            yield f"{b}ls2.gamma", f"{n}.ls2", (D,)
        yield f"{b}attn.proj.weight", f"{n}.proj_w", (D, D)
        yield f"{b}attn.proj.bias", f"{n}.proj_b", (D,)
        yield f"{b}mlp.fc1.weight", f"{n}.fc1_w", (4 * D, D)
        yield f"{b}mlp.fc1.bias", f"{n}.fc1_b", (4 * D,)
        yield f"{b}mlp.fc2.weight", f"{n}.fc2_w", (D, 4 * D)
        yield f"{b}mlp.fc2.bias", f"{n}.fc2_b", (D,)
    yield "norm.weight", "norm_w", (D,)
    yield "norm.bias", "norm_b", (D,)
    if eva:
        yield "head.weight", "out_w", (OUT, D)
        yield "head.bias", "out_b", (OUT,)


def openclip():
    yield "class_embedding", "cls", (D,)
    yield "positional_embedding", "pos", (1 + P, D)
    yield "conv1.weight", "patch_w", (D, 3, PATCH, PATCH)
    yield "ln_pre.weight", "pre_w", (D,)
    yield "ln_pre.bias", "pre_b", (D,)
    for n in range(DEPTH):
        b = f"transformer.resblocks.{n}."
        for norm in "1", "2":
            yield f"{b}ln_{norm}.weight", f"{n}.norm{norm}_w", (D,)
            yield f"{b}ln_{norm}.bias", f"{n}.norm{norm}_b", (D,)
        yield f"{b}attn.in_proj_weight", f"{n}.qkv_w", (3 * D, D)
        yield f"{b}attn.in_proj_bias", f"{n}.qkv_b", (3 * D,)
        yield f"{b}attn.out_proj.weight", f"{n}.proj_w", (D, D)
        yield f"{b}attn.out_proj.bias", f"{n}.proj_b", (D,)
        yield f"{b}mlp.c_fc.weight", f"{n}.fc1_w", (4 * D, D)
        yield f"{b}mlp.c_fc.bias", f"{n}.fc1_b", (4 * D,)
        yield f"{b}mlp.c_proj.weight", f"{n}.fc2_w", (D, 4 * D)
        yield f"{b}mlp.c_proj.bias", f"{n}.fc2_b", (D,)
    yield "ln_post.weight", "norm_w", (D,)
    yield "ln_post.bias", "norm_b", (D,)
    yield "proj", "out_p", (D, OUT)


def bf16(x):
    return x.float().bfloat16().double()


def values(family, what, size, seed):
    made = {}
    for key, name, shape in openclip() if family == "openclip" else timm(family):
        x, part = normal(key, shape, seed), name.split(".")[-1]
        if part == "cls":
            x = x * (size if what == "tokens" else 1)
        elif part == "registers":
            x = x * (size if what == "tokens" else 1)
        elif part == "pos":
            x = 0.5 * x
        elif part in ("pre_w", "norm_w", "norm1_w", "norm2_w"):
            x = 1 + 0.2 * x
        elif part in ("ls1", "ls2"):
            x = 0.3 + 0.1 * x
        elif part.endswith("_w") or part == "out_p":
            x = bf16(x / math.sqrt(x.numel() // shape[0]))
        else:
            x = 0.1 * x
        if what == "stream" and part in ("registers", "pos", "pre_b"):
            x[..., CHANNEL] += size
        if what == "hidden" and name == "1.fc1_b":
            x[UNIT] = size
        if what == "gamma" and part in ("norm1_w", "norm1_b", "norm2_w", "norm2_b"):
            x[GAMMA] *= size
        if what == "gamma" and part in ("qkv_w", "fc1_w"):
            x[:, GAMMA] = bf16(x[:, GAMMA] / size)
        made[name] = x.float()
    return made


def forward(w, images, family):
    eps, post = 1e-5 if family == "openclip" else 1e-6, family == "eva post-norm"
    norm = lambda x, name: F.layer_norm(x, (D,), w[name + "_w"], w[name + "_b"], eps)
    n = images.shape[0]
    x = F.conv2d(images, w["patch_w"], w.get("patch_b"), stride=PATCH).flatten(2).transpose(1, 2)
    pos = w["pos"].reshape(1 + P, D)
    x = torch.cat([(w["cls"].reshape(1, 1, D) + pos[:1]).expand(n, 1, D)] +
                  ([w["registers"].expand(n, 4, D)] if "registers" in w else []) + [x + pos[1:]], 1)
    if "pre_w" in w:
        x = norm(x, "pre")
    for b in range(DEPTH):
        g = lambda name: w[f"{b}.{name}"]
        def attention(y):
            bias = w.get(f"{b}.qkv_b")
            bias = torch.cat([g("q_b"), torch.zeros_like(g("q_b")), g("v_b")]) if bias is None else bias
            q, k, v = F.linear(y, g("qkv_w"), bias).reshape(n, -1, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
            return F.linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, -1, D), g("proj_w"), g("proj_b"))
        mlp = lambda y: F.linear(F.gelu(F.linear(y, g("fc1_w"), g("fc1_b"))), g("fc2_w"), g("fc2_b"))
        if post:
            x = x + norm(attention(x), f"{b}.norm1")
            x = x + norm(mlp(x), f"{b}.norm2")
        else:
            x = x + w.get(f"{b}.ls1", 1) * attention(norm(x, f"{b}.norm1"))
            x = x + w.get(f"{b}.ls2", 1) * mlp(norm(x, f"{b}.norm2"))
    y = norm(x[:, 0], "norm")
    return F.linear(y, w["out_w"], w["out_b"]) if "out_w" in w else y @ w["out_p"] if "out_p" in w else y


def gradients(w, family, seed, dtype, autocast=False):
    w = {k: v.to(dtype).clone().requires_grad_() for k, v in w.items()}
    images = normal("images", (B, 3, SIDE, SIDE), seed).float().to(dtype)
    target = normal("target", (B, D if family == "dinov2" else OUT), seed).float().to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = forward(w, images, family)
    F.mse_loss(y.to(dtype), target).backward()
    return {k: v.grad.double() for k, v in w.items()}


def error(a, b, blocks):
    names = [n for n in b if not blocks or n[0].isdigit()]
    return math.sqrt(sum(((a[n] - b[n]) ** 2).sum() for n in names) / sum((b[n] ** 2).sum() for n in names))


if __name__ == "__main__":
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(1)
    for name, what, size in CASES:
        row = []
        for family in "dinov2", "openclip", "eva", "eva post-norm":
            errors = []
            for seed in range(seeds):
                w = values(family, what, size, seed)
                exact, half = gradients(w, family, seed, torch.float64), gradients(w, family, seed, torch.float32, True)
                errors.append([error(half, exact, False), error(half, exact, True)])
            row.append("{%.2e, %.2e}" % tuple(np.mean(errors, 0)))
        print(f"{name:28} {{{', '.join(row)}}}", flush=True)
