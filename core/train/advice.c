/* Hints after a failure: see advice.h. */
#include "core/train/advice.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/run/checkpoint.h"
#include "core/train/resume_check.h"
#include "core/plan/memory_options.h"
#include "core/run/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void advice_stepped(struct train_health *h, double loss)
{
    if (isfinite(loss)) h->lowest = h->stepped ? fmin(h->lowest, loss) : loss;
    h->stepped |= isfinite(loss);
}

void advice_saved(struct train_health *h, int64_t step, double loss)
{
    h->saves[h->count % ADVICE_SAVES].step = step;
    h->saves[h->count++ % ADVICE_SAVES].loss = loss;
}

/* Returns the step of the newest existing checkpoint from before the loss rose; 0: none. */
static int64_t last_good_save(const struct train_health *h, const struct run *run, int64_t step)
{
    for (int i = h->count - 1; i >= 0 && i > h->count - 1 - ADVICE_SAVES; i--) {
        int64_t at = h->saves[i % ADVICE_SAVES].step, there = -1;
        double loss = h->saves[i % ADVICE_SAVES].loss;
        bool sound = isfinite(loss) ? loss <= 2 * fabs(h->lowest) : at < step || !h->stepped;
        if (sound && checkpoint_before(run->directory, at, &there, NULL) == 0 && there == at) return at;
    }
    return 0;
}

/* Formats a real number as YAML reads it, with a point. */
static void rate_text(char *dst, size_t size, double rate)
{
    char text[32];
    snprintf(text, sizeof text, "%.3g", rate);
    size_t whole = strcspn(text, ".e");
    snprintf(dst, size, "%.*s%s%s", (int)whole, text, text[whole] == '.' ? "" : ".0", text + whole);
}

void advice_diverged(const struct train_health *h, const struct run *run, const struct config *c,
                     int64_t step, struct error *err)
{
    char word[220], rate[48], at[96] = "";
    int64_t from = last_good_save(h, run, step), newest = -1;
    if (!err) return;
    rate_text(rate, sizeof rate, c->optim.lr / 10);
    if (from > 0) {
        if (checkpoint_before(run->directory, INT64_MAX, &newest, NULL) == 0 && newest > from)
            snprintf(at, sizeof at, " --at %lld%s", (long long)from, run->ranks);
        else snprintf(at, sizeof at, "%s", run->ranks);
        snprintf(err->hint, sizeof err->hint,
                 _("resume from step %lld at a lower rate: meopt train --resume %s%s optim.lr=%s"),
                 (long long)from, run_word(word, sizeof word, run->directory), at, rate);
        return;
    }
    char *path = run_path(run, "config.yaml");
    snprintf(err->hint, sizeof err->hint,
             _("no earlier checkpoint; begin again at a lower rate: meopt train %s optim.lr=%s%s"),
             run_word(word, sizeof word, path), rate, c->run.name[0] ? _(" --name again") : "");
    free(path);
}

/* Returns whether the run can be resumed with all of these keys. */
static bool may_resume(const struct run *run, const char *keys)
{
    char *meta = run_path(run, "meta.json");
    bool may = file_absent(meta);
    free(meta);
    if (may) return true;
    may = true;
    for (const char *p = keys; *p && may; p += strcspn(p, " ") + (p[strcspn(p, " ")] == ' ')) {
        char *key = strndup(p, strcspn(p, "="));
        may = resume_check_may_change(key, NULL);
        free(key);
    }
    return may;
}

void advice_memory(const struct run *run, const struct comm_options *ranks, size_t available,
                   struct error *err)
{
    struct memory_planner p;
    struct memory_options l;
    char word[220], *path = run_path(run, "config.yaml");
    if (err && memory_planner_open(&p, path, NULL, 0, ranks, NULL) == 0) {
        const struct memory_option *best = NULL;
        memory_options_find(&l, &p, available);
        log_info("settings with a lower peak than the planned %.1f MiB:",
                 (double)l.now.peak_bytes / 1048576.0);
        for (int i = 0; i < l.count; i++) {
            const struct memory_option *r = &l.options[i];
            if (!r->keys[0] || r->peak_bytes >= l.now.peak_bytes) continue;
            log_info("  %10.1f MiB, step x %.2f: %s%s", (double)r->peak_bytes / 1048576.0,
                     r->step_s / l.now.step_s, r->keys, memory_option_note(r));
            if (!best || l.chosen < 0 || i == l.chosen) best = r;
        }
        const char *label = l.chosen >= 0 ? _("this fits") : _("this needs the least memory");
        char *again = xasprintf("%s%s", run_word(word, sizeof word, run->directory), run->ranks);
        if (best && may_resume(run, best->keys))
            snprintf(err->hint, sizeof err->hint, "%s: meopt train --resume %s %s", label, again, best->keys);
        else if (best)
            snprintf(err->hint, sizeof err->hint, "%s: meopt train %s %s", label,
                     run_word(word, sizeof word, path), best->keys);
        free(again);
        memory_options_free(&l);
        memory_planner_close(&p);
    }
    free(path);
}
