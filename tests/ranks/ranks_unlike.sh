#!/bin/sh
# Ranks that differ do not train: a different configuration, program or images, one card for two ranks, a rank or a whole job started twice.
# Each is named within 30 s with its exit code. A slower method on one rank is reported once. A resumed run is not disturbed, and no process
# or file in /dev/shm is left.
set -eu
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
work=$(cd "$work" && pwd -P)
cd "$work"
logs='log.*'
for archive in COCO2014 ModelWeight; do mkdir -p sample && tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
mkdir configs tmp there
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" configs/
export TMPDIR="$work/tmp" FAKE_CARDS=4 OMP_NUM_THREADS=1 MEOPT_RCCL_LIBRARY="$fakes/libfake_rccl.so" MEOPT_RANKS_ADDRESS=127.0.0.1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 # as of two hosts
export FAKE_NCCL_PCIE=1
unset HSA_FORCE_FINE_GRAIN_PCIE
same="train.global_batch=4 train.micro_batch=1 train.batch_size=1 train.checkpoint_steps=1 device.type=hip"
steps=5 program=$MEOPT configuration=$work/configs/quickstart_dinov2.yaml
rank() { # RANK CARD NAME LOG MORE...; $started
    rank=$1 card=$2 name=$3 log=$4
    shift 4
    # shellcheck disable=SC2086
    RANK=$rank "$program" train "$configuration" $same device.cards="$card" train.steps=$steps --no-dashboard \
        --run-dir "$work/runs" --name "$name" "$@" >"$work/log.$log" 2>&1 &
    started=$!
}
ends() { # PID EXIT-CODE WHAT
    exits "$2" wait "$1" || fail "$3: exit $code, expected $2"
}
left() { # processes of these runs, files of theirs for a moment, and what of ours and of the library is in /dev/shm
    for process in /proc/[0-9]*; do
        tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q "$work" && grep -q '^State:.[^Z]' "$process/status" 2>/dev/null && echo "$process"
    done
    find tmp -type f
    find /dev/shm -maxdepth 1 -type f -user "$(id -un)" -newer configs \( -name '*meopt*' -o -name '*nccl*' \) 2>/dev/null
    true
}
unlike() { # EXIT-CODE WHAT NAMES: of two ranks that have been started, $zero and $one
    begin=$(date +%s)
    ends "$zero" "$1" "$2: rank 0"
    ends "$one" "$1" "$2: rank 1"
    [ $(($(date +%s) - begin)) -le 30 ] || fail "$2: seen after $(($(date +%s) - begin)) s"
    for log in 0 1; do grep -q "^meopt: $3" log.$log || fail "$2: not named to rank $log"; done
    remains=$(left)
    [ -z "$remains" ] || fail "$2: left: $remains"
}
steps=1
rank 0 0 slower 0; zero=$started
FAKE_LANE=7 rank 1 1 slower 1; one=$started
ends "$zero" 0 "rank 0 beside a slower one"
ends "$one" 0 "a slower rank"
grep -q '^warning: rank 1: attention: ' log.1 || fail "what rank 1 alone does a slower way is not reported"
[ "$(grep -c '^warning: ' log.1)" = 1 ] || fail "rank 1 repeats what rank 0 reports"
! grep -q '^warning: attention' log.0 || fail "rank 0 has another rank's fallback"
grep -q '^warning: .*rank 1 (host .*rank 0 (host ' log.0 || fail "that results are rounded otherwise is not reported"
grep -q '"event":"started".*"ranks_differ":\["attention"\]' runs/slower/events.jsonl || fail "it is not in events"
grep -q '"ranks": {' runs/slower/meta.json || fail "it is not in meta.json"
steps=5
rank 0 0 config 0; zero=$started
rank 1 1 config 1 optim.lr=1e-4; one=$started
unlike 7 "another configuration" 'rank 1 (host .*configuration'

cp "$MEOPT" other
printf x >>other # the same code, and not the same file
rank 0 0 program 0; zero=$started
program=$work/other
rank 1 1 program 1; one=$started
unlike 7 "another program" 'rank 1 (host .*program'
program=$MEOPT

rank 0 0 card 0; zero=$started
rank 1 0 card 1; one=$started
unlike 7 "one shared card" 'ranks [01] and [01] .*0000:03:00.0'

# A disk of each host's own under one name: one image is missing on the second.
cp -r sample there/
rm "$(find there/sample -name '*.jpg' | sort | head -n 1)"
rank 0 0 images 0 data.root=/proc/self/cwd/sample/COCO2014; zero=$started
cd there
rank 1 1 images 1 data.root=/proc/self/cwd/sample/COCO2014; one=$started
cd ..
unlike 7 "other images" '.*rank 1 .*list of images.*rank 0'

# A list of classes of each host's own: one label differs on the second.
cat >configs/classify.yaml <<'END'
model: {family: dinov2, init: random, width: 32, depth: 2, heads: 2, hidden: 64, patch: 7}
data: {image_size: 28, workers: 1}
train: {objective: classify}
END
(cd sample/COCO2014 && find . -name '*.jpg' | sort | awk '{print $0 "," NR % 3}') >labels.csv
sed '1s/,1$/,2/' labels.csv >there/labels.csv
configuration=$work/configs/classify.yaml
rank 0 0 labels 0 data.root="$work/sample/COCO2014" data.labels=/proc/self/cwd/labels.csv; zero=$started
cd there
rank 1 1 labels 1 data.root="$work/sample/COCO2014" data.labels=/proc/self/cwd/labels.csv; one=$started
cd ..
unlike 7 "other labels" '.*rank 1 .*labels.*rank 0'
# The same of validation images: one is missing on the second host.
head -n 12 labels.csv >val.csv
tail -n +2 val.csv >there/val.csv
set -- data.root="$work/sample/COCO2014" data.labels="$work/labels.csv" data.val=/proc/self/cwd/val.csv
rank 0 0 validation 0 "$@"; zero=$started
cd there
rank 1 1 validation 1 "$@"; one=$started
cd ..
unlike 7 "other validation images" '.*rank 1 .*validation.*rank 0'
configuration=$work/configs/quickstart_dinov2.yaml

# A rank that was started twice, and the whole job, while it trains.
steps=2000
rank 0 0 twice 0; zero=$started
rank 1 1 twice 1; one=$started
wait_for 60 [ -e runs/twice/ckpt/LATEST ] || fail "it did not begin"
begin=$(date +%s)
rank 1 2 twice second; second=$started
rank 0 3 twice job; job=$started
exits 7 wait "$second" || fail "a rank that is there twice: exit $code"
grep -q '^meopt: .*rank 1' log.second || fail "a rank that is there twice is not named"
exits 9 wait "$job" || fail "a job that was started twice: exit $code"
[ $(($(date +%s) - begin)) -le 30 ] || fail "seen after $(($(date +%s) - begin)) s"
steps() { wc -l <runs/twice/metrics.jsonl; }
before=$(steps)
wait_for 30 eval '[ "$(steps)" -gt "$before" ]' || fail "next to a second rank 1 and a second job it does not continue"
"$program" stop runs/twice >/dev/null 2>&1 || fail "it cannot be stopped"
ends "$zero" 10 "rank 0, beside a second rank 1 and a second job"
ends "$one" 10 "rank 1, beside a second one"
remains=$(left)
[ -z "$remains" ] || fail "left: $remains"
echo ok
