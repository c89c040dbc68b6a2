#!/usr/bin/env python3
"""Golden data of tests/golden/golden_names.c: towers as other libraries name them, tests/data/names.

    python3 -m venv env && env/bin/pip install torch torchvision timm transformers safetensors
    env/bin/python tests/make/names.py tests/data/names

Each row of index.json is a class of a real library, saved by that library (save_pretrained) or as its state dict, every
parameter redrawn; golden.safetensors holds the images and, for each row, the class's embedding of them, computed in float64
from the fp32 values. A row with `says` is refused, and the message has this name.
"""
import json
import os
import shutil
import sys
from functools import partial

import timm.layers
import torch
import transformers as hf
from safetensors.torch import save_file
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torchvision.models import VisionTransformer as torchvision_vit

root = sys.argv[1]
shutil.rmtree(root, ignore_errors=True)
os.makedirs(root)
rows, golden = [], {}
golden["images"] = images = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(7))
golden["larger"] = larger = torch.randn(2, 3, 42, 42, generator=torch.Generator().manual_seed(8))

SIDES = dict(image_size=28, patch_size=7)
TOWER = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, **SIDES)


def draw(module, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        x = torch.randn(p.shape, generator=g) * 0.2
        p.data = x + 1 if name.endswith(("weight", "gamma", "lambda1")) and p.dim() == 1 else x
    return module.eval()


def add(name, module, embed=None, resized=None, **more):
    directory = os.path.join(root, name)
    draw(module, len(rows))
    more.setdefault("change", lambda m: None)(module)
    del more["change"]
    if isinstance(module, hf.PreTrainedModel):
        module.save_pretrained(directory)
        for beside in os.listdir(directory):
            if beside not in ("config.json", "model.safetensors"):
                os.remove(os.path.join(directory, beside))
    else:
        os.makedirs(directory)
        save_file(module.state_dict(), os.path.join(directory, "model.safetensors"))
    if embed:
        with torch.no_grad():
            golden[name] = embed(module.double(), images.double()).float().contiguous()
            if resized:  # the library resizes its positions
                golden[name + ".larger"] = resized(module, larger.double()).float().contiguous()
    rows.append(dict(name=name, **more))


def refuse(name, module, says, **more):
    add(name, module, says=says, **more)


# ---- transformers ----
def clip(**more):
    return hf.CLIPVisionConfig(intermediate_size=32, projection_dim=8, **TOWER, **more)


def dinov2(cls=hf.Dinov2Config, **more):
    return cls(mlp_ratio=2, **TOWER, **more)


pooled = lambda m, x: m(pixel_values=x).pooler_output
add("clip-vision", hf.CLIPVisionModel(clip()), pooled,
    lambda m, x: m(pixel_values=x, interpolate_pos_encoding=True).pooler_output, family="openclip", ffn="quick_gelu", out=16)
add("clip-projection", hf.CLIPVisionModelWithProjection(clip(hidden_act="gelu")), lambda m, x: m(pixel_values=x).image_embeds,
    family="openclip", ffn="gelu", out=8)
text = dict(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=4)
add("clip", hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=clip().to_dict(), projection_dim=8)),
    lambda m, x: m.visual_projection(m.vision_model(pixel_values=x).pooler_output), family="openclip", ffn="quick_gelu", out=8)
add("dinov2", hf.Dinov2Model(dinov2()), pooled, pooled, family="dinov2", ffn="gelu", out=16)
add("dinov2-giant", hf.Dinov2Model(dinov2(use_swiglu_ffn=True)), pooled, family="dinov2", ffn="swiglu", out=16)
add("dinov2-classifier", hf.Dinov2ForImageClassification(dinov2(num_labels=3)), lambda m, x: pooled(m.dinov2, x),
    family="dinov2", ffn="gelu", out=16)
add("dinov2-registers", hf.Dinov2WithRegistersModel(dinov2(hf.Dinov2WithRegistersConfig)), pooled, pooled, family="dinov2", ffn="gelu",
    out=16, registers=4)
