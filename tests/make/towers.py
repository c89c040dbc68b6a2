#!/usr/bin/env python3
"""Golden data of tests/golden/golden_towers.c for the towers that came after the first seven: tests/data/towers/NAME.

    python3 -m venv env && env/bin/pip install torch timm open_clip_torch transformers safetensors
    env/bin/python tests/make/towers.py tests/data/towers [NAME ...]

Each case is a class of a real library with every parameter redrawn, so that no part is hidden by a zero bias or
a unit scale. The reference is its float64 forward and autograd from the fp32 values; the error that the same
class shows in bf16 throughout is written down next to it. Parameters go by the names of the original
repositories (DINOv2's hub, EVA-CLIP, open_clip); a case whose class has others maps them, differentiably.
"""
import json
import math
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.func import functional_call

BATCH = 3


def draw(shapes, seed, std=0.2):
    """fp32 values: norm weights 1 + N(0, std), everything else N(0, std)."""
    g = torch.Generator().manual_seed(seed)
    values = {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=g) * std
        norm = name.endswith("weight") and len(shape) == 1
        values[name] = x + 1 if norm else x
    return values


class Case:
    """Model shape, shapes of the parameters, and forward(values, images) -> blocks, out, patch rows or None."""

    def __init__(self, name, geometry, module, shapes, to_module, blocks, result, prefix=""):
        self.name, self.geometry, self.module, self.prefix = name, geometry, module, prefix
        self.shapes, self.to_module, self.blocks, self.result = shapes, to_module, blocks, result

    keep = None  # factors of drop path

    def forward(self, values, images):
        outputs = []
        hooks = [b.register_forward_hook(lambda m, i, o: outputs.append(o[0] if isinstance(o, tuple) else o))
                 for b in self.blocks(self.module)]
        got = functional_call(self.module, self.to_module(values), (images,))
        for h in hooks:
            h.remove()
        out, patches = self.result(self.module, got)
        return outputs, out, patches


def losses(out, patches, target, target_patch):
    found = {"raw": ((out - target) ** 2).mean(),
             "norm": ((F.normalize(out, dim=-1) - F.normalize(target, dim=-1)) ** 2).mean()}
    if patches is not None:
        found["clspatch"] = found["raw"] + ((patches - target_patch) ** 2).mean()
    return found


def run(case, values, images, target, target_patch, dtype):
    case.module.to(dtype)
    leaves = {k: v.to(dtype).requires_grad_(not k.endswith("mask_token")) for k, v in values.items()}
    blocks, out, patches = case.forward(leaves, images.to(dtype))
    found = losses(out.double(), None if patches is None else patches.double(), target.double(),
                   None if target_patch is None else target_patch.double())
    trained = [k for k, v in leaves.items() if v.requires_grad]
    grads = {m: dict(zip(trained, torch.autograd.grad(l, [leaves[k] for k in trained], retain_graph=True, allow_unused=True)))
             for m, l in found.items()}
    grads = {m: {k: torch.zeros_like(leaves[k]) if g is None else g for k, g in all.items()} for m, all in grads.items()}
    return blocks, out, patches, found, grads


