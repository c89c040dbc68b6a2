#!/bin/sh
# The preprocessing that files next to a checkpoint say (timm, open_clip, transformers), against each library's own transform
# and model: embeddings within 1e-5 at the size that the file says and at sizes whose crop does not divide, and the losses of
# pairs of different families.
# Long: runs only with MEOPT_LONG=1. Needs a Python with these libraries (python.sh).
set -eu
[ "${MEOPT_LONG:-}" = 1 ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
set -- torch torchvision transformers timm open_clip safetensors PIL
. "$MEOPT_SOURCE/tests/tools/python.sh"
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
"$python" - <<'PYTHON'
import json, os, subprocess, sys, numpy, torch, timm, open_clip, transformers
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
torch.set_grad_enabled(False)
g = numpy.random.default_rng(4)
os.makedirs("images")
for i, (w, h) in enumerate([(120, 90), (97, 131), (301, 200), (61, 143), (480, 361), (40, 33)]):
    small = g.integers(0, 256, (max(2, h // 6), max(2, w // 6), 3), dtype=numpy.uint8)
    noise = g.integers(-20, 21, (h, w, 3))
    smooth = numpy.array(Image.fromarray(small).resize((w, h), Image.BICUBIC)).astype(int)
    Image.fromarray(numpy.clip(smooth + noise, 0, 255).astype(numpy.uint8)).save("images/%d.png" % i)
names = sorted(os.listdir("images"))
pictures = [Image.open("images/" + n) for n in names]
failed = count = 0

def randomize(model):
    torch.manual_seed(3)
    for n, p in model.named_parameters():
        p.copy_(torch.randn_like(p) * .2 + (1 if n.endswith("weight") and p.ndim == 1 else 0))
    return model.eval()

def check(name, directory, transform, forward, keys=(), says=None):
    """The teacher's embeddings of all images, from the files of a directory."""
    global failed, count
    count += 1
    open("c.yaml", "w").write('model_t: {weight: "%s/model.safetensors"}\ndata: {root: images, max_bad: 0}\ntrain: {batch_size: 4, precision: fp32}\n' % directory)
    out = subprocess.run([os.environ["MEOPT"], "embed", "--role", "teacher", "--out", "out", "c.yaml", *keys], capture_output=True, text=True)
    if says is not None:
        if out.returncode != 7 or says not in out.stderr: failed += 1; print("%s: not refused: %s" % (name, out.stderr))
        return
    if out.returncode: failed += 1; print("%s: %s" % (name, out.stderr)); return
    with safe_open("out", "pt") as f: ours = f.get_tensor("embeddings")
    want = torch.cat([forward(transform(p)[None]) for p in pictures])
    error = ((ours - want).norm(dim=1) / want.norm(dim=1)).max().item()
    line = [l for l in out.stderr.splitlines() if "images:" in l]
    if not error <= 1e-5: failed += 1; print("%s: %g (%s)" % (name, error, line))
    else: print("%-60s %.1e" % (name, error))

# ---- timm
def timm_case(name, image, patch, keys=(), old=False, **cfg):
    model = randomize(timm.models.vision_transformer.VisionTransformer(img_size=image, patch_size=patch, embed_dim=64, depth=1, num_heads=1, num_classes=0))
    os.makedirs(name, exist_ok=True)
    save_file(model.state_dict(), name + "/model.safetensors")
    cfg = dict(input_size=[3, image, image], **cfg)
    top = dict(architecture="vit_small_patch16_224", num_features=64, global_pool="token", num_classes=0)
    json.dump(dict(top, **cfg) if old else dict(top, pretrained_cfg=cfg), open(name + "/config.json", "w"))
    transform = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=cfg))
    check("timm " + name, name, transform, model, keys)
half = dict(mean=[.5] * 3, std=[.5] * 3)
timm_case("augreg", 224, 16, crop_pct=.9, interpolation="bicubic", **half)
timm_case("augreg32", 224, 32, crop_pct=.9, interpolation="bicubic", **half)
timm_case("augreg8", 224, 8, crop_pct=.9, interpolation="bicubic", **half)
timm_case("old_config", 64, 16, old=True, crop_pct=.9, interpolation="bicubic", **half)
timm_case("defaults", 64, 16)
for image in 160, 256, 320, 384: timm_case("size%d" % image, image, 32, crop_pct=.875)
timm_case("one", 64, 16, crop_pct=1.0, mean=[0.48145466, 0.4578275, 0.40821073], std=[0.26862954, 0.26130258, 0.27577711])
timm_case("squash", 64, 16, crop_mode="squash", crop_pct=.95)
timm_case("squash1", 64, 16, crop_mode="squash", crop_pct=1.0)
for interpolation in "bilinear", "nearest", "lanczos", "box", "hamming": timm_case(interpolation, 64, 16, interpolation=interpolation, crop_pct=.965)

# ---- open_clip
def open_clip_case(name, image=56, **cfg):
    vision = dict(image_size=image, layers=1, width=64, head_width=64, patch_size=14)
    model = open_clip.CLIP(embed_dim=32, vision_cfg=vision, text_cfg=dict(context_length=8, vocab_size=64, width=32, heads=1, layers=1))
    randomize(model)
    os.makedirs(name, exist_ok=True)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, name + "/model.safetensors")
    json.dump(dict(model_cfg=dict(embed_dim=32, vision_cfg=vision, text_cfg={}), preprocess_cfg=cfg), open(name + "/open_clip_config.json", "w"))
    transform = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**dict(cfg, size=image)), is_train=False)
    check("open_clip " + name, name, transform, model.encode_image, says="longest" if cfg.get("resize_mode") == "longest" else None)
