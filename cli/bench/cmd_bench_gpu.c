/* meopt bench gpu: measures a card, and writes one report that can be sent.
 *
 * Each part runs a different command of this program as a process with its own time limit, so that a part
 * that hangs, crashes or runs out of memory does not affect the others. The file is written after each
 * part, so that an interruption keeps the earlier ones. */
#include "cli/command.h"
#include "cli/language.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/message.h"
#include "core/config/config.h"
#include "core/device/driver.h"
#include "core/doctor/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 64, LINES = 12 };

struct gpu_bench {
    const char *file;
    json_t *report, *parts;
    double began, seconds; /* of all parts */
    char device[32];       /* "hip:0"; "": unknown or none */
    char **config;         /* CONFIG key=value ..., config_words words; 0: not given */
    int config_words, failed;
    bool random; /* random weights: the model shapes are known without checkpoints */
};

/* The words of a command, malloc'ed. */
struct words {
    char *word[WORDS];
    int count;
};

static void add(struct words *w, const char *text)
{
    if (w->count < WORDS - 1) w->word[w->count++] = xasprintf("%s", text);
}

static void add_config(struct words *w, const struct gpu_bench *b)
{
    for (int i = 0; i < b->config_words; i++) add(w, b->config[i]);
}

/* Adds the configuration, on the measured device. */
static void add_training(struct words *w, const struct gpu_bench *b)
{
    char text[64];
    add_config(w, b);
    snprintf(text, sizeof text, "device.type=%.*s", (int)strcspn(b->device, ":"), b->device);
    add(w, text);
    snprintf(text, sizeof text, "device.cards=%s", b->device + strcspn(b->device, ":") + 1);
    add(w, text);
}

/* ---- one process ---- */

static pid_t begin(const struct words *w, const char *graphs, FILE *out, FILE *messages)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0) return pid;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(fileno(out), STDOUT_FILENO) < 0 ||
        dup2(fileno(messages), STDERR_FILENO) < 0)
        _exit(EXIT_FAILED);
    if (graphs) setenv("MEOPT_GRAPHS", graphs, 1);
    execv("/proc/self/exe", w->word);
    _exit(EXIT_FAILED);
}

/* Returns the wait status of a child; -1: it was killed at its limit (seconds). SIGCHLD is blocked. */
static int await(pid_t pid, double limit)
{
    double end = clock_seconds() + limit;
    sigset_t child;
    int status = 0;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        double left = end - clock_seconds();
        struct timespec t = {(time_t)left, (long)(fmod(left, 1) * 1e9)};
        if (left > 0) sigtimedwait(&child, NULL, &t);
        else {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
    }
    return status;
}

/* Returns the last lines of a file, oldest first; `last` is the last error message. */
static json_t *last_lines(FILE *messages, char *last, size_t size)
{
    char *line = NULL;
    size_t capacity = 0;
    json_t *lines = json_array();
    rewind(messages);
    while (getline(&line, &capacity, messages) > 0) {
        char text[400];
        line[strcspn(line, "\n")] = 0;
        if (!line[strspn(line, " ")]) continue;
        if (strncmp(line, "meopt: ", 7) == 0 || !last[0]) snprintf(last, size, "%s", line);
        json_array_append_new(lines, json_string(name_printable(text, sizeof text, line)));
        if (json_array_size(lines) > LINES) json_array_remove(lines, 0);
    }
    free(line);
    return lines;
}

/* ---- parts ---- */

