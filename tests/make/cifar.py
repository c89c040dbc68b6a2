"""Small files of CIFAR's python form for tests/data/cifar: two images per file.

    python tests/make/cifar.py tests/data/cifar

python2.*: as the published archives, written by Python 2 with protocol 2 (bytes are BINSTRING). protocol4.*, protocol5.*: as Python 3
with numpy writes them. protocol2.pickle: as Python 3 writes protocol 2, whose bytes are text; it is refused.
"""
import pickle
import struct
import sys
from pathlib import Path

import numpy


class Python2(pickle._Pickler):
    """Writes bytes and text like Python 2's str."""
    dispatch = dict(pickle._Pickler.dispatch)

    def save_str(self, value):
        data = value if isinstance(value, bytes) else value.encode()
        self.write(b"U" + struct.pack("<B", len(data)) if len(data) < 256 else b"T" + struct.pack("<i", len(data)))
        self.write(data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_str


def batch():
    pixels = (numpy.arange(2 * 3072) * 7 + numpy.arange(2 * 3072) // 1024 * 11).astype(numpy.uint8)
    return {b"data": pixels.reshape(2, 3072), b"labels": [1, 0], b"fine_labels": [1, 0], b"coarse_labels": [0, 1],
            b"batch_label": b"training batch 1 of 5", b"filenames": [b"a.png", b"b.png"]}


def names():
    return {b"label_names": [b"airplane", b"frog"], b"fine_label_names": [b"apple", b"bee"],
            b"coarse_label_names": [b"fruit", b"insects"], b"num_vis": 3072}


def with_text(value):
    return {key.decode(): item for key, item in value.items()}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for kind, value in (("batch", batch()), ("meta", names())):
        with open(folder / f"python2.{kind}", "wb") as file:
            Python2(file, protocol=2).dump(value)
        for protocol in (4, 5):
            (folder / f"protocol{protocol}.{kind}").write_bytes(
                pickle.dumps(with_text(value) if protocol == 5 else value, protocol=protocol))
    (folder / "protocol2.batch").write_bytes(pickle.dumps(with_text(batch()), protocol=2))


main()
