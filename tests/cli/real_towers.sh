#!/bin/sh
# Towers of the real libraries at their published widths (deep ones cut to a few blocks) make the embeddings of their own
# classes: fp32 to 1e-5, bf16 to 1.5e-2, native and resized. Every plain ViT of open_clip's model list is planned with the
# heads and the activation of its configuration. Classes that are no such tower are refused, by plan as by embed.
# Long: runs only with MEOPT_LONG=1. Needs a Python with torch, torchvision, timm, open_clip, transformers and dinov2 (python.sh).
set -eu
[ "${MEOPT_LONG:-}" = 1 ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
set -- torch torchvision timm open_clip transformers safetensors PIL dinov2
. "$MEOPT_SOURCE/tests/tools/python.sh"
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 MEOPT
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
cat >c.yaml <<'YAML'
model: {weight_t: none, weight_s: none}
data: {root: images, pipeline: clip}
train: {batch_size: 2, precision: fp32}
YAML
cat >run.py <<'PYTHON'
import copy, functools, gc, json, logging, os, shutil, struct, subprocess, sys, warnings
warnings.simplefilter("ignore"); logging.disable(logging.WARNING)
import numpy, open_clip, timm, torch, torchvision, transformers as hf
from PIL import Image
from safetensors.torch import load_file, save_file
from dinov2.layers import MemEffAttention, NestedTensorBlock
from dinov2.models.vision_transformer import DinoVisionTransformer
torch.set_grad_enabled(False)
meopt, failed = os.environ["MEOPT"], []
mean, std = torch.tensor(open_clip.OPENAI_DATASET_MEAN), torch.tensor(open_clip.OPENAI_DATASET_STD)

def images(size):
    g, out = numpy.random.default_rng(size), []
    shutil.rmtree("images", ignore_errors=True); os.makedirs("images")
    for i in range(2): # as large as they are looked at: no resize between
        pixels = g.integers(0, 256, (size, size, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save("images/%d.png" % i)
        out.append((torch.from_numpy(pixels.copy()).float() / 255 - mean) / std)
    return torch.stack(out).permute(0, 3, 1, 2)

def draw(module):
    g = torch.Generator().manual_seed(3)
    for name, p in module.named_parameters():
        x = torch.randn(p.shape, generator=g) * (0.2 if p.dim() < 2 or "pos" in name else p.shape[-1] ** -0.5 if p.dim() == 2 else p[0].numel() ** -0.5)
        p.data = x + 1 if name.endswith(("weight", "gamma", "lambda1")) and p.dim() == 1 else x
    return module.eval()

def call(*args):
    p = subprocess.run([meopt, *args], capture_output=True, text=True)
    return p.returncode, p.stderr

def tower(what, module, embed, *sizes, save=None, keys=()):
    draw(module)
    for old in "file.safetensors", "config.json": os.path.exists(old) and os.remove(old)
    if save: save(module)
    else: save_file({k: v.contiguous() for k, v in module.state_dict().items()}, "file.safetensors")
    for size in sizes:
        x = images(size)
        want, line = embed(module, x).float(), "%-44s %4d px" % (what, size)
        for precision, bound in ("fp32", 1e-5), ("bf16", 1.5e-2):
            code, err = call("embed", "c.yaml", "--role", "teacher", "model.weight_t=file.safetensors", "data.image_size=%d" % size,
                             "train.precision=" + precision, "--out", "e.safetensors", *keys)
            if code: failed.append("%s: exit %d %s" % (what, code, err)); print(line, code, err); break
            error = ((load_file("e.safetensors")["embeddings"].float() - want).norm() / want.norm()).item()
            line += "  %s %.2g" % (precision, error)
            if not error <= bound: failed.append("%s at %d, %s: %g" % (what, size, precision, error))
        else: print(line, flush=True)
    del module; gc.collect()

def refused(what, module, *says):
    save_file({k: v.contiguous() for k, v in module.state_dict().items()}, "file.safetensors")
    images(32)
    for args in ("plan", "c.yaml", "model.weight_s=file.safetensors"), ("embed", "c.yaml", "--role", "teacher", "--out", "e.safetensors"):
        code, err = call(*args, "model.weight_t=file.safetensors")
        if code != 7 or "file.safetensors" not in err or not all(s in err for s in says): failed.append("%s: exit %d %s" % (what, code, err))
    print("%-44s refused: %s" % (what, err.split(": ", 2)[-1].split("\n")[0][:90]), flush=True)

# ---- open_clip
def clip(name, layers):
    cfg = copy.deepcopy(open_clip.get_model_config(name))
    cfg["vision_cfg"]["layers"] = layers
    cfg["text_cfg"].update(layers=1, vocab_size=50)
    return open_clip.model.CLIP(**{k: v for k, v in cfg.items() if k in ("embed_dim", "vision_cfg", "text_cfg", "quick_gelu")})
image = lambda m, x: m.encode_image(x)
tower("open_clip ViT-B-32, 12 blocks", clip("ViT-B-32", 12), image, 224)
for name, size in ("ViT-S-16", 224), ("ViT-B-16", 224), ("ViT-L-14", 224), ("ViT-L-14-336", 336), ("ViT-L-14-280", 280), ("ViT-L-16-320", 320), \
        ("ViT-M-16-alt", 224), ("ViT-H-14", 224), ("ViT-g-14", 224), ("ViT-bigG-14", 224):
    tower("open_clip %s, 2 blocks" % name, clip(name, 2), image, size)
for name in "ViT-B-16-quickgelu", "ViT-L-14-quickgelu", "ViT-H-14-quickgelu", "ViT-H-14-worldwide-quickgelu":
    if open_clip.get_model_config(name): tower("open_clip %s, 2 blocks" % name, clip(name, 2), image, 224, keys=("model_t.activation=quick_gelu",))
for name, size in ("ViT-L-14-CLIPA", 224), ("ViT-H-14-CLIPA-336", 336):
    tower("open_clip %s, 2 blocks" % name, clip(name, 2), image, size, keys=("model_t.pool=avg_first",))
for name in "coca_ViT-B-32", "coca_ViT-L-14":
    tower("open_clip %s, 2 blocks" % name, clip(name, 2), lambda m, x: m.encode_image(x)[0], 224)
paper = clip("coca_ViT-B-32", 1)
paper.visual = open_clip.transformer.VisionTransformer(224, 32, 768, 1, 12, 4.0, output_dim=512, attentional_pool="parallel")
refused("open_clip CoCa with a pooler of its own for the embedding", paper, "attn_pool_contrastive")
def larger(m, x): # 224 px weights in the 336 px model, as create_model loads them
    state, big = m.state_dict(), clip("ViT-L-14-336", 2).eval()
    open_clip.model.resize_pos_embed(state, big)
    big.load_state_dict(state)
    return big.encode_image(x)
tower("open_clip ViT-L-14 at 336", clip("ViT-L-14", 2), larger, 336)

# ---- DINOv2's own class
def hub(width, depth, heads, **more):
    return DinoVisionTransformer(img_size=518, patch_size=14, embed_dim=width, depth=depth, num_heads=heads, mlp_ratio=4, init_values=1.0, block_chunks=0,
                                 block_fn=functools.partial(NestedTensorBlock, attn_class=MemEffAttention), **more)
plain = lambda m, x: m(x)
tower("dinov2 vits14, 12 blocks", hub(384, 12, 6), plain, 518, 224)
tower("dinov2 vitb14, 2 blocks", hub(768, 2, 12), plain, 224)
tower("dinov2 vitl14, 2 blocks", hub(1024, 2, 16), plain, 224)
tower("dinov2 vitg14, 2 blocks", hub(1536, 2, 24, ffn_layer="swiglufused"), plain, 224)

# ---- timm
for name, size, more in ("vit_small_patch14_dinov2", 518, {}), ("vit_small_patch14_dinov2", 224, dict(dynamic_img_size=True)), \
        ("vit_large_patch14_dinov2", 224, dict(dynamic_img_size=True)), ("vit_small_patch14_reg4_dinov2", 518, {}), \
        ("vit_base_patch14_reg4_dinov2", 224, dict(dynamic_img_size=True)), ("vit_giant_patch14_dinov2", 224, dict(dynamic_img_size=True)), \
        ("vit_base_patch16_clip_224", 224, {}), ("vit_large_patch14_clip_336", 336, {}), ("vit_huge_patch14_clip_224", 224, {}), ("eva_giant_patch14_clip_224", 224, {}):
    classes = {} if "dinov2" in name else dict(num_classes=1024 if "eva" in name else 512)
    def zero(m):
        if getattr(m, "head", None) is not None and getattr(m.head, "bias", None) is not None: m.head.bias.data.zero_()
        save_file({k: v.contiguous() for k, v in m.state_dict().items()}, "file.safetensors")
    keys = ("model_t.activation=quick_gelu",) if "quickgelu" in name else ()
    tower("timm %s, 2 blocks" % name, timm.create_model(name, depth=2, **classes, **more), plain, size, save=zero, keys=keys)
tower("timm vit_base_patch16_224 (ImageNet), 2 blocks", timm.create_model("vit_base_patch16_224", depth=2, num_classes=0), plain, 224)
for name, size in ("deit3_small_patch16_224", 224), ("deit3_huge_patch14_224", 224), ("flexivit_small", 240), ("vit_medium_patch16_gap_240", 240), \
        ("vit_medium_patch16_reg4_gap_256", 256), ("vit_betwixt_patch16_reg4_gap_384", 384), ("vit_base_patch16_reg4_gap_256", 256), \
        ("vit_so150m2_patch16_reg1_gap_256", 256), ("deit_tiny_distilled_patch16_224", 224), ("deit_base_distilled_patch16_384", 384):
    tower("timm %s, 2 blocks" % name, timm.create_model(name, depth=2, num_classes=0), plain, size)
features = lambda m, x: m.forward_head(m.forward_features(x), pre_logits=True)
for name, size in ("vit_base_patch32_clip_224", 224), ("vit_large_patch14_clip_336", 336), ("vit_huge_patch14_clip_224", 224):
    tower("timm %s with a classifier, 2 blocks" % name, timm.create_model(name, depth=2, num_classes=1000), features, size)
for name, size, keys in ("vit_base_patch16_siglip_224", 224, ()), ("vit_base_patch32_siglip_256", 256, ("model_t.activation=gelu_tanh",)), \
        ("vit_so400m_patch14_siglip_384", 384, ()), ("vit_so400m_patch14_siglip_gap_224", 224, ("model_t.heads=16",)):
    tower("timm %s, 2 blocks" % name, timm.create_model(name, depth=2, num_classes=0), plain, size, keys=("data.pipeline=clip", *keys))
for name, more in ("beit_base_patch16_224", {}), ("resnet50", {}), ("naflexvit_base_patch16_siglip", {}):
    if name != "resnet50": more = dict(more, depth=1)
    refused("timm " + name, timm.create_model(name, **more))

for name, size, classes, keys in ("eva02_base_patch16_clip_224", 224, 512, ()), ("eva02_large_patch14_clip_336", 336, 768, ()), \
        ("eva02_enormous_patch14_clip_224", 224, 1024, ()), ("eva02_tiny_patch14_336", 336, 0, ()), ("eva02_base_patch14_224", 224, 0, ()), \
        ("vit_small_plus_patch16_dinov3_qkvb", 256, 0, ()), ("vit_base_patch16_dinov3", 224, 0, ("model_t.pool=avg",)), ("vit_huge_plus_patch16_dinov3", 224, 0, ("model_t.pool=avg",)):
    more = dict(global_pool="token") if "qkvb" in name else {}
    tower("timm %s, 2 blocks" % name, timm.create_model(name, depth=2, num_classes=classes, **more), plain, size, keys=keys)

for name, size in ("vit_pe_spatial_tiny_patch16_512", 512), ("vit_pe_spatial_large_patch14_448", 448), ("vit_pe_spatial_gigantic_patch14_448", 448), ("vit_pe_lang_large_patch14_448", 448):
    tower("timm %s, 2 blocks" % name, timm.create_model(name, depth=2, num_classes=0), plain, size, keys=("model_t.pool=avg", "data.pipeline=clip"))
refused("timm PE-Core", timm.create_model("vit_pe_core_tiny_patch16_384", depth=1), "PE-Core")

# ---- torchvision
def bare(m, x):
    m.heads = torch.nn.Identity()
    return m(x)
for name in "vit_b_16", "vit_l_32":
    full = torchvision.models.get_model(name, weights=None)
    tower("torchvision %s, 2 blocks" % name, torchvision.models.VisionTransformer(224, full.patch_size, 2, full.encoder.layers[0].num_heads, full.hidden_dim, full.mlp_dim), bare, 224)

# ---- transformers
pooled = lambda m, x: m(pixel_values=x, **(dict(interpolate_pos_encoding=True) if "CLIP" in type(m).__name__ else {})).pooler_output
def pretrained(m):
    m.save_pretrained("."); os.rename("model.safetensors", "file.safetensors")
vision = lambda width, heads, patch, **more: hf.CLIPVisionConfig(hidden_size=width, intermediate_size=4 * width, num_hidden_layers=2, num_attention_heads=heads, patch_size=patch, image_size=224, projection_dim=512, **more)
tower("transformers CLIPVisionModel B/32", hf.CLIPVisionModel(vision(768, 12, 32)), pooled, 224, save=pretrained)
tower("transformers CLIPVisionModel L/14", hf.CLIPVisionModel(vision(1024, 16, 14)), pooled, 224, 336, save=pretrained)
tower("transformers CLIP H/14 with projection, gelu", hf.CLIPVisionModelWithProjection(vision(1280, 16, 14, hidden_act="gelu")), lambda m, x: m(pixel_values=x).image_embeds, 224, save=pretrained)
text = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, vocab_size=50, bos_token_id=1, eos_token_id=2, pad_token_id=0)
whole = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision(768, 12, 16).to_dict(), projection_dim=512))
tower("transformers CLIPModel B/16", whole, lambda m, x: m.visual_projection(m.vision_model(pixel_values=x).pooler_output), 224, save=pretrained)
for name, width, heads, more in ("small", 384, 6, {}), ("base", 768, 12, {}), ("large", 1024, 16, {}), ("giant", 1536, 24, dict(use_swiglu_ffn=True)):
    cfg = dict(hidden_size=width, num_hidden_layers=2, num_attention_heads=heads, image_size=518, patch_size=14, **more)
    tower("transformers Dinov2Model " + name, hf.Dinov2Model(hf.Dinov2Config(**cfg)), pooled, 224, save=pretrained)
    tower("transformers Dinov2WithRegisters " + name, hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**cfg)), pooled, 224, save=pretrained)
