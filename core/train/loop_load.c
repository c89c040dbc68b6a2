/* Loading of a run before its first step in this process: see loop_internal.h. */
#include "core/base/file.h"
#include "core/run/checkpoint.h"
#include "core/step/content.h"
#include "core/experiment/experiment.h"
#include "core/train/loop_internal.h"
#include "core/train/resume_check.h"
#include "core/train/signals.h"
#include "core/train/target_maps.h"
#include "core/train/teacher_cache.h"

#include <stdlib.h>

/* Context of the pass that computes the teacher's outputs. */
struct cache_pass {
    const struct run *run;
    const struct train_listener *listener;
    const struct train_resume *how;
    json_t **changed;
};

/* Checks that a resumed run has the teacher and the student that it began with. A cached teacher is checked
 * before its outputs are computed, when there is no student yet. */
static int check_weights(const struct cache_pass *f, const struct trainer *t, struct error *err)
{
    const struct config *c = t->config;
    bool report = t->ranks.rank == 0;
    int code = 0;
    if (!f->how->resume) return 0;
    for (int i = 0; i < t->teacher_count && !code && (!t->student || !c->train.cache_teacher); i++)
        code = resume_check_weights(f->run, c, i, &t->teachers[i].content, f->how->force, report, f->changed,
                                    err);
    if (!code && t->student)
        code = resume_check_weights(f->run, c, TOWER_STUDENT, &t->student_content, f->how->force, report,
                                    f->changed, err);
    return code;
}

/* Ends the pass when a stop is requested; the outputs computed so far are kept. */
static int cache_tick(void *context, int64_t done, int64_t images, struct error *err)
{
    const struct cache_pass *f = context;
    (void)done;
    (void)images;
    (void)err;
    enter_phase(f->listener, PHASE_TEACHER);
    return signals_act(PHASE_TEACHER) == ACT_STOP ? EXIT_STOPPED : 0;
}

static int fill_targets_of_run(void *context, struct trainer *t, struct error *err)
{
    struct cache_pass *f = context;
    int code = check_weights(f, t, err);
    if (code) return code;
    enter_phase(f->listener, PHASE_TEACHER);
    char *path = run_path(f->run, t->filling == FILL_MAPS ? "targets.safetensors" : "teacher.rows");
    code = t->filling == FILL_MAPS ? target_maps_fill(t, path, cache_tick, f, err)
                                   : teacher_cache_fill(t, path, cache_tick, f, err);
    free(path);
    return code;
}

/* Refuses to begin again a run that has saved, but whose checkpoints are missing: its metrics would be
 * lost. */
static int check_never_saved(struct run *run, struct error *err)
{
    int64_t saved = -1;
    char *latest = run_path(run, "ckpt/LATEST");
    int code = run_last_saved(run, &saved, err);
    if (!code && saved < 0 && !file_absent(latest)) saved = 0;
    if (!code && saved >= 0) {
        code = error_set(err, EXIT_INTEGRITY, "restore ckpt/; to begin again, train under another --name",
                         "the run has saved (last step %lld), but all of its checkpoints are missing",
                         (long long)saved);
        error_at(err, run->directory, 0, 0);
    }
    free(latest);
    return code;
}

/* Loads the newest checkpoint and sets *from to its step; 0 for a run that never saved. */
static int resume(struct run *run, struct trainer *t, int64_t *from, struct error *err)
{
    bool rank0 = t->ranks.rank == 0;
    int code = trainer_resume(t, run->directory, from, err);
    if (!code && *from < 0) {
        code = check_never_saved(run, err);
        *from = 0;
    } else if (!code && rank0) {
        checkpoint_tidy(run->directory, *from, (int)t->config->train.checkpoint_keep);
    }
    return code || !rank0 ? code : run_truncate_metrics(run, *from, err);
}

/* Returns EXIT_STOPPED when a stop is requested while there is no step to lose. Several ranks stop together,
 * before the first step. */
static int stop_while_loading(const struct train_loop *w, int code)
{
    return !code && w->ranks == 1 && signals_act(PHASE_LOAD) == ACT_STOP ? EXIT_STOPPED : code;
}

/* Creates the trainer. A run whose first student checkpoint is gone reads the student from its own newest
 * checkpoint (experiment_fallback_weights). */
static int load_trainer(struct train_loop *w, struct config *c, struct cache_pass *pass,
                        const struct comm_options *ranks, struct device **device, struct error *err)
{
    char *fallback = NULL, **weights = experiment_began_with(c), *began = *weights;
    int code = pass->how->resume ? experiment_fallback_weights(c, w->run->directory, &fallback, err) : 0;
    if (!code) code = stop_while_loading(w, experiment_open_device(device, c, true, err));
    if (fallback) *weights = fallback;
    if (!code)
        code = trainer_create_distributed(&w->t, c, *device, false, ranks, fill_targets_of_run, pass, err);
    *weights = began;
    if (!code && fallback && !config_trains_adapters(c))
        code = resume_check_restore_student_crc(w->run, &w->t->student_content, err);
    if (w->t) w->t->fallback_weights = fallback;
    else free(fallback);
    code = stop_while_loading(w, code);
    if (!code && (code = check_weights(pass, w->t, err)) != 0) w->same_failure = code == EXIT_CONFIG;
    return code;
}

static int load_data(struct train_loop *w, const struct config *c, bool resumed, struct error *err)
{
    struct data_options options = experiment_data_options(c);
    options.rank = w->t->data->rank;
    options.ranks = w->t->data->size;
    options.batch = w->t->batch;
    options.micro = w->t->micro;
    options.global = w->t->images;
    w->feed.micro = w->t->micro;
    w->feed.chunk = data_chunk(&options);
    w->feed.context = options.context;
    w->feed.labels_each = w->t->labels_each;
    int code = experiment_open_data(&w->feed.data, c, resumed ? w->run->directory : NULL, &options, err);
    if (!code && is_rank0(w)) data_report(w->feed.data);
    if (!code) code = experiment_check_classes(c, w->feed.data, w->t->student->out_width, err);
    if (!code)
        code = experiment_open_validation(&w->feed.validation, c, w->feed.data, NULL, w->t->data->rank,
                                          w->t->data->size, is_rank0(w), w->t->micro, err);
    if (!code && w->t->cache.images && w->t->cache.list != data_hash(w->feed.data)) {
        code = error_set(err, EXIT_FAILED, "start again when the images no longer change",
                         "the images changed while the teacher's outputs were computed");
        error_at(err, c->data.root, 0, 0);
    }
    return code;
}

int loop_load(struct train_loop *w, struct config *c, const struct train_resume *how,
              const struct comm_options *ranks, struct device **device, json_t **changed, struct error *err)
{
    struct cache_pass pass = {w->run, w->listener, how, changed};
    int code = load_trainer(w, c, &pass, ranks, device, err);
    if (!code) code = stop_while_loading(w, load_data(w, c, how->resume, err));
    if (!code && w->listener->ready)
        code = w->listener->ready(w->listener->context, w->feed.data, w->feed.validation.val, err);
    if (!code) {
        code = content_compare_images(&w->t->ranks, data_list(w->feed.data), c->data.root, err);
        if (code) w->same_failure = code == EXIT_CONFIG;
    }
    if (!code && how->resume) code = resume(w->run, w->t, &w->from, err);
    if (!code) code = loop_read_best(w, *changed, err);
    return stop_while_loading(w, code);
}