/* Prints a part and adds it to the file. figures (owned by the report then) NULL: missing for `reason`. */
static int add_part(struct gpu_bench *b, const char *name, double took, json_t *figures, const char *reason,
                    json_t *said, struct error *err)
{
    json_t *part = json_pack("{s:s, s:f, s:s?, s:o?, s:o?}", "name", name, "seconds", took, "reason", reason,
                             "figures", figures, "said", said);
    doctor_anonymous(part);
    static const char *const shown[][2] = {{"optimizer", N_("steps of the optimizer")},
                                           {"training", N_("training steps")}};
    char why[400];
    const char *title = name;
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (strcmp(name, shown[i][0]) == 0) title = shown[i][1];
    if (reason) message_translated(why, sizeof why, json_string_value(json_object_get(part, "reason")));
    printf(_("%*s %6.1f s  %s\n"), PAD(-24, _(title)), took, reason ? why : _("measured"));
    fflush(stdout);
    json_array_append_new(b->parts, part);
    return json_write(b->file, b->report, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9), err);
}

/* Runs a command as a part. *figures: its output, borrowed; NULL: none. Frees the words. */
static int run_part(struct gpu_bench *b, const char *name, double limit, struct words *w, const char *graphs,
                    json_t **figures, struct error *err)
{
    double left = b->seconds - (clock_seconds() - b->began), at = clock_seconds();
    char reason[400] = "", last[400] = "";
    json_t *found = NULL, *said = NULL;
    FILE *out = tmpfile(), *messages = tmpfile();
    limit = fmin(limit, left);
    if (limit < 1) snprintf(reason, sizeof reason, N_("no time left"));
    else if (!out || !messages) snprintf(reason, sizeof reason, N_("no temporary file: %s"), strerror(errno));
    else {
        pid_t pid = begin(w, graphs, out, messages);
        int status = pid > 0 ? await(pid, limit) : 0;
        said = last_lines(messages, last, sizeof last);
        rewind(out);
        found = json_loadf(out, JSON_DISABLE_EOF_CHECK, NULL);
        if (pid < 0) snprintf(reason, sizeof reason, N_("cannot start a process"));
        else if (status == -1) snprintf(reason, sizeof reason, N_("killed at its limit of %.0f s"), limit);
        else if (WIFSIGNALED(status))
            snprintf(reason, sizeof reason, N_("ended by signal %d"), WTERMSIG(status));
        else if (!found) snprintf(reason, sizeof reason, N_("exit %d: %.300s"), WEXITSTATUS(status), last);
    }
    if (out) fclose(out);
    if (messages) fclose(messages);
    for (int i = 0; i < w->count; i++) free(w->word[i]);
    b->failed += !found;
    if (figures) *figures = found;
    return add_part(b, name, clock_seconds() - at, found, found ? NULL : reason, said, err);
}

/* Returns the words of a command of this program, with --json. */
static struct words make_command(const char *first, const char *second)
{
    struct words w = {.count = 0};
    add(&w, "meopt");
    add(&w, first);
    if (second) add(&w, second);
    add(&w, "--json");
    return w;
}

static int doctor_part(struct gpu_bench *b, json_t **report, struct error *err)
{
    struct words w = make_command("doctor", NULL);
    add_config(&w, b);
    int code = run_part(b, "doctor", 120, &w, NULL, report, err);
    if (code || *report) return code;
    w = make_command("doctor", NULL);
    add(&w, "--quick");
    return run_part(b, "doctor --quick", 30, &w, NULL, report, err);
}

/* Reads the device (default: the first card), its free memory and its bandwidth from the doctor's report. */
static void read_doctor(struct gpu_bench *b, const json_t *report, double *free_bytes, double *gb_per_s)
{
    json_t *check;
    size_t i;
    json_array_foreach(json_object_get(report, "checks"), i, check)
    {
        const char *of = json_string_value(json_object_get(check, "device"));
        const json_t *available = json_object_get(check, "free_bytes"),
                     *rate = json_object_get(check, "triad_gb_per_s");
        if (!of) continue;
        if (!b->device[0] && available) snprintf(b->device, sizeof b->device, "%s", of);
        if (strcmp(of, b->device) != 0) continue;
        if (available) *free_bytes = json_number_value(available);
        if (rate) *gb_per_s = json_number_value(rate);
    }
}

/* Measures the optimizer with as many parameters as take 50 ms per step (36 bytes moved per parameter),
 * limited by the card's memory: 18 bytes per parameter in the widest format, and 2 GiB for the copies of
 * the bandwidth test. */
