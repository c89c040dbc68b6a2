#!/bin/sh
# transformers, timm and open_clip load the exports of meopt strictly, and compute the embeddings of meopt embed from the same images.
# Students were trained with resized positions, and are compared at that size and at the stored one. Requires a Python with torch, timm,
# open_clip and transformers (python.sh).
set -eu
set -- torch timm open_clip transformers safetensors PIL
. "$MEOPT_SOURCE/tests/tools/python.sh"
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
names=$MEOPT_SOURCE/tests/data/names
mkdir images
cat >c.yaml <<YAML
model:
  weight_t: none
  weight_s: none
data:
  root: images
  image_size: 42
  pipeline: clip
train:
  batch_size: 4
  precision: fp32
optim:
  use_meopt: false
  lr: 1.0e-2
  warmup_steps: 0
YAML
"$python" - <<'PYTHON'
import json, torch, open_clip
from PIL import Image
g = torch.Generator().manual_seed(5)
for i in range(4):
    for size in 28, 42:  # as large as they are looked at: no resize between
        Image.fromarray(torch.randint(0, 256, (size, size, 3), generator=g, dtype=torch.uint8).numpy()).save("images/%d-%d.png" % (size, i))
for quick in 0, 1:
    name = "tiny-quick" if quick else "tiny"
    json.dump(dict(embed_dim=8, quick_gelu=bool(quick),
                   vision_cfg=dict(image_size=28, layers=2, width=16, head_width=8, patch_size=7),
                   text_cfg=dict(context_length=8, vocab_size=50, width=16, heads=2, layers=1)), open(name + ".json", "w"))
    open_clip.add_model_config(name + ".json")
    model = open_clip.create_model(name)
    for p in model.parameters(): p.data = p.data + 0.1 * torch.randn(p.shape, generator=g)
    torch.save(model.state_dict(), name + ".pt")
# As OpenAI publishes CLIP: a program, half precision, with three numbers among its weights.
for key in "input_resolution", "context_length", "vocab_size":
    model.__dict__.pop(key, None)
    model.register_buffer(key, torch.tensor(28))
script = torch.jit.trace(model.eval().half(), (torch.zeros(1, 3, 28, 28).half(), torch.zeros(1, 8, dtype=torch.int64)), check_trace=False)
script.save("openai.pt")
PYTHON
# student NAME FILE KEYS: a run whose student has moved away from FILE, and its embeddings
student() {
    name=$1 file=$2
    shift 2
    set -- "model.weight_t=$file" model_t.heads=2 model_s.heads=2 "$@"
    "$MEOPT" train c.yaml "$@" model.weight_s="$file" --steps 3 --run-dir . --name "$name" --no-dashboard >log 2>&1 ||
        { cat log; exit 1; }
    "$MEOPT" export "$name" -o "$name/own.safetensors" >log 2>&1 || { cat log; exit 1; }
    for size in 28 42; do
        "$MEOPT" embed c.yaml "$@" model.weight_s="$name/own.safetensors" data.image_size=$size "data.include=$size-*" --role student \
            -o "$name/$size" >log 2>&1 || { cat log; exit 1; }
    done
}
quick="model_t.activation=quick_gelu model_s.activation=quick_gelu"
student clip-projection "$names/clip-projection" model_s.activation=gelu
student clip-vision "$names/clip-vision" $quick
for tower in dinov2 dinov2-registers dinov2-giant dinov3-registers timm-eva02 timm-dinov2 timm-dinov2-registers; do
    student $tower "$names/$tower"
done
student timm-eva "$names/timm-eva" model_s.pos_resize=timm # EVA-CLIP's own files have the same names
student timm-clip "$names/timm-clip" model_s.activation=gelu
student tiny tiny.pt
student tiny-quick tiny-quick.pt $quick
student openai openai.pt
for run in clip-projection clip-vision dinov2 dinov2-registers dinov2-giant dinov3-registers; do "$MEOPT" export $run --format hf -o $run/hf; done
for run in tiny tiny-quick dinov2 dinov2-registers dinov2-giant timm-eva timm-eva02 timm-dinov2 timm-dinov2-registers timm-clip; do
    "$MEOPT" export $run --format timm -o $run/timm.safetensors
done
for run in tiny tiny-quick openai; do
    "$MEOPT" export $run --format openclip --merge $run.pt -o $run/whole.pt
    "$MEOPT" export $run --format openclip --merge $run.pt -o $run/whole.safetensors
