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

# States in a file, of a handle whose every tensor is there: by threads, for it has no liburing.
cat >"$dir/file.c" <<'END'
#include <meopt.h>
#include <stdio.h>
#include <string.h>
static float gradient[300 * 300];
int main(void)
{
    struct meopt_options o;
    struct meopt_error err = {0};
    struct meopt *opt;
    struct meopt_tensor table = {.name = "w", .ndim = 2, .shape = {300, 300}};
    struct meopt_offload_info info = {.size = sizeof info};
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    o.offload = MEOPT_OFFLOAD_FILE;
    o.offload_dir = ".";
    if (meopt_create(&opt, &o, &table, 1, &err)) return puts(err.message), 1;
    for (int step = 1; step <= 3; step++) {
        struct meopt_gradient g = {gradient, MEOPT_F32};
        if (meopt_step(opt, step, 1e-3, 1, &g, NULL, &err)) return puts(err.message), 1;
    }
    int bad = meopt_offloaded(opt, &info, &err) || info.moments < 720000 || strcmp(info.how, "threads") != 0;
    meopt_destroy(opt);
    return bad;
}
END
eval "\"\$cc\" -std=c11 -Wall -Wextra -Werror \"\$dir/file.c\" -o \"\$dir/file\" $(pkg-config --cflags --libs meopt-optim)"
(cd "$dir" && LD_LIBRARY_PATH=$libdir ./file)
