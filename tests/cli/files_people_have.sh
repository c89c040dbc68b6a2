#!/bin/sh
# Files with the name of a checkpoint: each is loaded exactly, or refused with exit code, file, kind and remedy. Shards without an index,
# Hugging Face's cache, names of wrappers, mixed types; quantized weights, adapters, formats of other libraries, compressed files, Git LFS
# pointers and HTML pages.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
cat >c.yaml <<YAML
model: {weight_t: none, weight_s: none}
model_t: {heads: 2, activation: gelu}
model_s: {heads: 2, activation: gelu}
data: {root: images, image_size: 28}
train: {batch_size: 2, precision: fp32}
YAML
mkdir images
cp "$MEOPT_SOURCE/tests/data/preprocess/images/06_tiny.jpg" images/
python3 - "$MEOPT_SOURCE/tests/data/names/clip-projection/model.safetensors" <<'PYTHON'
import bz2, gzip, io, json, lzma, os, pickle, struct, sys, types, zipfile

def load(path):
    raw = open(path, "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    return {k: (t["dtype"], t["shape"], raw[8 + n:][slice(*t["data_offsets"])]) for k, t in json.loads(raw[8:8 + n]).items() if k != "__metadata__"}

def save(path, tensors, metadata=None):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for k, (dtype, shape, data) in tensors.items():
        header[k] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + len(data)])
        at += len(data)
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))

def write(path, data):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "wb").write(data)

# pickle.dump of arrays, without NumPy
class Array:
    def __reduce__(self): return sys.modules["numpy.core.multiarray"]._reconstruct, (0,)
numpy = types.ModuleType("numpy.core.multiarray")
numpy._reconstruct = types.FunctionType((lambda *a: a).__code__, {}, "_reconstruct")
numpy._reconstruct.__module__, numpy._reconstruct.__qualname__ = numpy.__name__, "_reconstruct"
for name in "numpy", "numpy.core": sys.modules.setdefault(name, types.ModuleType(name))
sys.modules[numpy.__name__] = numpy

tower = load(sys.argv[1])
rest_of = lambda prefix: {k: t for k, t in tower.items() if k != prefix + "weight"}
begin = "vision_model."
fc1 = begin + "encoder.layers.0.mlp.fc1."
out = begin + "encoder.layers.0.self_attn.out_proj."
save("whole.safetensors", tower)
whole = open("whole.safetensors", "rb").read()

# ---- read
halves = [dict(list(tower.items())[i::2]) for i in (0, 1)]
for i in (0, 1): save("unindexed/model-%05d-of-00002.safetensors" % (i + 1), halves[i])
os.makedirs("hub/models--a--b/snapshots/0123")
write("hub/models--a--b/blobs/f00d", whole)
os.symlink("../../blobs/f00d", "hub/models--a--b/snapshots/0123/model.safetensors")
for words in "_fsdp_wrapped_module.", "_forward_module.module.", "base_model.model.", "vision_tower.vision_tower.", "clip.", "module._orig_mod.", "pretrained.", "module.base_encoder.", "timm_model.", "my_net.image_tower_2.":
    save("words/%s.safetensors" % words.replace(".", ""), {words + k: t for k, t in tower.items()})
save("averaged.safetensors", dict({"module." + k: t for k, t in tower.items()}, n_averaged=("I64", [], b"\0" * 8)))
save("empty_beside.safetensors", dict(tower, nothing=("F32", [0, 4], b""), number=("I64", [], b"\0" * 8)))
save("long_metadata.safetensors", tower, {"a": "b" * 1000000})
def wider(t): # float32 to float64, the same values
    n = len(t[2]) // 4
    return "F64", t[1], struct.pack("<%dd" % n, *struct.unpack("<%df" % n, t[2]))
save("mixed.safetensors", {k: wider(t) if i % 2 else t for i, (k, t) in enumerate(tower.items())})

