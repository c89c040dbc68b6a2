#!/bin/sh
# Text pasted by mistake does not change a run or a file: into the dashboard and the list of a running run, and into the form, with
# bracketed paste and without. Stopping a run requires a word and Enter. Text fields accept pasted text.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
hasten 4 # the dashboard draws every half a second
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1
few_images 64
paste() { # bracketed TEXT, where the program has asked for that, or: plain TEXT
    server set-buffer -b pasted "$2"
    if [ "$1" = bracketed ]; then set -- -p; else set --; fi
    in_terminal paste-buffer "$@" -b pasted
}
untouched() { # NAME: the run trains, and no one has asked anything of it
    rests 4
    [ -z "$(ls runs/live/request 2>/dev/null)" ] || fail "$1: asked for $(ls runs/live/request)"
    grep -q '"state": *"training"' runs/live/state.json || fail "$1: $(cat runs/live/state.json)"
    ! grep -q 'changed\|checkpoint\|stopped' runs/live/events.jsonl || fail "$1: $(cat runs/live/events.jsonl)"
    cmp -s runs/live/config.yaml before.yaml || fail "$1: the configuration is another"
    [ "$(ls runs)" = live ] || fail "$1: other runs: $(ls runs)"
}
start() { # COMMAND
    terminal 80 24 C.UTF-8 "NO_COLOR=1 PAGER=cat HOME='$dir' OMP_NUM_THREADS=1" "'$MEOPT' $1"
}
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=1000000 train.checkpoint_steps=0 train.log_every=50 --run-dir runs --name live >out 2>log &
echo $! >left
pid=$!
wait_for 10 grep -q '"step":20,' runs/live/metrics.jsonl 2>/dev/null || :
cp runs/live/config.yaml before.yaml

# lines as they are in a shell's history, and such as were made to do harm
proxy='export https_proxy=http://proxy:8080 no_proxy=localhost'
harm='xy
x
stop
xstop
e

1.0e-9
c
n
configs/quickstart_dinov2.yaml
ry
'
for how in bracketed plain; do
    start 'attach live'
    await 'e change'
    paste $how proxy
    paste $how "$proxy"
    untouched "$how: a word that is pasted"
    paste $how "$harm"
    untouched "$how: lines that are pasted"
    [ "$(in_terminal display -p '#{alternate_on}')" = 1 ] || fail "$how: the dashboard has been left"
    keys Escape
    keys Escape
    await '1 overview'
    keys q
    await 'status 0'
    stop

    start 'attach --run-dir runs'
    await '1 of 1'
    paste $how "$proxy"
    paste $how "$harm"
    untouched "$how: the list of runs"
    keys Escape
    keys Escape
    keys q
    await 'status 0'
    stop

    cp configs/quickstart.yaml configs/form.yaml
    start 'config edit configs/form.yaml'
    await 'family'
    keys Space
    await '\*'
    paste $how 'sysnqnqy'
    rests 4
    cmp -s configs/form.yaml configs/quickstart.yaml || fail "$how: the form has saved"
    [ "$(in_terminal display -p '#{alternate_on}')" = 1 ] || fail "$how: the form has been left"
    stop
done

# a text field takes it, to the end of the line; Enter is the user's
start 'config edit configs/form.yaml'
await 'family'
keys / 
paste bracketed 'batch_size
'
keys Enter
await '^> *batch_size\|batch_size'
keys Enter
await 'Esc: cancel'
keys C-u
paste bracketed '7
sy'
await '7sy'
keys BSpace BSpace Enter
await '\*'
stop
start 'attach live'
await 'e change'
keys e
await '^> optim.lr'
keys Enter
await 'Ctrl-U clears'
keys C-u
paste bracketed '1.5e-4
'
await '^> optim.lr  *1.5e-4_'
untouched 'a value that is pasted'
keys C-u
keys Escape
await '^> optim.lr  *2.0e-3 *$'
keys Escape

# the word that is asked for
keys x
await 'type stop, Enter'
keys Escape
await 'not stopped'
for word in y halt sto; do
    keys x
    await 'type stop, Enter'
    keys -l $word
    keys Enter
    await 'not stopped'
done
untouched 'an answer that is not the word'
keys x
await 'type stop, Enter'
keys -l stop
await 'Enter: stop_'
keys Enter
await 'stopped$'
keys q
await 'status 0'
stop
exits 10 wait "$pid" || fail "the run ended with $code"
