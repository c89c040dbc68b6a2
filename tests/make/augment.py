"""Golden data of the augmentations for tests/data/augment: torchvision's RandAugment operations on PIL images, erasing, mixup and cutmix
with given parameters.

    python tests/make/augment.py tests/data/augment [--all]

augment.safetensors: image/SIDE (side, side, 3) bytes, and SIDE/OP/MAGNITUDE/SIGN with the operation applied; OP is the position in
torchvision's table. values, partner: (3, side, side) floats; erased, mixup, cutmix: their results. --all: every magnitude.
"""
import math
import sys
from pathlib import Path

import numpy
import torch
import torchvision.transforms.v2.functional as functional
from PIL import Image
from safetensors.numpy import save_file
from torchvision.transforms import InterpolationMode, RandAugment, autoaugment
from torchvision.transforms import v2


def image(side, seed):
    """A gradient with edges and noise; the second one has few values and a flat channel."""
    random = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:side, 0:side]
    pixels = numpy.stack([x * 255 // side, y * 200 // side + 20, (x + y) * 120 // side], 2)
    pixels[side // 3:side // 2, side // 4:] = (250, 3, 90)
    pixels += random.integers(-12, 13, pixels.shape)
    if seed % 2:
        pixels = numpy.stack([pixels[..., 0] // 64 * 64, pixels[..., 1], numpy.full((side, side), 77)], 2)
    return numpy.clip(pixels, 0, 255).astype(numpy.uint8)


def main():
    out, every = {}, "--all" in sys.argv
    for side, seed in ((32, 0), (21, 1)) if not every else ((32, 0), (21, 1), (224, 2), (65, 3), (16, 4), (7, 5)):
        pixels = image(side, seed)
        out[f"image/{side}"] = pixels
        space = RandAugment()._augmentation_space(31, (side, side))
        for number, (name, (magnitudes, signed)) in enumerate(space.items()):
            levels = range(31) if every else (1, 9, 30) if side == 32 else (14,)
            for level in levels if magnitudes.ndim else (9,):
                value = float(magnitudes[level].item()) if magnitudes.ndim else 0.0
                for sign in (1, -1) if signed else (1,):
                    result = autoaugment._apply_op(Image.fromarray(pixels), name, value * sign, InterpolationMode.NEAREST, None)
                    out[f"{side}/{number}/{level}/{'-' if sign < 0 else '+'}"] = numpy.asarray(result).copy()
    side = 32
    generator = torch.Generator().manual_seed(3)
    values, partner = (torch.randn(3, side, side, generator=generator) for _ in range(2))
    out.update(values=values.numpy(), partner=partner.numpy())
    out["erased"] = functional.erase(values, 3, 20, 9, 12, torch.zeros(3, 1, 1)).numpy()
    batch = torch.stack([values, partner])
    labels = torch.tensor([0, 1])
    for share in (0.0, 0.3, 0.9375):
        mixed = v2.MixUp(num_classes=2)
        mixed.make_params = lambda inputs, share=share: {"lam": share}
        out[f"mixup/{share}"] = mixed(batch, labels)[0][0].numpy()
    # The box as CutMix.make_params computes it, with its draws given.
    for share, x, y in ((0.3, 5, 30), (0.9, 16, 16), (0.0, 0, 31)):
        half = int(0.5 * math.sqrt(1 - share) * side)
        box = max(x - half, 0), max(y - half, 0), min(x + half, side), min(y + half, side)
        kept = 1.0 - (box[2] - box[0]) * (box[3] - box[1]) / (side * side)
        cut = v2.CutMix(num_classes=2)
        cut.make_params = lambda inputs, box=box, kept=kept: {"box": box, "lam_adjusted": kept}
        images, shares = cut(batch, labels)
        out[f"cutmix/{share}/{x}/{y}"] = images[0].numpy()
        out[f"share/{share}/{x}/{y}"] = shares[0].numpy()
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(out, folder / "augment.safetensors")


main()
