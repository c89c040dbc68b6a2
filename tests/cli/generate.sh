#!/bin/sh
# Greedy answers equal those of transformers' generate, token by token (tests/make/greedy.py).
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
data=$MEOPT_SOURCE/tests/data/language
python3 - "$data/greedy.json" "$data" <<'END' || fail "answers differ"
import json, os, subprocess, sys
for name, golden in json.load(open(sys.argv[1])).items():
    # longer than the models' positions, where these are rotary
    context = len(golden["prompt"]) + len(golden["tokens"])
    with open("model.yaml", "w") as f:
        f.write("model: {weight: %s, context: %d}\n" % (json.dumps(os.path.join(sys.argv[2], name, "model.safetensors")), context) +
                "train: {objective: language, precision: fp32}\ndevice: {type: cpu}\n")
    command = [os.environ["MEOPT"], "generate", "model.yaml", "--json", "--tokens", ",".join(map(str, golden["prompt"]))]
    answer = json.loads(subprocess.run(command + ["--count", str(len(golden["tokens"]))], check=True, stdout=subprocess.PIPE).stdout)
    assert answer["prompt"] == golden["prompt"] and answer["text"] is None
    assert answer["tokens"] == golden["tokens"], (name, answer["tokens"], golden["tokens"])
END
