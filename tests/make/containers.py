"""Makes tests/data/containers: one small tower in every kind of file that people have, written by the real libraries.

    python3 -m venv VENV && VENV/bin/pip install torch numpy safetensors
    VENV/bin/python tests/make/containers.py

Each row of index.json: what it is, the path to open, and what is expected - `code` 0 with the tower's tensors bit for bit (under
`prefix`, found under `entry`, `others` next to it), or an exit code with the name `says` in the message and `hint` in the hint.
"""
import collections, io, json, os, pickle, shutil, struct, tarfile, warnings, zipfile
import numpy, torch
from safetensors.torch import save_file, save

warnings.simplefilter("ignore")
root = os.path.join(os.path.dirname(__file__), "..", "data", "containers")
shutil.rmtree(root, ignore_errors=True)
os.makedirs(root)
rows = []


def path(name):
    full = os.path.join(root, name)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    return full


def row(name, what, code=0, **more):
    rows.append(dict(file=name, what=what, code=code, **more))


def put(name, obj, what, code=0, legacy=False, **more):
    torch.save(obj, path(name), _use_new_zipfile_serialization=not legacy)
    row(name, what, code, **more)


torch.manual_seed(1)
tower = collections.OrderedDict([
    ("visual.conv1.weight", torch.randn(4, 3, 2, 2)),
    ("visual.class_embedding", torch.randn(4)),
    ("visual.transformer.resblocks.0.attn.in_proj_weight", torch.randn(12, 4)),
    ("visual.proj", torch.randn(4, 3).half()),
])
bare = collections.OrderedDict((k[len("visual."):], v) for k, v in tower.items())
other = {k: v + 1 for k, v in tower.items()}


def prefixed(prefix, tensors=tower):
    return collections.OrderedDict((prefix + k, v) for k, v in tensors.items())


save_file(tower, path("tower.safetensors"))
row("tower.safetensors", "the tower itself")

# safetensors by structure: header lengths whose low bytes are those of a pickle
for low in (0x0280, 0x0380, 0x0480, 0x0580):
    raw = save(tower)
    n, = struct.unpack("<Q", raw[:8])
    name = "header_%04x.safetensors" % low
    open(path(name), "wb").write(struct.pack("<Q", low) + raw[8:8 + n] + b" " * (low - n) + raw[8 + n:])
    row(name, "safetensors, header of 0x%x bytes" % low)

# tensors of other kinds next to the tower
sparse = torch.eye(3).to_sparse()
quantized = torch.quantize_per_tensor(torch.ones(2), .1, 0, torch.qint8)
kinds = dict(complex64=torch.ones(2, dtype=torch.complex64), complex128=torch.ones(2, dtype=torch.complex128),
             float8_e4m3fn=torch.ones(2).to(torch.float8_e4m3fn), float8_e5m2=torch.ones(2).to(torch.float8_e5m2),
             uint16=torch.ones(2, dtype=torch.uint16), uint32=torch.ones(2, dtype=torch.uint32), uint64=torch.ones(2, dtype=torch.uint64),
             sparse=sparse, csr=torch.eye(3).to_sparse_csr(), quantized=quantized, meta=torch.ones(2, device="meta"),
             nested=torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), numpy=numpy.ones(2))
for kind, value in kinds.items():
    said = dict(csr="sparse", meta="meta", nested="nested", numpy="NumPy").get(kind, kind)
    put("beside_%s.pt" % kind, dict(tower, extra=value), "%s beside the tower" % kind, unread="extra", kind=said)
    if kind not in ("nested", "csr"):
        put("instead_%s.pt" % kind, dict(tower, **{"visual.proj": value}), "%s as one of the tower's tensors" % kind, missing="visual.proj",
            unread="visual.proj", kind=said)