SIGLIP = dict(family="siglip", ffn="gelu_tanh", out=16)
add("siglip", hf.SiglipVisionModel(hf.SiglipVisionConfig(intermediate_size=32, **TOWER)), pooled,
    lambda m, x: m(pixel_values=x, interpolate_pos_encoding=True).pooler_output, **SIGLIP)
hidden = lambda m, x: m(pixel_values=x).last_hidden_state[:, 0]
add("vit", hf.ViTModel(hf.ViTConfig(intermediate_size=32, **TOWER)), hidden,
    lambda m, x: m(pixel_values=x, interpolate_pos_encoding=True).last_hidden_state[:, 0], family="dinov2", ffn="gelu", out=16)


def dinov3(**more):
    return hf.DINOv3ViTModel(hf.DINOv3ViTConfig(intermediate_size=32, **TOWER, **more))


DINOV3 = dict(family="dinov3", ffn="gelu", out=16)
add("dinov3", dinov3(), pooled, pooled, **DINOV3)

# ---- timm ----
SMALL = dict(img_size=28, patch_size=7, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2)
CLIP = dict(pre_norm=True, norm_layer=partial(torch.nn.LayerNorm, eps=1e-5), **SMALL)
embed = lambda m, x: m(x)


def zero_bias(m):
    m.head.bias.data.zero_()  # as timm's conversion of a CLIP projection, which has none


add("timm-dinov2", VisionTransformer(num_classes=0, init_values=1e-5, dynamic_img_size=True, **SMALL), embed, embed, family="dinov2", ffn="gelu", out=16)
add("timm-dinov2-giant", VisionTransformer(num_classes=0, init_values=1e-5, mlp_layer=timm.layers.SwiGLUPacked,
                                           act_layer=torch.nn.SiLU, **dict(SMALL, mlp_ratio=2.5)),
    embed, family="dinov2", ffn="swiglu", out=16)
add("timm-clip", VisionTransformer(num_classes=8, dynamic_img_size=True, **CLIP), embed, embed, family="openclip", ffn="gelu", out=8, change=zero_bias)
add("timm-clip-quick", VisionTransformer(num_classes=8, act_layer=timm.layers.QuickGELU, **CLIP), embed,
    family="openclip", ffn="quick_gelu", out=8, change=zero_bias)
add("timm-clip-bare", VisionTransformer(num_classes=0, **CLIP), embed, family="openclip", ffn="gelu", out=16)
add("timm-eva", Eva(num_classes=8, global_pool="token", use_rot_pos_emb=False, **SMALL), embed, family="eva", ffn="gelu", out=8)
features = lambda m, x: m.forward_head(m.forward_features(x), pre_logits=True)  # without the classifier
add("timm-clip-classifier", VisionTransformer(num_classes=3, **CLIP), features, family="openclip", ffn="gelu", out=16)
add("timm-dinov2-registers", VisionTransformer(num_classes=0, init_values=1e-5, reg_tokens=4, no_embed_class=True,
                                               dynamic_img_size=True, **SMALL), embed, embed, family="dinov2", ffn="gelu", out=16, registers=4)
MAP = dict(num_classes=0, class_token=False, global_pool="map", dynamic_img_size=True, **SMALL)
add("timm-siglip", VisionTransformer(**MAP), embed, embed, **dict(SIGLIP, ffn="gelu"))

add("dinov3-registers", dinov3(num_register_tokens=4), pooled, pooled, **dict(DINOV3, registers=4))
add("dinov3-swiglu", dinov3(num_register_tokens=4, use_gated_mlp=True, hidden_act="silu", query_bias=False, value_bias=False), pooled,
    pooled, **dict(DINOV3, registers=4, ffn="swiglu"))

