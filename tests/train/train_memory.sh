#!/bin/sh
# train.memory: a run is given the fastest keys that fit, which are in its own configuration, and takes no more than that; where nothing
# fits, and where it cannot be taken, that is reported before a directory is made.
set -u
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
# what is planned less 1.5 MiB: what a processor's products need besides is not what the keys save
limit=$("$MEOPT" plan configs/quickstart_dinov2.yaml device.type=cpu --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["peak_bytes"] // 1024 - 1536)')
train="configs/quickstart_dinov2.yaml device.type=cpu train.steps=2 --run-dir ."
# shellcheck disable=SC2086
"$MEOPT" train $train "train.memory=${limit}K" --name fits >out 2>log || fail "fits: exit $?"
keys=$(sed -n 's/^train.memory [0-9]*K: \([a-z_.]*=[^,]*\),.*/\1/p' log)
[ -n "$keys" ] || fail "the choice is not reported"
for word in $keys; do
    grep -q "^  ${word#*.}\$" fits/config.yaml || [ "$(sed 's/: /=/' fits/config.yaml | grep -c "^  ${word#*.}\$")" -ge 1 ] ||
        fail "$word is not in the run's configuration"
done
peak=$(sed -n 's/.*"peak_bytes": *\([0-9]*\).*/\1/p' fits/metrics.jsonl | tail -1)
[ "$peak" -le $((limit * 1024)) ] || fail "it takes $peak bytes"
# The same keys, typed: the same run.
# shellcheck disable=SC2086
"$MEOPT" train $train $keys --name typed >out 2>log || fail "typed: exit $?"
cmp fits/ckpt/step-00000002/model.safetensors typed/ckpt/step-00000002/model.safetensors || fail "another run"
# And written into the file.
cp configs/quickstart_dinov2.yaml configs/written.yaml
# shellcheck disable=SC2086
"$MEOPT" config set configs/written.yaml $keys >out 2>log || fail "config set"
planned() { "$MEOPT" plan "$@" device.type=cpu --json | sed -n 's/.*"peak_bytes": *\([0-9]*\).*/\1/p' | head -1; }
# shellcheck disable=SC2086
[ "$(planned configs/written.yaml)" = "$(planned configs/quickstart_dinov2.yaml $keys)" ] || fail "written keys plan otherwise"

refuse() { # CODE TEXT ARGUMENT...
    want=$1 text=$2
    shift 2
    # shellcheck disable=SC2086
    exits "$want" "$MEOPT" train $train "$@" --name no >out 2>log || fail "$*: exit $code, expected $want"
    grep -q "$text" log || fail "$*: not told"
    [ ! -e no ] || fail "$*: a directory is made"
}
refuse 7 '^meopt: .*\<0.10 MiB.* [1-9][0-9.]* MiB' train.memory=100K
refuse 7 '^meopt: .*train.memory' train.memory=little
"$MEOPT" train --resume fits train.memory=64M >out 2>log
[ $? = 2 ] || fail "it is taken for a run that is resumed"

# Several ranks: into what each has, by the one that holds the most; parts of what they hold are among the keys.
export OMP_NUM_THREADS=1
least=$("$MEOPT" plan configs/quickstart_dinov2.yaml device.type=cpu --ranks 4 --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["peak_bytes"] // 1024 - 256)')
ranks() { # NAME OF_THE_LADDER ARGUMENT...
    name=$1 told=$2
    shift 2
    "$@" configs/quickstart_dinov2.yaml device.type=cpu train.steps=2 --run-dir . --name "$name" "train.memory=${least}K" >out 2>log || fail "$name: exit $?"
    grep -q "^train.memory ${least}K .*dist.shard=" log || fail "$name: the choice is not logged"
    keys=$(sed -n 's/^train.memory [0-9]*K [a-z ]*: \([a-z_.]*=[^,]*\),.*/\1/p' log)
    [ "$keys" = "$told" ] || fail "$name is given $keys, and plan reports $told"
    [ "$(grep -o '"peak_bytes": *[0-9]*' "$name/metrics.jsonl" | awk -F: -v most=$((least * 1024)) '$2 > most' | wc -l)" = 0 ] || fail "$name: a rank takes more"
}
told() { # RANKS
    "$MEOPT" plan configs/quickstart_dinov2.yaml device.type=cpu train.steps=2 --ranks "$1" --fit "${least}K" --json |
        python3 -c 'import json, sys; print([r["keys"] for r in json.load(sys.stdin)["fit"]["rungs"] if r["chosen"]][0])'
}
ranks four "$(told 4)" "$MEOPT" train --workers 4
[ "$(tail -n 1 four/metrics.jsonl | grep -o '"rank":' | wc -l)" = 4 ] || fail "not four ranks"
if command -v mpirun >/dev/null && [ -e "$MEOPT_BUILD/libmeopt_mpi.so" ]; then # every rank reads the experiment, one chooses
    ranks launched "$(told 2)" mpirun --allow-run-as-root --oversubscribe --mca rmaps_base_oversubscribe 1 --mca btl self,vader \
        --mca mpi_yield_when_idle 1 -n 2 "$MEOPT" train
fi
# A job that comes back keeps what was chosen when it began, though another choice would fit now.
for memory in 64M "${least}K"; do
    "$MEOPT" train --resume-if-exists configs/quickstart_dinov2.yaml device.type=cpu train.steps=2 --run-dir . --name back "train.memory=$memory" >out 2>log ||
        fail "it comes back: exit $?"
done
! grep -q '^train.memory .*:' log || fail "a run that is resumed is given keys"

# The output states whether each speed was measured, given or assumed.
# The axes that are given are not searched, which says the same in less time.
few="train.micro_batch=0 train.rounds=auto train.recompute=none train.cache_teacher=false"
rates() { # CONDITION ARGUMENT...: whether it holds for f, the object "fit"
    that=$1
    shift
    # shellcheck disable=SC2086
    "$MEOPT" plan configs/quickstart_dinov2.yaml device.type=cpu $few --fit 64M --json "$@" 2>log | python3 -c 'import json, sys
f = json.load(sys.stdin)["fit"]
sys.exit(0 if eval(sys.argv[1]) else "%s: %s" % (sys.argv[1], f))' "$that"
}
given='(f["gflops"], f["carried_gb_per_s"], f["assumed"], f["carry_measured"])'
rates "$given == (200, 1, True, False)" || fail "assumed speeds"
# shellcheck disable=SC2086
"$MEOPT" plan configs/quickstart_dinov2.yaml device.type=cpu $few --fit 64M 2>log | grep -q '200 GFLOP/s (.*--gflops.*, 1 GB/s .*(.*--carry' || fail "assumed speeds are not printed"
rates "$given == (50, 3, False, False)" --gflops 50 --carry 3 || fail "given speeds"
mkdir scratch
rates 'f["carry_measured"] and f["carried_gb_per_s"] > 0' --gflops 50 --measure train.scratch_dir="$work/scratch" || fail "measured speeds"
[ -z "$(ls -A scratch)" ] || fail "the measurement has left something"
# Of two disks both are measured, and the slower one counts, whichever it is of: here that whose writes take 40 ms longer each, with four
# of 1 MiB at a time 0.1 GB/s also under other load; the other is memory.
if [ -w /dev/shm ] && [ "$(stat -c %d /dev/shm)" != "$(stat -c %d scratch)" ] && [ -e "$MEOPT_BUILD/tests/libfault.so" ]; then
    fast=$(mktemp -d /dev/shm/meopt-test-XXXXXX)
    slower() { # SCRATCH STATES
        LD_LIBRARY_PATH="$MEOPT_BUILD/tests${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" LD_PRELOAD=libfault.so FAULT_UNDER="$work/scratch" FAULT_SLOW=write:40000 \
            rates 'f["carry_measured"] and f["carried_gb_per_s"] < 0.2' --gflops 50 --measure train.scratch_dir="$1" optim.offload_dir="$2"
    }
    slower "$work/scratch" "$fast" && slower "$fast" "$work/scratch"
    told=$?
    rmdir "$fast"
    [ $told = 0 ] || fail "of two disks the slower one does not count"
fi
# shellcheck disable=SC2086
"$MEOPT" plan configs/quickstart_dinov2.yaml device.type=cpu $few --fit 64M --gflops 50 --measure train.scratch_dir=/dev/null/no >out 2>log
grep -q '/dev/null/no' log || fail "a directory that cannot be: not reported"

# Where no one would choose, it is refused.
"$MEOPT" bench train configs/quickstart_dinov2.yaml device.type=cpu train.memory=64M >out 2>log
[ $? = 7 ] && grep -q '^meopt: .*train.memory' log || fail "bench train takes it"
"$MEOPT" compare --run configs/quickstart_dinov2.yaml device.type=cpu train.memory=64M --run-dir . --name both >out 2>log
[ $? = 7 ] && grep -q '^meopt: .*train.memory' log || fail "compare takes it"
[ ! -e both-without ] || fail "compare: a directory is made"

# auto: what the card, or the machine, has free, less a twentieth.
# shellcheck disable=SC2086
limit() { "$MEOPT" plan configs/quickstart_dinov2.yaml $few --fit auto --json "$@" 2>log | sed -n 's/.*"limit_bytes": *\([0-9]*\).*/\1/p'; }
all=$(awk '/^MemTotal/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
free=$(limit device.type=cpu)
[ "$free" -gt 0 ] && [ "$free" -le $((all / 20 * 19)) ] || fail "the machine's: $free of $all"
[ "$(limit device.type=cpu --ranks 4)" -le $((all / 80 * 19)) ] || fail "four ranks do not share the machine's"
[ -f "$MEOPT_BUILD/tests/libfake_amdhip64.so" ] || exit 0
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
for type in hip cuda; do
    free=$(FAKE_MEMORY=4000000000 FAKE_OTHERS=3000000000 limit device.type=$type)
    [ "$free" = 950000000 ] || fail "$type: $free of the 1000000000 bytes that are free"
done
free=$(limit device.type=hip --card-memory 2000000000)
[ "$free" = 1900000000 ] || fail "of a card that is named: $free"