imagenet = dict(mean=[.485, .456, .406], std=[.229, .224, .225])
open_clip_case("clip")
open_clip_case("clipa", interpolation="bilinear", resize_mode="squash", **imagenet)
open_clip_case("siglip", resize_mode="squash", **half)
open_clip_case("random", interpolation="random", mean=.5, std=[.5])
open_clip_case("longest", resize_mode="longest")

# ---- transformers
def hf_case(name, model, processor, backend, keys=(), change=None, nested=False, forward=None, says=None):
    randomize(model)
    model.save_pretrained(name)
    processor.save_pretrained(name)
    path = name + "/preprocessor_config.json"
    cfg = json.load(open(path))
    if change: cfg = change(cfg)
    json.dump(cfg, open(path, "w"))
    real = transformers.AutoImageProcessor.from_pretrained(name, backend=backend)
    if nested: json.dump(dict(image_processor=cfg, processor_class="CLIPProcessor"), open(name + "/processor_config.json", "w")); os.remove(path)
    check("transformers %s (%s)" % (name, backend), name, lambda p: real(p, return_tensors="pt")["pixel_values"][0], forward or (lambda x: model(pixel_values=x).pooler_output), keys, says)
T = transformers
sizes = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=1)
dinov2 = lambda: T.Dinov2Model(T.Dinov2Config(image_size=70, patch_size=14, **sizes))
clip = lambda: T.CLIPVisionModelWithProjection(T.CLIPVisionConfig(image_size=56, patch_size=14, intermediate_size=128, projection_dim=32, **sizes))
dinov3 = lambda: T.DINOv3ViTModel(T.DINOv3ViTConfig(image_size=64, patch_size=16, intermediate_size=128, num_register_tokens=4, **sizes))
embeds = lambda model: dict(model=model, forward=lambda x: model(pixel_values=x).image_embeds)
def bit(**k): return T.BitImageProcessor(**dict(dict(size={"shortest_edge": 80}, crop_size={"height": 70, "width": 70}, image_mean=imagenet["mean"], image_std=imagenet["std"]), **k))
pil = ("data.resize_as=hf_pil",)
hf_case("dinov2", dinov2(), bit(), "torchvision")
hf_case("dinov2pil", dinov2(), bit(), "pil", pil)
hf_case("dinov2nested", dinov2(), bit(), "torchvision", nested=True)
hf_case("dinov2bilinear", dinov2(), bit(resample=2), "torchvision")
hf_case("dinov2lanczos", dinov2(), bit(resample=1), "torchvision")
hf_case("dinov2box", dinov2(), bit(resample=4), "pil")
hf_case("dinov2hamming", dinov2(), bit(resample=5), "pil")
hf_case("dinov2scale", dinov2(), bit(rescale_factor=1 / 127.5, image_mean=[1.0] * 3, image_std=[1.0] * 3), "torchvision")
hf_case("dinov2raw", dinov2(), bit(do_rescale=False, image_mean=[127.0] * 3, image_std=[55.0] * 3), "torchvision")
hf_case("dinov2plain", dinov2(), bit(do_normalize=False), "torchvision")
hf_case("dinov2padded", dinov2(), bit(size={"shortest_edge": 60}), "torchvision", says="padded")
hf_case("dinov2exact", dinov2(), bit(do_resize=False, crop_size={"height": 28, "width": 28}), "torchvision")
model = clip(); hf_case("clip_hf", processor=T.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}), backend="torchvision", **embeds(model))
model = clip(); hf_case("clip_pil", processor=T.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}), backend="pil", keys=pil, **embeds(model))
def old(cfg): return dict(feature_extractor_type="CLIPFeatureExtractor", do_resize=True, size=56, resample=3, do_center_crop=True, crop_size=56, do_normalize=True, image_mean=cfg["image_mean"], image_std=cfg["image_std"])
model = clip(); hf_case("clip_old", processor=T.CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}), backend="torchvision", change=old, **embeds(model))
hf_case("dinov2vit", dinov2(), T.ViTImageProcessor(size={"height": 70, "width": 70}), "torchvision")
hf_case("dinov2deit", dinov2(), T.DeiTImageProcessor(size={"height": 80, "width": 80}, crop_size={"height": 70, "width": 70}), "torchvision")
hf_case("dinov2siglip", dinov2(), T.SiglipImageProcessor(size={"height": 70, "width": 70}), "torchvision")
hf_case("dinov3", dinov3(), T.DINOv3ViTImageProcessor(size={"height": 64, "width": 64}), "torchvision")

