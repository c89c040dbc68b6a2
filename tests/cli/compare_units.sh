#!/bin/sh
# Runs of images, which count images, and of language models, which count tokens: compare, its page and paper, and runs show each figure
# in its unit, and relate no loss to that of a different objective.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
command -v python3 >/dev/null || { echo "no python3"; exit 77; }
cd "$work"
python3 - <<'END'
import json, os
def run(name, objective, rate, loss, context=0, **more):
    os.makedirs(name)
    meta = {"version": 1, "device": "CPU", "images": 160, "total_steps": 20, "student_parameters": 1000, "teacher_parameters": 0, "family": "f", "code_version": "1",
            "program_crc32c": "11111111", "data_crc32c": "22222222", "seed": 1, "batch_images": 8, "ranks": 1, "epoch_steps": 20, "objective": objective}
    if context: meta["tokens"] = 160 * context
    json.dump(meta, open(name + "/meta.json", "w"))
    json.dump({"state": "done", "step": 20, "total_steps": 20, "pid": 1, "host": "h", "exit_code": 0}, open(name + "/state.json", "w"))
    open(name + "/config.yaml", "w").write("train:\n  seed: 1\n  objective: %s\n" % objective)
    with open(name + "/metrics.jsonl", "w") as f:
        for i in range(1, 21):
            line = {"step": i, "epoch": 0, "loss": loss / i, "lr": 1e-3, "grad_norm": 1, "images_per_s": rate, "step_ms": 8e3 / rate, "data_wait_ms": 0.1}
            if context: line["tokens_per_s"] = rate * context
            if i == 20: line.update(more)
            f.write(json.dumps(line) + "\n")
run("image", "classify", 400, 2, val_loss=0.5, val_top1=0.75)
run("text", "language", 100, 4, 64, val_loss=1.5, val_perplexity=4.5, mfu=0.25)
run("text2", "language", 200, 3, 64, val_loss=1.25, val_perplexity=3.5)
END
for pair in "image text" "text text2" "image image"; do
    # shellcheck disable=SC2086
    set -- $pair
    "$MEOPT" compare "$1" "$2" --json --html "$1-$2.html" --paper "$1-$2" --all >"$1-$2.json" 2>log || fail "$pair: $(cat log)"
    "$MEOPT" compare "$1" "$2" >"$1-$2.txt" 2>log
done
"$MEOPT" runs --run-dir . --json >runs.json
"$MEOPT" runs --run-dir . >runs.txt
python3 - <<'END' || fail "figures"
import json, re
def facts(name):
    j = json.load(open(name + ".json"))
    return {f["key"]: f for f in j["facts"]}, {f["key"]: f["values"] for f in j["not_comparable"]}
def page(name): return set(re.findall(r'data-key="([^"]*)"', open(name + ".html").read()))
def paper(name): return open(f"{name}/table.tex").read()
mixed, apart = facts("image-text")
assert mixed["images"]["values"] == [160, None] and mixed["tokens"]["values"] == [None, 160 * 64]
assert mixed["images_per_s"]["values"] == [400, None] and mixed["tokens_per_s"]["values"] == [None, 6400]
assert mixed["mfu_percent"]["values"] == [None, 25] and mixed["final_val_perplexity"]["values"] == [None, 4.5]
assert apart["objective"] == ["classify", "language"]
for key in ("final_loss", "converged_loss", "best_loss", "final_val_loss"): assert mixed[key]["ratio"][1] is None, key
assert "max_loss_gap" not in mixed and "final_loss_gap_equal_time" not in mixed
assert {"images_per_s", "tokens_per_s"} <= page("image-text")
curves = json.loads(re.search(r'id="curves">(.*?)</script>', open("image-text.html").read(), re.S).group(1))
curves = {c["id"]: [k[0] for k in c["curves"]] for c in curves}
assert curves["throughput"] == ["image"] and "loss-difference" not in curves, curves

text, apart = facts("text-text2")
assert "objective" not in apart and text["tokens_per_s"]["values"] == [6400, 12800] and abs(text["tokens_per_s"]["ratio"][1] - 2) < 1e-12
assert text["images_per_s"]["values"] == [100, 200] and text["images"]["values"] == [160, 160] # samples
assert abs(text["final_loss"]["ratio"][1] - 0.75) < 1e-12 and text["max_loss_gap"]["values"][1] == -1
shown = page("text-text2")
assert {"tokens", "tokens_per_s", "final_val_perplexity"} <= shown and not {"images", "images_per_s", "final_tokens_per_s"} & shown, shown
for name in ("text-text2.txt", "text-text2.html"): assert "images" not in re.sub("<[^>]*>", "", open(name).read()), name
assert "Images" not in paper("text-text2") and "Tokens/s" in paper("text-text2"), paper("text-text2")
image, apart = facts("image-image")
assert image["images_per_s"]["values"] == [400, 400] and not any("token" in key for key in image)
assert "Tokens" not in paper("image-image") and "Images/s" in paper("image-image")

runs = {r["name"]: r for r in json.load(open("runs.json"))}
assert runs["text"]["tokens_per_s"] == 6400 and runs["text"]["mfu"] == 0.25 and runs["text"]["images_per_s"] == 100
assert runs["image"]["tokens_per_s"] is None and runs["image"]["mfu"] is None and runs["image"]["images_per_s"] == 400
rows = {l.split()[0]: l for l in open("runs.txt")}
assert " 6400 tok/s" in rows["text"] and " 400 img/s" in rows["image"], rows
END
