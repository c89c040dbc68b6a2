#!/bin/sh
# After the end of a run: lines that stay in the terminal after the dashboard closes, key r when all steps are done, a terminal without
# Unicode, where only ASCII is drawn, and --json output of commands.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
few_images 64
start() { # TERM COMMAND
    terminal 80 24 C.UTF-8 "NO_COLOR=1 HOME='$dir' OMP_NUM_THREADS=1" "TERM=$1 '$MEOPT' $2"
}
start screen-256color 'train configs/quickstart_dinov2.yaml train.steps=24 train.checkpoint_steps=8 --run-dir runs --name one'
await 'status 0'
restored 'the end of a run'
await '^runs/one: done, step 24/24, loss '
await '^  loss  *first .*best .*last'
await '^  peak memory .*planned .*without meopt .*-[0-9]*%$'
await 'activations [0-9]'
await '^  checkpoint  *step 24'
await '^  events '
await ' step 24  done$'
stop

start vt100 'attach one'
await 'step 24/24'
screen | LC_ALL=C grep -q '[^ -~]' && fail "more than ASCII on a vt100"
keys r
await ' 24 .*: meopt train --resume'
keys q
await 'status 0'
stop

# key r resumes a run of two ranks on two ranks
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=24 train.checkpoint_steps=8 --workers 2 --stop-after 8 --run-dir runs --name pair >out 2>log ||
    [ $? = 10 ] || fail "a pair of ranks"
start screen-256color 'attach pair'
await 'stopped'
keys r
await 'type resume'
keys resume
keys Enter
wait_for 60 grep -qs '"state": *"done"' runs/pair/state.json || fail "the pair of ranks does not finish"
grep -q '"ranks": *2' runs/pair/meta.json || fail "resumed on other ranks: $(grep -o '"ranks": *[0-9]*' runs/pair/meta.json)"
await 'status 0'
stop

# the start, on stderr: what is no default; all of it for who asks
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=1 --run-dir runs --name two >out 2>log
[ "$(wc -l <log)" -lt 60 ] || fail "a start writes $(wc -l <log) lines"
grep -q '^train.steps  *1$' log && ! grep -q '^optim.beta1' log || fail "the settings of a start: $(cat log)"
MEOPT_LOG=debug "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=1 --run-dir runs --name three >out 2>log
grep -q '^optim.beta1' log || fail "no settings when debugging"
grep -q '1 head ' log || fail "the heads of the student: $(grep heads log)"

"$MEOPT" version --json >version
"$MEOPT" export one --json >export
"$MEOPT" embed one -o embedded --json >embed
"$MEOPT" stop one --json >stop
python3 - <<'END' || fail "--json"
import json, os
version, export, embed, stop = (json.load(open(n)) for n in ("version", "export", "embed", "stop"))
assert version["version"][0].isdigit(), version
assert export["step"] == 24 and os.path.isfile(export["path"]) and export["format"] == "safetensors" and export["merge"] is None, export
assert embed["images"] == 64 and embed["width"] == 64 and embed["role"] == "student" and os.path.isfile(embed["path"]) and not embed["bad"], embed
assert stop == {"run": "runs/one", "asked": None, "state": "done", "step": 24}, stop
END
