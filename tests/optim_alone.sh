# libmeopt-optim.so is the optimizers alone: the program of libmeopt(3) builds against it, prints what it prints with libmeopt.so on any
# number of threads, and no library comes with it but the C library's own.
set -eu
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && echo "sanitizers bring libraries of their own" && exit 77
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cmake --install "$MEOPT_BUILD" --prefix "$dir/usr" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
sed -n '/^\.Bd -literal/,/^\.Ed/p' "$MEOPT_SOURCE/man/libmeopt.3" | sed '/^\.[BE]d/d; s/\\e/\\/g' >"$dir/example.c"
PKG_CONFIG_PATH=$(dirname "$(find "$dir/usr" -name meopt-optim.pc)")
export PKG_CONFIG_PATH
libdir=$(dirname "$PKG_CONFIG_PATH")
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt")
for library in meopt meopt-optim; do # eval: pkg-config's words are escaped for a shell, a path may hold a space
    eval "\"\$cc\" -std=c11 -Wall -Wextra -Werror \"\$dir/example.c\" -o \"\$dir/\$library\" $(pkg-config --cflags --libs $library)"
    LD_LIBRARY_PATH=$libdir "$dir/$library" >"$dir/$library.out"
done
cmp "$dir/meopt.out" "$dir/meopt-optim.out"
LD_LIBRARY_PATH=$libdir taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" "$dir/meopt-optim" | cmp - "$dir/meopt.out"
grep -q 'bytes a parameter' "$dir/meopt.out"

LD_LIBRARY_PATH=$libdir ldd "$dir/meopt-optim" >"$dir/ldd"
if grep -vE '^[[:space:]]*(linux-vdso|/.*/ld-linux|lib(c|m|dl|pthread)\.so|libmeopt-optim\.so)' "$dir/ldd"; then
    echo "libmeopt-optim.so brings more than the C library" && exit 1
fi
nm -D --defined-only "$libdir/libmeopt.so" | sed -n 's/.* T //p' | sort >"$dir/all"
nm -D --defined-only "$libdir/libmeopt-optim.so" | sed -n 's/.* T //p' | sort >"$dir/alone"
[ "$(wc -l <"$dir/alone")" -ge 40 ]
diff "$dir/all" "$dir/alone"
