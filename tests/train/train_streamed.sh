#!/bin/sh
# A run whose weights come block by block: killed between checkpoints, and continued with weights that are held, it ends with the bytes of a
# run that was never stopped; nothing is left of its scratch files; a disk that fills up, fails or moves half of what it
# is asked for in the middle of a step ends the run or does not, is named, and the last checkpoint continues.
set -u
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
both="model_t.place=streamed model_s.place=streamed"
train() { # NAME CODE ARGUMENT...
    name=$1 want=$2
    shift 2
    "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=6 train.checkpoint_steps=2 --run-dir . --name "$name" "$@" >out 2>log
    got=$?
    [ "$got" = "$want" ] || fail "$name: exit $got, expected $want"
}
resume() { # NAME ARGUMENT...
    name=$1
    shift
    "$MEOPT" train --resume "$name" "$@" >out 2>log || fail "$name: exit $?"
}
same() { # NAME
    for file in model.safetensors optimizer.bin; do
        cmp "held/ckpt/step-00000006/$file" "$1/ckpt/step-00000006/$file" || fail "$1: other bytes in $file"
    done
}
train held 0

# Killed in the middle, wherever it is then.
# shellcheck disable=SC2086
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=6 train.checkpoint_steps=2 --run-dir . --name killed $both --no-dashboard \
    >out 2>log &
pid=$!
while [ ! -e killed/ckpt/step-00000002/MANIFEST.json ] && kill -0 $pid 2>/dev/null; do sleep 0.05; done
worker=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' killed/state.json)
kill -9 "$worker" $pid 2>/dev/null
wait $pid 2>/dev/null
[ -z "$(find killed -name '.meopt-weights*')" ] || fail "killed: scratch files are left"
resume killed model_s.place=resident model_t.place=resident
same killed

# What is in files, and the time that steps waited for it, is reported next to the memory.
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=2 --run-dir . --name told model_t.place=streamed >out 2>log || fail "told: exit $?"
grep -q '"file_classes": *{"teacher": *[1-9]' told/metrics.jsonl || fail "metrics: no bytes in files"
[ "$(grep -c '"stream_wait_ms":' told/metrics.jsonl)" = 2 ] || fail "metrics: no time of waiting"
! grep -q stream_wait_ms held/metrics.jsonl || fail "metrics: a time of waiting for nothing"
"$MEOPT" compare --csv held told >out 2>log || [ $? = 8 ] || fail "compare"
grep -q '^facts,file_teacher_bytes,,[1-9]' out && grep -q '^facts,stream_wait_percent,,[0-9]' out || fail "compare: nothing of files"
"$MEOPT" compare --csv held held >out 2>log
! grep -q '^facts,\(file_teacher_bytes\|stream_wait_percent\),' out || fail "compare: files that are not there"

! "$MEOPT" train configs/quickstart_dinov2.yaml model_s.place=streamed optim.gradients=keep --run-dir . --name kept >out 2>log ||
    fail "gradients: keep is taken"
grep -q '^meopt: .*optim.gradients.*keep' log || fail "gradients: keep is not reported"

# The disk of the scratch files: what fails once is asked for again, what fails from then on ends the run, with the file's name and the reason.
mkdir scratch
export LD_LIBRARY_PATH="$MEOPT_BUILD/tests:${LD_LIBRARY_PATH:-}"
failing() { # NAME CODE CALL K ERRNO [EVER]
    truncate -s 0 counters
    truncate -s 65536 counters
    # shellcheck disable=SC2086
    env LD_PRELOAD=libfault.so FAULT_SHARED="$work/counters" FAULT_UNDER="$work/scratch" FAULT_CALL="$3" FAULT_K="$4" FAULT_ERRNO="$5" \
        ${6:+FAULT_EVER=1} "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=6 train.checkpoint_steps=2 --run-dir . --name "$1" \
        $both train.scratch_dir="$work/scratch" >out 2>log
    got=$?
    [ "$got" = "$2" ] || fail "$1: exit $got, expected $2"
}
calls() { # KIND: how many the last run has made; failed: how many of them failed
    python3 - "$1" <<'END'
import struct, sys
data = open("counters", "rb").read()
names = [data[i : i + 16].split(b"\0")[0].decode() for i in range(0, 512, 16)] + ["failed"]
print(struct.unpack("33Q", data[512:776])[names.index(sys.argv[1])])
END
}
stopped() { # NAME: in a step, and it continues
    grep -q "^meopt: .*$work/scratch/.meopt-weights-" log || fail "$1: the file is not reported"
    grep -q 'train.scratch_dir' log || fail "$1: what to do next is not reported"
    case $(wc -l <"$1/metrics.jsonl") in [2-5]) ;; *) fail "$1: not in the middle" ;; esac
    resume "$1"
    same "$1"
}
failing well 0 sync 1000000 5
same well
reads=$(($(calls read) / 2)) writes=$(($(calls write) - 6)) # in the middle; after those of loading
while read -r name call k error; do
    failing "$name" 0 "$call" "$k" "$error"
    [ "$(calls failed)" = 1 ] || fail "$name: nothing failed"
    case $error in 0) ;; *) grep -q "^warning: .*$work/scratch" log || fail "$name: not reported" ;; esac
    same "$name"
done <<TABLE
read_once read $reads 5
read_short read $reads 0
write_once write $writes 5
write_full_once write $writes 28
write_short write $writes 0
TABLE
failing read_ever 1 read $reads 5 ever
stopped read_ever
failing write_ever 1 write $writes 5 ever
stopped write_ever
failing full 5 write $writes 28 ever
stopped full
failing loading 5 write 5 28
failing no_room 5 truncate 1 28
grep -q "^meopt: .*$work/scratch" log || fail "no room: not reported"
[ -z "$(ls -A scratch)" ] || fail "something is left: $(ls -A scratch)"
