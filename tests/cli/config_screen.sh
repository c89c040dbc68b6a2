#!/bin/sh
# The form in a real terminal (tmux): golden screens at three sizes, change and save, resize. The terminal is restored after quit, SIGTERM
# and SIGSEGV. MEOPT_UPDATE_GOLDEN=1 records the golden screens again.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
golden=$MEOPT_SOURCE/tests/data/config_screen
start() { # width height options
    width=$1 height=$2
    shift 2
    cp "$MEOPT_SOURCE/configs/eva_clip.yaml" "$dir/eva_clip.yaml"
    rm -f "$dir/pid"
    terminal "$width" "$height" C.UTF-8 '' "sh -c 'echo \$\$ >pid; exec \"\$@\"' sh '$MEOPT' config edit $* eva_clip.yaml"
    await family
}

for size in 80x24 132x43 40x12; do
    start "${size%x*}" "${size#*x}" --ascii
    # The memory margin has its own figures: cut.
    screen | sed 's/ *|.*//; s/^[0-9.]* [GM]iB  //' >"$dir/screen"
    if [ -n "${MEOPT_UPDATE_GOLDEN:-}" ]; then
        mkdir -p "$golden"
        cp "$dir/screen" "$golden/$size.txt"
    fi
    diff -u "$golden/$size.txt" "$dir/screen" >&2 || fail "golden screen $size (MEOPT_UPDATE_GOLDEN=1 sh tests/cli/config_screen.sh writes it anew)"
    keys /batch_size Enter Enter
    await 'Esc: cancel'
    keys C-u 0
    await 'from 1 to\|expected a whole'
    keys C-u 64 Enter
    await '\*'
    keys s
    await 'train.batch_size: 32 -> 64'
    keys y
    await saved
    grep -q '^  batch_size: 64  ' "$dir/eva_clip.yaml" || fail "not saved"
    [ "$(diff "$MEOPT_SOURCE/configs/eva_clip.yaml" "$dir/eva_clip.yaml" | grep -c '^[<>]')" = 2 ] || fail "more than one line changed"
    keys q
    await 'status 0'
    restored quit
    stop
done

start 80 24
for size in 20x5 132x43 30x8 1x1 80x24; do
    resize "${size%x*}" "${size#*x}"
    [ $size != 20x5 ] || await 'too small'
done
await family
kill -TERM "$(cat "$dir/pid")"
await 'status 143'
restored SIGTERM
stop

case ${ASAN_OPTIONS:-}$(ldd "$MEOPT" 2>/dev/null) in *asan*) ;; *)
    start 80 24
    kill -SEGV "$(cat "$dir/pid")"
    await 'status 139'
    restored SIGSEGV
    stop ;;
esac

# A terminal that no one knows, and no terminal at all, are refused in words.
code=0
"$MEOPT" config edit "$dir/eva_clip.yaml" </dev/null >"$dir/out" 2>&1 || code=$?
[ $code = 2 ] || exit 1
grep -q 'config edit' "$dir/out"
echo ok
