#!/bin/sh
# meopt attach while a job of Slurm is queued, with a simulated squeue and scontrol: the state of the queue, the plan, the dashboard as soon
# as the run has begun, the ends without a run, and a Slurm that fails. The long test slurm does it with a real one.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
cd "$dir"
here=$(pwd -P)
few_images 16
logs='out err log'
expect() { exits "$@" >out 2>err </dev/null || fail "exit $code, expected $*"; } # code command...
same='train.steps=6 train.batch_size=4 data.workers=1 device.type=cpu'
# shellcheck disable=SC2086
"$MEOPT" sbatch configs/quickstart.yaml $same --nodes 2 --run-dir runs --name eva -o eva.sh
# shellcheck disable=SC2086
"$MEOPT" sbatch configs/quickstart.yaml $same optim.lr=1.0e-5,2.0e-5 --run-dir runs --name sweep -o sweep.sh
# shellcheck disable=SC2086
"$MEOPT" sbatch configs/quickstart.yaml $same --array 0-3 train.seed=%a --run-dir runs --name seeds -o seeds.sh
"$MEOPT" sbatch configs/quickstart.yaml --gres dcu --run-dir runs --name cards -o cards.sh
printf '#!/bin/bash\nsrun hostname\n' >other.sh

# Jobs are files jobs/NUMBER with the fields, and script names the submitted file.
mkdir bin jobs
cat >bin/scontrol <<'END'
#!/bin/bash
[ ! -e "$PLAY/down" ] || { echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1; }
[ ! -e "$PLAY/hangs" ] || exec tail -f /dev/null
echo "$*" >>"$PLAY/asked"
job=${!#}
case "$*" in
*batch_script*)
    job=${@: -2:1}
    [ ! -e "$PLAY/refused" ] || { echo 'job script retrieval failed: Access/permission denied' >&2; exit 1; }
    cat "$(cat "$PLAY/jobs/$job.script")" ;;
*)
    [ -e "$PLAY/jobs/${job%_*}" ] || { echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }
    cat "$PLAY/jobs/${job%_*}" ;;
