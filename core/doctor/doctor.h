/* The checks of `meopt doctor` and of bug reports: hardware, drivers and libraries of this machine, tested by
 * running them.
 *
 * A check adds one or more lines. A line reports a finding and, for a problem, its meaning and a command that
 * fixes it. Figures are separate values with their unit in the name. The checks change nothing on the machine
 * except one file in the run directory, which they remove again. */
#ifndef MEOPT_DOCTOR_H
#define MEOPT_DOCTOR_H

#include "core/base/error.h"

#include "core/device/device.h"
#include "core/meopt.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum finding { FINDING_OK, FINDING_WARNING, FINDING_MISSING };
extern const char *const finding_names[]; /* "ok", "warning", "missing" */

struct line {
    const char *check; /* "memory" */
    enum finding finding;
    char found[640], meaning[320], remedy[320];
    json_t *values; /* object of figures; NULL: none */
};

/* The shapes of a tower's block, which an experiment requires of a device. */
struct doctor_shape {
    char of[64]; /* "student" */
    enum dtype type;
    int64_t images, tokens, width, heads, hidden; /* images per forward pass */
    bool gated, trained;                          /* SwiGLU; has a backward pass */
};

struct doctor {
    const char *root;                  /* prefix of /dev, /sys, /proc and /etc; "" except in tests */
    const char *run_directory;         /* its disk is measured */
    bool quick;                        /* skip slow checks */
    const struct doctor_shape *shapes; /* the optimizer uses the last; none: a usual tower */
    int shape_count;
    const struct meopt_options *optimizer; /* NULL: the usual options */
    /* Called before each check, and after each finding of a slow check. May be NULL. */
    void (*progress)(const struct doctor *doctor, const char *check);
    struct line *rows;
    size_t row_count;
};

typedef void doctor_check(struct doctor *doctor);
struct doctor_row {
    const char *name;
    doctor_check *run;
};
/* The checks of the core, ending with name NULL; a caller may have additional ones. */
extern const struct doctor_row doctor_host[], doctor_cards[];
/* Tests one device (spec as for device_open): opens it, verifies its kernels, measures it, compares its
 * results. Returns 0, or the code why it cannot be used; EXIT_FAILED when it computes wrong results. */
int doctor_device(struct doctor *doctor, const char *spec, struct error *err);
void doctor_run(struct doctor *doctor, const struct doctor_row *rows);
void doctor_free(struct doctor *doctor);
/* Adds a line to the running check, with printf text. Valid until the next call. */
struct line *doctor_add(struct doctor *doctor, enum finding finding, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets the meaning of the finding and a command that fixes it (either may be NULL). */
void line_advise(struct line *line, const char *meaning, const char *remedy);
void line_real(struct line *line, const char *name, double value); /* not finite: null */
void line_text(struct line *line, const char *name, const char *value);
/* Returns root + path, malloc'ed. */
char *doctor_path(const struct doctor *doctor, const char *path);
/* Returns the first line of a small file without its newline, malloc'ed; NULL when it cannot be read. */
char *doctor_read(const struct doctor *doctor, const char *path);

/* {"checks":[{"name","status","detail","meaning","hint",...figures}],"ok":N,"warning":N,"missing":N} */
json_t *doctor_json(const struct doctor *doctor);
/* Shortens every path in a report's texts to its last component and replaces this user's and this host's name
 * by USER and HOST, so that the report can be shared. */
void doctor_anonymous(json_t *report);

#endif
