#!/bin/sh
# meopt compare over the runs of a sweep or an array by its name: a line per run with the values that differ, the best first, in every form
# of output. Runs that are active, failed, queued or gone are named. Slurm is simulated.
set -eu
command -v bash >/dev/null || { echo "no bash, which runs job scripts"; exit 77; }
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
here=$(pwd -P)
export LC_ALL=C.UTF-8
cat >make.py <<'END'
import json, os, sys
def run(name, lr, loss, state="done", code=0, seed=1, **more):
    name = "runs/" + name
    os.makedirs(name)
    json.dump({"version": 1, "device": "CPU", "images": 160, "total_steps": 20, "student_parameters": 1000, "teacher_parameters": 0, "family": "f",
               "code_version": "1", "program_crc32c": "11111111", "data_crc32c": "22222222", "seed": seed, "batch_images": 8, "ranks": 1, "epoch_steps": 20,
               "objective": "distill"}, open(name + "/meta.json", "w"))
    json.dump({"state": state, "step": 20, "total_steps": 20, "pid": 1, "host": "h", "exit_code": code}, open(name + "/state.json", "w"))
    open(name + "/config.yaml", "w").write("train:\n  seed: %d\noptim:\n  lr: %s\n" % (seed, lr))
    with open(name + "/metrics.jsonl", "w") as f:
        for i in range(1, 21):
            line = {"step": i, "epoch": 0, "loss": loss + 1 / i, "lr": 1e-3, "grad_norm": 1, "images_per_s": 80, "step_ms": 100, "data_wait_ms": 0.1}
            if i == 20: line.update(more)
            f.write(json.dumps(line) + "\n")
