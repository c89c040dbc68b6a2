"""DeepSpeed's CIFAR tutorial (DeepSpeedExamples, training/cifar/cifar10_deepspeed.py) with meopt.torch's Adam: its network, batch of 16,
Adam, WarmupLR and clipping at 1.0.

    python tests/python/torch_cifar.py [DIRECTORY] [--epochs 30] [--seeds 5] [--forms torch:fp32,meopt:fp32,meopt:bf16]

DIRECTORY: cifar-10-batches-py, as torchvision unpacks it. Without one, the files are made from images that need no download, and
written in the same form: `digits`, the 1,797 digits of configs/sample, 8 x 8 pixels as 32 x 32; `photographs`, where scikit-image and
Pillow are installed: pieces of 32 x 32 of ten of its pictures. The class of a piece is its picture; those for the test come from its
lowest fifth, those for the training from above it.

Forms: fp32; bf16: the whole model for meopt, whose library holds the residual bits, and autocast over fp32 parameters for torch,
because DeepSpeed has fp32 master weights; fp16: autocast and GradScaler. DeepSpeed's Adam has decoupled decay unless adam_w_mode is
false; at 3e-7 it makes no difference.
Quick: two epochs of the digits, two seeds. Long: 30 epochs, five seeds; the photographs 10 epochs, three seeds. meopt's mean is at most
2 points below torch's.
"""
import argparse
import importlib.util
import math
import os
import pathlib
import pickle
import statistics
import tarfile
import tempfile
import unittest
import zlib

import numpy
import torch
from torch import nn

import meopt.torch

SOURCE = pathlib.Path(os.environ.get("MEOPT_SOURCE") or pathlib.Path(__file__).parents[2])
PICTURES = ("astronaut.png chelsea.png coffee.png ihc.png motorcycle_left.png retina.jpg hubble_deep_field.jpg rocket.jpg brick.png "
            "grass.png").split()
POINTS = 2  # of accuracy: how far meopt's mean may be below torch's
LONG = bool(os.environ.get("MEOPT_LONG"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):  # (N, 3, 32, 32) to (N, 10)
        x = self.pool(self.conv1(x).relu())
        x = self.pool(self.conv2(x).relu())
        x = self.fc1(x.flatten(1)).relu()
        return self.fc3(self.fc2(x).relu())


def write_files(directory, train, test):
    """Writes CIFAR-10's python files of (images (N, 3, 32, 32), labels) pairs."""
    batches = [(f"data_batch_{i + 1}", [part[i::5] for part in train]) for i in range(5)] + [("test_batch", test)]
    for name, (images, labels) in batches:
        content = {"data": images.reshape(-1, 3072), "labels": labels.tolist()}
        (pathlib.Path(directory) / name).write_bytes(pickle.dumps(content, protocol=2))


def read_files(directory):
    """Returns (images in [-1, 1], labels) for training and test, as the tutorial's transform makes them."""
    directory, parts = pathlib.Path(directory), []
    for names in ([f"data_batch_{i + 1}" for i in range(5)], ["test_batch"]):
        batches = [pickle.loads((directory / name).read_bytes(), encoding="latin1") for name in names]
        pixels = numpy.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
        labels = torch.tensor([label for batch in batches for label in batch["labels"]])
        parts.append((torch.from_numpy(pixels).float().div(255).sub(0.5).div(0.5), labels))
    return parts


def digits(directory):
    parts = {"train": ([], []), "val": ([], [])}
    with tarfile.open(SOURCE / "configs/sample/digits.tar.gz") as archive:
        for name in sorted(n for n in archive.getnames() if n.endswith(".png")):
            png = archive.extractfile(name).read()
            rows = zlib.decompressobj().decompress(png[png.index(b"IDAT") + 4:])  # grey, each row after its filter, 0
            pixels = numpy.frombuffer(rows, numpy.uint8).reshape(8, 9)[:, 1:]
            images, labels = parts[name.split("/")[1]]
            images.append(numpy.broadcast_to(pixels.repeat(4, 0).repeat(4, 1), (3, 32, 32)))
            labels.append(int(name.split("/")[2]))
    write_files(directory, *((numpy.stack(images), numpy.array(labels)) for images, labels in parts.values()))


def photographs(directory, per_class=(500, 200)):
    from PIL import Image

    folder, random = pathlib.Path(importlib.util.find_spec("skimage").origin).parent / "data", numpy.random.default_rng(0)
    parts = ([], []), ([], [])
    for label, name in enumerate(PICTURES):
        pixels = numpy.asarray(Image.open(folder / name).convert("RGB"))
        border = len(pixels) * 4 // 5
        for (images, labels), count, rows in zip(parts, per_class, (pixels[:border], pixels[border:])):
            for _ in range(count):
                y, x = (random.integers(size - 31) for size in rows.shape[:2])
                images.append(rows[y:y + 32, x:x + 32].transpose(2, 0, 1))
                labels.append(label)
    write_files(directory, *((numpy.stack(images), numpy.array(labels)) for images, labels in parts))


def accuracy(model, images, labels, cast):
    with torch.no_grad(), cast():
        return 100 * (model.eval()(images).argmax(1) == labels).float().mean().item()


def run(form, data, epochs, seed):
    """Trains as the tutorial does; returns the accuracy on the test images in percent."""
    (library, dtype), (train, test) = form.split(":"), data
    torch.manual_seed(seed)
    model, cast = Net(), torch.enable_grad
    if dtype == "bf16" and library == "meopt":
        model, train, test = model.bfloat16(), (train[0].bfloat16(), train[1]), (test[0].bfloat16(), test[1])
    elif dtype != "fp32":
        def cast():
            return torch.autocast("cpu", torch.bfloat16 if dtype == "bf16" else torch.float16)
    adam = torch.optim.Adam if library == "torch" else meopt.torch.Adam
    optimizer = adam(model.parameters(), lr=0.001, betas=(0.8, 0.999), eps=1e-8, weight_decay=3e-7)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, math.log(step + 1) / math.log(1000)))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=500, enabled=dtype == "fp16")
    criterion = nn.CrossEntropyLoss()
    for _ in range(epochs):
        for rows in torch.randperm(len(train[0])).split(16):
            with cast():
                loss = criterion(model(train[0][rows]), train[1][rows])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            warmup.step()
    return accuracy(model, *test, torch.no_grad if cast is torch.enable_grad else cast)