# Averages of the patches, and EVA02: rotary positions, SwiGLU, norms inside the branches or after them.
EVA02 = dict(use_rot_pos_emb=True, ref_feat_shape=(16, 16), swiglu_mlp=True, dynamic_img_size=True, **SMALL)
SPLIT = dict(qkv_fused=False, scale_mlp=True, scale_attn_inner=True, **EVA02)
EVA = dict(family="eva", ffn="swiglu", out=8)
add("timm-vit-avg", VisionTransformer(num_classes=0, global_pool="avg", dynamic_img_size=True, **SMALL), embed, embed,
    family="dinov2", ffn="gelu", out=16, pool="avg_first")
add("timm-eva02", Eva(num_classes=8, global_pool="token", **SPLIT), embed, embed, **EVA)
add("timm-eva02-plain", Eva(num_classes=0, **EVA02), embed, embed, **dict(EVA, out=16), pool="avg_first")
add("timm-eva02-plain-split", Eva(num_classes=0, **dict(SPLIT, scale_attn_inner=False)), embed, **dict(EVA, out=16), pool="avg_first")
add("timm-eva-postnorm", Eva(num_classes=8, global_pool="token", use_post_norm=True, **SMALL), embed, norm="post",
    **dict(EVA, ffn="gelu"))
REGISTERS = dict(use_rot_pos_emb=True, use_abs_pos_emb=False, rope_type="dinov3", rope_temperature=100, rope_rotate_half=True,
                 num_reg_tokens=4, init_values=1e-5, use_fc_norm=False, norm_layer=partial(torch.nn.LayerNorm, eps=1e-5),
                 dynamic_img_size=True, num_classes=0, **SMALL)
add("timm-dinov3", Eva(global_pool="token", qkv_bias=False, **REGISTERS), embed, embed, **dict(DINOV3, registers=4))
add("timm-dinov3-swiglu", Eva(global_pool="avg", swiglu_mlp=True, swiglu_align_to=8, **REGISTERS), embed, embed, untold="avg",
    **dict(DINOV3, registers=4, ffn="swiglu"))


class Wrapped(torch.nn.Module):
    """A class under other names, with tensors next to its own."""

    def __init__(self, inner, rename, beside):
        super().__init__()
        self.inner, self.rename, self.beside = inner, rename, beside

    def state_dict(self):
        found = {}
        for k, v in self.inner.state_dict().items():
            k, v = self.rename(k, v)
            found[k] = v.contiguous()
        return {**found, **self.beside(found)}

    def forward(self, x):
        return self.inner(x)


def replaced(*pairs):
    def rename(k, v):
        for old, new in pairs:
            k = k.replace(old, new)
        return k, v
    return rename


# EVA-CLIP's own repository keeps its tables of cosines and sines, once in the tower and once in every block.
def tables(found):
    emb = timm.layers.RotaryEmbeddingCat(8, in_pixels=False, feat_shape=[4, 4], ref_feat_shape=[16, 16]).get_embed()
    sin, cos = (x.contiguous() for x in emb.chunk(2, -1))
    names = ["visual.rope.freqs_"] + [f"visual.blocks.{i}.attn.rope.freqs_" for i in range(2)]
    return {n + k: v.clone() for n in names for k, v in (("cos", cos), ("sin", sin))}


def other_tables(found):
    return {k: v * 0.9 for k, v in tables(found).items()}


def eva_clip(k, v):
    k, v = replaced((".attn.norm.", ".attn.inner_attn_ln."), (".mlp.norm.", ".mlp.ffn_ln."), ("fc1_g", "w1"), ("fc1_x", "w2"),
                    ("mlp.fc2", "mlp.w3"), ("q_proj.bias", "q_bias"), ("v_proj.bias", "v_bias"))(k, v)
    return "visual." + k, v


add("eva02-clip", Wrapped(Eva(num_classes=8, global_pool="token", **SPLIT), eva_clip, tables), embed, **EVA)
refuse("eva02-clip-tables", Wrapped(Eva(num_classes=8, global_pool="token", **SPLIT), eva_clip, other_tables), "rotary positions")
refuse("eva-clip-rope", Wrapped(Eva(num_classes=8, global_pool="token", use_rot_pos_emb=True, **SMALL),
                                lambda k, v: ("visual." + k, v), tables), "rotary positions")


