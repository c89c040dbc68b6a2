#!/bin/sh
# Whole documents: the loss is that of transformers for each document alone (tests/make/whole_documents.py), packed or one to a sample, in a
# step and in an evaluation; long documents by data.too_long; the figures of plan, config check --data and meta.json; a run of an earlier
# version is resumed with the windows that it began with. Layouts and kills: equal_runs.sh; samples: tests/unit/token_pack.c.
set -u
. "$MEOPT_SOURCE/tests/lib.sh"
logs='out log'
cd "$work"
golden=$MEOPT_SOURCE/tests/data
cp "$golden"/whole_documents/* .
cat >c.yaml <<END
model: {weight: "$golden/language/qwen3/model.safetensors", context: 32}
data: {root: ten.bin}
train: {objective: language, global_batch: 10, batch_size: 10, micro_batch: 2, steps: 1, precision: fp32}
device: {type: cpu}
END
run() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" "$@" >out 2>log || fail "$*: exit $code, expected $want"
}
train() { # CODE NAME ARGUMENT...
    want=$1 run=$2
    shift 2
    run "$want" train c.yaml --run-dir . --name "$run" --no-dashboard "$@"
}
for at in 'ten 32' 'ten 64' 'many 61' 'many 64'; do
    name=${at% *} context=${at#* }
    run 0 eval c.yaml --json "data.val=$name.bin" "model.context=$context"
    mv out "eval-$name-$context.json"
done
train 0 one
run 0 plan c.yaml --json
mv out plan.json
run 0 plan c.yaml --json data.root=many.bin model.context=40 data.too_long=skip
mv out skip.json
run 0 plan c.yaml --json data.root=many.bin model.context=40 data.too_long=cut
mv out cut.json
python3 - <<'END' || fail "figures"
import json
golden = json.load(open("loss.json"))
near = lambda a, b: abs(a / b - 1) < 1e-6
for name, context in ("ten", 32), ("ten", 64), ("many", 61), ("many", 64):
    found = json.load(open(f"eval-{name}-{context}.json"))
    assert found["tokens"] == golden[name]["labels"] and near(found["val_loss"], golden[name]["loss"]), (name, context, found)
step = json.loads(open("one/metrics.jsonl").readline())
assert near(step["loss"], golden["ten"]["loss"]), step
plan, skip, cut = (json.load(open(name + ".json")) for name in ("plan", "skip", "cut"))
facts = plan["documents"]
assert facts == dict(facts, **{"as": "whole", "assumed": True, "documents": 10, "kept": 10, "tokens": 240, "labels": 120, "mean_length": 24,
                               "longest": 24, "too_long": 0, "unlabelled": 0, "samples": 10, "padding": 0.25}), facts
assert plan["images"] == 10
assert json.load(open("one/meta.json"))["documents"] == facts
lengths = [5 + i * 2654435761 % 57 for i in range(60)]
longer = sum(n > 40 for n in lengths)
for found, kept, tokens in (skip, 60 - longer, sum(n for n in lengths if n <= 40)), (cut, 60, sum(min(n, 40) for n in lengths)):
    assert found["documents"]["too_long"] == longer and found["documents"]["kept"] == kept, found["documents"]
    assert found["documents"]["tokens"] == tokens and found["documents"]["longest"] == 61, found["documents"]
    assert found["images"] == found["documents"]["samples"], found
END

# data.too_long, and what has no effect or no meaning
longer=$(python3 -c 'print(sum(5 + i * 2654435761 % 57 > 40 for i in range(60)))')
for command in 'config check --data' plan 'train --name refused --run-dir . --no-dashboard' eval; do
    # shellcheck disable=SC2086
    run 7 $command c.yaml data.root=many.bin data.val=many.bin model.context=40
    for name in many.bin "$longer of 60" 61 data.too_long; do grep -qF "$name" log || fail "$command does not name $name"; done
done
run 0 config check --data c.yaml data.root=many.bin model.context=40 data.too_long=cut
grep -qF "$longer of 60" log || fail "config check --data does not count documents that are cut"
train 0 cut data.root=many.bin model.context=40 data.too_long=cut
train 0 skip data.root=many.bin model.context=40 data.too_long=skip train.global_batch=4 train.batch_size=4
train 7 none model.context=20 data.too_long=skip
grep -qF ten.bin log || fail "a file without a document that fits is not named"
train 7 validation data.val=many.bin
grep -qF many.bin log || fail "long documents of data.val are not named"
run 7 config check c.yaml data.documents=apart data.too_long=cut
run 7 config check c.yaml data.documents=whole train.objective=masked model.family=bert
run 7 config check c.yaml data.too_long=cut train.objective=masked model.family=bert

# Without labels documents are apart, unless they are to be whole.
mkdir text
cp ten.bin ten.idx text
for as in apart joined whole; do
    run 0 plan c.yaml --json data.root=text/ten.bin $([ $as = apart ] || echo data.documents=$as)
    python3 -c '
import json, sys
f = json.load(open("out"))["documents"]
want = dict(f, **{"as": sys.argv[1], "assumed": sys.argv[1] == "apart", "labels": 239 if sys.argv[1] == "joined" else 230, "samples": 10 if sys.argv[1] == "whole" else 6})
assert f == want, f' $as || fail "documents without labels: $as"
done

# A run of a version without data.too_long, which named no way.
train 10 earlier data.documents=apart train.global_batch=2 train.batch_size=2 train.steps=4 --stop-after 2
sed -i '/too_long/d' earlier/config.yaml
python3 - <<'END' || fail "meta.json"
import json
meta = json.load(open("earlier/meta.json"))
del meta["documents"]
assert meta["config"].pop("data.too_long") == "refuse" and meta["images"] == 6, meta
json.dump(meta, open("earlier/meta.json", "w"))
END
run 0 train --resume earlier --no-dashboard
python3 -c 'import json; assert json.load(open("earlier/meta.json"))["documents"]["as"] == "apart"' || fail "an earlier run has other samples"
run 7 train --resume earlier --no-dashboard --steps +2 data.documents=whole
# A key of token files with images is refused.
cat >images.yaml <<'END'
model: {family: dinov2, init: random, width: 32, depth: 1, heads: 2, hidden: 32, patch: 7}
data: {root: images, image_size: 28}
train: {objective: classify}
END
run 0 config check images.yaml
run 7 config check images.yaml data.documents=apart