for width, heads, more in (384, 6, {}), (1280, 20, dict(use_gated_mlp=True, hidden_act="silu", intermediate_size=5120)):
    cfg = dict(hidden_size=width, num_hidden_layers=2, num_attention_heads=heads, image_size=224, patch_size=16, num_register_tokens=4)
    tower("transformers DINOv3ViTModel %d" % width, hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**{**cfg, "intermediate_size": 4 * width, **more})), lambda m, x: m(pixel_values=x).pooler_output, 224, 320, save=pretrained)
small = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1)
for cls in hf.ViTModel, hf.ViTMSNModel:
    tower("transformers " + cls.__name__, cls(cls.config_class(num_hidden_layers=2)), lambda m, x: m(pixel_values=x, interpolate_pos_encoding=True).last_hidden_state[:, 0],
          224, 288, save=pretrained)
    tower("transformers %s in memory" % cls.__name__, cls(cls.config_class(num_hidden_layers=2)), lambda m, x: m(pixel_values=x).last_hidden_state[:, 0], 224)
tower("transformers Dinov2Model in memory", hf.Dinov2Model(hf.Dinov2Config(num_hidden_layers=2)), pooled, 224)
tower("transformers DeiTModel", hf.DeiTModel(hf.DeiTConfig(num_hidden_layers=2), add_pooling_layer=False),
      lambda m, x: m(pixel_values=x, interpolate_pos_encoding=True).last_hidden_state[:, 0], 224, 288, save=pretrained)
