#!/bin/sh
# From a fresh Debian or Ubuntu machine to three trained students: packages, build, sample archives, training without and
# with MEOpt, export, and a comparison. Safe to run again.
set -eu
cd "$(dirname "$0")/.."
sh configs/packages.sh
cmake --preset release -DBUILD_TESTING=OFF >/dev/null
cmake --build --preset release
meopt=build/meopt

"$meopt" fetch sample --dest sample

stamp=$(date -u +%Y%m%dT%H%M%SZ)
for pair in quickstart quickstart_openclip quickstart_dinov2; do
    for use in false true; do
        name=$pair-$stamp-meopt-$use
        echo "== $name"
        "$meopt" train "configs/$pair.yaml" "optim.use_meopt=$use" --run-dir runs --name "$name" 2>"runs-$name.log" || {
            cat "runs-$name.log" >&2
            exit 1
        }
        mv "runs-$name.log" "runs/$name/train.log"
        grep '^loss .*->' "runs/$name/train.log"
        grep '^peak' "runs/$name/train.log"
    done
    "$meopt" export "runs/$name" --format pt
done

# What it is for: the same training of a model that fills the memory, without and with MEOpt, as a table and a page.
compare=quickstart_compare-$stamp
echo "== $compare"
"$meopt" compare --run configs/quickstart_compare.yaml --run-dir runs --name "$compare" --html "runs/$compare.html"
echo "runs are in runs/, exported students beside them; the comparison is runs/$compare.html"
