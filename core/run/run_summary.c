/* Summaries of runs: see run_summary.h. */
#include "core/run/run_summary.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/retry.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SILENT_SECONDS = 60, /* with a supervisor, which writes live.json every second; clocks of hosts differ */
    SILENT_ALONE_SECONDS = 1200,
    BOTTLENECK_SECONDS = 30, /* finding a bottleneck takes some hundred reads */
    THREADS = 16
};
static const double BOTTLENECKS_SECONDS = 0.3; /* per call for many runs */

static json_t *load(const struct run_brief *b, const char *name)
{
    return json_read_below(b->directory, name, 4 << 20, NULL);
}

/* Returns a number that changes with the file. */
static int64_t mark_of(const struct run_brief *b, const char *name, struct stat *st)
{
    char *path = path_join(b->directory, name);
    int64_t mark = lstat(path, st) == 0 ? (int64_t)st->st_mtim.tv_sec * 1000000 + st->st_mtim.tv_nsec / 1000 +
                                              (int64_t)st->st_size + (int64_t)st->st_ino
                                        : -1;
    free(path);
    return mark;
}

/* Opens metrics.jsonl; -1 if it cannot be read. Disables read-ahead. */
static int open_metrics(const struct run_brief *b, struct stat *st)
{
    int fd = file_at(b->directory, "metrics.jsonl", O_RDONLY);
    if (fd >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode)) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

static void read_metrics(struct run_brief *b)
{
    struct stat st;
    struct metric_line l;
    int fd = open_metrics(b, &st);
    b->last = metric_line_unknown;
    if (fd < 0) return;
    if (metric_line_last(fd, st.st_size, &l)) b->last = l;
    bool over = run_status_over(&b->status);
    if (!over && (double)st.st_mtim.tv_sec > b->last_sign) b->last_sign = (double)st.st_mtim.tv_sec;
    close(fd);
}

static bool read_losses(struct run_brief *b)
{
    struct stat st;
    struct metric_line l;
    if (b->losses_mark == b->metrics_mark) return false;
    b->losses_mark = b->metrics_mark;
    for (int i = 0; i < BRIEF_LOSSES; i++) b->losses[i] = NAN;
    int fd = open_metrics(b, &st);
    if (fd < 0) return true;
    for (int i = 0; i < BRIEF_LOSSES - 1; i++)
        if (metric_line_at(fd, st.st_size / BRIEF_LOSSES * i, &l)) b->losses[i] = (float)l.loss;
    b->losses[BRIEF_LOSSES - 1] = (float)b->last.loss;
    close(fd);
    return true;
}

/* Sets the number of the job, as squeue has it, and its cluster: clusters count their jobs separately. */
static void read_job(struct run_brief *b, json_t *job)
{
    const char *id = json_string_value(json_object_get(job, "id")),
               *array = json_string_value(json_object_get(job, "array")),
               *task = json_string_value(json_object_get(job, "task")),
               *cluster = json_string_value(json_object_get(job, "cluster"));
    char text[100];
    snprintf(text, sizeof text, "%.40s%s%.40s",
             array && task ? array
             : id          ? id
                           : "",
             array && task ? "_" : "", array && task ? task : "");
    name_printable(b->job, sizeof b->job, text);
    name_printable(b->cluster, sizeof b->cluster, cluster ? cluster : "");
}

/* Reads values that change only when the run is started again. */
static void read_static(struct run_brief *b)
{
    struct stat st;
    int64_t mark = mark_of(b, "meta.json", &st);
    if (mark == b->meta_mark && b->started > 0 && b->peak_bytes > 0) return;
    b->meta_mark = mark;
    json_t *meta = load(b, "meta.json"), *plan = load(b, "plan.json");
    const char *device = json_string_value(json_object_get(meta, "device"));
    b->started = isfinite(json_member_number(meta, "started")) ? json_member_number(meta, "started") : 0;
    name_printable(b->device, sizeof b->device, device ? device : "");
    read_job(b, json_object_get(meta, "job"));
    b->peak_bytes = plan ? memory_parse(plan).peak_bytes : -1;
    b->without_bytes = plan ? memory_parse(json_object_get(plan, "baseline")).peak_bytes : -1;
    json_decref(plan);
    json_decref(meta);
}

static void find_silence(struct run_brief *b)
{
    const struct run_status *s = &b->status;
    json_t *live = load(b, "live.json");
    double live_time = json_member_number(live, "time"), now = (double)time(NULL);
    json_decref(live);
    if (isfinite(live_time) && live_time > b->last_sign) b->last_sign = live_time;
    double silent = now - b->last_sign;
    b->silent_s = b->last_sign > 0 && silent > (isfinite(live_time) ? SILENT_SECONDS : SILENT_ALONE_SECONDS)
                      ? silent
                      : 0;
    if (s->total > b->step && b->silent_s == 0)
        b->left_s = (double)(s->total - b->step) * b->last.step_ms * 1e-3;
}

/* Finds the bottleneck of a run that trains and shows activity. */
static bool find_bottleneck(struct run_brief *b)
{
    struct bottleneck v = {0};
    struct follow *f;
    struct error ignored;
    double now = clock_seconds();
    bool trains = !b->damaged && b->silent_s == 0 && strcmp(b->status.state, "training") == 0;
    if (trains && b->bottleneck_at > 0 && now - b->bottleneck_at < BOTTLENECK_SECONDS) return false;
    if (trains && follow_glance(&f, b->directory, &ignored) == 0) {
        bottleneck_find(&v, f);
        follow_close(f);
    }
    b->bottleneck_at = trains ? now : 0;
    bool changed = v.kind != b->bound_by;
    b->bound_by = v.kind;
    return changed;
}

