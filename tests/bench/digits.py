"""The row `digits` of paired_with_torch.py: a ViT that learns the sample's digits, configs/digits.yaml here and the same model and recipe in PyTorch.

Each seed starts all forms from the same initial values, timm's: ours in bf16 and fp32, timm's VisionTransformer with AdamW in fp32 on images that
are decoded once. Ours is exported for timm; one function computes the accuracy of both on the 359 validation images. Seconds, processor time and
wall, are of the whole run for ours and of the steps alone for PyTorch. Memory is the peak resident size, and for PyTorch also what its steps add.
"""
import glob, json, math, os, resource, statistics, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OURS = {"ours bf16": "model.dtype=bf16", "ours fp32": "model.dtype=fp32"}
FORMS = [*OURS, "PyTorch fp32"]
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
    save_file(initial(int(seed)).state_dict(), path)


def torch_run(seed):
    import torch
    model = initial(int(seed))
    x, y = images("train")
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
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
    after, wall = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - begin
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "wall": wall, "peak_mb": after.ru_maxrss / 1e3, "added_mb": (after.ru_maxrss - before.ru_maxrss) / 1e3,
            "accuracy": accuracy(model), "steps": steps, "torch": torch.__version__}


def exported_accuracy(path):
    from safetensors.torch import load_file
    from timm.models.vision_transformer import VisionTransformer
    model = VisionTransformer(**SHAPE)
    model.load_state_dict(load_file(path), strict=True)
    return accuracy(model)


def run(meopt, form, seed, env):
    """Runs one form of one seed. PyTorch is left to other processes, for a child's peak begins with its parent's."""
    with tempfile.TemporaryDirectory() as work:
        def call(*words):
            done = subprocess.run(words, cwd=work, env=env, capture_output=True, text=True)
            return sys.exit(done.stderr) if done.returncode else done.stdout
        def python(*words): return json.loads(call(sys.executable, os.path.abspath(__file__), *words))
        call(meopt, "fetch", "digits", "--dest", "sample")
        if form not in OURS: return python("torch", str(seed))
        python("initial", str(seed), "initial.safetensors")
        words = [os.path.join(ROOT, "configs", "digits.yaml"), "--run-dir", "runs", "--name", "run", "--no-dashboard", "device.type=cpu",
                 "train.seed=%d" % seed, "model.init=checkpoint", "model.weight=%s/initial.safetensors" % work,
                 *("data.%s=%s/sample/digits/%s" % (key, work, split) for key, split in (("root", "train"), ("val", "val"))), OURS[form]]
        begin = time.monotonic()
        with open(work + "/log", "w") as log:
            child = subprocess.Popen([meopt, "train", *words], cwd=work, env=env, stdout=subprocess.DEVNULL, stderr=log)
            _, status, used = os.wait4(child.pid, 0)  # with its workers
        wall = time.monotonic() - begin
        if status: sys.exit(open(work + "/log").read()[-2000:])
        lines = [json.loads(line) for line in open(work + "/runs/run/metrics.jsonl")]
        call(meopt, "export", "run", "--run-dir", "runs", "--format", "timm", "-o", "digits.safetensors")
        return {"seconds": used.ru_utime + used.ru_stime, "wall": wall, "peak_mb": used.ru_maxrss / 1e3,
                "device_peak_mb": max(line["cards"][0]["peak_bytes"] for line in lines if line.get("cards")) / 1e6,
                "accuracy": python("accuracy", "digits.safetensors"), "steps": len(lines)}


def table(name, runs):
    """Prints the runs of one set. Differences and ratios are of the same seed: their mean and standard error, their median."""
    print(f"\n{name}, digits, {BATCH}: {EPOCHS} epochs; top-1 of the last step in %, mean and sd of the seeds; images/s of processor time and of wall,"
          " ours of the whole run.\n")
    print("| form | seeds | top-1 | above PyTorch | MB | of its memory | images/s, processor | times as fast | images/s, wall | times as fast |\n" + "|---" * 10 + "|")
    theirs = {r["round"]: r for r in runs if r["form"] == FORMS[-1]}
    for form in FORMS:
        of = [r for r in runs if r["form"] == form]
        if not of: continue
        def spread(values): return "%.2f, %.2f" % (statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan)
        pairs = [(r, theirs[r["round"]]) for r in of if r["round"] in theirs and form in OURS]
        cells = [form, str(len(of)), spread([100 * r["accuracy"] for r in of])]
        above = [100 * (a["accuracy"] - b["accuracy"]) for a, b in pairs]
        error = statistics.stdev(above) / math.sqrt(len(above)) if len(above) > 1 else math.nan
        cells += ["%+.2f (%.2f)" % (statistics.mean(above), error) if above else ""]
        def ratio(key): return "%.2f" % statistics.median(b[key] / a[key] for a, b in pairs) if pairs else ""
        cells += ["%.0f" % max(r["peak_mb"] for r in of) + (", steps %.0f" % max(r["added_mb"] for r in of) if form not in OURS else ""),
                  "%.3f" % statistics.median(a["peak_mb"] / b["peak_mb"] for a, b in pairs) if pairs else ""]
        for key in ("seconds", "wall"):
            cells += ["%.0f" % statistics.median(r["steps"] * BATCH / r[key] for r in of), ratio(key)]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    parts = {"initial": save_initial, "torch": torch_run, "accuracy": exported_accuracy}
    print(json.dumps(parts[sys.argv[1]](*sys.argv[2:])))