static int optimizer_part(struct gpu_bench *b, double free_bytes, double gb_per_s, struct error *err)
{
    struct words w = make_command("bench", "optim");
    char text[32];
    double count = fmin(gb_per_s * 1e9 * 0.05 / 36, (free_bytes * 0.9 - 2147483648.0) / 18);
    snprintf(text, sizeof text, "%.0f", fmax(65536, fmin(count, 1e9)));
    add(&w, "--device"), add(&w, b->device);
    add(&w, "--params"), add(&w, text);
    return run_part(b, "optimizer", 90, &w, NULL, NULL, err);
}

static int training_parts(struct gpu_bench *b, double free_bytes, int64_t batch, struct error *err)
{
    static const struct {
        const char *name, *graphs, *option;
        double limit;
    } ways[] = {{"training", NULL, NULL, 60},
                {N_("training without graphs"), "none", NULL, 50},
                {N_("training by kind"), NULL, "--profile", 60}};
    char text[32];
    struct words w = make_command("plan", NULL);
    json_t *plan = NULL;
    add_training(&w, b);
    snprintf(text, sizeof text, "%.0f", free_bytes * 0.95);
    add(&w, "--card-memory"), add(&w, text);
    int code = run_part(b, "plan", 30, &w, NULL, &plan, err);
    int64_t fits = json_integer_value(json_object_get(plan, "largest_micro_batch_images"));
    batch = fits > 0 && fits < batch ? fits : batch;
    snprintf(text, sizeof text, "%lld", (long long)(batch < 32 ? batch : 32));
    for (size_t i = 0; i < sizeof ways / sizeof *ways && !code; i++) {
        w = make_command("bench", "train");
        if (b->random) add(&w, "--random-weights");
        add(&w, "--no-peak");
        add(&w, "--batch"), add(&w, text);
        add(&w, "--steps"), add(&w, "6");
        if (ways[i].option) add(&w, ways[i].option);
        add_training(&w, b);
        code = run_part(b, ways[i].name, ways[i].limit, &w, ways[i].graphs, NULL, err);
    }
    return code;
}

static int run_parts(struct gpu_bench *b, int64_t batch, struct error *err)
{
    json_t *report = NULL;
    double free_bytes = 0, gb_per_s = 0;
    int code = doctor_part(b, &report, err);
    read_doctor(b, report, &free_bytes, &gb_per_s);
    if (code) return code;
    json_object_set_new(b->report, "device", b->device[0] ? json_string(b->device) : json_null());
    if (!b->device[0] && !report)
        return add_part(b, N_("optimizer, training"), 0, NULL,
                        N_("the doctor has no report; give the card with --device"), NULL, err);
    if (!b->device[0]) {
        code = add_part(b, N_("optimizer, training"), 0, NULL, N_("no usable card"), NULL, err);
        return code ? code
                    : error_set(err, EXIT_NO_CARD, "the file has the reason, as does: meopt doctor",
                                "no usable card; the report is %s", b->file);
    }
    code = optimizer_part(b, free_bytes, gb_per_s, err);
    if (!code && b->config_words) code = training_parts(b, free_bytes, batch, err);
    else if (!code) code = add_part(b, "training", 0, NULL, N_("no CONFIG was given"), NULL, err);
    return code;
}

/* ---- the command ---- */

/* Looks for the measured card in a process, since a driver may hang: then the parts report it. Returns
 * EXIT_NO_CARD if its driver does not see it. */
