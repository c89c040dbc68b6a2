#!/bin/sh
# The content of weight files and images belongs to a run. A teacher, a student or an image with different bytes but the same name, size and
# time is refused with its file name, on one of two ranks and on resume.
set -eu
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
few_images 32
label=
fail() { echo "FAILED: $label: $*" >&2; tail -n 5 log* >&2; exit 1; }
teacher=sample/ModelWeight/dinov2/dinov2_vitg14_pretrain.pth student=sample/ModelWeight/dinov2/dinov2_vitl14_pretrain.pth
image=$(find sample/COCO2014 -name '*.jpg' | sort | head -n 1)
cp -rp sample original
alter() { python3 - "$@" <<'END' # FILE: one value of its largest tensor, or one byte of an image; size, time and checksums stay right
import os, struct, sys, zipfile, zlib
path = sys.argv[1]
data, status = bytearray(open(path, "rb").read()), os.stat(path)
if path.endswith(".pth"):
    member = max(zipfile.ZipFile(path).infolist(), key=lambda m: m.file_size)
    at = member.header_offset + 30 + sum(struct.unpack_from("<2H", data, member.header_offset + 26))
    old, data[at + member.file_size // 2 // 4 * 4 + 2] = member.CRC, data[at + member.file_size // 2 // 4 * 4 + 2] ^ 1
    data = data.replace(struct.pack("<I", old), struct.pack("<I", zlib.crc32(data[at:at + member.file_size])))
else: data[len(data) // 2] ^= 1
open(path, "r+b").write(data)
os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
assert os.stat(path).st_size == status.st_size
END
}
restore() { cp -p "original/${1#sample/}" "$1"; }
begin() { # NAME ARGUMENT...
    name=$1 code=0
    shift
    "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=8 train.batch_size=4 data.image_size=28 --stop-after 2 --run-dir . --name "$name" "$@" >out 2>log || code=$?
    [ $code = 10 ] || fail "the first steps: exit $code"
}
resume() { # CODE NAME ARGUMENT...
    want=$1 name=$2
    shift 2
    exits "$want" "$MEOPT" train --resume "$name" "$@" >out 2>log || fail "exit $code, expected $want"
}
refused() { # NAME FILE KEY [IMAGE]
    lines=$(wc -l <"$1/metrics.jsonl")
    resume 7 "$1"
    grep -q "^meopt: .*$(basename "$2"): .*${4:-}" log || fail "the file is not named"
    grep -q -- "--force-resume $3" log || fail "the option that accepts it is not named"
    [ "$(wc -l <"$1/metrics.jsonl")" = "$lines" ] || fail "the run was touched"
}

label="another teacher"
begin run
begin cached train.cache_teacher=true
cksum cached/teacher.rows >rows
label="a read error of the cached outputs" # the first read that fails and is theirs: they are neither lost nor another teacher's
for k in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    rm -rf unread shared
    cp -r cached unread
    head -c 1048576 /dev/zero >shared
    env LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so FAULT_UNDER="$(pwd -P)/unread" FAULT_SHARED="$(pwd -P)/shared" \
        FAULT_CALL=read FAULT_K=$k FAULT_ERRNO=5 "$MEOPT" train --resume unread --stop-after 3 >out 2>log || :
    cmp -s cached/teacher.rows unread/teacher.rows || fail "read $k: the file is another"
    ! grep -q 'teacher.rows' log || break
done
grep -q '^warning: .*teacher.rows: .*Input/output error' log || fail "not reported"
rm -rf unread
alter $teacher
refused run $teacher model_t.weight
label="another teacher, cached"
refused cached $teacher model_t.weight
cksum cached/teacher.rows | cmp - rows || fail "its outputs were computed anew"
label="another teacher, accepted"
resume 10 run --force-resume model_t.weight --stop-after 3
grep -q "^warning: .*$(basename $teacher)" log || fail "not reported"
grep '"event":"resumed"' run/events.jsonl | tail -n 1 | grep -q '"teacher_crc32c":\["[0-9a-f]*","[0-9a-f]*"\]' || fail "not in events"
resume 10 run --stop-after 4
! grep -q "^warning: .*$(basename $teacher)" log || fail "it is not what the run is now"
restore $teacher
refused run $teacher model_t.weight
label="a run of an older version"
python3 - run/meta.json <<'END'
import json, sys
meta = json.load(open(sys.argv[1]))
json.dump({k: v for k, v in meta.items() if k[:8] not in ("teacher_", "student_", "data_sam")}, open(sys.argv[1], "w"))
END
resume 10 run --stop-after 5
alter $teacher
refused run $teacher model_t.weight
restore $teacher
label="a run of another layout"
sed -i 's/"version": 1,/"version": 2,/' run/meta.json
"$MEOPT" train --resume run >log 2>&1 && fail "resumed" || [ $? = 3 ] || fail "exit code"
grep -q 'meta.json: .*2.*1' log && grep -q '"version": 2,' run/meta.json || fail "not refused by its layout, or written over"
sed -i 's/"version": 2,/"version": 1,/' run/meta.json
label="another student"
alter $student
refused run $student model_s.weight
cp $student elsewhere.pth
restore $student
resume 10 run model_s.weight="$PWD/elsewhere.pth" --stop-after 6

label="another image"
alter "$image"
refused run COCO2014 data.root "$(basename "$image")"
resume 10 run --force-resume data.root --stop-after 7
grep -q "^warning: .*$(basename "$image")" log || fail "not reported"
restore "$image"

label="token files"
mkdir tokens
python3 - <<'END'
import array, struct
lengths = [997] * 400 + [1202] # 800,004 bytes: four windows, whose distance is no whole number
array.array("H", (i * 7 % 250 for i in range(sum(lengths)))).tofile(open("tokens/a.bin", "wb"))
with open("tokens/a.idx", "wb") as f:
    f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) + struct.pack(f"<{len(lengths)}i", *lengths))
    f.write(b"".join(struct.pack("<q", 2 * sum(lengths[:i])) for i in range(len(lengths))))
    f.write(struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))
