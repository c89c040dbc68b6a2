#!/bin/sh
# A real Slurm on loopback, with two daemons as nodes. The script of `meopt sbatch` is submitted, shown in the queue by `meopt attach`, which
# becomes the dashboard, read by readers while it trains, signalled, saves, is requeued, resumes, and is bit-identical to an uninterrupted run.
# A cancelled job leaves no process. Requires root, slurmctld, slurmd, munge, tmux and the MPI module; runs only with MEOPT_LONG=1.
set -eu
skip() { echo "skipped: $*"; exit 77; }
[ "${MEOPT_LONG:-}" = 1 ] || skip "long form, MEOPT_LONG=1"
for tool in slurmctld slurmd munged mungekey srun sbatch mpirun python3 tmux; do command -v $tool >/dev/null || skip "no $tool"; done
[ "$(id -u)" = 0 ] || skip "slurmd wants root"
[ -f "$(dirname "$MEOPT")/libmeopt_mpi.so" ] || skip "built without MPI"
. "$MEOPT_SOURCE/tests/lib.sh"
chmod 755 "$work"
pids=
finish() {
    code=$?
    tmux -L "meopt-$$" kill-server 2>/dev/null || true
    if [ "$pids" ]; then
        scancel --user=root >/dev/null 2>&1 || true
        wait_for 20 eval '[ -z "$(squeue -h 2>/dev/null)" ]' || :
        # shellcheck disable=SC2086
        kill $pids 2>/dev/null || true
        # shellcheck disable=SC2086
        wait_for 2 eval '! kill -0 $pids 2>/dev/null' || :
        # shellcheck disable=SC2086
        kill -9 $pids 2>/dev/null || true
    fi
    rm -rf "$work"
    exit $code
}
trap finish EXIT
cd "$work"
logs='job.log slurmctld.log slurmd-n?.log'
port=$(python3 -c 'import random; print(random.randrange(20000, 30000, 10))')
export SLURM_CONF="$work/slurm.conf"
cat >slurm.conf <<END
ClusterName=meopt
SlurmctldHost=localhost
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
TmpFS=$work/tmp-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
SlurmdParameters=config_overrides
KillWait=5
ReturnToService=2
MpiDefault=pmix
JobRequeue=1
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=4 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=60 State=UP
END
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >cgroup.conf
mkdir state spool-n1 spool-n2 tmp-n1 tmp-n2
mungekey -k "$work/munge.key" -c
munged --force --socket="$work/munge.socket" --key-file="$work/munge.key" --pid-file="$work/munged.pid" --log-file="$work/munged.log" \
    --seed-file="$work/munged.seed" 2>/dev/null
slurmctld -f "$SLURM_CONF" -i
wait_for 10 [ -s slurmctld.pid ] || fail "no slurmctld"
for node in n1 n2; do slurmd -N $node -f "$SLURM_CONF"; done
for file in munged slurmctld slurmd-n1 slurmd-n2; do
    wait_for 10 [ -s $file.pid ] || fail "no $file"
    pids="$pids $(cat $file.pid)"
done
until_true() { # seconds, what, command
    seconds=$1 what=$2
    shift 2
    wait_for "$seconds" "$@" || fail "not within $seconds s: $what"
}
both_idle() { [ "$(sinfo -h -N -o %t | grep -c idle)" = 2 ]; }
until_true 60 "two nodes are idle" both_idle

mkdir sample configs
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" configs/
same="train.global_batch=8 train.micro_batch=2 train.steps=600 device.type=cpu"
# shellcheck disable=SC2086
"$MEOPT" train configs/quickstart_dinov2.yaml $same --run-dir runs --name alone >alone.log 2>&1 || fail "alone"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 MEOPT_RANKS_ADDRESS=127.0.0.1 OMPI_MCA_mpi_yield_when_idle=1
# shellcheck disable=SC2086
"$MEOPT" sbatch configs/quickstart_dinov2.yaml $same --nodes 2 --cpus 1 --time 30 --warn 60 --run-dir runs --name job -o job.sh
job=$(sbatch --parsable --hold -o "$work/job.log" job.sh)

# While it is held: its place in the queue and the plan; then the dashboard.
"$MEOPT" attach "$job" --json >queued.json || fail "attach of a queued job"
python3 - "$job" "$(pwd -P)/runs/job" <<'END' || fail "the object of a queued job: $(cat queued.json)"
import json, sys
o = json.load(open("queued.json"))
assert (o["job"]["id"], o["run"], o["state"]) == (sys.argv[1], sys.argv[2], "queued"), o
assert (o["job"]["state"], o["job"]["reason"], o["job"]["partition"]) == ("PENDING", "JobHeldUser", "main"), o
assert (o["job"]["node_count"], o["job"]["tasks"], o["job"]["position"], o["job"]["pending"]) == (2, 2, 1, 1), o
assert o["plan"]["ranks"] == 2 and o["plan"]["peak_bytes"] > 0 and "train.steps=600" in o["overrides"], o
END
screen() { tmux -L "meopt-$$" capture-pane -p -t "$1"; }
shows() { screen "$1" | grep -q -- "$2"; }
tmux -L "meopt-$$" -f /dev/null new-session -d -s number -x 100 -y 50 "TERM=screen-256color LC_ALL=C.UTF-8 '$MEOPT' attach $job"
tmux -L "meopt-$$" new-session -d -s name -x 100 -y 50 "TERM=screen-256color LC_ALL=C.UTF-8 '$MEOPT' attach runs/job"
for session in number name; do
    until_true 30 "attach shows the queue" shows $session "^job $job: PENDING (JobHeldUser)"
    until_true 30 "attach shows the plan" shows $session '^  peak '
