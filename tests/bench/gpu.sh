#!/bin/sh
# All figures of a card in one run of at most 8 minutes: gpu.sh [DEVICE [OUTPUT]] (cuda:0, or hip:0 where that driver is; a directory,
# default ./gpu-figures). Needs a build with code objects for the card in $MEOPT_BUILD (default build), where the programs are
# started, and the sources for configs/. What takes part: `meopt bench gpu` of eva_clip; operations, towers, training and optimizer on
# the card against their references; speed-up over cores; the two other workloads at batch 32 with random weights; times of operations; quickstart compared with the CPU; compute-sanitizer where it is; PyTorch on the same shapes
# where $MEOPT_PYTHON (default python3) has it and it sees the card.
# A part that fails, is cut off at its limit or cannot run is reported, leaves its words in OUTPUT, and the others continue. The limits add
# up to $MEOPT_GPU_SECONDS, 480. Parameters and batch are what the card's free memory holds, up to those sizes.
# MEOPT_GPU_TRIAL=1 is for a card made up by tests (tests/gpu/fake_driver.cc): model shapes, parameters and steps small enough for it, three
# times the limits. It tries the script; the figures mean nothing.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${MEOPT_BUILD:-$root/build}
build=$(cd "$build" && pwd) || exit 1
out=${2:-gpu-figures}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
rm -f "$out"/*.txt "$out"/*.err "$out/parts"
meopt=$build/meopt
python=${MEOPT_PYTHON:-python3}
trial=${MEOPT_GPU_TRIAL:-}
device=${1:-}
if [ -z "$device" ]; then
    device=cuda:0
    "$meopt" doctor --quick --device hip:0 >/dev/null 2>&1 && device=hip:0
fi
type=${device%%:*}
card=${device##*:}
[ "$card" = "$device" ] && card=0
export MEOPT_TEST_DEVICE="$device"
times=1
[ -n "$trial" ] && times=3
seconds=$((${MEOPT_GPU_SECONDS:-480} * times))
start=$(date +%s)
left() { echo $((seconds - $(date +%s) + start)); }
skip() { echo "$1: $2" | tee "$out/$1.txt"; } # NAME WHY
part() { # NAME LIMIT COMMAND...
    name=$1 limit=$(($2 * times))
    shift 2
    rest=$(left)
    [ "$rest" -lt "$limit" ] && limit=$rest
    if [ "$limit" -lt 3 ]; then
        skip "$name" "no time left"
        return 0
    fi
    begin=$(date +%s) code=0
    timeout -k 2 "$limit" "$@" >"$out/$name.txt" 2>"$out/$name.err" </dev/null || code=$?
    case $code in
    0) end=done ;;
    124 | 137) end="cut off at its limit" ;;
    *) end="exit $code, $(tail -n 1 "$out/$name.err" | cut -c 1-160)" ;;
    esac
    echo "$name: $end, $(($(date +%s) - begin)) s" | tee -a "$out/parts"
}
field() { # FILE EXPRESSION of the JSON object j; 0 when there is none
    "$python" -c 'import json, sys
try: print(int(eval(sys.argv[2], {"j": json.load(open(sys.argv[1]))})))
except Exception: print(0)' "$1" "$2"
}

# Keys of a workload, smaller for a trial.
keys() {
    set -- "$1" "device.type=$type" "device.cards=$card" train.precision=bf16
    if [ -n "$trial" ]; then
        set -- "$@" model_t.arch=custom model_s.arch=custom data.image_size=28 model_t.depth=1 model_s.depth=1 model_t.patch=14 model_s.patch=14 train.batch_size=2
        case $1 in
        dinov2) set -- "$@" model_t.width=192 model_t.hidden=128 model_t.ffn=swiglu model_t.pos_grid=5 model_s.width=128 model_s.hidden=512 model_s.pos_grid=5 ;;
        *) set -- "$@" model_t.width=176 model_t.hidden=352 model_t.out=64 model_s.width=$([ "$1" = eva_clip ] && echo 88 || echo 160) model_s.hidden=320 model_s.out=64 ;;
        esac
    fi
    shift
    echo "$@"
}
# shellcheck disable=SC2046
part gpu 220 "$meopt" bench gpu "$root/configs/eva_clip.yaml" --device "$device" --seconds 210 --output "$out/gpu.json" $(keys eva_clip)
free=$(field "$out/gpu.json" 'next(c["free_bytes"] for p in j["parts"] if p["name"] == "doctor" for c in p["figures"]["checks"] if c.get("device") == "'"$device"'" and "free_bytes" in c)')
if [ "$free" -le 0 ]; then
    echo "$device cannot be used:" >&2
    cat "$out/gpu.err" "$out/gpu.txt" >&2
    exit 6
fi
params=125000000
[ "$((free / 64))" -lt "$params" ] && params=$((free / 64))
steps=6 repeat=5
[ -n "$trial" ] && params=524288 steps=2 repeat=1
echo "$device: $((free >> 20)) MiB free"

part ops 30 "$build/tests/test_ops"
part towers 25 "$build/tests/test_golden_towers"
part distill 20 "$build/tests/test_golden_distill"
part optim_card 40 "$build/tests/test_optim_card"
part speedup 20 "$meopt" bench speedup --device "$device" --params "$params" --repeat "$repeat" --json
for workload in open_clip dinov2; do
    # shellcheck disable=SC2046
    set -- $(keys $workload)
    batch=32
    "$meopt" plan "$root/configs/$workload.yaml" --card-memory "$((free - free / 20))" --json "$@" >"$out/plan_$workload.json" 2>"$out/plan_$workload.err"
    fits=$(field "$out/plan_$workload.json" 'j["largest_micro_batch_images"]')
    [ "$fits" -lt "$batch" ] && batch=$fits
    [ -n "$trial" ] && batch=2
    if [ "$batch" -lt 1 ]; then
        skip "train_$workload" "not even one image fits: $(tail -n 1 "$out/plan_$workload.err")"
        continue
    fi
    part "train_$workload" 35 "$meopt" bench train "$root/configs/$workload.yaml" --random-weights --batch "$batch" --steps "$steps" --json "$@"
done
part times 20 "$build/tests/test_ops" --time ${trial:+sum_squares} # one operation in a trial
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/sample" "$work/configs"
for archive in COCO2014 ModelWeight; do tar -xzf "$root/configs/sample/$archive.tar.gz" -C "$work/sample"; done
cp "$root"/configs/quickstart*.yaml "$work/configs/"
set -- train.steps=20
[ -n "$trial" ] && set -- train.steps=3 train.batch_size=4
for where in cpu "$type"; do
    part "quickstart_$where" 10 "$meopt" train "$work/configs/quickstart.yaml" "device.type=$where" "$@" train.log_every=1 --run-dir "$work" --name "$where" --json
done
for tool in memcheck racecheck initcheck; do
    if [ "$type" = cuda ] && [ -z "$trial" ] && command -v compute-sanitizer >/dev/null; then
        part "sanitizer_$tool" 13 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/test_ops" "*[lr]*norm*"
    else
        skip "sanitizer_$tool" "no compute-sanitizer for this card"
    fi
done
# Last, so that it has what the others left: 70 s, if all of them took their limits.
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    rest=$(left)
    part torch "$rest" "$python" "$root/tests/bench/train_torch.py" "$((rest - 20))"
else
    skip torch "$python has no torch that sees a card"
fi

# The figures in a few lines of Markdown, for tests/bench/RESULTS.md.
"$python" - "$out" "$device" <<'PY' | tee "$out/RESULTS.md"
import json, os, sys
out, device = sys.argv[1:]
def text(name): return open(os.path.join(out, name), errors="replace").read() if os.path.exists(os.path.join(out, name)) else ""
def load(name):
    try: return json.loads(text(name + ".txt"))
    except ValueError: return None
def lines(name):
    found = []
    for r in text(name + ".txt").splitlines():
        try: found.append(json.loads(r))
        except ValueError: pass
    return [r for r in found if isinstance(r, dict)]
def why(name): return "failed: see %s.err" % name if os.path.exists(os.path.join(out, name + ".err")) else text(name + ".txt").strip()
print("### Card %s: `tests/bench/gpu.sh %s`\n" % (device, device))
if os.environ.get("MEOPT_GPU_TRIAL"): print("A TRIAL on a card made up by tests: no figure of it means anything.\n")
parts = {p["name"]: p for p in (json.load(open(os.path.join(out, "gpu.json"))) if text("gpu.json") else {"parts": []})["parts"]}
def figures(name): return (parts.get(name) or {}).get("figures")
def unmeasured(name): return (parts.get(name) or {}).get("reason") or "not reached"
for c in (figures("doctor") or {}).get("checks", []): print("- " + c["detail"])
torch = lines("torch")
optim = figures("optimizer")
if optim:
    print("\n| optimizer, %.3g parameters | ms/step | GB/s | of the copy (%.0f GB/s) |\n|---|---|---|---|" % (optim["params"], optim["triad_gb_per_s"]))
    for r in optim["results"]: print("| %s %s %s | %.2f | %.0f | %.2f |" % (r["rule"], r["weights"], r["states"], r["step_ms"], r["gb_per_s"], r["bandwidth_ratio"]))
    for r in torch:
        if "optimizer" in r: print("| torch %s %s | %.2f | %.0f | %.2f |" % (r["optimizer"], r["dtype"], r["step_ms"], r["gb_per_s"], r["gb_per_s"] / optim["triad_gb_per_s"]))
else: print("\n- optimizer: " + unmeasured("optimizer"))
speedup = load("speedup")
if speedup:
    print("\n| one iteration, %.3g parameters | on | ms | speed-up |\n|---|---|---|---|" % speedup["params"])
    for r in speedup["results"]: print("| %s | %s | %.2f | %.1f +- %.1f |" % (r["optimizer"], r["on"], r["step_ms"], r["speedup"], r["speedup_sd"] or 0))
else: print("\n- speedup: " + why("speedup"))
print("\n| random weights | images/s | TFLOP/s | of the GEMM peak | peak GiB | torch images/s | torch GiB |\n|---|---|---|---|---|---|---|")
classes = []
for w in ("eva_clip", "open_clip", "dinov2"):
    r = figures("training") if w == "eva_clip" else (lines("train_" + w) or [None])[-1]
    t = max((x for x in torch if x.get("workload") == w), key=lambda x: x["images_per_s"], default=None)
    if not r:
        print("| %s | %s | | | | | |" % (w, unmeasured("training") if w == "eva_clip" else why("train_" + w)))
        continue
    print("| %s, batch %.0f | %.1f | %.3g | %s | %.2f | %s | %s |" % (w, r["images_per_s"] * r["step_ms"] * 1e-3, r["images_per_s"], r["gflops"] * 1e-3, "%.2f" % r["gemm_ratio"] if r["gemm_ratio"] else "-", r["peak_bytes"] / 2**30, "%.1f" % t["images_per_s"] if t else "-", "%.2f" % (t["peak_bytes"] / 2**30) if t else "-"))
    classes.append("- %s, peak MiB by class: %s" % (w, ", ".join("%s %.1f" % (k, v / 2**20) for k, v in r["classes"].items())))
print("\n" + "\n".join(classes))
losses = [[r["loss"] for r in lines("quickstart_" + k) if "loss" in r] for k in ("cpu", device.split(":")[0])]
if all(losses): print("\nquickstart, %d steps: largest difference of a loss to the CPU %.2g of it" % (len(losses[1]), max(abs(a - b) / abs(a) for a, b in zip(*losses))))
else: print("\n- quickstart: " + why("quickstart_" + device.split(":")[0]))
for n in ("ops", "towers", "distill", "optim_card", "sanitizer_memcheck", "sanitizer_racecheck", "sanitizer_initcheck"):
    words = text(n + ".txt") + text(n + ".err")
    if "[ RUN" in words: print("- %s: %d failed, %d passed" % (n, words.count("[  FAILED  ]") // 2, words.count("[       OK ]")))
    elif words: print("- " + words.splitlines()[-1])
print("".join("- " + r + "\n" for r in text("parts").splitlines() if not ": done," in r), end="")
PY
echo "$(left) of $seconds s left; everything in $out"
