/* Included before everything else in the build for other machines (-DMEOPT_OPTIM_ONLY=ON, x86_64): the
 * library runs with glibc 2.17 (CentOS 7, manylinux2014) and later, whatever glibc it was compiled with. The
 * test glibc_functions lists the functions concerned. */
#ifndef MEOPT_BASE_GLIBC_2_17_H
#define MEOPT_BASE_GLIBC_2_17_H

#include <features.h>
#ifdef __GLIBC__

/* Functions that came later: core/base/platform.c does without. */
#undef __GLIBC_PREREQ
#define __GLIBC_PREREQ(major, minor) ((major)*1000 + (minor) <= 2017)

/* 2.38: strtol as __isoc23_strtol. */
#undef __GLIBC_USE_C2X_STRTOL
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#define __GLIBC_USE_C23_STRTOL 0

/* Newer versions of old functions: moved to libc from another library (2.32, 2.34), or with other rules for
 * errors (2.29, 2.27). */
#define GLIBC_VERSION(function, version) __asm__(".symver " #function ", " #function "@GLIBC_" version)
GLIBC_VERSION(dladdr, "2.2.5");
GLIBC_VERSION(dlerror, "2.2.5");
GLIBC_VERSION(dlinfo, "2.3.3");
GLIBC_VERSION(dlopen, "2.2.5");
GLIBC_VERSION(dlsym, "2.2.5");
GLIBC_VERSION(exp, "2.2.5");
GLIBC_VERSION(exp2f, "2.2.5");
GLIBC_VERSION(expf, "2.2.5");
GLIBC_VERSION(log, "2.2.5");
GLIBC_VERSION(log2, "2.2.5");
GLIBC_VERSION(log2f, "2.2.5");
GLIBC_VERSION(logf, "2.2.5");
GLIBC_VERSION(pow, "2.2.5");
GLIBC_VERSION(powf, "2.2.5");
GLIBC_VERSION(pthread_create, "2.2.5");
GLIBC_VERSION(pthread_detach, "2.2.5");
GLIBC_VERSION(pthread_join, "2.2.5");
GLIBC_VERSION(pthread_mutexattr_destroy, "2.2.5");
GLIBC_VERSION(pthread_mutexattr_init, "2.2.5");
GLIBC_VERSION(pthread_mutexattr_settype, "2.2.5");
GLIBC_VERSION(pthread_once, "2.2.5");
GLIBC_VERSION(pthread_sigmask, "2.2.5");

/* 2.33: before, functions of the header that called these. */
#include <sys/stat.h>
#if defined(__GLIBC_MINOR__) && __GLIBC_MINOR__ >= 33
int __xstat(int version, const char *path, struct stat *status);
int __lxstat(int version, const char *path, struct stat *status);
int __fxstat(int version, int descriptor, struct stat *status);
int __fxstatat(int version, int directory, const char *path, struct stat *status, int flags);
GLIBC_VERSION(__xstat, "2.2.5");
GLIBC_VERSION(__lxstat, "2.2.5");
GLIBC_VERSION(__fxstat, "2.2.5");
GLIBC_VERSION(__fxstatat, "2.4");
#define stat(path, status)                      __xstat(1, path, status)
#define lstat(path, status)                     __lxstat(1, path, status)
#define fstat(descriptor, status)               __fxstat(1, descriptor, status)
#define fstatat(directory, path, status, flags) __fxstatat(1, directory, path, status, flags)
#endif

#endif
#endif
