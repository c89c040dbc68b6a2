/* What the watching side (watch.c) and the helper process (helper.c) say
 * to each other: datagrams over a SOCK_SEQPACKET pair, file descriptor 3
 * in the helper. Both are the same program, so structs travel as they are. */
#ifndef MEOPT_MONITOR_HELPER_H
#define MEOPT_MONITOR_HELPER_H

#include "core/base/library.h"
#include "core/monitor/monitor_internal.h"

#include <stdint.h>

#define HELPER_FD 3
enum { HELPER_HOLDERS = 256 };

/* One sample, please. */
struct helper_request {
    uint8_t skip[MONITOR_CARDS]; /* bit f: leave field f of the card alone, it did not come back last time */
    int32_t pid_count, pids[MONITOR_PIDS];
};

enum helper_kind {
    HELPER_BEGIN,   /* about to read `field` of `card` (-1: loading the library); no more may ever come */
    HELPER_VALUE,   /* it is `value`, if `result` is 1; 0 not there; -1 cannot be read now */
    HELPER_LIBRARY, /* text: the file */
    HELPER_HOLDER,  /* process `result` holds `value` bytes of `card`; behind the value of MONITOR_PROCESS */
    HELPER_NAME,    /* text: of `card` */
    HELPER_PCI,     /* text: of `card` */
    HELPER_NOTE,    /* text */
    HELPER_READY,   /* the library is up and has `card` cards */
    HELPER_FAILED,  /* text: why the library cannot be used; the helper ends */
    HELPER_END      /* of the sample */
};

struct helper_record {
    int32_t kind, card, field, result;
    double value;
    char text[200];
};

/* A library: opened in the helper, so that its calls may hang, abort or print.
 * `read` results as in HELPER_VALUE. */
struct helper_library {
    const char *provider;
    enum library_id library;
    /* Returns the number of cards, or -1 with `why`. */
    int (*open)(void *library, char *why, size_t size);
    void (*card)(int card, char *name, size_t size, char pci[16]);
    int (*read)(int card, int field, const struct helper_request *request, double *value, const char **why);
    /* Which processes that read(MONITOR_PROCESS) has found last; how many. (optional) */
    int (*holders)(struct monitor_holder list[HELPER_HOLDERS]);
};
extern const struct helper_library helper_rsmi, helper_nvml;

#endif
