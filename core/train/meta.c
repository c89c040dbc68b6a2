/* meta.json and plan.json: see meta.h. */
#include "core/train/meta.h"
#include "core/experiment/experiment.h"
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/data/token_documents.h"
#include "core/run/checkpoint.h"
#include "core/run/memory.h"
#include "core/comm/comm.h"
#include "core/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *meta_version(void) { return MEOPT_VERSION; }

uint32_t meta_program_crc(void)
{
    struct file_map map;
    if (file_map_open(&map, "/proc/self/exe", NULL)) return 0;
    uint32_t crc = crc32c(0, map.data, map.bytes);
    file_map_close(&map);
    return crc;
}

/* Plans this experiment on the opened kind of device, with or without MEOpt. */
static int plan_own_device(struct plan *plan, const struct trainer *t, bool use_meopt)
{
    static const char *const without[][2] = {{"model_t.place", "resident"}, {"model_s.place", "resident"},
                                             {"optim.offload", "none"},     {"optim.use_meopt", "false"},
                                             {"optim.pure_bf16", "false"},  {"optim.weights", "auto"},
                                             {"optim.state_m", "auto"},     {"optim.state_v", "auto"},
                                             {"optim.gradients", "keep"},   {"optim.clip_mode", "exact"}};
    struct config copy;
    struct comm_options ranks = {.rank = t->ranks.rank, .size = t->ranks.size};
    config_copy(&copy, t->config);
    int code = config_assign(&copy, "device.type", device_kind_names[t->device->kind], NULL);
    for (size_t i = 0; i < sizeof without / sizeof *without && !use_meopt && !code; i++)
        code = config_assign(&copy, without[i][0], without[i][1], NULL);
    if (!code) code = plan_make_distributed(plan, &copy, &ranks, NULL);
    config_free(&copy);
    return code;
}

static int write_json(const struct run *run, const char *name, json_t *object, struct error *err)
{
    int code = json_write_below(run->directory, name, object, JSON_INDENT(1) | JSON_PRESERVE_ORDER, err);
    json_decref(object);
    return code;
}

static json_t *hex_or_null(uint32_t crc)
{
    char text[16];
    snprintf(text, sizeof text, "%08x", (unsigned)crc);
    return crc ? json_string(text) : json_null();
}

static json_t *config_hash_text(const struct config *config)
{
    char text[32];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)config_hash(config));
    return json_string(text);
}

/* What rank 0 gathers from each rank. */
struct rank_info {
    bool planned, compared;
    double bubble; /* planned */
    struct memory_use use, baseline;
    int64_t checkpoint_bytes;
    int pid;
    char host[128], device[128], pci[32];
};

/* Gathers the information of all ranks, (ranks). Collective call; the caller frees. */
static struct rank_info *report_ranks(struct trainer *t, int *code, struct error *err)
{
    struct comm *ranks = &t->ranks;
    struct rank_info *all = xcalloc((size_t)ranks->size, sizeof *all), *own = &all[ranks->rank];
    struct plan plan, baseline;
    char **weight = experiment_began_with(t->config), *began = *weight;
    if (t->fallback_weights) *weight = t->fallback_weights;
    if ((own->planned = plan_own_device(&plan, t, true) == 0)) {
        own->use = plan.use;
        own->bubble = plan.bubble;
        own->checkpoint_bytes = plan.checkpoint_bytes;
    }
    if ((own->compared = plan_own_device(&baseline, t, false) == 0)) own->baseline = baseline.use;
    *weight = began;
    own->pid = (int)getpid();
    gethostname(own->host, sizeof own->host - 1);
    snprintf(own->device, sizeof own->device, "%s", t->device->name);
    snprintf(own->pci, sizeof own->pci, "%s", t->device->pci);
    *code = comm_gather_each(ranks, all, sizeof *all, err);
    return all;
}

/* Returns the rank with the largest planned peak; of equal ones the first. */
static int largest(const struct rank_info *all, int ranks)
{
    int most = 0;
    for (int r = 1; r < ranks; r++)
        if (all[r].use.peak_total_bytes > all[most].use.peak_total_bytes) most = r;
    return most;
}

static bool same_use(const struct rank_info *all, int ranks)
{
    for (int r = 1; r < ranks; r++)
        if (memcmp(&all[r].use, &all[0].use, sizeof all[0].use) != 0) return false;
    return true;
}

static json_t *ranks_json(const struct rank_info *all, int ranks)
{
    json_t *places = json_array();
    for (int r = 0; r < ranks; r++)
        json_array_append_new(places,
                              json_pack("{s:i, s:s, s:i, s:s, s:s}", "rank", r, "host", all[r].host, "pid",
                                        all[r].pid, "device", all[r].device, "pci", all[r].pci));
    return places;
}

