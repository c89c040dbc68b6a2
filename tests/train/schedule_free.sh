# schedule_free in training: evaluation, checkpoints, export and text use the average of the weights; neither an evaluation nor a resume
# changes a bit of the training; memory is that of the plan; what it cannot do is refused.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
export OMP_NUM_THREADS=1
mkdir sample configs
tar -xzf "$MEOPT_SOURCE/configs/sample/genesis.tar.gz" -C sample
cp "$MEOPT_SOURCE/configs/bytes.yaml" configs/
settings="optim.name=schedule_free optim.lr=1.0e-2 optim.warmup_steps=3 model.width=128 model.depth=2 model.heads=2 train.batch_size=4 train.eval_steps=4
    train.checkpoint_steps=8 train.log_every=1 device.type=cpu"
train() { # CODE NAME ARGUMENT...
    want=$1 name=$2 code=0
    shift 2
    # shellcheck disable=SC2086
    "$MEOPT" train configs/bytes.yaml --run-dir . --name "$name" --no-dashboard $settings "$@" >out 2>log || code=$?
    [ $code = "$want" ] || fail "$name: exit $code, expected $want: $(cat log)"
}
same() { # RUN RUN
    for file in model.safetensors optimizer.bin; do cmp "$1/ckpt/step-00000012/$file" "$2/ckpt/step-00000012/$file" || fail "$2: other $file than $1"; done
}
number() { # FILE KEY: its last value
    sed -nE "s/.*\"$2\": ?([-0-9.e+]+).*/\1/p" "$1" | tail -1
}
train 0 whole train.steps=12
train 0 unseen train.steps=12 data.val=
same whole unseen
train 0 parts train.steps=6
"$MEOPT" train --resume parts --no-dashboard train.steps=12 >out 2>log || fail "resume: $(cat log)"
same whole parts
for kind in "" optim.weights=bf16_sr "optim.offload=nvme train.micro_batch=2"; do
    # shellcheck disable=SC2086
    train 0 there train.steps=12 $kind
    # shellcheck disable=SC2086
    train 0 streamed train.steps=6 model.place=streamed $kind
    "$MEOPT" train --resume streamed --no-dashboard train.steps=12 >out 2>log || fail "resume of streamed weights: $(cat log)"
    same there streamed
    [ "$(number there/metrics.jsonl val_loss)" = "$(number streamed/metrics.jsonl val_loss)" ] || fail "streamed $kind: another evaluation"
    python3 - streamed <<'END' || fail "streamed $kind: memory"
import json, sys
card, plan = json.loads(open(sys.argv[1] + "/metrics.jsonl").readlines()[-1])["cards"][0], json.load(open(sys.argv[1] + "/plan.json"))
assert all(plan[k] == card[k] for k in ["classes", "file_classes"]) and plan["file_classes"]["weights"] > 0, (plan, card)
END
    rm -r there streamed
done
val=$(number whole/metrics.jsonl val_loss)
"$MEOPT" export whole --checkpoint last --out model.safetensors >out 2>log || fail "export: $(cat log)"
python3 - whole/metrics.jsonl whole/plan.json whole/ckpt/step-00000012 model.safetensors <<'END' || fail "weights or figures"
import json, struct, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
plan, card = json.load(open(sys.argv[2])), lines[-1]["cards"][0]
assert plan["peak_bytes"] == card["peak_bytes"] and plan["classes"] == card["classes"], (plan, card)
def tensors(path):
    data = open(path, "rb").read()
    size, = struct.unpack("<Q", data[:8])
    rows = json.loads(data[8:8 + size])
    return {n: (r["dtype"], data[8 + size + r["data_offsets"][0]:8 + size + r["data_offsets"][1]]) for n, r in rows.items() if n != "__metadata__"}
saved = tensors(sys.argv[3] + "/model.safetensors")
states = open(sys.argv[3] + "/optimizer.bin", "rb").read()
name, (dtype, x) = max(saved.items(), key=lambda item: len(item[1][1]))
assert dtype == "F32" and x not in states, "the model of the checkpoint is y"
exported = [b for n, (d, b) in tensors(sys.argv[4]).items() if n.endswith(name)]
assert exported == [x], "another model is exported"
END
"$MEOPT" eval whole --checkpoint last --json >eval.json 2>log || fail "eval: $(cat log)"
awk -v a="$(number eval.json val_loss)" -v b="$val" 'BEGIN { exit !(a > 0 && (a - b) ^ 2 < (1e-6 * b) ^ 2) }' || fail "eval $(number eval.json val_loss), training $val"
train 7 cosine train.steps=4 optim.schedule=cosine
train 7 average train.steps=4 train.ema=0.9
train 7 four train.steps=4 optim.state_m=4bit
train 7 other train.steps=4 optim.beta1=0
[ ! -e cosine ] || fail "a run that was refused has a directory"
if [ -f "$MEOPT_BUILD/tests/libfake_amdhip64.so" ]; then
    . "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
    settings="optim.name=schedule_free optim.lr=1.0e-2 optim.warmup_steps=3 model.width=64 model.depth=2 model.heads=2 model.context=32 train.batch_size=2
        train.eval_steps=2 train.log_every=1 device.type=hip device.cards=0 train.steps=4 data.val=val.txt"
    head -c 200 sample/genesis/val.txt >val.txt
    train 0 resident_card
    train 0 streamed_card model.place=streamed
    for file in model.safetensors optimizer.bin; do
        cmp resident_card/ckpt/step-00000004/$file streamed_card/ckpt/step-00000004/$file || fail "on a card: other $file with streamed weights"
    done
    python3 - resident_card streamed_card <<'END' || fail "memory on a card"
import json, sys
for run in sys.argv[1:]:
    lines, plan = [json.loads(line) for line in open(run + "/metrics.jsonl")], json.load(open(run + "/plan.json"))
    card = lines[-1]["cards"][0]
    assert all(plan[k] == card[k] for k in ["peak_bytes", "classes", "host_classes", "file_classes"]), (plan, card)
    assert plan["host_classes"]["weights"] > 0 and sum("val_loss" in line for line in lines) > 1
END
fi
