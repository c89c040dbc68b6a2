/* The protocol between the monitor (watch.c) and the helper process (helper.c): datagrams over a
 * SOCK_SEQPACKET pair, file descriptor 3 in the helper. Both are the same program, so structs are sent as
 * they are. */
#ifndef MEOPT_MONITOR_HELPER_H
#define MEOPT_MONITOR_HELPER_H

#include "core/base/library.h"
#include "core/monitor/monitor_internal.h"

#include <stdint.h>

#define HELPER_FD 3
enum { HELPER_HOLDERS = 256 };

/* A request for one sample. */
struct helper_request {
    uint32_t
        skip[MONITOR_CARDS]; /* bit f: skip field f of the card: not wanted, or its call did not return */
    int32_t pid_count, pids[MONITOR_PIDS];
};

enum helper_kind {
    HELPER_BEGIN,   /* about to read `field` of `card` (-1: loading the library); possibly the last record */
    HELPER_VALUE,   /* `value` if `result` is 1; 0: no such field; -1: cannot be read now */
    HELPER_LIBRARY, /* text: the library's file */
    HELPER_HOLDER,  /* process `result` holds `value` bytes of `card`; follows MONITOR_PROCESS */
    HELPER_NAME,    /* text: name of `card` */
    HELPER_PCI,     /* text: PCI address of `card` */
    HELPER_NOTE,    /* text: note */
    HELPER_READY,   /* the library is loaded and has `card` cards */
    HELPER_FAILED,  /* text: why the library cannot be used; then the helper ends */
    HELPER_END      /* end of the sample */
};

struct helper_record {
    int32_t kind, card, field, result;
    double value;
    char text[200];
};

/* A vendor library, opened in the helper because its calls may hang, abort or print. `read` returns a result
 * as in HELPER_VALUE. */
struct helper_library {
    const char *provider;
    enum library_id library;
    /* Returns the number of cards, or -1 with `why`. */
    int (*open)(void *library, char *why, size_t size);
    void (*card)(int card, char *name, size_t size, char pci[16]);
    int (*read)(int card, int field, const struct helper_request *request, double *value, const char **why);
    /* Fills in the processes that the last read(MONITOR_PROCESS) found; returns their number. (optional) */
    int (*holders)(struct monitor_holder list[HELPER_HOLDERS]);
};
extern const struct helper_library helper_rsmi, helper_nvml;

#endif
