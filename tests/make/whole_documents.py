#!/usr/bin/env python3
"""Golden data of tests/train/whole_documents.sh: tests/data/whole_documents.

    env/bin/python tests/make/whole_documents.py tests/data

Token files X.bin with X.idx and X.labels, of ten documents of 24 tokens and of 60 documents of 5 to 61: the second half of each is
labels. loss.json has, for the model of tests/data/language/qwen3, the mean loss over all labels, each document alone in
transformers' Qwen3ForCausalLM (float64), and the number of labels. Requires torch and transformers.
"""
import json
import struct
import sys

import torch
from transformers import AutoModelForCausalLM


def write(name, documents):
    tokens = [t for d in documents for t in d]
    starts, bits = [0], []
    for d in documents:
        starts.append(starts[-1] + len(d))
        bits += [k >= len(d) // 2 for k in range(len(d))]
    n, packed = len(documents), bytearray((len(bits) + 7) // 8)
    for i, bit in enumerate(bits):
        packed[i // 8] |= bit << i % 8
    with open(name + ".bin", "wb") as f:
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))
    with open(name + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, n, n + 1) + struct.pack(f"<{n}i", *map(len, documents)) +
                struct.pack(f"<{n}q", *[2 * s for s in starts[:-1]]) + struct.pack(f"<{n + 1}q", *range(n + 1)))
    with open(name + ".labels", "wb") as f:
        f.write(b"MEOPTLBL" + struct.pack("<Q", len(bits)) + bytes(packed))


def loss_of(model, documents):
    total, count = 0.0, 0
    for d in documents:
        ids = torch.tensor([d])
        labels = ids.clone()
        labels[:, :len(d) // 2] = -100
        n = int((labels[:, 1:] >= 0).sum())
        total += model(input_ids=ids, labels=labels).loss.item() * n
        count += n
    return {"loss": total / count, "labels": count}


def main(root):
    model = AutoModelForCausalLM.from_pretrained(root + "/language/qwen3", dtype=torch.float64)
    found = {}
    for name, lengths in (("ten", [24] * 10), ("many", [5 + i * 2654435761 % 57 for i in range(60)])):
        documents = [[(i * 31 + k * k * 7 + k * 13) % 97 for k in range(n)] for i, n in enumerate(lengths)]
        write(root + "/whole_documents/" + name, documents)
        with torch.no_grad():
            found[name] = dict(loss_of(model, documents), documents=len(documents), tokens=sum(lengths), longest=max(lengths))
    with open(root + "/whole_documents/loss.json", "w") as f:
        f.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