put("legacy_complex.pt", dict(tower, extra=kinds["complex64"]), "complex beside the tower, legacy", legacy=True, unread="extra", kind="complex64")
put("legacy_quantized.pt", dict(tower, extra=quantized), "quantized beside the tower, legacy", legacy=True, unread="extra", kind="quantized")
for kind in ("complex64", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"):
    save_file(dict(tower, extra=kinds[kind]), path("beside_%s.safetensors" % kind))
    row("beside_%s.safetensors" % kind, "%s beside the tower, safetensors" % kind, unread="extra",
        kind=dict(complex64="C64", float8_e4m3fn="F8_E4M3", float8_e5m2="F8_E5M2").get(kind, kind.replace("uint", "U")))
put("all_float8.pt", {k: v.to(torch.float8_e4m3fn) for k, v in tower.items()}, "a tower in fp8", 3, says="float8_e4m3fn", hint="convert")
save_file({k: v.to(torch.float8_e4m3fn) for k, v in tower.items()}, path("all_float8.safetensors"))
row("all_float8.safetensors", "a tower in fp8, safetensors", 3, says="F8_E4M3", hint="convert")
put("all_numpy.pt", {k: v.numpy() for k, v in tower.items()}, "numpy values", 3, says="NumPy", hint="from_numpy")
put("all_sparse.pt", {k: v.float().to_sparse() for k, v in tower.items()}, "sparse values", 3, says="sparse", hint="to_dense")
put("all_meta.pt", {k: v.to("meta") for k, v in tower.items()}, "meta values", 3, says="meta")

# dictionaries in dictionaries
for name in "model module state_dict model_state_dict net network teacher student model_ema state_dict_ema ema params weights".split():
    put("in_%s.pt" % name, {"epoch": 3, name: tower}, "{%s: ...}" % name, entry=name)
linear = torch.nn.Linear(2, 2)
adamw = torch.optim.AdamW(linear.parameters())
linear(torch.ones(1, 2)).sum().backward()
adamw.step()
put("training.pt", {"epoch": 3, "model_state_dict": tower, "optimizer_state_dict": adamw.state_dict(), "loss": torch.tensor(.5)},
    "PyTorch's tutorial", entry="model_state_dict")
put("dinov2_training.pth", {"teacher": dict(prefixed("backbone."), **{"dino_head.mlp.0.weight": torch.ones(2, 2)})}, "DINOv2's own training output",
    entry="teacher", prefix="backbone.")
put("dino.pth", {"student": prefixed("module.backbone.", other), "teacher": prefixed("backbone."), "optimizer": adamw.state_dict(), "epoch": 1},
    "DINO: student and teacher", entry="teacher", others="student", prefix="backbone.")
put("timm.pth.tar", {"epoch": 1, "arch": "vit", "state_dict": tower, "state_dict_ema": other, "optimizer": adamw.state_dict()}, "timm's train.py",
    entry="state_dict", others="state_dict_ema")
put("parts.pt", {"model": {"backbone": tower, "head": {"w": torch.ones(2)}}, "epoch": 1}, "backbone within model", entry="model.backbone")
put("nested_choice.pt", {"student": {"backbone": other}, "teacher": {"backbone": tower, "encoder": other}}, "a choice on two levels",
    entry="teacher.backbone", others="student, teacher.encoder")
put("config_dict.pt", {"model": {"name": "vit", "width": 4}, "state_dict": tower}, "model is a dictionary of settings", entry="state_dict")
put("rng.pt", {"state_dict": tower, "rng_state": torch.get_rng_state()}, "tensors beside the state dict", entry="state_dict")
put("unknown_name.pt", {"epoch": 3, "my_vit": tower}, "a name that nobody knows", 3, says="my_vit", hint="torch.load(FILE)['my_vit']")
put("control.pt", {"a\x1b[31m\nb": 1}, "control characters in a key", 3, says="a?[31m?b")
put("optimizer.pt", adamw.state_dict(), "an optimizer's state", 3, says="optimizer", hint="model.state_dict()")
put("list.pt", list(tower.values()), "a list", 3, says="a list", hint="state_dict")
put("module.pt", torch.nn.Sequential(torch.nn.Linear(2, 2)), "a whole pickled module", 3, says="torch.nn.modules.container.Sequential",
    hint="model.state_dict()")
put("module_inside.pt", {"model": torch.nn.Linear(2, 2), "epoch": 1}, "a pickled module inside", 3, says="Linear", hint="state_dict")

# prefixes
for prefix in ("module.", "_orig_mod.", "model.", "backbone.", "encoder.", "module.module.", "_orig_mod.module.", "model._orig_mod.", "teacher.backbone."):
    name = "prefix_%s.safetensors" % prefix.rstrip(".").replace(".", "_")
    save_file(prefixed(prefix), path(name))
    row(name, "names with %s" % prefix, prefix=prefix)
put("lightning.ckpt", {"state_dict": prefixed("model."), "pytorch-lightning_version": "2", "callbacks": {}, "hyper_parameters": {"lr": 1e-3}}, "Lightning",
    entry="state_dict", prefix="model.")
put("compiled.pt", prefixed("_orig_mod."), "torch.compile", prefix="_orig_mod.")
save_file(bare, path("bare.safetensors"))
row("bare.safetensors", "model.visual.state_dict()", prefix="", dropped="visual.")
save_file(prefixed("module.", bare), path("bare_module.safetensors"))
row("bare_module.safetensors", "the same with module.", prefix="module.", dropped="visual.")


# TorchScript
class Conv(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(tower["visual.conv1.weight"])

    def forward(self, x):
        return torch.nn.functional.conv2d(x, self.weight)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj_weight = torch.nn.Parameter(tower["visual.transformer.resblocks.0.attn.in_proj_weight"])

    def forward(self, x):
        return x @ self.in_proj_weight.t()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x):
        return self.attn(x)


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.resblocks = torch.nn.Sequential(Block())

    def forward(self, x):
        return self.resblocks(x)


class Visual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.transformer = Conv(), Transformer()
        self.class_embedding = torch.nn.Parameter(tower["visual.class_embedding"])
        self.proj = torch.nn.Parameter(tower["visual.proj"])

    def forward(self, x):
        return self.transformer(self.conv1(x).flatten(1)[:, :4] + self.class_embedding) @ self.proj.float().repeat(3, 1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = Visual()
        self.register_buffer("input_resolution", torch.tensor(2))
        self.names = ["a", "b"]

    def forward(self, x):
        return self.visual(x)


script = torch.jit.script(Model().eval())
torch.jit.save(script, path("script.pt"))
row("script.pt", "torch.jit.save, scripted", format="torchscript")
torch.jit.save(torch.jit.trace(Model().eval(), torch.ones(1, 3, 2, 2)), path("traced.pt"))
row("traced.pt", "torch.jit.save, traced", format="torchscript")

torch.jit.save(torch.jit.freeze(script), path("frozen.pt"))
row("frozen.pt", "torch.jit.freeze", 3, says="without tensors", hint="torch.jit.freeze")

# directories and shards
halves = [dict(list(tower.items())[:2]), dict(list(tower.items())[2:])]


def shards(directory, stem, suffix, write):
    names = ["%s-%05d-of-00002.%s" % (stem, i + 1, suffix) for i in range(2)]
    for part, name in zip(halves, names):
        write(part, path(directory + "/" + name))
    index = {"metadata": {"total_size": 1}, "weight_map": {k: n for part, n in zip(halves, names) for k in part}}
    json.dump(index, open(path("%s/%s.%s.index.json" % (directory, stem, suffix)), "w"), indent=2)
    return names


def config(directory):
    json.dump({"model_type": "clip"}, open(path(directory + "/config.json"), "w"))


save_file(tower, path("hf/model.safetensors"), metadata={"format": "pt"})
config("hf")
row("hf", "a Hugging Face directory", metadata="pt")
row("hf/config.json", "its config.json", 3, says="JSON", hint="directory")
torch.save(tower, path("hf_bin/pytorch_model.bin"))
row("hf_bin", "a Hugging Face directory with pytorch_model.bin")
torch.save(tower, path("open_clip/open_clip_pytorch_model.bin"))
row("open_clip", "an OpenCLIP directory")
first = shards("hf_shards", "model", "safetensors", save_file)[0]
row("hf_shards", "shards in a directory")
row("hf_shards/model.safetensors.index.json", "the index of shards")
row("hf_shards/" + first, "one shard of two", 3, says="part 1", hint="index.json")
shards("hf_bin_shards", "pytorch_model", "bin", torch.save)
row("hf_bin_shards", "pickled shards in a directory")
second = shards("missing_shard", "model", "safetensors", save_file)[1]
os.unlink(path("missing_shard/" + second))
row("missing_shard", "a shard that is not there", 1, says=second, hint="get the rest")
second = shards("wrong_shard", "model", "safetensors", save_file)[1]
save_file({"else": torch.ones(1)}, path("wrong_shard/" + second))
row("wrong_shard", "a shard of another checkpoint", 3, says=second, hint="of one checkpoint")
json.dump({"weight_map": {"visual.proj": "../hf/model.safetensors"}}, open(path("far_shard/model.safetensors.index.json"), "w"))
row("far_shard", "an index that leads elsewhere", 3, says="../hf/model.safetensors")
config("empty")
row("empty", "a directory without weights", 3, says="pytorch_model.bin", hint="model.safetensors")
torch.save(tower, path("other_names/epoch_3.pt"))
row("other_names", "a directory with weights of another name", 3, says="epoch_3.pt", hint="itself")

# distributed checkpoints, sharded over two ranks and whole
import torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp


def rank(r, port):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=r, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    place = [Shard(0), Replicate(), Shard(1), Shard(0)]
    sharded = {k: distribute_tensor(v, mesh, [p]) for (k, v), p in zip(tower.items(), place)}
    if r == 0:
        torch.save(sharded, path("dtensor.pt"))
    dcp.save(sharded, checkpoint_id=path("dcp_sharded/.metadata")[:-len("/.metadata")])
    dist.destroy_process_group()


def spoil(name, change, what, code, **more):
    shutil.copytree(path("dcp_sharded"), path("dcp_" + name))
    metadata = pickle.load(open(path("dcp_sharded/.metadata"), "rb"))
    change(metadata)
    pickle.dump(metadata, open(path("dcp_%s/.metadata" % name), "wb"))
    row("dcp_" + name, "a distributed checkpoint with " + what, code, **more)


if __name__ == "__main__":
    mp.start_processes(rank, (29511,), nprocs=2, start_method="fork") # spawn would run this file again
    row("dtensor.pt", "DTensor values (FSDP2)", 3, says="DTensor", hint="full_state_dict")
    dcp.save({"model": tower, "epoch": 3}, checkpoint_id=path("dcp/.metadata")[:-len("/.metadata")], no_dist=True)
    for name, prefix in (("dcp", "model."), ("dcp_sharded", "")):
        row(name, "a distributed checkpoint", prefix=prefix, format="distributed checkpoint")
        row(name + "/.metadata", "its .metadata", 3, says="distributed checkpoint", hint="directory")
        row(name + "/" + sorted(f for f in os.listdir(path(name)) if f.endswith(".distcp"))[0], "its first part", 3,
            says="distributed checkpoint", hint="directory")
    spoil("gap", lambda m: m.state_dict_metadata["visual.conv1.weight"].chunks.pop(), "a box less", 3, says="boxes")
    spoil("overlap", lambda m: setattr(m.state_dict_metadata["visual.conv1.weight"].chunks[1], "offsets", torch.Size([1, 0, 0, 0])),
          "boxes that overlap", 3, says="overlap")
    spoil("outside", lambda m: setattr(m.state_dict_metadata["visual.conv1.weight"].chunks[1], "offsets", torch.Size([3, 0, 0, 0])),
          "a box beyond its tensor", 3, says="outside")
    spoil("far", lambda m: [setattr(i, "relative_path", "../" + i.relative_path) for i in m.storage_data.values()], "parts elsewhere", 3,
          says=".distcp", hint="trust")
    spoil("compressed", lambda m: [setattr(i, "transform_descriptors", ["zstd"]) for i in m.storage_data.values()], "compressed parts", 3,
          says="compressed", hint="dcp_to_torch")
    spoil("no_part", lambda m: os.unlink(path("dcp_no_part/__1_0.distcp")), "a part that is not there", 1, says="cannot open")
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    dcp_to_torch_save(path("dcp"), path("dcp_to_torch.pt"))
    row("dcp_to_torch.pt", "dcp_to_torch_save", entry="model")

    # what is no checkpoint
    torch.export.save(torch.export.export(Conv().eval(), (torch.ones(1, 3, 2, 2),)), path("program.pt2"))
    row("program.pt2", "torch.export", 3, says="torch.export", hint="torch.export.load")
    open(path("model.gguf"), "wb").write(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    row("model.gguf", "GGUF", 3, says="GGUF", hint="PyTorch or safetensors")
    numpy.savez(path("arrays.npz"), a=numpy.ones(2))
    row("arrays.npz", "NumPy's archive", 3, says="NumPy", hint="torch.save")
    with zipfile.ZipFile(path("around.zip"), "w") as z:
        z.write(path("in_model.pt"), "weights/model.pt")
    row("around.zip", "a zip around a checkpoint", 3, says="weights/model.pt", hint="unpack")
    with tarfile.open(path("around.tar"), "w") as t:
        t.add(path("tower.safetensors"), "tower.safetensors")
    row("around.tar", "a tar around a checkpoint", 3, says="tar", hint="unpack")
    pickle.dump({k: v.numpy() for k, v in tower.items()}, open(path("numpy.pkl"), "wb"), protocol=4)
    row("numpy.pkl", "a pickle of NumPy arrays", 3, says="NumPy", hint="torch.save")
    data = open(path("in_model.pt"), "rb").read()
    open(path("short.pt"), "wb").write(data[:len(data) // 2])
    row("short.pt", "a file that is cut off", 3, says="truncated", hint="again")
    data = open(path("tower.safetensors"), "rb").read()
    open(path("short.safetensors"), "wb").write(data[:len(data) - 9])
    row("short.safetensors", "a safetensors file that is cut off", 3, says="visual.proj", hint="again")
    row("not_there.pt", "a file that is not there", 1, says="cannot open", hint="path")
    json.dump(rows, open(path("index.json"), "w"), indent=1)
    print(len(rows), "rows", sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(root) for f in fs), "bytes")
