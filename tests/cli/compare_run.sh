# meopt compare --run: both runs with one seed, interrupted and killed on the way, then the same figures as without; repeats; a
# directory of another experiment is refused. Each run is supervised as 'meopt train' does it: what its cards did stands next to it, and
# device.cards gives it ranks.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
export OMP_NUM_THREADS=1 # so small a model is no work for more
tar -xzf "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz" -C "$dir"
tower='{init: random, width: 64, depth: 2, heads: 2, hidden: 256, out: 32, patch: 14}'
cat >"$dir/tiny.yaml" <<END
model: {family: eva}
model_t: $tower
model_s: $tower
data: {root: COCO2014, image_size: 56, workers: 1}
train: {steps: 120, batch_size: 4, log_every: 10, checkpoint_keep: 1, checkpoint_steps: 40, seed: 3}
optim: {lr: 1.0e-3, warmup_steps: 2}
END
run() { # DIRECTORY ARGUMENT...
    runs=$1
    shift
    "$MEOPT" compare --run "$dir/tiny.yaml" --run-dir "$dir/$runs" "$@" 2>"$dir/log"
}

run whole --name c --json >"$dir/whole.json" || fail "a comparison"
[ ! -e "$dir/whole/c-with/live.json" ] || fail "it looks as if it trained still"
# long enough that the cards are looked at before they end
hasten 20
run watched --name c train.steps=300 train.checkpoint_steps=1000 >/dev/null || fail "a longer comparison"
hasten 1
for i in with without; do
    grep -q '"cards":\[{"rank":0,' "$dir/watched/c-$i/cards.jsonl" || fail "what the cards did is not kept: $i"