tower("transformers CLIPForImageClassification", hf.CLIPForImageClassification(hf.CLIPConfig(text_config=text, vision_config=vision(768, 12, 32).to_dict(), num_labels=5)),
      lambda m, x: m.vision_model(pixel_values=x).last_hidden_state[:, 1:].mean(1), 224, save=pretrained)
refused("transformers BEiT", hf.BeitModel(hf.BeitConfig(**small)), "BEiT")
refused("transformers SigLIP2 NaFlex", hf.Siglip2VisionModel(hf.Siglip2VisionConfig(num_hidden_layers=1)), "NaFlex")

# ---- every plain ViT of open_clip's list: names and shapes alone, in a file without bytes
count = 0
for name in open_clip.list_models():
    cfg = open_clip.get_model_config(name)
    v, t = cfg["vision_cfg"], cfg.get("text_cfg", {})
    if "timm_model_name" in v or not isinstance(v["layers"], int) or "hf_model_name" in t or any(k in v for k in ("no_ln_pre", "norm_kwargs", "act_kwargs", "attn_type")) or \
            v.get("pool_type", "tok") != "tok" or v.get("pos_embed_type", "learnable") != "learnable":
        continue
    with torch.device("meta"): module = open_clip.model._build_vision_tower(cfg["embed_dim"], v, cfg.get("quick_gelu", False))
    header, at = {}, 0
    for k, p in module.state_dict().items():
        header["visual." + k] = dict(dtype="F32", shape=list(p.shape), data_offsets=[at, at + 4 * p.numel()])
        at += 4 * p.numel()
    raw = json.dumps(header).encode()
    for quick in {cfg.get("quick_gelu", False), True}:
        os.makedirs("listed", exist_ok=True)
        with open("listed/file.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(raw)) + raw)
            f.truncate(8 + len(raw) + at)
        json.dump({"model_cfg": dict(cfg, quick_gelu=quick)}, open("listed/open_clip_config.json", "w"))
        p = subprocess.run([meopt, "plan", "c.yaml", "--json", "model.weight_t=listed/file.safetensors", "model.weight_s=listed/file.safetensors"], capture_output=True, text=True)
        got = json.loads(p.stdout)["student"] if p.returncode == 0 else {}
        expected = dict(heads=v["width"] // v.get("head_width", 64), activation="quick_gelu" if quick else "gelu", width=v["width"], depth=v["layers"], image_pixels=v["image_size"], out=cfg["embed_dim"])
        wrong = {k: got.get(k) for k, e in expected.items() if got.get(k) != e}
        if wrong: failed.append("%s: %s %s" % (name, wrong, p.stderr))
    os.remove("listed/open_clip_config.json") # and without it the width tells
    p = subprocess.run([meopt, "plan", "c.yaml", "--json", "model.weight_t=listed/file.safetensors", "model.weight_s=listed/file.safetensors"], capture_output=True, text=True)
    if p.returncode or json.loads(p.stdout)["student"]["heads"] != expected["heads"]: failed.append("%s: heads by width %s" % (name, p.stderr))
    count += 1
print(count, "models of open_clip's list planned")
for f in failed: print("FAILED", f)
sys.exit(bool(failed) or count < 42)
PYTHON
"$python" run.py
