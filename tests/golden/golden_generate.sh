#!/bin/sh
# Greedy answers equal those of transformers' generate, token by token, and the loss and perplexity of meopt eval those of its models: over a
# text in windows, and over packed documents, which are computed alone there (tests/make/greedy.py).
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
data=$MEOPT_SOURCE/tests/data/language
python3 - "$data/greedy.json" "$data" <<'END' || fail "answers or losses differ"
import json, math, os, struct, subprocess, sys
golden = json.load(open(sys.argv[1]))
text = golden["text"]
def tokens(name, values):
    with open(name, "wb") as f: f.write(struct.pack("<%dH" % len(values), *values))
tokens("text.bin", text["tokens"])
tokens("first.bin", text["tokens"][:text["context"]])
def meopt(command, name, *arguments):
    with open("model.yaml", "w") as f:
        f.write("model: {weight: %s}\n" % json.dumps(os.path.join(sys.argv[2], name, "model.safetensors")) +
                "train: {objective: language, precision: fp32, batch_size: 1}\ndata: {root: text.bin}\ndevice: {type: cpu}\n")
    done = subprocess.run([os.environ["MEOPT"], command, "model.yaml", "--json", *arguments], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)
for name, model in golden["models"].items():
    # longer than the models' positions, where these are rotary
    context = len(model["prompt"]) + len(model["tokens"])
    answer = meopt("generate", name, "--tokens", ",".join(map(str, model["prompt"])), "--count", str(len(model["tokens"])),
                   "model.context=%d" % context)
    assert answer["prompt"] == model["prompt"] and answer["text"] is None
    assert answer["tokens"] == model["tokens"], (name, answer["tokens"], model["tokens"])
    context = "model.context=%d" % text["context"]
    found = meopt("eval", name, context, "data.val=text.bin")
    assert found["tokens"] == len(text["tokens"]) - 1, found
    assert abs(found["val_loss"] / model["loss"] - 1) < 1e-5, (name, found, model["loss"])
    assert abs(found["val_perplexity"] / math.exp(model["loss"]) - 1) < 1e-5 * model["loss"], (name, found)
    found = meopt("eval", name, context, "data.val=first.bin", "data.end=%d" % text["end"])
    assert abs(found["val_loss"] / model["apart"] - 1) < 1e-5, (name, found, model["apart"])
    assert found["tokens"] == text["context"] - 4, found # the first of each document is not predicted
END
