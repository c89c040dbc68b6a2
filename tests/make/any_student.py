#!/usr/bin/env python3
"""The real classes of the students that tests/cli/any_student.sh trains from random values.

    python3 -m venv env && env/bin/pip install torch timm transformers
    env/bin/python tests/make/any_student.py names tests/data/any_student.json     names and shapes of their tensors
    env/bin/python tests/make/any_student.py embed DIR                             loads the exports in DIR strictly, and compares

DIR has NAME/timm.safetensors, NAME/hf and NAME/embeddings (of meopt embed) of each student, and the images.
"""
import json
import os
import sys
import warnings

warnings.simplefilter("ignore")
import numpy
import timm
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer

torch.set_grad_enabled(False)


def vit(**more):
    return VisionTransformer(num_classes=0, global_pool="token", **more)


def dinov3(name, **more):
    return timm.create_model(name, num_classes=0, global_pool="token", qkv_bias=True, **more)


def dinov2_config(registers=0, **more):
    c = dict(dict(num_hidden_layers=1, patch_size=8, image_size=32), **more)
    if registers:
        return hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(num_register_tokens=registers, **c))
    return hf.Dinov2Model(hf.Dinov2Config(**c))


def dinov3_config(**more):
    return hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**dict(dict(num_hidden_layers=1, patch_size=8, image_size=32), **more)))


def clip_config(cls, config, **more):
    return cls(config(hidden_size=192, num_attention_heads=3, intermediate_size=768, num_hidden_layers=1, patch_size=8, image_size=32, **more))


SMALL = dict(img_size=32, patch_size=8, embed_dim=192, depth=1, num_heads=3)
WIDE = dict(img_size=96, patch_size=8, embed_dim=320, depth=1, num_heads=5)
REGISTERS = dict(reg_tokens=4, no_embed_class=True)
# NAME: (side of the images, timm's class, transformers' class or None)
STUDENTS = {
    "vit192": (32, lambda: vit(init_values=1, **SMALL), lambda: dinov2_config(hidden_size=192, num_attention_heads=3)),
    "vit320-registers": (96, lambda: vit(init_values=1, **REGISTERS, **WIDE),
                         lambda: dinov2_config(4, hidden_size=320, num_attention_heads=5, image_size=96)),
    "vit192-swiglu": (32, lambda: vit(init_values=1, mlp_ratio=1024 / 192, mlp_layer=SwiGLUPacked, act_layer=torch.nn.SiLU, **REGISTERS, **SMALL),
                      lambda: dinov2_config(4, hidden_size=192, num_attention_heads=3, use_swiglu_ffn=True)),
    "vit320-plain": (32, lambda: vit(**{**WIDE, "img_size": 32}), lambda: dinov2_config(hidden_size=320, num_attention_heads=5)),
    "dinov3": (32, lambda: dinov3("vit_small_patch16_dinov3", num_reg_tokens=4, **SMALL),
               lambda: dinov3_config(hidden_size=192, num_attention_heads=3, intermediate_size=768, num_register_tokens=4)),
    "dinov3-bare": (32, lambda: dinov3("vit_small_patch16_dinov3", num_reg_tokens=0, **SMALL),
                    lambda: dinov3_config(hidden_size=192, num_attention_heads=3, intermediate_size=768, num_register_tokens=0)),
    "dinov3-swiglu": (96, lambda: dinov3("vit_small_plus_patch16_dinov3", num_reg_tokens=2, mlp_ratio=520 / 320, swiglu_align_to=1, **WIDE),
                      lambda: dinov3_config(hidden_size=320, num_attention_heads=5, intermediate_size=520, num_register_tokens=2, use_gated_mlp=True, hidden_act="silu")),
    "eupe": (32, lambda: dinov3("vit_small_patch16_dinov3", **{**SMALL, "patch_size": 16}),
             lambda: dinov3_config(hidden_size=192, num_attention_heads=3, intermediate_size=768, num_register_tokens=4, patch_size=16)),
    "eva": (32, lambda: timm.create_model("eva_giant_patch14_clip_224", mlp_ratio=4, num_classes=64, **SMALL), None),
    "eva-post": (32, lambda: timm.create_model("eva_giant_patch14_clip_224", mlp_ratio=4, num_classes=64, use_post_norm=True, **SMALL), None),
    "eva02": (32, lambda: timm.create_model("eva02_tiny_patch14_224", num_classes=0, **SMALL), None),
    "openclip": (32, lambda: timm.create_model("vit_base_patch16_clip_224", num_classes=64, **SMALL),
                 lambda: clip_config(hf.CLIPVisionModelWithProjection, hf.CLIPVisionConfig, projection_dim=64)),
    "siglip": (32, lambda: timm.create_model("vit_base_patch16_siglip_224", act_layer="gelu_tanh", num_classes=0, **SMALL),
               lambda: clip_config(hf.SiglipVisionModel, hf.SiglipVisionConfig)),
}


def names(path):
    found = {}
    for name, (_, in_timm, in_hf) in STUDENTS.items():
        found[name] = {"timm": {k: list(v.shape) for k, v in in_timm().state_dict().items()}}
        if in_hf:  # as save_pretrained writes them
            in_hf().save_pretrained("any_student")
            found[name]["hf"] = {k: list(v.shape) for k, v in load_file("any_student/model.safetensors").items()}
    with open(path, "w") as f:
        json.dump(found, f, indent=0)
        f.write("\n")


def embed(directory):
    mean, std = torch.tensor(timm.data.OPENAI_CLIP_MEAN), torch.tensor(timm.data.OPENAI_CLIP_STD)
    failed = False
    for name, (size, in_timm, in_hf) in STUDENTS.items():
        here = os.path.join(directory, name)
        pictures = [Image.open(os.path.join(directory, "images/%d-%d.png" % (size, i))) for i in range(4)]
        x = torch.stack([(torch.from_numpy(numpy.array(p)).float() / 255 - mean) / std for p in pictures]).permute(0, 3, 1, 2)
        ours = load_file(os.path.join(here, "embeddings"))["embeddings"]
        model = in_timm()
        model.load_state_dict(load_file(os.path.join(here, "timm.safetensors")), strict=True)
        outputs = {"timm": model.eval()(x)}
        if in_hf:
            model, told = type(in_hf()).from_pretrained(os.path.join(here, "hf"), output_loading_info=True)
            assert not any(told[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
            assert model.config.image_size == size, model.config
            out = model.eval()(x)
            outputs[type(model).__name__] = out.image_embeds if name == "openclip" else out.pooler_output
        for library, out in outputs.items():
            error = ((out - ours).norm() / ours.norm()).item()
            print("%-20s %-30s %.2g" % (name, library, error))
            failed |= not error <= 1e-5
    sys.exit(failed)


{"names": names, "embed": embed}[sys.argv[1]](sys.argv[2])
