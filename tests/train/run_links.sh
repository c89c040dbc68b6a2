#!/bin/sh
# Nothing in a run directory is opened through a symbolic link, and no reader blocks there: a run from another user or an archive cannot
# make meopt write to other files.
set -u
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=2
few_images 16
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=40 train.checkpoint_steps=1 train.cache_teacher=true --stop-after 2 --run-dir . \
    --name good --tensorboard --on-event true >out 2>log
[ $? = 10 ] || fail "the first part"

# every file of a run as a link to a file of ours with the same bytes: a resume refuses it or replaces the link
copy() {
    rm -rf run victim
    cp -a good run
    mkdir victim
}
attack() { # FILE: it is a link into victim/ while the run trains, is read, and is asked to stop
    timeout 120 "$MEOPT" train --resume run --stop-after 3 --tensorboard --on-event true --on-end true >out 2>log
    got=$?
    [ $got -lt 100 ] || fail "$1: exit $got"
    for reader in 'runs --run-dir .' 'compare run good' 'stop run' 'checkpoint run' 'export run -o out.safetensors --force' 'train --resume run --at 1'; do
        # shellcheck disable=SC2086
        timeout 120 "$MEOPT" $reader >>out 2>&1 </dev/null
        [ $? -lt 100 ] || fail "$1: $reader"
    done
    rm -rf run-step-1 out.safetensors
}
for file in state.json live.json data.list plan.json meta.json config.yaml ckpt/LATEST ckpt/step-00000002/MANIFEST.json \
    ckpt/step-00000002/model.safetensors hooks.log metrics.jsonl events.jsonl cards.jsonl worker.log teacher.rows .lock; do
    copy
    if [ -e "run/$file" ]; then cp "run/$file" victim/file && rm "run/$file"; else echo mine >victim/file; fi
    cp victim/file before
    ln -s "$work/victim/file" "run/$file"
    attack "$file"
    cmp -s victim/file before || fail "$file: what its link leads to was changed"
    [ "$(ls victim)" = file ] || fail "$file: something was made next to it: $(ls victim)"
done
for directory in ckpt ckpt/step-00000002 request tensorboard; do
    copy
    [ ! -e "run/$directory" ] || cp -a "run/$directory/." victim/
    rm -rf "run/${directory:?}"
    touch victim/stop victim/stop-now victim/checkpoint
    (cd victim && find . -type f -exec cksum {} + | sort) >before
    ln -s "$work/victim" "run/$directory"
    attack "$directory"
    (cd victim && find . -type f -exec cksum {} + | sort) >after
    cmp -s before after || fail "$directory: files behind the link were changed: $(diff before after)"
done

# a link that leads to a run is the user's own
copy
ln -s run linked
"$MEOPT" train --resume linked --stop-after 3 >out 2>log
[ $? = 10 ] || fail "a link to a run"
[ "$(wc -l <run/metrics.jsonl)" = 3 ] || fail "a link to a run: metrics"

# pipes where files are expected: refused at once, and the supervisor continues
for file in hooks.log state.json live.json metrics.jsonl events.jsonl cards.jsonl worker.log data.list plan.json ckpt/LATEST; do
    copy
    rm -f "run/$file"
    mkfifo "run/$file"
    attack "the pipe $file"
done
copy
rm -f run/hooks.log
mkfifo run/hooks.log
timeout 120 "$MEOPT" train --resume run --stop-after 4 --on-event 'echo it' --on-end 'echo end >>told' >out 2>log
[ $? = 10 ] || fail "hooks.log is a pipe"
[ "$(cat told)" = end ] || fail "hooks.log is a pipe: the hook did not run"

# a run of another user: it is named when it is to be resumed
if [ "$(id -u)" = 0 ]; then
    copy
    chown 12345 run
    "$MEOPT" train --resume run --stop-after 3 >out 2>log
    grep -q 12345 log || fail "the owner of the run is not named"
    [ "$("$MEOPT" runs --run-dir . --json | grep -c '"name"')" -gt 1 ] || fail "a run of another user cannot be read"
fi
