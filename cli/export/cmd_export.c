/* meopt export: writes the student of a run as a file for PyTorch, or as a model of a library. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "cli/export/export_directory.h"
#include "cli/export/export_hf.h"
#include "cli/export/export_peft.h"
#include "cli/export/export_shards.h"
#include "cli/run_average.h"
#include "cli/run_merge.h"
#include "cli/run_name.h"
#include "cli/run_weights.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/model/family.h"
#include "core/model/metadata.h"
#include "core/model/rename_keys.h"
#include "core/run/checkpoint.h"
#include "core/experiment/class_order.h"
#include "core/experiment/experiment.h"
#include "core/experiment/preprocess.h"
#include "core/step/trainer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum format {
    FORMAT_PT,
    FORMAT_SAFETENSORS,
    FORMAT_HF,
    FORMAT_TIMM,
    FORMAT_TORCHVISION,
    FORMAT_OPENCLIP,
    FORMAT_PEFT
};
static const struct {
    const char *name, *out; /* default output in the run directory */
} formats[] = {[FORMAT_PT] = {"pt", "student.pt"},
               [FORMAT_SAFETENSORS] = {"safetensors", "student.safetensors"},
               [FORMAT_HF] = {"hf", "student-hf"},
               [FORMAT_TIMM] = {"timm", "student-timm.safetensors"},
               [FORMAT_TORCHVISION] = {"torchvision", "student-torchvision.pt"},
               [FORMAT_OPENCLIP] = {"openclip", "student-openclip.safetensors"},
               [FORMAT_PEFT] = {"peft", "adapter"}};

struct task {
    const char *run, *merge; /* merge: into that file, or NULL */
    enum format format;
    bool bf16, no_head, average;
    bool described; /* heads and activation are known: not for runs made before meta.json had them */
    double shard_bytes;
    char *out;
    struct checkpoint from;
    struct config config;
    struct model_shape model_shape;
    json_t *classes;      /* their names, from meta.json; NULL: none */
    struct weights *base; /* of adapters, which the checkpoint has alone; else NULL */
};

enum { MOST_META = 64 << 20 };
static const char CLASSIFIER_WEIGHT[] = "classifier.weight";

/* Reads values that the student's tensors do not determine: heads and activation from meta.json, others
 * from the metadata of the checkpoint. */
static int read_description(struct task *t, struct error *err)
{
    int code = metadata_read(&t->model_shape, t->from.model, err);
    if (code) return code;
    char *path = path_join(t->run, "meta.json"), *text = NULL;
    size_t bytes = 0;
    code = file_read_below(t->run, "meta.json", MOST_META, &text, &bytes, err);
    json_t *meta = code ? NULL : json_loadb(text, bytes, 0, NULL);
    const char *activation = json_string_value(json_object_get(meta, "student_activation"));
    t->classes = json_incref(json_object_get(meta, "classes"));
    t->model_shape.classes = t->no_head ? 0 : CLASSES_UNKNOWN; /* of the checkpoint's classifier */
    t->model_shape.heads = (int64_t)json_integer_value(json_object_get(meta, "student_heads"));
    t->described = activation && t->model_shape.heads > 0;
    if (activation && activation_named(activation)) t->model_shape.ffn = activation_named(activation);
    if (!t->model_shape.heads) t->model_shape.heads = 1; /* names and shapes are independent of it */
    if (!code && !activation && t->format == FORMAT_HF) {
        code = error_set(err, EXIT_CONFIG, "resume the run for a step: meopt train writes them",
                         "does not have the student's heads and activation");
        error_at(err, path, 0, 0);
    }
    json_decref(meta);
    free(text);
    free(path);
    return code;
}

static bool has_adapters(const struct task *t) { return json_object_get(t->from.manifest, "base"); }

/* Reads the classifier's size from the checkpoint, and the names of its classes. */
static int read_classes(struct task *t, struct error *err)
{
    int64_t head = weights_find(t->from.model, CLASSIFIER_WEIGHT);
    json_t *meta = json_read_below(t->run, "meta.json", MOST_META, err);
    if (!meta) return err->code;
    if (head >= 0 && !t->no_head) t->model_shape.classes = weights_tensor(t->from.model, head)->shape[0];
    t->classes = json_incref(json_object_get(meta, "classes"));
    json_decref(meta);
    return 0;
}

