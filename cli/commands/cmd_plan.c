/* meopt plan: predicts memory, time, traffic and disk space of a run before it starts. */
#include "cli/commands/plan_report.h"
#include "cli/commands/cmd_config.h"
#include "cli/commands/link_rates.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/compare/published.h"
#include "core/config/value.h"
#include "core/data/list.h"
#include "core/device/bench.h"
#include "core/train/experiment.h"
#include "core/train/trainer.h"

#include <stdlib.h>
#include <string.h>

static const double MIB = 1 << 20, GIB = 1 << 30;

enum { MAX_CHOSEN_KEYS = 32 };

/* ---- Configurations and their plans ---- */

/* Loads CONFIG with the overrides of the command line, then with `more` (NULL-terminated; may be NULL).
 * Values "auto" are resolved for all of them together. */
static int load_config(struct config *config, const struct arguments *args, const char *const *more,
                       struct error *err)
{
    int count = args->operand_count - 1, more_count = 0;
    char **overrides, *text = NULL;
    size_t bytes = 0;
    while (more && more[more_count]) more_count++;
    overrides = xcalloc((size_t)(count + more_count) + 1, sizeof *overrides);
    for (int i = 0; i < count; i++) overrides[i] = args->operands[i + 1];
    for (int i = 0; i < more_count; i++) overrides[count + i] = (char *)(uintptr_t)more[i];
    int code = config_read_file(args->operands[0], &text, &bytes, err);
    if (code == 0) {
        code = config_examine(config, args->operands[0], text, bytes, overrides, count + more_count, NULL,
                              NULL, err);
        if (code) config_free(config);
    }
    free(text);
    free(overrides);
    return code;
}

/* Returns --ranks, else the number of device.cards, else 1. */
static int rank_count(const struct arguments *args, const struct config *config)
{
    int cards = config->device.type == DEVICE_TYPE_CPU ? 0 : config_cards(config, NULL);
    return (int)argument_int(args, "ranks", cards > 0 ? cards : 1);
}

/* Returns the number of ranks that share a node. */
static int node_rank_count(const struct arguments *args, const struct config *config)
{
    int ranks = rank_count(args, config), most = (int)argument_int(args, "node-ranks", PLAN_NODE_RANKS);
    return ranks < most ? ranks : most;
}

/* Plans the rank with the most memory. */
static int plan_largest_rank(struct plan *plan, const struct arguments *args, const struct config *config,
                             struct error *err)
{
    struct comm_options ranks = {.rank = PLAN_LARGEST, .size = rank_count(args, config)};
    return plan_make_distributed(plan, config, &ranks, err);
}

/* Returns in *peak the planned peak memory with `more` overrides. */
static int plan_peak(double *peak, const struct arguments *args, const char *const *more, struct error *err)
{
    struct config config;
    struct plan plan;
    int code = load_config(&config, args, more, err);
    if (code) return code;
    code = plan_largest_rank(&plan, args, &config, err);
    if (!code) *peak = (double)plan.use.peak_total_bytes;
    config_free(&config);
    return code;
}

/* ---- Comparison with published figures ---- */

/* Workloads with published figures (configs/published.yaml), identified by their towers. */
static const struct workload {
    const char *name;
    enum tower_arch teacher, student;
} workloads[] = {
    {"eva_clip", TOWER_ARCH_eva01_g14_plus, TOWER_ARCH_eva01_g14},
    {"open_clip", TOWER_ARCH_openclip_vit_g14, TOWER_ARCH_openclip_vit_h14},
    {"dinov2", TOWER_ARCH_dinov2_vitg14, TOWER_ARCH_dinov2_vitl14},
};

/* Reads the published memory of one card at 32 images, without and with MEOpt, in MiB.
 * Returns false if the workload has no published figures or the file is missing. */
static bool read_published(double mib[2], const struct config *c)
{
    const char *name = NULL;
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads && !name; i++)
        if (c->model_t.arch == workloads[i].teacher && c->model_s.arch == workloads[i].student)
            name = workloads[i].name;
    if (!name) return false;
    struct column *columns = NULL;
    struct error ignored;
    int count = 0;
    char *path = path_shipped("published.yaml");
    bool found = path && published_add(&columns, &count, path, name, &ignored) == 0 && count == 2;
    for (int k = 0; found && k < 2; k++) mib[k] = columns[k].runs[0].peak_bytes / MIB;
    if (count) table_free(table_make(columns, count, 0));
    free(path);
    return found;
}

