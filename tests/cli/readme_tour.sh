#!/bin/sh
# Every line of README's tour, typed as it is into a terminal, in a clean copy in a path with a space: the first half on the
# sample data as a new user types it; in the second the sample's archives have the names of the real ones, and what a line types is not
# changed, but that the benches, a minute of the processor, only say how they are used unless MEOPT_LONG=1. The two lines that
# require cards end as a machine without them lets them: 6.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
home="$dir/a home" copy="$dir/a clean copy"
mkdir -p "$home/bin" "$home/.config/meopt" "$copy/configs"
ln -s "$MEOPT" "$home/bin/meopt"
cp "$MEOPT_SOURCE/README.md" "$copy/"
cp "$MEOPT_SOURCE"/configs/*.yaml "$copy/configs/"
cat >"$home/.config/meopt/sources.yaml" <<END
sources:
  coco2014:
    file: COCO2014.tar.gz
    url: file://$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz
    top: COCO2014
  model-weight:
    file: ModelWeight.tar.gz
    url: file://$MEOPT_SOURCE/configs/sample/ModelWeight.tar.gz
    top: ModelWeight
END
sed -i 's/^  arch: .*/  arch: dinov2_vits14/; s/image_size: 224/image_size: 56/' "$copy/configs/dinov2.yaml"
sed -i 's/width: 512/width: 64/; s/depth: 7/depth: 2/; s/hidden: 2048/hidden: 256/; s/out: 512/out: 64/; s/steps: 40/steps: 6/' \
    "$copy/configs/quickstart_compare.yaml"
sed -n '/^## Tour/,/^## Documentation/s/^    //p' "$copy/README.md" | sed 's/  .*//' >"$dir/lines"
[ "$(wc -l <"$dir/lines")" -ge 28 ] || fail "README's tour has $(wc -l <"$dir/lines") lines"
PATH="$home/bin:$PATH"
hasten 4 # the dashboard of a run that has ended lingers
terminal 100 30 C.UTF-8 "HOME='$home' OMP_NUM_THREADS=1 PS1=" "sh -c 'cd \"$copy\"; stty -echo; exec sh'"
ended() { # CODE: of the line, within 5 minutes
    wait_for 300 on_screen "^line $number ends: " || fail "'$line' does not end"
    screen | grep -q "^line $number ends: $1\$" || fail "'$line' does not end with $1"
}
leave() { # the dashboard, unless it has closed by itself
    wait_for 300 on_screen "1 overview\|^line $number ends: " || fail "'$line' opens no dashboard"
    on_screen "^line $number ends: " || keys q
}
finished() { # NAME...: these runs, within a minute
    for name in "$@"; do
        wait_for 60 grep -qs '"state": *"done"' "$copy/runs/$name/state.json" || fail "run $name does not finish"
    done
}
number=0
while read -r line <&3; do
    number=$((number + 1))
    case $line in meopt | 'meopt '*) ;; *) fail "'$line' is no line of meopt" ;; esac
    case $line in 'meopt bench'*) [ "${MEOPT_LONG:-}" = 1 ] || line="$line --help" ;; esac
    case $line in 'meopt compare runs'* | 'meopt train --resume first'*) finished first baseline ;; 'meopt export'*) finished first ;; esac
    keys C-u # what was typed into a screen that had closed
    keys -l "clear; $line; echo line $number ends: \$?"
    keys Enter
    case $line in
    *'my.yaml --name'* | *'--resume first'*) leave ;;
    *'config edit'*) await 'Memory of one rank' && keys q ;;
    'meopt attach'* | *'eva.yaml --name'* | *'--resume eva') await 'step [1-9][0-9]*/' && keys q ;;
    meopt) await 'runs in runs' && keys q ;;
    esac
    case $line in *--help) ended 0 ;; *--cards\ 0,*) ended 6 ;; *) ended 0 ;; esac
    case $line in
    'meopt config new eva_clip'*) # geometry from the small checkpoints, small images, long enough to be stopped
        sed -i 's/^  arch: .*/  arch: custom/; s/image_size: 224/image_size: 56/; s/epochs: 10/epochs: 100000/' "$copy/eva.yaml"
        ;;
    *'--resume eva') # the run continues after the dashboard was left
        "$MEOPT" stop "$copy/runs/eva" 2>/dev/null
        wait_for 60 grep -qs '"state": *"stopped"' "$copy/runs/eva/state.json" || fail "the run does not stop"
        ;;
    esac
done 3<"$dir/lines"
[ "$(wc -l <"$copy/runs/first/metrics.jsonl")" = 120 ] || fail "the resumed run has $(wc -l <"$copy/runs/first/metrics.jsonl") steps, not 120"
for made in job.sh report.json cmp.html; do [ -s "$copy/$made" ] || fail "no $made"; done
[ -s "$copy/embeddings" ] || fail "no embeddings"
find "$copy/runs" -name '*.pt' | grep -q first || fail "no export"
