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

stamp=$(date -u +%Y%m%dT%H%M%SZ)
train() { # NAME CONFIG [KEY=VALUE]: prints the loss and the peak memory
    echo "== $1"
    name=$1 config=$2
    shift 2
    OMP_NUM_THREADS=1 "$meopt" train "configs/$config.yaml" "$@" --run-dir runs --name "$name" 2>"runs-$name.log" || {
        cat "runs-$name.log" >&2
        exit 1
    }
    mv "runs-$name.log" "runs/$name/train.log"
    grep '^loss .*->' "runs/$name/train.log"
    grep '^peak' "runs/$name/train.log"
}
image_models() { # from the samples: three students, without and with MEOpt; a classifier of handwritten digits, from random values
    "$meopt" fetch sample --dest sample
    "$meopt" fetch digits --dest sample
    for pair in quickstart quickstart_openclip quickstart_dinov2; do
        for use in false true; do train "$pair-$stamp-meopt-$use" $pair optim.use_meopt=$use; done
        "$meopt" export "runs/$pair-$stamp-meopt-true" --format pt
    done
    train "digits-$stamp" digits
    "$meopt" export "runs/digits-$stamp" --format timm
}
language_model() { # a language model of bytes, from random values; it continues a text
    "$meopt" fetch genesis --dest sample
    train "bytes-$stamp" bytes train.steps=300
    "$meopt" generate "runs/bytes-$stamp" --prompt "And God said" --count 100
}
# Models as small as these are trained by one thread each; so both parts run at once.
mkdir -p runs
code=0
trap 'trap - INT && kill 0' INT # what runs in the background does not get the terminal's signal
language_model >"runs/bytes-$stamp.out" 2>&1 &
language=$!
image_models &
wait $! || code=$?
wait $language || code=$?
trap - INT
cat "runs/bytes-$stamp.out"
rm "runs/bytes-$stamp.out"
[ $code = 0 ] || exit $code

# What it is for: the same training of a model that fills the memory, without and with MEOpt, as a table and a page.
compare=quickstart_compare-$stamp
echo "== $compare"
"$meopt" compare --run configs/quickstart_compare.yaml train.steps=10 --run-dir runs --name "$compare" --html "runs/$compare.html"
echo "runs are in runs/, exported students are next to them; the comparison is runs/$compare.html"
if [ -n "$prefix" ]; then bin=$prefix/bin; else bin=$PWD/build; fi
echo "the program is $bin/meopt; to have it as 'meopt':  export PATH=\"$bin:\$PATH\""
