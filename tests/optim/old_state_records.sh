#!/bin/sh
# A run resumes from a checkpoint whose 8-bit momentum has record version 3, and reports the conversion once, although the first tensor, an
# fp32 token, is not converted. It reports nothing for a current checkpoint. An unknown version is refused.
set -eu
command -v python3 >/dev/null || { echo "no python3" && exit 77; }
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 8
"$MEOPT" train "$work/configs/quickstart_dinov2.yaml" train.steps=4 train.batch_size=2 train.checkpoint_steps=2 train.checkpoint_keep=2 \
    optim.name=lion optim.preset=balanced --run-dir "$work" --name lion >"$work/log" 2>&1 || fail "no run"
rm -r lion/ckpt/step-00000004
cp -R lion today
cp -R lion unknown
cat >before.py <<'EOF'
import json, struct, sys
directory, magic = sys.argv[1], sys.argv[2].encode()
path = directory + "/optimizer.bin"
table = []
for i in range(256):
    for _ in range(8): i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    table.append(i)
def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data: crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF
old, new, at, changed = open(path, "rb").read(), b"", 0, 0
while at < len(old):
    size, = struct.unpack_from("<Q", old, at)
    record = bytearray(old[at + 8:at + 8 + size])
    at += 8 + size
    head, (m, v) = struct.unpack_from("<I", record, 8)[0], struct.unpack_from("<ii", record, 12)
    if (m, v) == (3, -1): # 8 bits, no second moment: a scale of one byte for each group's header of two
        assert record[:8] == b"MEOPTST4"
        m_bytes, v_bytes, scale_bytes = struct.unpack_from("<QQQ", record, head - 24)
        assert v_bytes == 0 and scale_bytes == m_bytes // 64 * 2
        struct.pack_into("<Q", record, head - 8, scale_bytes // 2)
        record[:8] = magic
        record[head + m_bytes:] = bytes([120] * (scale_bytes // 2))
        record += struct.pack("<I", crc32c(record))
        changed += 1
    new += struct.pack("<Q", len(record)) + record
assert changed
open(path, "wb").write(new)
manifest = json.load(open(directory + "/MANIFEST.json"))
manifest["files"]["optimizer.bin"] = {"bytes": len(new), "crc32c": crc32c(new)}
json.dump(manifest, open(directory + "/MANIFEST.json", "w"))
EOF
python3 before.py lion/ckpt/step-00000002 MEOPTST1
python3 before.py unknown/ckpt/step-00000002 MEOPTST9
said='^[a-z: ]*converting .*8-bit'
"$MEOPT" train --resume "$work/lion" >"$work/log" 2>&1 || fail "a checkpoint of version 3 does not continue"
[ "$(grep -c "$said" "$work/log")" = 1 ] || fail "not said once that momentum is converted"
"$MEOPT" train --resume "$work/today" >"$work/log" 2>&1 || fail "a checkpoint of today does not continue"
! grep -q "$said" "$work/log" || fail "said of a checkpoint of today"
status=0
"$MEOPT" train --resume "$work/unknown" >"$work/log" 2>&1 || status=$?
[ $status = 3 ] || fail "an unknown version: exit $status"
grep -q '^meopt: .*step-00000002/optimizer.bin' "$work/log" || fail "an unknown version: its file is not named"