static int find_card(const struct gpu_bench *b, struct error *err)
{
    int ends[2], index = atoi(b->device + strcspn(b->device, ":") + 1);
    struct error found = {0};
    if (pipe2(ends, O_CLOEXEC)) return error_errno(err, EXIT_FAILED, NULL, "cannot create a pipe");
    pid_t pid = fork();
    if (pid == 0) {
        struct driver driver;
        struct card_info card;
        int code = driver_open(&driver, b->device[0] == 'h' ? DRIVER_HIP : DRIVER_CUDA, &found);
        if (!code) driver_card(&driver, index, &card, &found);
        _exit(write(ends[1], &found, sizeof found) == (ssize_t)sizeof found ? 0 : EXIT_FAILED);
    }
    close(ends[1]);
    if (pid > 0 && await(pid, 30) == 0 && read(ends[0], &found, sizeof found) == (ssize_t)sizeof found &&
        found.code == EXIT_NO_CARD)
        *err = found;
    else found.code = 0;
    close(ends[0]);
    return found.code;
}

static bool needs_checkpoint(const struct config_tower *t)
{
    return t->arch == TOWER_ARCH_CUSTOM && !t->width && t->weight && t->weight[0];
}

/* Reads the batch size and the card (if set) from the configuration. */
static int read_config(struct gpu_bench *b, int64_t *batch, struct error *err)
{
    struct config c;
    int card = 0, code = config_load(&c, b->config[0], b->config + 1, b->config_words - 1, err);
    if (code) return code;
    config_cards(&c, &card);
    *batch = c.train.batch_size;
    b->random = !needs_checkpoint(&c.model_t) && !needs_checkpoint(&c.model_s);
    if (!b->device[0] && (c.device.type == DEVICE_TYPE_HIP || c.device.type == DEVICE_TYPE_CUDA))
        snprintf(b->device, sizeof b->device, "%s:%d", c.device.type == DEVICE_TYPE_HIP ? "hip" : "cuda",
                 card);
    config_free(&c);
    return 0;
}

static int bench_gpu(const struct arguments *args, struct error *err)
{
    struct gpu_bench b = {.file = argument_text(args, "output", "meopt-gpu.json"),
                          .began = clock_seconds(),
                          .seconds = argument_real(args, "seconds", 480),
                          .config = args->operands,
                          .config_words = args->operand_count};
    int64_t batch = 1;
    const char *device = argument_text(args, "device", "");
    size_t type = strcspn(device, ":");
    if (device[0] && (!device[type] || (strncmp(device, "hip:", 4) != 0 && strncmp(device, "cuda:", 5) != 0)))
        return error_set(err, EXIT_USAGE, "for example hip:0", "--device %s is not a card", device);
    snprintf(b.device, sizeof b.device, "%s", device);
    int code = b.config_words ? read_config(&b, &batch, err) : 0;
    if (code) return code;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    if (b.device[0] && (code = find_card(&b, err)) != 0) return code;
    b.report = json_pack("{s:n, s:[]}", "device", "parts");
    b.parts = json_object_get(b.report, "parts");
    code = run_parts(&b, batch, err);
    json_decref(b.report);
    if (!code || code == EXIT_NO_CARD)
        log_info("%s can be sent: it has no host name, no user name and no directories", b.file);
    if (!code && b.failed)
        code = error_set(err, EXIT_FAILED, "the file has the reasons; for more time: --seconds",
                         "%d parts have no figures", b.failed);
    return code;
}

static const struct option options[] = {
    {"output", 'o', OPTION_TEXT, "FILE", NULL, 0, 0, "output file (default meopt-gpu.json)"},
    {"device", 'd', OPTION_TEXT, "DEVICE", NULL, 0, 0,
     "card: hip:N or cuda:N (default: the configuration's, or the first)"},
    {"seconds", 0, OPTION_REAL, "S", NULL, 1, 86400, "seconds for all parts (default 480)"},
    {0},
};

const struct command cmd_bench_gpu = {
    .name = "bench gpu",
    .operands = "[CONFIG [key=value ...]]",
    .summary = "write the timings of a card to a file",
    .details = "Examples:\n  meopt bench gpu eva_clip.yaml\n  meopt bench gpu "
               "eva_clip.yaml --device hip:1 -o card.json\n",
    .options = options,
    .max_operands = -1,
    .run = bench_gpu,
};
