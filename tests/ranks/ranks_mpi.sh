#!/bin/sh
# Ranks through Open MPI are bit-identical to ranks in shared memory and to one rank: losses, norms, and weights of the last rank.
set -eu
command -v mpirun >/dev/null || { echo "no mpirun here"; exit 77; }
[ -e "$MEOPT_BUILD/libmeopt_mpi.so" ] || { echo "built without MPI"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
export MEOPT_MPI_MODULE="$MEOPT_BUILD/libmeopt_mpi.so" OMP_NUM_THREADS=1
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
mpi() { # N OUT
    mpirun --allow-run-as-root --oversubscribe --mca rmaps_base_oversubscribe 1 --mca btl self,vader --mca mpi_yield_when_idle 1 \
        -np "$1" -x MEOPT_MPI_MODULE -x MEOPT_TEST_SETTINGS -x OMP_NUM_THREADS "$MEOPT_BUILD/tests/test_equal" "$2"
}
# MEOPT_LONG=1: 2, 3, 4 and 8 ranks, each shard with each kind of format, the rules by turns.
settings() {
    echo "dist.shard=none"
    echo "dist.shard=optimizer optim.name=lamb optim.clip_mode=exact"
    echo "dist.shard=parameters optim.gradients=keep"
    [ "${MEOPT_LONG:-}" = 1 ] || return 0
    rule=0
    for shard in none optimizer gradients parameters; do
        for format in "train.precision=fp32" "optim.use_meopt=false" "optim.preset=quality" "optim.preset=balanced" "optim.preset=minimal" \
            "optim.state_m=4bit optim.state_v=4bit"; do
            rule=$((rule % 7 + 1)) # schedule_free has no 4-bit states
            echo "dist.shard=$shard $format optim.name=$(echo schedule_free apadam apadamw apsgd lamb lion adafactor | cut -d' ' -f$rule)"
        done
    done
}
sizes="2 3"
[ "${MEOPT_LONG:-}" != 1 ] || sizes="2 3 4 8"
runs=0
settings >"$dir/settings"
while read -r settings; do
    export MEOPT_TEST_SETTINGS="$settings"
    OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 "$MEOPT_BUILD/tests/test_equal" "$dir/1" 2>"$dir/log" || fail "one rank: $(cat "$dir/log")"
    for n in $sizes; do
        mpi "$n" "$dir/$n" >"$dir/log" 2>&1 </dev/null || fail "$settings, $n ranks: $(cat "$dir/log")"
        cmp "$dir/1" "$dir/$n" || fail "$settings: other bits on $n ranks"
        runs=$((runs + 1))
    done
done <"$dir/settings"
echo "$runs runs through MPI with the bits of one rank"
# Ranks that are no ranks of one MPI: each would train alone, and no one would know.
if OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$MEOPT_BUILD/tests/test_equal" "$dir/x" 2>"$dir/log"; then fail "a singleton took part"; fi
grep -q 'rank 1 of 2.*\<MPI\>.*0 of 1' "$dir/log" || fail "a singleton is told: $(cat "$dir/log")"
# Ranks in different collectives: an error of each that names both.
for difference in call left library; do
    mpirun --allow-run-as-root --oversubscribe --mca btl self,vader --mca mpi_yield_when_idle 1 -np 3 -x MEOPT_MPI_MODULE \
        "$MEOPT_BUILD/tests/test_dist" differ $difference >"$dir/log" 2>&1 </dev/null || fail "ranks differ, $difference: $(cat "$dir/log")"
done
# Sums of the library: within the bound of rounding. Of 2 and 4 ranks also those of a tree, bit-identical to it.
for n in 2 3 4 5; do
    mpirun --allow-run-as-root --oversubscribe --mca btl self,vader --mca mpi_yield_when_idle 1 -np "$n" -x MEOPT_MPI_MODULE \
        "$MEOPT_BUILD/tests/test_dist" sums "$n" >"$dir/log" 2>&1 </dev/null || fail "sums of MPI, $n ranks: $(cat "$dir/log")"
done
# A run with them says so, also beside one without.
tar -xzf "$MEOPT_SOURCE/configs/sample/digits.tar.gz" -C "$dir"
train() { # NAME ARGUMENT...
    name=$1
    shift
    mpirun --allow-run-as-root --oversubscribe --mca btl self,vader --mca mpi_yield_when_idle 1 -np 3 -x MEOPT_MPI_MODULE -x OMP_NUM_THREADS \
        "$MEOPT" train "$MEOPT_SOURCE/configs/digits.yaml" --run-dir "$dir/runs" --name "$name" --no-dashboard data.root="$dir/digits/train" \
        data.val="$dir/digits/val" train.steps=3 train.global_batch=48 train.micro_batch=8 dist.backend=mpi device.type=cpu "$@" >"$dir/log" 2>&1 \
        </dev/null || fail "$name: $(tail -5 "$dir/log")"
}
train ordered
train library dist.reduce=library
for reduce in ordered library; do
    grep -q "\"reduce\": *\"$reduce\"" "$dir/runs/$reduce/meta.json" || fail "meta.json of $reduce"
done
"$MEOPT" compare "$dir/runs/ordered" "$dir/runs/library" --json >"$dir/compare.json" 2>"$dir/log" || fail "compare: $(cat "$dir/log")"
grep -q 'dist.reduce' "$dir/compare.json" || fail "compare does not name the sums"
# Messages and groups; ends that differ.
messages() { # N WHAT
    mpirun --allow-run-as-root --oversubscribe --mca btl self,vader --mca mpi_yield_when_idle 1 -np "$1" -x MEOPT_MPI_MODULE \
        "$MEOPT_BUILD/tests/test_messages" as "$2" >"$dir/log" 2>&1 </dev/null || fail "messages, $2, $1 ranks: $(cat "$dir/log")"
}
messages 2 around
messages 3 around
messages 3 pass_on
messages 4 groups
messages 2 little
messages 8 little
for difference in size tag both neither number group order; do messages 2 $difference; done
# Ranks on different instruction sets train, and rank 0 says so.
grep -q '^flags.* fma .* avx2 ' /proc/cpuinfo || exit 0
mkdir "$dir/sample" "$dir/configs"
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C "$dir/sample"; done
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" "$dir/configs/"
pair() { # NAME SET: of rank 1
    set -- "$1" "$2" "$MEOPT" train "$dir/configs/quickstart_dinov2.yaml" train.global_batch=4 train.micro_batch=1 train.steps=2 --run-dir "$dir/runs" --name "$1"
    name=$1 isa=$2
    shift 2
    # not as two commands: mpirun of Open MPI 5.0.7 (Debian 13) crashes
    # shellcheck disable=SC2016
    mpirun --allow-run-as-root --oversubscribe --mca btl self,vader --mca mpi_yield_when_idle 1 -np 2 \
        sh -c 'export MEOPT_CPU_ISA=avx2_fma; [ "$OMPI_COMM_WORLD_RANK" = 0 ] || MEOPT_CPU_ISA=$1; shift; exec "$@"' sh "$isa" "$@" >"$dir/log" 2>&1 </dev/null ||
        fail "$name: $(cat "$dir/log")"
}
pair equal avx2_fma
! grep -q '^warning: .*rank 1 (host' "$dir/log" || fail "equal ranks are said to differ"
pair mixed plain
grep -q '^warning: .*rank 1 (host .*\<plain, .*MEOPT_CPU_ISA=' "$dir/log" || fail "nothing is said of mixed ranks: $(cat "$dir/log")"
grep -q '"event":"started".*"ranks_differ":\["kernels"' "$dir/runs/mixed/events.jsonl" || fail "mixed ranks are not in events"
grep -q '"1": "plain, optimizer plain"' "$dir/runs/mixed/meta.json" || fail "mixed ranks are not in meta.json"
echo "ranks on different instruction sets are distinguished"