# ---- refused
for path in "deepspeed/zero_to_fp32.py", "zero3/zero_pp_rank_0_mp_rank_00_model_states.pt", "accelerated/pytorch_model_fsdp_0/x", "megatron/latest_checkpointed_iteration.txt", \
        "saved/saved_model.pb", "keras/tf_model.h5", "flax/flax_model.msgpack", "orbax/manifest.ocdbt", "exported/onnx/model.onnx", "apple/Manifest.json":
    write(path, b"")
save("other_ranks.safetensors", {k: ("F32", [0], b"") for k in tower})
save("called/model.safetensors", {"embedding.weight": ("F32", [1], b"\0" * 4)})
write("called/config.json", b'{"model_type": "owlvit_vision_model"}')
save("flat.safetensors", {begin + "_flat_param": ("F32", [1], b"\0" * 4)})
save("unmerged_dora.safetensors", dict(rest_of(out), **{out + "base_layer.weight": tower[out + "weight"]}))
save("dynamic.safetensors", dict(tower, **{out + "scale": ("F32", [], b"\0" * 4)}))
save("decoder.safetensors", dict(tower, **{begin + "decoder_embed.weight": ("F32", [1], b"\0" * 4)}))
write("model.tflite", b"\x1c\0\0\0TFL3" + bytes(64)); write("model.pte", b"\x30\0\0\0ET12" + bytes(64)); write("model.engine", b"ftrt" + bytes(64))
write("wide.msgpack", b"\xdf\0\1\0\0\xa6params" + bytes(64)); write("long.msgpack", b"\x82\xd9\x2da_key_of_more_than_thirty_one_bytes_in_length\1" + bytes(64))
for protocol in 2, 4: write("arrays%d.pdparams" % protocol, pickle.dumps({"w": Array()}, protocol))
rest = {k: t for k, t in tower.items() if k != fc1 + "weight"}
ints = lambda t, dtype, size: (dtype, t[1], b"\1" * (size * len(t[2]) // 4))
save("bnb_int8.safetensors", dict(rest, **{fc1 + "weight": ints(tower[fc1 + "weight"], "I8", 1), fc1 + "SCB": ("F32", [2], b"\0" * 8), fc1 + "weight_format": ("U8", [], b"\0")}))
save("bnb_nf4.safetensors", dict(rest, **{fc1 + "weight": ("U8", [256, 1], b"\0" * 256), fc1 + "weight.absmax": ("F32", [8], b"\0" * 32)}))
save("gptq.safetensors", dict(rest, **{fc1 + "qweight": ("I32", [2, 2], b"\0" * 16), fc1 + "qzeros": ("I32", [1], b"\0" * 4), fc1 + "scales": ("F16", [2], b"\0" * 4)}))
save("int8.safetensors", {k: ints(t, "I8", 1) if len(t[1]) == 2 else t for k, t in tower.items()})
save("int64.safetensors", {k: ints(t, "I64", 8) for k, t in tower.items()})
lora = {"base_model.model." + out + "lora_%s.weight" % x: ("F32", [1], b"\0" * 4) for x in "AB"}
save("lora/adapter_model.safetensors", lora)
write("lora/adapter_config.json", b'{"peft_type": "LORA"}')
save("unmerged.safetensors", dict(tower, **{out + "lora_A.weight": ("F32", [1], b"\0" * 4)}))
save("zero_rows.safetensors", dict(rest, **{fc1 + "weight": ("F32", [0, 16], b"")}))
save("oblong.safetensors", dict(tower, **{begin + "embeddings.position_embedding.weight": ("F32", [7, 16], b"\0" * 448)}))
save("classless.safetensors", dict(tower, **{begin + "embeddings.position_embedding.weight": ("F32", [9, 16], b"\0" * 576)}))
os.mkfifo("pipe.pt")
os.makedirs("hub/models--a--b/refs")
write("missing/model.safetensors.index.json", json.dumps({"weight_map": {k: "model-0000%d-of-00002.safetensors" % (i + 1) for i in (0, 1) for k in halves[i]}}).encode())
save("missing/model-00001-of-00002.safetensors", halves[0])
write("newer/model.safetensors.index.json", json.dumps({"weight_map": {"a": "model.safetensors"}, "made_up": 1}).encode())
for name, to in ("absolute", "/etc/passwd"), ("above", "../whole.safetensors"): write(name + "/model.safetensors.index.json", json.dumps({"weight_map": {"a": to}}).encode())
os.makedirs("dangling")
os.symlink("../../blobs/gone", "dangling/model.safetensors")
os.symlink(".git/annex/objects/x/SHA256-y\x1b[31m.pt", "annex.pt")
write("annex_pointer.pt", b"/annex/objects/SHA256E-s123--abc.pt\n")
write("lfs.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n")
write("page.pt", b"\n  <!DOCTYPE html><html></html>")
write("denied.bin", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>")
write("entry.bin", b"Entry not found")
write("error.bin", b'{"error": "Repository not found"}')
write("zeros.pt", bytes(9000))
write("nothing.pt", b"")
write("model.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
write("ggml.bin", b"lmgg" + bytes(64))
write("model.onnx", b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:\x80\x02\n\x10" + bytes(300))
write("model.h5", b"\x89HDF\r\n\x1a\n" + bytes(64))
write("model.ckpt.index", bytes([0, 0, 0, 8, 1]) + bytes(64) + struct.pack("<Q", 0xdb4775248b80fb57))
write("flax_model.msgpack", b"\x81\xa6params\x82\xa5model\x80" + bytes(64))
with zipfile.ZipFile("arrays.npz", "w") as z: z.writestr("a.npy", b"\x93NUMPY" + bytes(64))
write("array.npy", b"\x93NUMPY" + bytes(64))
write("whole.gz", gzip.compress(whole)); write("whole.bz2", bz2.compress(whole)); write("whole.xz", lzma.compress(whole))
write("whole.zst", b"\x28\xb5\x2f\xfd" + bytes(64)); write("whole.lz4", b"\x04\x22\x4d\x18" + bytes(64)); write("whole.7z", b"7z\xbc\xaf\x27\x1c" + bytes(64))
write("long_header.safetensors", struct.pack("<Q", 1 << 62) + b'{"a":' + bytes(100))
write("cut.safetensors", whole[:-100])
write("numbers.pkl", pickle.dumps({"a": [1]}, protocol=0))

# pickle.dump of a dictionary of tensors: what torch's classes would write
class Storage:
    def __reduce__(self): return sys.modules["torch.storage"]._load_from_bytes, (b"a pickle of its own",)
class Tensor:
    def __reduce__(self): return sys.modules["torch._utils"]._rebuild_tensor_v2, (Storage(), 0, (1,), (1,), False, None)
for module, function in ("torch._utils", "_rebuild_tensor_v2"), ("torch.storage", "_load_from_bytes"):
    f = types.FunctionType((lambda *a: a).__code__, {}, function)
    f.__module__, f.__qualname__ = module, function
    sys.modules.setdefault(module.split(".")[0], types.ModuleType("torch"))
    sys.modules[module] = types.ModuleType(module)
    setattr(sys.modules[module], function, f)
for protocol in 2, 4, 5: write("dumped%d.pkl" % protocol, pickle.dumps({"a": Tensor()}, protocol))

# torch.save's zip, with any pickle protocol, and metadata behind a tensor as PyTorch has them for its negative bit
sys.modules["torch"].FloatStorage = type("FloatStorage", (), {"__module__": "torch"})
class Stored:
    def __init__(self, key, shape, count): self.key, self.shape, self.count = key, shape, count
class Part:
    def __init__(self, tensor, metadata): self.tensor, self.metadata = tensor, metadata
    def __reduce__(self):
        t, stride = self.tensor, []
        for n in reversed(t.shape): stride.insert(0, stride[0] * self.shape_after if stride else 1); self.shape_after = n
        return sys.modules["torch._utils"]._rebuild_tensor_v2, (t, 0, tuple(t.shape), tuple(stride), False, {}) + ((self.metadata,) if self.metadata else ())
class Pickler(pickle._Pickler):
    def persistent_id(self, value): return ("storage", sys.modules["torch"].FloatStorage, value.key, "cpu", value.count) if isinstance(value, Stored) else None
def torch_save(path, tensors, wrap=lambda state: state, protocol=2, metadata={}):
    state = {k: Part(Stored(str(i), t[1], len(t[2]) // 4), metadata.get(k)) for i, (k, t) in enumerate(tensors.items())}
    raw = io.BytesIO()
    Pickler(raw, protocol).dump(wrap(state))
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", raw.getvalue())
        for i, t in enumerate(tensors.values()): z.writestr("archive/data/%d" % i, t[2])
        z.writestr("archive/version", "3\n")
for protocol in 1, 2, 4: torch_save("protocol%d.pt" % protocol, tower, protocol=protocol)
torch_save("in_a_checkpoint.pt", tower, lambda state: {"epoch": 3, "checkpoint": {"model": state}})
torch_save("numbered.pt", tower, lambda state: dict(enumerate(state.values())))
torch_save("negative.pt", tower, metadata={begin + "pre_layrnorm.bias": {"neg": True}})
torch_save("not_negative.pt", tower, metadata={begin + "pre_layrnorm.bias": {"neg": False}})
eighth = lambda t: ("F8_E4M3", t[1], t[2][::4])
for what, name in ("projection", "visual_projection.weight"), ("norm", begin + "pre_layrnorm.weight"), ("bias", begin + "encoder.layers.1.self_attn.q_proj.bias"):
    save("fp8_%s.safetensors" % what, {k: eighth(t) if k == name else t for k, t in tower.items()})
save("two_towers.safetensors", {word + k: t for k, t in tower.items() for word in ("left.", "right.")})
save("fp8_unknown.safetensors", dict(tower, **{begin + "encoder.layers.0.scale": ("F8_E4M3", [1], b"\0")}))
save("fp8_beside.safetensors", dict(tower, **{"text_model.final.weight": ("F8_E4M3", [1], b"\0")}))
PYTHON

embed() {
    "$MEOPT" embed c.yaml --role teacher "model.weight_t=$1" data.max_bad=1 -o embedded >out 2>err || fail "$1 is not read"
    tail -c +$(($(od -An -tu8 -N8 embedded) + 9)) embedded
}
embed whole.safetensors >expected
[ -s expected ] || fail "no embeddings"
for file in unindexed hub/models--a--b/snapshots/0123 words/* averaged.safetensors empty_beside.safetensors long_metadata.safetensors mixed.safetensors protocol*.pt \
    in_a_checkpoint.pt not_negative.pt fp8_beside.safetensors; do
    embed "$file" | cmp -s - expected || fail "$file is read as another tower"
done
# CODE FILE NAME HINT: the tensor, format or value at fault; the command or name in the hint, empty where it has neither
while IFS='|' read -r want file named hint; do
    exits "$want" "$MEOPT" plan c.yaml "model.weight_t=$file" "model.weight_s=$file" >out 2>err || fail "$file: exit $code, expected $want"
    grep -q "$(basename "$file").*$named" err || fail "$file: not named '$named'"
    grep -q "^ .*$hint" err || fail "$file: no hint '$hint'"
    ! grep -q "$(printf '\033')" err || fail "$file: control characters"
done <<'TABLE'
7|bnb_int8.safetensors|mlp.fc1.SCB .*bitsandbytes|
7|bnb_nf4.safetensors|mlp.fc1.weight.absmax.*bitsandbytes|
7|gptq.safetensors|mlp.fc1.qweight .*GPTQ|
7|fp8_projection.safetensors|visual_projection.weight .*F8_E4M3|bfloat16
7|fp8_norm.safetensors|pre_layrnorm.weight .*F8_E4M3|OpenCLIP
7|fp8_bias.safetensors|q_proj.bias .*F8_E4M3|bfloat16
7|two_towers.safetensors|left\. .*right\.|
7|fp8_unknown.safetensors|layers.0.scale|
7|negative.pt|pre_layrnorm.bias|resolve_neg
3|numbered.pt| 40 |state_dict
7|int8.safetensors|position_embedding.weight .*I8|
7|int64.safetensors|class_embedding .*I64|
3|lora|LoRA|merge_and_unload
3|deepspeed|DeepSpeed|zero_to_fp32.py
3|zero3|ZeRO-3|zero_to_fp32.py
3|accelerated|FSDP|pytorch_model_fsdp_0
3|megatron|Megatron|transformers
3|saved|SavedModel|safetensors
3|keras|TensorFlow|from_tf
3|flax|Flax|from_flax
3|orbax|Orbax|safetensors
3|exported|ONNX|safetensors
3|apple|Core ML|safetensors
3|model.tflite|TensorFlow Lite|safetensors
3|model.pte|ExecuTorch|safetensors
3|model.engine|TensorRT|safetensors
3|wide.msgpack|MessagePack|safetensors
3|long.msgpack|MessagePack|safetensors
3|arrays2.pdparams|PaddlePaddle|torch.from_numpy
3|arrays4.pdparams|PaddlePaddle|torch.from_numpy
7|other_ranks.safetensors|patch_embedding.weight .*ZeRO-3|zero_to_fp32.py
7|called|owlvit_vision_model|OpenCLIP
7|flat.safetensors|FULL_STATE_DICT|OpenCLIP
7|unmerged_dora.safetensors|base_layer.weight.*PEFT|merge_and_unload
7|dynamic.safetensors|out_proj.scale|
7|decoder.safetensors|decoder_embed.weight|
7|lora/adapter_model.safetensors|LoRA|OpenCLIP
7|unmerged.safetensors|lora_A.weight.*LoRA|merge_and_unload
7|zero_rows.safetensors|mlp.fc1.weight .*\[0x16\].*\[64x16\]|
7|oblong.safetensors| 7 .* 1 + |
7|classless.safetensors| 9 .* 1 + |
1|pipe.pt|regular file|
1|/dev/zero|regular file|
7|https://dl.example.org/vit.pth||meopt fetch
1|missing|model-00002-of-00002.safetensors|
7|newer|made_up|
3|absolute|/etc/passwd|
3|above|\.\./whole.safetensors|
1|dangling|../../blobs/gone|
7|annex.pt|.git/annex/|git annex get
3|annex_pointer.pt|git-annex|git annex get
3|lfs.safetensors|git-lfs|git lfs pull
3|page.pt|HTML|
3|denied.bin|HTML|
3|entry.bin|Entry not found|
3|error.bin|weight_map|index.json
3|zeros.pt| 9000 |
3|nothing.pt|empty|
3|hub/models--a--b|Hugging Face|snapshots
3|model.gguf|GGUF|safetensors
3|ggml.bin|GGML|safetensors
3|model.onnx|ONNX|safetensors
3|model.h5|HDF5|torch.save
3|model.ckpt.index|TensorFlow|safetensors
3|flax_model.msgpack|MessagePack.*Flax|safetensors
3|arrays.npz|NumPy|torch.save
3|array.npy|NumPy|torch.save
3|whole.gz|gzip|
3|whole.bz2|bzip2|
3|whole.xz|xz|
3|whole.zst|zstd|
3|whole.lz4|lz4|
3|whole.7z|7-Zip|
3|long_header.safetensors|4611686018427387904|
3|cut.safetensors|visual_projection.weight|
3|numbers.pkl|protocol 0|torch.save
3|dumped2.pkl|pickle.dump|torch.save(pickle.load
3|dumped4.pkl|pickle.dump|torch.save(pickle.load
3|dumped5.pkl|pickle.dump|torch.save(pickle.load
TABLE
# What is reported on the way to a run is reported there, too.
got=0
"$MEOPT" train c.yaml model.weight_t=annex.pt model.weight_s=whole.safetensors --run-dir . --name run >out 2>err || got=$?
[ "$got" = 7 ] && grep -q 'model_t.weight .*\.git/annex/.*annex.pt$' err || fail "a dead link is not reported by train ($got)"