static bool brief_read(struct run_brief *b)
{
    struct stat st;
    int64_t state = mark_of(b, "state.json", &st), metrics = mark_of(b, "metrics.jsonl", &st);
    bool known = b->state_mark != 0, changed = state != b->state_mark || metrics != b->metrics_mark;
    if (known && !changed && run_status_over(&b->status)) return false;
    b->state_mark = state;
    b->metrics_mark = metrics;
    double silent = b->silent_s;
    if (!known || changed || !b->status.ended) {
        struct error err;
        b->damaged = run_status_read(&b->status, b->directory, &err) != 0;
        if (b->damaged) snprintf(b->status.state, sizeof b->status.state, N_("damaged"));
    }
    b->last_sign = b->status.time;
    b->left_s = NAN;
    if (!known || changed) {
        read_metrics(b);
        checkpoint_best_read(b->directory, &b->best, NULL);
    } else if ((double)st.st_mtim.tv_sec > b->last_sign) b->last_sign = (double)st.st_mtim.tv_sec;
    b->step = b->last.step > b->status.step ? b->last.step : b->status.step;
    read_static(b);
    b->silent_s = 0;
    if (!b->damaged && !run_status_over(&b->status)) find_silence(b);
    return changed || silent != b->silent_s;
}

bool run_brief_read(struct run_brief *b)
{
    bool changed = brief_read(b);
    return find_bottleneck(b) || changed;
}

/* ---- Many runs ---- */

/* Checks whether it is a run, and when its directory was last written, before reading it. */
static bool check_is_run(struct run_brief *b)
{
    struct stat st;
    if (b->checked && !b->foreign) return false;
    char *config = path_join(b->directory, "config.yaml");
    b->foreign = access(config, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP);
    free(config);
    if (!b->foreign && b->last_sign <= 0 && stat(b->directory, &st) == 0)
        b->last_sign = (double)st.st_mtim.tv_sec;
    bool changed = !b->checked || !b->foreign;
    b->checked = true;
    return changed;
}

static bool read_known(struct run_brief *b) { return b->checked && !b->foreign && brief_read(b); }

struct parallel_read {
    struct run_brief **briefs;
    int count;
    bool (*read)(struct run_brief *);
    double until; /* clock_seconds(); the rest is skipped then */
    atomic_int next, changed;
};

static void *read_some(void *argument)
{
    struct parallel_read *m = argument;
    for (int i; (i = atomic_fetch_add(&m->next, 1)) < m->count && clock_seconds() < m->until;)
        if (m->read(m->briefs[i])) atomic_fetch_add(&m->changed, 1);
    return NULL;
}

static int read_all(struct run_brief **briefs, int count, bool (*read)(struct run_brief *), double until)
{
    struct parallel_read m = {.briefs = briefs, .count = count, .read = read, .until = until};
    pthread_t threads[THREADS];
    int started = 0;
    while (started < THREADS && started < count / 8 &&
           pthread_create(&threads[started], NULL, read_some, &m) == 0)
        started++;
    read_some(&m);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    return atomic_load(&m.changed);
}

static int newest_first(const void *x, const void *y)
{
    const struct run_brief *a = *(struct run_brief *const *)x, *b = *(struct run_brief *const *)y;
    return a->last_sign < b->last_sign ? 1 : a->last_sign > b->last_sign ? -1 : strcmp(a->name, b->name);
}

int run_briefs_read(struct run_brief *briefs, int count, double until, int *unread)
{
    struct run_brief **order = xcalloc((size_t)count + 1, sizeof(struct run_brief *));
    for (int i = 0; i < count; i++) order[i] = &briefs[i];
    int changed = read_all(order, count, check_is_run, until);
    qsort(order, (size_t)count, sizeof *order, newest_first);
    changed += read_all(order, count, read_known, until);
    /* on a screen, the rest follows with the next refresh; a list that is printed once has all of them */
    double most = isinf(until) ? until : fmin(until, clock_seconds() + BOTTLENECKS_SECONDS);
    changed += read_all(order, count, find_bottleneck, most);
    free(order);
    if (unread) *unread = 0;
    for (int i = 0; i < count && unread; i++) *unread += !briefs[i].foreign && briefs[i].state_mark == 0;
    return changed;
}

void run_briefs_losses(struct run_brief **briefs, int count)
{
    read_all(briefs, count, read_losses, INFINITY);
}

void run_brief_free(struct run_brief *b)
{
    free(b->name);
    free(b->directory);
    *b = (struct run_brief){0};
}

const char *run_brief_state(const struct run_brief *b, char *dst, size_t size)
{
    long long s = (long long)b->silent_s;
    if (s <= 0) snprintf(dst, size, "%s", b->status.state);
    else if (s < 3600) snprintf(dst, size, "%s %lldm", N_("silent"), s / 60);
    else if (s < 172800) snprintf(dst, size, "silent %lldh", s / 3600);
    else snprintf(dst, size, "silent %lldd", s / 86400);
    return dst;
}
