#!/bin/sh
# The program and libmeopt-optim.so build against glibc 2.17 (CentOS 7) and run. `zig cc` provides that glibc's declarations and symbols;
# constants and call numbers newer than it and Linux 3.10 are removed. MEOPT_ZIG or PATH has the compiler (pip: ziglang). Other libraries
# are those of this machine.
set -eu
[ "${MEOPT_LONG:-}" ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
zig=$(command -v "${MEOPT_ZIG:-zig}") || { echo "no zig in PATH, nor named by MEOPT_ZIG"; exit 77; }
[ "$(uname -m)" = x86_64 ] || { echo "glibc 2.17 of x86_64 alone"; exit 77; }
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
build=$work/build

# Headers of others alone: next to them in /usr/include lie those of a newer glibc.
mkdir -p "$work/include/openssl"
for from in /usr/include /usr/include/x86_64-linux-gnu; do
    for name in yaml.h pcre2.h utf8proc.h jansson\*.h curl archive\*.h j\*.h libpng\*/png\*.h webp zlib.h zconf.h ncurses\*.h curses.h \
        term.h unctrl.h; do
        for header in "$from"/$name; do [ ! -e "$header" ] || ln -sfn "$header" "$work/include/"; done
    done
    [ ! -d $from/openssl ] || ln -sf $from/openssl/*.h "$work/include/openssl/"
done
{
    printf '#include <%s>\n' fcntl.h sys/stat.h sys/syscall.h
    for name in O_TMPFILE F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW SYS_memfd_create SYS_getrandom SYS_renameat2 \
        SYS_close_range SYS_pidfd_open SYS_pidfd_send_signal __NR_landlock_create_ruleset; do echo "#undef $name"; done
} >"$work/older.h"
# crc32: zig leaves it out of what sse4.2 stands for, which no other compiler does.
cat >"$work/cc" <<'END_OF_CC'
#!/bin/sh
system=
for word; do
    shift
    case $system$word in
        -I/usr/include*) ;;
        -isystem) system=yes ;;
        yes/usr/include*) system= ;;
        yes*) set -- "$@" -isystem "$word" && system= ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec "$ZIG" cc -target x86_64-linux-gnu.2.17 -mcpu=x86_64+crc32 -fno-sanitize=all -isystem "$OLD/include" -include "$OLD/older.h" "$@"
END_OF_CC
chmod +x "$work/cc"
export ZIG="$zig" OLD="$work"
export ZIG_GLOBAL_CACHE_DIR="${ZIG_GLOBAL_CACHE_DIR:-$work/cache}" ZIG_LOCAL_CACHE_DIR="$work/cache"
cmocka=$(sed -n 's/^CMOCKA_LIBRARY:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt") # beside it are the other libraries
cmake -S "$MEOPT_SOURCE" -B "$build" -G Ninja -DCMAKE_C_COMPILER="$work/cc" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0 \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined -DCMAKE_LIBRARY_PATH="${cmocka%/*}" -DMEOPT_OPENMP=OFF -DMEOPT_MPI=OFF -DMEOPT_GPU_ARCHS=none -DBUILD_TESTING=OFF >"$work/log" 2>&1 ||
    fail "cmake"
nice -n 10 ninja -C "$build" meopt meopt_optim >"$work/log" 2>&1 || { grep error: "$work/log" >&2; fail "it does not build"; }
for file in meopt libmeopt-optim.so; do
    objdump -T "$build/$file" | grep -o 'GLIBC_[0-9.]*' | sort -Vu >"$work/versions"
    [ "$(tail -n 1 "$work/versions")" = GLIBC_2.17 ] || fail "$file needs $(tail -n 1 "$work/versions")"
done

# The optimizers alone: the program of libmeopt(3), built for 2.17 as well, prints what it prints with this machine's own build.
sed -n '/^\.Bd -literal/,/^\.Ed/p' "$MEOPT_SOURCE/man/libmeopt.3" | sed '/^\.[BE]d/d; s/\\e/\\/g' >"$work/example.c"
"$work/cc" -I"$MEOPT_SOURCE/core" "$work/example.c" -o "$work/example" -L"$build" -lmeopt-optim -lm 2>"$work/log" || fail "example"
LD_LIBRARY_PATH=$build "$work/example" >"$work/found" || fail "the example does not run"
LD_LIBRARY_PATH=$MEOPT_BUILD "$work/example" >"$work/expected"
diff "$work/expected" "$work/found"

# The program, on a kernel of that age where there is a filter for that.
old=$MEOPT_BUILD/tests/test_old_kernel
code=0
"$old" true || code=$?
[ "$code" != 77 ] || old=env
"$old" "$build/meopt" train "$work/configs/quickstart.yaml" device.type=cpu train.steps=2 train.batch_size=4 --workers 2 --run-dir "$work" \
    --name old >"$work/log" 2>&1 || fail "training"
"$old" "$build/meopt" export "$work/old" --format pt --out "$work/student.pt" >"$work/log" 2>&1 || fail "export"
[ -s "$work/student.pt" ] || fail "nothing was exported"
