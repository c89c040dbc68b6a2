/* A library for LD_PRELOAD that makes calls fail, slow, or deadly, and that writes down what a power cut
 * would find: tests/tools/fault.sh drives it. The method is SQLite's (do_ioerr_test and crash tests,
 * https://sqlite.org/testing.html): the k-th call of a kind fails, for every k, until a whole command passes
 * without a failure. Settings are variables of the environment, so that a hand may try them, too:
 *
 * - FAULT_SHARED=FILE: counters of the whole process tree, a file of at least sizeof(struct shared) zeros;
 * - FAULT_UNDER=A:B: only files below these directories are met (not those of libc, the loader, /proc);
 * - FAULT_CALL=KIND and FAULT_K=K: the K-th call of this kind (names in shim.c) fails,
 * - FAULT_ERRNO=N: with this error, or where there is none with a short read or write,
 * - FAULT_EVER=1: and every later one, too;
 * - FAULT_KILL=1: the process is killed at the call instead;
 * - FAULT_SLOW=KIND:MICROSECONDS[:PART] ...: every call of the kind takes so much longer, where PART is given
 *   that of a path that holds it; needs no FAULT_SHARED;
 * - FAULT_CUT=PART: a file whose path contains PART is truncated as soon as it is mapped; needs no
 *   FAULT_SHARED;
 * - FAULT_UNSYNCED=1: a sync that does not fail is not made either: most of the time of a small run; needs
 *   no FAULT_SHARED;
 * - FAULT_NFS=1: locks are as from two machines that share a directory by NFS: a lock of a directory
 *   excludes no other process, an exclusive one needs a file that is open for writing (flock(2));
 * - FAULT_LATE=1: every rename is made and fails nevertheless, as over NFS when its reply is lost and it is
 *   sent again; needs no FAULT_SHARED;
 * - FAULT_LINKLESS=1: no symbolic link can be made, as on FAT; needs no FAULT_SHARED;
 * - FAULT_LOG=1: changes of files are written down in order, after the counters (log.c);
 * - FAULT_SITES=1: instead, every call is: its kind, its number and where in the program it was made (log.c).
 *
 *   FAULT_UNDER=$PWD FAULT_SLOW="sync:1000000 open:200000:.pth" \
 *       LD_PRELOAD=libfault.so LD_LIBRARY_PATH=build/tests meopt train ...
 *
 * Allocations and threads are met where libfault_memory.so is preloaded after it (memory.c).
 */
#ifndef MEOPT_TESTS_FAULT_SHIM_H
#define MEOPT_TESTS_FAULT_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum kind {
    CALL_OPEN,
    CALL_OPENDIR,
    CALL_READDIR,
    CALL_READ,
    CALL_WRITE,
    CALL_SYNC,
    CALL_RENAME,
    CALL_UNLINK,
    CALL_MKDIR,
    CALL_STAT,
    CALL_TRUNCATE,
    CALL_ALLOCATE, // posix_fallocate, fallocate
    CALL_CHMOD,
    CALL_LOCK, // flock
    CALL_CLOSE,
    CALL_MMAP,   // of files
    CALL_MALLOC, // of the program (anonymous mmap, too), and of jansson, libyaml, libarchive, libjpeg, libpng
    CALL_SPAWN,  // fork, posix_spawn
    CALL_THREAD, // of the program itself
    CALL_PIPE,   // pipe2, socketpair, memfd_create
    CALL_ACCEPT,
    KINDS
};

/* The driver reads it as it stands here. */
struct shared {
    char names[32][16];              // of the kinds, for the driver
    _Atomic uint64_t calls[32];      // seen so far, of each kind
    _Atomic uint64_t failed;         // how many of them were made to fail
    _Atomic uint32_t lock, reported; // of the log; whether `where` is taken
    char where[232];                 // first failure: which command, which file
    _Atomic uint64_t site;           // and where in the program, as in struct site
    uint64_t log_limit;              // bytes of the file after this struct
    _Atomic uint64_t log_bytes, log_lost;
    char log[];
};
extern struct shared *shared;
extern bool logging, sites, on_nfs, unsynced, late, linkless;

/* Writes the path of a descriptor or path in the form of FAULT_UNDER; returns whether it is below one of
 * those. */
#define PATH_BYTES 2048
bool path_met(int at, const char *path, char absolute[PATH_BYTES]);
bool descriptor_met(int fd, char absolute[PATH_BYTES]);

/* Counts a call. 0: let it pass; -1: shorten it; else the error to fail with. */
int fault(enum kind kind, const char *file);

/* As FAULT_CUT says, of a file that was just mapped. */
void partition_mapped(const char *file);

/* Whether an allocation by the caller of this address is one that counts, and its turn has come. */
bool memory_fails(const void *caller);
bool of_the_program(const void *caller); // or of a library that is met like it
/* An address of the program's own code as an offset in its file; 0: another's. */
uintptr_t program_offset(uintptr_t address);
#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

/* The log. Each call stands between begin and the end that its one record makes, so that the order of the
 * records is that of the changes over all processes. */
enum change {
    LOG_CREATE,
    LOG_WRITE,
    LOG_TRUNCATE,
    LOG_SYNC,
    LOG_SYNCFS,
    LOG_RENAME,
    LOG_UNLINK,
    LOG_MKDIR,
    LOG_MAPPED
};
/* For FAULT_SITES: the callers of a call are its site, independent of the program's load address. */
struct site {
    uint32_t kind, number;
    uint64_t stack;
};
struct record {
    uint32_t change, path_bytes, other_bytes, data_bytes;
    uint64_t inode, offset; // offset: of a write; the length of a truncation; flags of a rename
};
void log_begin(void);
void log_end(const struct record *r, const char *path, const char *other, const void *data);
void log_nothing(void); // the call failed
void log_site(enum kind kind, uint64_t number);
uint64_t call_site(void);
uint64_t log_inode(int fd);

#endif
