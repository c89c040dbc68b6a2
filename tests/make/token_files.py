#!/usr/bin/env python3
"""Golden data of tests/golden/golden_tokens.c: tests/data/megatron, written by the builder of megatron-core.

    env/bin/python tests/make/token_files.py tests/data/megatron

One pair of X.bin and X.idx for each type of tokens, with an empty sequence, an empty document and an index that was appended;
modes.idx has the modes of a multimodal dataset. tokens.json is what megatron-core's own reader finds: the tokens, and the ends
of the documents among them. Requires numpy, torch and megatron-core 0.16.1 (pip install --no-deps megatron-core).
"""
import json
import os
import sys

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

TYPES = {np.uint8: 256, np.int8: 128, np.int16: 30000, np.uint16: 65000, np.int32: 151936, np.int64: 151936,
         np.float32: 100, np.float64: 100}


def write(prefix, dtype, most, modes=False):
    random = np.random.default_rng(most)
    draw = lambda count: torch.from_numpy(random.integers(0, most, count))
    parts = [prefix + ".part%d" % i for i in range(2)]
    for part in parts:
        builder = IndexedDatasetBuilder(part + ".bin", dtype=dtype, multimodal=modes)
        for document in range(4):
            for sequence in range(1 + document % 3):
                builder.add_item(draw(0 if document == 2 and sequence == 1 else int(random.integers(3, 12))), mode=sequence % 2)
            builder.end_document()
        builder.end_document()  # an empty one
        builder.add_document(draw(9), [4, 5], [0, 1] if modes else None)
        builder.finalize(part + ".idx")
    whole = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype, multimodal=modes)
    for part in parts:
        whole.add_index(part)
    whole.finalize(prefix + ".idx")
    for part in parts:
        os.remove(part + ".bin")
        os.remove(part + ".idx")


def read(prefix):
    data = IndexedDataset(prefix)
    ends = np.concatenate([[0], np.cumsum(data.sequence_lengths)])[data.document_indices]
    return {"tokens": np.concatenate([data[i] for i in range(len(data))]).tolist(), "ends": sorted({int(e) for e in ends} - {0})}


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    found = {}
    for dtype, most in TYPES.items():
        name = dtype.__name__
        prefix = os.path.join(sys.argv[1], name)
        write(prefix, dtype, most)
        found[name] = None if name.startswith("float") else read(prefix)
    write(os.path.join(sys.argv[1], "modes"), np.uint16, 65000, True)
    found["modes"] = None
    with open(os.path.join(sys.argv[1], "tokens.json"), "w") as f:
        json.dump(found, f)
        f.write("\n")
