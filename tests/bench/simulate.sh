#!/bin/sh
# Simulated steps (meopt plan --bandwidth --cores) next to real ones: a language model of bytes on 2, 4 and 8 ranks of this host, one thread each,
# with each form of sharding and pipelines.
# The rate of collectives is measured for each number of ranks (collectives.c), the step of one rank by a run. All of it is processor time
# divided by the number of processors, which these ranks keep busy: other programs on the machine then do not matter.
#
#   sh tests/bench/simulate.sh [KEY=VALUE ...]    keys of the model and the run, for example model.width=512
set -eu
cd "$(dirname "$0")/../.."
build=$(cd "${MEOPT_BUILD:-build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CC:-cc} -O2 -D_GNU_SOURCE -I. tests/bench/collectives.c "$build/libmeopt.a" -o "$work/collectives" -fopenmp -ljpeg -lpng -lwebp -lz \
    -lyaml -ljansson -lpcre2-8 -lutf8proc -lm -ldl
mkdir "$work/sample" "$work/configs"
tar -xzf configs/sample/genesis.tar.gz -C "$work/sample"
cp configs/bytes.yaml "$work/configs"
cd "$work"
export OMP_NUM_THREADS=1
cores=$(getconf _NPROCESSORS_ONLN)
set -- configs/bytes.yaml model.width=384 model.heads=6 model.depth=6 model.context=128 train.batch_size=4 train.eval_steps=0 \
    train.checkpoint_steps=0 optim.clip_mode=block "$@"
processor_ms() { # ARGUMENT...: of a step, the difference of a longer and a shorter run
    python3 - "$build/meopt" "$@" <<'END'
import resource, subprocess, sys
def run(steps):
    subprocess.run(["rm", "-rf", "runs"])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.argv[1], "train", *sys.argv[2:], f"train.steps={steps}", "--run-dir", "runs", "--name", "run"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(1e3 * (run(12) - run(2)) / 10)
END
}
compare() { # RANKS GB/S MS KEY=VALUE...: MS of the step of one rank alone
    ranks=$1 rate=$2 alone=$3
    shift 3
    real=$(processor_ms "$@" --workers "$ranks")
    "$build/meopt" plan "$@" --ranks "$ranks" --bandwidth "$rate" --latency 20 --step-ms "$alone" --cores "$cores" --json >plan
    for form in "$@"; do :; done
    python3 -c '
import json, sys
ranks, form, rate, real = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]) / float(sys.argv[5])
step = 1e3 * json.load(open("plan"))["scaling"][-1]["step_s"]
print("%5d  %-21s %6.2f %13.1f %10.1f %12.2f" % (ranks, form, rate, step, real, real / step))' "$ranks" "$form" "$rate" "$real" "$cores"
}
one=$(processor_ms "$@") recomputed=$(processor_ms "$@" train.recompute=block)
echo "one rank: $one ms, with recomputation $recomputed ms; $cores processors"
echo "ranks  keys                    GB/s  simulated ms    real ms   real / simulated"
for ranks in 2 4 8; do
    rate=$("$work/collectives" $ranks | cut -d' ' -f2)
    for shard in none optimizer parameters; do compare $ranks "$rate" "$one" "$@" dist.shard=$shard; done
    for stages in 2 4; do # as many images per rank, in micro-batches of as many
        [ $stages -le $ranks ] || continue
        compare $ranks "$rate" "$(python3 -c "print($recomputed * $stages)")" "$@" train.micro_batch=4 train.batch_size=$((4 * stages)) \
            dist.pipeline=$stages
    done
done
