"""A ViT that learns the sample's digits, configs/digits.yaml here and the same model and recipe in PyTorch: accuracy, time and memory.

    PYTHON tests/bench/digits.py RESULTS.jsonl [options]    PYTHON: one that has torch, timm, PIL and safetensors

For each seed the forms run in turn from the same initial values, timm's: ours in bf16 and fp32, timm's VisionTransformer with AdamW in fp32 on
images that are decoded once. Ours is exported for timm; one function computes the accuracy of both on the 359 validation images.
Seconds are processor time, which other load changes least: ours of the whole run, PyTorch's of the steps. Memory is the peak resident size,
and for PyTorch also what its steps add to that. Every run is a line of RESULTS.jsonl and is not repeated; the table is printed at the end
(--seeds 0: at once).
    OMP_NUM_THREADS=1 PYTHON tests/bench/digits.py digits.jsonl
"""
import argparse, glob, json, math, os, resource, statistics, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SELF = os.path.abspath(__file__)
OURS = {"ours bf16": ["model.dtype=bf16"], "ours fp32": ["model.dtype=fp32"]}
SHAPE = dict(img_size=8, patch_size=2, embed_dim=64, depth=3, num_heads=4, mlp_ratio=2, num_classes=10)
EPOCHS, BATCH, LR, WARMUP, DECAY, BETAS, EPS = 40, 64, 4e-3, 44, 0.05, (0.9, 0.98), 1e-6  # as configs/digits.yaml resolves


def images(split):
    import numpy, torch
    from PIL import Image
    files = sorted(glob.glob("sample/digits/%s/*/*.png" % split))
    pixels = torch.from_numpy(numpy.stack([numpy.array(Image.open(f).convert("RGB")) for f in files])).float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((pixels - mean) / std).permute(0, 3, 1, 2).contiguous(), torch.tensor([int(f.split("/")[-2]) for f in files])


def accuracy(model):
    import torch
    x, y = images("val")
    with torch.no_grad():
        return (model.eval()(x).argmax(1) == y).float().mean().item()


def initial(seed):
    """timm's initial values of that seed, and a classifier of zeros."""
    import torch
    from timm.models.vision_transformer import VisionTransformer
    torch.manual_seed(seed)
    model = VisionTransformer(**SHAPE)
    torch.nn.init.zeros_(model.head.weight)
    return model


def save_initial(seed, path):
    from safetensors.torch import save_file
    save_file(initial(seed).state_dict(), path)
    print("null")


def torch_run(seed):
    import torch
    model = initial(seed)
    x, y = images("train")
    before = resource.getrusage(resource.RUSAGE_SELF)
    wide = [p for p in model.parameters() if sum(n > 1 for n in p.shape) > 1]
    narrow = [p for p in model.parameters() if sum(n > 1 for n in p.shape) <= 1]
    optimizer = torch.optim.AdamW([{"params": wide}, {"params": narrow, "weight_decay": 0}], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    per_epoch = len(x) // BATCH
    steps = EPOCHS * per_epoch
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(x))
        rows = order[step % per_epoch * BATCH:][:BATCH]
        rate = (step + 1) / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))
        for group in optimizer.param_groups:
            group["lr"] = LR * rate
        loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds, "peak_mb": after.ru_maxrss / 1e3, "added_mb": (after.ru_maxrss - before.ru_maxrss) / 1e3,
                      "accuracy": accuracy(model), "steps": steps}))


def exported_accuracy(path):
    from safetensors.torch import load_file
    from timm.models.vision_transformer import VisionTransformer
    model = VisionTransformer(**SHAPE)
    model.load_state_dict(load_file(path), strict=True)
    print(accuracy(model))


def python(*words):
    """Calls one of the functions above in a process of its own: what starts meopt stays small, for a child's peak begins with its parent's."""
    return json.loads(subprocess.run([sys.executable, SELF, *map(str, words)], check=True, capture_output=True).stdout)


def our_run(o, keys, seed):
    python("initial", seed, "initial.safetensors")
    words = ["configs/digits.yaml", "--run-dir", "runs", "--name", "run", "--no-dashboard", "device.type=cpu", "train.seed=%d" % seed,
             "model.init=checkpoint", "model.weight=" + os.path.abspath("initial.safetensors"), *keys]
    child = subprocess.Popen([o.meopt, "train", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)  # with its workers
    if status:
        raise SystemExit("meopt train: wait status %d" % status)
    lines = [json.loads(line) for line in open("runs/run/metrics.jsonl")]
    subprocess.run([o.meopt, "export", "run", "--run-dir", "runs", "--format", "timm", "-o", "digits.safetensors"], check=True, capture_output=True)
    subprocess.run(["rm", "-r", "runs/run"], check=True)
    return {"seconds": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1e3,
            "device_peak_mb": max(line["cards"][0]["peak_bytes"] for line in lines if line.get("cards")) / 1e6,
            "accuracy": python("accuracy", "digits.safetensors"), "steps": len(lines)}


def table(runs):
    print("%-10s %5s %18s %12s %10s" % ("form", "seeds", "accuracy", "processor s", "peak MB"))
    for form in list(OURS) + ["PyTorch"]:
        of = [r for r in runs if r["form"] == form]
        if of:
            middle = {k: statistics.median(r[k] for r in of) for k in ("seconds", "peak_mb")}
            mean = statistics.mean(r["accuracy"] for r in of)
            spread = statistics.stdev(r["accuracy"] for r in of) if len(of) > 1 else 0
            print("%-10s %5d %9.4f +- %.4f %12.1f %10.0f" % (form, len(of), mean, spread, middle["seconds"], middle["peak_mb"]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results")
    p.add_argument("--meopt", default=os.path.join(ROOT, "build-ci", "meopt"))
    p.add_argument("--seeds", type=int, default=5)
    o = p.parse_args()
    o.meopt, o.results = os.path.abspath(o.meopt), os.path.abspath(o.results)
    runs = [json.loads(line) for line in open(o.results)] if os.path.exists(o.results) else []
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        os.mkdir("configs")
        subprocess.run(["cp", os.path.join(ROOT, "configs", "digits.yaml"), "configs"], check=True)
        subprocess.run([o.meopt, "fetch", "digits", "--dest", "sample"], check=True, capture_output=True)
        for seed in range(o.seeds):
            for form in list(OURS) + ["PyTorch"]:
                if any(r["form"] == form and r["seed"] == seed for r in runs):
                    continue
                found = python("torch", seed) if form == "PyTorch" else our_run(o, OURS[form], seed)
                runs.append({"form": form, "seed": seed, **found})
                with open(o.results, "a") as f:
                    f.write(json.dumps(runs[-1]) + "\n")
        os.chdir(ROOT)
    table(runs)


if __name__ == "__main__":
    parts = {"initial": lambda seed, path: save_initial(int(seed), path), "torch": lambda seed: torch_run(int(seed)),
             "accuracy": exported_accuracy}
    parts[sys.argv[1]](*sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in parts else main()
