#!/bin/sh
# plan --explain and the memory tab divide a class of memory into its tensors, which add up to it, each with the key that shrinks it.
# Setting that key saves the stated memory. A run that does not fit prints the same, and a command that fits. Also cards by name, and hours
# per epoch.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
# adds_up PLAN.json: the tensors of each class make up its bytes
adds_up()
{
    python3 - "$1" <<'PY'
import json, sys
plan = json.load(open(sys.argv[1]))
for name, bytes in plan["classes"].items():
    rows = [r for r in plan["tensors"] if r["class"] == name]
    assert abs(sum(r["bytes"] for r in rows) - bytes) <= 64, name
    rest = sum(r["bytes"] for r in rows if r["name"] == "padding and the rest")
    assert rest <= 0.01 * bytes + 16384, (name, rest, bytes)
PY
}
for config in "$MEOPT_SOURCE/configs/eva_clip.yaml" configs/quickstart_dinov2.yaml; do
    "$MEOPT" plan "$config" --explain all --json >all.json
    for class in activations optimizer; do "$MEOPT" plan "$config" --explain $class --json >$class.json; done
    adds_up all.json || fail "$config"
    python3 - "$MEOPT" "$config" <<'PY' || fail "$config"
import json, subprocess, sys
plan = json.load(open("all.json"))
for name in "activations", "optimizer":
    assert json.load(open(name + ".json"))["tensors"] == [r for r in plan["tensors"] if r["class"] == name]
blocks = {r["tensors"] for r in plan["tensors"] if r["name"].startswith("blocks.*.attn.proj.weight") and r["class"] == "teacher"}
assert blocks and min(blocks) > 1, blocks
row = next(r for r in plan["tensors"] if r["name"] == "blocks.*.queries, keys, values" and r["keys"])
then = json.loads(subprocess.run([sys.argv[1], "plan", sys.argv[2], *row["keys"].split(), "--explain", "activations", "--json"], check=True, stdout=subprocess.PIPE).stdout)
left = sum(r["bytes"] for r in then["tensors"] if r["name"] == row["name"])
assert row["bytes"] - left == row["saved_bytes"] > 0, (row, left)
assert abs(then["step_flops"] / plan["step_flops"] - row["relative_compute"]) < 1e-9
assert then["peak_bytes"] < plan["peak_bytes"]
PY
done
# a cached teacher is freed before the student is created, and explained all the same
"$MEOPT" plan "$MEOPT_SOURCE/configs/eva_clip.yaml" train.cache_teacher=true --explain all --json >cached.json
adds_up cached.json || fail "a cached teacher"
"$MEOPT" plan "$MEOPT_SOURCE/configs/eva_clip.yaml" --explain activations --card K100_AI >out 2>&1 || fail "--card K100_AI"
grep -q '^fits 65536.0 MiB (--card K100_AI)' out || fail "the card's size"
grep -q 'x 40 *blocks.\*.queries, keys, values .* train\.' out || fail "no tensors by block"
exits 7 "$MEOPT" plan "$MEOPT_SOURCE/configs/eva_clip.yaml" train.batch_size=128 --card v100-16g >out 2>&1 || fail "does not fit: exit $code"
exits 2 "$MEOPT" plan configs/quickstart.yaml --card k100ai >out 2>&1 && grep -q 'k100-ai 64G' out && grep -q 'k100-ai?' out || fail "an unknown card"
"$MEOPT" plan configs/quickstart_dinov2.yaml --step-ms 360000 >out 2>&1
grep -q '^epoch    1 h: 160 images' out || { cat out; fail "hours per epoch"; }

# no room
got=0
limit=$("$MEOPT" plan configs/quickstart_dinov2.yaml --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["peak_bytes"] // 1024 - 1536)')
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=4 device.memory_limit="${limit}K" --run-dir "the runs" --name small >out 2>log || got=$?
[ "$got" = 12 ] || fail "no room: exit $got"
grep -q 'MiB, step x 1.0[0-9]: .*train.recompute=block' log || fail "what would need less is not reported"
line=$(sed -n 's/.*: \(meopt train .*\)/\1/p' log)
[ -n "$line" ] || { cat log; fail "no line to type"; }
PATH="$(dirname "$MEOPT"):$PATH"
sh -c "$line" >out 2>log || { cat log; fail "$line"; }

# the memory tab
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=4 --run-dir runs --name one >out 2>log
for size in '80 24' '132 43'; do
    # shellcheck disable=SC2086
    terminal $size C.UTF-8 "NO_COLOR=1 HOME='$dir'" "'$MEOPT' attach one"
    await 'done'
    keys 3
    await 'class .*planned'
    keys Enter
    await '^planned, blocks together'
    await 'K *x2 *blocks.\*.*weight'
    keys Down Down Down
    await 'x2 *blocks.\*.queries, keys'
    # the keys are whole, so that they can be typed
    await '\(^\|  \) *-[0-9.]*K x1\.0[0-9] train\.micro_batch=4 optim\.clip_mode=auto *$'
    keys Up
    await 'moments of blocks'
    keys Escape
    await 'class .*planned'
    keys q
    await 'status 0'
    stop
done