static int64_t or_unknown(bool known, size_t bytes) { return known ? (int64_t)bytes : -1; }

static json_t *bytes_or_null(int64_t bytes)
{
    return bytes < 0 ? json_null() : json_integer((json_int_t)bytes);
}

static json_t *plan_json(const struct rank_info *all, int ranks, struct comm_layout layout)
{
    int most = largest(all, ranks);
    json_t *memory = all[most].planned ? memory_json(&all[most].use) : json_object();
    if (all[most].compared) json_object_set_new(memory, "baseline", memory_json(&all[most].baseline));
    if (ranks == 1) return memory;
    json_object_set_new(memory, "rank", json_integer(most));
    if (layout.tensor > 1) json_object_set_new(memory, "tensor", json_integer(layout.tensor));
    if (layout.stages > 1) {
        json_object_set_new(memory, "stages", json_integer(layout.stages));
        json_object_set_new(memory, "bubble", json_real(all[most].bubble));
    }
    if (same_use(all, ranks)) return memory;
    json_t *by_rank = json_array();
    for (int r = 0; r < ranks; r++) {
        json_t *one = all[r].planned ? memory_json(&all[r].use) : json_object();
        json_object_set_new(one, "rank", json_integer(r));
        json_array_append_new(by_rank, one);
    }
    json_object_set_new(memory, "ranks", by_rank);
    return memory;
}

/* Sets the keys of a tower's content: null without a file. */
static void set_content(json_t *meta, const char *tower, const struct tower_content *content)
{
    char key[32];
    snprintf(key, sizeof key, "%s_crc32c", tower);
    json_object_set_new(meta, key, hex_or_null(content->crc32c));
    snprintf(key, sizeof key, "%s_model", tower);
    json_object_set_new(meta, key, content->model[0] ? json_string(content->model) : json_null());
}

/* Sets the names of the classes in the order of their numbers, and the checksum of names and labels. */
static void set_classes(json_t *meta, const struct data *data)
{
    int32_t count = data_classes(data);
    char name[512];
    if (!count) return;
    json_t *names = json_array();
    for (int32_t i = 0; i < count; i++)
        json_array_append_new(names,
                              json_string(name_printable(name, sizeof name, data_class_name(data, i))));
    json_object_set_new(meta, "classes", names);
    json_object_set_new(meta, "classes_crc32c", hex_or_null(data_classes_hash(data)));
}

static void set_samples(json_t *meta, const char *prefix, const struct image_list *list, const char *root)
{
    char member[CONTENT_MEMBER], *samples = content_samples(list, root);
    json_object_set_new(meta, content_samples_member(member, prefix, list), json_string(samples));
    free(samples);
}

/* Identifies data.val, as it was when the best checkpoint was found (resume_check.h). */
static int set_validation(json_t *meta, const struct config *c, struct error *err)
{
    struct image_list list;
    int code = c->data.val[0] ? experiment_validation_list(&list, c, err) : 0;
    if (code || !c->data.val[0]) return code;
    json_object_set_new(meta, "val_images", json_integer((json_int_t)list.count));
    json_object_set_new(meta, "val_crc32c", hex_or_null(image_list_hash(&list)));
    set_samples(meta, "val", &list, c->data.val);
    image_list_free(&list);
    return 0;
}

/* Returns the job of Slurm that the run is part of; null: none. Values are those of the variables. */
static json_t *job_json(void)
{
    static const struct {
        const char *key, *variable;
    } rows[] = {{"id", "SLURM_JOB_ID"},           {"array", "SLURM_ARRAY_JOB_ID"},
                {"task", "SLURM_ARRAY_TASK_ID"},  {"partition", "SLURM_JOB_PARTITION"},
                {"nodes", "SLURM_JOB_NODELIST"},  {"restarts", "SLURM_RESTART_COUNT"},
                {"cluster", "SLURM_CLUSTER_NAME"}};
    const char *id = getenv(rows[0].variable);
    if (!id || !*id) return json_null();
    json_t *job = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *value = getenv(rows[i].variable);
        size_t size = value ? 4 * strlen(value) + 1 : 1; /* a list of nodes has any length */
        char *text = xcalloc(size, 1);
        json_object_set_new(job, rows[i].key,
                            value ? json_string(name_printable(text, size, value)) : json_null());
        free(text);
    }
    return job;
}

static int64_t teacher_parameters(const struct trainer *t)
{
    int64_t sum = 0;
    for (int i = 0; i < t->teacher_count; i++) sum += model_shape_parameters(&t->teachers[i].shape);
    return sum;
}