done
"$MEOPT" export tiny --format timm -o tiny/timm.pt
"$MEOPT" export clip-vision --format safetensors --merge "$names/clip" -o merged >log 2>&1 && { echo "another model's tower was merged"; exit 1; }
"$python" - <<'PYTHON'
import os, numpy, torch, timm, open_clip, transformers
from PIL import Image
from safetensors.torch import load_file
SIZES = 28, 42
pictures = {n: [Image.open("images/%d-%d.png" % (n, i)) for i in range(4)] for n in SIZES}
mean, std = torch.tensor(open_clip.OPENAI_DATASET_MEAN), torch.tensor(open_clip.OPENAI_DATASET_STD)
images = {n: torch.stack([(torch.from_numpy(numpy.array(p)).float() / 255 - mean) / std for p in pictures[n]]).permute(0, 3, 1, 2) for n in SIZES}

def check(what, run, size, embeddings, bound=1e-5):
    ours = load_file("%s/%d" % (run, size))["embeddings"]
    error = ((embeddings - ours).norm() / ours.norm()).item()
    print("%-40s %d px %.2g" % (what, size, error))
    assert embeddings.shape == ours.shape and error <= bound, what

torch.set_grad_enabled(False)
for run, classes in ("clip-projection", "CLIPVisionModelWithProjection"), ("clip-vision", "CLIPVisionModel"), \
        ("dinov2", "Dinov2Model"), ("dinov2-registers", "Dinov2WithRegistersModel"), ("dinov2-giant", "Dinov2Model"), \
        ("dinov3-registers", "DINOv3ViTModel"):
    model, told = getattr(transformers, classes).from_pretrained(run + "/hf", output_loading_info=True)
    assert not any(told[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    processor = transformers.AutoImageProcessor.from_pretrained(run + "/hf")
    pixels = processor(pictures[42], return_tensors="pt")["pixel_values"]
    assert pixels.shape == images[42].shape and (pixels - images[42]).abs().max() < 1e-5, "preprocessor_config.json"
    for size in SIZES:
        out = model.eval()(images[size], **(dict(interpolate_pos_encoding=True) if "CLIP" in classes else {}))
        check(classes, run, size, out.image_embeds if "Projection" in classes else out.pooler_output)

tiny = dict(img_size=28, patch_size=7, embed_dim=16, depth=2, num_heads=2)
for run, name, more in ("tiny", "vit_base_patch16_clip_224", dict(num_classes=8)), \
        ("tiny-quick", "vit_base_patch16_clip_quickgelu_224", dict(num_classes=8)), \
        ("timm-clip", "vit_base_patch16_clip_224", dict(num_classes=8)), \
        ("dinov2", "vit_small_patch14_dinov2", dict(num_classes=0)), \
        ("dinov2-registers", "vit_small_patch14_reg4_dinov2", dict(num_classes=0)), \
        ("dinov2-giant", "vit_giant_patch14_dinov2", dict(num_classes=0)), \
        ("timm-dinov2", "vit_small_patch14_dinov2", dict(num_classes=0)), \
        ("timm-dinov2-registers", "vit_small_patch14_reg4_dinov2", dict(num_classes=0)), \
        ("timm-eva", "eva_giant_patch14_clip_224", dict(num_classes=8)), \
        ("timm-eva02", "eva02_base_patch16_clip_224", dict(num_classes=8)):
    state = load_file(run + "/timm.safetensors")
    if "reg_token" in state: more["reg_tokens"] = state["reg_token"].shape[1]
    fc = "blocks.0.mlp.fc1_g.weight" if run == "timm-eva02" else "blocks.0.mlp.fc1.weight"
    more["mlp_ratio"] = state[fc].shape[0] / 16
    model = timm.create_model(name, checkpoint_path=run + "/timm.safetensors", dynamic_img_size=True, **tiny, **more)
    model.load_state_dict(state, strict=True)
    for size in SIZES:
        if size != 28 and run in ("dinov2", "dinov2-giant"): continue # trained with transformers' resize, which is another
        check("timm %s, %s" % (name, run), run, size, model.eval()(images[size]))
timm.create_model("vit_base_patch16_clip_224", checkpoint_path="tiny/timm.pt", num_classes=8, **tiny)

for name in "tiny", "tiny-quick": open_clip.add_model_config(name + ".json")
for run, name in ("tiny", "tiny"), ("tiny-quick", "tiny-quick"), ("openai", "tiny-quick"):
    for end in "pt", "safetensors":
        path = "%s/whole.%s" % (run, end)
        for size in SIZES:
            model = open_clip.create_model(name, pretrained=path, force_image_size=size)
            check("open_clip " + path, run, size, model.eval().encode_image(images[size]))
        now = torch.load(path) if end == "pt" else load_file(path)
        was = torch.load(run + ".pt") if run == name else torch.jit.load("openai.pt").state_dict()
        for k in "input_resolution", "context_length", "vocab_size", "attn_mask": was.pop(k, None)
        assert set(was) == set(now) and (end == "safetensors" or list(was) == list(now))
        for k in was: assert k.startswith("visual.") or torch.equal(was[k], now[k]), k
        assert any(not torch.equal(was[k], now[k]) for k in was)
PYTHON
