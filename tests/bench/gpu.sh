#!/bin/sh
# All figures of a card in one run of at most 8 minutes: gpu.sh [DEVICE [OUTPUT]] (cuda:0, or hip:0 where that driver is; a directory,
# default ./gpu-figures). Needs a build with code objects for the card in $MEOPT_BUILD (default build), where the programs are
# started, and the sources for configs/. What takes part: the report of doctor; operations, towers and optimizer on the card against
# their references; times of operations; quickstart beside the CPU; the optimizer for 1e9 parameters in every format; the three
# workloads at batch 32 with random weights; PyTorch on the same shapes where python3 has it; compute-sanitizer where it is.
# Each part has its own limit; a part that fails or is cut off leaves its words in OUTPUT and the others go on.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${MEOPT_BUILD:-$root/build}
build=$(cd "$build" && pwd) || exit 1
out=${2:-gpu-figures}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
meopt=$build/meopt
device=${1:-}
if [ -z "$device" ]; then
    device=cuda:0
    "$meopt" doctor --quick --device hip:0 >/dev/null 2>&1 && device=hip:0
fi
type=${device%%:*}
card=${device##*:}
export MEOPT_TEST_DEVICE="$device"
start=$(date +%s)
left() { echo $((${MEOPT_GPU_SECONDS:-470} - $(date +%s) + start)); }
part() { # NAME LIMIT COMMAND...
    name=$1 limit=$2
    shift 2
    rest=$(left)
    [ "$rest" -lt "$limit" ] && limit=$rest
    if [ "$limit" -lt 3 ]; then
        echo "$name: no time left" | tee "$out/$name.txt"
        return 0
    fi
    begin=$(date +%s) code=0
    timeout -k 5 "$limit" "$@" >"$out/$name.txt" 2>"$out/$name.err" || code=$?
    echo "$name: exit $code, $(($(date +%s) - begin)) s"
}

part doctor 40 "$meopt" doctor --device "$device" --json
part ops 60 "$build/tests/test_ops"
part towers 40 "$build/tests/test_golden_towers"
part optim_card 60 "$build/tests/test_optim_card"
part bench_optim 70 "$meopt" bench optim --device "$device" --params 1000000000 --repeat 5 --json
for workload in eva_clip open_clip dinov2; do
    part "train_$workload" 45 "$meopt" bench train "$root/configs/$workload.yaml" --random-weights --batch 32 --steps 6 --json \
        "device.type=$type" "device.cards=$card" train.precision=bf16
done
part torch 110 python3 "$root/tests/bench/train_torch.py" 95
part times 60 "$build/tests/test_ops" --time
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/sample" "$work/configs"
for archive in COCO2014 ModelWeight; do tar -xzf "$root/configs/sample/$archive.tar.gz" -C "$work/sample"; done
cp "$root"/configs/quickstart*.yaml "$work/configs/"
for where in cpu "$type"; do
    part "quickstart_$where" 30 "$meopt" train "$work/configs/quickstart.yaml" "device.type=$where" train.steps=20 train.log_every=1 --run-dir "$work" --name "$where" --json
done
for tool in memcheck racecheck initcheck; do
    command -v compute-sanitizer >/dev/null && part "sanitizer_$tool" 40 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/test_ops" "*[lr]*norm*"
done

# The figures in a few lines of Markdown, for tests/bench/RESULTS.md.
python3 - "$out" "$device" <<'PY' | tee "$out/RESULTS.md"
import json, os, sys
out, device = sys.argv[1:]
def load(name):
    try: return json.loads(open(os.path.join(out, name + ".txt")).read())
    except Exception: return None
def lines(name):
    try: rows = open(os.path.join(out, name + ".txt")).read().splitlines()
    except OSError: rows = []
    found = []
    for r in rows:
        try: found.append(json.loads(r))
        except ValueError: pass
    return [r for r in found if isinstance(r, dict)]
print("### Card %s: `tests/bench/gpu.sh %s`\n" % (device, device))
for c in (load("doctor") or {}).get("checks", []): print("- " + c["found"])
torch = lines("torch")
optim = load("bench_optim")
if optim:
    print("\n| optimizer, 1e9 parameters | ms/step | GB/s | of the copy (%.0f GB/s) |\n|---|---|---|---|" % optim["triad_gb_per_s"])
    for r in optim["results"]: print("| %s %s %s | %.2f | %.0f | %.2f |" % (r["rule"], r["weights"], r["states"], r["step_ms"], r["gb_per_s"], r["bandwidth_ratio"]))
    for r in torch:
        if "optimizer" in r: print("| torch %s %s | %.2f | %.0f | %.2f |" % (r["optimizer"], r["dtype"], r["step_ms"], r["gb_per_s"], r["gb_per_s"] / optim["triad_gb_per_s"]))
print("\n| batch 32, random weights | images/s | TFLOP/s | of the GEMM peak | peak GiB | torch images/s | torch GiB |\n|---|---|---|---|---|---|---|")
for w in ("eva_clip", "open_clip", "dinov2"):
    r = (lines("train_" + w) or [None])[-1]
    t = max((x for x in torch if x.get("workload") == w), key=lambda x: x["images_per_s"], default=None)
    if r: print("| %s | %.1f | %.1f | %.2f | %.2f | %s | %s |" % (w, r["images_per_s"], r["gflops"] * 1e-3, r["gemm_ratio"], r["peak_bytes"] / 2**30, "%.1f" % t["images_per_s"] if t else "-", "%.2f" % (t["peak_bytes"] / 2**30) if t else "-"))
    else: print("| %s | failed: see train_%s.err | | | | | |" % (w, w))
losses = [[r["loss"] for r in lines("quickstart_" + k) if "loss" in r] for k in ("cpu", device.split(":")[0])]
if all(losses): print("\nquickstart, %d steps: largest difference of a loss to the CPU %.2g of it" % (len(losses[1]), max(abs(a - b) / abs(a) for a, b in zip(*losses))))
for n in ("ops", "towers", "optim_card", "sanitizer_memcheck", "sanitizer_racecheck", "sanitizer_initcheck"):
    text = "".join(open(os.path.join(out, n + e), errors="replace").read() for e in (".txt", ".err") if os.path.exists(os.path.join(out, n + e)))
    if text: print("- %s: %d failed, %d passed" % (n, text.count("[  FAILED  ]") // 2, text.count("[       OK ]")))
PY
echo "$(left) of ${MEOPT_GPU_SECONDS:-470} s left; everything in $out"