static int write_files(const struct run *run, const struct trainer *t, const struct rank_info *all,
                       const struct data *data, int64_t total, double peak_flops, json_t *start,
                       json_t *identity, struct error *err)
{
    int ranks = t->ranks.size;
    const struct rank_info *most = &all[largest(all, ranks)];
    json_t *meta = json_pack(
        "{s:i, s:s, s:i, s:f, s:s, s:I, s:I, s:I, s:I, s:s}", "version", RUN_LAYOUT, "host", all[0].host,
        "pid", (int)getpid(), "started", (double)time(NULL), "device", t->device->name, "images",
        (json_int_t)data_images(data), "total_steps", (json_int_t)total, "student_parameters",
        (json_int_t)model_shape_parameters(&t->student_shape), "teacher_parameters",
        (json_int_t)teacher_parameters(t), "family", family_name(t->student_shape.family));
    if (data_tokens(data)) json_object_set_new(meta, "tokens", json_integer((json_int_t)data_tokens(data)));
    if (data_documents(data))
        json_object_set_new(meta, "documents", document_facts_json(data_documents(data)));
    json_object_set_new(meta, "objective", json_string(t->objective->name));
    json_object_set(meta, "start", start);
    json_object_set_new(meta, "student_heads", json_integer((json_int_t)t->student_shape.heads));
    json_object_set_new(meta, "student_activation", json_string(model_shape_activation(&t->student_shape)));
    struct meopt_bytes held = {0};
    (void)meopt_held(t->opt, &held);
    json_object_set_new(meta, "code_version", json_string(MEOPT_VERSION));
    json_object_set_new(meta, "program_crc32c", hex_or_null(meta_program_crc()));
    json_object_set_new(meta, "data_crc32c", hex_or_null(data_hash(data)));
    set_classes(meta, data);
    set_samples(meta, "data", data_list(data), t->config->data.root);
    for (int i = 0; i < t->teacher_count; i++)
        set_content(meta, config_tower_name(i), &t->teachers[i].content);
    set_content(meta, "student", &t->student_content);
    json_object_set_new(meta, "seed", json_integer((json_int_t)t->config->train.seed));
    json_object_set_new(meta, "batch_images", json_integer((json_int_t)t->images));
    json_object_set_new(meta, "ranks", json_integer(ranks));
    json_object_set_new(meta, "model_flops_per_step", json_real(t->model_flops * (double)t->images));
    json_object_set_new(meta, "peak_flops", peak_flops > 0 ? json_real(peak_flops) : json_null());
    json_object_set_new(meta, "job", job_json());
    if (ranks > 1) json_object_set_new(meta, "places", ranks_json(all, ranks));
    if (ranks > 1)
        json_object_set_new(
            meta, "reduce",
            json_string(dist_reduce_names[comm_sums_by_library(t->data) ? DIST_REDUCE_LIBRARY
                                                                        : DIST_REDUCE_ORDERED]));
    json_object_set_new(meta, "epoch_steps", json_integer((json_int_t)data_epoch_batches(data)));
    json_object_set_new(meta, "optimizer_bytes_per_param",
                        held.parameters ? json_real((double)held.total / (double)held.parameters)
                                        : json_null());
    json_object_set_new(meta, "planned_peak_bytes",
                        bytes_or_null(or_unknown(most->planned, most->use.peak_total_bytes)));
    json_object_set_new(meta, "planned_baseline_peak_bytes",
                        bytes_or_null(or_unknown(most->compared, most->baseline.peak_total_bytes)));
    json_object_set_new(meta, "checkpoint_bytes", bytes_or_null(most->planned ? most->checkpoint_bytes : -1));
    json_object_set_new(meta, "config_hash", config_hash_text(t->config));
    char from[256], *began = *experiment_began_with(t->config);
    int64_t from_step;
    json_object_set_new(
        meta, "from",
        checkpoint_named(began, from, sizeof from, &from_step)
            ? json_pack("{s:s, s:I, s:s}", "run", from, "step", (json_int_t)from_step, "path", began)
            : json_null());
    int code = set_validation(meta, t->config, err);
    if (code) json_decref(meta);
    else if (json_object_set(meta, "config", identity) || !json_object_get(meta, "data_crc32c")) {
        json_decref(meta); /* a resume compares these */
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for meta.json");
    } else {
        code = write_json(run, "meta.json", meta, err);
    }
    int second = write_json(run, "plan.json", plan_json(all, ranks, t->ranks.layout), code ? NULL : err);
    return code ? code : second;
}

int meta_write(const struct run *run, struct trainer *t, const struct data *data, int64_t total,
               double peak_flops, json_t *start, json_t *identity, struct error *err)
{
    int code;
    struct rank_info *all = report_ranks(t, &code, err);
    if (!code && t->ranks.rank == 0)
        code = write_files(run, t, all, data, total, peak_flops, start, identity, err);
    free(all);
    return code;
}
