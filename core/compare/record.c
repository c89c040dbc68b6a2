/* Reading a run: see record.h. */
#include "core/compare/record.h"
#include "core/compare/settings.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/run/memory.h"
#include "core/run/telemetry.h"
#include "core/run/metric_line.h"
#include "core/run/run.h"
#include "core/run/status.h"
#include "core/run/tail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SMALL_FILE = 4 << 20 };

/* ---- meta.json, state.json ---- */

/* Reads a small file of the run, *text NULL if it does not exist. An existing file that cannot be read is
 * an error, because the comparison would be incomplete. */
static int read_small(const char *directory, const char *name, char **text, size_t *bytes, struct error *err)
{
    *text = NULL;
    int code = file_read_below(directory, name, SMALL_FILE, text, bytes, err);
    return code && errno == ENOENT ? 0 : code;
}

/* *object NULL if the file does not exist or is no JSON. */
static int read_object(const char *directory, const char *name, json_t **object, struct error *err)
{
    *object = json_read_below(directory, name, SMALL_FILE, err);
    return *object || errno == ENOENT || err->code == EXIT_INTEGRITY ? 0 : err->code;
}

/* Reads kernels and libraries from the start's table. */
static void read_start(struct record *r, const json_t *start)
{
    size_t i;
    const json_t *row;
    char device[256] = "";
    json_array_foreach(start, i, row)
    {
        char name[32] = "";
        json_member_name(name, sizeof name, row, "name");
        if (strcmp(name, "device") == 0) json_member_name(device, sizeof device, row, "is");
        if (strcmp(name, "kernels") == 0) json_member_name(r->kernels, sizeof r->kernels, row, "is");
        if (strcmp(name, "products") == 0) json_member_name(r->products, sizeof r->products, row, "is");
        if (strcmp(name, "attention") == 0) json_member_name(r->attention, sizeof r->attention, row, "is");
    }
    const char *threads = strstr(device, " thread"), *comma = strrchr(device, ',');
    r->threads = threads && comma && comma < threads ? atoll(comma + 1) : -1;
}

static int read_meta(struct record *r, struct error *err)
{
    json_t *meta;
    int code = read_object(r->path, "meta.json", &meta, err);
    if (code) return code;
    if (run_check_layout(meta, "compare it with the meopt that made it", err)) {
        json_decref(meta);
        return error_at(err, r->path, 0, 0);
    }
    json_member_name(r->device, sizeof r->device, meta, "device");
    json_member_name(r->objective, sizeof r->objective, meta, "objective");
    json_member_name(r->family, sizeof r->family, meta, "family");
    json_member_name(r->version, sizeof r->version, meta, "code_version");
    json_member_name(r->program, sizeof r->program, meta, "program_crc32c");
    json_member_name(r->data, sizeof r->data, meta, "data_crc32c");
    json_member_name(r->teacher_weights, sizeof r->teacher_weights, meta, "teacher_crc32c");
    json_member_name(r->student_weights, sizeof r->student_weights, meta, "student_crc32c");
    json_member_name(r->host, sizeof r->host, meta, "host");
    r->started = json_member_number(meta, "started");
    r->images = json_member_count(meta, "images");
    r->tokens = json_member_count(meta, "tokens");
    r->total_steps = json_member_count(meta, "total_steps");
    r->student_parameters = json_member_count(meta, "student_parameters");
    r->teacher_parameters = json_member_count(meta, "teacher_parameters");
    r->seed = json_member_count(meta, "seed");
    r->step_images = json_member_count(meta, "batch_images");
    r->ranks = json_member_count(meta, "ranks");
    r->epoch_steps = json_member_count(meta, "epoch_steps");
    r->optimizer_bytes_per_param = json_member_number(meta, "optimizer_bytes_per_param");
    r->checkpoint_bytes = json_member_number(meta, "checkpoint_bytes");
    read_start(r, json_object_get(meta, "start"));
    json_decref(meta);
    return 0;
}

/* Reads the state. "training" is the trainer's last report; whether it is still running is checked with
 * the system if possible. */
