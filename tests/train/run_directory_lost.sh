#!/bin/sh
# What is pulled away from under a run: its directory moved, or removed; the reader of what it says; its processor time. It saves where
# it can be resumed from, or says that it cannot; a crash leaves no core file; and a copy made of hard links is trained without a change of the original.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
few_images 8
export OMP_NUM_THREADS=1
train() { # NAME OPTIONS...; with how=exec in the background, so that $! is its own
    name=$1
    shift
    ${how:-} "$MEOPT" train "$work/configs/quickstart.yaml" train.batch_size=4 data.workers=1 train.checkpoint_steps=5 --run-dir "$work" --name "$name" "$@"
}
begin() { # NAME: until it has saved
    how=exec train "$1" --steps 100000 >out 2>err &
    pid=$!
    echo $pid >left
    saved "$1"
}
saved() { wait_for 60 [ -e "$1/ckpt/LATEST" ] || fail "$1: it does not save"; } # NAME
its_worker() { # the telemetry's helper may live yet
    for child in $(cat "/proc/$pid/task/$pid/children"); do
        ! tr '\0' ' ' <"/proc/$child/cmdline" 2>/dev/null | grep -q ' worker ' || echo "$child"
    done
}
ends() { # CODE
    wait_for 30 eval '! kill -0 $pid 2>/dev/null' || fail "$name: it does not end"
    got=0
    wait $pid || got=$?
    : >left
    [ $got = "$1" ] || fail "$name: exit $got, expected $1"
}
resumes() { # RUN: from its last step
    step=$(wc -l <"$1/metrics.jsonl")
    [ "$(cat "$1/ckpt/LATEST")" = "$(printf 'step-%08d' "$step")" ] || fail "$1: $step steps, saved $(cat "$1/ckpt/LATEST")"
    "$MEOPT" train --resume "$1" --steps $((step + 2)) >out 2>err || fail "$1: resume"
    [ "$(wc -l <"$1/metrics.jsonl")" = $((step + 2)) ] || fail "$1: lines"
}

name=moved
begin moved
mv moved elsewhere
kill -TERM $pid
ends 10
grep -q '^warning: .*/moved .*/elsewhere' err || fail "moved: not told"
grep -q -- '--resume .*/elsewhere' err || fail "moved: the next step names another place"
[ ! -e moved/ckpt ] || fail "moved: half a run under its old name"
resumes elsewhere

# another run takes its old place: nothing is written there, and requests at the new place are heard
name=follow
begin follow
mv follow followed
worker=$(its_worker)
kill -STOP "$worker" $pid # nothing comes or goes meanwhile
cp -a followed decoy # as a new run of that name would be, for who looks only at the path
kill -CONT $pid "$worker"
rm -f decoy/live.json
sums_of() { (cd "$1" && find . -type f ! -name .lock -exec cksum {} + | sort); }
sums_of decoy >decoy.before
mv decoy follow
for _ in 1 2; do
    touch now
    wait_for 30 [ followed/live.json -nt now ] || fail "live.json does not follow"
done
"$MEOPT" stop followed 2>said || fail "stop: $(cat said)"
ends 10
sums_of follow >decoy.after
cmp -s decoy.before decoy.after || fail "something was written into the run at its old path: $(diff decoy.before decoy.after)"
grep -q '"state": "stopped"' followed/state.json || fail "followed: its state"
[ ! -e followed/live.json ] || fail "followed: live.json is left"
rm -rf follow
resumes followed

name=removed
ulimit -S -c "$(ulimit -H -c)"
begin removed
worker=$(its_worker)
[ "$(awk '/^Max core file size/ { print $5 }' "/proc/$worker/limits")" = 0 ] || fail "a worker that crashes leaves a core file"
kill -STOP "$worker" # nothing is made in it meanwhile
until rm -rf removed 2>/dev/null; do :; done
kill -TERM $pid
ends 1
grep -q '^meopt: .*/removed: ' err || fail "removed: not told"
[ ! -e removed/ckpt ] || fail "removed: half a run comes back"

name=linked
train original --steps 20 --stop-after 10 >out 2>err || [ $? = 10 ] || fail "the original"
sums() { find original -type f ! -name .lock | sort | xargs cksum; }
sums >before
cp -al original copy
resumes copy
sums | cmp - before || fail "linked: the original has changed"

name=unread
mkfifo pipe
tail -f /dev/null <pipe &
reader=$!
exec 3>pipe
echo $reader >left
head -c 40000 /dev/zero >&3 # there is room for some lines yet
how=exec train unread --steps 100000 train.log_every=1 >&3 2>&3 3>&- &
pid=$!
echo $pid $reader >left
saved unread
lines=-1 looks=0
blocked() { # its reader is waited for: no line between ten looks
    before=$lines lines=$(wc -l <unread/metrics.jsonl) looks=$((looks + 1))
    [ "$lines" = "$before" ] || looks=0
    [ $looks -gt 9 ]
}
wait_for 60 blocked || fail "unread: it does not wait"
kill -TERM $pid
ends 10
kill $reader
exec 3>&-
resumes unread

name=limited
begin limited
kill -XCPU "$(its_worker)" # as ulimit -t sends it to who computes
ends 10
resumes limited
echo "moved, removed, linked, unread, limited: nothing lost, nothing untrue"
