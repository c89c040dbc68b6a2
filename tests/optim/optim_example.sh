# The program of libmeopt(3) builds against an installed library, through pkg-config and through CMake, and does what it
# says. What is tried first is the shared library, with nothing but meopt.h visible.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
cmake --install "$MEOPT_BUILD" --prefix "$dir/usr" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
sed -n '/^\.Bd -literal/,/^\.Ed/p' "$MEOPT_SOURCE/man/libmeopt.3" | sed '/^\.[BE]d/d; s/\\e/\\/g' >"$dir/example.c"
[ "$(wc -l <"$dir/example.c")" -ge 50 ]

PKG_CONFIG_PATH=$(dirname "$(find "$dir/usr" -name meopt.pc)")
export PKG_CONFIG_PATH
libdir=$(dirname "$PKG_CONFIG_PATH")
sanitize=
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && sanitize='-fsanitize=address,undefined'
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt")
# eval: pkg-config's words are escaped for a shell, a path may hold a space
eval "\"\$cc\" $sanitize -std=c11 -Wall -Wextra -Werror \"\$dir/example.c\" -o \"\$dir/example\" $(pkg-config --cflags --libs meopt)"
check() {
    LD_LIBRARY_PATH=$libdir "$1" >"$dir/out"
    cat "$dir/out"
    awk '/bytes per parameter/ {b = $1} /^loss/ {l = $2; o = $4} END {exit !(b > 4.4 && b < 4.75 && l < 0.05 && o > 0.9 && o < 1.1)}' "$dir/out"
}
check "$dir/example"
if nm -D --defined-only "$libdir/libmeopt.so" | grep -v ' meopt_' | grep ' T '; then
    echo "the shared library shows more than meopt_*"
    exit 1
fi

mkdir "$dir/cmake"
cat >"$dir/cmake/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.16)
project(example C)
find_package(meopt 0.2 REQUIRED)
add_executable(example ../example.c)
target_compile_options(example PRIVATE $sanitize)
target_link_options(example PRIVATE $sanitize)
target_link_libraries(example meopt::meopt)
END
cmake -S "$dir/cmake" -B "$dir/cmake/build" -DCMAKE_PREFIX_PATH="$dir/usr" -DCMAKE_C_COMPILER="$cc" >"$dir/log" 2>&1 &&
    cmake --build "$dir/cmake/build" >>"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
check "$dir/cmake/build/example"
