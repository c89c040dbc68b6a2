#!/bin/sh
# meopt bench gpu writes one file that can be sent. Each part has figures or a reason, and the file contains no host, user or directory. A
# part that hangs is stopped and the others continue. Without a card the report is complete as well.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1 FAKE_MEMORY=300000000 USER=somebodyelse
unset HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL || true
fail() { echo "FAILED: $1" >&2; cut -c 1-300 out err >&2; exit 1; }
bench() { # CODE ARGUMENT...
    want=$1 code=0
    shift
    rm -f sent.json
    "$MEOPT" bench gpu -o sent.json "$@" >out 2>err || code=$?
    [ "$code" = "$want" ] || fail "$*: exit $code, expected $want"
}
right() { # EXPRESSION of the device and the parts by name
    python3 - "$1" "$work" "$fakes" <<'PY' || fail "the file: $1"
import json, os, socket, sys
text = open("sent.json").read()
for private in sys.argv[2:] + ["somebodyelse", os.path.expanduser("~")] + [h for h in [socket.gethostname()] if len(h) > 7]:
    assert private == "/" or private not in text, private
j = json.loads(text)
p = {x["name"]: x for x in j["parts"]}
for x in j["parts"]: assert set(x) == {"name", "seconds", "reason", "figures", "said"} and bool(x["reason"]) != bool(x["figures"]), x
def figures(name): return p[name]["figures"] or {}
def reason(name): return p[name]["reason"] or ""
assert eval(sys.argv[1], {"device": j["device"], "p": p, "figures": figures, "reason": reason})
PY
}
bench 0 configs/quickstart.yaml train.batch_size=2 --device cuda:0
right 'device == "cuda:0" and list(p) == ["doctor", "optimizer", "plan", "training", "training without graphs", "training by kind"]'
right '{c["name"] for c in figures("doctor")["checks"]} >= {"system", "drivers", "bandwidth", "products", "attention", "optimizer", "graphs", "copies"}'
right '{r["preset"] for r in figures("optimizer")["results"]} >= {"quality", "balanced", "minimal", "fp32", "amp", "pure_bf16"}'
right 'figures("plan")["peak_bytes"] > 0 and all(figures(n)["step_ms"] > 0 and figures(n)["peak_bytes"] > 0 for n in p if n.startswith("training"))'
right 'figures("training by kind")["profile"]["products_ms"] > 0 and "off: MEOPT_GRAPHS=none" in str(p["training without graphs"]["said"])'

# a part that fails has its words, without the directory; without a configuration there is no training
FAKE_WRONG=optim_step MEOPT_KERNELS=$work/somewhere bench 6
right 'device is None and reason("optimizer, training") and "doctor" in p'
bench 1 --seconds 1.5
right 'reason("doctor") or reason("optimizer")'
bench 7 configs/quickstart.yaml train.batch_size=-1
[ ! -e sent.json ] || fail "a file for a configuration that is invalid"
bench 2 --device cpu
# a card that does not exist: at once, with those that do
for kind in hip cuda; do
    bench 6 configs/quickstart.yaml --device $kind:9
    grep -q "$kind:9.*$kind:0" err || fail "the cards are not named"
    bench 6 configs/quickstart.yaml device.type=$kind device.cards=9
    [ ! -e sent.json ] && [ ! -s out ] || fail "parts without a card"
done
env MEOPT_HIP_LIBRARY=/nowhere.so "$MEOPT" bench gpu --device hip:0 >out 2>err && fail "no driver" || [ $? = 6 ] || fail "exit without a driver"