# DINOv3's own repository: q, k, v in one with a bias whose third for k is masked, the frequencies as a tensor.
class Hub(Wrapped):
    def state_dict(self):
        found, own = {}, self.inner.state_dict()
        for k, v in own.items():
            k = replaced(("patch_embeddings.", "patch_embed.proj."), ("embeddings.", ""), ("register_tokens", "storage_tokens"),
                         ("model.layer.", "blocks."), (".attention.o_proj.", ".attn.proj."), ("layer_scale1.lambda1", "ls1.gamma"),
                         ("layer_scale2.lambda1", "ls2.gamma"), ("gate_proj", "w1"),
                         ("up_proj", "w2" if self.beside else "fc1"), ("down_proj", "w3" if self.beside else "fc2"))(k, v)[0]
            if ".attention." not in k:
                found[k] = v[0].contiguous() if k == "mask_token" else v
        for i in range(2):
            old, new = f"model.layer.{i}.attention.", f"blocks.{i}.attn.qkv."
            found[new + "weight"] = torch.cat([own[old + f"{x}_proj.weight"] for x in "qkv"])
            if old + "q_proj.bias" in own:
                q, v = own[old + "q_proj.bias"], own[old + "v_proj.bias"]
                found[new + "bias"] = torch.cat([q, torch.ones_like(q), v])
                found[new + "bias_mask"] = torch.cat([torch.ones_like(q), torch.zeros_like(q), torch.ones_like(v)])
        found["rope_embed.periods"] = 100 ** (2 * torch.arange(2) / 4)
        return found

    def forward(self, x):
        return self.inner(pixel_values=x).pooler_output


add("dinov3-hub", Hub(dinov3(num_register_tokens=4), None, None), embed, **dict(DINOV3, registers=4))
add("dinov3-hub-swiglu", Hub(dinov3(num_register_tokens=4, use_gated_mlp=True, hidden_act="silu", query_bias=False, value_bias=False),
                             None, True), embed, **dict(DINOV3, registers=4, ffn="swiglu"))


def torchvision(k, v):  # as before torchvision 0.13, which its classes still read
    return replaced((".mlp.0.", ".mlp.linear_1."), (".mlp.3.", ".mlp.linear_2."))(k, v)


def classless(m):
    m.heads = torch.nn.Identity()


TORCHVISION = dict(family="dinov2", ffn="gelu", out=16)
vit = partial(torchvision_vit, 28, 7, 2, 2, 16, 32)
add("torchvision", vit(num_classes=3), lambda m, x: (classless(m), m(x))[1], **TORCHVISION)
add("torchvision-older", Wrapped(vit(num_classes=3), torchvision, lambda found: {}),
    lambda m, x: (classless(m.inner), m(x))[1], **TORCHVISION)

add("timm-eva02-classifier", Eva(num_classes=3, **SPLIT), features, **dict(EVA, out=16), pool="avg_first")
add("timm-eva02-classes", Eva(num_classes=1000, global_pool="token", **SPLIT), features, **dict(EVA, out=16))


class Memory(Wrapped):  # what torch.save(model.state_dict()) writes under transformers 5, different from save_pretrained
    def forward(self, x):
        return hidden(self.inner, x)


memory = lambda m: Memory(m, lambda k, v: (k, v), lambda found: {})
add("dinov2-memory", memory(hf.Dinov2Model(dinov2())), embed, family="dinov2", ffn="gelu", out=16)
add("dinov2-memory-swiglu", memory(hf.Dinov2Model(dinov2(use_swiglu_ffn=True))), embed, family="dinov2", ffn="swiglu", out=16)
add("vit-memory", memory(hf.ViTMAEModel(hf.ViTMAEConfig(intermediate_size=32, mask_ratio=0.0, **TOWER)).base_model), embed, family="dinov2",
    ffn="gelu", out=16)


# A file says how DINOv3's positions are rotated; and that a bias counts that is not there.
def periods(found):
    return {"rope_embed.periods": (50 ** (2 * torch.arange(2) / 4))}


