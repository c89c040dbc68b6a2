#!/bin/sh
# From a fresh Debian or Ubuntu machine to three trained students, a classifier and a language model: packages, build, sample archives, training
# without and with MEOpt, export, and a comparison. Safe to run again.
# --prefix DIR installs the program, its pages and its completion below DIR (as $HOME/.local) too.
set -eu
prefix=
case ${1:-} in
--prefix) prefix=${2:?--prefix needs a directory} ;;
--prefix=?*) prefix=${1#--prefix=} ;;
'') ;;
*)
    echo "usage: sh configs/quickstart.sh [--prefix DIR]" >&2
    exit 2
    ;;
esac
case $prefix in '' | /*) ;; *) prefix=$PWD/$prefix ;; esac
cd "$(dirname "$0")/.."
sh configs/packages.sh
# A build/ of another generator (or of another place: then it is made anew) goes on with its own.
generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' build/CMakeCache.txt 2>/dev/null || true)
home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' build/CMakeCache.txt 2>/dev/null || true)
if [ -n "$home" ] && [ "$home" != "$(pwd -P)" ] && [ "$home" != "$PWD" ]; then
    rm -rf build/CMakeCache.txt build/CMakeFiles
    generator=
fi
# Code objects for the cards of this machine alone, unless an earlier configuration of build/ names others.
archs=
grep -q '^MEOPT_GPU_ARCHS:' build/CMakeCache.txt 2>/dev/null || archs=-DMEOPT_GPU_ARCHS=native
cmake -S . -B build -G "${generator:-Ninja}" -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF $archs | grep 'cards of this machine' || true
cmake --build build -j "$(nproc)"
[ -z "$prefix" ] || cmake --install build --prefix "$prefix" >/dev/null
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

# A classifier of handwritten digits, from random values.
"$meopt" fetch digits --dest sample
digits=digits-$stamp
echo "== $digits"
"$meopt" train configs/digits.yaml --run-dir runs --name "$digits" 2>"runs-$digits.log" || {
    cat "runs-$digits.log" >&2
    exit 1
}
mv "runs-$digits.log" "runs/$digits/train.log"
grep '^loss .*->' "runs/$digits/train.log"
"$meopt" export "runs/$digits" --format timm

# A language model of bytes, from random values; it continues a text.
"$meopt" fetch genesis --dest sample
bytes=bytes-$stamp
echo "== $bytes"
"$meopt" train configs/bytes.yaml --run-dir runs --name "$bytes" 2>"runs-$bytes.log" || {
    cat "runs-$bytes.log" >&2
    exit 1
}
mv "runs-$bytes.log" "runs/$bytes/train.log"
grep '^loss .*->' "runs/$bytes/train.log"
"$meopt" generate "runs/$bytes" --prompt "And God said" --count 100

# What it is for: the same training of a model that fills the memory, without and with MEOpt, as a table and a page.
compare=quickstart_compare-$stamp
echo "== $compare"
"$meopt" compare --run configs/quickstart_compare.yaml --run-dir runs --name "$compare" --html "runs/$compare.html"
echo "runs are in runs/, exported students are next to them; the comparison is runs/$compare.html"
if [ -n "$prefix" ]; then bin=$prefix/bin; else bin=$PWD/build; fi
echo "the program is $bin/meopt; to have it as 'meopt':  export PATH=\"$bin:\$PATH\""
