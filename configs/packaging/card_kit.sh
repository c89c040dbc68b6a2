#!/bin/sh
# card_kit.sh BUILD NAME CC DIR [KERNELS]: NAME.tar.xz in DIR for a machine that has a card, its driver and glibc 2.17 or later: run.sh
# (tests/bench/card.sh), the program of the tarball, the tests that run.sh names as one program, the code objects of KERNELS (BUILD/kernels), and
# the data of both. KERNELS of none are an error, as is an archive of more than 16 MiB. XZ: another command that
# compresses, to save time.
set -eu
build=$1 name=$2 cc=$3 to=$4 kernels=${5:-$1/kernels}
here=$(cd "$(dirname "$0")" && pwd)
source=$here/../..
archs=$(find "$kernels" -name 'meopt-*.co' 2>/dev/null | sed 's/.*meopt-\(.*\)\.co/\1/' | sort | tr '\n' ' ')
[ "$archs" ] || { echo "no code objects in $kernels: build with -DMEOPT_GPU_ARCHS=ARCH, for example sm_90 or gfx90a" >&2; exit 1; }
work=$(mktemp -d "$to/card-kit.XXXXXX")
trap 'rm -rf "$work"' EXIT
kit=$work/$name
mkdir -p "$kit/bin" "$kit/lib/meopt" "$kit/tests/data/preprocess" "$kit/configs" "$kit/sample" "$kit/python"
. "$here/static_link.sh"
link_program "$kit/bin/meopt" "$build/CMakeFiles/meopt.dir/cli/main.c.o" "$build/libmeopt_commands.a" "$build/libmeopt.a"

# One program for all tests, which is told by its name which one it is: each object keeps its main alone, as main_TEST.
tests=$(sed -n 's/^test \([a-z_]*\) .*/\1/p' "$source/tests/bench/card.sh")
{
    echo '#include <stdio.h>'
    echo '#include <stdlib.h>'
    echo '#include <string.h>'
    for test in $tests; do echo "int main_$test(int, char **);"; done
    echo 'static const struct { const char *name; int (*run)(int, char **); } tests[] = {'
    for test in $tests; do echo "{\"$test\", main_$test},"; done
    cat <<'C'
};
int main(int argc, char **argv)
{
    const char *own = getenv("KIT_TEST"), *slash = strrchr(argv[0], '/'), *name = own ? own : slash ? slash + 1 : argv[0];
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(tests[i].name, name) == 0) return tests[i].run(argc, argv);
    return fprintf(stderr, "%s: no such test\n", name), 2;
}
C
} >"$work/main.c"
$cc -O1 -c "$work/main.c" -o "$work/main.o"
set -- "$work/main.o"
for test in $tests; do
    object=$(find "$build/tests/CMakeFiles/test_$test.dir" -name "$test.c.o")
    [ -e "$object" ] || { echo "the test $test is not built: cmake --build $build --target test_$test" >&2; exit 1; }
    objcopy --redefine-sym "main=main_$test" --keep-global-symbol "main_$test" "$object" "$work/$test.o"
    set -- "$@" "$work/$test.o"
    ln -s ../bin/card-tests "$kit/tests/$test"
done
cmocka=$(sed -n 's/^CMOCKA_LIBRARY:[A-Z]*=//p' "$build/CMakeCache.txt")
cp -L "$cmocka" "$kit/lib/$(readelf -d "$cmocka" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')"
# shellcheck disable=SC2016 # the loader's word
link_program "$kit/bin/card-tests" "$@" "$build/libmeopt_commands.a" "$build/libmeopt.a" "$cmocka" -Wl,-rpath,'$ORIGIN/../lib'
cp -L "$build/libmeopt-optim.so" "$kit/lib/"
strip "$kit"/lib/*.so*
for file in "$kit"/bin/* "$kit"/lib/*.so*; do check_glibc "$file"; done

find "$kernels" -name 'meopt-*.co' -exec cp {} "$kit/lib/meopt/" \;
cp "$source"/configs/*.yaml "$kit/configs/"
for archive in "$source"/configs/sample/*.tar.gz; do tar -xzf "$archive" -C "$kit/sample"; done
rm -rf "$kit"/sample/ModelWeight/CLIP*
# Golden data of the tests; of towers and classifiers one of each kind of block.
(cd "$source/tests/data" && tar -cf - bert bert_classify lora distill preprocess/images language/gpt2 language/greedy.json language/llama \
    language/qwen3 language/qwen3-tied classify/cross_entropy.safetensors classify/dinov2-hub classify/timm-vit towers/dinov2-hf \
    towers/dinov2-registers towers/dinov3 towers/dinov3-swiglu towers/eva-dh88 towers/eva02 towers/eva-postnorm towers/openclip-coca \
    towers/siglip towers/vit-gap towers/vit-plain) | tar -xf - -C "$kit/tests/data"
cp -R "$source/core/python/meopt" "$kit/python/"
cp "$source/tests/bench/train_torch.py" "$kit/python/"
cp "$source/tests/bench/card.sh" "$kit/run.sh"
cp "$source/LICENSE" "$kit/"
find "$kit" -name __pycache__ -prune -exec rm -rf {} +
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX -cf - "$name" | ${XZ:-xz --x86 --lzma2=preset=9e,lc=0,lp=2} >"$work/part"
bytes=$(wc -c <"$work/part")
[ "$bytes" -le $((16 << 20)) ] || [ "${XZ:-}" ] || { echo "$name.tar.xz has $bytes bytes, more than 16 MiB: build fewer archs than $archs" >&2; exit 1; }
mv "$work/part" "$to/$name.tar.xz"
echo "$to/$name.tar.xz: $((bytes >> 10)) KiB; code objects: $archs"
