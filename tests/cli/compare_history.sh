#!/bin/sh
# meopt compare shows the settings that runs were trained with: changed on resume, while training, in a branch, before a checkpoint that the
# run returned to, after the last step, and by hand in config.yaml. It also shows the number of threads, which changes memory.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
few_images 64
train() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" train "$@" >out 2>log || { cat log; fail "train $*: exit $code, expected $want"; }
}
base="configs/quickstart_dinov2.yaml train.steps=12 train.checkpoint_steps=4 train.checkpoint_keep=9 optim.lr=0.01"
train 0 $base --name constant
train 10 $base --stop-after 4 --name resumed
train 10 --resume runs/resumed optim.lr=1e-5 train.log_every=2 --stop-after 8
train 10 --resume runs/resumed optim.lr=2e-5 train.checkpoint_minutes=7 --stop-after 10
train 0 --resume runs/resumed
"$MEOPT" compare runs/constant runs/resumed --json --paper paper >json 2>log || fail "compare: $(cat log)"
"$MEOPT" compare runs/constant runs/resumed >text 2>log
python3 - <<'END' || fail "a rate that changed on resume"
import json
j = json.load(open("json"))
rows = {r["key"]: r for r in j["config"]}
lr = rows["optim.lr"]
history = "0.01 -> 1.0e-5 @4 -> 2.0e-5 @8"
assert lr["values"] == ["0.01", "2.0e-5"] and lr["history"] == [None, history], lr
assert rows["train.log_every"]["history"][1].endswith("-> 2 @4") and rows["train.checkpoint_minutes"]["history"][1].endswith("-> 7 @8"), rows
assert not j["comparable"] and [r["key"] for r in j["not_comparable"]] == ["optim.lr"], j["not_comparable"]  # how often it saves is harmless
assert j["not_comparable"][0]["values"] == ["0.01", history] and "optim.lr" in j["columns"][1]["headline"]
text = open("text").read()
assert text.count(history) >= 2, text
latex = "0.01 $\\to$ 1.0$\\times10^{-5}$ @4 $\\to$ 2.0$\\times10^{-5}$ @8"
for suffix in "", "_zh":
    table = open("paper/table%s.tex" % suffix).read()
    assert latex in table and "log\\_every" not in table, table
END
"$MEOPT" compare runs/resumed --json --paper paper >json 2>log || fail "one run"
grep -q '"0.01 -> 1.0e-5 @4 -> 2.0e-5 @8"' json && grep -q '0.01 \$.to\$' paper/table.tex || fail "one run alone"

# a line with 100,000 keys, which only another program writes
cp -r runs/resumed keys
python3 -c 'import json; print(json.dumps({"event": "changed", "step": 5, "changed": {"key.%d" % i: ["1", "2"] for i in range(100000)}}))' >>keys/events.jsonl
(ulimit -t 25 && exec "$MEOPT" compare keys --json >json 2>log) || fail "a line with 100,000 keys: exit $?"
grep -q '"0.01 -> 1.0e-5 @4 -> 2.0e-5 @8"' json || fail "a line with 100,000 keys: the history is lost"

# runs that see their images in another way, by keys that no checkpoint set
train 0 $base data.mean=0.4,0.5,0.6 data.interpolation=bilinear --name seen
"$MEOPT" compare runs/constant runs/seen --json >json 2>log || fail "compare: $(cat log)"
python3 - <<'END' || fail "preprocessing that differs by its keys alone"
import json
rows = {r["key"]: r["values"] for r in json.load(open("json"))["not_comparable"]}
assert rows["data.mean"] == ["not set", "0.4,0.5,0.6"] and rows["data.interpolation"] == ["auto", "bilinear"], rows
assert not set(rows) & {"data.std", "data.resize", "data.crop_pct", "data_s.mean"}, rows
END

# a branch from before the first change, and one from between: with the rate of now from there on
train 0 --resume runs/resumed --at 6 --name branch
train 0 --resume runs/resumed --at 8 --name later
# gone back after a change: it holds from the checkpoint on
train 10 $base --stop-after 6 --name back
train 10 --resume runs/back optim.lr=1e-4 --stop-after 7
rm -r runs/back/ckpt/step-00000006 runs/back/ckpt/step-00000007
printf 'step-00000004' >runs/back/ckpt/LATEST
train 0 --resume runs/back
# never in effect: after the last step, and by hand
cp -r runs/constant runs/late
train 0 --resume runs/late optim.lr=3e-3
sed -i 's/^  lr: .*/  lr: 0.7/' runs/late/config.yaml
"$MEOPT" compare runs/constant runs/branch runs/later runs/back runs/late --json --all >json 2>log || fail "compare: $(cat log)"
grep -q 'late: optim.lr .*0.7 .*config.yaml.* 0.01' log || fail "a file that was edited: $(cat log)"
python3 - <<'END' || fail "branches"
import json
j = json.load(open("json"))
(lr,) = [r for r in j["config"] if r["key"] == "optim.lr"]
assert lr["values"] == ["0.01", "2.0e-5", "2.0e-5", "1.0e-4", "0.01"], lr
assert lr["history"] == [None, "0.01 -> 2.0e-5 @4", "0.01 -> 1.0e-5 @4 -> 2.0e-5 @8", "0.01 -> 1.0e-4 @4", None], lr
END

# the same change in both is no reason
"$MEOPT" compare runs/resumed runs/later --json >json 2>log
python3 -c 'import json; j = json.load(open("json")); assert "optim.lr" not in [r["key"] for r in j["not_comparable"]], j["not_comparable"]' || fail "the same change"

# threads, in the table and against a comparison; and those of a run that had both
OMP_NUM_THREADS=2 train 0 $base --name threads
OMP_NUM_THREADS=2 train 10 $base --stop-after 4 --name both
train 0 --resume runs/both
"$MEOPT" compare runs/constant runs/threads runs/both --json >json 2>log
python3 - <<'END' || fail "threads"
import json
j = json.load(open("json"))
(threads,) = [r for r in j["facts"] if r["key"] == "threads"]
assert threads["values"] == [1, 2, 1], threads
bad = {r["key"]: r["values"] for r in j["not_comparable"]}
assert bad["threads"] == ["1", "2", "1"] and "threads" in j["columns"][1]["headline"], bad
assert "2 threads -> " in bad["device"][2] and bad["device"][2].endswith("1 thread @4"), bad
END

# in a terminal of 80 columns no row is wider: columns that do not fit are in tables of their own, next to the reference
for i in 1 2 3; do cp -r runs/resumed "runs/a run with a long name $i"; done
python3 - "$MEOPT" <<'END' || fail "the table in a terminal of 80 columns"
import fcntl, os, pty, re, struct, sys, termios
names = ["runs/a run with a long name %d" % i for i in (1, 2, 3)]
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    os.environ["LC_ALL"] = "C.UTF-8"
    os.execv(sys.argv[1], ["meopt", "compare", "runs/constant", *names, "--all"])
text = b""
while True:
    try: part = os.read(fd, 65536)
    except OSError: break
    if not part: break
    text += part
assert os.waitpid(pid, 0)[1] == 0
lines = re.sub(r"\x1b\[[0-9;]*m", "", text.decode()).replace("\r", "").split("\n")
rows = [line.rstrip() for line in lines if not line.startswith("warning")]
assert max(map(len, rows)) <= 80, [line for line in rows if len(line) > 80]
heads = [line for line in rows if line.startswith("Facts")]
assert len(heads) == 3 and all("constant *" in line for line in heads), heads
assert [sum(name[5:] in line for line in heads) for name in names] == [1, 1, 1], heads
END
