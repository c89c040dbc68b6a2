#!/bin/sh
# The card kit runs from a directory that was moved, on the emulated cards of NVIDIA, AMD and Hygon: card.json has each part, passed or skipped
# for the right reason. A wrong code object, a kernel that computes wrongly and a test that is missing are failures. MEOPT_LONG=1: all parts, and
# a root with nothing but a shell and its tools.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
if grep -q '^MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt"; then
    echo "skipped: a kit of sanitizers"
    exit 77
fi
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt")
[ -e "$MEOPT_BUILD/static/whole" ] || [ "${MEOPT_LONG:-}" ] ||
    { echo "no static libraries: sh configs/packaging/static_libs.sh $MEOPT_BUILD/static $cc"; exit 77; }
make() { # KERNELS
    XZ='gzip -1' sh "$MEOPT_SOURCE/configs/packaging/card_kit.sh" "$MEOPT_BUILD" kit "$cc" "$work" "$1" >out 2>err
}
mkdir none
make none && fail "a kit without code objects"
grep -q MEOPT_GPU_ARCHS err || fail "it does not say how to build code objects"
make "$fakes/fake_kernels" || fail "the kit"
grep -q 'gfx90a .*sm_90' out || fail "the archs are not named"
tar -xf kit.tar.xz
mkdir "a place"
mv kit "a place/moved"
kit="$work/a place/moved"
unset MEOPT_KERNELS HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES || true
export OUT="$work/results"
some='queues golden_cross_entropy quickstart_dinov2 qwen3_0_6b torch memcheck_attention'
run() { # CODE OPTION...
    want=$1
    shift
    exits "$want" sh "$kit/run.sh" "$@" >out 2>err || { tail -n 5 results/logs/*.txt >&2; fail "$*: exit $code, expected $want"; }
}
right() { # EXPRESSION of j, card.json, p, its parts by name, and s, their status
    python3 - "$1" <<'PY' || fail "card.json: $1"
import json, sys
j = json.load(open("results/card.json"))
p = {x["name"]: x for x in j["parts"]}
s = {n: x["status"] for n, x in p.items()}
assert set(j) == {"meopt", "device", "emulated", "began", "seconds", "limit_seconds", "host", "code_objects", "card", "parts", "counts"}, set(j)
assert sum(j["counts"].values()) == len(p) > 40 and all(j["counts"][n] == list(s.values()).count(n) for n in j["counts"]), j["counts"]
assert all(x["status"] == "passed" or x["reason"] for x in p.values()), p
assert eval(sys.argv[1]), (sys.argv[1], [x for x in p.values() if x["reason"] != "not chosen by --parts"])
PY
}
ran='all(s[n] == "passed" for n in ("card", "queues", "golden_cross_entropy", "quickstart_dinov2", "qwen3_0_6b"))'
card() { # DEVICE ARCH
    run 0 --device "$1" --parts "$some"
    right "$ran and j['device'] == '$1' and j['emulated'] and '$2' in j['code_objects'] and j['card']['memory_bytes'] > 8e9"
    right 'p["quickstart_dinov2"]["figures"]["again_same_bytes"] and p["quickstart_dinov2"]["figures"]["loss_difference"] < 1e-2'
    right 'p["qwen3_0_6b"]["figures"]["bench"]["peak_bytes"] == p["qwen3_0_6b"]["figures"]["planned_bytes"] > 0'
    right 's["torch"] == s["memcheck_attention"] == s["ops"] == "skipped" and "--parts" in p["ops"]["reason"] and "torch" in p["torch"]["reason"].lower()'
    [ "$(wc -l <results/table.txt)" -le 24 ] && [ "$(wc -L <results/table.txt)" -le 150 ] || fail "the table does not fit on a screen"
}
card hip:0 gfx90a
right 'j["card"]["arch"] in ("", "gfx90a") and "NVIDIA" in p["memcheck_attention"]["reason"]'
MEOPT_HIP_LIBRARY="$fakes/libfake_dcu.so" card hip:0 gfx928
card cuda:0 sm_90
right 'j["card"]["arch"] == "sm_90" and "emulated" in p["memcheck_attention"]["reason"]'
python3 "$MEOPT_SOURCE/tests/bench/card_results.py" results/card.json >section
grep -q '^## .*Emulated' section && grep -q '^| quickstart_dinov2 | 2 |.*same bytes | same bytes |$' section && grep -q '^| qwen3_0_6b | 2 | ' section || fail "the section"

# The first card that can be used; no time; wrong options; no card.
MEOPT_CUDA_LIBRARY=/nowhere.so run 0 --time 5
right 'j["device"] == "hip:0" and j["counts"]["passed"] == 1 and s["ops"] == "skipped" and "time" in p["ops"]["reason"]'
run 2 --device cpu
run 2 --time soon
MEOPT_CUDA_LIBRARY=/nowhere.so MEOPT_HIP_LIBRARY=/nowhere.so run 6
right 's["card"] == "failed" and "/nowhere.so" in p["card"]["reason"] and j["counts"]["skipped"] == len(p) - 1'

# A card with the tools of its maker, in PATH: its facts, that it was throttled, and what compute-sanitizer finds.
mkdir tools
cat >tools/nvidia-smi <<'SH'
#!/bin/sh
case "$*" in
*-lms*) while :; do echo "1234, 300.5, 1500, 60, 0x0000000000000004" && sleep 0.05; done ;;
*-q*03:00.0* | *03:00.0*) echo "Card of a test, 580.65" ;;
esac
SH
printf '#!/bin/sh\necho ERROR: one race\nexit 9\n' >tools/compute-sanitizer
cat >tools/python <<'SH'
#!/bin/sh
[ "$1" = -c ] || echo '{"workload": "dinov2", "batch": 32, "blocks_compiled": true, "step_ms": 640.0, "peak_bytes": 5}
{"meopt_torch_same_bits": '"$SAME"'}'
SH
chmod +x tools/*
path=$PATH
export FAKE_NAME="Card of a test" PATH="$work/tools:$PATH"
export SAME=true MEOPT_PYTHON="$work/tools/python"
run 1 --device cuda:0 --parts 'queues torch racecheck_rows'
right 'not j["emulated"] and "580.65" in j["card"]["system"] and "0x0000000000000004" in j["card"]["throttling"]'
right 's["queues"] == "passed" and s["racecheck_rows"] == "failed" and "exit 9" in p["racecheck_rows"]["reason"]'
right 's["torch"] == "passed" and p["torch"]["figures"][0]["step_ms"] == 640'
export SAME=false
run 1 --device cuda:0 --parts torch
right 's["torch"] == "failed" and p["torch"]["figures"][1]["meopt_torch_same_bits"] is False'
unset FAKE_NAME MEOPT_PYTHON
export PATH="$path"

# Planted faults.
export FAKE_WRONG=cross_entropy
run 1 --device cuda:0 --parts golden_cross_entropy
unset FAKE_WRONG
right 's["golden_cross_entropy"] == "failed" and "exit 1" in p["golden_cross_entropy"]["reason"] and j["counts"]["failed"] == 1'
rm "$kit/tests/queues"
run 1 --device cuda:0 --parts queues
right 's["queues"] == "failed" and "tests/queues" in p["queues"]["reason"] and j["counts"]["failed"] == 1'
ln -s ../bin/card-tests "$kit/tests/queues"
mv "$kit/lib/meopt/meopt-sm_90.co" kept
echo 'emulated sm_80' >"$kit/lib/meopt/meopt-sm_90.co"
run 6 --device cuda:0 --parts queues
right 's["card"] == "failed" and "sm_90" in p["card"]["reason"] and s["queues"] == "skipped"'
mv kept "$kit/lib/meopt/meopt-sm_90.co"
[ "${MEOPT_LONG:-}" ] || exit 0

# All parts.
for library in libfake_cuda.so libfake_amdhip64.so libfake_dcu.so; do
    device=hip:0
    [ $library != libfake_cuda.so ] || device=cuda:0
    MEOPT_HIP_LIBRARY="$fakes/$library" run 0 --device $device --time 7200
    right 'j["counts"]["failed"] == j["counts"]["timeout"] == 0 and all(s[n] == "passed" or x["kind"] == "sanitize" or n == "torch" for n, x in p.items())'
done

# A root with the tools that run.sh starts, their libraries, the kit and the emulated card; no Python, compiler or package.
root=$work/root
mkdir -p "$root/bin" "$root/tmp" "$root/proc" "$root/dev" "$root/fakes"
for tool in sh awk cat cmp cp cut date dirname env find grep head kill mkdir mktemp mv nproc paste rm sed sleep sort tail tee timeout tr uname uniq wc xargs; do
    file=$(command -v $tool) || continue
    case $file in /*) cp -L "$file" "$root/bin/$tool" ;; esac
done
cp "$fakes/libfake_cuda.so" "$root/fakes/"
for file in "$root"/bin/* "$root"/fakes/* "$kit"/bin/*; do ldd "$file" | sed -n 's/^[^/]*\(\/[^ ]*\) (.*/\1/p'; done | sort -u | while read -r file; do
    case $file in "$work"*) continue ;; esac
    mkdir -p "$root${file%/*}" && cp -L "$file" "$root$file"
done
cp -R "$kit" "$root/kit"
code=0
unshare --map-root-user --mount --pid --fork sh -c 'mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" && exec chroot "$1" /bin/sh -c :' sh "$root" \
    2>err || code=$?
[ $code = 0 ] || { echo "the bare root was not tried: $(cat err)"; exit 77; }
unshare --map-root-user --mount --pid --fork sh -c 'mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" && exec chroot "$1" /bin/env -i PATH=/bin \
    MEOPT_CUDA_LIBRARY=/fakes/libfake_cuda.so MEOPT_CUBLAS_LIBRARY=none MEOPT_CUBLASLT_LIBRARY=none OUT=/tmp/results /bin/sh /kit/run.sh --device cuda:0 --parts "$2"' \
    sh "$root" "$some" >out 2>err || fail "the kit in a bare root"
rm -rf results && cp -R "$root/tmp/results" results
right "$ran and 'no PyTorch' in p['torch']['reason']"