static int read_state(struct record *r, struct error *err)
{
    json_t *state;
    int code = read_object(r->path, "state.json", &state, err);
    char said[24] = "", host[128] = "", here[128] = "";
    json_member_name(said, sizeof said, state, "state");
    json_member_name(host, sizeof host, state, "host");
    int64_t pid = json_member_count(state, "pid");
    json_decref(state);
    gethostname(here, sizeof here - 1);
    if (strcmp(said, "training") == 0) {
        bool gone = strcmp(host, here) == 0 && pid > 0 &&
                    ((kill((pid_t)pid, 0) != 0 && errno == ESRCH) || !run_held(r->path));
        snprintf(said, sizeof said, "%s", gone ? N_("broken off") : N_("running"));
    }
    snprintf(r->state, sizeof r->state, "%s", said[0] ? said : r->count ? N_("unknown") : N_("empty"));
    return code;
}

/* ---- metrics.jsonl ---- */

struct reading {
    struct record *record;
    double best_peak; /* cards with lower peaks are skipped */
    double wait_ms, step_ms, stream_ms, streamed_ms, offload_ms, offloaded_ms, mfu_ms, bubble_ms, staged_ms,
        utilized_ms; /* sums over the steps that report it */
};

static bool grow(struct reading *in)
{
    struct record *r = in->record;
    if (r->count < r->capacity) return true;
    int64_t capacity = r->capacity ? r->capacity * 2 : 1024;
    int64_t *step = realloc(r->step, (size_t)capacity * sizeof *step);
    if (step) r->step = step;
    double *loss = realloc(r->loss, (size_t)capacity * sizeof *loss);
    if (loss) r->loss = loss;
    double *seconds = realloc(r->seconds, (size_t)capacity * sizeof *seconds);
    if (seconds) r->seconds = seconds;
    float *rate = realloc(r->rate, (size_t)capacity * sizeof *rate);
    if (rate) r->rate = rate;
    if (!step || !loss || !seconds || !rate) return false;
    r->capacity = capacity;
    return true;
}

/* Reads the card with the highest peak, which represents the run. */
static void read_cards(struct reading *in, const char *text, size_t bytes)
{
    static const char key[] = "\"peak_bytes\":";
    bool higher = false;
    const char *end = text + bytes, *after;
    for (const char *p = text; !higher && (p = memmem(p, (size_t)(end - p), key, sizeof key - 1)) != NULL;) {
        p += sizeof key - 1;
        while (p < end && *p == ' ') p++;
        higher = metric_number(p, end, &after) > in->best_peak;
    }
    if (!higher) return;
    json_t *cards = json_loadb(text, bytes, 0, NULL);
    size_t i;
    json_t *card;
    json_array_foreach(cards, i, card)
    {
        struct run_memory use = memory_parse(card);
        if (use.peak_bytes < 0 || (double)use.peak_bytes <= in->best_peak) continue;
        in->best_peak = in->record->peak_bytes = (double)use.peak_bytes;
        for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
            in->record->class_bytes[c] = use.class_bytes[c] < 0 ? NAN : (double)use.class_bytes[c];
        for (int place = 0; place < PLACE_COUNT; place++) {
            double all = 0;
            for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
                double bytes_of = (double)use.offloaded_bytes[place][c];
                in->record->offloaded_class_bytes[place][c] = bytes_of > 0 ? bytes_of : NAN;
                all += bytes_of;
            }
            in->record->offloaded_bytes[place] = all > 0 ? all : NAN;
        }
    }
    if ((int64_t)json_array_size(cards) > in->record->ranks)
        in->record->ranks = (int64_t)json_array_size(cards);
    json_decref(cards);
}

/* Drops later steps: a resumed run whose lines were not truncated repeats steps, and the last line of a
 * step counts. */
static void drop_after(struct record *r, int64_t step)
{
    while (r->count > 0 && r->step[r->count - 1] >= step) r->count--;
}

/* A step without labels has no loss: NaN, and negative. */
static bool without_labels(const struct record *r, int64_t i)
{
    return isnan(r->loss[i]) && signbit(r->loss[i]);
}

