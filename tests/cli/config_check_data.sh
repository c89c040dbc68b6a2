#!/bin/sh
# `meopt config check --data` names every bad image and every directory entry that cannot be read, before training. Exit code 0 if training
# would run, 1 if it would end.
set -eu
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
check() { # CODE BAD [key=value]: the exit code, and that many problems in the JSON
    exits "$1" "$MEOPT" config check --data --json configs/quickstart.yaml >out 2>err || fail "exit code $code, expected $1"
    bad=$(grep -c '"file": ".*COCO2014/' out) || true
    [ "$bad" = "$2" ] || fail "$bad problems below the images, expected $2"
}
few_images 40
check 0 0
first=$(find sample/COCO2014 -path '*train2014*' -name '*.jpg' | sort | head -n 1)
truncate -s 300 "$first"
check 0 1
grep -q "$(basename "$first")" out || fail "the bad image is not named"
for image in $(find sample/COCO2014 -path '*train2014*' -name '*.jpg' | sort | tail -n 3); do echo text >"$image"; done
check 1 4
"$MEOPT" config set configs/quickstart.yaml data.max_bad=0.5 >out 2>err || fail "set"
check 0 4
ln -s nowhere.jpg sample/COCO2014/train2014/dangling.jpg
check 1 5
code=0
"$MEOPT" train configs/quickstart.yaml --steps 1 --no-dashboard >out 2>err || code=$?
[ "$code" = 1 ] && grep -q 'data.exclude' err || fail "training with a dangling link: exit code $code"
"$MEOPT" config set configs/quickstart.yaml 'data.exclude=*dangling*' >out 2>err || fail "set"
check 0 4