/* Plans a published workload as it was published: 32 images, without and with MEOpt. */
static int compare_published(struct plan_report *r, const struct arguments *args, struct error *err)
{
    static const char *const without[] = {"train.batch_size=32",    "train.micro_batch=0",
                                          "optim.use_meopt=false",  "optim.pure_bf16=false",
                                          "optim.gradients=auto",   "optim.clip_mode=auto",
                                          "model_t.place=resident", "model_s.place=resident",
                                          "optim.offload=none",     NULL};
    static const char *const with[] = {"train.batch_size=32",  "train.micro_batch=0",  "optim.use_meopt=true",
                                       "optim.gradients=auto", "optim.clip_mode=auto", NULL};
    r->published = read_published(r->published_mib, r->config);
    if (!r->published) return 0;
    int code = plan_peak(&r->baseline_peak, args, without, err);
    return code ? code : plan_peak(&r->meopt_peak, args, with, err);
}

/* ---- Time ---- */

/* Measures the best GEMM rate of the configuration's device. */
static int measure_gemm(struct plan_report *r, struct error *err)
{
    struct device *device;
    int code = train_device_open(&device, r->config, false, err);
    if (code) return code;
    r->gflops = device_gemm_peak_gflops(device, trainer_tower_type(&r->config->model_s));
    r->gflops_measured = true;
    device_close(device);
    return 0;
}

/* Counts the images and computes the hours per epoch, if the time of a step is known and the images exist. */
static int compute_epoch(struct plan_report *r, struct error *err)
{
    const struct config *c = r->config;
    struct image_list list;
    double step_s = plan_report_step_seconds(r);
    if (step_s <= 0 || !c->data.root[0] || file_absent(c->data.root)) return 0;
    int code = image_list_read(&list, c->data.root, c->data.include, c->data.exclude, err);
    if (code) return code;
    r->images = list.count;
    image_list_free(&list);
    int64_t step_images = c->train.global_batch > 0 ? c->train.global_batch : r->plan->batch * r->ranks;
    r->epoch_hours = (double)(r->images / (step_images > 0 ? step_images : 1)) * (step_s * 1e3) / 3.6e6;
    return 0;
}

/* ---- Memory options ---- */

/* Returns in *limit the bytes of --fit, else of train.memory; 0 if neither is set. */
static int find_limit(size_t *limit, const struct arguments *args, const struct config *config,
                      const struct card *card, struct error *err)
{
    const char *fit = argument_text(args, "fit", NULL);
    struct config with_fit = {.train.memory = (char *)(uintptr_t)fit};
    int64_t bytes = config_memory(fit ? &with_fit : config);
    *limit = 0;
    if (bytes == INT64_MIN)
        return error_set(err, EXIT_USAGE, "for example 8GiB, or auto",
                         "--fit requires a number of bytes, found '%s'", fit);
    *limit = bytes < 0 ? fit_auto(card) : (size_t)bytes;
    return 0;
}

/* Finds the memory options and their times for `limit` bytes per rank; with 0 does nothing.
 * Rates are given on the command line, else measured with --measure, else assumed. */
static int find_memory_options(struct memory_options *memory, const struct plan_report *r,
                               const struct arguments *args, size_t limit, struct error *err)
{
    struct comm_options ranks = {.rank = PLAN_LARGEST, .size = r->ranks};
    struct memory_options_speed speed = memory_options_assumed(r->config);
    double carry = argument_real(args, "carry", 0);
    int code = 0;
    if (!limit) return 0;
    if (carry > 0) speed.carried_gb_per_s = carry, speed.carry = CARRY_GIVEN;
    else if (argument_flag(args, "measure") && (code = carry_measure(&speed, r->config, err)) != 0)
        return code;
    if (r->gflops > 0) speed.gflops = r->gflops, speed.assumed = false;
    return memory_options_find(memory, args->operands[0], args->operands + 1, args->operand_count - 1, &ranks,
                               limit, &speed, err);
}

/* With train.memory, plans again with the keys that training would choose. */
static int plan_chosen(struct plan_report *r, struct config *config, struct plan *plan,
                       const struct arguments *args, const struct memory_options *memory, struct error *err)
{
    const char *overrides[MAX_CHOSEN_KEYS + 1] = {NULL};
    char *rest, *keys;
    const struct memory_option *chosen = memory->chosen < 0 ? NULL : &memory->options[memory->chosen];
    if (!chosen || !chosen->keys[0]) return 0;
    r->chosen = chosen->keys;
    r->chosen_note = memory_options_note(chosen);
    keys = xstrdup(chosen->keys);
    int count = 0;
    for (char *key = strtok_r(keys, " ", &rest); key && count < MAX_CHOSEN_KEYS;
         key = strtok_r(NULL, " ", &rest))
        overrides[count++] = key;
    config_free(config);
    int code = load_config(config, args, overrides, err);
    if (code) *config = (struct config){0};
    else code = plan_largest_rank(plan, args, config, err);
    free(keys);
    return code;
}

