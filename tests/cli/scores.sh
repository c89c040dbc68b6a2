#!/bin/sh
# compare shows the metrics of the runs' objectives: a classifier's accuracies as percentages, those of evaluations from the lines that have
# them; no row that no run has.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
cd "$work"
python3 - <<'END_MAKE'
import json, os
def run(name, metrics):
    os.makedirs(name)
    json.dump({"version": 1, "images": 8}, open(name + "/meta.json", "w"))
    json.dump({"state": "done", "step": 4, "pid": 1, "host": "h", "exit_code": 0}, open(name + "/state.json", "w"))
    with open(name + "/metrics.jsonl", "w") as f:
        for i in range(1, 5):
            f.write(json.dumps({"step": i, "epoch": 0, "loss": 1 / i, **metrics(i), "images_per_s": 8, "step_ms": 1000}) + "\n")
run("distilled", lambda i: {"cosine": i / 8})
run("classifier", lambda i: {"top1": i / 8, "top5": 1.0, **({"val_loss": 0.25 * i, "val_top1": 1 - i / 8, "val_top5": 1.0} if i % 2 == 0 else {})})
END_MAKE
"$MEOPT" compare classifier --json >one
"$MEOPT" compare distilled classifier --json >two
python3 - <<'END_CHECK' || fail "other rows"
import json
def facts(name): return {f["key"]: f["values"] for f in json.load(open(name))["facts"]}
one, two = facts("one"), facts("two")
for key, value in {"final_top1": 50, "best_top1": 50, "final_top5": 100, "final_val_loss": 1, "best_val_loss": 0.5, "final_val_top1": 50, "best_val_top1": 75}.items():
    assert one[key] == [value], (key, one.get(key))
    assert two[key] == [None, value], (key, two.get(key))
assert "final_cosine" not in one and two["final_cosine"] == [0.5, None] and two["best_cosine"] == [0.5, None]
END_CHECK
"$MEOPT" compare classifier >out
grep -q 'top-1.*50.0 %' out || fail "no percentage: $(grep top-1 out)"