esac
END
cat >bin/squeue <<'END'
#!/bin/bash
[ ! -e "$PLAY/down" ] || { echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1; }
case "$*" in
*PENDING*) printf '900\n901\n4711\n4712\n' ;;
*) printf '4711 eva\n4712 sweep\n4713 seeds\n4714 other\n' ;;
esac
END
chmod +x bin/*
submit() { # NUMBER NAME SCRIPT STATE REASON [RESTARTS [MORE]]
    echo "$here/$3" >"jobs/$1.script"
    echo "JobId=$1 ${7:+$7 }JobName=$2 UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=7 JobState=$4 Reason=$5 Dependency=(null) Requeue=1" \
        "Restarts=${6:-0} ExitCode=0:0 SubmitTime=2026-01-02T03:04:05 StartTime=$(date -d '+2 hours' +%Y-%m-%dT%H:%M:%S) EndTime=Unknown Partition=dcu NodeList= NumNodes=2-2" \
        "NumCPUs=2 NumTasks=2 CPUs/Task=1 Command=$here/$3 WorkDir=$here StdOut=$here/slurm-$2-$1.log Power=" >jobs/next
    mv jobs/next "jobs/$1"
}
submit 4711 eva eva.sh PENDING Priority
submit 4712 sweep sweep.sh PENDING Resources 0 'ArrayJobId=4712 ArrayTaskId=0-1%1'
submit 4713 seeds seeds.sh PENDING Resources 0 'ArrayJobId=4713 ArrayTaskId=0-3'
submit 4714 other other.sh PENDING Priority
submit 4715 cards cards.sh PENDING Priority 0 TresPerNode=gres:dcu:1
export PLAY=$here PATH="$here/bin:$PATH"

# A run that was stopped, and a Slurm that does not answer for it: it is shown nevertheless, at the end of this test.
# shellcheck disable=SC2086
SLURM_JOB_ID=4713 SLURM_ARRAY_JOB_ID=4713 SLURM_ARRAY_TASK_ID=2 "$MEOPT" train --no-dashboard --run-dir runs --name seeds-2 -- configs/quickstart.yaml $same train.seed=2 >log 2>&1
sed 's/"state": *"done"/"state": "stopped"/; s/"exit_code": *0/"exit_code": 10/' runs/seeds-2/state.json >state.json && mv state.json runs/seeds-2/
mkdir hung
touch hung/hangs
hasten 10
PLAY=$here/hung timeout 50 "$MEOPT" attach seeds-2 --json >hung.out 2>&1 </dev/null &
hung=$!
hasten 1
echo $hung >left

# One object: the job by its number, cluster and name; tasks of arrays.
SQUEUE_STATES=RUNNING expect 0 "$MEOPT" attach 4711 --json
python3 - "$here" <<'END' || fail "the object of a queued job: $(cat out)"
import json, sys
o = json.load(open("out"))
j = o["job"]
assert o["run"] == sys.argv[1] + "/runs/eva" and o["state"] == "queued" and o["config"].endswith("/configs/quickstart.yaml"), o
assert (j["id"], j["cluster"], j["state"], j["reason"], j["partition"]) == ("4711", None, "PENDING", "Priority", "dcu"), j
assert (j["node_count"], j["tasks"], j["position"], j["pending"], j["restarts"]) == (2, 2, 3, 4, 0) and j["start"] > j["submitted"], j
assert "train.steps=6" in o["overrides"] and o["plan"]["ranks"] == 2 and o["plan"]["peak_bytes"] > 1e6 and o["plan_problem"] is None, o
END
expect 0 "$MEOPT" attach 4711@hefei --json
grep -q '"cluster": "hefei"' out && grep -qx -- '-o -M hefei show job 4711' asked || fail "a job of a cluster: $(cat asked)"
run_of() { # RUN OPERAND: the object of the operand is of this run
    expect 0 "$MEOPT" attach "$2" --json
    grep -qF "\"run\": \"$here/runs/$1\"" out && grep -q '"job": {' out || fail "$2 is not $1: $(cat out)"
}
run_of eva runs/eva
run_of eva eva
run_of sweep-lr=2.0e-5 4712_1
grep -q '"optim.lr=2.0e-5"' out || fail "the value of a sweep"
run_of sweep-lr=2.0e-5 sweep-lr=2.0e-5
run_of seeds-3 seeds-3
grep -q '"train.seed=3"' out && grep -q '"id": "4713_3"' out || fail "the number of an array"
run_of cards 4715 # planned for cards, also on a login node without one
[ -e /dev/kfd ] || [ -e /dev/nvidia0 ] || grep -q '"libraries_assumed": true' out || fail "the plan is of the CPU: $(cat out)"
touch refused # not the owner: the submitted file is read
run_of eva 4711
rm refused

# Edited scripts: a command and its line alike, or the rest of the script; else the run is unknown.
edited() { # SCRIPT SED: the submitted script, edited
    sed "$2" "$1" >edited.sh
    ! cmp -s "$1" edited.sh || fail "nothing to edit by $2"
}
submit 4711 eva edited.sh PENDING Priority
edited eva.sh 's/train.steps=6/train.steps=7/'
run_of eva 4711
grep -q '"train.steps=7"' out || fail "an override that was changed: $(cat out)"
edited eva.sh 's/exec srun/exec srun --mpi=pmix/; s/--time=.*/--time=1:00:00/'
run_of eva eva
for change in '/^#MEOPT/!s/train.steps=6/train.steps=7/' '/^#MEOPT/s/train.steps=6/train.steps=7/' "s/ train --resume.*/& 'train.seed=2'/" \
    's/^ *exec srun/#&/' 's/ run=/&.\//' '/^#MEOPT/s/$/ seed=2/' '/^#MEOPT/s/$/ run=\/tmp\/other/' '/^#MEOPT/d'; do
    edited eva.sh "$change"
    expect 1 "$MEOPT" attach 4711
    grep -q '4711.*#MEOPT' err || fail "$change: $(cat err)"
    expect 1 "$MEOPT" attach eva
done
submit 4712 sweep edited.sh PENDING Resources 0 'ArrayJobId=4712 ArrayTaskId=0-1%1'
edited sweep.sh "/^1)/s/'optim.lr=2.0e-5'/'optim.lr=3.0e-5'/"
run_of sweep-lr=1.0e-5 4712_0
expect 1 "$MEOPT" attach 4712_1
submit 4712 sweep sweep.sh PENDING Resources 0 'ArrayJobId=4712 ArrayTaskId=0-1%1'
odd="o'd 50%41 $(printf '\377')
#MEOPT run=/"
mkdir "$odd"
cp configs/quickstart.yaml "$odd/"
"$MEOPT" sbatch "$odd/quickstart.yaml" "data.val=$odd" --run-dir "$odd" --name eva -o odd.sh
submit 4711 eva odd.sh PENDING Priority
expect 0 "$MEOPT" attach "$odd/eva" --json
grep -q '"id": "4711"' out || fail "a directory of that name: $(cat out)"
submit 4711 eva eva.sh PENDING Priority

