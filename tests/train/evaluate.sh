#!/bin/sh
# Evaluation of a classifier on data.val: each train.eval_every epochs and at the end; the weights are those of a run without it; the best
# checkpoint stays, also after kills; a stop ends an evaluation; what cannot be evaluated is refused before training. Equal figures of ranks:
# equal_runs.sh.
set -u
. "$MEOPT_SOURCE/tests/train/classifier.sh"
arrange 36 images cat dog emu
arrange 14 val cat dog emu
cat >vit.yaml <<'END'
model: {family: dinov2, init: random, width: 32, depth: 3, heads: 2, hidden: 64, patch: 7, drop_path: 0.2}
data: {root: images, val: val, image_size: 28, workers: 1, mixup: 0.2}
train: {objective: classify, global_batch: 12, micro_batch: 4, batch_size: 12, epochs: 3, checkpoint_keep: 1, label_smoothing: 0.1}
optim: {lr: 2.0e-2, warmup_steps: 2, head_lr_scale: 1}
device: {type: cpu}
END
train one 0
train without 0 train.eval_every=0
cmp one/ckpt/step-00000009/model.safetensors without/ckpt/step-00000009/model.safetensors || fail "evaluation changes the weights"
cmp one/ckpt/step-00000009/optimizer.bin without/ckpt/step-00000009/optimizer.bin || fail "evaluation changes the states"
grep -q val_loss without/metrics.jsonl && fail "without: evaluated"
train stopped 10 --stop-after 4 # in the second epoch
"$MEOPT" train --resume stopped --no-dashboard >out 2>log || fail "stopped: exit $? on resume"
same one stopped
train second 0 train.eval_every=2
"$MEOPT" compare one --json >out 2>log || fail "compare: exit $?"
grep -q best_val_top1 out || fail "compare: no validation"

# Killed at each rename of the checkpoints' files, best.json among them, and resumed: the best evaluation is not lost.
export LD_LIBRARY_PATH="$MEOPT_BUILD/tests" FAULT_UNSYNCED=1
lost=0
for k in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf killed
    head -c 65536 /dev/zero >shared
    env LD_PRELOAD=libfault.so FAULT_UNDER="$(pwd -P)/killed/ckpt" FAULT_SHARED="$(pwd -P)/shared" FAULT_CALL=rename FAULT_K=$k FAULT_KILL=1 \
        "$MEOPT" train vit.yaml --run-dir . --name killed --no-dashboard >out 2>log && break
    [ -e killed/ckpt/best.json ] && lost=$((lost + 1))
    "$MEOPT" train --resume killed --no-dashboard >out 2>log || fail "killed at rename $k: exit $? on resume"
    cp killed/ckpt/best.json best.$k.json
    step=$(sed 's/^{"step":\([0-9]*\).*/\1/' best.$k.json)
    [ -e "killed/ckpt/$(printf 'step-%08d' "$step")/MANIFEST.json" ] || fail "killed at rename $k: the best checkpoint is gone"
done
[ $lost -ge 3 ] || fail "only $lost kills after the first evaluation"

# A stop during the evaluation of step 3 ends it: the step is saved, its figures are left out, and the rest is that of the undisturbed run.
for ranks in 1 2; do
    env LD_PRELOAD=libfault.so FAULT_UNDER="$(pwd -P)/val" FAULT_SLOW=open:1000000:/val/ \
        "$MEOPT" train vit.yaml --run-dir . --name ended$ranks --no-dashboard --workers $ranks >out 2>log &
    pid=$!
    wait_for 60 grep -qs '"step":2,' ended$ranks/metrics.jsonl || fail "ended: no second step"
    wait_for 60 grep -qs '"phase":"evaluating"' ended$ranks/live.json || fail "ended: no evaluation"
    kill -TERM $pid
    wait $pid
    got=$?
    [ $got = 10 ] || fail "ended: exit $got, expected 10"
    [ -e ended$ranks/ckpt/step-00000003/MANIFEST.json ] || fail "ended: step 3 is not saved"
    "$MEOPT" train --resume ended$ranks --no-dashboard >out 2>log || fail "ended: exit $? on resume"
    cmp one/ckpt/step-00000009/model.safetensors ended$ranks/ckpt/step-00000009/model.safetensors || fail "ended: other weights"
done
python3 - <<'END' || fail "metrics"
import glob, json, math, os
def lines(run): return {l["step"]: l for l in map(json.loads, open(run + "/metrics.jsonl"))}
def best(name): return [json.load(open(name))[key] for key in ("metric", "step", "value")]
one, second = lines("one"), lines("second")
assert sorted(s for s in one if "val_loss" in one[s]) == [3, 6, 9], one
assert sorted(s for s in second if "val_loss" in second[s]) == [6, 9]
for step in (6, 9):
    for key in ("val_loss", "val_top1", "val_top5"): assert second[step][key] == one[step][key]
for line in one.values():
    if "val_loss" not in line: continue
    assert math.isfinite(line["val_loss"]) and line["val_top5"] == 1, line
    assert abs(line["val_top1"] * 14 - round(line["val_top1"] * 14)) < 1e-6, line # 14 images
assert len({line["val_top1"] for line in one.values() if "val_top1" in line}) > 1 # not all equal
value, step = max((one[s]["val_top1"], -s) for s in (3, 6, 9))
for run in ("one", "stopped"):
    metric, at, found = best(run + "/ckpt/best.json")
    assert at == -step and metric == "val_top1" and abs(found - value) < 1e-6, (run, at, metric, found, value, step)
    kept = sorted(n for n in os.listdir(run + "/ckpt") if n.startswith("step-"))
    assert kept == sorted({"step-%08d" % -step, "step-00000009"}), kept # checkpoint_keep 1, and the best one
