#!/usr/bin/env python3
"""The section of RESULTS.md for one card, of the card.json that run.sh of the card kit wrote: card_results.py CARD.JSON >>RESULTS.md"""
import json, sys

r = json.load(open(sys.argv[1]))
card, parts = r["card"], {p["name"]: p for p in r["parts"]}


def figures(name): return parts[name]["figures"] if name in parts and parts[name]["status"] == "passed" else None
def of(kind): return [p for p in r["parts"] if p["kind"] == kind]


print("## Card: %s\n" % card["description"])
if r["emulated"]: print("AN EMULATED CARD: no time or speed means anything.\n")
print("`sh run.sh --device %s --time %d` of the card kit (`cmake --build build --target card-kit`), MEOpt %s, %s; %s. %s, %d cores, %s. %d s: %s.\n"
      % (r["device"], r["limit_seconds"], r["meopt"], card["driver"], card["system"] or "no tool of the system says more", r["host"]["processor"],
         r["host"]["cores"], r["host"]["kernel"], r["seconds"], ", ".join("%d %s" % (n, s) for s, n in r["counts"].items())))
if card["throttling"]: print("The card was throttled: %s.\n" % card["throttling"])
bad = [p for p in r["parts"] if p["status"] in ("failed", "timeout")]
if bad: print("\n".join("- %s, %s: %s" % (p["name"], p["status"], p["reason"]) for p in bad) + "\n")

rows = [p for p in of("train") if p["figures"]]
if rows:
    print("| training, on the card and on the CPU | steps | largest difference of a loss | of at most | again | without graphs |\n|:--|--:|--:|--:|:--|:--|")
    for p in rows:
        f = p["figures"]
        same = lambda key: "same bytes" if f[key] else "other bytes"
        print("| %s | %d | %.1e | %.0e | %s | %s |" % (p["name"], f["steps"], f["loss_difference"], f["tolerance"], same("again_same_bytes"),
                                                    same("without_graphs_same_bytes")))
    print()

torch = {}
for line in figures("torch") or []:
    if "workload" in line:
        ms = line["step_ms"] / line["batch"]
        torch[line["workload"]] = min(torch.get(line["workload"], (1e99,)), (ms, line))
rows = [p for p in of("load") if p["figures"]]
if rows:
    print("| random weights, bf16 | batch | samples/s | TFLOP/s | of the best GEMM | planned MiB | used | the card's use | PyTorch samples/s | MiB | speed-up |")
    print("|:--|" + "--:|" * 10)
    for p in rows:
        f, b = p["figures"], p["figures"]["bench"]
        cells = [p["name"], f["batch"], "%.1f" % (f["batch"] / b["step_ms"] * 1e3), "%.1f" % (b["model_gflops"] / 1e3 if b["model_gflops"] else 0),
                 "%.2f" % b["gemm_ratio"] if b["gemm_ratio"] else "", "%.0f" % (f["planned_bytes"] / 2**20), "%.0f" % (b["peak_bytes"] / 2**20),
                 f["system_mib"] or ""]
        ms, line = torch.get(p["name"], (None, None))
        cells += ["%.1f" % (1e3 / ms), "%.0f" % (line["peak_bytes"] / 2**20), "%.2f" % (ms * f["batch"] / b["step_ms"])] if line else ["", "", ""]
        print("| " + " | ".join(map(str, cells)) + " |")
    print()

f = figures("optimizer")
if f:
    print("| optimizer, %.3g parameters | ms per step | GB/s | of the copy, %.0f GB/s |\n|:--|--:|--:|--:|" % (f["params"], f["triad_gb_per_s"]))
    for x in f["results"]: print("| %s, weights %s, states %s | %.2f | %.0f | %.2f |" % (x["rule"], x["weights"], x["states"], x["step_ms"], x["gb_per_s"], x["bandwidth_ratio"]))
    for x in figures("torch") or []:
        if "optimizer" in x: print("| PyTorch, %s, %s | %.2f | %.0f | %.2f |" % (x["optimizer"], x["dtype"], x["step_ms"], x["gb_per_s"], x["gb_per_s"] / f["triad_gb_per_s"]))
    print()
f = figures("speedup")
if f:
    print("| one step, %.3g parameters | on | ms | times one core |\n|:--|:--|--:|--:|" % f["params"])
    for x in f["results"]: print("| %s | %s | %.2f | %.1f |" % (x["optimizer"], x["on"], x["step_ms"], x["speedup"]))
    print()
attention = [x for x in figures("torch") or [] if "attention" in x]
if attention:
    print("| PyTorch's attention: batch, tokens, heads, width, causal | forward TFLOP/s | backward TFLOP/s |\n|:--|--:|--:|")
    for x in attention: print("| %s | %.0f | %.0f |" % (", ".join(map(str, x["attention"])), x["forward_tflops"], x["backward_tflops"]))
    print()
f = figures("doctor")
rows = [c for c in f["checks"] if c.get("tflop_per_s") or c["name"] in ("bandwidth", "copies", "graphs", "attention", "optimizer")] if f else []
print("\n".join("- " + c["detail"] for c in rows))
for kind in ("test", "sanitize"):
    chosen = of(kind)
    print("- %s: %s" % (kind, ", ".join("%s %s" % (p["name"], p["status"]) for p in chosen)))