static bool read_line(struct reading *in, const char *text, size_t bytes)
{
    struct record *r = in->record;
    struct metric_line line;
    if (!metric_line_parse(&line, text, bytes)) {
        r->bad_lines++;
        return true;
    }
    if (r->count > 0 && line.step <= r->step[r->count - 1]) drop_after(r, line.step);
    if (!grow(in)) return false;
    double before = r->count ? r->seconds[r->count - 1] : 0;
    r->step[r->count] = line.step;
    r->loss[r->count] = line.no_loss ? copysign(NAN, -1) : line.loss; /* see without_labels */
    r->seconds[r->count] = before + (line.step_ms >= 0 && isfinite(line.step_ms) ? line.step_ms * 1e-3 : 0);
    r->rate[r->count++] = (float)metric_rate(&line, &(const struct unit *){NULL});
    double sample_tokens = line.scores[SCORE_TOKENS_PER_S] / line.images_per_s;
    if (isfinite(sample_tokens)) r->sample_tokens = sample_tokens;
    scores_update(r->final_scores, line.scores);
    if (line.grad_norm > r->largest_norm) r->largest_norm = line.grad_norm;
    scores_best(r->best_scores, line.scores);
    if (line.data_wait_ms >= 0 && line.step_ms > 0) {
        in->wait_ms += line.data_wait_ms;
        in->step_ms += line.step_ms;
    }
    if (line.stream_wait_ms >= 0 && line.step_ms > 0) {
        in->stream_ms += line.stream_wait_ms;
        in->streamed_ms += line.step_ms;
    }
    if (line.bubble >= 0 && line.step_ms > 0) {
        in->bubble_ms += line.bubble * line.step_ms;
        in->staged_ms += line.step_ms;
    }
    if (line.scores[SCORE_MFU] >= 0 && line.step_ms > 0) {
        in->mfu_ms += line.scores[SCORE_MFU] * line.step_ms;
        in->utilized_ms += line.step_ms;
    }
    if (line.offload_wait_ms >= 0 && line.step_ms > 0) {
        in->offload_ms += line.offload_wait_ms;
        in->offloaded_ms += line.step_ms;
    }
    /* means of the epochs, in one pass: a resumed run continues the epoch that it was in, which is
     * accurate enough for a curve */
    if (line.epoch >= 0) {
        if (r->epochs == 0 || r->epoch[r->epochs - 1] != line.epoch) {
            if ((r->epochs & (r->epochs - 1)) == 0) {
                size_t capacity = r->epochs ? 2 * (size_t)r->epochs : 1;
                r->epoch = xrealloc(r->epoch, capacity * sizeof *r->epoch);
                r->epoch_loss = xrealloc(r->epoch_loss, capacity * sizeof *r->epoch_loss);
                r->epoch_count = xrealloc(r->epoch_count, capacity * sizeof *r->epoch_count);
            }
            r->epoch[r->epochs] = line.epoch;
            r->epoch_loss[r->epochs] = 0;
            r->epoch_count[r->epochs++] = 0;
        }
        if (isfinite(line.loss)) {
            r->epoch_loss[r->epochs - 1] += line.loss;
            r->epoch_count[r->epochs - 1]++;
        }
    }
    if (line.cards_bytes) read_cards(in, text + line.cards_at, line.cards_bytes);
    return true;
}

static int read_metrics(struct reading *in, struct error *err)
{
    struct record *r = in->record;
    struct tail lines;
    const char *line;
    size_t bytes;
    tail_init(&lines, r->path, "metrics.jsonl");
    int code = file_open_below(r->path, lines.name, O_RDONLY, &lines.fd, NULL, err);
    if (code && errno == ENOENT) code = 0;
    while (!code && (line = tail_line(&lines, &bytes)) != NULL)
        if (bytes && !read_line(in, line, bytes))
            code = error_set(err, EXIT_HOST_MEMORY, "close other programs", "out of memory at step %lld",
                             (long long)r->count);
    errno = lines.failed;
    if (!code && lines.failed) code = error_errno(err, EXIT_FAILED, NULL, "cannot read the metrics");
    if (!code && lines.skipped)
        code = error_set(err, EXIT_INTEGRITY, "check that this is the metrics file of a run",
                         "a line is longer than %d MiB", TAIL_LINE_BYTES >> 20);
    /* an unfinished line, even if it parses: its writer was interrupted, or is still writing */
    r->torn = lines.inside || lines.begin < lines.end;
    if (code) {
        char *path = path_join(r->path, lines.name);
        error_at(err, path, 0, 0);
        free(path);
    }
    tail_free(&lines);
    return code;
}

/* ---- Curves ---- */