done
scontrol release "$job"
for session in number name; do until_true 120 "attach becomes the dashboard" shows $session '^step *[0-9]*/600 '; done
tmux -L "meopt-$$" kill-server

steps() { [ -e runs/job/metrics.jsonl ] && [ "$(wc -l 2>/dev/null <runs/job/metrics.jsonl || echo 0)" -ge "$1" ]; }
until_true 120 "the job makes steps" steps 5
"$MEOPT" runs >listed 2>&1 && grep -q job listed || fail "the run is listed while it trains: $(cat listed)"
"$MEOPT" runs --filter "$job" --json | grep -q "\"job\": \"$job\"" || fail "the run has its job: $("$MEOPT" runs --json)"
grep -q '"partition": "main"' runs/job/meta.json || fail "meta.json has the partition"
scancel --signal=USR1 --batch "$job"
requeued() { scontrol show job "$job" | grep -q 'Restarts=1'; }
until_true 60 "warned, the job is back in the queue" requeued
grep -q '"event": *"stopped"\|"stopped"' runs/job/events.jsonl || fail "it did not save before it left"
ended() { scontrol show job "$job" | grep -q 'JobState=COMPLETED'; }
until_true 600 "the job comes again and ends" ended
[ "$(wc -l <runs/job/metrics.jsonl)" = 600 ] || fail "steps: $(wc -l <runs/job/metrics.jsonl)"
grep -q '"resumed"' runs/job/events.jsonl || fail "not resumed"
grep -q '"restarts": "1"' runs/job/meta.json || fail "meta.json has the restart"
cmp runs/alone/ckpt/step-00000600/model.safetensors runs/job/ckpt/step-00000600/model.safetensors || fail "other weights than alone"

# An array that is held: a run by number and by name; a job that is cancelled, and jobs without a run.
# shellcheck disable=SC2086
"$MEOPT" sbatch configs/quickstart_dinov2.yaml $same optim.lr=1.0e-5,2.0e-5 --cpus 1 --time 30 --run-dir runs --name sweep -o sweep.sh
array=$(sbatch --parsable --hold sweep.sh)
for operand in "${array}_1" runs/sweep-lr=2.0e-5; do
    "$MEOPT" attach "$operand" --json >queued.json || fail "attach $operand"
    grep -q "\"id\": \"${array}_1\"" queued.json && grep -q 'sweep-lr=2.0e-5"' queued.json || fail "attach $operand: $(cat queued.json)"
done
# shellcheck disable=SC2086
"$MEOPT" train configs/quickstart_dinov2.yaml $same train.steps=3 optim.lr=1.0e-5 --run-dir runs --name sweep-lr=1.0e-5 >alone.log 2>&1 || fail "a run of the sweep"
"$MEOPT" compare sweep --json >sweep.json || fail "compare of a sweep"
python3 - "$array" <<'END' || fail "the runs of a queued sweep: $(grep -A20 '"sweep": {' sweep.json)"
import json, sys
s = json.load(open("sweep.json"))["sweep"]
task = lambda r: (r["name"], r["job"], r["state"])
assert [task(r) for r in s["missing"]] == [("sweep-lr=2.0e-5", sys.argv[1] + "_1", "PENDING (JobHeldUser)")], s
assert [task(r) for r in s["queued"]] == [("sweep-lr=1.0e-5", sys.argv[1] + "_0", "PENDING (JobHeldUser)")], s
END
refused() { # CODE OPERAND WORD: attach ends with the code, and says the word
    exits "$1" "$MEOPT" attach "$2" >out 2>err && grep -q -- "$3" err || fail "attach $2: exit $code, $(cat err)"
}
refused 2 "$array" "${array}_0"
refused 1 "${array}_7" "${array}_7"
refused 1 999999 999999
refused 1 "$(sbatch --parsable --hold --wrap true)" '#MEOPT'
again=$(sbatch --parsable --hold job.sh) # the directory of its run belongs to the first job
scancel "$again"
refused 1 "$again" CANCELLED
scancel --user=root
# Cancelled: ends with what was saved, nothing is left running.
# shellcheck disable=SC2086
"$MEOPT" sbatch configs/quickstart_dinov2.yaml $same train.steps=100000 --nodes 2 --cpus 1 --time 30 --run-dir runs --name gone -o gone.sh
gone=$(sbatch --parsable -o "$work/gone.log" gone.sh)
begun() { [ -e runs/gone/metrics.jsonl ] && [ "$(wc -l 2>/dev/null <runs/gone/metrics.jsonl || echo 0)" -ge 3 ]; }
until_true 120 "the second job makes steps" begun
scancel "$gone"
quiet() { ! ours "runs/gone\|[.]ranks-$gone" | grep -q .; }
until_true 60 "nothing of a cancelled job runs" quiet
echo "job $job: warned, requeued, the same weights; job $gone: cancelled, nothing left"
