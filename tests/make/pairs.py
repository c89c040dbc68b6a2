#!/usr/bin/env python3
"""Makes tests/data/pairs.json: losses of a DINOv2 teacher and a CLIP student of transformers that see the same images in two ways,
each as its own image processor makes them, at 42 and 28 pixels: mean squared error, AdamW without decay, for tests/train/pairs.sh.
Needs torch, torchvision, transformers, Pillow (made with 2.15.0, 0.29.2, 5.23.0, 13.0.0):

    python3 tests/make/pairs.py tests/data/pairs.json
"""
import json, os, sys, tempfile
import torch, transformers
from PIL import Image

data = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "..", "data")
names = ["01_base444.jpg", "02_base422.jpg", "03_base420_odd.jpg", "05_gray.jpg", "07_tall.jpg", "08_wide.jpg", "10_odd_optimized.jpg", "14_rgb.png"]
processors = dict(
    teacher=dict(image_processor_type="BitImageProcessor", size={"shortest_edge": 48}, crop_size={"height": 42, "width": 42}, resample=3,
                 image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], do_center_crop=True, do_convert_rgb=True),
    student=dict(image_processor_type="CLIPImageProcessor", size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}, resample=2,
                 image_mean=[0.5, 0.5, 0.5], image_std=[0.25, 0.25, 0.25], do_center_crop=True, do_convert_rgb=True))


def pixels(role):
    with tempfile.TemporaryDirectory() as directory:
        json.dump(processors[role], open(os.path.join(directory, "preprocessor_config.json"), "w"))
        processor = transformers.AutoImageProcessor.from_pretrained(directory)
        return torch.stack([processor(Image.open(os.path.join(data, "preprocess/images", n)).convert("RGB"), return_tensors="pt")["pixel_values"][0] for n in names])


teacher = transformers.Dinov2Model.from_pretrained(os.path.join(data, "names/dinov2")).eval()
student = transformers.CLIPVisionModel.from_pretrained(os.path.join(data, "names/clip-vision")).eval()
with torch.no_grad():
    targets = teacher(pixel_values=pixels("teacher")).pooler_output
images = pixels("student")
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0)
losses = []
for step in range(4):
    rows = slice(step % 2 * 4, step % 2 * 4 + 4)
    loss = torch.nn.functional.mse_loss(student(pixel_values=images[rows]).pooler_output, targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
json.dump(dict(images=names, processors=processors, losses=losses), open(sys.argv[1], "w"), indent=1)
print(losses)
