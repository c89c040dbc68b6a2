#!/usr/bin/env python3
"""Golden data of tests/golden/golden_classify.c: tests/data/classify/NAME.

    env/bin/python tests/make/classifiers.py tests/data/classify [NAME ...]

Each case is an image classifier of a real library, every parameter redrawn. model.safetensors is the file that the library
saves; gradient.safetensors and final.safetensors have the same keys: the gradients of the first step, and the parameters
after STEPS steps of torch.optim.AdamW on one batch, in float64. golden.safetensors has the batch, the logits and the
losses, and the errors of the library's own bf16: logits, loss, worst and median gradient. The loss is the cross entropy of
two labels, smoothed. Requires tests/tools/requirements.txt.
"""
import copy
import json
import os
import re
import sys
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

BATCH, CLASSES, STEPS, IMAGE, PATCH = 4, 7, 6, 21, 7
LR, DECAY, SMOOTHING = 1e-3, 0.05, 0.1


def redraw(model, seed):
    """Norm weights 1 + N(0, 0.2), everything else N(0, 0.2)."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        p.data = torch.randn(p.shape, generator=g) * 0.2 + (1 if name.endswith("weight") and p.dim() == 1 else 0)


def state_of(model):
    """What the library saves."""
    model = copy.deepcopy(model).float()
    if not hasattr(model, "save_pretrained"):
        return {k: v.contiguous() for k, v in model.state_dict().items()}, None
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        with open(os.path.join(d, "config.json")) as f:
            return load_file(os.path.join(d, "model.safetensors")), json.load(f)


def loss_of(logits, golden):
    each = [F.cross_entropy(logits, golden[k].long(), reduction="none", label_smoothing=SMOOTHING) for k in ("labels", "labels2")]
    share = golden["share"].double()
    return (share * each[0] + (1 - share) * each[1]).mean()


def logits_of(model, images):
    out = model(images)
    return getattr(out, "logits", out)


def rel(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def errors_of_bf16(model, golden, gradients):
    """Of the model in bf16 throughout, against float64. Separate queries, keys and values count as one parameter: keys alone have a
    bias whose gradient is 0."""
    half = copy.deepcopy(model).bfloat16()
    logits = logits_of(half, golden["images"].bfloat16())
    loss = loss_of(logits.double(), golden)
    loss.backward()
    joined = {}
    for (name, p), exact in zip(half.named_parameters(), gradients.parameters()):
        if exact.any():
            parts = joined.setdefault(re.sub(r"\b(query|key|value|[qkv]_proj)\b", "qkv", name), ([], []))
            parts[0].append(p.grad.flatten())
            parts[1].append(exact.flatten())
    each = sorted(rel(torch.cat(a), torch.cat(b)) for a, b in joined.values())
    exact = loss_of(golden["logits"], golden)
    return torch.tensor([rel(logits, golden["logits"]), abs(loss / exact - 1).item(), each[-1], each[len(each) // 2]])


def make(name, model, root):
    torch.manual_seed(1)
    redraw(model, seed=sum(map(ord, name)))
    model.eval()
    state, config = state_of(model)
    golden = {"images": torch.randn(BATCH, 3, IMAGE, IMAGE), "labels": torch.randint(0, CLASSES, (BATCH,), dtype=torch.int32),
              "labels2": torch.randint(0, CLASSES, (BATCH,), dtype=torch.int32), "share": torch.tensor([1.0, 0.7, 0.25, 1.0])}
    model.double()
    initial, images = copy.deepcopy(model), golden["images"].double()
    wide = [sum(n > 1 for n in p.shape) > 1 for p in model.parameters()]
    groups = [{"params": [p for p, w in zip(model.parameters(), wide) if w], "weight_decay": DECAY},
              {"params": [p for p, w in zip(model.parameters(), wide) if not w], "weight_decay": 0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = logits_of(model, images)
        loss = loss_of(logits, golden)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            golden["logits"] = logits.detach().clone()
            gradients = copy.deepcopy(model)
            for p, q in zip(gradients.parameters(), model.parameters()):
                p.data = torch.zeros_like(q) if q.grad is None else q.grad.clone()
            gradient = state_of(gradients)[0]
            golden["bf16"] = errors_of_bf16(initial, golden, gradients)
        optimizer.step()
    golden["loss"] = torch.tensor(losses, dtype=torch.float64)
    directory = os.path.join(root, name)
    os.makedirs(directory, exist_ok=True)
    for file, tensors in ("model", state), ("gradient", gradient), ("final", state_of(model)[0]), ("golden", golden):
        save_file(tensors, os.path.join(directory, file + ".safetensors"))
    if name == "dinov2-hub":  # with layers=4: the class tokens of four layers, and the mean of the last one's patches
        state["linear_head.weight"] = torch.ones(CLASSES, 5 * 32)
        save_file({k: v.half() for k, v in state.items()}, os.path.join(directory, "layers4.safetensors"))
    if config:
        with open(os.path.join(directory, "config.json"), "w") as f:
            json.dump(config, f, indent=1)
            f.write("\n")
    print(name, sum(p.numel() for p in model.parameters()), losses[0], losses[-1])


def timm_vit(**more):
    from timm.models.vision_transformer import VisionTransformer
    return VisionTransformer(img_size=IMAGE, patch_size=PATCH, embed_dim=32, depth=2, num_heads=2, mlp_ratio=1.5, num_classes=CLASSES,
                             **more)


def torchvision_vit():
    from torchvision.models.vision_transformer import VisionTransformer
    return VisionTransformer(image_size=IMAGE, patch_size=PATCH, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=48,
                             num_classes=CLASSES)


def hf(kind, **more):
    import transformers
    config = getattr(transformers, kind + "Config")(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=IMAGE,
                                                    patch_size=PATCH, num_labels=CLASSES, **more)
    return getattr(transformers, kind + "ForImageClassification")(config)


class Hub(torch.nn.Module):
    """What torch.hub's dinov2_*_lc make with layers=1 (dinov2/hub/classifiers.py)."""

    def __init__(self):
        from dinov2.models.vision_transformer import DinoVisionTransformer
        super().__init__()
        self.backbone = DinoVisionTransformer(img_size=IMAGE, patch_size=PATCH, embed_dim=32, depth=2, num_heads=2, mlp_ratio=1.5,
                                              init_values=1.0, block_chunks=0)
        self.linear_head = torch.nn.Linear(2 * 32, CLASSES)

    def forward(self, x):
        found = self.backbone.forward_features(x)
        return self.linear_head(torch.cat([found["x_norm_clstoken"], found["x_norm_patchtokens"].mean(dim=1)], dim=1))


CASES = {
    "dinov2-hub": Hub,
    "timm-vit": timm_vit,
    "timm-vit-gap": lambda: timm_vit(global_pool="avg"),
    "torchvision-vit": torchvision_vit,
    "hf-vit": lambda: hf("ViT", intermediate_size=48),
    "hf-dinov2": lambda: hf("Dinov2", mlp_ratio=2),
    "hf-dinov2-registers": lambda: hf("Dinov2WithRegisters", mlp_ratio=2, num_register_tokens=3),
}

if __name__ == "__main__":
    for name in sys.argv[2:] or CASES:
        make(name, CASES[name](), sys.argv[1])
