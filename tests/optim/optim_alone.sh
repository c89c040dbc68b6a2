# libmeopt-optim.so is the optimizers alone: the program of libmeopt(3) builds against it, prints what it prints with libmeopt.so on any
# number of threads, and no library comes with it but the C library's own.
set -eu
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && echo "sanitizers bring libraries of their own" && exit 77
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
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
grep -q 'bytes per parameter' "$dir/meopt.out"

LD_LIBRARY_PATH=$libdir ldd "$dir/meopt-optim" >"$dir/ldd"
if grep -vE '^[[:space:]]*(linux-vdso|/.*/ld-linux|lib(c|m|dl|pthread)\.so|libmeopt-optim\.so)' "$dir/ldd"; then
    echo "libmeopt-optim.so brings more than the C library" && exit 1
fi
nm -D --defined-only "$libdir/libmeopt.so" | sed -n 's/.* T //p' | sort >"$dir/all"
nm -D --defined-only "$libdir/libmeopt-optim.so" | sed -n 's/.* T //p' | sort >"$dir/alone"
[ "$(wc -l <"$dir/alone")" -ge 40 ]
diff "$dir/all" "$dir/alone"

# States in a file, of a handle whose every tensor is there.
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

# Steps ask the system nothing: with threads 0 the cores are counted when the handle is made, and not again.
cat >"$dir/cores.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <meopt.h>
#include <stdio.h>
static int opened;
FILE *fopen(const char *path, const char *mode) /* in place of the C library's, also for libmeopt-optim */
{
    FILE *(*open)(const char *, const char *);
    *(void **)&open = dlsym(RTLD_NEXT, "fopen");
    opened++;
    return open(path, mode);
}
static float gradient[64];
int main(void)
{
    struct meopt_options o;
    struct meopt_error err = {0};
    struct meopt *opt;
    struct meopt_tensor table = {.name = "w", .ndim = 1, .shape = {64}};
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    if (meopt_create(&opt, &o, &table, 1, &err)) return puts(err.message), 1;
    int before = opened;
    if (!before) return puts("meopt_create counts no cores: this test sees nothing"), 1;
    for (int step = 1; step <= 3; step++) {
        struct meopt_gradient g = {gradient, MEOPT_F32};
        if (meopt_step(opt, step, 1e-3, 1, &g, NULL, &err)) return puts(err.message), 1;
    }
    meopt_destroy(opt);
    if (opened != before) return printf("three steps have opened %d files\n", opened - before), 1;
    return 0;
}
END
eval "\"\$cc\" -std=c11 -Wall -Wextra -Werror \"\$dir/cores.c\" -o \"\$dir/cores\" $(pkg-config --cflags --libs meopt-optim) -ldl"
LD_LIBRARY_PATH=$libdir "$dir/cores"

# Loaded, used, forked and unloaded again as a binding does it: parent and child step on threads, to the same bits, and nothing stays.
cat >"$dir/load.c" <<'END'
#include <dlfcn.h>
#include <meopt.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
enum { N = 150 * 300 };
static float gradient[N], child[N];
static struct {
    int (*init)(size_t, struct meopt_options *, size_t, int);
    int (*preset)(struct meopt_options *, const char *, struct meopt_error *);
    int (*create)(struct meopt **, const struct meopt_options *, const struct meopt_tensor *, size_t, struct meopt_error *);
    int (*step)(size_t, struct meopt *, int64_t, double, double, const struct meopt_gradient *, struct meopt_step_stats *, struct meopt_error *);
    int (*values)(const struct meopt *, size_t, int64_t, int64_t, float *, struct meopt_error *);
    void (*destroy)(struct meopt *);
} of;
static int steps(struct meopt *opt, int first, int last)
{
    struct meopt_gradient g = {gradient, MEOPT_F32};
    int bad = 0;
    for (int step = first; step <= last; step++) bad |= of.step(sizeof(struct meopt_step_stats), opt, step, 1e-3, 1, &g, NULL, NULL);
    return bad;
}
static void *one_host_thread(void *result) /* with a handle of its own */
{
    struct meopt_options o;
    struct meopt *opt;
    struct meopt_tensor table = {.name = "w", .ndim = 2, .shape = {150, 300}};
    of.init(sizeof table, &o, sizeof o, MEOPT_APADAMW);
    of.preset(&o, "balanced", NULL);
    o.threads = 3;
    if (of.create(&opt, &o, &table, 1, NULL) || steps(opt, 1, 2)) return "";
    int ends[2];
    if (pipe(ends)) return "";
    pid_t pid = fork();
    if (pid == 0) {
        if (steps(opt, 3, 4) || of.values(opt, 0, 0, N, child, NULL)) _exit(1);
        for (size_t done = 0; done < sizeof child;) {
            ssize_t n = write(ends[1], (char *)child + done, sizeof child - done);
            if (n < 0) _exit(2);
            done += (size_t)n;
        }
        _exit(0);
    }
    close(ends[1]);
    static float got[2][N];
    float *theirs = got[result != NULL];
    size_t done = 0;
    for (ssize_t n; done < sizeof child && (n = read(ends[0], (char *)theirs + done, sizeof child - done)) > 0;) done += (size_t)n;
    close(ends[0]);
    waitpid(pid, NULL, 0); /* what it wrote tells; valgrind takes the other thread's blocks there for lost */
    static float ours[2][N];
    int bad = done != sizeof child || steps(opt, 3, 4) || of.values(opt, 0, 0, N, ours[result != NULL], NULL);
    of.destroy(opt);
    return bad || memcmp(ours[result != NULL], theirs, sizeof child) ? "" : NULL;
}
int main(int argc, char **argv)
{
    for (int i = 0; i < N; i++) gradient[i] = (float)(i % 71) - 35;
    for (int times = 0; times < 2; times++) {
        void *library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL), *bad = NULL;
        if (!library) return puts(dlerror()), 1;
        *(void **)&of.init = dlsym(library, "meopt_options_init_sized");
        *(void **)&of.preset = dlsym(library, "meopt_options_preset");
        *(void **)&of.create = dlsym(library, "meopt_create");
        *(void **)&of.step = dlsym(library, "meopt_step_sized");
        *(void **)&of.values = dlsym(library, "meopt_export");
        *(void **)&of.destroy = dlsym(library, "meopt_destroy");
        pthread_t other;
        pthread_create(&other, NULL, one_host_thread, &times);
        if (one_host_thread(NULL)) return puts("steps of the first thread"), 1;
        pthread_join(other, &bad);
        if (bad) return puts("steps of the second thread"), 1;
        if (dlclose(library)) return puts(dlerror()), 1;
        if (dlopen(argv[argc - 1], RTLD_NOW | RTLD_NOLOAD)) return puts("it stays loaded"), 1;
    }
    return 0;
}
END
eval "\"\$cc\" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror \"\$dir/load.c\" -o \"\$dir/load\" $(pkg-config --cflags meopt-optim) -ldl -pthread"
"$dir/load" "$libdir/libmeopt-optim.so"
if command -v valgrind >/dev/null; then
    env -u MEOPT_CPU_ISA valgrind -q --child-silent-after-fork=yes --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
        "$dir/load" "$libdir/libmeopt-optim.so" >"$dir/valgrind" 2>&1 || { cat "$dir/valgrind"; exit 1; }
fi
