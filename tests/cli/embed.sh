#!/bin/sh
# meopt embed: row i belongs to name i, and every row is closest to its own image. One tower does not require the other. For a run it uses
# the newest student. Missing files are named.
set -u
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
failed=0
# expect CODE PATTERN command...: the object at fault and its values
expect() {
    code=$1 text=$2
    shift 2
    "$@" >out 2>&1
    got=$?
    if [ "$got" != "$code" ] || ! grep -q -- "$text" out; then
        echo "expected exit $code and '$text', got $got: $*"
        cat out
        failed=1
    fi
}
cat >table.py <<'PYTHON'
import json, math, struct, sys

def read(path):
    raw = open(path, "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + n])
    part = lambda t: raw[8 + n + header[t]["data_offsets"][0]:8 + n + header[t]["data_offsets"][1]]
    rows, width = header["embeddings"]["shape"]
    names = part("names").split(b"\0")
    assert names.pop() == b"" and len(names) == rows, (len(names), rows)
    values = part("embeddings")
    return {k: values[4 * width * i:4 * width * (i + 1)] for i, k in enumerate(names)}, header["__metadata__"]

def is_nan(row):
    return all(math.isnan(x) for x in struct.unpack("<%df" % (len(row) // 4), row))
PYTHON
# same FILE FILE [NAME of the bad images in the first...]
same() {
    python3 - "$@" <<'PYTHON' || failed=1
import os, sys
sys.path.insert(0, ".")
import table
(a, meta), (b, _), bad = table.read(sys.argv[1]), table.read(sys.argv[2]), [os.fsencode(x) for x in sys.argv[3:]]
assert all(not table.is_nan(v) for v in b.values())
assert sorted(a) == sorted(list(b) + bad), (len(a), len(b))
assert list(a) == sorted(a), "in the order of their bytes"
for k in a: assert table.is_nan(a[k]) if k in bad else a[k] == b[k], k
assert int(meta["images"]) == len(a)
PYTHON
}
mkdir images
n=0
find sample/COCO2014 -name '*.jpg' | sort | head -12 >list
while read -r file; do n=$((n + 1)); cp "$file" "images/$(printf %02d $n).jpg"; done <list
embed() { "$MEOPT" embed configs/quickstart.yaml train.precision=fp32 train.batch_size=5 data.image_size=56 "$@"; }
expect 0 '\[12, 64\] .*teacher' embed --role teacher --out good.safetensors data.root=images
# A further teacher; one that the configuration does not have.
expect 0 '\[12, ' embed --role teacher2 --out second.safetensors data.root=images model_t2.weight=sample/ModelWeight/EVA-CLIP/EVA01_CLIP_g_14_psz14_s11B.pt
expect 0 '\[12, ' embed --role student --out student.safetensors data.root=images
same second.safetensors student.safetensors
expect 2 'teacher2.* 1$' embed --role teacher2 --out none.safetensors data.root=images

# Bad images: with names that would forge lines and colours if they were printed as they are.
newline=$(printf '04\nmeopt: all is well.jpg') escape=$(printf '05\033[31mred.jpg')
printf 'no image\n' >"images/$newline"
printf 'GIF89a....' >"images/$escape"
: >images/06_empty.jpg
expect 1 'bad.safetensors: .*3 of 15 .*NaN' embed --role teacher --out bad.safetensors data.root=images data.max_bad=1
grep -q '^meopt: all is well' out && { echo "a name's newline is printed"; failed=1; }
grep -q "$(printf '\033')" out && { echo "a name's ESC is printed"; failed=1; }
same bad.safetensors good.safetensors "$newline" "$escape" 06_empty.jpg
expect 0 '\[12, 64\] .*teacher' embed --role teacher --skip-bad --out skip.safetensors data.root=images data.max_bad=1
same skip.safetensors good.safetensors
rm -f none.safetensors
expect 1 '2 of 15 .*data.max_bad' embed --role teacher --skip-bad --out none.safetensors data.root=images
[ -e none.safetensors ] && { echo "written though too many are bad"; failed=1; }
mkdir allbad && printf 'x' >allbad/a.jpg && printf 'x' >allbad/b.jpg
expect 1 'allbad: .* 2 ' embed --role teacher --skip-bad --out none.safetensors data.root=allbad data.max_bad=1
rm "images/$newline" "images/$escape" images/06_empty.jpg

# One tower alone.
grep -v weight_s configs/quickstart.yaml >configs/teacher.yaml
grep -v weight_t configs/quickstart.yaml >configs/student.yaml
expect 0 '\[12, 64\] .*teacher' "$MEOPT" embed configs/teacher.yaml --role teacher --out alone.safetensors data.root=images train.precision=fp32 train.batch_size=5
same alone.safetensors good.safetensors
expect 0 '\[12, 64\] .*student' embed --role student --out student.safetensors data.root=images
expect 0 '\[12, 64\] .*student' "$MEOPT" embed configs/student.yaml --role student --out alone.safetensors data.root=images train.precision=fp32 train.batch_size=5
same alone.safetensors student.safetensors
expect 7 'model.weight_s' "$MEOPT" embed configs/teacher.yaml --role student --out x.safetensors
expect 2 '--role' "$MEOPT" embed configs/teacher.yaml --out x.safetensors

# A run: its newest student, as the file that it exports.
printf x >sample/COCO2014/map.tif
"$MEOPT" train configs/quickstart.yaml train.steps=3 train.precision=fp32 train.batch_size=4 --run-dir . --name run >log 2>&1 || { cat log; failed=1; }
for skipped in ' [0-9]* .* train2014; .* [0-9]* ' 'COCO2014: 2 .json, 1 .tif'; do
    [ "$(grep -c "$skipped" log)" = 1 ] || { echo "not logged once: $skipped"; cat log; failed=1; }
done
"$MEOPT" export run --out exported.safetensors >/dev/null || failed=1
expect 0 '\[12, 64\] .*student' "$MEOPT" embed run --out run.safetensors data.root="$work/images"
expect 0 '\[12, 64\] .*student' embed --role student --out file.safetensors data.root=images model.weight_s=exported.safetensors
same run.safetensors file.safetensors
cmp -s run.safetensors student.safetensors && { echo "the run's student is the untrained one"; failed=1; }
expect 0 '\[12, 64\] .*teacher' "$MEOPT" embed run --role teacher --out run.safetensors data.root="$work/images"
same run.safetensors good.safetensors
mkdir empty
expect 7 'empty/config.yaml' "$MEOPT" embed empty --out x.safetensors

# NaN in the weights; a file that is not there; a tower that does not fit. Each names its file.
python3 - <<'PYTHON'
import json, struct
raw = bytearray(open("exported.safetensors", "rb").read())
n, = struct.unpack("<Q", raw[:8])
header = json.loads(raw[8:8 + n])
name = next(k for k in header if k.endswith("blocks.0.mlp.fc1.weight"))
at = 8 + n + header[name]["data_offsets"][0]
raw[at:at + 4] = struct.pack("<f", float("nan"))
open("nan.safetensors", "wb").write(raw)
PYTHON
expect 3 'nan.safetensors: .*blocks.0.mlp.fc1.weight: 1 of .* NaN' embed --role student --out x.safetensors data.root=images model.weight_s=nan.safetensors
for command in plan "embed --role student --out x.safetensors" "train --run-dir . --name none"; do
    # shellcheck disable=SC2086
    expect 7 'nowhere.pt' "$MEOPT" $command configs/quickstart.yaml model.weight_s=nowhere.pt
done
expect 7 'EVA01_CLIP_g_14' embed --role student --out x.safetensors data.root=images model_s.hidden=24
[ -e x.safetensors ] && { echo "written in spite of an error"; failed=1; }
for option in $("$MEOPT" embed --help | grep -o -- '--[a-z-]*' | sort -u); do
    [ "$option" = --help ] || grep -q -- "Fl -${option#--}" "$MEOPT_SOURCE/man/meopt-embed.1" || { echo "$option is not documented"; failed=1; }
done
exit "$failed"
