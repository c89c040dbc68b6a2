/* Evaluation during training, and the best checkpoint: see loop_internal.h. */
#include "core/base/log.h"
#include "core/run/scores.h"
#include "core/step/evaluate.h"
#include "core/train/loop_internal.h"
#include "core/train/signals.h"

#include <stdio.h>
#include <string.h>

static bool is_due(const struct train_loop *w)
{
    const struct config *c = w->t->config;
    int64_t steps = c->train.eval_steps > 0 ? c->train.eval_steps
                                            : c->train.eval_every * data_epoch_batches(w->feed.data);
    return w->feed.validation.val && steps > 0 && (w->p.step % steps == 0 || w->p.step == w->p.total);
}

static bool is_better(const struct train_loop *w, const struct metric *m)
{
    if (w->best.step < 0 || strcmp(w->best.metric, m->name) != 0) return true;
    return score_named(m->name)->lower ? m->value < w->best.value : m->value > w->best.value;
}

static void set_candidate(struct train_loop *w, const struct metric *m)
{
    w->candidate = (struct checkpoint_best){.step = w->p.step, .value = m->value};
    snprintf(w->candidate.metric, sizeof w->candidate.metric, "%s", m->name);
}

static bool stop_asked(void) { return signals_act(PHASE_EVALUATE) == ACT_SAVE_STOP; }

int loop_evaluate(struct train_loop *w, struct error *err)
{
    struct train_progress *p = &w->p;
    struct evaluation found;
    const char *best = trainer_best_metric(w->t);
    memset(p->evaluation, 0, sizeof p->evaluation);
    if (!is_due(w)) return 0;
    enter_phase(w->listener, PHASE_EVALUATE);
    w->feed.validation.stop = stop_asked;
    int code = trainer_evaluate(w->t, &w->feed.validation, &found, NULL, err);
    if (code == EXIT_STOPPED) {
        if (is_rank0(w) && p->step < p->total)
            log_info("step %lld: the evaluation is left out, because a stop is requested",
                     (long long)p->step);
        else if (is_rank0(w))
            log_warn(
                "the evaluation of the last step is left out, because a stop is requested; make it with: "
                "meopt eval %s",
                w->run->directory);
        return 0;
    }
    if (code) return code;
    memcpy(p->evaluation, found.metrics, sizeof p->evaluation);
    for (int i = 0; i < EVALUATION_METRICS && p->evaluation[i].name; i++) {
        const struct metric *m = &p->evaluation[i];
        if (strcmp(m->name, best) == 0 && is_better(w, m)) set_candidate(w, m);
    }
    return 0;
}

void loop_name_best(struct train_loop *w)
{
    struct error why = {0};
    if (!is_rank0(w) || w->candidate.step != w->p.step || w->best.step == w->p.step) return;
    if (checkpoint_best_write(w->run->directory, &w->candidate, &w->best, &why))
        log_warn("%s%s%s; the best checkpoint is not named", why.file, why.file[0] ? ": " : "", why.what);
}

void loop_forget_best(struct train_loop *w)
{
    if (w->candidate.step != w->p.step) return;
    struct checkpoint_best lost = w->candidate;
    w->candidate.step = -1;
    if (!is_rank0(w) || w->best.step == lost.step) return;
    log_warn("step %lld has the best %s so far, %.6g, and could not be saved: it cannot become the best "
             "checkpoint",
             (long long)lost.step, lost.metric, lost.value);
    checkpoint_best_settle(w->run->directory, &w->best);
}

/* Returns whether an accepted change is one of data.val. */
static bool validation_differs(json_t *changed)
{
    const char *key;
    json_t *values;
    bool differs = false;
    json_object_foreach(changed, key, values) differs |= strncmp(key, "val_", 4) == 0;
    return differs;
}

int loop_read_best(struct train_loop *w, json_t *changed, struct error *err)
{
    w->best = (struct checkpoint_best){.step = -1};
    if (w->from <= 0 || !is_rank0(w)) return 0;
    int code = checkpoint_best_find(w->run->directory, &w->best, err);
    if (code) return code;
    if (w->best.step > w->from) w->best.step = -1; /* it is evaluated again */
    if (w->best.step >= 0 && validation_differs(changed)) {
        log_info("the best checkpoint is looked for anew: data.val is another one than at step %lld",
                 (long long)w->best.step);
        w->best.step = -1;
    }
    checkpoint_best_settle(w->run->directory, &w->best);
    return 0;
}
