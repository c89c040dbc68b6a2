/* Functions that glibc 2.17 lacks, for programs linked by glibc_2_17.sh: those that came later, made of
 * older ones. Without the system call they fail with ENOSYS, as with a newer glibc. No header that
 * declares or renames them is included (stdlib.h: strtol); struct stat of 64-bit machines has one form. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 2.33: before, functions of the header that called these. */
#if defined(__x86_64__)
enum { STAT_VERSION = 1, MKNOD_VERSION = 0 };
#else
enum { STAT_VERSION = 0, MKNOD_VERSION = 0 };
#endif
int __xstat(int version, const char *path, void *status);
int __lxstat(int version, const char *path, void *status);
int __fxstat(int version, int descriptor, void *status);
int __fxstatat(int version, int directory, const char *path, void *status, int flags);
int __xmknod(int version, const char *path, unsigned mode, unsigned long *device);

int stat(const char *path, void *status) { return __xstat(STAT_VERSION, path, status); }
int lstat(const char *path, void *status) { return __lxstat(STAT_VERSION, path, status); }
int fstat(int descriptor, void *status) { return __fxstat(STAT_VERSION, descriptor, status); }
int fstatat(int directory, const char *path, void *status, int flags)
{
    return __fxstatat(STAT_VERSION, directory, path, status, flags);
}
int mknod(const char *path, unsigned mode, unsigned long device)
{
    return __xmknod(MKNOD_VERSION, path, mode, &device);
}
int stat64(const char *path, void *status) __attribute__((alias("stat")));
int lstat64(const char *path, void *status) __attribute__((alias("lstat")));
int fstat64(int descriptor, void *status) __attribute__((alias("fstat")));
int fstatat64(int directory, const char *path, void *status, int flags) __attribute__((alias("fstatat")));

/* 2.28: the same with the rules of 32-bit machines for locks; here both are one. */
int fcntl64(int descriptor, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return fcntl(descriptor, command, argument);
}

/* 2.38: those of C23, which read "0b1" as well. */
#define READS_NUMBER(type, name)                                                                             \
    type name(const char *text, char **end, int base);                                                       \
    type __isoc23_##name(const char *text, char **end, int base) { return name(text, end, base); }
READS_NUMBER(long, strtol)
READS_NUMBER(long long, strtoll)
READS_NUMBER(unsigned long, strtoul)
READS_NUMBER(unsigned long long, strtoull)
READS_NUMBER(long, strtoimax)
READS_NUMBER(unsigned long, strtoumax)
int __isoc99_vsscanf(const char *text, const char *format, va_list list);
int __isoc99_vfscanf(void *file, const char *format, va_list list);
int __isoc23_sscanf(const char *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int count = __isoc99_vsscanf(text, format, list);
    va_end(list);
    return count;
}
int __isoc23_fscanf(void *file, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int count = __isoc99_vfscanf(file, format, list);
    va_end(list);
    return count;
}

/* System calls: 2.25 to 2.30. */
int gettid(void) { return (int)syscall(SYS_gettid); }
long getrandom(void *p, size_t bytes, unsigned flags) { return syscall(SYS_getrandom, p, bytes, flags); }
int getentropy(void *p, size_t bytes)
{
    return getrandom(p, bytes, 0) == (long)bytes ? 0 : -1; /* at most 256 bytes: whole or not at all */
}
int memfd_create(const char *name, unsigned flags) { return (int)syscall(SYS_memfd_create, name, flags); }
int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags)
{
    return (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
}
int statx(int directory, const char *path, int flags, unsigned mask, void *status)
{
    return (int)syscall(SYS_statx, directory, path, flags, mask, status);
}

void abort(void);
/* 2.36. Never fails: from /dev/urandom on a kernel before 3.17. */
void arc4random_buf(void *p, size_t bytes)
{
    int file = -1;
    for (char *at = p; bytes;) {
        long got = getrandom(at, bytes, 0);
        if (got < 0 && errno == ENOSYS && file < 0) file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
        if (got < 0 && file >= 0) got = read(file, at, bytes);
        if (got == 0 || (got < 0 && errno != EINTR)) abort();
        if (got > 0) at += got, bytes -= (size_t)got;
    }
    if (file >= 0) close(file);
}

/* In the part of glibc that is linked into programs. */
extern void *__dso_handle;
int __cxa_atexit(void (*function)(void *), void *argument, void *handle);
int atexit(void (*function)(void)) { return __cxa_atexit((void (*)(void *))function, NULL, &__dso_handle); }
