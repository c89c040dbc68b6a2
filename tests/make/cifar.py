"""Small files of CIFAR's python form for tests/data/cifar: two images per file.

    python tests/make/cifar.py tests/data/cifar

python2.*: as the published archives, written by Python 2 with protocol 2 (bytes are BINSTRING). protocol4.*, protocol5.*: as Python 3
with numpy writes them. protocol2.pickle: as Python 3 writes protocol 2, whose bytes are text; it is refused.
published.batch: opcode by opcode as in the published archives.
cifar10.meta, cifar100.meta: batches.meta and meta of the published archives, by their checksums.
"""
import hashlib
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


TEN = "airplane automobile bird cat deer dog frog horse ship truck"
FINE = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle caterpillar cattle
chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm"""
COARSE = """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture insects
large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores medium_mammals non-insect_invertebrates
people reptiles small_mammals trees vehicles_1 vehicles_2"""


def published(value, start=1):
    """Pickles like Python 2's cPickle: memo slots from 1, for every str, list and dict."""
    slots = iter(range(start, 256))

    def put():
        return b"q" + bytes([next(slots)])

    def text(word):
        return b"U" + bytes([len(word)]) + word.encode() + put()

    out = b"\x80\x02}" + put() + b"("
    for key, item in value.items():
        out += text(key)
        if isinstance(item, int):
            out += b"M" + struct.pack("<H", item)
        else:
            out += b"]" + put() + b"(" + b"".join(text(word) for word in item.split()) + b"e"
    return out + b"u."


def published_batch(pixels):
    """Two images as cPickle of Python 2 and numpy 1 write them: names of classes are lines, ints of up to 31 bits are BININT, appends are
    marked, and objects that nothing else holds have no memo slot."""
    count = len(pixels) // 3072
    return (b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x15training batch 1 of 5q\x03U\x06labelsq\x04]q\x05(K\x06K\x09e"
            b"U\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
            b"(K\x01K" + bytes([count]) + b"M\x00\x0c\x86cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b"
            b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<i", len(pixels)) + pixels +
            b"q\x0ctbU\tfilenamesq\x0d]q\x0e(U\x28leptodactylus_pentadactylus_s_000004.pngq\x0f"
            b"U\x17camion_s_000148_xxx.pngr\x10\x00\x00\x00eu.")


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
    content = published_batch(batch()[b"data"].tobytes())
    value = pickle.loads(content, encoding="bytes")
    assert (value[b"data"] == batch()[b"data"]).all() and value[b"labels"] == [6, 9]
    (folder / "published.batch").write_bytes(content)
    # checksums: torchvision/datasets/cifar.py
    for name, checksum, value in (("cifar10", "5ff9c542aee3614f3951f8cda6e48888",
                                   {"num_cases_per_batch": 10000, "label_names": TEN, "num_vis": 3072}),
                                  ("cifar100", "7973b15100ade9c7d40fb424638fde48",
                                   {"fine_label_names": FINE, "coarse_label_names": COARSE})):
        content = published(value)
        assert hashlib.md5(content).hexdigest() == checksum, name
        (folder / f"{name}.meta").write_bytes(content)


main()
