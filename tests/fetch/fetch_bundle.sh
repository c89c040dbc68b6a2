#!/bin/sh
# One file for machines without a network: --bundle makes it, --from takes all of it or what is named, through the same checks; a
# bundle that was cut, changed or made by another user leaves nothing. And without a network the reason is reported at once, with
# both cures, and the end comes soon.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir 'a place'
cd 'a place'
export XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config"
expect() { # CODE COMMAND...
    want=$1 got=0
    shift
    "$@" >out 2>err || got=$?
    [ "$got" = "$want" ] || fail "exit $got, expected $want: $*"
}
expect 0 "$MEOPT" fetch sample --dest there --bundle all.tar
grep -q 'all.tar .* 2 .*: meopt fetch --from all.tar$' err || fail "does not say how to continue"
[ "$(tar tf all.tar | tr '\n' ' ')" = "meopt-bundle.json COCO2014.tar.gz ModelWeight.tar.gz " ] || fail "$(tar tf all.tar)"
tar xOf all.tar COCO2014.tar.gz | cmp - "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz" || fail "an archive in it is another"

export https_proxy=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9
expect 0 "$MEOPT" fetch --from all.tar --dest here
diff -r --exclude=.meopt-complete there here || fail "another tree"
[ "$(ls -A here | tr '\n' ' ')" = "COCO2014 ModelWeight " ] || fail "left $(ls -A here)"
expect 0 "$MEOPT" fetch --from all.tar --dest here --json
[ "$(grep -c '"event":"done","already":true' out)" = 2 ] || fail "the second time"
expect 0 "$MEOPT" fetch --from all.tar sample-model-weight --dest one --keep-archive
[ "$(ls -A one | tr '\n' ' ')" = "ModelWeight ModelWeight.tar.gz " ] || fail "one archive of it: $(ls -A one)"
expect 2 "$MEOPT" fetch --from all.tar sample-model-wait --dest two
grep -q 'sample-model-weight?' err || fail "no suggestion"
expect 2 "$MEOPT" fetch sample --bundle b.tar --stream
expect 0 "$MEOPT" fetch --from all.tar --verify --dest here

# what is not right is refused, and nothing of it stays
refused() { # WHY
    expect 3 "$MEOPT" fetch --from bad.tar --dest bad
    [ ! -e bad/COCO2014 ] && [ -z "$(ls -A bad 2>/dev/null)" ] || fail "$1: left $(ls -A bad)"
}
head -c 400000 all.tar >bad.tar
refused "cut off"
mkdir x
tar xf all.tar -C x
printf x | dd of=x/COCO2014.tar.gz bs=1 seek=300000 conv=notrunc 2>/dev/null
(cd x && tar cf ../bad.tar meopt-bundle.json COCO2014.tar.gz ModelWeight.tar.gz)
refused "a changed archive"
(cd x && tar cf ../bad.tar meopt-bundle.json ModelWeight.tar.gz)
refused "a missing archive"
for change in 's/"COCO2014.tar.gz"/"..\/COCO2014.tar.gz"/' 's/"sha256": "./"sha256": "z/' 's/"version": 1/"version": 2/' 's/"size": [0-9]*/"size": -1/' 's/\[/[[/'; do
    sed "$change" x/meopt-bundle.json >x/changed
    (cd x && tar cf ../bad.tar --transform s/changed/meopt-bundle.json/ changed COCO2014.tar.gz ModelWeight.tar.gz)
    refused "$change"
done

# offline
mkdir -p "$work/config/meopt"
printf 'sources:\n  far:\n    file: far.tar.gz\n    url: https://far.invalid/far.tar.gz\n    top: FAR\n    size_about: 13000000000\n    trust_first_use: true\n' >"$work/config/meopt/sources.yaml"
export MEOPT_FETCH_PAUSE_SCALE=0.2
for proxy in '' http://127.0.0.1:9; do
    expect 4 env https_proxy="$proxy" "$MEOPT" fetch far
    head -1 err | grep -q 'far: .*\(resolve\|connect\).*https_proxy=http.*--from FILE' || fail "the reason and its cures are not the first line"
    tail -1 err | grep -q 'https_proxy=http.*--from FILE' || fail "the end names no cure"
done
# each pause is reported, also one that ends before the next regular report
expect 4 env MEOPT_FETCH_PAUSE_SCALE=0.01 "$MEOPT" fetch far --json
grep -q '"error":"[^"]*connect' out && grep -q '"retry_in_s":[0-9]' out || fail "--json without the reason"
"$MEOPT" fetch --list | grep -q '^far  *missing  *-  *~12.1 GiB' || fail "the size before the first byte"