static int read_student(struct task *t, struct error *err)
{
    int code = 0;
    if (has_adapters(t)) {
        t->described = true;
        code = experiment_check_file(&t->config, "model_s.weight", err);
        if (!code) code = experiment_tower_shape(&t->config, TOWER_STUDENT, &t->model_shape, &t->base, err);
        return code ? code : read_classes(t, err);
    }
    code = read_description(t, err);
    if (!code) code = model_shape_infer(&t->model_shape, t->from.model, t->config.model_s.head_dim, err);
    if (t->model_shape.classes == CLASSES_UNKNOWN) t->model_shape.classes = 0;
    return code;
}

/* Warns if distillation heads are omitted; classes of libraries do not have them. */
static void report_head(const struct task *t)
{
    bool head = false;
    for (int64_t i = weights_count(t->from.model); i-- > 0;)
        head = head || strncmp(weights_tensor(t->from.model, i)->name, HEAD_KEY, strlen(HEAD_KEY)) == 0;
    if (head && !t->no_head)
        log_warn("omitting the student's distillation head (distill_head.*): the embeddings are those of the "
                 "tower");
}

/* Warns if the library resizes the stored positions by a method different from that of the training. */
static void report_positions(const struct task *t)
{
    if (model_shape_language(&t->model_shape)) return;
    long long stored = (long long)(t->model_shape.pos_grid * t->model_shape.patch),
              seen = (long long)train_image_size(&t->config, TOWER_STUDENT);
    bool timm = t->format == FORMAT_TIMM || t->model_shape.registers; /* transformers does the same there */
    enum pos_resize trained = model_shape_pos_resize(&t->model_shape),
                    library = timm ? POS_RESIZE_TIMM : POS_RESIZE_HF;
    if (family_has(family_row(t->model_shape.family), ROLE_POS) && stored != seen && trained != library &&
        (t->format == FORMAT_HF || t->format == FORMAT_TIMM))
        log_warn(
            "positions are stored for %lld px and were trained at %lld px, resized as in %s; the library "
            "resizes them differently, so embeddings at %lld px may differ slightly",
            stored, seen, pos_resize_name(trained), seen);
}

static int make_merged(struct task *t, struct rename_keys *r, struct weights **original, struct error *err)
{
    int code = weights_open(original, t->merge, err);
    if (code) return code;
    struct key_map as;
    names_find(&as, *original);
    bool trunk = as.family == FAMILY_EVA || as.family == FAMILY_SIGLIP,
         openclip = as.family != FAMILY_UNKNOWN && strcmp(as.begin, trunk ? "visual.trunk." : "visual.") == 0;
    if (t->format == FORMAT_OPENCLIP && as.family != FAMILY_UNKNOWN && !openclip)
        code = error_set(err, EXIT_CONFIG, "give a file of open_clip",
                         "its tower has the key prefix \"%s\", which open_clip does not load", as.begin);
    if (!code) code = rename_keys_merge(r, &t->model_shape, *original, err);
    if (code && !err->file[0]) error_at(err, t->merge, 0, 0);
    if (!code) report_head(t);
    return code;
}