# What cannot be shown.
expect 2 "$MEOPT" attach 4712
grep -q 4712_0 err || fail "no task is suggested: $(cat err)"
expect 1 "$MEOPT" attach 99
expect 1 "$MEOPT" attach 4714
grep -q 4714 err || fail "a job without a run: $(cat err)"
expect 1 "$MEOPT" attach sweep-lr=3.0e-5
expect 2 "$MEOPT" attach --json
touch down
expect 1 "$MEOPT" attach 4711
grep -q 'contact slurm controller' err || fail "the reason of Slurm: $(cat err)"
rm down
mkdir empty
PATH=$here/empty expect 1 "$MEOPT" attach 4711
grep -q scontrol err || fail "no Slurm: $(cat err)"
for state in CANCELLED FAILED TIMEOUT NODE_FAIL; do
    submit 4711 eva eva.sh $state NonZeroExitCode
    expect 1 "$MEOPT" attach 4711
    grep -q "$state" err && grep -q slurm-eva-4711.log err || fail "the end of a job: $(cat err)"
done

# Without a terminal: lines, until the job has ended.
submit 4711 eva eva.sh PENDING Priority
hasten 5 # Slurm is asked every 5 s
: >out # the process in the background may open it later than the search reads it
"$MEOPT" attach 4711 >out 2>err </dev/null &
shown=$!
echo $shown $hung >left
wait_for 60 grep -q '^job 4711: PENDING (Priority)$' out && wait_for 60 grep -q peak out || fail "no lines in a pipe"
submit 4711 eva eva.sh CANCELLED None
exits 1 wait $shown && grep -q '^job 4711: CANCELLED$' out || fail "exit $code of a cancelled job"

# On a terminal: the queue, then the dashboard of the run.
start() { # COMMAND
    terminal 80 24 C.UTF-8 "NO_COLOR=1 HOME='$dir' PLAY='$here' OMP_NUM_THREADS=1" "'$MEOPT' $1"
}
submit 4711 eva eva.sh PENDING Priority
start 'attach 4711'
await '^job 4711: PENDING (Priority)'
await 'in 1:5[0-9]'
await '^student'
await 'queued'
keys End
await '^  peak '
await '^disk'
keys q
await 'status 0'
restored 'leaving the queue'
[ ! -e runs/eva ] || fail "attach makes a run"
stop
start 'attach runs/eva'
await '^job 4711: PENDING (Priority)'
touch down # a controller that is restarted
await 'contact slurm controller'
rm down
submit 4711 eva eva.sh RUNNING None
await '^job 4711: RUNNING'
: >out
"$MEOPT" attach 4711 >out 2>err </dev/null &
shown=$!
echo $shown $hung >left
wait_for 60 grep -q peak out || fail "no plan in a pipe"
# shellcheck disable=SC2086
SLURM_JOB_ID=4711 "$MEOPT" train --resume-if-exists --no-dashboard --run-dir runs --name eva -- configs/quickstart.yaml $same >log 2>&1 || fail "the run"
await 'step 6/6'
exits 0 wait $shown && grep -q runs/eva err || fail "exit $code in a pipe when the run has begun: $(cat err)"
keys q
await 'status 0'
stop
expect 0 "$MEOPT" attach eva --json
grep -q '"state": "done"' out && grep -q '"job": null' out || fail "the object of a run: $(cat out)"

# Requeued: the run of the earlier start is no dashboard yet.
expect 0 "$MEOPT" attach seeds-2 --json # ended, and Slurm has it at its first start
grep -q '"state": "stopped"' out || fail "the object of a stopped run: $(cat out)"
expect 0 "$MEOPT" stop seeds-2 --json
grep -q '"asked": null' out || fail "a stop of a run that has ended: $(cat out)"
submit 4713 seeds seeds.sh PENDING BeginTime 1 'ArrayJobId=4713 ArrayTaskId=2'
run_of seeds-2 4713_2
expect 1 "$MEOPT" stop seeds-2 # its job would resume it
grep -q 4713_2 err || fail "a stop of a queued run: $(cat err)"
run_of seeds-2 runs/seeds-2
start 'attach seeds-2'
await '^job 4713_2: PENDING (BeginTime)'
await 'step 6 of 6'
submit 4713 seeds seeds.sh CANCELLED None 1 'ArrayJobId=4713 ArrayTaskId=2'
await 'step 6/6' # its run is there
keys q
await 'status 0'
stop
exits 0 wait $hung && grep -q '"state": "stopped"' hung.out || fail "exit $code of a run whose Slurm hangs: $(cat hung.out)"
echo ok