class Rotated(Hub):
    def state_dict(self):
        return {**super().state_dict(), **periods(None)}


def masked(found):
    return {k: torch.ones_like(v) * 0.5 for k, v in found.items() if k.endswith("bias_mask")}


class Masked(Hub):
    def state_dict(self):
        found = super().state_dict()
        return {**found, **masked(found)}


add("dinov3-hub-periods", Rotated(dinov3(num_register_tokens=4, rope_theta=50.0), None, None), embed, **dict(DINOV3, registers=4))
refuse("dinov3-hub-mask", Masked(dinov3(num_register_tokens=4), None, None), "masks biases")


def mean_of_all(m, x):  # EVA-CLIP's use_mean_pooling: fc_norm of the mean of all tokens, the class token among them
    return m.head(m.fc_norm(m.forward_features(x).mean(1)))


class Mean(Wrapped):
    def forward(self, x):
        return mean_of_all(self.inner, x)


add("eva-clip-mean", Mean(Eva(num_classes=8, use_rot_pos_emb=False, **SMALL), lambda k, v: ("visual." + k, v), lambda found: {}), embed,
    **dict(EVA, ffn="gelu"), pool="avg_all")


class Projected(Wrapped):  # open_clip's timm_proj
    def __init__(self, inner, kind="proj", bias=None):
        weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(9))
        self.head = {"visual.head." + kind + ".weight": weight, **({"visual.head." + kind + ".bias": bias} if bias is not None else {})}
        super().__init__(inner, lambda k, v: ("visual.trunk." + k, v), lambda found: self.head)

    def forward(self, x):
        weight, *bias = self.head.values()
        return torch.nn.functional.linear(self.inner(x), weight.to(x.dtype), *(b.to(x.dtype) for b in bias))


add("openclip-timm-projection", Projected(Eva(num_classes=0, global_pool="token", **SPLIT)), embed, **EVA)
refuse("clip-projection-bias", Wrapped(hf.CLIPVisionModelWithProjection(clip()), lambda k, v: (k, v),
                                       lambda found: {"visual_projection.bias": torch.ones(8)}), "visual_projection.bias")

# Class tokens without a position, and towers without a class token.
PLAIN = dict(family="dinov2", ffn="gelu", out=16)
deit3 = partial(VisionTransformer, init_values=1e-6, no_embed_class=True, dynamic_img_size=True, **SMALL)
add("timm-deit3", deit3(num_classes=3), features, features, **PLAIN)
add("timm-flexivit", VisionTransformer(num_classes=3, no_embed_class=True, **SMALL), features, **PLAIN)
GAP = dict(class_token=False, no_embed_class=True, global_pool="avg", dynamic_img_size=True, **SMALL)
add("timm-reg-gap", VisionTransformer(num_classes=3, reg_tokens=4, init_values=1e-5, **GAP), features, features, pool="avg_first",
    **dict(PLAIN, registers=4))
add("timm-gap", VisionTransformer(num_classes=3, qkv_bias=False, fc_norm=False, **GAP), features, features, pool="avg", **PLAIN)
add("timm-reg", VisionTransformer(num_classes=3, reg_tokens=4, no_embed_class=True, global_pool="avg", **SMALL), features, pool="avg_first",
    **dict(PLAIN, registers=4))

# Register tokens with positions.
add("timm-reg-positions", VisionTransformer(num_classes=3, reg_tokens=4, dynamic_img_size=True, **SMALL), features, features,
    **dict(PLAIN, registers=4))
add("timm-reg1-gap", VisionTransformer(num_classes=3, reg_tokens=1, **dict(GAP, no_embed_class=False)), features, features, pool="avg_first",
    **dict(PLAIN, registers=1))

# open_clip's timm_proj
trunk = partial(VisionTransformer, num_classes=0, fc_norm=False, **GAP)
add("openclip-timm-gap", Projected(trunk()), embed, pool="avg", **dict(PLAIN, out=8))
add("openclip-timm-bias", Projected(trunk(), bias=torch.arange(8.0)), embed, pool="avg", **dict(PLAIN, out=8))
refuse("openclip-timm-mlp", Projected(trunk(), kind="mlp.fc1"), "visual.head.mlp")

