#!/bin/sh
# Simulated steps (meopt plan --bandwidth --cores) next to real ones: a language model of bytes on 2, 4 and 8 ranks of this host, one thread each.
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
    -lyaml -ljansson -lpcre2-8 -lutf8proc -luring -lm -ldl
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
one=$(processor_ms "$@")
echo "one rank: $one ms; $cores processors"
echo "ranks  shard        GB/s  simulated ms    real ms   real / simulated"
for ranks in 2 4 8; do
    rate=$("$work/collectives" $ranks | cut -d' ' -f2)
    for shard in none optimizer parameters; do
        real=$(processor_ms "$@" dist.shard=$shard --workers $ranks)
        "$build/meopt" plan "$@" dist.shard=$shard --ranks $ranks --bandwidth "$rate" --latency 20 --step-ms "$one" --cores "$cores" --json >plan
        python3 -c '
import json, sys
ranks, shard, rate, real = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]) / float(sys.argv[5])
step = 1e3 * json.load(open("plan"))["scaling"][-1]["step_s"]
print("%5d  %-10s %6.2f %13.1f %10.1f %12.2f" % (ranks, shard, rate, step, real, real / step))' $ranks $shard "$rate" "$real" "$cores"
    done
done