def rel(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def sketch(g):
    d = 0
    while d < g.dim() - 1 and g.shape[d] == 1:
        d += 1
    m = g.double().reshape(g.shape[d], -1)
    i, j = torch.arange(m.shape[0], dtype=torch.float64), torch.arange(m.shape[1], dtype=torch.float64)
    return {"#row": (m * torch.cos(0.37 * j + 0.1)).sum(1), "#col": (m * torch.cos(0.53 * i + 0.2)[:, None]).sum(0),
            "#fro": m.norm().reshape(1)}


class Given(torch.nn.Module):
    """Drop path of one branch with given factors (BATCH)."""

    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def forward(self, x):
        return x * self.keep.to(x.dtype)[:, None, None]


def dropped(case):
    """The same class whose drop path has given factors (2 depth, BATCH)."""
    blocks, rate = case.blocks(case.module), torch.linspace(0, 0.5, 2 * len(case.blocks(case.module)))[:, None]
    drawn = torch.rand(2 * len(blocks), BATCH, generator=torch.Generator().manual_seed(11))
    case.keep = torch.where(drawn < rate, torch.zeros(1), 1 / (1 - rate))
    for i, block in enumerate(blocks):
        block.drop_path1, block.drop_path2 = Given(case.keep[2 * i]), Given(case.keep[2 * i + 1])
    return case


def make(case, root):
    g = case.geometry
    values = draw(case.shapes, seed=sum(map(ord, case.name)), std=g.pop("std", 0.2))
    rng = torch.Generator().manual_seed(7)
    images = torch.randn(BATCH, 3, g["image"], g["image"], generator=rng)
    target = torch.randn(BATCH, g["out"], generator=rng)
    rows = (g["image"] // g["patch"]) ** 2
    cls = g["family"].startswith(("dino", "pe", "radio")) and "pool" not in g
    target_patch = torch.randn(BATCH, rows, g["width"], generator=rng) if cls else None
    exact = run(case, values, images, target, target_patch, torch.float64)
    half = run(case, values, images, target, target_patch, torch.bfloat16)
    blocks, out, patches, found, grads = exact
    golden = {"images": images, "target": target, "x_norm_clstoken" if cls else "out": out.detach()}
    if case.keep is not None:
        golden["keep"] = case.keep
    if cls:
        golden["target_patch"] = target_patch
        golden["x_norm_patchtokens"] = patches.detach().float()
    for i, b in enumerate(blocks):
        golden[f"block.{i}.out"] = b.detach().float()
    for mode, loss in found.items():
        golden[f"loss.{mode}"] = loss.detach().reshape(1)
        for k, grad in grads[mode].items():
            if grad.numel() <= 2048 and mode == "raw" or grad.numel() <= 64:
                golden[f"grad.{mode}.{k}"] = grad.float()
            else:
                for end, s in sketch(grad).items():
                    golden[f"grad.{mode}.{k}{end}"] = s
    worst = {m: max((rel(half[4][m][k], v), k) for k, v in grads[m].items() if v.any()) for m in ("raw", "norm")}
    observed = {"out": rel(half[1], out), "block": max(rel(a, b) for a, b in zip(half[0], blocks))}
    if cls:
        observed["out"] = max(observed["out"], rel(half[2], patches))
    for m in worst:
        observed[f"loss.{m}"] = abs(half[3][m].item() - found[m].item()) / found[m].item()
        observed[f"grad.{m}"], observed[f"grad_worst.{m}"] = worst[m]
        errors = sorted(rel(half[4][m][k], v) for k, v in grads[m].items() if v.any())
        observed[f"grad_median.{m}"] = errors[len(errors) // 2]
    # a mask_token that the class lacks counts
    g.update(params=sum(v.numel() for v in values.values()) + g.pop("untrained", 0), file="model.safetensors", batch=BATCH,
             observed_rel_l2_error={"bf16": observed})
    directory = os.path.join(root, case.name)
    os.makedirs(directory, exist_ok=True)
    save_file({case.prefix + k: v for k, v in values.items()}, os.path.join(directory, "model.safetensors"))
    save_file({k: v.contiguous() for k, v in golden.items()}, os.path.join(directory, "golden.safetensors"))
    with open(os.path.join(directory, "geometry.json"), "w") as f:
        json.dump(g, f, indent=1)
        f.write("\n")
    print(case.name, {k: v if isinstance(v, str) else round(v, 4) for k, v in observed.items()})


def shapes_of(module, skip=()):
    return {k: tuple(v.shape) for k, v in module.named_parameters() if not k.startswith(skip)}


def renamed(module, names, fused, later=()):
    """to_module and shapes for names of the family: parts of a name exchanged, the rows of some matrices one after
    the other."""
    to, shapes = {}, {}
    for k, v in module.named_parameters():
        name, part = k, None
        for old, new in names:
            name = name.replace(old, new) if old[0] == "." or name.startswith(old) else name
        for olds, new in fused:
            for i, old in enumerate(olds):
                if old in name:
                    name, part = name.replace(old, new), (i, len(olds))
        for old, new in later:
            name = name.replace(old, new)
        rows = v.shape[0] * (part[1] if part else 1)
        shapes[name] = (rows,) + tuple(v.shape[1:])
        to[k] = (name, part)

    def to_module(values):
        return {k: values[n].chunk(p[1])[p[0]] if p else values[n] for k, (n, p) in to.items()}
    return to_module, shapes


# ---- open_clip -------------------------------------------------------------------------------------------


def resized(grid, antialias):
    """A position embedding with its class row for `grid` patches a side, as open_clip and timm resize at loading."""
    def resize(p):
        side = math.isqrt(p.shape[0] - 1)
        if side == grid:
            return p
        patches = p[1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
        patches = F.interpolate(patches, size=(grid, grid), mode="bicubic", antialias=antialias, align_corners=False)
        return torch.cat([p[:1], patches.permute(0, 2, 3, 1).reshape(grid * grid, -1).to(p.dtype)])
    return resize


def openclip(name, activation="gelu", image=28, pos_grid=4, pool="cls", out=16, **more):
    from open_clip.transformer import LayerNorm, QuickGELU, VisionTransformer
    g = dict(family="openclip", ffn="quick_gelu" if activation == "quick_gelu" else "mlp", image=image, patch=7,
             pos_grid=pos_grid, width=32, depth=2, heads=2, hidden=64, out=16)
    module = VisionTransformer(image_size=image, patch_size=7, width=32, layers=2, heads=2, mlp_ratio=2.0, output_dim=out,
                               act_layer=QuickGELU if activation == "quick_gelu" else torch.nn.GELU,
                               norm_layer=LayerNorm, **more)
    shapes = shapes_of(module)
    shapes["positional_embedding"] = (pos_grid ** 2 + 1, 32)
    if "ls_init_value" in more:
        g["layerscale"] = True
    if pool != "cls":
        g["pool"] = pool
    if more.get("attentional_pool"):
        g.update(out=out, parts=["pre_norm", "qkv_bias", "attn_pool"], pool_heads=more["attn_pooler_heads"],
                 pool_queries=more["attn_pooler_queries"])
    if more.get("no_ln_pre"):
        g["parts"] = ["qkv_bias"]
    if image // 7 != pos_grid:
        g["pos_resize"] = "timm"
    resize = resized(image // 7, True)

    def to_module(values):
        return {**values, "positional_embedding": resize(values["positional_embedding"])}
    return Case(name, g, module, shapes, to_module, lambda m: m.transformer.resblocks, lambda m, got: (got, None), "visual.")


# ---- timm ------------------------------------------------------------------------------------------------


class Features(torch.nn.Module):
    """All tokens after the last norm, in place of the pooled one."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner.forward_features(images)


def timm_dinov2(name, layerscale=True):
    """A DINOv2 tower of timm (or a plain ViT, without LayerScale) that resizes its positions, 5 x 5 to 4 x 4."""
    from timm.models.vision_transformer import VisionTransformer
    g = dict(family="dinov2", ffn="mlp", image=28, patch=7, pos_grid=5, width=32, depth=2, heads=2, hidden=48, out=32,
             pos_resize="timm", layerscale=layerscale, untrained=32)
    inner = VisionTransformer(img_size=35, patch_size=7, embed_dim=32, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=0,
                              global_pool="token", init_values=1.0 if layerscale else None, dynamic_img_size=True)
    return Case(name, g, Features(inner), shapes_of(inner), lambda v: {"inner." + k: x for k, x in v.items()},
                lambda m: m.inner.blocks, lambda m, got: (got[:, 0], got[:, 1:]))


class Pooled(Features):
    """The embedding: `pool` of the tokens, which have passed the last norm, or not."""

    def __init__(self, inner, pool):
        super().__init__(inner)
        self.pool = pool

    def forward(self, images):
        return self.pool(self.inner, self.inner.forward_features(images))


def timm_vit(name, pool, pooling, unused=(), cls=None, **more):
    """timm's plain ViT that averages; without a class token, with register tokens, with one for distillation."""
    from timm.models.vision_transformer import VisionTransformer
    inner = (cls or VisionTransformer)(img_size=35, patch_size=7, embed_dim=32, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=0,
                                       dynamic_img_size=True, **more)
    names = [("reg_token", "register_tokens"), ("dist_token", "register_tokens"), ("fc_norm.", "norm.")]
    to, shapes = renamed(inner, names, [])
    shapes.update({k: (32,) for k in unused})
    registers = more.get("reg_tokens", 1 if cls else 0)
    if cls:  # here the distillation token is a register token, and has no position of its own
        shapes["pos_embed"] = (1, 26, 32)

    def to_module(values):
        values = {k: v for k, v in values.items() if k not in unused}
        if cls:
            pos = values["pos_embed"]
            values = {**values, "pos_embed": torch.cat([pos[:, :1], torch.zeros_like(pos[:, :1]), pos[:, 1:]], 1)}
        return {"inner." + k: v for k, v in to(values).items()}
    g = dict(family="dinov2", ffn="mlp", image=28, patch=7, pos_grid=5, width=32, depth=2, heads=2, hidden=48, out=32, pool=pool,
             pos_resize="timm", layerscale=False, registers=registers, classless=not more.get("class_token", True), untrained=32)
    return Case(name, g, Pooled(inner, pooling), shapes, to_module, lambda m: m.inner.blocks, lambda m, got: (got, None))


def timm_distilled(name):
    from timm.models.deit import VisionTransformerDistilled
    return timm_vit(name, "cls_dist", lambda m, x: x[:, :2].mean(1), cls=VisionTransformerDistilled)


GAP = dict(class_token=False, no_embed_class=True, global_pool="avg")


def timm_eva(name, image=28, pos_grid=4, parts=("qkv_bias",), norm="pre", pool="cls", names=(), **more):
    """EVA's block as timm's class has it, under the family's own names: split matrices are one there."""
    from timm.models.eva import Eva
    gated = more.get("swiglu_mlp", False)
    out = 32 if pool == "avg_first" else 16
    g = dict(family="eva", ffn="swiglu" if gated else "mlp", image=image, patch=7, pos_grid=pos_grid, width=32, depth=2,
             heads=2, hidden=48, out=out, layerscale="init_values" in more, norm=norm, pool=pool, parts=list(parts))
    module = Eva(img_size=image, patch_size=7, embed_dim=32, depth=2, num_heads=2, mlp_ratio=1.5,
                 num_classes=0 if pool == "avg_first" else out, global_pool="token" if pool == "cls" else "avg",
                 ref_feat_shape=(16, 16), **more)
    to, shapes = renamed(module, [(".attn.norm.", ".attn.inner_attn_ln."), (".mlp.norm.", ".mlp.ffn_ln."),
                                  ("fc_norm.", "norm.")] + list(names),
                         [([f".attn.{x}_proj.weight" for x in "qkv"], ".attn.qkv.weight"),
                          ([f".mlp.fc1_{x}.weight" for x in "gx"], ".mlp.w12.weight"),
                          ([f".mlp.fc1_{x}.bias" for x in "gx"], ".mlp.w12.bias")]
                         + ([([".mlp.fc1.weight"], ".mlp.w12.weight"), ([".mlp.fc1.bias"], ".mlp.w12.bias")] if gated else []),
                         [(".attn.q_proj.bias", ".attn.q_bias"), (".attn.v_proj.bias", ".attn.v_bias")]
                         + ([(".mlp.fc2.", ".mlp.w3.")] if gated else []))
    shapes["pos_embed"] = (1, pos_grid ** 2 + 1, 32)
    if image // 7 != pos_grid:
        g["pos_resize"] = "timm"
    resize = resized(image // 7, True)

    def to_module(values):
        return {**to(values), "pos_embed": resize(values["pos_embed"][0])[None]}
    return Case(name, g, module, shapes, to_module, lambda m: m.blocks, lambda m, got: (got, None), "visual.")


def siglip(name, image=30, pos_grid=4):
    """SigLIP's tower as timm has it, with the pooling's queries, keys and values in one matrix. An image of 30 pixels has four
    patches of seven a side, and pixels that no patch has."""
    from timm.models.vision_transformer import VisionTransformer
    g = dict(family="siglip", ffn="gelu_tanh", image=image, patch=7, pos_grid=pos_grid, width=32, depth=2, heads=2, hidden=48, out=32,
             pool_heads=2, pool_queries=1, classless=True)
    module = VisionTransformer(img_size=image, patch_size=7, embed_dim=32, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=0,
                               class_token=False, global_pool="map", act_layer="gelu_tanh")
    shapes = shapes_of(module, ("attn_pool.q.", "attn_pool.kv."))
    for end in "weight", "bias":
        shapes["attn_pool.qkv." + end] = (96,) + (32,) * (end == "weight")
    shapes["pos_embed"] = (1, pos_grid ** 2, 32)
    grid = image // 7

    def resize(p):
        if grid == pos_grid:
            return p
        patches = p.float().reshape(1, pos_grid, pos_grid, -1).permute(0, 3, 1, 2)
        patches = F.interpolate(patches, size=(grid, grid), mode="bicubic", antialias=True, align_corners=False)
        return patches.permute(0, 2, 3, 1).reshape(1, grid * grid, -1).to(p.dtype)

    def to_module(values):
        own = {k: v for k, v in values.items() if not k.startswith("attn_pool.qkv.")}
        for end in "weight", "bias":
            own["attn_pool.q." + end], own["attn_pool.kv." + end] = values["attn_pool.qkv." + end].split([32, 64])
        return {**own, "pos_embed": resize(values["pos_embed"])}
    return Case(name, g, module, shapes, to_module, lambda m: m.blocks, lambda m, got: (got, None))


# ---- transformers ----------------------------------------------------------------------------------------

HF_DINOV2 = [("embeddings.cls_token", "cls_token"), ("embeddings.mask_token", "mask_token"),
             ("embeddings.position_embeddings", "pos_embed"), ("embeddings.register_tokens", "register_tokens"),
             ("embeddings.patch_embeddings.projection.", "patch_embed.proj."), ("layernorm.", "norm."),
             (".attention.o_proj.", ".attn.proj."),
             (".layer_scale1.lambda1", ".ls1.gamma"),
             (".layer_scale2.lambda1", ".ls2.gamma"), ("encoder.layer.", "blocks.")]


def hf_dinov2(name, registers=0):
    """transformers' Dinov2Model, WithRegisters too, under the hub's names. Positions 5 x 5, image 4 x 4."""
    from transformers import Dinov2Config, Dinov2Model, Dinov2WithRegistersConfig, Dinov2WithRegistersModel
    g = dict(family="dinov2", ffn="mlp", image=28, patch=7, pos_grid=5, width=32, depth=2, heads=2, hidden=64, out=32,
             registers=registers, pos_resize="auto" if registers else "hf")
    settings = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=35, patch_size=7,
                    drop_path_rate=0.0)
    module = (Dinov2WithRegistersModel(Dinov2WithRegistersConfig(num_register_tokens=registers, **settings)) if registers
              else Dinov2Model(Dinov2Config(**settings))).eval()
    names, shapes = {}, {}
    for k, v in module.named_parameters():
        hub = k
        for old, new in HF_DINOV2:
            hub = hub.replace(old, new)
        names[k] = hub
    parts = [f".attention.{p}_proj." for p in "qkv"]
    for k, v in module.named_parameters():
        part = [p for p in parts if p in k]
        if part:
            fused = names[k].replace(part[0], ".attn.qkv.")
            shapes[fused] = (3 * v.shape[0],) + tuple(v.shape[1:])
            names[k] = (fused, parts.index(part[0]))
        else:
            shapes[names[k]] = tuple(v.shape)

    def to_module(values):
        return {k: values[n[0]].chunk(3)[n[1]] if isinstance(n, tuple) else values[n] for k, n in names.items()}
    return Case(name, g, module, shapes, to_module, lambda m: m.encoder.layer,
                lambda m, got: (got.last_hidden_state[:, 0], got.last_hidden_state[:, 1 + registers:]))


def hf_dinov3(name, image=28, gated=False, registers=4, bias=True):
    """transformers' DINOv3ViTModel, under the names of DINOv3's repository, but for fused matrices and split biases."""
    from transformers import DINOv3ViTConfig, DINOv3ViTModel
    g = dict(family="dinov3", ffn="swiglu" if gated else "mlp", image=image, patch=7, pos_grid=image // 7, width=32, depth=2,
             heads=2, hidden=48, out=32, registers=registers, parts=["qkv_bias"] if bias else [])
    module = DINOv3ViTModel(DINOv3ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=7,
        num_register_tokens=registers, use_gated_mlp=gated, hidden_act="silu" if gated else "gelu", query_bias=bias,
        value_bias=bias)).eval()
    to, shapes = renamed(module, [("embeddings.cls_token", "cls_token"), ("embeddings.mask_token", "mask_token"),
                                  ("embeddings.register_tokens", "storage_tokens"), ("model.layer.", "blocks."),
                                  ("embeddings.patch_embeddings.", "patch_embed.proj."),
                                  (".attention.o_proj.", ".attn.proj."), (".layer_scale1.lambda1", ".ls1.gamma"),
                                  (".layer_scale2.lambda1", ".ls2.gamma")],
                         [([f".attention.{x}_proj.weight" for x in "qkv"], ".attn.qkv.weight")]
                         + ([([f".mlp.{x}_proj.weight" for x in ("gate", "up")], ".mlp.w12.weight"),
                             ([f".mlp.{x}_proj.bias" for x in ("gate", "up")], ".mlp.w12.bias")] if gated else []),
                         [(".attention.q_proj.bias", ".attn.q_bias"), (".attention.v_proj.bias", ".attn.v_bias"),
                          (".mlp.up_proj.", ".mlp.fc1."), (".mlp.down_proj.", ".mlp.w3." if gated else ".mlp.fc2.")])
    return Case(name, g, module, shapes, to, lambda m: m.model.layer,
                lambda m, got: (got.last_hidden_state[:, 0], got.last_hidden_state[:, 1 + registers:]))


# ---- Perception Encoder ----------------------------------------------------------------------------------

PE_NAMES = [("norm_pre.", "ln_pre."), ("patch_embed.proj.", "conv1."), ("blocks.", "transformer.resblocks."), (".norm1.", ".ln_1."),
            (".norm2.", ".ln_2."), (".attn.qkv.", ".attn.in_proj_"), (".attn.proj.", ".attn.out_proj."), (".fc1.", ".c_fc."),
            (".fc2.", ".c_proj."), (".gamma_1", ".ls_1.gamma"), (".gamma_2", ".ls_2.gamma"), ("cls_token", "class_embedding"),
            ("pos_embed", "positional_embedding")]


def pe(name, image=28, cls=True, timm=False, layerscale=None):
    """PE-Spatial, of facebookresearch/perception_models (on PYTHONPATH, with einops) or of timm. Positions are 4 x 4."""
    g = dict(family="pe", ffn="mlp", image=image, patch=7, pos_grid=4, width=32, depth=2, heads=2, hidden=48, out=32,
             layerscale=layerscale is not None, classless=not cls, pos_resize="timm" if timm else "bilinear")
    if not cls:
        g["pool"] = "avg"
    if timm:
        from timm.models.eva import Eva
        inner = Eva(img_size=image, patch_size=7, embed_dim=32, depth=2, num_heads=2, mlp_ratio=1.5, attn_type="rope", num_classes=0,
                    use_pre_transformer_norm=True, use_post_transformer_norm=False, use_fc_norm=False, use_rot_pos_emb=True,
                    ref_feat_shape=(4, 4), rope_grid_offset=1.0, rope_grid_indexing="xy", init_values=layerscale, class_token=cls,
                    norm_layer=lambda d, **k: torch.nn.LayerNorm(d, eps=1e-5, **k))
        module, resize = Features(inner), resized(image // 7, True)
        to, shapes = renamed(inner, PE_NAMES, [])
        shapes["class_embedding"], shapes["positional_embedding"] = (32,), (17, 32)

        def to_module(values):
            values = {**values, "class_embedding": values["class_embedding"][None, None],
                      "positional_embedding": resize(values["positional_embedding"])[None]}
            return {"inner." + k: v for k, v in to(values).items()}
        return Case(name, g, module, shapes, to_module, lambda m: m.inner.blocks, lambda m, got: (got[:, 0], got[:, 1:]), "visual.")
    from core.vision_encoder.pe import VisionTransformer
    module = VisionTransformer(patch_size=7, width=32, layers=2, heads=2, mlp_ratio=1.5, use_ln_post=False, image_size=28, use_cls_token=cls,
                               output_dim=None, pool_type="none", ls_init_value=layerscale)
    return Case(name, g, module, shapes_of(module), dict, lambda m: m.transformer.resblocks,
                lambda m, got: (got[:, 0], got[:, 1:]) if cls else (got.mean(1), None), "visual.")


# ---- C-RADIO ---------------------------------------------------------------------------------------------


def radio(name, image=28, layerscale=None):
    """RADIOModel of NVlabs/RADIO (on PYTHONPATH, with einops), 3 class tokens and 5 registers, positions 8 x 8."""
    from radio.enable_cpe_support import enable_cpe
    from radio.input_conditioner import get_default_conditioner
    from radio.radio_model import RADIOModel
    from timm.models.vision_transformer import VisionTransformer
    g = dict(family="radio", ffn="mlp", image=image, patch=7, pos_grid=8, width=32, depth=2, heads=2, hidden=48, out=32, registers=8,
             layerscale=layerscale is not None, classless=True)
    tower = VisionTransformer(img_size=28, patch_size=7, embed_dim=32, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=0, init_values=layerscale)
    tower.norm = torch.nn.Identity()
    enable_cpe(tower, 56, num_cls_tokens=3, register_multiple=8, num_registers=None)
    module = RADIOModel(tower, get_default_conditioner(), patch_size=7, max_resolution=2048, preferred_resolution=(28, 28),
                        summary_idxs=torch.tensor([0, 1])).eval()
    module.make_preprocessor_external()  # the images are normalized
    to, shapes = renamed(module, [(".gamma", ".grandma"), ("model.", "")], [])
    return Case(name, g, module, shapes, to, lambda m: m.model.blocks, lambda m, got: (got.summary[:, :32], got.features), "radio_model.model.")


class Archive(torch.nn.Module):
    """A tower's tensors as torch.jit.save lays them down: OpenAI published its CLIP so."""

    def __init__(self, values):
        super().__init__()
        for name in {k.split(".")[0] for k in values}:
            below = {k[len(name) + 1:]: v for k, v in values.items() if k.startswith(name + ".")}
            if below:
                self.add_module(name, Archive(below))
            else:
                self.register_parameter(name, torch.nn.Parameter(values[name], requires_grad=False))

    def forward(self, x: torch.Tensor):
        return x


EVA02 = dict(qkv_fused=False, swiglu_mlp=True, scale_mlp=True, scale_attn_inner=True, use_rot_pos_emb=True)
CASES = {
    "openclip-quick": lambda n: openclip(n, "quick_gelu"),
    "openclip-layerscale": lambda n: openclip(n, ls_init_value=0.1),
    "openclip-resized": lambda n: openclip(n, image=42, pos_grid=4),
    "dinov2-registers": lambda n: hf_dinov2(n, 4),
    "dinov2-hf": lambda n: hf_dinov2(n),
    "dinov2-timm": timm_dinov2,
    "vit-plain": lambda n: timm_dinov2(n, False),
    "vit-reg-gap": lambda n: timm_vit(n, "avg_first", lambda m, x: m.fc_norm(x[:, 3:].mean(1)), reg_tokens=3, **GAP),
    "vit-gap": lambda n: timm_vit(n, "avg", lambda m, x: x.mean(1), fc_norm=False, **GAP),
    "vit-distilled": timm_distilled,
    "vit-avg-all": lambda n: timm_vit(n, "avg_all", lambda m, x: m.fc_norm(x.mean(1)), global_pool="avg"),
    "vit-avg-raw": lambda n: timm_vit(n, "avg_raw", lambda m, x: x[:, 1:].mean(1), ["norm.weight", "norm.bias"], final_norm=False),
    "vit-drop": lambda n: dropped(timm_vit(n, "avg", lambda m, x: x.mean(1), fc_norm=False, **GAP)),
    "dinov2-drop": lambda n: dropped(timm_dinov2(n)),
    "eva-drop": lambda n: dropped(timm_eva(n, norm="post", use_post_norm=True)),
    "eva-layerscale": lambda n: timm_eva(n, init_values=0.1, use_rot_pos_emb=False),
    "eva02": lambda n: timm_eva(n, parts=("attn_norm", "ffn_norm", "qkv_bias"), **EVA02),
    "eva02-larger": lambda n: timm_eva(n, image=42, parts=("attn_norm", "ffn_norm", "qkv_bias"), **EVA02),
    "eva02-plain": lambda n: timm_eva(n, pool="avg_first", swiglu_mlp=True, use_rot_pos_emb=True),
    "eva-postnorm": lambda n: timm_eva(n, norm="post", use_post_norm=True),
    "openclip-clipa": lambda n: openclip(n, pool="avg_first", no_ln_pre=True, pool_type="avg", final_ln_after_pool=True),
    "openclip-avg": lambda n: openclip(n, pool="avg", pool_type="avg"),
    "openclip-coca": lambda n: openclip(n, attentional_pool=True, attn_pooler_heads=2, attn_pooler_queries=5),
    "openclip-coca-wide": lambda n: openclip(n, out=48, attentional_pool=True, attn_pooler_heads=3, attn_pooler_queries=1),
    "siglip": siglip,
    "siglip-resized": lambda n: siglip(n, image=42),
    "dinov3": hf_dinov3,
    "dinov3-larger": lambda n: hf_dinov3(n, image=42),
    "dinov3-swiglu": lambda n: hf_dinov3(n, gated=True, registers=2, bias=False),
    "radio": radio,
    "radio-larger": lambda n: radio(n, image=70, layerscale=0.1),
    "pe": pe,
    "pe-larger": lambda n: pe(n, image=42, layerscale=0.1),
    "pe-classless": lambda n: pe(n, image=42, cls=False, layerscale=0.1),
    "pe-timm": lambda n: pe(n, image=42, timm=True, layerscale=0.1),
}


def main():
    torch.manual_seed(0)
    names = sys.argv[2:] or list(CASES)
    for name in names:
        make(CASES[name](name), sys.argv[1])
        if name == "openclip-quick":
            values = load_file(os.path.join(sys.argv[1], name, "model.safetensors"))
            torch.jit.script(Archive(values)).save(os.path.join(sys.argv[1], name, "archive.pt"))


if __name__ == "__main__":
    main()
