#!/bin/sh
# Students of any width, depth, patch and family from random values and keys alone, distilled from a teacher of another family and size:
# planned, trained, exported. The exports have the names and shapes of the real classes (tests/data/any_student.json); in the long form
# timm and transformers load them strictly, and make the embeddings of meopt embed to 1e-5. What a library cannot express is refused.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
python=${MEOPT_PYTHON:-python3}
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1
cat >c.yaml <<YAML
model: {weight_t: $MEOPT_SOURCE/tests/data/names/clip-vision}
model_t: {heads: 2, activation: quick_gelu}
model_s: {init: random, width: 192, heads: 3, depth: 1, patch: 8}
data: {root: images, pipeline: clip, image_size: 28, include: "96-*"}
data_s: {image_size: 32}
train: {batch_size: 4, precision: fp32}
optim: {use_meopt: false, lr: 1.0e-2, warmup_steps: 0}
YAML
"$python" - <<'PYTHON'
import os, random, struct, zlib
random.seed(5)
os.mkdir("images")
def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
for i in range(4): # as large as they are looked at: no resize between
    for size in 32, 96:
        rows = b"".join(b"\0" + random.randbytes(3 * size) for _ in range(size))
        open("images/%d-%d.png" % (size, i), "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0))
                                                       + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
PYTHON
student() { # NAME FORMATS KEYS: train it, export it
    name=$1 formats=$2
    shift 2
    "$MEOPT" plan c.yaml "$@" >log 2>&1 || fail "$name is not planned"
    "$MEOPT" train c.yaml "$@" --steps 2 --run-dir . --name "$name" --no-dashboard >log 2>&1 || fail "$name does not train"
    for format in $formats; do
        case $format in timm) out=$name/timm.safetensors ;; hf) out=$name/hf ;; esac
        "$MEOPT" export "$name" --format $format -o "$out" >log 2>&1 || fail "$name: no export for $format"
        ! grep 'resizes them differently' log || fail "$name was trained at the size of its positions"
    done
    size=32
    case "$*" in *data_s.image_size=96*) size=96 ;; esac
    "$MEOPT" embed "$name" --role student "data.include=$size-*" -o "$name/embeddings" >log 2>&1 || fail "$name: no embeddings"
}
wide="model_s.width=320 model_s.heads=5"
student vit192 "timm hf" model_s.family=dinov2 model_s.pos_grid=4
student vit320-registers "timm hf" model_s.family=dinov2 $wide model_s.pos_grid=12 model_s.registers=4 data_s.image_size=96
student vit192-swiglu "timm hf" model_s.family=dinov2 model_s.pos_grid=4 model_s.registers=4 model_s.ffn=swiglu model_s.hidden=512 # 192 * 4 * 2 / 3
student vit320-plain "timm hf" model_s.family=dinov2 $wide model_s.pos_grid=4 model_s.layerscale=without
student dinov3 "timm hf" model_s.family=dinov3 model_s.registers=4
student dinov3-bare "timm hf" model_s.family=dinov3
student dinov3-swiglu "timm hf" model_s.family=dinov3 $wide model_s.registers=2 model_s.ffn=swiglu model_s.hidden=520 data_s.image_size=96
student eupe "timm hf" model_s.arch=eupe_vitt16 model_s.patch=16
student eva timm model_s.family=eva model_s.out=64
student eva-post timm model_s.family=eva model_s.out=64 model_s.norm=post
student eva02 timm model_s.arch=eva02_tiny14
student openclip "timm hf" model_s.family=openclip model_s.out=64
student siglip "timm hf" model_s.family=siglip
"$python" - "$MEOPT_SOURCE/tests/data/any_student.json" <<'PYTHON'
import json, struct, sys
for name, libraries in json.load(open(sys.argv[1])).items():
    for library, wanted in libraries.items():
        with open("%s/%s" % (name, {"timm": "timm.safetensors", "hf": "hf/model.safetensors"}[library]), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        bare = lambda k: k.removeprefix("vision_model.") # transformers reads names with and without it
        found, wanted = {bare(k): v["shape"] for k, v in header.items() if k != "__metadata__"}, {bare(k): v for k, v in wanted.items()}
        assert found == wanted, (name, library, sorted(set(map(str, found.items())) ^ set(map(str, wanted.items())))[:6])
PYTHON

refused() { # CODE WORD COMMAND...: by name
    code=$1 word=$2
    shift 2
    exits "$code" "$@" >log 2>&1 || fail "$* does not end with $code"
    grep -q "$word" log || fail "no word of $word"
}
refused 7 eva "$MEOPT" export eva --format hf -o eva/hf
refused 7 post-norm "$MEOPT" plan c.yaml model_s.family=dinov2 model_s.norm=post
refused 7 registers "$MEOPT" plan c.yaml model_s.family=eva model_s.out=64 model_s.registers=4
refused 7 LayerScale "$MEOPT" plan c.yaml model_s.family=siglip model_s.layerscale=with
refused 7 swiglu "$MEOPT" plan c.yaml model_s.family=openclip model_s.out=64 model_s.ffn=swiglu
refused 7 model_s.heads "$MEOPT" plan c.yaml model_s.family=dinov2 model_s.heads=5
refused 7 'multiple of 4' "$MEOPT" plan c.yaml model_s.family=dinov3 model_s.width=198 model_s.heads=3
refused 7 registers "$MEOPT" plan c.yaml model_s.init=checkpoint model_s.width=0 model_s.heads=2 model_s.depth=0 model_s.patch=0 \
    "model_s.weight=$MEOPT_SOURCE/tests/data/names/dinov2" model_s.registers=4
refused 7 layerscale "$MEOPT" plan c.yaml model_s.init=checkpoint model_s.width=0 model_s.heads=2 model_s.depth=0 model_s.patch=0 \
    "model_s.weight=$MEOPT_SOURCE/tests/data/names/dinov2" model_s.layerscale=without
# a hidden width that no integer mlp_ratio of Dinov2Config makes; the mean of the patches, which none of transformers' classes returns
student vit192-odd timm model_s.family=dinov2 model_s.pos_grid=4 model_s.hidden=500
refused 7 mlp_ratio "$MEOPT" export vit192-odd --format hf -o odd
student vit192-mean timm model_s.family=dinov2 model_s.pos_grid=4 model_s.pool=avg
refused 7 'pools so' "$MEOPT" export vit192-mean --format hf -o odd
# C-RADIO: a teacher whose patch tokens are matched, too; statistics next to the tower that change its features are refused
teacher="model_t.heads=2 model_t.activation=auto data.image_size=28 model.weight_t=radio.safetensors"
cp "$MEOPT_SOURCE/tests/data/towers/radio/model.safetensors" radio.safetensors
student radio-student "timm" model_s.family=dinov3 model_s.patch=8 loss.tokens=cls+patch $teacher
"$python" - <<'PYTHON'
import json, os, struct
def write(path, **tensors): # radio.safetensors with tensors of radio_model besides
    header, values = json.loads(data[8:8 + length]), data[8 + length:]
    for name, (shape, x) in tensors.items():
        raw = struct.pack("<%df" % len(x), *x)
        header["radio_model." + name.replace("__", ".")] = dict(dtype="F32", shape=shape, data_offsets=[len(values), len(values) + len(raw)])
        values += raw
    raw = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(raw)) + raw + values)
