/* Distances between loss curves: see gap.h. */
#include "core/compare/gap.h"

#include <math.h>

static void update(double difference, double *max, double *final)
{
    if (!isfinite(difference)) return;
    if (!(fabs(difference) <= fabs(*max))) *max = difference;
    *final = difference;
}

/* The curve of a run, smoothed exponentially so that single batches do not decide, read step by step. */
struct walk {
    const struct record *r;
    double share, loss;
    int64_t at; /* steps read so far */
};

static struct walk walk_begin(const struct record *r)
{
    double span = fmax(1, 0.02 * (double)r->count);
    return (struct walk){r, 1 / span, NAN, 0};
}

static void walk_step(struct walk *w)
{
    double loss = w->r->loss[w->at++];
    if (isfinite(loss)) w->loss = isnan(w->loss) ? loss : w->loss + w->share * (loss - w->loss);
}

struct gap gap_measure(const struct record *a, const struct record *b)
{
    struct gap gap = {NAN, NAN, NAN, NAN};
    if (!record_same_objective(a, b)) return gap;
    for (int64_t i = 0, j = 0; i < a->count && j < b->count;) {
        if (a->step[i] < b->step[j]) i++;
        else if (a->step[i] > b->step[j]) j++;
        else {
            update(a->loss[i] - b->loss[j], &gap.max, &gap.final);
            i++;
            j++;
        }
    }
    if (isnan(a->time_s) || isnan(b->time_s)) return gap;
    double end = fmin(a->time_s, b->time_s);
    struct walk x = walk_begin(a), y = walk_begin(b);
    while (x.at < a->count && a->seconds[x.at] <= end) {
        double t = a->seconds[x.at];
        walk_step(&x);
        while (y.at < b->count && b->seconds[y.at] <= t) walk_step(&y);
        if (y.at > 0) update(x.loss - y.loss, &gap.time_max, &gap.time_final);
    }
    return gap;
}