/* Returns the median by selection (C. A. R. Hoare 1961), without NANs; x is reordered. */
static double median_of(float *x, int64_t n)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i])) x[kept++] = x[i];
    if (!kept) return NAN;
    double middle[2] = {0};
    for (int which = 0; which < 2; which++) {
        int64_t want = which ? kept / 2 : (kept - 1) / 2, low = 0, high = kept - 1;
        while (low < high) {
            float pivot = x[low + (high - low) / 2];
            int64_t i = low - 1, j = high + 1;
            for (;;) {
                do i++;
                while (x[i] < pivot);
                do j--;
                while (x[j] > pivot);
                if (i >= j) break;
                float swap = x[i];
                x[i] = x[j];
                x[j] = swap;
            }
            if (want <= j) high = j;
            else low = j + 1;
        }
        middle[which] = x[want];
    }
    return 0.5 * (middle[0] + middle[1]);
}

static int summarise(struct reading *in, struct error *err)
{
    struct record *r = in->record;
    int64_t n = r->count;
    float *scratch = malloc((size_t)(n ? n : 1) * sizeof *scratch);
    if (!scratch) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %lld steps", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        double before = i ? r->seconds[i - 1] : 0;
        if (!isfinite(r->loss[i]) && !without_labels(r, i)) {
            if (r->nan_steps++ == 0) r->first_nan_step = r->step[i];
        } else if (isfinite(r->loss[i]) && !(r->loss[i] >= r->best_loss)) r->best_loss = r->loss[i];
        scratch[i] = r->seconds[i] > before ? (float)((r->seconds[i] - before) * 1e3) : NAN;
    }
    r->median_step_ms = median_of(scratch, n);
    if (n) memcpy(scratch, r->rate, (size_t)n * sizeof *scratch);
    r->median_rate = median_of(scratch, n);
    r->median_sample_rate = r->median_rate / (isnan(r->sample_tokens) ? 1 : r->sample_tokens);
    free(scratch);
    if (n) {
        int64_t first = 0, last = n - 1;
        while (first < last && without_labels(r, first)) first++;
        while (last > first && without_labels(r, last)) last--;
        r->first_loss = r->loss[first];
        r->final_loss = r->loss[last];
        r->time_s = r->seconds[n - 1] > 0 ? r->seconds[n - 1] : NAN;
        r->tail_steps = n / 10 < 1 ? 1 : n / 10 > 1000 ? 1000 : n / 10;
        double sum = 0;
        int64_t labelled = 0;
        for (int64_t i = n - 1; i >= 0 && labelled < r->tail_steps; i--)
            if (!without_labels(r, i)) sum += r->loss[i], labelled++;
        r->tail_loss = labelled ? sum / (double)labelled : NAN;
    }
    if (in->step_ms > 0) r->wait_share = in->wait_ms / in->step_ms;
    if (in->streamed_ms > 0) r->stream_share = in->stream_ms / in->streamed_ms;
    if (in->staged_ms > 0) r->bubble = in->bubble_ms / in->staged_ms;
    if (in->utilized_ms > 0) r->mfu = in->mfu_ms / in->utilized_ms;
    if (in->offloaded_ms > 0) r->offload_share = in->offload_ms / in->offloaded_ms;
    for (int e = 0; e < r->epochs; e++)
        r->epoch_loss[e] = r->epoch_count[e] ? r->epoch_loss[e] / (double)r->epoch_count[e] : NAN;
    return 0;
}

/* ---- The checkpoint ---- */

/* Measures the newest checkpoint on disk; without one, uses the plan. */
static int measure_checkpoint(struct record *r, struct error *err)
{
    char *text;
    size_t bytes = 0;
    int code = read_small(r->path, "ckpt/LATEST", &text, &bytes, err);
    if (text) {
        text[strcspn(text, "\r\n")] = 0;
        char *name = xasprintf("ckpt/%s", text), *below = path_join(r->path, name);
        errno = ENOENT;
        DIR *dir = text[0] && !strchr(text, '/') && text[0] != '.' ? file_list_below(r->path, name) : NULL;
        double sum = 0;
        bool absent = !dir && (errno == ENOENT || errno == ENOTDIR);
        if (dir) errno = 0;
        for (struct dirent *entry; dir && !errno && (entry = readdir(dir)) != NULL;) {
            struct stat st;
            if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
                sum += S_ISREG(st.st_mode) ? (double)st.st_size : 0;
            else if (errno == ENOENT) errno = 0; /* a running trainer has removed it */
        }
        if (errno && !absent) {
            code = error_errno(err, EXIT_FAILED, "check its permissions", "cannot list the checkpoint");
            error_at(err, below, 0, 0);
        }
        if (dir) closedir(dir);
        if (sum > 0) r->checkpoint_bytes = sum;
        free(below);
        free(name);
    }
    free(text);
    return code;
}

