/* The bottleneck of a run: see bottleneck.h. Each rule has its threshold here and reports the figures that
 * it used. */
#include "core/run/bottleneck.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 50, FEWEST = 10, READINGS_NOW = 6 };
static const double WAITS = 20, /* percent of a step */
    PRESSURE = 20,              /* percent of the time in which a process waited for a disk */
    HOT = 75, POWER_KEPT = 0.9, SLOWED = 1.1, BUSY = 70;

const char *const bottleneck_names[BOTTLENECK_KINDS] = {"",
                                                        N_("fallback kernel"),
                                                        N_("straggler"),
                                                        N_("disk-bound"),
                                                        N_("data-bound"),
                                                        N_("throttled"),
                                                        N_("compute-bound")};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Computes medians over the last steps: milliseconds, and the percentage spent waiting for data. Returns
 * the number of steps. */
static int last_steps(const struct follow *f, double *ms, double *waiting)
{
    double all[STEPS], shares[STEPS];
    int n = 0;
    for (int64_t i = 1; i <= f->recent_count && i <= FOLLOW_RECENT && n < STEPS; i++) {
        const struct metric_line *l = &f->recent[(f->recent_count - i) % FOLLOW_RECENT];
        if (!(l->step_ms > 0) || !isfinite(l->data_wait_ms)) continue;
        all[n] = l->step_ms;
        shares[n++] = 100 * l->data_wait_ms / l->step_ms;
    }
    if (n < FEWEST) return n;
    qsort(all, (size_t)n, sizeof *all, by_value);
    qsort(shares, (size_t)n, sizeof *shares, by_value);
    *ms = all[n / 2];
    *waiting = shares[n / 2];
    return n;
}

/* Returns the milliseconds of the fastest tenth of the run's points. */
static double best_ms(const struct follow *f)
{
    double *all = xcalloc((size_t)f->point_count + 1, sizeof *all);
    int n = 0;
    for (int i = 0; i < f->point_count; i++)
        if (f->points[i].values[METRIC_STEP_MS] > 0) all[n++] = f->points[i].values[METRIC_STEP_MS];
    qsort(all, (size_t)n, sizeof *all, by_value);
    double best = n ? all[n / 10] : NAN;
    free(all);
    return best;
}

/* Finds a card that is hot and busy, draws less power than earlier in the run, and takes longer per step. */
static bool find_throttled(struct bottleneck *v, const struct follow *f, double ms)
{
    for (int c = 0; c < f->card_count; c++) {
        const struct follow_card *card = &f->cards[c];
        double most = 0, power = 0, temp = 0, busy = 0;
        int n = 0;
        if (!card->readings || f->reading_count < 2 * READINGS_NOW) continue;
        for (int i = 0; i < f->reading_count; i++) {
            const float *r = card->readings[i];
            if (r[READING_POWER] > most) most = (double)r[READING_POWER];
            if (i < f->reading_count - READINGS_NOW) continue;
            power += (double)r[READING_POWER];
            temp += (double)r[READING_TEMP];
            busy += (double)r[READING_BUSY];
            n++;
        }
        power /= n, temp /= n, busy /= n;
        if (!(temp >= HOT && busy >= BUSY && power < POWER_KEPT * most)) continue;
        double best = best_ms(f);
        if (!(ms > SLOWED * best)) continue;
        v->kind = BOTTLENECK_THROTTLED;
        snprintf(v->cause, sizeof v->cause, _("card %d: %.0f C, %.0f of %.0f W; a step takes %.0f %% longer"),
                 card->rank, temp, power, most, 100 * (ms / best - 1));
        return true;
    }
    return false;
}

static void set_data_remedy(struct bottleneck *v, const struct follow *f, const char *run)
{
    if (v->kind == BOTTLENECK_DISK)
        snprintf(v->remedy, sizeof v->remedy,
                 _("copy the data to a local disk: meopt train --resume %s data.root=/LOCAL/COPY"), run);
    else if (f->data_workers > 0)
        snprintf(v->remedy, sizeof v->remedy,
                 _("more decoding threads: meopt train --resume %s data.workers=%lld"), run,
                 (long long)(2 * f->data_workers));
    else
        snprintf(v->remedy, sizeof v->remedy,
                 _("all CPUs decode: use more of them, for example with meopt sbatch --cpus"));
}

void bottleneck_find(struct bottleneck *v, const struct follow *f)
{
    char run[200];
    double ms = NAN, waiting = NAN, busy = NAN;
    *v = (struct bottleneck){0};
    run_word(run, sizeof run, f->directory);
    if (f->fallback[0]) {
        v->kind = BOTTLENECK_FALLBACK;
        snprintf(v->cause, sizeof v->cause, "%.190s", f->fallback);
        snprintf(v->remedy, sizeof v->remedy, _("check the machine: meopt doctor"));
        return;
    }
    if (last_steps(f, &ms, &waiting) < FEWEST) return;
    for (int i = 0; i < f->card_count; i++) busy = fmax(busy, f->cards[i].busy_percent);
    if (f->slowest_rank >= 0 && f->slowest_costs >= WAITS) {
        v->kind = BOTTLENECK_STRAGGLER;
        snprintf(v->cause, sizeof v->cause, _("rank %d on %.60s: the others wait %.0f %% of a step for it"),
                 f->slowest_rank, f->slowest_host, f->slowest_costs);
        snprintf(v->remedy, sizeof v->remedy, _("check its host: ssh %.60s meopt doctor"), f->slowest_host);
    } else if (f->status.message[0] && strcmp(f->status.state, "training") == 0) { /* saving is paused */
        v->kind = BOTTLENECK_DISK;
        snprintf(v->cause, sizeof v->cause, "%.190s", f->status.message);
        snprintf(v->remedy, sizeof v->remedy, _("free disk space: df -h %s"), run);
    } else if (waiting >= WAITS) {
        v->kind = f->io_percent >= PRESSURE ? BOTTLENECK_DISK : BOTTLENECK_DATA;
        int n = snprintf(v->cause, sizeof v->cause, _("%.0f %% of a step waits for data"), waiting);
        if (v->kind == BOTTLENECK_DISK)
            snprintf(v->cause + n, sizeof v->cause - (size_t)n, _(", the disk stalls %.0f %%"),
                     f->io_percent);
        set_data_remedy(v, f, run);
    } else if (find_throttled(v, f, ms)) {
        snprintf(v->remedy, sizeof v->remedy,
                 _("cool it, or use another card: meopt train --resume %s --cards N"), run);
    } else if (!isfinite(busy) || busy >= BUSY) {
        v->kind = BOTTLENECK_COMPUTE;
        int n = snprintf(v->cause, sizeof v->cause, _("%.1f %% of a step waits for data"), waiting);
        if (isfinite(busy))
            snprintf(v->cause + n, sizeof v->cause - (size_t)n, _(", the busiest card is %.0f %% busy"),
                     busy);
    }
}
