#!/bin/sh
# Images of every kind, written by PIL: after decode, resize and crop of both pipelines a real tower computes the embedding that it computes
# after PIL's convert("RGB") and torchvision's transforms. 16-bit grey, which PIL clips, uses its high byte. Long: runs only with
# MEOPT_LONG=1. Requires a Python with torch, torchvision and transformers (python.sh).
set -eu
[ "${MEOPT_LONG:-}" = 1 ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
set -- torch torchvision transformers safetensors PIL
. "$MEOPT_SOURCE/tests/tools/python.sh"
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
tower=$MEOPT_SOURCE/tests/data/names/dinov2
"$python" - <<'PYTHON'
import io, os, struct, zlib, numpy
from PIL import Image, ImageCms
g = numpy.random.default_rng(4)
def smooth(w, h, channels=3):
    small = g.integers(0, 256, (max(2, h // 16), max(2, w // 16), channels), dtype=numpy.uint8)
    return Image.fromarray(small if channels > 1 else small[:, :, 0]).resize((w, h), Image.BICUBIC)
def png16(path, pixels): # PIL writes no colours of 16 bits
    h, w, channels = pixels.shape
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 16, kind, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))
os.makedirs("images")
os.chdir("images")
base = smooth(120, 90)
base.save("baseline.jpg"); base.save("progressive.jpg", progressive=True); base.save("q5.jpg", quality=5); base.save("q100.jpg", quality=100)
for s in 0, 1, 2: base.save("sampling%d.jpeg" % s, subsampling=s)
base.convert("L").save("grey.jpg"); base.convert("CMYK").save("cmyk.jpg"); base.save("rgb.jpg", keep_rgb=True); base.save("UPPER.JPG")
base.save("icc.jpg", icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes())
for turn in 3, 6:
    exif = Image.Exif(); exif[274] = turn
    base.save("exif%d.jpg" % turn, exif=exif)
for w, h in (1, 1), (2, 3), (1000, 10), (10, 1000), (1501, 1003), (223, 225), (28, 28), (32, 33): smooth(w, h).save("size_%dx%d.png" % (w, h))
base.convert("L").save("grey.png"); base.convert("LA").save("grey_alpha.png"); base.convert("1").save("bits.png")
rgba = base.copy(); rgba.putalpha(smooth(120, 90, 1)); rgba.save("rgba.png")
base.quantize(16).save("palette.png"); base.quantize(16).save("transparent_palette.png", transparency=3)
base.save("transparent_colour.png", transparency=(1, 2, 3)); base.convert("L").save("transparent_grey.png", transparency=7)
base.save("png_named.jpg", "PNG"); base.save("jpeg_named.png", "JPEG"); base.save("interlaced_not.png", optimize=True)
with open("gamma.png", "wb") as f:
    raw = io.BytesIO(); base.save(raw, "PNG"); raw = raw.getvalue()
    gama = b"gAMA" + struct.pack(">I", 45455)
    f.write(raw[:33] + struct.pack(">I", 4) + gama + struct.pack(">I", zlib.crc32(gama)) + raw[33:])
base.save("lossy.webp"); base.save("lossless.webp", lossless=True); rgba.save("alpha.webp", lossless=True, exact=True)
for c in 3, 4, 1: png16("deep%d.png" % c, g.integers(0, 65536, (40, 50, c)))
PYTHON
for pipeline in clip dinov2; do
    printf 'model_t: {weight: "%s", heads: 2}\ndata: {root: images, image_size: 28, pipeline: %s, max_bad: 0}\ntrain: {batch_size: 8, precision: fp32}\n' "$tower" $pipeline >c.yaml
    "$MEOPT" embed --role teacher --out $pipeline.safetensors c.yaml >log 2>&1 || { cat log; exit 1; }
done
"$python" - "$tower" <<'PYTHON'
import sys, numpy, torch, transformers
from PIL import Image
from safetensors import safe_open
from torchvision.transforms import v2
torch.set_grad_enabled(False)
model = transformers.Dinov2Model.from_pretrained(sys.argv[1]).eval()
def rgb(path):
    image = Image.open(path)
    if image.mode.startswith("I"): return Image.fromarray((numpy.array(image).astype(numpy.int64) >> 8).astype(numpy.uint8)).convert("RGB")
    return image.convert("RGB")
pipelines = dict(clip=(28, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)), dinov2=(32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
failed = 0
for pipeline, (shortest, mean, std) in pipelines.items():
    transform = v2.Compose([v2.Resize(shortest, interpolation=v2.InterpolationMode.BICUBIC), v2.CenterCrop(28), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])
    with safe_open(pipeline + ".safetensors", "pt") as f:
        ours, names = f.get_tensor("embeddings"), bytes(f.get_tensor("names").tolist()).decode().split("\0")[:-1]
    for name, row in zip(names, ours):
        want = model(pixel_values=transform(rgb("images/" + name))[None]).pooler_output[0]
        error = ((row - want).norm() / want.norm()).item()
        if not error <= 1e-5: failed += 1; print("%s, %s: %g" % (name, pipeline, error))
    print("%s: %d images" % (pipeline, len(names)))
    assert len(names) == 40, names
sys.exit(failed)
PYTHON
