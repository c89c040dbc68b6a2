#!/bin/sh
# Decode + bicubic resize to 224 + crop, one core, PIL and ours in turn on the same files from memory: the sample images at
# their own size (160 x 120), and enlarged to COCO's 640 x 480 with noise at COCO's file size. Prints milliseconds an image
# and the ratio; exits 1 below 2.
#
#   MEOPT_PYTHON=python-with-pillow sh tests/bench/data.sh
set -eu
cd "$(dirname "$0")/../.."
build=${MEOPT_BUILD:-build}
python=${MEOPT_PYTHON:-python3}
"$python" -c 'import PIL, numpy' 2>/dev/null || { echo "no pillow and numpy in $python"; exit 77; }
${CC:-cc} -O2 -D_GNU_SOURCE -I. tests/bench/data.c "$build/libmeopt.a" -o "$build/bench_data" -fopenmp -ljpeg -lpng -lz -lyaml -ljansson -lpcre2-8 -lutf8proc -lm -ldl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xzf configs/sample/COCO2014.tar.gz -C "$work"
mkdir "$work/small" "$work/large"
find "$work/COCO2014/train2014" -name '*.jpg' | LC_ALL=C sort | head -64 | xargs -I{} cp {} "$work/small/"
cat >"$work/pil.py" <<'END'
import glob, io, sys, time
from PIL import Image
import numpy
def prepare(data, side=224):
    im = Image.open(io.BytesIO(data)).convert("RGB")
    w, h = im.size
    w, h = (side, int(side * h / w)) if w <= h else (int(side * w / h), side)
    im = im.resize((w, h), Image.BICUBIC)
    x, y = round((w - side) / 2), round((h - side) / 2)
    return im.crop((x, y, x + side, y + side))
if sys.argv[1] == "enlarge":
    rng = numpy.random.default_rng(1)
    for i, f in enumerate(sorted(glob.glob(sys.argv[2] + "/*.jpg"))):
        a = numpy.asarray(Image.open(f).convert("RGB").resize((640, 480) if i % 4 else (480, 640), Image.BICUBIC)).astype(float)
        a += rng.normal(0, 9, a.shape[:2])[..., None]
        Image.fromarray(a.clip(0, 255).astype("uint8")).save(f"{sys.argv[3]}/{i:03}.jpg", quality=90)
else:
    data = [open(f, "rb").read() for f in sorted(glob.glob(sys.argv[1] + "/*.jpg"))]
    best = 1e30
    for _ in range(5):
        begin = time.perf_counter()
        for d in data: prepare(d)
        best = min(best, time.perf_counter() - begin)
    print(f"{best / len(data) * 1e3:.3f}")
END
"$python" "$work/pil.py" enlarge "$work/small" "$work/large"
"$python" -c 'import PIL; print("Pillow", PIL.__version__)'
slow=0
for set in small large; do
    pil=$("$python" "$work/pil.py" "$work/$set")
    ours=$("$build/bench_data" "$work/$set"/*.jpg)
    echo "$set $pil $ours" | awk '{printf "%s: PIL %.3f ms, ours %.3f ms an image, ratio %.2f\n", $1, $2, $3, $2 / $3; exit $2 < 2 * $3}' || slow=1
done
exit $slow
