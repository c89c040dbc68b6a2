#!/bin/sh
# A rank of a pipeline or of a tensor group that is lost is named within 30 seconds, with its rank, place and host, and the message or collective that
# the others miss. The run resumes with other stages, and has the bits of one that was never interrupted. MEOPT_LONG=1: also four stages,
# a rank stopped by SIGSTOP, and ranks of Open MPI.
set -eu
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
unset MEOPT_RANKS_ADDRESS
python3 - <<'END_OF_TEXT'
words = "the light and the darkness were upon the face of the waters".split()
open("train.txt", "w").write(" ".join(words[(i * i + i // 7) % len(words)] for i in range(2000)) + "\n")
END_OF_TEXT
cat >gpt.yaml <<'END_OF_CONFIG'
model: {family: llama, init: random, vocabulary: 256, context: 32, width: 64, depth: 4, heads: 4, kv_heads: 2, hidden: 96, slices: 2}
data: {root: train.txt, end: 10}
train: {objective: language, global_batch: 16, micro_batch: 2, batch_size: 8, checkpoint_steps: 5, precision: fp32}
optim: {lr: 1.0e-3, warmup_steps: 5}
device: {type: cpu}
END_OF_CONFIG
mkdir scratch
tensor=1
total=60
"$MEOPT" train gpt.yaml train.steps=$total --no-dashboard --run-dir runs --name whole >log 2>&1 || fail "one rank"

begin() { # RANKS NAME STAGES MORE...: in the background
    ranks=$1 name=$2 stages=$3
    shift 3
    rm -rf "runs/$name"
    set -- "$MEOPT" train gpt.yaml train.steps=$total dist.pipeline="$stages" dist.tensor=$tensor --no-dashboard --run-dir runs --name "$name" "$@"
    if [ "$by" = mpi ]; then set -- mpirun -np "$ranks" "$@"; else set -- "$@" --workers "$ranks"; fi
    slow_saves "$@" >log 2>&1 &
    run=$!
}
ended() { ! grep -q '^State:.[^Z]' "/proc/$run/status" 2>/dev/null; }
worker() { # NAME RANK, once it has made steps and there is a checkpoint
    [ -e "runs/$1/ckpt/LATEST" ] && python3 -c 'import json, sys
print([r["pid"] for r in json.load(open(sys.argv[1]))["ranks"] if r["rank"] == int(sys.argv[2]) and r["pid"] > 1 and r["step"] > 0][0])' \
        "runs/$1/live.json" "$2" >pid 2>/dev/null
}
named() { # NAME STAGES RANK CODE: in state.json
    python3 - "runs/$1/state.json" "$2" "$3" "$4" "$tensor" <<'END_OF_CHECK' || fail "$1: $(cat "runs/$1/state.json")"
import json, re, sys
state, (stages, rank, code, tensor) = json.load(open(sys.argv[1])), map(int, sys.argv[2:6])
said = state["message"]
found = re.match(r"rank (\d+) \(host ([^,)]+)", said)
assert state["exit_code"] == code and found, state
place, index = divmod(int(found[1]), tensor)
where = [f"tensor {index}"] * (tensor > 1) + [f"stage {place % stages}"] * (stages > 1) + [f"replica {place // stages}"]
assert ", " + " of ".join(where) in said, said
if rank >= 0: # it was hit: the others say what they missed; one that fails alone says why
    assert int(found[1]) == rank, said
    assert re.search(r"\b(send|receive|transfer|(all_)?reduce|tree_sum|fold|broadcast|gather|combine|barrier|split)\b", said), said
END_OF_CHECK
}
resumed() { # NAME STAGES: in another layout, to the end
    "$MEOPT" train --resume "runs/$1" --workers 4 dist.pipeline="$2" dist.tensor=$((3 - tensor)) --no-dashboard >log 2>&1 || fail "$1: exit $? on resume"
    cmp "runs/whole/ckpt/step-000000$total/model.safetensors" "runs/$1/ckpt/step-000000$total/model.safetensors" || fail "$1: other weights than one rank"
}
lost() { # RANKS STAGES RANK SIGNAL
    name="$by-$1-$2-$tensor-$4" hit=
    for try in 1 2 3 4 5; do # under other load a run may end before its rank is hit: once more, slower
        ms=$((30 * try * try))
        begin "$1" "$name" "$2"
        wait_for 60 eval 'worker "$name" "'"$3"'" || ended' || fail "$name did not begin"
        if ! ended && kill "-$4" "$(cat pid)" 2>/dev/null; then
            hit=yes
            break
        fi
        wait "$run" || fail "$name ended before rank $3 was hit, $try"
    done
    [ "$hit" ] || fail "$name always ended before rank $3 was hit"
    since=$(date +%s) code=0
    wait "$run" || code=$?
    # mpirun may end first, by the signal of the rank that was killed
    [ "$code" = 14 ] || { [ "$by$4" = mpiKILL ] && [ "$code" = 137 ]; } || fail "$name: exit $code, expected 14"
    [ $(($(date +%s) - since)) -le 30 ] || fail "$name: named after $(($(date +%s) - since)) s"
    named "$name" "$2" "$3" 14
    resumed "$name" "$(case $tensor$2 in 12) echo 1 ;; 14) echo 2 ;; 21) echo 4 ;; 22) echo 1 ;; esac)"
}
elastic() { # RANKS STAGES RANK LEFT: the replica of a lost rank is left out, the last one is started again
    name=elastic-$1-$tensor left=$4
    for ms in 10 40 160 640; do # these train to the last step
        begin "$1" "$name" "$2" --restarts 1 --elastic
        wait_for 60 eval 'worker "$name" "'"$3"'" || ended' || fail "$name did not begin"
        ended || ! kill -KILL "$(cat pid)" || break
        wait "$run" || fail "$name ended before rank $3 was hit"
    done
    wait "$run" || fail "$name: exit $?"
    cmp "runs/whole/ckpt/step-000000$total/model.safetensors" "runs/$name/ckpt/step-000000$total/model.safetensors" || fail "$name: other weights than one rank"
    grep -q "\"ranks\": $left," "runs/$name/meta.json" || fail "$name: $(grep '"ranks"' "runs/$name/meta.json")"
}
by=local
elastic 4 2 1 2
elastic 2 2 1 2
lost 4 2 3 KILL
# one that fails alone in a step: its scratch file cannot be written
truncate -s 65536 counters
code=0
timeout 60 env LD_LIBRARY_PATH="$MEOPT_BUILD/tests${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" LD_PRELOAD=libfault.so FAULT_SHARED="$work/counters" \
    FAULT_UNDER="$work/scratch" FAULT_CALL=write FAULT_K=200 FAULT_ERRNO=5 "$MEOPT" train gpt.yaml train.steps=$total dist.pipeline=2 optim.offload=nvme optim.offload_dir="$work/scratch" \
    --workers 4 --no-dashboard --run-dir runs --name alone >log 2>&1 || code=$?
[ "$code" != 0 ] || fail "a rank whose scratch file cannot be written: exit 0"
named alone 2 -1 "$code"
resumed alone 1
tensor=2
elastic 4 1 2 2
lost 4 1 3 KILL
if [ "${MEOPT_LONG:-}" = 1 ]; then
    lost 8 4 5 KILL
    lost 8 2 5 KILL
    lost 8 2 2 STOP
    tensor=1
    lost 4 2 2 STOP
    lost 8 4 6 STOP
    if command -v mpirun >/dev/null && [ -f "$(dirname "$MEOPT")/libmeopt_mpi.so" ]; then
        by=mpi
        lost 4 2 0 KILL
        lost 4 2 3 STOP
        lost 8 4 5 KILL
    fi
fi
echo ok
