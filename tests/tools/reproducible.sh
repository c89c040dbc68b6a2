#!/bin/sh
# The same sources give the same bytes in any directory. What is installed names neither the sources' directory nor the build directory.
# Long: two builds from copies of the sources in different directories give the same tarball.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
grep -q '^MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && echo "skipped: a build with sanitizers is not shipped" && exit 77
grep -q '^MEOPT_PREFIX_MAP:INTERNAL=1' "$MEOPT_BUILD/CMakeCache.txt" || { echo "skipped: no -ffile-prefix-map"; exit 77; }
cd "$MEOPT_BUILD"
shipped=$(find . -maxdepth 2 \( -name meopt -o -name 'libmeopt*.so*' -o -name libmeopt.a -o -name 'meopt-*.co' \) -type f)
[ -n "$shipped" ] || fail "nothing was built"
# shellcheck disable=SC2086 # names without spaces
if grep -lF -e "$MEOPT_SOURCE/" -e "$MEOPT_BUILD/" $shipped; then fail "a file names a directory of this build"; fi

[ "${MEOPT_LONG:-}" ] || exit 0
export CCACHE_DISABLE=1 SOURCE_DATE_EPOCH=1700000000 # ccache would give the first directory's objects to the second
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' CMakeCache.txt)
for place in "$work/one" "$work/another directory/below"; do
    mkdir -p "$place"
    cd "$MEOPT_SOURCE"
    cp -R CMakeLists.txt CHANGELOG.md LICENSE README.md cli configs core fetch kernels man po "$place"
    rm -rf "$place/core/python/build"
    build=$place/build
    [ "$place" = "$work/one" ] || build=$work/build # within the sources, and outside
    cmake -S "$place" -B "$build" -DCMAKE_C_COMPILER="$cc" -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DMEOPT_GPU_ARCHS=none >"$work/log" 2>&1 ||
        fail "cmake"
    nice -n 10 cmake --build "$build" --target tarball -j "$(nproc)" >"$work/log" 2>&1 || fail "the build in $build"
    find "$build" -maxdepth 1 -name '*.tar.gz' >>"$work/archives"
done
one=$(sed -n 1p "$work/archives") other=$(sed -n 2p "$work/archives")
if cmp "$one" "$other"; then exit 0; fi
mkdir "$work/a" "$work/b"
tar -xzf "$one" -C "$work/a"
tar -xzf "$other" -C "$work/b"
diff -rq "$work/a" "$work/b" || :
fail "the tarballs of two directories differ"