/* Whether a directory is a run: it has one of these files. */
static bool is_run(const char *directory)
{
    static const char *const names[] = {"metrics.jsonl", "meta.json", "state.json"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        char *path = path_join(directory, names[i]);
        found = !file_absent(path);
        free(path);
    }
    return found;
}

/* Reads the sums of cards.jsonl for the run's cards. */
static void sum_cards(struct record *r)
{
    struct telemetry_sum sum;
    telemetry_sum(&sum, r->path);
    r->card_busy = sum.busy_percent;
    r->card_power_w = sum.power_w;
    r->card_energy_wh = sum.energy_wh;
    r->card_temp_c = sum.temp_c;
}

void record_unknown(struct record *r)
{
    *r = (struct record){.optimizer_bytes_per_param = NAN,
                         .checkpoint_bytes = NAN,
                         .peak_bytes = NAN,
                         .first_loss = NAN,
                         .final_loss = NAN,
                         .tail_loss = NAN,
                         .best_loss = NAN,
                         .final_scores = SCORES_UNKNOWN,
                         .best_scores = SCORES_UNKNOWN,
                         .median_rate = NAN,
                         .median_sample_rate = NAN,
                         .mfu = NAN,
                         .tokens = -1,
                         .sample_tokens = NAN,
                         .median_step_ms = NAN,
                         .wait_share = NAN,
                         .stream_share = NAN,
                         .bubble = NAN,
                         .offload_share = NAN,
                         .time_s = NAN,
                         .card_busy = NAN,
                         .card_power_w = NAN,
                         .card_energy_wh = NAN,
                         .card_temp_c = NAN,
                         .first_nan_step = -1,
                         .threads = -1};
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) r->class_bytes[c] = NAN;
    for (int place = 0; place < PLACE_COUNT; place++) {
        r->offloaded_bytes[place] = NAN;
        for (int c = 0; c < MEMORY_CLASS_COUNT; c++) r->offloaded_class_bytes[place][c] = NAN;
    }
}

int record_read(struct record *r, const char *directory, struct error *err)
{
    struct stat st;
    char printable[256];
    record_unknown(r);
    int code = 0;
    if (stat(directory, &st) != 0)
        code = error_errno(err, errno == ENOENT || errno == ENOTDIR ? EXIT_USAGE : EXIT_FAILED,
                           "name the directory of a run, as in runs/NAME", "cannot open the run");
    else if (!S_ISDIR(st.st_mode))
        code =
            error_set(err, EXIT_USAGE, "name the directory of a run, as in runs/NAME", "is not a directory");
    else if (!is_run(directory))
        code = error_set(err, EXIT_USAGE, "name the directory of a run, as in runs/NAME",
                         "is not a run: it has no metrics.jsonl, meta.json or state.json");
    if (code) return error_at(err, directory, 0, 0), code;
    size_t n = strlen(directory);
    while (n > 1 && directory[n - 1] == '/') n--;
    r->path = strndup(directory, n);
    if (!r->path) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    r->name = xstrdup(name_printable(printable, sizeof printable, path_basename(r->path)));
    struct reading in = {.record = r, .best_peak = -1};
    code = read_meta(r, err);
    if (!code) code = read_metrics(&in, err);
    if (!code) code = summarise(&in, err);
    if (!code) code = read_state(r, err);
    if (!code) code = settings_read(r, err);
    if (!code) code = measure_checkpoint(r, err);
    if (!code) sum_cards(r);
    if (!code) {
        r->batch = r->step_images > 0 && r->ranks > 1 ? r->step_images / r->ranks : r->step_images;
    } else record_free(r);
    return code;
}

const struct unit *record_unit(const struct record *r)
{
    return unit_of(r->tokens >= 0 || !isnan(r->sample_tokens));
}

bool record_same_objective(const struct record *a, const struct record *b)
{
    return !a->objective[0] || !b->objective[0] || strcmp(a->objective, b->objective) == 0;
}

void record_free(struct record *r)
{
    settings_free(r);
    free(r->path);
    free(r->name);
    free(r->step);
    free(r->loss);
    free(r->seconds);
    free(r->rate);
    free(r->epoch);
    free(r->epoch_loss);
    free(r->epoch_count);
    *r = (struct record){0};
}
