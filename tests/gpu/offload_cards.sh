#!/bin/sh
# States of a card in this machine's memory and in a file (optim.offload host, nvme), on cards made up by tests: checkpoints have the
# bytes of a run that holds them, the plan is the measurement by class and place, what a step moves over the link is what the plan reports, each
# way, and a run without a card refuses host.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
set -- "$work/configs/quickstart_dinov2.yaml" train.batch_size=2 train.steps=3 data.image_size=28 device.cards=0 --run-dir runs --no-dashboard
for try in hip:none hip:host hip:nvme cuda:none cuda:host; do
    place=${try#*:}
    "$MEOPT" train "$@" device.type="${try%:*}" optim.offload="$place" --name "$try" >log 2>&1 || fail "$try: exit $?"
    for file in model.safetensors optimizer.bin; do
        cmp "runs/${try%:*}:none/ckpt/step-00000003/$file" "runs/$try/ckpt/step-00000003/$file" || fail "$try: other bits"
    done
    python3 - "runs/$try" "$place" <<'END' || fail "$try: figures"
import json, sys
plan = json.load(open(sys.argv[1] + "/plan.json"))
card = json.loads(open(sys.argv[1] + "/metrics.jsonl").readlines()[-1])["cards"][0]
for key in ("peak_bytes", "classes", "host_classes", "file_classes"):
    assert plan[key] == card[key], (key, plan, card)
home = {"none": {}, "host": card["host_classes"], "nvme": card["file_classes"]}[sys.argv[2]]
assert (home.get("optimizer", 0) > 0 and home.get("weights", 0) > 0) == (sys.argv[2] != "none"), card
END
done
# On side streams: what five steps move more than three do (the ring is filled ahead, and the first step reads zeros).
for steps in 3 5; do
    FAKE_COUNT="$work/moved$steps" "$MEOPT" bench train "$work/configs/quickstart_dinov2.yaml" --batch 2 --no-peak --steps $steps device.type=hip device.cards=0 \
        optim.offload=host >out 2>log || fail "bench: exit $?"
done
"$MEOPT" plan "$work/configs/quickstart_dinov2.yaml" train.batch_size=2 device.type=hip device.cards=0 optim.offload=host --json >plan.json 2>log || fail "plan"
python3 - "$work" <<'END' || fail "what a step moves"
import json, sys
three, five, plan = (json.load(open(sys.argv[1] + "/" + name)) for name in ("moved3", "moved5", "plan.json"))
down, up = ((five[k] - three[k]) / 2 for k in ("side_down_bytes", "side_up_bytes"))
images = 2 * 3 * plan["student"]["image_pixels"] ** 2 * 4
for moved, told in ((down, plan["offload_written_bytes_per_step"]), (up - images, plan["offload_read_bytes_per_step"])):
    assert told <= moved <= told * 1.1, (down, up, plan) # in pieces of whole pages
END
"$MEOPT" plan "$work/configs/quickstart_dinov2.yaml" device.type=hip device.cards=0 --fit 64M --measure --gflops 50 --json 2>log |
    python3 -c 'import json, sys; fit = json.load(sys.stdin)["fit"]; assert fit["carry_measured"] and fit["carried_gb_per_s"] > 0, fit' || fail "the link is not measured"
exits 7 "$MEOPT" train "$@" device.type=cpu optim.offload=host --name no >log 2>&1 || fail "host without a card: exit $code"
grep -q '^meopt: .*\<offload\>' log || fail "host without a card: the key"