static int make_rows(struct task *t, struct rename_keys *r, struct weights **original, struct error *err)
{
    if (t->merge) return make_merged(t, r, original, err);
    if (t->format == FORMAT_PT || t->format == FORMAT_SAFETENSORS) {
        rename_keys_as_is(r, !t->no_head);
        return 0;
    }
    static const enum library libraries[] = {[FORMAT_HF] = LIBRARY_TRANSFORMERS,
                                             [FORMAT_TIMM] = LIBRARY_TIMM,
                                             [FORMAT_TORCHVISION] = LIBRARY_TORCHVISION};
    int code = rename_keys_library(r, &t->model_shape, libraries[t->format], err);
    if (!code) report_head(t);
    if (!code) report_positions(t);
    return code;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Returns whether to write a .pt file; for the libraries the file name's extension decides. */
static bool is_pt(const struct task *t)
{
    if (t->format == FORMAT_PT || t->format == FORMAT_SAFETENSORS) return t->format == FORMAT_PT;
    return ends_with(t->out, ".pt") || ends_with(t->out, ".pth") || ends_with(t->out, ".bin");
}

static int write_directory(const struct task *t, const struct rename_keys *r, const char *const *metadata,
                           struct error *err)
{
    struct export_directory d;
    int code = export_directory_begin(&d, t->out, err);
    if (code) return code;
    code = t->merge ? export_hf_copy(d.side, t->merge, err)
                    : export_hf_write(d.side, &t->model_shape, t->classes, &t->config, t->bf16, err);
    if (code && !err->file[0]) error_at(err, t->from.directory, 0, 0);
    if (!code)
        code = export_shards_write(d.side, rename_keys_rows(r), rename_keys_count(r), metadata,
                                   t->shard_bytes, err);
    return export_directory_end(&d, code, err);
}

static int write_rows(const struct task *t, const struct rename_keys *r, struct error *err)
{
    struct metadata metadata = {.metadata = {"format", "pt"}};
    if (t->described) metadata_make(&metadata, &t->model_shape, true);
    if (t->format == FORMAT_HF) return write_directory(t, r, metadata.metadata, err);
    char *classes = t->classes && !t->no_head ? json_text(t->classes, JSON_COMPACT) : NULL;
    int last = 0;
    while (metadata.metadata[last]) last++;
    metadata.metadata[last] = classes ? CLASSES_METADATA : NULL;
    metadata.metadata[last + 1] = classes;
    int code =
        is_pt(t) ? weights_write_pt(t->out, rename_keys_rows(r), rename_keys_count(r), metadata.metadata, err)
                 : weights_write_safetensors(t->out, rename_keys_rows(r), rename_keys_count(r),
                                             metadata.metadata, err);
    free(classes);
    return code;
}

/* Refuses to overwrite the original of --merge. */
static int check_out(const struct task *t, struct error *err)
{
    struct stat out, original;
    if (!t->merge || stat(t->out, &out) != 0 || stat(t->merge, &original) != 0) return 0;
    if (out.st_dev != original.st_dev || out.st_ino != original.st_ino) return 0;
    return error_set(err, EXIT_USAGE, "use a different file", "--out is the same file as --merge");
}

static int write_adapters(const struct task *t, struct error *err)
{
    struct export_directory d;
    int code = export_directory_begin(&d, t->out, err);
    if (code) return code;
    code = export_peft_write(d.side, &t->config, &t->model_shape, t->from.model, t->bf16, err);
    return export_directory_end(&d, code, err);
}

/* Says that a large model takes half of the space in bf16. */
static void report_size(const struct task *t)
{
    double bytes = 4 * (double)model_shape_parameters(&t->model_shape);
    if (!t->bf16 && bytes >= 2e9)
        log_info("writing about %.1f GB in fp32; --dtype bf16 writes half of it", bytes * 1e-9);
}

static int export_checkpoint(struct task *t, struct error *err)
{
    struct weights *original = NULL, *average = NULL; /* average: or merged */
    struct rename_keys *r;
    int code = check_out(t, err);
    if (!code) code = read_student(t, err);
    if (!code && t->format == FORMAT_PEFT) {
        code = write_adapters(t, err);
        goto done;
    }
    if (!code && t->average) code = run_average_open(&average, &t->from, err);
    if (!code && t->base)
        code = run_merge_open(&average, &t->config, &t->model_shape, t->base, t->from.model, err);
    rename_keys_open(&r, average ? average : t->from.model, t->bf16 ? DTYPE_BF16 : DTYPE_F32);
    if (!code) code = make_rows(t, r, &original, err);
    if (!code) report_size(t);
    if (!code) code = write_rows(t, r, err);
    rename_keys_close(r);
done:
    weights_close(average);
    weights_close(t->base);
    weights_close(original);
    json_decref(t->classes);
    return code;
}

/* Returns the bytes of --shard-size: with a unit as in the configuration, else in 1e9 bytes. */
static int read_shard_size(const struct arguments *args, double *bytes, struct error *err)
{
    const char *text = argument_text(args, "shard-size", "5");
    char *end;
    double number = strtod(text, &end);
    int64_t with_unit = end > text && *end ? config_bytes(text) : INT64_MIN;
    *bytes = with_unit > 0 ? (double)with_unit : 1e9 * number;
    if (end > text && (with_unit > 0 || !*end) && *bytes >= 1e3 && *bytes <= 1e15) return 0;
    return error_set(err, EXIT_USAGE, "for example 5GB, 500MiB, or 5",
                     "--shard-size requires 1000 to 1e15 bytes, found '%.60s'", text);
}

/* Of adapters alone: for PEFT; of them merged: a language model's directory, as it was given. */
static const char *default_format(const struct task *t, bool merged)
{
    if (!has_adapters(t) || t->merge) return "safetensors";
    if (!merged) return "peft";
    return t->config.train.objective == TRAIN_OBJECTIVE_LANGUAGE ? "hf" : "safetensors";
}

static int export_in(const struct arguments *args, const char *run, struct error *err)
{
    const char *format = argument_text(args, "format", NULL), *merge = argument_text(args, "merge", "");
    bool merged = argument_flag(args, "merge");
    struct task t = {.run = run,
                     .merge = merge[0] ? merge : NULL,
                     .bf16 = strcmp(argument_text(args, "dtype", "fp32"), "bf16") == 0,
                     .no_head = argument_flag(args, "no-head"),
                     .average = argument_flag(args, "ema")};
    if (format && strcmp(format, "openclip") == 0 && !t.merge)
        return error_set(err, EXIT_USAGE, "give the model of the student's tower: --merge FILE",
                         "open_clip loads complete models, but the student is only an image tower");
    int code = read_shard_size(args, &t.shard_bytes, err);
    if (code) return code;
    code =
        run_checkpoint_open(&t.from, run, run_checkpoint_asked(argument_text(args, "checkpoint", NULL)), err);
    if (code) {
        checkpoint_close(&t.from);
        return code;
    }
    code = config_load_below(&t.config, run, NULL, 0, err);
    if (!format) format = default_format(&t, merged);
    while (strcmp(formats[t.format].name, format) != 0) t.format++;
    const char *out = argument_text(args, "out", NULL);
    t.out = out ? xstrdup(out) : path_join(t.run, formats[t.format].out);
    if (!code && merged && !t.merge && !has_adapters(&t))
        code = error_set(err, EXIT_USAGE, "give the model of the student's tower: --merge FILE",
                         "--merge merges adapters, but the run trained none (lora.rank)");
    else if (!code && t.format == FORMAT_PEFT && (!has_adapters(&t) || merged))
        code = error_set(err, EXIT_USAGE, "leave --format peft out",
                         merged ? N_("--merge writes a whole model, and --format peft adapters alone")
                                : N_("the run trained no adapters (lora.rank)"));
    else if (!code) code = export_checkpoint(&t, err);
    if (!code && argument_flag(args, "json"))
        print_json(json_pack("{s:o, s:o, s:I, s:s, s:o}", "path", path_json(t.out), "run", path_json(t.run),
                             "step", (json_int_t)t.from.step, "format", formats[t.format].name, "merge",
                             t.merge ? path_json(t.merge) : json_null()));
    else if (!code)
        printf(t.format == FORMAT_PEFT ? _("%s: the adapter at step %lld%s%s\n")
                                       : _("%s: the model at step %lld%s%s\n"),
               t.out, (long long)t.from.step, t.merge ? " in " : "", t.merge ? t.merge : "");
    free(t.out);
    config_free(&t.config);
    checkpoint_close(&t.from);
    return code;
}

static int export_run(const struct arguments *args, struct error *err)
{
    int code;
    char *run = run_named(args->operands[0], argument_text(args, "run-dir", NULL), &code, err);
    if (!code) code = export_in(args, run, err);
    free(run);
    return code;
}

static const struct option options[] = {
    {"run-dir", .type = OPTION_TEXT, .value = "DIR", .help = "directory of runs (default runs)"},
    {"format", .type = OPTION_TEXT, .value = "FORMAT",
     .choices = "pt|safetensors|hf|timm|torchvision|openclip|peft",
     .help = "output format (default safetensors; of adapters peft, and in the others the model with them "
             "merged)"},
    {"checkpoint", .type = OPTION_TEXT, .value = "WHICH", .choices = "best|last",
     .help = "checkpoint of the run (default: the best one, else the last)"},
    {"merge", .type = OPTION_MODEL, .value = "[ORIGINAL]",
     .help = "write all tensors of this checkpoint, with the student's tower; without it: the model with its "
             "adapters"},
    {"no-head", .help = "leave out the distillation head or classifier"},
    {"ema", .help = "write the average of the weights (train.ema)"},
    {"dtype", .type = OPTION_TEXT, .value = "TYPE", .choices = "fp32|bf16",
     .help = "type of the student's values (default fp32)"},
    {"shard-size", .type = OPTION_TEXT, .value = "SIZE",
     .help = "hf: largest file of weights, for example 500MiB; without unit in 1e9 bytes (default 5)"},
    {"out", .letter = 'o', .type = OPTION_TEXT, .value = "FILE",
     .help = "output file (default in RUN: student.FORMAT for pt and safetensors)"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_export = {
    .name = "export",
    .operands = "RUN",
    .summary = "write the student of a run for PyTorch, with its family's or a library's keys",
    .options = options,
    .min_operands = 1,
    .max_operands = 1,
    .run = export_run,
};