# A distillation token: timm answers with the mean of both tokens, transformers' model with the class token.
add("timm-deit-distilled", VisionTransformerDistilled(num_classes=3, dynamic_img_size=True, **SMALL), features, features, pool="cls_dist",
    **dict(PLAIN, registers=1))
deit = lambda: hf.DeiTModel(hf.DeiTConfig(intermediate_size=32, **TOWER), add_pooling_layer=False)
add("deit", deit(), hidden, lambda m, x: m(pixel_values=x, interpolate_pos_encoding=True).last_hidden_state[:, 0], **dict(PLAIN, registers=1))
add("deit-memory", memory(deit()), embed, **dict(PLAIN, registers=1))
add("deit-classifier", hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(intermediate_size=32, **TOWER)),
    lambda m, x: m.deit(pixel_values=x).last_hidden_state[:, 0], **dict(PLAIN, registers=1))

# CLIP with a classifier, which reads the mean of the patches before the last norm.
add("clip-classifier", hf.CLIPForImageClassification(hf.CLIPConfig(vision_config=clip().to_dict(), text_config=text, num_labels=3)),
    lambda m, x: m.vision_model(pixel_values=x).last_hidden_state[:, 1:].mean(1), family="openclip", ffn="quick_gelu", out=16, pool="avg_raw")

# SigLIP with its text tower, inside open_clip, without its head; SigLIP2 for images of any shape.
siglip_config = dict(intermediate_size=32, **TOWER)
add("siglip-model", hf.SiglipModel(hf.SiglipConfig(text_config=dict(text, projection_size=16), vision_config=siglip_config)),
    lambda m, x: pooled(m.vision_model, x), **SIGLIP)
add("openclip-siglip", Wrapped(VisionTransformer(act_layer="gelu_tanh", **MAP), lambda k, v: ("visual.trunk." + k, v),
                               lambda found: {"logit_bias": torch.ones(1)}), embed, **SIGLIP)
add("timm-siglip-classifier", VisionTransformer(**dict(MAP, num_classes=3)), features, **dict(SIGLIP, ffn="gelu"))
add("siglip-headless", hf.SiglipVisionModel(hf.SiglipVisionConfig(vision_use_head=False, **siglip_config)),
    lambda m, x: m(pixel_values=x).last_hidden_state.mean(1), pool="avg", **dict(PLAIN, ffn="gelu_tanh"))
naflex = dict(num_patches=16, **{k: v for k, v in siglip_config.items() if k != "image_size"})
refuse("siglip2-naflex", hf.Siglip2VisionModel(hf.Siglip2VisionConfig(**naflex)), "SigLIP2")

# Perception Encoder: PE-Spatial, with a class token and without, and PE-Core, which is refused.
PE = dict(attn_type="rope", use_pre_transformer_norm=True, use_rot_pos_emb=True, ref_feat_shape=(4, 4), rope_grid_indexing="xy",
          dynamic_img_size=True, num_classes=0, norm_layer=partial(timm.layers.LayerNorm, eps=1e-5), **SMALL)
SPATIAL = dict(use_post_transformer_norm=False, use_fc_norm=False, **PE)
add("timm-pe", Eva(global_pool="token", rope_grid_offset=1.0, **SPATIAL), embed, embed, family="pe", ffn="gelu", out=16)
add("timm-pe-classless", Eva(class_token=False, init_values=0.1, **SPATIAL), embed, embed, family="pe", ffn="gelu", out=16, pool="avg")
refuse("timm-pe-core", Eva(global_pool="map", rope_grid_offset=1.0, attn_pool_num_heads=2, **PE), "PE-Core")

save_file(golden, os.path.join(root, "golden.safetensors"))
with open(os.path.join(root, "index.json"), "w") as f:
    json.dump(rows, f, indent=1)
    f.write("\n")
