#!/usr/bin/env python3
"""configs/sample/genesis.tar.gz: the book of Genesis, King James Version, in a part for training and one for validation.

    bible -l72 gen1:1-gen50:26 >genesis.txt              Debian's bible-kjv 4.38
    python3 tests/make/genesis.py genesis.txt configs/sample/genesis.tar.gz

The last tenth, from the beginning of a chapter on, is validation. The same input gives the same bytes.
"""
import gzip
import io
import sys
import tarfile

LICENSE = """The book of Genesis in the King James Version of 1611, as Debian's package bible-kjv-text has it. Its copyright has expired: the text
is in the public domain. The last chapters are in val.txt, the others in train.txt.
"""


def main(source, to):
    text = open(source, "rb").read().lstrip(b"\n")
    at = text.index(b"\nGenesis ", len(text) * 9 // 10) + 1
    files = {"genesis/LICENSE": LICENSE.encode(), "genesis/train.txt": text[:at], "genesis/val.txt": text[at:]}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ["genesis"] + sorted(files):
            info = tarfile.TarInfo(name)
            info.type = tarfile.REGTYPE if name in files else tarfile.DIRTYPE
            info.mode = 0o644 if name in files else 0o755
            info.size = len(files.get(name, b""))
            tar.addfile(info, io.BytesIO(files.get(name, b"")))
    with open(to, "wb") as f:
        f.write(gzip.compress(archive.getvalue(), 9, mtime=0))
    print(len(files), "entries", sum(map(len, files.values())), "bytes unpacked")


if __name__ == "__main__":
    main(*sys.argv[1:])
