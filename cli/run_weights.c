/* Weights of a run: see run_weights.h. */
#include "cli/run_weights.h"
#include "cli/run_name.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/config/hub_name.h"
#include "core/config/value.h"
#include "core/experiment/adapters.h"
#include "core/run/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Makes the configuration of a model directory (transformers), or of hf:OWNER/REPO: a language model, unless
 * the keys say something else. Returns false if the operand is neither. */
static bool model_config(struct config *c, char **operands, int count, int *code, struct error *err)
{
    char *path = hub_is_name(operands[0]) ? hub_resolve(operands[0], err) : xstrdup(operands[0]),
         *model = path ? path_join(path, "config.json") : NULL,
         *own = path ? path_join(path, "config.yaml") : NULL;
    bool found = !path || (!file_absent(model) && file_absent(own));
    if (!path) *code = err->code;
    if (path && found) {
        char *real = realpath(path, NULL), *quoted = value_quoted(real ? real : path),
             *text = xasprintf("model: {weight: %s}\ntrain: {objective: language}\n", quoted);
        *code = config_load_text(c, path_basename(path), text, strlen(text), operands + 1, count - 1, err);
        free(text);
        free(quoted);
        free(real);
    }
    free(own);
    free(model);
    free(path);
    return found;
}

int run_weights_config(struct config *c, char **run, char **operands, int count, struct error *err)
{
    const char *operand = operands[0];
    struct stat st;
    int code = 0;
    *run = NULL;
    *c = (struct config){0};
    if (model_config(c, operands, count, &code, err)) return code;
    char *named = stat(operand, &st) == 0 ? NULL : run_named(operand, NULL, &code, NULL);
    if (named) operand = named;
    bool is_run = stat(operand, &st) == 0 && S_ISDIR(st.st_mode);
    *run = is_run ? xstrdup(operand) : NULL;
    free(named);
    return is_run ? config_load_below(c, *run, operands + 1, count - 1, err)
                  : config_load(c, operands[0], operands + 1, count - 1, err);
}

enum run_checkpoint run_checkpoint_asked(const char *which)
{
    return !which ? RUN_BEST_OR_NEWEST : strcmp(which, "best") == 0 ? RUN_BEST : RUN_NEWEST;
}

int run_checkpoint_open(struct checkpoint *c, const char *run, enum run_checkpoint which, struct error *err)
{
    struct checkpoint_best best = {.step = -1};
    *c = (struct checkpoint){.step = -1, .at = -1, .model_file = -1};
    int code = which == RUN_NEWEST ? 0 : checkpoint_best_find(run, &best, err);
    if (!code && best.step >= 0 && which == RUN_BEST_OR_NEWEST)
        log_info("%s: the best checkpoint, of step %lld by %s; the newest one: --checkpoint last", run,
                 (long long)best.step, best.metric);
    if (!code && best.step >= 0) return checkpoint_scan(c, run, best.step, NULL, err);
    if (!code && which != RUN_BEST) code = checkpoint_newest(c, run, false, err);
    if (code || c->step >= 0) return code;
    code = which == RUN_BEST
               ? error_set(err, EXIT_FAILED, "use --checkpoint last", "has no best checkpoint")
               : error_set(err, EXIT_FAILED, "to save one: meopt checkpoint RUN", "has no checkpoint");
    error_at(err, run, 0, 0);
    return code;
}

int run_weights_path(char **path, const char *run, enum run_checkpoint which, int64_t *step,
                     struct error *err)
{
    struct checkpoint c;
    int code = run_checkpoint_open(&c, run, which, err);
    char *relative = code ? NULL : path_join(c.directory, "model.safetensors");
    *path = relative ? realpath(relative, NULL) : NULL;
    *step = c.step;
    if (!code && !*path) {
        code = error_errno(err, EXIT_FAILED, NULL, "cannot find the checkpoint's weights");
        error_at(err, relative, 0, 0);
    }
    free(relative);
    checkpoint_close(&c);
    return code;
}

int run_weights_use(struct config *config, const char *run, enum run_checkpoint which, int64_t *step,
                    struct error *err)
{
    char *path;
    int code = run_weights_path(&path, run, which, step, err);
    bool adapters = config_trains_adapters(config); /* the file has these alone */
    if (!code) code = config_assign(config, adapters ? "lora.adapter" : "model_s.weight", path, err);
    if (!code && !adapters) code = config_assign(config, "model_s.init", "checkpoint", err);
    free(path);
    return code;
}

int run_load_adapters(const struct config *c, struct tower *tower, struct error *err)
{
    struct weights *weights = NULL;
    if (!c->lora.adapter[0]) return 0;
    int code = adapters_open(c, &weights, err);
    if (!code) code = tower_load_adapters(tower, weights, NULL, NULL, err);
    weights_close(weights);
    return code;
}