# ---- a teacher and a student of different families: the loss of the first step, with a linear head where widths differ
from safetensors.torch import load_file
def pair(name, teacher, student, keys=()):
    global failed, count
    count += 1
    (t_dir, t_transform, t_forward), (s_dir, s_transform, s_forward) = teacher, student
    with torch.no_grad():
        target = torch.cat([t_forward(t_transform(p)[None]) for p in pictures])
        out = torch.cat([s_forward(s_transform(p)[None]) for p in pictures])
    file = s_dir + "/model.safetensors"
    if target.shape != out.shape:
        torch.manual_seed(5)
        weight, bias = torch.randn(target.shape[1], out.shape[1]) * .1, torch.randn(target.shape[1])
        out = out @ weight.T + bias
        tensors = dict(load_file(file), **{"distill_head.weight": weight, "distill_head.bias": bias})
        file = s_dir + "/with_head.safetensors"
        save_file(tensors, file)
    want = torch.nn.functional.mse_loss(out, target).item()
    open("c.yaml", "w").write('model: {weight_t: "%s/model.safetensors", weight_s: "%s"}\ndata: {root: images, max_bad: 0, shuffle: false}\ntrain: {batch_size: 6, steps: 1, precision: fp32}\n' % (t_dir, file))
    run = subprocess.run([os.environ["MEOPT"], "train", "c.yaml", "--no-dashboard", "--name", name, *keys], capture_output=True, text=True)
    if run.returncode: failed += 1; print("%s: %s" % (name, run.stderr)); return
    mine = json.loads(open("runs/%s/metrics.jsonl" % name).readline())["loss"]
    if not abs(mine - want) <= 1e-5 * want: failed += 1; print("%s: loss %.8g, expected %.8g" % (name, mine, want))
    else: print("%-60s %.1e" % ("pair " + name, abs(mine - want) / want))
def timm_tower(directory):
    cfg = json.load(open(directory + "/config.json"))["pretrained_cfg"]
    image, patch = cfg["input_size"][1], 16
    model = timm.models.vision_transformer.VisionTransformer(img_size=image, patch_size=patch, embed_dim=64, depth=1, num_heads=1, num_classes=0)
    model.load_state_dict(load_file(directory + "/model.safetensors"))
    return directory, timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=cfg)), model.eval()
def open_clip_tower(directory):
    cfg = json.load(open(directory + "/open_clip_config.json"))
    vision = cfg["model_cfg"]["vision_cfg"]
    model = open_clip.CLIP(embed_dim=32, vision_cfg=vision, text_cfg=dict(context_length=8, vocab_size=64, width=32, heads=1, layers=1))
    model.load_state_dict(load_file(directory + "/model.safetensors"))
    return directory, open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**dict(cfg["preprocess_cfg"], size=vision["image_size"])), is_train=False), model.eval().encode_image
def hf_tower(directory, kind):
    model, processor = kind.from_pretrained(directory).eval(), transformers.AutoImageProcessor.from_pretrained(directory)
    return directory, lambda p: processor(p, return_tensors="pt")["pixel_values"][0], lambda x: model(pixel_values=x).pooler_output
dino = hf_tower("dinov2", T.Dinov2Model)
pair("dinov2_to_clip", dino, open_clip_tower("clip"))
pair("dinov2_to_clipa", dino, open_clip_tower("clipa"))
pair("dinov2_to_timm", dino, timm_tower("squash"))
pair("clip_to_timm", open_clip_tower("clip"), timm_tower("lanczos"))
pair("timm_to_clip", timm_tower("one"), open_clip_tower("siglip"))
pair("clip_to_dinov2", open_clip_tower("clip"), dino)
pair("dinov3_to_dinov2", hf_tower("dinov3", T.DINOv3ViTModel), dino)
pair("dinov2_to_clip_cached", dino, open_clip_tower("clip"), ["train.cache_teacher=true"])
print("%d cases, %d failed" % (count, failed))
sys.exit(1 if failed else 0)
PYTHON
