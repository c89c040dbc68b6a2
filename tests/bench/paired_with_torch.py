"""Training compared with PyTorch on the processor: 'meopt bench train configs/X.yaml' and train_torch.py strictly in turn, the same work.

    PYTHON tests/bench/paired_with_torch.py RESULTS.jsonl [options]    PYTHON: one that has torch, for digits timm too; --help names the options

Each round of a row (set, config, batch) runs ours, ours with train.recompute=block, then each form of PyTorch; the least of all rounds
counts. Every run is a line of RESULTS.jsonl and is not repeated, so that a stopped measurement continues; the table is printed at the end
(--rounds 0: at once). A form of PyTorch with a step of more than 3 times ours is cut off and not run again, and torch.compile is not tried
where the same form without it takes more than 1.5 times the best: it does not change the products that most of a step is.
The row `digits` is a classifier's whole training, each round with a seed of its own: accuracy, memory, images/s (digits.py).

Under other load, one thread, judged by processor time; all forms, two blocks of each tower:
    OMP_NUM_THREADS=1 PYTHON tests/bench/paired_with_torch.py paired.jsonl --by processor --depth 2
The classifier, five seeds:
    OMP_NUM_THREADS=1 PYTHON tests/bench/paired_with_torch.py digits.jsonl --sets native --configs digits --rounds 5
At rest, two threads, the best form only (steps and starts add up to about 8 minutes each where two cores multiply at 260 GFLOP/s):
    OMP_NUM_THREADS=2 PYTHON tests/bench/paired_with_torch.py rest.jsonl --depth 2 --sets native --forms fp32 --rounds 2 --steps 5
    OMP_NUM_THREADS=2 PYTHON tests/bench/paired_with_torch.py rest.jsonl --sets native --configs dinov2 --forms fp32 --rounds 1 --steps 3
"""
import argparse, json, os, subprocess, sys, time
import digits

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
AVX2 = {"MEOPT_CPU_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
SETS = {"native": {}, "avx2": AVX2}
OURS = {"ours": [], "ours, recompute": ["train.recompute=block"]}
FORMS = ["fp32", "bf16", "autocast", "fp32+compile", "bf16+compile", "autocast+compile"]


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results")
    p.add_argument("--meopt", default=os.path.join(ROOT, "build-ci", "meopt"))
    p.add_argument("--configs", nargs="+", default=["dinov2", "eva_clip", "open_clip", "digits"])
    p.add_argument("--batches", nargs="+", type=int, default=[2, 8])
    p.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    p.add_argument("--forms", nargs="*", choices=FORMS, default=FORMS)
    p.add_argument("--depth", type=int, default=0, help="blocks of each tower (0: all)")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--steps", type=int, default=3, help="of each run; the best counts")
    p.add_argument("--limit", type=float, default=600, help="seconds that one run may take")
    p.add_argument("--by", choices=["wall", "processor"], default="wall", help="what ratios and the best are of")
    o = p.parse_args()
    o.meopt = os.path.abspath(o.meopt)
    return o


class Results:
    def __init__(self, path):
        self.path = path
        lines = open(path).read().splitlines() if os.path.exists(path) else []
        self.runs = [json.loads(line) for line in lines]

    def add(self, run):
        self.runs.append(run)
        with open(self.path, "a") as f: f.write(json.dumps(run) + "\n")

    def of(self, key, form): return [r for r in self.runs if r["form"] == form and all(r[k] == v for k, v in key.items())]

    def least(self, key, form, value):
        found = [r[value] for r in self.of(key, form) if value in r]
        return min(found) if found else None


def command(o, key, form, limit):
    if form in OURS:
        cut = [f"model_{tower}.depth={o.depth}" for tower in "ts" if o.depth]
        return [o.meopt, "bench", "train", os.path.join(ROOT, "configs", key["config"] + ".yaml"), "--random-weights", "--no-peak",
                "--json", "--batch", str(key["batch"]), "--steps", str(o.steps)] + cut + OURS[form]
    return [sys.executable, os.path.join(HERE, "train_torch.py"), "cpu", key["config"], str(key["batch"]), form, str(o.depth),
            str(o.steps), f"{limit:.3f}"]


def run(o, key, form, limit):
    begin = time.time()
    try:
        done = subprocess.run(command(o, key, form, limit), env=os.environ | SETS[key["set"]], capture_output=True, text=True, timeout=o.limit)
    except subprocess.TimeoutExpired:
        return {"cut_off_s": o.limit, "after": "the whole run"}
    if done.returncode:
        if form in OURS: sys.exit(done.stderr)
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    said = json.loads(done.stdout.splitlines()[-1])
    if form in OURS:
        said = {"step_ms": said["step_ms"], "cpu_s": said["processor_s"],
                "gflop": said["gflops"] * said["step_ms"] * 1e-3, "allocator_mib": said["peak_bytes"] / 2**20,
                "resident_mib": said["resident_bytes"] / 2**20}
    return {k: said[k] for k in ("step_ms", "cpu_s", "gflop", "allocator_mib", "import_mib", "resident_mib", "cut_off_s", "torch") if k in said} | {
        "took_s": round(time.time() - begin, 1)}


def best_form(o, results, key):
    value = "cpu_s" if o.by == "processor" else "step_ms"
    found = [(results.least(key, f, value), f) for f in FORMS if results.least(key, f, value)]
    return min(found)[1] if found else None


def worth(o, results, key, form):
    """None, or why this form is not run."""
    if any("step_ms" not in r for r in results.of(key, form)): return "cut off before"
    plain, best = form.partition("+")[0], best_form(o, results, key)
    if plain == form or best is None: return None
    took = results.least(key, plain, "cpu_s")
    if results.of(key, plain) and (took is None or took > 1.5 * results.least(key, best, "cpu_s")): return f"{plain} is far from the best"
    return None


def measure(o, results, key):
    trains = key["config"] == "digits"
    for number in range(1, o.rounds + 1):
        for form in digits.FORMS if trains else list(OURS) + [f for f in FORMS if f in o.forms]:
            if any(r["round"] == number for r in results.of(key, form)) or (not trains and worth(o, results, key, form)): continue
            if trains: found = digits.run(o.meopt, form, number, os.environ | SETS[key["set"]])
            else: found = run(o, key, form, 3 * results.least(key, "ours", "cpu_s") if form not in OURS else 0)
            results.add(key | {"form": form, "round": number} | found)
            print(json.dumps(results.runs[-1]), file=sys.stderr, flush=True)


def told(o, results, key, form):
    scale, value = (1, "cpu_s") if o.by == "processor" else (1e-3, "step_ms")
    least = results.least(key, form, value)
    if least: return f"{form} {least * scale:.3f}"
    runs = results.of(key, form)
    if not runs: return f"{form} not tried" if worth(o, results, key, form) else None
    return f"{form} failed" if "failed" in runs[0] else f"{form} cut off"


def table(o, results, keys):
    value, scale = ("cpu_s", 1) if o.by == "processor" else ("step_ms", 1e-3)
    print(f"Least {'processor s' if o.by == 'processor' else 's'} of a step; {o.depth or 'all'} blocks of each tower, "
          f"{keys[0]['threads']} threads. MiB: resident (ours: by the allocator, resident).\n")
    print("| set, config, batch | ours, s | GFLOP/s | MiB | best of PyTorch, s | MiB | times as fast | of its memory | its other forms |\n" + "|---" * 9 + "|")
    for key in keys:
        best = best_form(o, results, key)
        for form in OURS:
            took = results.least(key, form, value)
            if took is None: continue
            work = results.least(key, form, "gflop")
            mine = [results.least(key, form, k) for k in ("allocator_mib", "resident_mib")]
            cells = [f"{key['set']}, {key['config']}, {key['batch']}{form[4:]}", f"{took * scale:.3f}", f"{work / took / scale:.1f}" if work else "",
                     f"{mine[0]:.0f}, {mine[1]:.0f}"]
            if best:
                theirs, mib = results.least(key, best, value), results.least(key, best, "resident_mib")
                others = [told(o, results, key, f) for f in FORMS if f != best] if form == "ours" else []
                cells += [f"{best} {theirs * scale:.3f}", f"{mib:.0f}", f"{theirs / took:.2f}", f"{mine[1] / mib:.2f}",
                          ", ".join(t for t in others if t)]
            print("| " + " | ".join(cells) + " |")


o = options()
results = Results(o.results)
threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or len(os.sched_getaffinity(0))
keys = [{"set": s, "config": c, "batch": b, "depth": o.depth, "threads": threads} for s in o.sets for c in o.configs
        for b in ([digits.BATCH] if c == "digits" else o.batches)]
for key in keys: measure(o, results, key)
steps = [key for key in keys if key["config"] != "digits"]
if steps: table(o, results, steps)
for key in keys:
    if key not in steps: digits.table(key["set"], [r for form in digits.FORMS for r in results.of(key, form)])
