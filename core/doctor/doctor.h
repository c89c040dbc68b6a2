/* What this machine has for MEOpt, proved by running it:
 * the array of checks behind `meopt doctor` and bug reports.
 *
 * A check adds one line or several: what was found, and where something is missing or doubtful what that
 * means and the command that mends it. Figures stand beside the text with their unit in the name. Nothing is
 * changed on the machine but one file in the run directory, which is removed again.
 */
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
    char found[640], meaning[320], mend[320];
    json_t *values; /* object of figures, NULL without */
};

/* What a tower of an experiment asks of a device: a block's shapes. */
struct doctor_shape {
    char of[64]; /* "student" */
    enum dtype type;
    int64_t images, tokens, width, heads, hidden; /* images of a forward pass */
    bool gated, trained;                          /* SwiGLU; it has a backward pass */
};

struct doctor {
    const char *root;                  /* in front of /dev, /sys, /proc and /etc; "" but in tests */
    const char *run_directory;         /* whose disk is measured */
    bool quick;                        /* leave out what takes longer than a moment */
    const struct doctor_shape *shapes; /* the last is the optimizer's; none: a usual tower */
    int shape_count;
    const struct meopt_options *optimizer; /* NULL: usual ones */
    /* Called before each check, and after each finding of one that measures for long. NULL: not. */
    void (*progress)(const struct doctor *doctor, const char *check);
    struct line *rows;
    size_t row_count;
};

typedef void doctor_check(struct doctor *doctor);
struct doctor_row {
    const char *name;
    doctor_check *run;
};
/* The checks of the core, ending with name NULL; a caller may have more of its own. */
extern const struct doctor_row doctor_host[], doctor_cards[];
/* One device at work, as device_open spells it: opened, its kernels proved, measured, its results compared.
 * 0 or why it cannot be used; EXIT_FAILED when it computes wrongly. */
int doctor_device(struct doctor *doctor, const char *spec, struct error *err);
void doctor_run(struct doctor *doctor, const struct doctor_row *rows);
void doctor_free(struct doctor *doctor);
/* Inside a check: one line more; printf text of what was found. Valid until the next call. */
struct line *doctor_add(struct doctor *doctor, enum finding finding, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What the finding means, and the command that mends it (either may be NULL). */
void line_advise(struct line *line, const char *meaning, const char *mend);
void line_real(struct line *line, const char *name, double value);
void line_text(struct line *line, const char *name, const char *value);
/* root in front of path, malloc'ed */
char *doctor_path(const struct doctor *doctor, const char *path);
/* The first line of a small file without its end, malloc'ed; NULL when it cannot be read. */
char *doctor_read(const struct doctor *doctor, const char *path);

/* {"checks":[{"name","status","detail","meaning","hint",...figures}],"ok":N,"warning":N,"missing":N} */
json_t *doctor_json(const struct doctor *doctor);
/* Of every path in a report's texts only its last part is left, and this user's and this host's name become
 * USER and HOST, so that it can be given to others. */
void doctor_anonymous(json_t *report);

#endif
