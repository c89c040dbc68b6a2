#!/usr/bin/env python3
"""configs/sample/digits.tar.gz: the 1,797 handwritten digits that scikit-learn ships, as 8 x 8 PNGs in one directory per class.

    python3 tests/make/digits.py digits.csv.gz configs/sample/digits.tar.gz

digits.csv.gz is sklearn/datasets/data/digits.csv.gz of scikit-learn: the test set of "Optical Recognition of Handwritten Digits" by
E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0). Every fifth image is validation.
The same input gives the same bytes.
"""
import gzip
import io
import struct
import sys
import tarfile
import zlib

LICENSE = """The images are the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, UCI Machine Learning
Repository, https://doi.org/10.24432/C50P49, under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/), as scikit-learn ships them.
Changes: 17 grey levels became 0, 16, ..., 240, 255; every image is a PNG; every fifth one is in val/, the others are in train/.
"""


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(rows):
    """8-bit grey."""
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def main(source, to):
    files = {"digits/LICENSE": LICENSE.encode()}
    for i, line in enumerate(gzip.open(source, "rt")):
        *values, label = [int(float(v)) for v in line.split(",")]
        rows = [[min(255, 16 * v) for v in values[8 * y:8 * y + 8]] for y in range(8)]
        files["digits/%s/%d/%04d.png" % ("val" if i % 5 == 4 else "train", label, i)] = png(rows)
    folders = sorted({name.rsplit("/", depth)[0] for name in files for depth in (1, 2, 3) if name.count("/") >= depth})
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(folders) + sorted(files):
            info = tarfile.TarInfo(name)
            info.type = tarfile.REGTYPE if name in files else tarfile.DIRTYPE
            info.mode = 0o644 if name in files else 0o755
            info.size = len(files.get(name, b""))
            tar.addfile(info, io.BytesIO(files.get(name, b"")))
    with open(to, "wb") as f:
        f.write(gzip.compress(archive.getvalue(), 9, mtime=0))
    print(len(folders) + len(files), "entries", sum(map(len, files.values())), "bytes unpacked")


if __name__ == "__main__":
    main(*sys.argv[1:])
