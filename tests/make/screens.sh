#!/bin/sh
# The pictures of README: trains three small experiments on the processor and takes the screens that show them, as SVG, and the page of
# compare, as PNG.
#     sh tests/make/screens.sh [BUILD [WORK]]     writes man/screen-*.svg and man/compare.png; needs tmux, python3, chromium.
# Runs that are in WORK already are not trained again.
set -eu
cd "$(dirname "$0")/../.."
MEOPT_SOURCE=$PWD MEOPT=$(cd "${1:-build-ci}" && pwd)/meopt
pictures=$PWD/man
. tests/cli/tmux.sh
PATH="$(dirname "$MEOPT"):$PATH"
browser=$(command -v chromium-headless-shell || command -v chromium)
work=${2:-$dir/work}
mkdir -p "$work"
cp -R configs "$work/"
cd "$work"
work=$PWD
export LC_ALL=C.UTF-8 GOMP_SPINCOUNT=1000
meopt fetch sample --dest sample -q
small='model_t.width=256 model_t.depth=4 model_t.heads=4 model_t.hidden=1024 model_t.out=256 model_s.width=256 model_s.depth=4 model_s.heads=4
    model_s.hidden=1024 model_s.out=256 data.image_size=56 train.steps=100 optim.warmup_steps=10 optim.lr=5.0e-4'
meopt compare --run configs/quickstart_compare.yaml --run-dir runs --name vit --html compare.html $small >/dev/null 2>&1
[ -d runs/eight-ranks ] || meopt train configs/quickstart.yaml --no-dashboard --workers 8 --threads 1 --name eight-ranks train.batch_size=4 train.steps=120 >/dev/null 2>&1
[ -d runs/dinov2 ] || meopt train configs/quickstart_dinov2.yaml --no-dashboard --name dinov2 >/dev/null 2>&1

take() { # NAME WIDTH HEIGHT AWAITED COMMAND [KEY...]
    name=$1 width=$2 height=$3 awaited=$4 command=$5
    shift 5
    terminal "$width" "$height" C.UTF-8 "HOME='$dir'" "'$MEOPT' $command"
    await '? help'
    for key in "$@"; do keys "$key"; done
    await "$awaited"
    wait_for 5 settled
    screen -e | python3 "$MEOPT_SOURCE/tests/make/screen_svg.py" "$width" >"$pictures/screen-$name.svg"
    stop
}
take dashboard 110 32 'best' 'attach vit-with --baseline vit-without'
take dashboard-8 110 36 'best' 'attach eight-ranks'
take charts 132 40 'charts 1 to' 'attach vit-with --baseline vit-without' 2
take memory 110 30 'activations' 'attach vit-with' 3
take workspace 110 14 'of [0-9]* *by' 'attach --run-dir runs' Space
timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$dir/profile" --window-size=1280,900 \
    --screenshot="$pictures/compare.png" "file://$work/compare.html" >/dev/null 2>&1
for picture in "$pictures"/screen-*.svg "$pictures/compare.png"; do
    bytes=$(wc -c <"$picture")
    echo "$bytes $picture"
    [ "$bytes" -gt 5000 ] && [ "$bytes" -lt 150000 ] || fail "$picture has $bytes bytes"
done