open("tokens/a.labels", "wb").write(b"MEOPTLBL" + struct.pack("<Q", sum(lengths)) + b"\xff" * ((sum(lengths) + 7) // 8))
END
cat >language.yaml <<'END'
model: {family: gpt2, init: random, vocabulary: 256, context: 32, width: 16, depth: 1, heads: 2}
data: {root: tokens, documents: apart}
train: {objective: language, steps: 9, batch_size: 2}
device: {type: cpu}
END
cp -rp tokens tokens.before
for root in tokens tokens/a.bin; do
    name=text-$(basename $root)
    "$MEOPT" train language.yaml data.root=$root --stop-after 2 --run-dir . --name "$name" >out 2>log || [ $? = 10 ] || fail "the first steps"
    for part in bin:800002 bin:590000 bin:300001 idx:700 labels:300; do # document ends and labels, too, and tokens anywhere in the file
        python3 -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(int(sys.argv[2])); b = f.read(1); f.seek(-1, 1); f.write(bytes([b[0] ^ 1]))' "tokens/a.${part%:*}" "${part#*:}"
        resume 7 "$name"
        grep -q "a.${part%:*} has different bytes" log || { [ "${part%:*}" = idx ] && grep -q a.idx log; } || fail "$part of $root: not named"
        cp -p tokens.before/* tokens/
    done
    resume 10 "$name" --stop-after 3
done

label="shards"
begin first
mkdir student
cp first/ckpt/step-00000002/model.safetensors student/
begin shards model_s.weight="$PWD/student" model_t.place=streamed
split() { python3 - student <<'END'
import json, os, struct, sys
data = open("student/model.safetensors", "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
names, where = sorted(k for k in header if k != "__metadata__"), {}
for part, chosen in enumerate((names[::2], names[1::2])):
    rows, at, body, file = {"__metadata__": header.get("__metadata__", {})}, 0, b"", f"model-0000{part + 1}-of-00002.safetensors"
    for k in chosen:
        begin, end = header[k]["data_offsets"]
        rows[k] = dict(header[k], data_offsets=[at, at + end - begin])
        at, body, where[k] = at + end - begin, body + data[8 + n + begin:8 + n + end], file
    text = json.dumps(rows).encode()
    open("student/" + file, "wb").write(struct.pack("<Q", len(text)) + text + body)
json.dump({"weight_map": where}, open("student/model.safetensors.index.json", "w"))
os.remove("student/model.safetensors")
END
}
split
resume 10 shards --stop-after 3 # the same values, in other files
alter student/model-00002-of-00002.safetensors
refused shards student model_s.weight

# Two ranks, as of two hosts whose disks differ under one name.
export FAKE_CARDS=2 FAKE_NCCL_PCIE=1 MEOPT_RCCL_LIBRARY="$fakes/libfake_rccl.so" MEOPT_RANKS_ADDRESS=127.0.0.1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
cp -rp original there
mkdir there/sample
mv there/COCO2014 there/ModelWeight there/sample/
here=/proc/self/cwd
rank() { # RANK: $started
    RANK=$1 "$MEOPT" train "$work/configs/quickstart_dinov2.yaml" model_t.weight=$here/$teacher model_s.weight=$here/$student data.root=$here/sample/COCO2014 \
        train.global_batch=4 train.micro_batch=1 train.batch_size=1 train.steps=1 data.image_size=28 device.type=hip device.cards="$1" --run-dir "$work/runs" --name "$name" \
        >"$work/log.$1" 2>&1 &
    started=$!
}
ranks() { # CODE NAME FILE
    name=$2 code=0
    rank 0
    zero=$started
    cd there
    rank 1
    cd ..
    wait "$started" || code=$?
    [ $code = "$1" ] || fail "rank 1: exit $code"
    exits "$1" wait "$zero" || fail "rank 0: exit $code"
    for log in log.0 log.1; do
        [ "$1" = 0 ] || grep "^meopt: .*$(basename "$3")" $log | grep -q 'rank 1 (host' || fail "$log: not named"
    done
}
label="equal ranks"
ranks 0 equal
for file in $teacher $student; do
    label="rank 1 with another $(basename "$file")"
    alter "there/$file"
    ranks 7 "other-$(basename "$file")" "$file"
    cp -p "original/${file#sample/}" "there/$file"
done
label="rank 1 with another image"
alter "there/$image"
ranks 7 images "$image"
echo "content is compared"