/* ---- The command ---- */

/* Returns EXIT_CONFIG if the peak does not fit into a card that is given, limited or present. */
static int check_fits(const struct plan_report *r, const struct explanation *e, struct error *err)
{
    double peak = (double)r->plan->use.peak_total_bytes;
    char hint[320] = "--what-if lists settings that need less, and their cost";
    if (!r->card.bytes || r->card.assumed || peak <= (double)r->card.bytes) return 0;
    if (e)
        snprintf(hint, sizeof hint, "none of the settings above fits: use fewer images or a smaller student");
    for (int i = 0; e && i < REMEDIES; i++)
        if (e->remedies[i].cheapest)
            snprintf(hint, sizeof hint, "the cheapest setting that fits: %s", e->remedies[i].keys);
    return error_set(err, EXIT_CONFIG, hint, "the planned peak of %.1f MiB does not fit into %.1f MiB (%s)",
                     peak / MIB, (double)r->card.bytes / MIB, r->card.name);
}

static void print_cards(bool json)
{
    json_t *all = json ? json_array() : NULL;
    for (int i = 0; plan_card_name(i); i++) {
        size_t bytes = 0;
        (void)plan_card(plan_card_name(i), &bytes, NULL);
        if (json)
            json_array_append_new(
                all, json_pack("{s:s, s:I}", "name", plan_card_name(i), "bytes", (json_int_t)bytes));
        else printf("%-10s %4.0f GiB\n", plan_card_name(i), (double)bytes / GIB);
    }
    if (json) print_json(all);
}

static void warn_missing_driver(const struct config *config)
{
    if (config->device.type != DEVICE_TYPE_AUTO || config_cards(config, NULL) <= 0 || device_is_card("auto"))
        return;
    log_warn("device.cards is set, but this machine has no driver for cards: device.type=auto plans for the "
             "CPU; set device.type=hip or device.type=cuda to plan for cards");
}

/* Computes all figures of the report in order; later ones use earlier ones. */
static int compute_report(struct plan_report *r, struct config *config, struct plan *plan,
                          struct memory_options *memory, struct explanation *e, const struct arguments *args,
                          struct error *err)
{
    int code;
    size_t limit;
    struct comm_options ranks = {.rank = PLAN_LARGEST};
    if ((code = fit_card(&r->card, args, config, node_rank_count(args, config), err)) != 0) return code;
    warn_missing_driver(config);
    if ((code = plan_largest_rank(plan, args, config, err)) != 0) return code;
    if (argument_flag(args, "measure") && r->gflops <= 0 && (code = measure_gemm(r, err)) != 0) return code;
    ranks.size = r->ranks = rank_count(args, config);
    if ((code = find_limit(&limit, args, config, &r->card, err)) != 0) return code;
    if ((code = find_memory_options(memory, r, args, limit, err)) != 0) return code;
    if (limit) r->memory = memory;
    if (limit && !argument_text(args, "fit", NULL) &&
        (code = plan_chosen(r, config, plan, args, memory, err)) != 0)
        return code;
    if ((code = scaling_table_make(&r->scaling, args, config, plan, r->ranks, r->gflops, err)) != 0)
        return code;
    r->disk_bytes = plan->checkpoint_bytes * (config->train.checkpoint_keep + 1);
    if (r->card.bytes) r->largest_micro = plan_largest_batch(config, &ranks, r->card.bytes, NULL);
    if ((code = compare_published(r, args, err)) != 0) return code;
    if (argument_flag(args, "what-if") || argument_text(args, "explain", NULL)) {
        code = explain(e, args->operands[0], args->operands + 1, args->operand_count - 1, &ranks,
                       r->card.bytes, err);
        if (code) return code;
        r->explanation = e;
    }
    return compute_epoch(r, err);
}

