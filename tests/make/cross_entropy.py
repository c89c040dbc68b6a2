#!/usr/bin/env python3
"""Makes tests/data/classify/cross_entropy.safetensors: torch.nn.functional.cross_entropy in float64, its gradient, and hits by
torch.topk, for tests/golden/golden_cross_entropy.c. Case NAME has NAME.logits (R, C), NAME.label, NAME.label2 (-1: no label, no second
label), NAME.share (R), NAME.smoothing, NAME.loss (sum over the rows), NAME.dlogits, NAME.top (2: the hits of the first label).
Needs torch (made with 2.15.0):

    python3 tests/make/cross_entropy.py tests/data/classify/cross_entropy.safetensors
"""
import sys
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

#        rows, classes, smoothing, scale of the logits, two labels
CASES = {"plain": (6, 10, 0.0, 2, False), "smooth": (6, 10, 0.1, 2, False), "mixed": (8, 33, 0.1, 3, True),
         "mixed_hard": (5, 7, 0.0, 3, True), "outliers": (4, 64, 0.1, 1500, True), "binary": (3, 2, 0.0, 1, False)}
g, tensors = torch.Generator().manual_seed(35), {}
for name, (rows, classes, smoothing, scale, two) in CASES.items():
    logits = torch.randn(rows, classes, generator=g) * scale
    label, label2 = (torch.randint(classes, (rows,), generator=g) for _ in range(2))
    share = torch.rand(rows, generator=g)
    label[1] = -1
    label2[2] = -1
    if not two:
        label2[:] = -1
    z = logits.double().requires_grad_()
    one, other = (F.cross_entropy(z, l.where(label >= 0, -1), ignore_index=-1, label_smoothing=smoothing, reduction="none")
                  for l in (label, label2))
    part = share.double().where(label2 >= 0, 1)
    loss = (part * one + (1 - part) * other).sum()
    loss.backward()
    hits = [(logits.topk(k).indices == label[:, None]).any(1).sum() for k in (1, min(5, classes))]
    tensors.update({f"{name}.{k}": v.contiguous() for k, v in dict(
        logits=logits, label=label.int(), label2=label2.int(), share=share, smoothing=torch.tensor([smoothing]),
        loss=loss.detach()[None], dlogits=z.grad, top=torch.stack(hits).double()).items()})
save_file(tensors, sys.argv[1])
