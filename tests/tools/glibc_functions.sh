#!/bin/sh
# The program and libmeopt-optim.so link against the symbols of glibc 2.17 (CentOS 7), require no newer one, and run. Functions that glibc
# lacks and core/base/glibc_2_17.c does not have are named by the linker. Other libraries are those of this machine.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
glibc=$MEOPT_BUILD/glibc
[ -e "$glibc/libglibc_2_17.a" ] || { echo "no glibc, no readelf, or sanitizers: nothing is linked for glibc 2.17"; exit 77; }
cd "$work"
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt")
others=$(readelf -d "$MEOPT" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -Ev '^(libc|libm|libdl|libpthread|librt)\.so|^ld-linux' | sed 's/^/-l:/')
requires_2_17() { # FILE
    objdump -T "$1" | grep -o 'GLIBC_[A-Z0-9._]*' | sort -Vu >versions
    [ "$(tail -n 1 versions)" = GLIBC_2.17 ] || fail "$1 requires $(tail -n 1 versions)"
}
link() { # OUT FILE...: as configs/packaging/static_link.sh does
    out=$1
    shift
    "$cc" -o "$out" -L"$glibc" -Wl,--wrap=__libc_start_main "$@" -lglibc_2_17 -static-libgcc -Wl,--no-as-needed -lpthread -ldl -lrt -lm 2>log ||
        { grep 'undefined reference' log >&2; fail "link"; }
}
# shellcheck disable=SC2086 # names without spaces
link meopt -Wl,--allow-shlib-undefined "$MEOPT_BUILD/CMakeFiles/meopt.dir/cli/main.c.o" "$MEOPT_BUILD/libmeopt_commands.a" "$MEOPT_BUILD/libmeopt.a" $others
requires_2_17 meopt
requires_2_17 "$MEOPT_BUILD/libmeopt-optim.so"
[ "$(./meopt version)" = "$("$MEOPT" version)" ] || fail "the program does not run"

# Constructors run once, and variables of glibc with several names are one variable.
cat >start.c <<'END'
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
extern char **environ;
static int count;
__attribute__((constructor)) static void construct(void) { count++; }
static void at_end(void) { puts("end"); }
int main(int arguments, char **argument)
{
    atexit(at_end);
    static char *variables[] = {"MEOPT_START=1", NULL};
    environ = variables; /* glibc reads __environ */
    struct stat status;
    if (stat("/", &status) != 0 || !S_ISDIR(status.st_mode) || strtol(argument[2], NULL, 10) != 17) return 1;
    fprintf(stdout, "%d %d %s %d\n", count, arguments, argument[1], getenv("MEOPT_START") != NULL);
    return 0;
}
END
"$cc" -c start.c
link start start.o
[ "$(./start word 17 | tr '\n' ' ')" = "1 3 word 1 end " ] || fail "the start of a program: $(./start word 17)"