static int plan_run(const struct arguments *args, struct error *err)
{
    if (strcmp(argument_text(args, "card", ""), "list") == 0)
        return print_cards(argument_flag(args, "json")), 0;
    if (args->operand_count == 0)
        return error_set(err, EXIT_USAGE, "usage: meopt plan [options] CONFIG [key=value ...]",
                         "meopt plan requires CONFIG");
    struct config config;
    struct plan plan;
    struct memory_options memory = {0};
    struct explanation e = {0};
    int code = load_config(&config, args, NULL, err);
    if (code) return code;
    const char *class = argument_text(args, "explain", NULL);
    struct plan_report r = {.config = &config,
                            .plan = &plan,
                            .largest_micro = -1,
                            .images = -1,
                            .gflops = argument_real(args, "gflops", 0),
                            .step_ms = argument_real(args, "step-ms", 0),
                            .explained = class ? plan_explain_class(class) : -1};
    if ((code = compute_report(&r, &config, &plan, &memory, &e, args, err)) != 0) goto done;
    if (argument_flag(args, "json")) print_json(plan_report_json(&r));
    else {
        plan_report_print(&r);
        if (class) plan_explain_print(&e, r.explained);
        if (argument_flag(args, "what-if")) plan_report_print_settings(&r);
        if (r.memory) fit_print(&memory, args->operands[0]);
    }
    code = r.memory ? fit_check(&memory, err) : check_fits(&r, r.explanation, err);
done:
    memory_options_free(&memory);
    explanation_free(&e);
    config_free(&config);
    return code;
}

static const struct option options[] = {
    {"card-memory", 0, OPTION_TEXT, "BYTES", NULL, 0, 0,
     "memory of the card, for example 64G (default: device.memory_limit, else the card's or machine's)"},
    {"card", 0, OPTION_TEXT, "NAME", NULL, 0, 0,
     "memory of a card by its name, for example k100-ai; --card list prints all names"},
    {"explain", 0, OPTION_TEXT, "CLASS",
     "all|weights|gradients|optimizer|activations|teacher|workspace|comm|data", 0, 0,
     "list the tensors of this class of memory, each with the key that shrinks it and its cost"},
    {"what-if", 0, OPTION_FLAG, NULL, NULL, 0, 0,
     "print a table of the important settings with peak memory and relative compute"},
    {"fit", 0, OPTION_TEXT, "BYTES", NULL, 0, 0,
     "list memory options with the time of a step and their keys, and mark the fastest one that fits into "
     "BYTES, for example 8GiB, or auto (default: train.memory)"},
    {"carry", 0, OPTION_REAL, "GB/S", NULL, 0.001, 1e6,
     "with --fit: bandwidth for streamed weights and offloaded states (default 12 for a card, 1 for a CPU)"},
    {"ranks", 0, OPTION_INT, "N", NULL, 1, 65536, "number of ranks (default: the number of device.cards)"},
    {"bandwidth", 0, OPTION_REAL, "GB/S", NULL, 0, 1e6,
     "bandwidth of a rank's link; prints a table of steps on 1, 2, 4 ... N ranks"},
    {"latency", 0, OPTION_REAL, "US", NULL, 0, 1e9, "microseconds per message between ranks (default 5)"},
    {"network", 0, OPTION_REAL, "GB/S", NULL, 0, 1e6,
     "bandwidth of a node's network, with more ranks than --node-ranks"},
    {"node-ranks", 0, OPTION_INT, "N", NULL, 1, 65536, "number of ranks per node (default 8)"},
    {"step-ms", 0, OPTION_REAL, "MS", NULL, 0, 1e12,
     "measured step of one rank for that table (meopt bench train; default: from --gflops)"},
    {"gflops", 0, OPTION_REAL, "X", NULL, 0, 1e9,
     "measured speed (meopt bench train), for the expected time of a step"},
    {"measure", 0, OPTION_FLAG, NULL, NULL, 0, 0,
     "measure the best GEMM rate of this machine for a second, for the time of a step; with --fit also the "
     "bandwidth of the card's link, or on a CPU of the disk"},
    {"json", 0, OPTION_FLAG, NULL, NULL, 0, 0, "machine-readable output"},
    {NULL, 0, OPTION_FLAG, NULL, NULL, 0, 0, NULL},
};

const struct command cmd_plan = {
    "plan",
    "CONFIG [key=value ...]",
    "compute memory, time and disk space before a run starts",
    "Examples:\n  meopt plan configs/eva_clip.yaml --card-memory 64G --what-if\n  meopt plan "
    "configs/dinov2.yaml train.batch_size=64 train.recompute=block\n  meopt plan configs/eva_clip.yaml "
    "--ranks 512 "
    "--bandwidth 19.4 --network 50 --step-ms 2700",
    options,
    0,
    -1,
    false,
    plan_run};
