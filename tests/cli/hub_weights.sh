#!/bin/sh
# hf:OWNER/REPO[@REV][/FILE] in a configuration is the snapshot in the cache of huggingface_hub, without a request; a run keeps the commit.
# What the cache does not have, and paths that leave the snapshot, are refused with the exit code of a wrong configuration.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
unset HF_HUB_CACHE
export HF_HOME="$work/hf" HF_ENDPOINT=http://hub.invalid
commit=0123456789abcdef0123456789abcdef01234567
repo=hf/hub/models--me--clip
mkdir -p $repo/refs/pr $repo/blobs $repo/snapshots/$commit images
printf %s $commit >$repo/refs/main
printf '%s\n' $commit >$repo/refs/pr/1
for f in "$MEOPT_SOURCE"/tests/data/names/clip-projection/*; do
    id=$(sha256sum <"$f" | cut -c1-64)
    cp "$f" $repo/blobs/$id
    ln -s ../../blobs/$id $repo/snapshots/$commit/"${f##*/}"
done
tar -xzf "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz"
find COCO2014 -name '*.jpg' | sort | head -4 | while read -r f; do cp "$f" images/; done
cat >c.yaml <<YAML
model:
  weight_t: hf:me/clip
  weight_s: hf:me/clip@pr/1
data:
  root: images
  image_size: 28
train:
  batch_size: 4
  precision: fp32
optim:
  use_meopt: false
YAML
train() { # NAME KEYS...
    name=$1
    shift
    "$MEOPT" train c.yaml model_t.heads=2 model_s.heads=2 "$@" --steps 2 --run-dir . --name "$name" --no-dashboard >log 2>&1 ||
        { cat log; fail "train $name"; }
    "$MEOPT" export "$name" --out "$name.safetensors" >log 2>&1 || { cat log; fail "export $name"; }
    tail -c +$(($(od -An -tu8 -N8 "$name.safetensors") + 9)) "$name.safetensors" >"$name.tensors"
}
train hub
direct=$(find "$MEOPT_SOURCE/tests/data/names/clip-projection" -name '*.safetensors')
train direct model_t.weight="$direct" model_s.weight="$direct"
cmp hub.tensors direct.tensors || fail "other weights than the file's"
train file model_s.weight="hf:me/clip@$commit/${direct##*/}"
cmp hub.tensors file.tensors || fail "FILE of a repository"
grep -rq "$PWD/$repo/snapshots/$commit" hub/*.yaml || fail "the run does not keep the commit"

refused() { # NAME OF THE WEIGHTS
    sed "s|hf:me/clip@pr/1|$1|" c.yaml >bad.yaml
    exits 7 "$MEOPT" config check bad.yaml >log 2>&1 || { cat log; fail "$1: exit $code, not 7"; }
    grep -q 'bad.yaml:3' log || { cat log; fail "$1: no position"; }
}
for bad in hf:me/other hf:me/clip@v2 hf:me/clip/none hf:me/clip@pr hf:me/clip@pr/1/../.. hf:me/clip/../x hf:me/clip/ hf:me/clip@ hf:../x; do
    refused $bad
done
refused hf:datasets/me/clip
grep -q 'fetch hf:datasets/me/clip@main' log || { cat log; fail "no command that fetches it"; }
printf 'not a commit' >$repo/refs/odd
refused hf:me/clip@odd
code=0
"$MEOPT" train c.yaml model_s.weight=hf:me/other --steps 1 --run-dir . --name bad >log 2>&1 || code=$?
[ $code = 7 ] && [ ! -e bad ] || { cat log; fail "exit $code, not 7, or a run without weights"; }
(cd hf && HF_HUB_CACHE=hub "$MEOPT" config check ../c.yaml >log 2>&1) || fail "a relative HF_HUB_CACHE"
HF_HUB_CACHE=elsewhere "$MEOPT" config check c.yaml >log 2>&1 && fail "HF_HUB_CACHE was not read"
HOME="$work" HF_HOME='~/hf' "$MEOPT" config check c.yaml >log 2>&1 || { cat log; fail "~ in HF_HOME"; }

# without requests, fetch accepts what is there
HF_HUB_OFFLINE=1 "$MEOPT" fetch hf:me/clip >log 2>&1 || { cat log; fail "a snapshot without the hub"; }
HF_HUB_OFFLINE=1 "$MEOPT" fetch hf:me/clip --list | grep -q "${direct##*/}" || fail "list without the hub"
rm $repo/blobs/$(sha256sum <"$direct" | cut -c1-64)
code=0
HF_HUB_OFFLINE=1 "$MEOPT" fetch hf:me/clip >log 2>&1 || code=$?
[ $code = 4 ] || fail "an incomplete snapshot: exit $code, not 4"
