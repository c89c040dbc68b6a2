#!/bin/sh
# Screens that stay open: the run's directory is removed, its metrics are truncated within a line and grow again, or contain no text. Two
# screens show one run, the terminal has a hundred sizes, and there is no home directory for settings.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
hasten 4 # the dashboard draws every half a second
. "$MEOPT_SOURCE/tests/cli/dash_run.sh"
dash_run "$dir/runs/many" 16 300
dash_run "$dir/runs/gone" 1 300
dash_run "$dir/runs/cut" 1 300
dash_run "$dir/runs/unread" 1 300
start() { # ENVIRONMENT COMMAND
    terminal 80 24 C.UTF-8 "$1" "'$MEOPT' $2"
}
leave() {
    keys Escape
    keys q
    await 'status 0'
    restored "$1"
    stop
}

start "HOME='$dir/home'" 'attach gone'
await 'step 300/300'
mv "$dir/runs/gone" "$dir/away"
await 'directory is gone$'
for key in 2 3 Enter Escape 4 1 Left e c x r b Escape; do keys $key; done
keys 3 Enter
await 'cannot plan .*: .*gone'
mv "$dir/away" "$dir/runs/gone"
keys Escape
await ' done$'
leave 'a run that was gone'

# a configuration that says nothing any more
start "HOME='$dir/home'" 'attach unread'
await 'step 300/300'
printf '\000\001{' >"$dir/runs/unread/config.yaml"
keys 3 Enter
await 'cannot plan .*config\.yaml:1.* 0x00'
leave 'a damaged configuration'
rm "$dir/runs/unread/config.yaml"

# the list in a directory where nothing was trained yet: no error, also after it is read again
start "HOME='$dir/home'" 'attach --run-dir nothing'
await 'no runs yet'
keys j
await 'no runs yet'
! on_screen "nothing'" || fail "a directory without runs is an error"
leave 'a list without runs'

# the list: one goes, then all
start "HOME='$dir/home'" 'attach --run-dir runs'
await '3 of 3'
mv "$dir/runs/gone" "$dir/away"
keys G Enter # whichever it is, the list stays
keys q
await 'of [23]  by age'
await '2 of 2'
mv "$dir/runs" "$dir/runs2"
await "cannot list 'runs': No such file"
mv "$dir/runs2" "$dir/runs"
keys j
await '? help'
leave 'a list without a directory'

# cut in the middle of a line, grown again, no text
start "HOME='$dir/home'" 'attach cut'
await 'step 300/300'
metrics=$dir/runs/cut/metrics.jsonl
bytes=$(wc -c <"$metrics")
head -c $((bytes / 2 + 17)) "$metrics" >"$dir/half"
tail -c +$((bytes / 2 + 18)) "$metrics" >"$dir/rest"
truncate -s $((bytes / 2 + 17)) "$metrics"
await 'step 1[45][0-9]/300'
cat "$dir/rest" >>"$metrics"
await 'step 300/300'
head -c 20000 /dev/urandom >"$metrics"
sed -n 1,40p "$dir/half" >>"$metrics"
await 'step 40/300'
leave 'metrics that were cut'

# two of one run, a hundred sizes, nowhere to keep choices
start 'HOME=/proc/nowhere' 'attach many'
await 'step 300/300'
first=$terminal
start 'HOME=' 'attach many'
await 'step 300/300'
second=$terminal
for i in $(seq 50); do
    for terminal in $first $second; do
        resize $((1 + i * 37 % 211)) $((1 + i * 29 % 67))
        case $i in *5) keys $((i % 4 + 1)) ;; esac
    done
done
for terminal in $first $second; do
    resize 80 24
    keys 1
    await '^+10 more *all 16 '
done
terminal=$second
leave 'a storm of sizes'
terminal=$first
leave 'another storm of sizes'
