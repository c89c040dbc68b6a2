#!/bin/sh
# The job of Slurm in meta.json and in the list of runs, also one of an array; a run without a job has none.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 8
train() { # NAME: two steps
    "$MEOPT" train configs/quickstart.yaml --name "$1" --no-dashboard train.steps=2 train.batch_size=4 data.workers=1 >out 2>log || fail "$1: exit $?"
}
unset SLURM_CLUSTER_NAME SLURM_JOB_ID SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
train alone
SLURM_JOB_ID='' train empty
SLURM_CLUSTER_NAME=hefei SLURM_JOB_ID=4711 SLURM_JOB_PARTITION=dcu SLURM_JOB_NODELIST='node[1-2]' train job
nodes=$(seq -s , 1001 3 1999)
SLURM_JOB_ID=5 SLURM_JOB_NODELIST="n[$nodes]" SLURM_JOB_PARTITION="$(printf 'a\033[2J')" train many
SLURM_CLUSTER_NAME=jinan SLURM_JOB_ID=4711 train other
SLURM_JOB_ID=4713 SLURM_ARRAY_JOB_ID=4712 SLURM_ARRAY_TASK_ID=1 train task
"$MEOPT" runs --json >runs.json
python3 - <<'END' || fail "the job"
import json
runs = {r["name"]: r["job"] for r in json.load(open("runs.json"))}
assert runs == {"alone": None, "empty": None, "job": "4711", "many": "5", "other": "4711", "task": "4712_1"}, runs
clusters = {r["name"]: r["cluster"] for r in json.load(open("runs.json")) if r["cluster"]}
assert clusters == {"job": "hefei", "other": "jinan"}, clusters
meta = {name: json.load(open("runs/%s/meta.json" % name))["job"] for name in runs}
assert meta["job"]["cluster"] == "hefei" and meta["task"]["cluster"] is None, meta
assert meta["alone"] is None and meta["job"]["partition"] == "dcu" and meta["job"]["nodes"] == "node[1-2]", meta
assert meta["many"]["nodes"] == "n[%s]" % ",".join(map(str, range(1001, 2000, 3))), meta
assert meta["many"]["partition"] == r"a\x1b[2J", meta
assert meta["job"]["array"] is None and meta["task"]["id"] == "4713" and meta["task"]["task"] == "1", meta
END
"$MEOPT" runs --filter 4712_1 --json >found.json
python3 -c 'import json; assert [r["name"] for r in json.load(open("found.json"))] == ["task"]' || fail "--filter"
"$MEOPT" runs --filter 4711@hefei --json >found.json
python3 -c 'import json; assert [r["name"] for r in json.load(open("found.json"))] == ["job"]' || fail "--filter by cluster"