def compare(data, forms, epochs, seeds):
    """Prints and returns the accuracies of each form, one per seed."""
    found = {form: [run(form, data, epochs, seed) for seed in range(seeds)] for form in forms}
    for form, values in found.items():
        spread = statistics.stdev(values) if seeds > 1 else 0
        print(f"{form}: {statistics.mean(values):.2f} (sd {spread:.2f}) of", *(f"{v:.2f}" for v in values), flush=True)
    return found


class Tutorial(unittest.TestCase):
    def check(self, make, epochs, seeds, forms, least):
        with tempfile.TemporaryDirectory() as directory:
            make(directory)
            found = compare(read_files(directory), forms, epochs, seeds)
        theirs = statistics.mean(found.pop(forms[0]))
        self.assertGreater(theirs, least)
        for form, values in found.items():
            self.assertGreaterEqual(statistics.mean(values), theirs - POINTS, form)

    def test_digits(self):
        long_form = 30, 5, ["torch:fp32", "meopt:fp32", "meopt:bf16"]
        self.check(digits, *(long_form if LONG else (2, 2, ["torch:fp32", "meopt:bf16"])), 80)

    @unittest.skipUnless(LONG, "long form, MEOPT_LONG=1")
    def test_half(self):
        self.check(digits, 30, 5, ["torch:fp16", "meopt:fp16"], 80)

    @unittest.skipUnless(LONG, "long form, MEOPT_LONG=1")
    @unittest.skipUnless(importlib.util.find_spec("skimage") and importlib.util.find_spec("PIL"), "needs scikit-image and Pillow")
    def test_photographs(self):
        self.check(photographs, 10, 3, ["torch:fp32", "meopt:fp32", "meopt:bf16"], 50)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--forms", default="torch:fp32,meopt:fp32,meopt:bf16")
    parser.add_argument("--images", choices=("digits", "photographs"), default="digits")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if not args.directory:
            {"digits": digits, "photographs": photographs}[args.images](made)
        compare(read_files(args.directory or made), args.forms.split(","), args.epochs, args.seeds)
