#!/usr/bin/env python3
"""Golden data of tests/golden/golden_initial.c: statistics of the initial values of real classes, tests/data/initial.json.

    git clone https://github.com/facebookresearch/dinov3
    python3 -m venv env && env/bin/pip install torch timm
    PYTHONPATH=dinov3 env/bin/python tests/make/initial.py tests/data/initial.json

Each parameter of meopt, under its name, is one or several of the class: count, mean, standard deviation, largest magnitude and
kurtosis (3: normal, 1.8: uniform) of their values. A parameter that the class lacks has no row.
"""
import json
import sys

import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer

SIZES = dict(image=32, patch=8, pos_grid=4, width=128, depth=3, heads=2, hidden=256, out=128)
TIMM = dict(img_size=32, patch_size=8, embed_dim=128, depth=3, num_heads=2, num_classes=0)


def dinov3():
    from dinov3.models.vision_transformer import DinoVisionTransformer
    module = DinoVisionTransformer(img_size=32, patch_size=8, embed_dim=128, depth=3, num_heads=2, ffn_ratio=3, layerscale_init=1e-5,
                                   norm_layer="layernormbf16", ffn_layer="swiglu", n_storage_tokens=8, mask_k_bias=True)
    module.init_weights()
    return module


# Each case: sizes besides the usual, the class, and the parts of its names that meopt has otherwise.
CASES = [
    (dict(family="dinov2", ffn="mlp", registers=8), lambda: VisionTransformer(mlp_ratio=2, reg_tokens=8, init_values=1e-5, no_embed_class=True, **TIMM),
     [("reg_token", "register_tokens")]),
    (dict(family="openclip", ffn="mlp"), lambda: VisionTransformer(mlp_ratio=2, pre_norm=True, **TIMM),
     [("cls_token", "class_embedding"), ("pos_embed", "positional_embedding"), ("patch_embed.proj", "conv1"), ("norm_pre", "ln_pre"),
      ("blocks.", "transformer.resblocks."), (".norm1.", ".ln_1."), (".norm2.", ".ln_2."), (".attn.qkv.", ".attn.in_proj_"),
      (".attn.proj.", ".attn.out_proj."), (".fc1.", ".c_fc."), (".fc2.", ".c_proj."), ("norm.", "ln_post.")]),
    (dict(family="siglip", ffn="gelu_tanh", pool_heads=2), lambda: VisionTransformer(mlp_ratio=2, class_token=False, global_pool="map", **TIMM),
     [("attn_pool.q.", "attn_pool.qkv."), ("attn_pool.kv.", "attn_pool.qkv.")]),
    (dict(family="eva", ffn="swiglu", parts=["attn_norm", "ffn_norm", "qkv_bias"]),
     lambda: Eva(mlp_ratio=2, qkv_fused=False, swiglu_mlp=True, scale_mlp=True, scale_attn_inner=True, global_pool="token", **TIMM),
     [(".attn.norm.", ".attn.inner_attn_ln."), (".mlp.norm.", ".mlp.ffn_ln."), (".q_proj.bias", ".q_bias"), (".v_proj.bias", ".v_bias"),
      (".q_proj.", ".qkv."), (".k_proj.", ".qkv."), (".v_proj.", ".qkv."),
      ("fc1_g", "w12"), ("fc1_x", "w12"), (".fc2.", ".w3.")]),
    (dict(family="dinov3", ffn="swiglu", registers=8), dinov3, [(".w1.", ".w12."), (".w2.", ".w12.")]),
]


def renamed(name, names):
    for old, new in names:
        if old[0] == "." or "." not in old or name.startswith(old):
            name = name.replace(old, new, 1)
    return name


def statistics(x):
    mean, sd = x.mean(), x.std(unbiased=False)
    row = dict(count=x.numel(), mean=mean.item(), sd=sd.item(), most=x.abs().max().item())
    if row["sd"] > 0 and x.unique().numel() > 1:
        row["kurtosis"] = (((x - mean) / sd) ** 4).mean().item()
    else:
        row["sd"] = 0
    return row


def main():
    torch.manual_seed(60)
    cases = []
    for sizes, make, names in CASES:
        values = {}
        for name, p in make().named_parameters():
            values.setdefault(renamed(name, names), []).append(p.detach().double().flatten())
        rows = {name: statistics(torch.cat(parts)) for name, parts in values.items()}
        if sizes["family"] == "dinov3":  # the bias of the keys is masked, and the three are one vector
            for name in [k for k in rows if k.endswith("qkv.bias")]:
                third = values[name][0].chunk(3)
                del rows[name]
                rows[name.replace("qkv.bias", "q_bias")], rows[name.replace("qkv.bias", "v_bias")] = statistics(third[0]), statistics(third[2])
        cases.append({**SIZES, **sizes, "parameters": rows})
    with open(sys.argv[1], "w") as f:
        json.dump(cases, f, indent=0)
        f.write("\n")


main()
