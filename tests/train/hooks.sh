#!/bin/sh
# --on-event and --on-end receive the facts in the environment and as JSON on standard input, in order, for a run that ends, is stopped, or
# is killed. A hook that fails, hangs, reads nothing or cannot start changes neither the exit code nor the results, and is reported once.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 16
logs='err runs/*/hooks.log'
train() { # CODE NAME ARGUMENT...
    want=$1 name=$2 got=0
    shift 2
    timeout 60 "$MEOPT" train configs/quickstart.yaml train.steps=4 train.checkpoint_steps=2 train.batch_size=8 optim.warmup_steps=1 --name "$name" "$@" >out 2>err || got=$?
    [ "$got" = "$want" ] || fail "$name: exit $got, expected $want"
}
export DIR="$work"
hasten 10
train 0 plain
train 0 'with hooks' --on-event 'cat >>"$DIR/stdin"; echo "$MEOPT_EVENT $MEOPT_STEP" >>"$DIR/events"; echo said' \
    --on-end 'cat >"$DIR/end.json"; env | grep ^MEOPT_ | sort >"$DIR/end.env"; pwd >"$DIR/end.pwd"'
python3 - "$work" "$name" <<'PY' || fail "the facts"
import json, os, sys
work, name = sys.argv[1:]
run = os.path.realpath(work + "/runs/" + name)
told = [json.loads(l) for l in open(work + "/stdin")]
written = [json.loads(l) for l in open(run + "/events.jsonl")]
assert [t["event"] for t in told] == [w["event"] for w in written] and len(told) >= 3, told
assert all(t["run"] == name and t["directory"] == run and t["time"] == w["time"] and t["host"] for t, w in zip(told, written))
assert [l.split()[0] for l in open(work + "/events")] == [w["event"] for w in written]
end, env = json.load(open(work + "/end.json")), dict(l.rstrip("\n").split("=", 1) for l in open(work + "/end.env"))
last = json.loads(open(run + "/metrics.jsonl").readlines()[-1])
assert end["event"] == "end" and end["state"] == "done" and end["exit_code"] == 0 and end["step"] == end["total_steps"] == 4, end
assert abs(end["loss"] - last["loss"]) <= 1e-6 * abs(last["loss"]) and end["peak_bytes"] > 0 and end["message"] == "", end
assert env["MEOPT_RUN"] == name and env["MEOPT_RUN_DIRECTORY"] == run and env["MEOPT_STEP"] == "4" and env["MEOPT_EXIT_CODE"] == "0", env
assert env["MEOPT_SUMMARY"] == end["summary"] and all(word in end["summary"] for word in ("with hooks", "done", "4/4", "0.")), env
assert open(work + "/end.pwd").read().rstrip() == os.path.realpath(work)
assert open(run + "/hooks.log").read() == "said\n" * len(written)
PY
losses() { sed 's/.*"loss":\([^,]*\),.*/\1/' "runs/$1/metrics.jsonl"; }
[ "$(losses plain)" = "$(losses "$name")" ] || fail "other losses with hooks"

# hooks that fail, hang, do not read, or are none
train 0 fails --on-event 'exit 3' --on-end '/nowhere/at/all'
[ "$(grep -c '^warning: .* 3\>.*fails/hooks.log' err)" = 1 ] || fail "a failure is not told once"
grep -q nowhere runs/fails/hooks.log || fail "what the shell said is lost"
export MEOPT_HOOK_SECONDS=10
train 0 hangs --on-end 'trap "" TERM INT HUP; tail -f /dev/null & echo $! >"$DIR/left"; tail -f /dev/null'
grep -q '^warning: .*hook.* 10 s\>' err || fail "a hang is not told"
case $(sed -n 's/^State:[[:space:]]*//p' "/proc/$(cat left)/status" 2>/dev/null) in '' | Z*) ;; *) fail "what a hung hook had started lives" ;; esac
: >left
# what leaves the session of the hook, with a parent and without one; its descriptors are the three that it needs
train 0 leaves --on-end 'ls /proc/self/fd | wc -l >"$DIR/descriptors"; grep -c meopt-ranks /proc/self/maps >>"$DIR/descriptors"
    setsid sh -c "echo \$\$ >\"$DIR/left\"; exec tail -f /dev/null" & (setsid sh -c "echo \$\$ >\"$DIR/orphan\"; exec tail -f /dev/null" &); tail -f /dev/null'
grep -q '^warning: .*hook.* 10 s\>' err || fail "a hang in sessions is not told"
for session in left orphan; do
    [ -s $session ] || fail "no process of a session of its own was started"
    case $(sed -n 's/^State:[[:space:]]*//p' "/proc/$(cat $session)/status" 2>/dev/null) in '' | Z*) ;; *) fail "$session: a session of a hung hook lives" ;; esac
done
: >left
[ "$(tr '\n' ' ' <descriptors)" = "4 0 " ] || fail "a hook has descriptors of the run: $(cat descriptors)"
# what a hook that ends in time leaves is its own affair
unset MEOPT_HOOK_SECONDS
train 0 daemon --on-end 'tail -f /dev/null >/dev/null 2>&1 & echo $! >"$DIR/left"'
kill -0 "$(cat left)" || fail "what a hook left on purpose is gone"
kill "$(cat left)"
[ "$(losses plain)" = "$(losses hangs)" ] || fail "other losses with a hook that hangs"

# other ends
train 7 refused --on-end 'echo "$MEOPT_STATE $MEOPT_EXIT_CODE" >"$DIR/refused"' train.batch_size=0 || true
[ ! -e refused ] || fail "a run that never was has an end"
train 10 stopped --stop-after 2 --on-end 'echo "$MEOPT_STATE $MEOPT_EXIT_CODE $MEOPT_STEP" >"$DIR/stopped"'
[ "$(cat stopped)" = "stopped 10 2" ] || fail "stopped: $(cat stopped)"
name=stopped before=$(wc -l <runs/stopped/events.jsonl)
"$MEOPT" train --resume runs/stopped --on-event 'echo "$MEOPT_EVENT" >>"$DIR/resumed"' 2>err || fail "resume"
[ "$(wc -l <resumed)" = $(($(wc -l <runs/stopped/events.jsonl) - before)) ] || fail "events of before are told again: $(cat resumed)"
train 137 killed train.steps=100000 train.checkpoint_steps=0 --on-event 'kill -KILL $(grep -o "\"pid\": *[0-9]*" runs/killed/state.json | grep -o "[0-9]*$")' \
    --on-end 'echo "$MEOPT_STATE|$MEOPT_EXIT_CODE|$MEOPT_MESSAGE" >"$DIR/killed"'
grep -q '^failed|137|.*signal 9\>' killed || fail "killed: $(cat killed)"
