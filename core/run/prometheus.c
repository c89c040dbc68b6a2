/* Prometheus' text exposition format 0.0.4: for each metric a HELP and a TYPE line, then its samples, in
 * base units (seconds, bytes, ratios of 1). */
#include "core/run/prometheus.h"
#include "core/base/file.h"
#include "core/base/memory.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Writes a label's value: backslash, quote and newline are escaped. Other control characters become \xNN
 * first, and so have one more backslash. */
static void put_label(FILE *out, const char *name, const char *value, bool first)
{
    char printable[512];
    name_printable(printable, sizeof printable, value);
    fprintf(out, "%s%s=\"", first ? "" : ",", name);
    for (const char *p = printable; *p; p++) {
        if (*p == '\\' || *p == '"') fputc('\\', out);
        fputc(*p, out);
    }
    fputc('"', out);
}

static void put_head(FILE *out, const char *metric, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s gauge\n", metric, help, metric);
}

static void put_number(FILE *out, double value)
{
    if (isinf(value)) fputs(value > 0 ? " +Inf\n" : " -Inf\n", out);
    else fprintf(out, " %.15g\n", value);
}

/* Writes a metric with one sample. */
static void put_single(FILE *out, const struct prometheus_run *run, const char *metric, const char *help,
                       double value)
{
    if (isnan(value)) return;
    put_head(out, metric, help);
    fprintf(out, "%s{", metric);
    put_label(out, "run", run->run, true);
    fputc('}', out);
    put_number(out, value);
}

static void put_state(FILE *out, const struct prometheus_run *run)
{
    if (!run->state) return;
    put_head(out, "meopt_run_state", "1 for the state that the run is in.");
    fputs("meopt_run_state{", out);
    put_label(out, "run", run->run, true);
    put_label(out, "state", run->state, false);
    fputs("} 1\n", out);
}

static void put_memory(FILE *out, const struct prometheus_run *run, const struct scalars *s)
{
    bool head = false;
    for (int i = 0; i < s->memory_count; i++) {
        if (isnan(s->memory[i].bytes)) continue;
        if (!head)
            put_head(out, "meopt_train_memory_bytes",
                     "Device memory of the run on its fullest card: the peak of each class, total now, "
                     "peak_total.");
        head = true;
        fputs("meopt_train_memory_bytes{", out);
        put_label(out, "run", run->run, true);
        put_label(out, "class", s->memory[i].class, false);
        fputc('}', out);
        put_number(out, s->memory[i].bytes);
    }
}

static void put_cards(FILE *out, const struct prometheus_run *run)
{
    static const struct {
        const char *metric, *help;
        size_t at;
        double scale;
    } rows[] = {
        {"meopt_card_memory_used_bytes", "Memory in use on the card, by all processes.",
         offsetof(struct prometheus_card, mem_used_bytes), 1},
        {"meopt_card_memory_size_bytes", "Memory of the card.",
         offsetof(struct prometheus_card, mem_total_bytes), 1},
        {"meopt_card_busy_ratio", "Busy as the vendor defines it, 0 to 1.",
         offsetof(struct prometheus_card, busy_percent), 0.01},
        {"meopt_card_temperature_celsius", "Temperature of the card.",
         offsetof(struct prometheus_card, temp_c), 1},
        {"meopt_card_power_watts", "Power that the card draws.", offsetof(struct prometheus_card, power_w),
         1},
        {"meopt_card_sample_age_seconds", "How long ago the card was last read.",
         offsetof(struct prometheus_card, age_s), 1},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        bool head = false;
        for (int i = 0; i < run->card_count; i++) {
            const struct prometheus_card *card = &run->cards[i];
            double value;
            memcpy(&value, (const char *)card + rows[r].at, sizeof value);
            if (isnan(value)) continue;
            if (!head) put_head(out, rows[r].metric, rows[r].help);
            head = true;
            fprintf(out, "%s{", rows[r].metric);
            put_label(out, "run", run->run, true);
            put_label(out, "card", card->card, false);
            if (card->name && card->name[0]) put_label(out, "name", card->name, false);
            if (card->pci && card->pci[0]) put_label(out, "pci", card->pci, false);
            fputc('}', out);
            put_number(out, value * rows[r].scale);
        }
    }
}

char *prometheus_text(const struct prometheus_run *run)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return xstrdup("");
    put_state(out, run);
    put_single(out, run, "meopt_run_updated_timestamp_seconds",
               "When this file was written, seconds since 1970.", (double)time(NULL));
    if (run->total_steps > 0)
        put_single(out, run, "meopt_train_steps_planned", "Optimizer steps of the whole run.",
                   (double)run->total_steps);
    const struct scalars *s = run->last;
    if (s) {
        put_single(out, run, "meopt_train_step", "Optimizer steps done.", (double)s->step);
        put_single(out, run, "meopt_train_epoch", "Epoch of the last step.", s->epoch);
        put_single(out, run, "meopt_train_loss", "Loss of the last step.", s->loss);
        for (int i = 0; i < SCORE_COUNT; i++)
            put_single(out, run, score_rows[i].gauge, score_rows[i].help, s->scores[i]);
        put_single(out, run, "meopt_train_learning_rate", "Learning rate of the last step.", s->lr);
        put_single(out, run, "meopt_train_gradient_norm",
                   "Norm of the gradient before clipping in the last step.", s->grad_norm);
        put_single(out, run, "meopt_train_images_per_second",
                   "Throughput of the last step in images, of a language model in samples.", s->images_per_s);
        put_single(out, run, "meopt_train_step_duration_seconds", "Time that the last step took.",
                   s->step_ms * 1e-3);
        put_single(out, run, "meopt_train_data_wait_seconds", "Time for which the last step waited for data.",
                   s->data_wait_ms * 1e-3);
        put_memory(out, run, s);
    }
    put_cards(out, run);
    fclose(out);
    return text;
}

int prometheus_write(const char *path, const struct prometheus_run *run, struct error *err)
{
    char *text = prometheus_text(run), *temp = xasprintf("%s.%d.tmp", path, (int)getpid());
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    int code = fd < 0 ? error_errno(err, EXIT_FAILED, "create the directory, or make it writable",
                                    "cannot create %s", temp)
                      : 0;
    if (fd >= 0) {
        fchmod(fd, 0644);
        code = file_write_all(fd, text, strlen(text), temp, err);
        if (close(fd) != 0 && code == 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot write %s", temp);
        if (code == 0 && rename(temp, path) != 0)
            code = error_errno(err, EXIT_FAILED, "remove it if it is a directory", "cannot replace %s", path);
        if (code) unlink(temp);
    }
    free(temp);
    free(text);
    return code;
}
