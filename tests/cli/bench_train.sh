#!/bin/sh
# meopt bench train reports a wrong configuration before it measures the machine, and the figures that it prints add up.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
cd "$dir"
mkdir configs sample
cp "$MEOPT_SOURCE/configs/"*.yaml configs/

# The peak takes seconds of every core; a model shape that was not given, or a checkpoint that is not there, none.
refused() { # NAME ARGUMENT...: of the key or file at fault
    named=$1
    shift
    python3 - "$MEOPT" bench train "$@" >out 2>log <<'END' || fail "$*: measured before it was refused, or not refused with 7"
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
use = resource.getrusage(resource.RUSAGE_CHILDREN)
sys.exit(code != 7 or use.ru_utime + use.ru_stime > 2)
END
    grep -q -e "$named" log || fail "$*: $named is not named"
    [ ! -s out ] || fail "$*: prints a result"
}
refused model.family configs/quickstart.yaml device.type=cpu --random-weights
refused 'quickstart_dinov2.yaml:[0-9]*:[0-9]*: model_t.weight' configs/quickstart_dinov2.yaml device.type=cpu

tar -xzf "$MEOPT_SOURCE/configs/sample/ModelWeight.tar.gz" -C sample
for config in quickstart quickstart_dinov2 quickstart_openclip; do
    "$MEOPT" bench train configs/$config.yaml device.type=cpu --batch 2 --steps 2 --no-peak --profile --json >json 2>log || fail "$config"
    python3 - json <<'END' || fail "$config: the figures do not add up"
import json, math, sys
j = json.load(open(sys.argv[1]))
assert math.isclose(j["images_per_s"], 2 / (j["step_ms"] * 1e-3), rel_tol=1e-3) and j["gflops"] > 0
assert j["gemm_peak_gflops"] is None and j["gemm_ratio"] is None and j["mfu"] is None and j["mfu_peak_gflops"] is None
assert 0 < j["model_gflops"] <= j["gflops"] * (1 + 1e-5)
assert j["peak_bytes"] <= sum(c["peak_bytes"] if isinstance(c, dict) else c for c in j["classes"].values())
assert j["peak_bytes"] < j["resident_bytes"] and 0 < j["processor_s"]
parts = [v for k, v in j["profile"].items() if k.endswith("_ms")]
assert math.isclose(sum(parts), j["step_ms"], rel_tol=0.01)
END
done

# Newton-Schulz of muon: its part of the operations, and of the time.
"$MEOPT" bench train configs/bytes.yaml device.type=cpu --random-weights --batch 2 --steps 2 --no-peak --profile optim.name=muon --json >json 2>log || fail "muon"
"$MEOPT" plan configs/bytes.yaml device.type=cpu train.batch_size=2 optim.name=muon --gflops 10 --json >plan 2>log || fail "the plan of muon"
python3 - json plan <<'END' || fail "muon: $(cat json)"
import json, math, sys
j, plan = (json.load(open(name)) for name in sys.argv[1:])
assert math.isclose(j["update_flops"], plan["update_flops"], rel_tol=1e-4) and math.isclose(j["update_share"], plan["update_share"], rel_tol=1e-4)
assert 0 < j["update_share"] < 1 and math.isclose(plan["step_s"], (plan["step_flops"] + plan["update_flops"]) / 1e10, rel_tol=1e-9)
assert j["profile"]["orthogonal_ms"] > 0 and j["profile"]["orthogonal_calls"] == 16, j
assert math.isclose(j["gflops"], (plan["step_flops"] + plan["update_flops"]) / j["step_ms"] * 1e-6, rel_tol=1e-4)
END

# Without a published peak, MFU is of the measured GEMM rate. Recomputation is work, but not the model's.
"$MEOPT" bench train configs/bytes.yaml device.type=cpu --random-weights --batch 2 --steps 1 train.recompute=block --json >json 2>log || fail "MFU: $(cat log)"
python3 - json <<'END' || fail "MFU: $(cat json)"
import json, math, sys
j = json.load(open(sys.argv[1]))
N, d, V, depth = 64, 128, 256, 4
step = 3 * 2 * (depth * (24 * N * d * d + 4 * N * (N + 1) / 2 * d) + 2 * N * d * V) # forward, and backward of twice the work; two samples
assert math.isclose(j["model_gflops"], step / j["step_ms"] * 1e-6, rel_tol=1e-4) and j["gflops"] > 1.1 * j["model_gflops"]
assert math.isclose(j["tokens_per_s"], N * j["images_per_s"], rel_tol=1e-4)
assert j["mfu_peak_gflops"] == j["gemm_peak_gflops"] and math.isclose(j["mfu"], j["model_gflops"] / j["gemm_peak_gflops"], rel_tol=1e-4)
END

# Where other work has the processor, the text says so (as far as this machine can give one processor to two).
command -v taskset >/dev/null || exit 0
processor=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
taskset -c "$processor" python3 -c 'while True: pass' &
other=$!
trap 'kill $other 2>/dev/null || :; rm -rf "$dir"' EXIT
OMP_NUM_THREADS=1 taskset -c "$processor" nice -n 10 "$MEOPT" bench train configs/quickstart_dinov2.yaml device.type=cpu --batch 128 --steps 1 --no-peak \
    >out 2>log || fail "under other load"
grep -q '^busy .* [0-9]* % ' out || fail "the share of other processes is not printed: $(cat out)"