with open("radio.safetensors", "rb") as f: data = f.read()
length = struct.unpack("<Q", data[:8])[0]
conditioner = dict(input_conditioner__norm_mean=([3, 1, 1], [0.25] * 3), input_conditioner__norm_std=([3, 1, 1], [0.5] * 3))
write("normalizer.safetensors", feature_normalizer__mean=([32], [0] * 32))
for name, more in ("inside", dict(do_normalize=False)), ("both", dict(do_normalize=True, image_mean=[0.5] * 3, image_std=[0.5] * 3)):
    os.mkdir(name)
    write(name + "/model.safetensors", **conditioner)
    json.dump(dict(image_processor_type="CLIPImageProcessor", do_resize=True, size=dict(height=28, width=28), resample=3, do_center_crop=False,
                   do_rescale=True, rescale_factor=1 / 255, **more), open(name + "/preprocessor_config.json", "w"))
write("alone.safetensors", **conditioner)
write("half.safetensors", input_conditioner__norm_std=([3, 1, 1], [0.5] * 3))
write("four.safetensors", input_conditioner__norm_mean=([4], [0.5] * 4), input_conditioner__norm_std=([4], [0.5] * 4))
PYTHON
for name in half:norm_mean four:4; do
    [ $name = half:norm_mean ] && code=3 || code=7
    refused $code "${name#*:}" "$MEOPT" plan c.yaml model_s.family=dinov3 $teacher model.weight_t=${name%:*}.safetensors
done
refused 7 feature_normalizer "$MEOPT" plan c.yaml model_s.family=dinov3 $teacher model.weight_t=normalizer.safetensors
# images are normalized inside the model, also after its processor
grep -v pipeline c.yaml >d.yaml
echo 'data: {root: images, image_size: 28, include: "96-*"}' >>d.yaml
for row in inside/model.safetensors:0.25:0.5 both/model.safetensors:0.625:0.25 alone.safetensors:0.25:0.5; do
    mean=${row#*:} std=${row##*:} mean=${mean%:*}
    "$MEOPT" embed d.yaml --role teacher $teacher "model.weight_t=${row%%:*}" -o radio-embeddings >log 2>&1 || fail "$row"
    grep -q "mean $mean $mean $mean, std $std $std $std" log || fail "$row: other mean"
done
[ "${MEOPT_LONG:-}" = 1 ] || exit 0
set -- torch timm transformers safetensors PIL
. "$MEOPT_SOURCE/tests/tools/python.sh"
"$python" "$MEOPT_SOURCE/tests/make/any_student.py" embed .
