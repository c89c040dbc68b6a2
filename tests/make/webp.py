#!/usr/bin/env python3
"""Makes tests/data/webp: WebP images by Pillow, and decoded.safetensors, what Pillow's convert("RGB") makes of each.
Needs Pillow with WebP and numpy (made with Pillow 13.0.0, libwebp 1.6.0):

    python3 -m venv v && v/bin/pip install pillow numpy && v/bin/python tests/make/webp.py tests/data/webp
"""
import json, os, struct, sys
import numpy as np
from PIL import Image

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
rng = np.random.default_rng(16)


def picture(width, height, channels=3):
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + 2 * c) + y / (7 - c)) * 90 + 128 + rng.normal(0, 12, (height, width)) for c in range(channels)]
    return np.clip(np.stack(waves, -1), 0, 255).astype(np.uint8)


def save(name, array, mode, **options):
    Image.fromarray(array, mode).save(os.path.join(out, name), **options)


save("lossy.webp", picture(64, 48), "RGB", quality=80)
save("lossy_odd.webp", picture(37, 29), "RGB", quality=30)
save("lossy_sharp_yuv.webp", picture(41, 33), "RGB", quality=90, method=6, use_sharp_yuv=True)
save("lossless.webp", picture(33, 21), "RGB", lossless=True)
save("lossless_few_colours.webp", (picture(40, 40) // 128 * 255).astype(np.uint8), "RGB", lossless=True)
save("alpha_lossy.webp", picture(45, 31, 4), "RGBA", quality=75)
save("alpha_lossless.webp", picture(31, 45, 4), "RGBA", lossless=True, exact=True)
clear = picture(32, 24, 4)
clear[4:20, 8:24, 3] = 0  # wholly transparent: its colours show once alpha is dropped
save("alpha_clear_exact.webp", clear, "RGBA", lossless=True, exact=True)
save("alpha_clear.webp", clear, "RGBA", quality=75)
save("grey.webp", picture(28, 28, 1)[:, :, 0], "L", quality=75)
save("one_pixel.webp", picture(1, 1), "RGB", lossless=True)
frames = [Image.fromarray(picture(36, 28), "RGB") for _ in range(3)]
frames[0].save(os.path.join(out, "animated.webp"), save_all=True, append_images=frames[1:], duration=50, quality=70)
exif = Image.Exif()
exif[0x0112] = 6
save("exif_turned.webp", picture(30, 20), "RGB", quality=80, exif=exif)


def first_frame_beside(name):
    """Pillow cannot place a first frame: the ANMF chunk of a small animation is put on a larger canvas."""
    small = [Image.fromarray(picture(16, 12), "RGB") for _ in range(2)]
    path = os.path.join(out, name)
    small[0].save(path, save_all=True, append_images=small[1:], duration=50, lossless=True, background=(9, 99, 200, 255))
    raw = bytearray(open(path, "rb").read())
    at = raw.index(b"VP8X") + 12  # canvas width - 1, height - 1, 24 bits each
    raw[at:at + 6] = struct.pack("<I", 29)[:3] + struct.pack("<I", 25)[:3]
    at = raw.index(b"ANMF") + 8  # x / 2, y / 2
    raw[at:at + 6] = struct.pack("<I", 3)[:3] + struct.pack("<I", 5)[:3]
    open(path, "wb").write(raw)


first_frame_beside("animated_beside.webp")

header, data = {}, b""
for name in sorted(f for f in os.listdir(out) if f.endswith(".webp")):
    rgb = np.asarray(Image.open(os.path.join(out, name)).convert("RGB"))
    header[name] = {"dtype": "U8", "shape": list(rgb.shape), "data_offsets": [len(data), len(data) + rgb.size]}
    data += rgb.tobytes()
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(os.path.join(out, "decoded.safetensors"), "wb").write(struct.pack("<Q", len(text)) + text + data)
print(len(header), "images,", len(data), "bytes decoded")
