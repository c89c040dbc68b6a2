#!/usr/bin/env python3
"""Makes tests/data/preprocess/resizes.safetensors: what Pillow and torchvision make of pictures that tests/golden/golden_preprocess.c
makes again. A tensor WIDTHxHEIGHT.LIBRARY.RESIZE.FILTER has the pixels (16, 16, 3) of the crop of its centre.
Needs torch, torchvision, Pillow (made with 2.15.0, 0.29.2, 13.0.0):

    python3 tests/make/resizes.py tests/data/preprocess/resizes.safetensors
"""
import sys
import numpy as np, torch
from PIL import Image
from safetensors.numpy import save_file
from torchvision.transforms import InterpolationMode as I, v2

SIDE, SHARE = 16, 0.9
FILTERS = dict(bicubic=I.BICUBIC, bilinear=I.BILINEAR, nearest=I.NEAREST, lanczos=I.LANCZOS, box=I.BOX, hamming=I.HAMMING)


def picture(width, height):
    values, out = 12345, np.zeros(width * height * 3, np.uint8)
    for i in range(out.size):
        values = (values * 1664525 + 1013904223) % 2**32
        out[i] = values >> 24 if i // 3 % width % 7 else (values >> 30) * 85
    return out.reshape(height, width, 3)


def crop(image, even):
    """Rounded half to even as torchvision does, or down as transformers does."""
    h, w = image.shape[0] - SIDE, image.shape[1] - SIDE
    top, left = (round(h / 2), round(w / 2)) if even else (h // 2, w // 2)
    return np.ascontiguousarray(image[top:top + SIDE, left:left + SIDE])


tensors, small = {}, int(SIDE / SHARE)
for width, height in (47, 31), (29, 83), (61, 20), (13, 9):
    pixels = picture(width, height)
    sizes = dict(squash=(small, small), shortest=(small, small * width // height) if width > height else (small * height // width, small))
    for resize, size in sizes.items():
        name = "%dx%d.%%s.%s.%%s" % (width, height, resize)
        for filter, mode in FILTERS.items():
            pil = np.asarray(v2.functional.resize(Image.fromarray(pixels), size, interpolation=mode))
            tensors[name % ("pil", filter)] = crop(pil, True)
            tensors[name % ("hf_pil", filter)] = crop(pil, False)
        for filter in "bicubic", "bilinear", "lanczos":
            image = torch.from_numpy(pixels).permute(2, 0, 1)
            tensors[name % ("hf", filter)] = crop(v2.functional.resize(image, size, interpolation=FILTERS[filter], antialias=True).permute(1, 2, 0).numpy(), False)
        values = v2.functional.resize(image * (1 / 255), size, interpolation=I.BILINEAR, antialias=True)
        tensors[name % ("hf_float", "bilinear")] = crop(values.permute(1, 2, 0).numpy(), False)
save_file(tensors, sys.argv[1])
print(len(tensors), "tensors")