for name in glob.glob("best.*.json"): assert best(name) == best("one/ckpt/best.json"), (name, best(name))
for run in ("ended1", "ended2"):
    ended = lines(run)
    assert sorted(s for s in ended if "val_loss" in ended[s]) == [6, 9], ended
    for step in (6, 9): assert ended[step]["val_loss"] == one[step]["val_loss"]
END

# The best checkpoint stays whatever is saved after it.
train kept 10 --stop-after 3 train.checkpoint_steps=1
sed -i 's/"value":[^}]*/"value":1.5/' kept/ckpt/best.json
"$MEOPT" train --resume kept --no-dashboard >out 2>log || fail "kept: exit $? on resume"
[ -e kept/ckpt/step-00000003/MANIFEST.json ] || fail "kept: the best checkpoint was removed"
[ -e kept/ckpt/step-00000009/MANIFEST.json ] || fail "kept: no last checkpoint"
[ ! -e kept/ckpt/step-00000008 ] || fail "kept: an old checkpoint stays"

# A file that cannot be opened for a moment is neither missing nor another one: no best checkpoint is removed, and no other is evaluated.
rm -rf kept
train kept 10 --stop-after 5 train.checkpoint_steps=1
sed -i 's/"step":[0-9]*,\(.*\)"value":[^}]*/"step":3,\1"value":1.5/' kept/ckpt/best.json
[ -e kept/ckpt/step-00000003/MANIFEST.json ] || fail "the evaluated step is not kept"
once() { # K COMMAND...: the K-th open below kept/ckpt fails once; 1 if there are fewer
    head -c 65536 /dev/zero >shared
    k=$1
    shift
    env LD_PRELOAD=libfault.so FAULT_UNDER="$(pwd -P)/kept/ckpt" FAULT_SHARED="$(pwd -P)/shared" FAULT_CALL=open FAULT_K="$k" FAULT_ERRNO=5 "$@" >out 2>log
}
for k in 1 2 3 4; do
    once $k "$MEOPT" eval kept --json && ! grep -q '"step": 3,' out && fail "eval: another checkpoint after a failed open $k"
done
cp -r kept before
for k in 16 19 22 25; do
    rm -rf kept
    cp -r before kept
    once $k "$MEOPT" train --resume kept --no-dashboard --stop-after 6 || true
    [ -e kept/ckpt/step-00000003/MANIFEST.json ] || fail "the best checkpoint is gone after a failed open $k"
    grep -q '"step":3,' kept/ckpt/best.json || fail "another best checkpoint after a failed open $k: $(cat kept/ckpt/best.json)"
done

# A save that fails at the step of the best evaluation is tried again; if it fails for good, the loss is reported, and best.json names a
# step that exists.
best_step() { sed 's/^{"step":\([0-9]*\).*/\1/' "$1/ckpt/best.json"; }
best=$(best_step one)
for ever in '' FAULT_EVER=1; do
    rm -rf failing
    head -c 65536 /dev/zero >shared
    # shellcheck disable=SC2086
    env LD_PRELOAD=libfault.so FAULT_UNDER="$(printf '%s/failing/ckpt/step-%08d.partial' "$(pwd -P)" "$best")" FAULT_SHARED="$(pwd -P)/shared" \
        FAULT_CALL=open FAULT_K=1 FAULT_ERRNO=28 $ever "$MEOPT" train vit.yaml --run-dir "$(pwd -P)" --name failing --no-dashboard >out 2>log
    got=$?
    if [ "$ever" ]; then
        grep -q "^warning: .*\<$best\>.*val_top1" log || fail "the lost best evaluation is not reported"
        [ "$best" = 9 ] || [ $got = 0 ] || fail "exit $got after a failed save"
        [ ! -e failing/ckpt/best.json ] || [ "$(best_step failing)" != "$best" ] || fail "best.json names the checkpoint that could not be saved"
    else
        [ $got = 0 ] && [ "$(best_step failing)" = "$best" ] || fail "a save that failed once: exit $got, best $(cat failing/ckpt/best.json)"
        ! grep -q saving_paused failing/events.jsonl || fail "a save that failed once pauses saving"
    fi
    [ ! -e failing/ckpt/best.json ] || [ -e "failing/ckpt/$(printf 'step-%08d' "$(best_step failing)")/MANIFEST.json" ] ||
        fail "best.json names no checkpoint: $(cat failing/ckpt/best.json)"
done

# Scores of other validation images are not compared.
train scores 10 --stop-after 4
cp -r val val.before
rm "$(find val/dog -type f | head -n 1)"
"$MEOPT" train --resume scores --no-dashboard >out 2>log
[ $? = 7 ] && grep -q 'force-resume data.val' log || fail "data.val has fewer images: not refused"
"$MEOPT" train --resume scores --no-dashboard --force-resume data.val >out 2>log || fail "data.val accepted: exit $?"
grep '"event":"resumed"' scores/events.jsonl | tail -n 1 | grep -q '"val_crc32c"' || fail "data.val accepted: not in events"
python3 -c 'import json, sys; best = json.load(open("scores/ckpt/best.json")); sys.exit(best["step"] < 5 or best.get("before", best)["step"] < 5)' ||
    fail "data.val accepted: the best is compared with that of other images"
"$MEOPT" train --resume scores --no-dashboard --steps 12 >out 2>log || fail "data.val: exit $?, it is what the run is now"
rm -r val
mv val.before val

# Refused before training: a class only in validation, no directory.
mkdir val/gnu
cp val/cat/* val/gnu/
train unknown 1
grep -q gnu log || fail "the class is not named"
rm -r val/gnu
train missing 7 data.val=nowhere
