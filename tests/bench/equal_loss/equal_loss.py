# Is the loss that of fp32 AdamW, and what do others give? One line of JSON a run goes to the results file, runs that are
# there are not repeated; `table` prints what is there. See run.sh.
#   equal_loss.py RESULTS SECTION ...     moments worst tiny cost mlp edge spikes regimes long train vit gpt table
import functools, json, math, os, statistics, sys
import torch
import moments, tasks
from peers import PRESETS

SEEDS, EDGE_RUNS = int(os.environ.get("SEEDS", 5)), int(os.environ.get("EDGE_RUNS", 100))
FIRST_SEED = int(os.environ.get("FIRST_SEED", 1))
GPT_STEPS, GPT_BATCH = int(os.environ.get("GPT_STEPS", 1000)), int(os.environ.get("GPT_BATCH", 4))
NAMES, WHATS = os.environ.get("NAMES", "").split(), os.environ.get("WHATS", "").split(";")  # of these only
MOMENTS = ("moments8", "moments4", "flash", "bnb8", "ao8", "aofp8", "ao4")
KINDS = ("like", "sigma1", "sigma2")


@functools.cache
def task_of(kind, *shape): return kind(*shape)


def section_runs(section):
    """(section, what, optimizer, seed), call"""
    if section == "moments":
        for kind in KINDS:
            for name in MOMENTS: yield kind, name, 0, lambda k=kind, n=name: moments.drift(n, k)
        for beta2 in (0.95, 0.9999):
            yield f"like beta2 {beta2}", "moments8", 0, lambda b=beta2: moments.drift("moments8", "like", b)
    if section == "worst":
        for name in MOMENTS:
            for kind in ("spikes50", "sparse", "columns", "loud"): yield kind, name, 0, lambda k=kind, n=name: moments.worst(n, k)
            for kind in ("one1e3", "one1e5", "one1e7"): yield kind, name, 0, lambda k=kind, n=name: moments.neighbours(n, k)
    if section == "tiny":
        for what, case in {"w .03 lr 1e-6": (0.03, 1e-6, 0, 1500), "w 1.5 lr 1e-6": (1.5, 1e-6, 0, 1500),
                           "decay lr 1e-6": (0.03, 1e-6, 0.1, 3000), "decay lr 1e-4": (0.03, 1e-4, 0.1, 1000)}.items():
            for name in ("amp", *PRESETS, "ao8_sr", "bf16"): yield what, name, 0, lambda n=name, c=case: moments.tiny(n, *c)
    if section == "cost":
        for name in ("default", "foreach", "fused", *PRESETS, "bnb8", "ao8"): yield "16 Mi", name, 0, lambda n=name: moments.cost(n)
    if section == "train":
        for seed in range(FIRST_SEED, SEEDS + 1):
            for what, task, steps, lr in (("distill", tasks.Distill, 400, 1e-3), ("lms", tasks.Text, 1000, 1e-3)):
                for name in ("amp", *PRESETS, "4bit", "bnb8", "ao8_sr", "bf16"):
                    if what == "distill" and name in ("4bit", "bnb8", "ao8_sr"): continue
                    yield what, name, seed, lambda t=task, n=name, s=seed, k=steps, r=lr: tasks.run(task_of(t), n, s, k, r)
    if section == "vit":
        for seed in range(FIRST_SEED, SEEDS + 1):
            for what, task in (("ViT", (tasks.Drawn,)), ("GPT", (tasks.Text, 96, 3, 4, 64, 8))):
                for name in ("amp", *PRESETS):
                    yield f"{what}, 2,000 steps", name, seed, lambda t=task, n=name, s=seed: tasks.run(task_of(*t), n, s, 2000, 1e-3)
    if section == "gpt":
        for seed in range(FIRST_SEED, SEEDS + 1):
            for lr in (1e-3, 2e-3):
                for name in ("amp", *PRESETS, "library_fp32"):
                    yield f"lr {lr:g}, {GPT_STEPS} steps", name, seed, lambda n=name, s=seed, r=lr: tasks.run(
                        task_of(tasks.Text, 128, 5, 4, 128, GPT_BATCH), n, s, GPT_STEPS, r)


def stacked_runs(section):
    """The MLP, all seeds at once: (what, optimizer, seeds, steps, learning rate, options)"""
    seeds, all_names = SEEDS, ("amp", *PRESETS, "4bit", "flash", "bnb8", "ao8_sr", "bf16")
    if section == "mlp":
        for name in all_names: yield "mlp", name, seeds, 1500, 1e-3, {}
        for rule, rate in (("lion", 2e-4), ("lamb", 5e-3), ("apsgd", 0.05)):  # next to fp32 of the same library
            for name in ("amp", "balanced"): yield f"mlp {rule}", name, seeds, 1500, rate, {"rule": rule}
    if section == "edge":
        for name in ("amp", *PRESETS, "bnb8", "flash"): yield "lr 0.1, no clip", name, EDGE_RUNS, 500, 0.1, {"clip": 0}
    if section == "spikes":
        for spike in (1e4, 1e6, 1e7):
            for name in ("amp", *PRESETS, "flash", "ao8_sr"): yield f"x {spike:g}", name, seeds, 1500, 1e-3, {"clip": 0, "spike": spike}
    if section == "regimes":
        cases = {"beta2 .95": {"betas": (0.9, 0.95)}, "beta2 .9999": {"betas": (0.9, 0.9999)}, "eps 1e-15": {"eps": 1e-15},
                 "gradients x 1e-8, eps 1e-15": {"times": 1e-8, "eps": 1e-15, "clip": 0}, "gradients x 1e4": {"times": 1e4, "clip": 0}}
        for what, k in cases.items():
            for name in ("amp", *PRESETS): yield what, name, seeds, 1500, 1e-3, k
    if section == "long":
        for name in ("amp", *PRESETS): yield "20,000 steps", name, seeds, 20000, 1e-3, {"schedule": False}