run("eva-lr=1.0e-5", "1.0e-5", 3)
run("eva-lr=2.0e-5", "2.0e-5", 1)
run("eva-lr=3.0e-5", "3.0e-5", 2)
run("eva-lr=4.0e-5", "4.0e-5", 0.5, "failed", 1)
run("eva_clip", "9.0e-5", 0.1)
run("eva-2", "9.0e-5", 0.1)
run("scored-lr=1.0e-5", "1.0e-5", 1, val_loss=0.7)
run("scored-lr=2.0e-5", "2.0e-5", 2, val_loss=0.5)
for n in 0, 1, 2: run("seeds-%d" % n, "1.0e-5", 3 - n, seed=n)
run("one-0", "1.0e-5", 1)
run("both", "1.0e-5", 1)
run("both-lr=2.0e-5", "2.0e-5", 1)
END
python3 make.py
"$MEOPT" config new eva_clip >/dev/null
"$MEOPT" sbatch eva_clip.yaml --name eva --run-dir runs optim.lr=1.0e-5,2.0e-5,3.0e-5,4.0e-5,5.0e-5,6.0e-5 -o sweep.sh
mkdir bin
cat >bin/squeue <<'END'
#!/bin/bash
[ ! -e "$PLAY/down" ] || exit 1
echo '4712|2|PENDING|eva|BeginTime'
echo '4712|4|PENDING|eva|ReqNodeNotAvail, UnavailableNodes:n1'
echo '4713|N/A|PENDING|eva_clip|Priority'
END
printf '#!/bin/bash\n[ "$*" = "write batch_script 4712 -" ] && cat "$PLAY/sweep.sh"\n' >bin/scontrol
chmod +x bin/*
export PLAY=$here
c() { "$MEOPT" compare "$@"; }
expect_names() { # OPERAND NAME...: the columns, best first
    operand=$1
    shift
    c "$operand" --json >json 2>log || fail "compare $operand: $(cat log)"
    python3 -c 'import json, sys; j = json.load(open("json")); assert [c["name"] for c in j["columns"]] == sys.argv[1:], [c["name"] for c in j["columns"]]' "$@" ||
        fail "the runs of $operand"
}
# finished runs by their converged loss, then the others; a different name that begins alike is none of them
for operand in eva runs/eva runs/eva/; do expect_names "$operand" eva-lr=2.0e-5 eva-lr=3.0e-5 eva-lr=1.0e-5 eva-lr=4.0e-5; done
python3 - <<'END' || fail "the object of a sweep"
import json
j = json.load(open("json"))
assert j["sweep"] == {"name": "eva", "metric": "converged_loss", "keys": ["optim.lr"], "missing": [], "queued": []}, j["sweep"]
facts = {f["key"]: f["values"] for f in j["facts"]}
assert facts["state"][3] == "failed" and j["columns"][0]["reference"], facts["state"]
assert {k["key"]: k["values"] for k in j["config"]}["optim.lr"][0] == "2.0e-5"
END
expect_names scored scored-lr=2.0e-5 scored-lr=1.0e-5 # by the metric of the objective
grep -q '"metric": "best_val_loss"' json || fail "the metric of the best checkpoint"
expect_names seeds seeds-2 seeds-1 seeds-0
grep -q '"train.seed"' json || fail "the key of an array"
expect_names one one-0      # a single run of that kind is found as before
expect_names both both      # the run of that very name
expect_names eva_clip eva_clip
PATH="$here/bin:$PATH" c eva --json --html page.html >json 2>log || fail "$(cat log)"
PATH="$here/bin:$PATH" c eva >text 2>log
PATH="$here/bin:$PATH" c eva --md >md 2>log
c eva --csv >csv 2>log
python3 - <<'END' || fail "the forms of a sweep: $(cat text)"
import csv, json
j = json.load(open("json"))
assert [(m["name"], m["job"]) for m in j["sweep"]["missing"]] == [("eva-lr=5.0e-5", "4712_4"), ("eva-lr=6.0e-5", "4712_5")], j["sweep"]
assert j["sweep"]["missing"][0]["state"] == "PENDING (ReqNodeNotAvail, UnavailableNodes:n1)", j["sweep"]
assert [(m["name"], m["state"]) for m in j["sweep"]["queued"]] == [("eva-lr=3.0e-5", "PENDING (BeginTime)")], j["sweep"]
names = ["eva-lr=2.0e-5", "eva-lr=3.0e-5", "eva-lr=1.0e-5", "eva-lr=4.0e-5", "eva-lr=5.0e-5", "eva-lr=6.0e-5"]
lines = open("text").read().split("\n\n")[0].splitlines()
assert [l.split()[0] for l in lines[1:]] == names and "optim.lr" in lines[0], lines
assert len({len(l) for l in lines}) == 1, "columns are not aligned"
assert "PENDING (BeginTime)" in lines[2] and "PENDING" not in lines[1], lines
assert "2.0e-5" in lines[1].split()[2:] and "failed" in lines[4] and "PENDING" in lines[5], lines
table = open("md").read().split("\n\n")[0].splitlines()
assert [l.split("|")[1].split()[0] for l in table[2:]] == names and "optim.lr" in table[0], table
page = open("page.html").read()
assert page.index(">eva-lr=2.0e-5 *<") < page.index(">eva-lr=5.0e-5<") and ">optim.lr<" in page
rows = {r[1]: r[2:] for r in csv.reader(open("csv", newline=""))}
assert rows["optim.lr"] == ["2.0e-5", "3.0e-5", "1.0e-5", "4.0e-5"], rows["optim.lr"]
END
touch down
PATH="$here/bin:$PATH" c eva --json >json 2>log || fail "Slurm that fails: $(cat log)"
grep -q '"missing": \[\]' json || fail "missing runs without Slurm"
exits 2 c nothing >out 2>err || fail "no run and no sweep: exit $code"
# together with another run
c runs/both eva --reference both --json >json 2>log || fail "a run and a sweep: $(cat log)"
python3 -c 'import json; assert [c["name"] for c in json.load(open("json"))["columns"]][:2] == ["both", "eva-lr=2.0e-5"]' || fail "a run and a sweep"
echo ok