done
steps() { if [ -f "$1/metrics.jsonl" ]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }
# asked to stop in the first run, killed in the second
"$MEOPT" compare --run "$dir/tiny.yaml" --run-dir "$dir/cut" --name c train.steps=120 >/dev/null 2>"$dir/log" &
pid=$!
wait_for 30 eval '[ "$(steps "$dir/cut/c-without")" -ge 7 ]' || :
kill -TERM $pid
exits 10 wait $pid || [ $code = 0 ] || fail "stopped: exit $code"
"$MEOPT" compare --run "$dir/tiny.yaml" --run-dir "$dir/cut" --name c >/dev/null 2>"$dir/log" &
pid=$!
wait_for 30 eval '[ "$(steps "$dir/cut/c-with")" -ge 60 ]' || :
kill -KILL $pid 2>/dev/null || true
wait $pid 2>/dev/null || true
run cut --name c --json >"$dir/cut.json" || fail "the resume failed"
files() { stat -c '%n %i %s %y' "$dir"/cut/c-with*/*.json*; }
files >"$dir/before"
run cut --name c --json >"$dir/again.json" || fail "a third time"
files | cmp - "$dir/before" || fail "finished runs were trained again"
python3 - "$dir" <<'END' || fail "an interrupted comparison differs"
import json, sys
whole, cut, again = ({f["key"]: f for f in json.load(open(sys.argv[1] + "/" + n + ".json"))["facts"]} for n in ("whole", "cut", "again"))
assert cut == again
for key in ("steps", "first_loss", "final_loss", "best_loss", "final_cosine", "max_loss_gap", "peak_bytes", "student_parameters", "optimizer_bytes_per_param"):
    assert whole[key]["values"] == cut[key]["values"], (key, whole[key], cut[key])
assert whole["peak_drop_percent"]["values"][1] > 0 and whole["steps"]["values"] == [120, 120]
j = json.load(open(sys.argv[1] + "/whole.json"))
assert j["comparable"] and [c["name"] for c in j["columns"]] == ["without MEOpt", "with MEOpt"]
END
code=0
"$MEOPT" compare --run "$dir/tiny.yaml" train.steps=201 --run-dir "$dir/whole" --name c >/dev/null 2>"$dir/log" || code=$?
[ $code = 9 ] || fail "a directory of another experiment: exit $code"
"$MEOPT" compare --run "$dir/tiny.yaml" train.steps=6 --run-dir "$dir/repeat" --name r --repeat 2 --json >"$dir/repeat.json" 2>"$dir/log" || fail "repeats"
python3 - "$dir" <<'END' || fail "repeats"
import json, sys
j = json.load(open(sys.argv[1] + "/repeat.json"))
assert [len(c["runs"]) for c in j["columns"]] == [2, 2] and j["comparable"], j["not_comparable"]
f = {f["key"]: f for f in j["facts"]}
assert f["final_loss"]["n"] == [2, 2] and f["final_loss"]["sd"][0] > 0 and f["final_loss"]["p"][1] > 0.01
assert [json.load(open(r + "/meta.json"))["seed"] for c in j["columns"] for r in c["runs"]] == [3, 4, 3, 4]
END
"$MEOPT" compare --run "$dir/tiny.yaml" --rules adamw,lion,schedule_free lion:optim.lr=1.0e-4 apadamw:optim.beta2=0.95 train.steps=6 --run-dir "$dir/rules" --name u --json \
    >"$dir/rules.json" 2>"$dir/log" || fail "rules: $(cat "$dir/log")"
python3 - "$dir" <<'END' || fail "rules"
import json, sys
j = json.load(open(sys.argv[1] + "/rules.json"))
f = {f["key"]: f["values"] for f in j["facts"]}
assert [c["name"] for c in j["columns"]] == ["adamw", "lion", "schedule_free"] and j["comparable"], j["not_comparable"]
assert [c["runs"][0].rsplit("/", 1)[1] for c in j["columns"]] == ["u-adamw", "u-lion", "u-schedule_free"]
keys = [k for k in f if "gap" in k] + ["peak_bytes", "optimizer_bytes_per_param"]
assert len(keys) >= 4 and all(len(f[k]) == 3 for k in keys), keys
settings = {s["key"]: s["values"] for s in j["config"]}
assert [float(x) for x in settings["optim.lr"]][1] == 1e-4 and float(settings["optim.beta2"][0]) == 0.95 and settings["optim.name"] == ["apadamw", "lion", "schedule_free"], settings
END
for wrong in "--rules adamw,none" "--rules adamw,adamw" "--rules adam,lion,apadam" "--rules adamw lion:optim.lr=1" "--rules adamw optim.name=lion" \
    "--rules adamw,lion lion:optim.name=adam"; do
    code=0
    # shellcheck disable=SC2086
    "$MEOPT" compare --run "$dir/tiny.yaml" $wrong --run-dir "$dir/wrong" >/dev/null 2>"$dir/log" || code=$?
    [ $code = 2 ] || fail "$wrong: exit $code"
done
code=0
"$MEOPT" compare --run "$dir/tiny.yaml" --rules adamw,schedule_free optim.schedule=linear --run-dir "$dir/wrong" >/dev/null 2>"$dir/log" || code=$?
[ $code = 7 ] && [ ! -e "$dir/wrong" ] || fail "a configuration of the second rule that is wrong: exit $code, or the first has trained"
exits 7 "$MEOPT" compare --run "$dir/tiny.yaml" train.nothing=1 >/dev/null 2>"$dir/log" || fail "a wrong setting: exit $code"
code=0
OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 "$MEOPT" compare --run "$dir/tiny.yaml" --run-dir "$dir/whole" --name m >/dev/null 2>"$dir/log" || code=$?
[ $code = 2 ] && grep -q -e '--run .* 2 .*mpirun' "$dir/log" || fail "under a launcher: exit $code"
if [ -f "$MEOPT_BUILD/tests/libfake_amdhip64.so" ]; then
    . "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
    FAKE_CARDS=2 TMPDIR="$dir" run cards --name c train.steps=2 train.batch_size=2 "device.cards=[0,1]" >/dev/null || fail "two cards"
    for run in without with; do
        [ "$(tail -n 1 "$dir/cards/c-$run/metrics.jsonl" | grep -o '"rank":' | wc -l)" = 2 ] || fail "$run: not one rank per card"
    done
fi