def paired_p(differences):
    """Two-sided p of Student's t of the mean, by numerical integration; NaN where a run has no loss."""
    if not all(map(math.isfinite, differences)): return math.nan
    n, mean, sd = len(differences), statistics.mean(differences), statistics.stdev(differences)
    if sd == 0: return 1.0
    t, k = abs(mean) / (sd / math.sqrt(n)), n - 1
    c = math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2)) / math.sqrt(k * math.pi)
    steps = 20000
    inside = sum(c * (1 + ((i + 0.5) * t / steps) ** 2 / k) ** (-(k + 1) / 2) for i in range(steps)) * t / steps
    return max(0.0, 1 - 2 * inside)


def fisher_p(a, n, b, m):
    """Two-sided: a of n failed, b of m."""
    def chance(x): return math.comb(n, x) * math.comb(m, a + b - x) / math.comb(n + m, a + b)
    return sum(chance(x) for x in range(max(0, a + b - m), min(n, a + b) + 1) if chance(x) <= chance(a) * (1 + 1e-9))


def failed(r):  # no better than a network that has learnt nothing: ln 10 = 2.30
    return not r["val"] < 1.5


def print_paired(section, rows):
    whats = list(dict.fromkeys(r["what"] for r in rows))
    print(f"\n{section}: gap to amp, paired by seed\n{'':28}{'optimizer':10}{'seeds':>6}{'val':>10}{'gap %':>9}{'sd':>8}{'p':>7}{'train gap %':>13}{'sd':>8}{'p':>7}{'B/p':>7}")
    for what in whats:
        of = lambda name: {r["seed"]: r for r in rows if r["what"] == what and r["name"] == name}
        base = of("amp")
        for name in dict.fromkeys(r["name"] for r in rows if r["what"] == what):
            mine = of(name)
            both = sorted(set(base) & set(mine))
            val = statistics.mean(mine[s]["val"] for s in mine)
            line = f"{what:28}{name:10}{len(mine):6}{val:10.5f}"
            if name != "amp" and both:
                for key, width in (("val", 9), ("train", 13)):
                    d = [mine[s][key] / base[s][key] - 1 for s in both]
                    line += f"{100 * statistics.mean(d):+{width}.3f}"
                    line += f"{100 * statistics.stdev(d):8.3f}{paired_p(d):7.3f}" if len(d) > 1 else f"{'-':>8}{'-':>7}"
            else: line += f"{'-':>9}{'-':>8}{'-':>7}{'-':>13}{'-':>8}{'-':>7}"
            print(line + (f"{next(iter(mine.values()))['bytes']:7.3f}" if next(iter(mine.values()))["bytes"] else ""))


def print_table(rows):
    for section in dict.fromkeys(r["section"] for r in rows):
        here = [r for r in rows if r["section"] == section]
        if section == "edge":
            count = lambda n: (sum(failed(r) for r in here if r["name"] == n), sum(r["name"] == n for r in here))
            for name in dict.fromkeys(r["name"] for r in here):
                (a, n), (b, m) = count(name), count("amp")
                print(f"{'edge, ' + here[0]['what']:28}{name:10} failed {a} of {n}" + (f", Fisher p {fisher_p(a, n, b, m):.3f}" if name != "amp" else ""))
        elif "val" in here[0]: print_paired(section, here)
        else:
            print(f"\n{section}")
            for r in here: print(f"{r['what']:28}{r['name']:10}" + "".join(f"  {k} {r[k]:.4g}" if r.get(k) is not None else "" for k in r if k not in ("section", "what", "name", "seed")))


def main(path, sections):
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in open(path)] if os.path.exists(path) else []
    done = {(r["section"], r["what"], r["name"], r["seed"]) for r in rows}

    def wanted(section, what, name, seed):
        return (section, what, name, seed) not in done and (not NAMES or name in NAMES) and (WHATS == [""] or what in WHATS)

    def keep(section, what, name, seed, result):
        row = {"section": section, "what": what, "name": name, "seed": seed, **result}
        rows.append(row)
        with open(path, "a") as f: f.write(json.dumps(row) + "\n")

    for section in sections:
        for what, name, seed, call in section_runs(section):
            if wanted(section, what, name, seed): keep(section, what, name, seed, call())
        for what, name, count, steps, lr, options in stacked_runs(section):
            seeds = [s for s in range(FIRST_SEED, count + 1) if wanted(section, what, name, s)]
            if not seeds: continue
            peer = "library_fp32" if "rule" in options and name == "amp" else name
            for seed, result in zip(seeds, tasks.Digits().run(peer, seeds, steps, lr, **options)):
                keep(section, what, name, seed, result)
    if "table" in sections: print_table(rows)


if __name__ == "__main__": main(sys.argv[1], sys.argv[2:])
