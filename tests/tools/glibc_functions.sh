#!/bin/sh
# The built files require nothing from glibc that CentOS 7 (2.17) lacks: no newer function except those that core/base/platform.c and
# core/base/transfer.c replace on an older glibc (test old_glibc), and new versions of old functions.
set -eu
command -v objdump >/dev/null || { echo "no objdump"; exit 77; }
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && echo "sanitizers bring functions of their own" && exit 77
[ "$(uname -m)" = x86_64 ] || { echo "the versions are those of x86_64"; exit 77; }
replaced='getrandom memfd_create renameat2 statx'
# 2.17 has these as well: in another library (2.34), as a macro (2.33), with other rules for errors or rounding (2.23 to 2.35), by
# another name in its headers (2.38).
versions='__isoc23_sscanf __isoc23_strtol __isoc23_strtoll __isoc23_strtoul __isoc23_strtoull __libc_start_main
    dladdr dlclose dlerror dlinfo dlopen dlsym exp exp2 exp2f expf fmod fstat fstatat hypot lgamma log log2
    log2f logf lstat mknod pow powf pthread_attr_setstacksize pthread_cancel pthread_condattr_setclock pthread_create pthread_detach
    pthread_getspecific pthread_join pthread_key_create pthread_key_delete pthread_kill pthread_mutex_trylock
    pthread_mutexattr_destroy pthread_mutexattr_init pthread_mutexattr_settype pthread_once pthread_rwlock_rdlock
    pthread_rwlock_unlock pthread_rwlock_wrlock pthread_setspecific pthread_sigmask pthread_timedjoin_np sem_post sem_wait stat'
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
for name in $replaced $versions; do echo "$name"; done | sort >"$dir/known"
seen=
for file in "$MEOPT" "$MEOPT_BUILD"/libmeopt*.so; do
    [ -e "$file" ] || continue
    objdump -T "$file" | sed -n 's/.*\*UND\*.*[ (]GLIBC_2\.\(1[89]\|[2-9][0-9]\)\(\.[0-9]*\)*)* \(.*\)/\3/p' | sort -u >"$dir/newer"
    seen="$seen$(wc -l <"$dir/newer") "
    comm -23 "$dir/newer" "$dir/known" >"$dir/unknown"
    [ ! -s "$dir/unknown" ] && continue
    echo "${file##*/} needs of a glibc newer than 2.17: $(tr '\n' ' ' <"$dir/unknown")" >&2
    echo "do without where __GLIBC_PREREQ says so (core/base/platform.c), or write it into the list here, and into core/base/glibc_2_17.h" >&2
    exit 1
done
echo "newer than 2.17, all known: $seen"
