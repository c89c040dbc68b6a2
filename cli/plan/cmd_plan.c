/* meopt plan: predicts memory, time, traffic and disk space of a run before it starts. */
#include "cli/plan/plan_report.h"
#include "cli/config/cmd_config.h"
#include "cli/plan/link_rates.h"
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/compare/published.h"
#include "core/data/labels.h"
#include "core/device/bench.h"
#include "core/experiment/experiment.h"
#include "core/step/trainer.h"

#include <stdlib.h>
#include <string.h>

static const double MIB = 1 << 20, GIB = 1 << 30;

/* ---- Ranks ---- */

/* Returns --ranks, else the number of device.cards, else 1. */
static int rank_count(const struct arguments *args, const struct config *config)
{
    int cards = config->device.type == DEVICE_TYPE_CPU ? 0 : config_cards(config, NULL);
    int each = config_replica_ranks(config);
    return (int)argument_int(args, "ranks", cards > each ? cards : each);
}

/* Returns the number of ranks that share a node. */
static int node_rank_count(const struct arguments *args, const struct config *config)
{
    int ranks = rank_count(args, config), most = plan_node_ranks(args, ranks);
    return ranks < most ? ranks : most;
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
        if (c->model_t[0].arch == workloads[i].teacher && c->model_s.arch == workloads[i].student)
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
static void compare_published(struct plan_report *r, const struct memory_planner *p)
{
#define AS_PUBLISHED "train.batch_size=32 train.micro_batch=0 optim.gradients=auto optim.clip_mode=auto "
    char keys[320];
    struct memory_option without, with;
    if (!read_published(r->published_mib, r->config)) return;
    snprintf(keys, sizeof keys, AS_PUBLISHED "%s", memory_settings[MEMORY_BASELINE].keys);
    memory_option_plan(&without, p, keys, NULL, NULL);
    memory_option_plan(&with, p, AS_PUBLISHED "optim.use_meopt=true", NULL, NULL);
    r->published = without.possible && with.possible;
    r->baseline_peak = (double)without.peak_bytes;
    r->meopt_peak = (double)with.peak_bytes;
}

/* ---- Time ---- */

/* Measures the best GEMM rate of the configuration's device. */
static int measure_gemm(struct plan_report *r, struct error *err)
{
    struct device *device;
    int code = experiment_open_device(&device, r->config, false, err);
    if (code) return code;
    r->gflops = device_gemm_peak_gflops(device, experiment_tower_type(&r->config->model_s));
    r->gflops_measured = true;
    device_close(device);
    return 0;
}

struct prediction {
    struct plan_report *report;
    struct error err;
    int code;
};

static void count_step(void *context, const struct trainer *t)
{
    struct prediction *p = context;
    if (t->student) p->code = plan_count_operations(t, &p->report->count, &p->err);
}

/* Predicts the time of a step on the card of --card. */
static int predict_step(struct plan_report *r, const struct comm_options *ranks, const char *card,
                        struct error *err)
{
    struct prediction p = {.report = r};
    struct plan plan;
    r->predicts = true;
    r->count.peaks = plan_card_peaks(card);
    if (!(r->count.peaks.bytes_per_s > 0)) return 0;
    int code = plan_make_inspect(&plan, r->config, ranks, count_step, &p, err);
    if (!code && p.code) *err = p.err;
    r->update_s =
        r->plan->update_bytes / r->count.peaks.bytes_per_s + r->plan->update_flops / r->count.peaks.flops;
    return code ? code : p.code;
}

/* Counts the images, or the samples of token files. */
static int count_images(struct plan_report *r, struct error *err)
{
    const struct config *c = r->config;
    struct data_options options = experiment_data_options(c);
    struct image_list list;
    struct data *data;
    int code;
    options.mask_token = -1; /* of tokens that are counted alone */
    if (!options.tokens) {
        options.labels = false;
        code = image_list_open(&list, &options, err);
        if (code) return code;
        r->images = list.count;
        image_list_free(&list);
        return 0;
    }
    options.batch = 1;
    options.context = r->plan->student.context;
    options.vocabulary = r->plan->student.vocabulary;
    if ((code = data_open(&data, &options, err)) != 0) return code;
    r->images = data_images(data);
    if (data_documents(data)) r->documents = *data_documents(data);
    data_close(data);
    return 0;
}

static int64_t step_images(const struct plan_report *r)
{
    const struct config *c = r->config;
    int64_t count =
        c->train.global_batch > 0 ? c->train.global_batch : r->plan->batch * config_replicas(c, r->ranks);
    return count > 0 ? count : 1;
}

/* Warns if most steps are warm-up. Images are counted where optim.warmup_steps has a number for epochs. */
static int check_warmup(struct plan_report *r, struct error *err)
{
    const struct config *c = r->config;
    bool counts =
        !c->train.steps && c->optim.warmup_steps > 0 && c->data.root[0] && !file_absent(c->data.root);
    int64_t before = r->images; /* counted with the time of a step alone */
    int code = counts && before < 0 ? count_images(r, err) : 0;
    if (!code) experiment_warn_warmup(c, r->images > 0 ? r->images : 0);
    r->images = before;
    return code;
}

/* Counts the images and computes the hours per epoch, if the time of a step is known and the images exist. */
static int compute_epoch(struct plan_report *r, struct error *err)
{
    const struct config *c = r->config;
    double step_s = plan_report_step_seconds(r);
    if (!c->data.root[0] || file_absent(c->data.root)) return 0;
    int code = step_s > 0 || objective_of(c)->tokens ? count_images(r, err) : 0;
    if (code || step_s <= 0) return code;
    r->epoch_hours = (double)(r->images * c->data.crops / step_images(r)) * (step_s * 1e3) / 3.6e6;
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
    enum { FEW_BYTES = 1 << 20 };
    if (fit && bytes > 0 && bytes < FEW_BYTES)
        return error_set(err, EXIT_USAGE, "with a unit, for example 8GiB", "--fit %s is %lld bytes", fit,
                         (long long)bytes);
    if (bytes == INT64_MIN)
        return error_set(err, EXIT_USAGE, "for example 8GiB, or auto",
                         "--fit requires a number of bytes, found '%s'", fit);
    *limit = bytes < 0 ? plan_memory_auto(card) : (size_t)bytes;
    return 0;
}

/* Sets the speeds that are given on the command line, else measured with --measure; others are assumed. */
static int set_speed(struct memory_options_speed *speed, const struct plan_report *r,
                     const struct arguments *args, struct error *err)
{
    double carry = argument_real(args, "carry", 0);
    int code = 0;
    if (carry > 0) speed->carried_gb_per_s = carry, speed->carry = CARRY_GIVEN;
    else if (argument_flag(args, "measure")) code = carry_measure(speed, r->config, err);
    if (r->gflops > 0) speed->gflops = r->gflops, speed->assumed = false;
    return code;
}

/* Finds the memory options for the bytes of --fit. With train.memory, plans again with the keys that training
 * would choose. */
static int find_memory_options(struct memory_options *memory, struct plan_report *r, struct memory_planner *p,
                               const struct arguments *args, struct error *err)
{
    size_t limit;
    int code = find_limit(&limit, args, r->config, &r->card, err);
    if (code || !limit) return code;
    if ((code = set_speed(&p->speed, r, args, err)) != 0) return code;
    memory_options_find(memory, p, limit);
    r->memory = memory;
    if (argument_text(args, "fit", NULL) || memory->chosen < 0) return 0;
    r->chosen = &memory->options[memory->chosen];
    return r->chosen->keys[0] ? memory_planner_apply(p, r->chosen, err) : 0;
}

/* ---- The command ---- */

/* Returns EXIT_CONFIG if the peak does not fit into a card that is given, limited or present. */
static int check_fits(const struct plan_report *r, struct error *err)
{
    double peak = (double)r->plan->use.peak_total_bytes;
    const struct memory_options *settings = r->explanation ? &r->explanation->settings : NULL;
    char hint[320] = N_("--what-if lists settings that need less, and their cost");
    if (!r->card.bytes || r->card.assumed || peak <= (double)r->card.bytes) return 0;
    if (settings && settings->chosen >= 0)
        snprintf(hint, sizeof hint, _("the cheapest setting that fits: %s"),
                 settings->options[settings->chosen].keys);
    else if (settings)
        snprintf(hint, sizeof hint,
                 _("none of the settings above fits: use fewer images or a smaller student"));
    return error_set(err, EXIT_CONFIG, hint, "the planned peak of %.1f MiB does not fit into %.1f MiB (%s)",
                     peak / MIB, (double)r->card.bytes / MIB, r->card.name);
}

static json_t *positive_json(double x) { return x > 0 ? json_real(x) : json_null(); }

static void print_cards(bool json)
{
    json_t *all = json ? json_array() : NULL;
    for (int i = 0; plan_card_name(i); i++) {
        size_t bytes = 0;
        (void)plan_card_bytes(plan_card_name(i), &bytes, NULL);
        struct card_peaks peaks = plan_card_peaks(plan_card_name(i));
        if (json)
            json_array_append_new(all,
                                  json_pack("{s:s, s:I, s:o, s:o, s:o}", "name", plan_card_name(i), "bytes",
                                            (json_int_t)bytes, "peak_flops", positive_json(peaks.flops),
                                            "peak_flops_f32", positive_json(peaks.flops_f32),
                                            "peak_bytes_per_s", positive_json(peaks.bytes_per_s)));
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

/* Compares with the bytes of --fit, unless a card is given. */
static int use_fit(struct plan_report *r, const struct arguments *args, struct error *err)
{
    size_t limit;
    const char *fit = argument_text(args, "fit", NULL);
    if (!fit || strcmp(fit, "auto") == 0 || argument_text(args, "card", NULL) ||
        argument_text(args, "card-memory", NULL))
        return 0;
    int code = find_limit(&limit, args, r->config, &r->card, err);
    if (code) return code;
    r->card.bytes = r->card.free_bytes = limit;
    snprintf(r->card.name, sizeof r->card.name, "--fit");
    return 0;
}

/* Computes all figures of the report in order; later ones use earlier ones. */
static int compute_report(struct plan_report *r, struct memory_planner *p, struct memory_options *memory,
                          struct explanation *e, const struct arguments *args, struct error *err)
{
    int code;
    const struct config *config = &p->config;
    struct comm_options ranks = {.rank = PLAN_LARGEST, .size = rank_count(args, config)};
    if ((code = plan_card_find(&r->card, args, config, node_rank_count(args, config), err)) != 0) return code;
    if ((code = use_fit(r, args, err)) != 0) return code;
    warn_missing_driver(config);
    if ((code = memory_planner_plan(p, &ranks, err)) != 0) return code;
    if (argument_flag(args, "measure") && r->gflops <= 0 && (code = measure_gemm(r, err)) != 0) return code;
    r->ranks = ranks.size;
    compare_published(r, p);
    if ((code = find_memory_options(memory, r, p, args, err)) != 0) return code;
    const char *card = argument_text(args, "card", NULL);
    if (card && (code = predict_step(r, &ranks, card, err)) != 0) return code;
    if ((code = scaling_table_make(&r->scaling, args, p, r->ranks, r->gflops, err)) != 0) return code;
    r->advises = argument_flag(args, "advise");
    if (r->advises) scaling_advise(&r->advice, args, p, r->card.bytes, r->ranks, r->gflops);
    r->grids = argument_flag(args, "grid");
    if (r->grids) {
        bool known = r->count.peaks.bytes_per_s > 0 && r->step_ms <= 0 && r->gflops <= 0; /* of --card */
        plan_grid_make(&r->grid, args, p, r->card.bytes, r->ranks, r->gflops,
                       known ? r->count.compute_s + r->count.memory_s + r->update_s : 0);
    }
    r->disk_bytes = p->plan.checkpoint_bytes *
                    (config->train.checkpoint_keep + 1 + (config->data.val[0] && config->train.eval_every));
    if (config->data.val[0] &&
        (code = plan_evaluation(config, !p->plan.from_checkpoints, &r->evaluation_bytes, err)) != 0)
        return code;
    struct error why = {0};
    if (r->card.bytes) r->largest_micro = plan_largest_batch(config, &ranks, r->card.bytes, &why);
    if (why.code && why.code != EXIT_CONFIG) return *err = why, why.code;
    if (why.code) log_warn("the largest micro-batch that fits is not known: %s", why.what);
    if (argument_flag(args, "what-if") || argument_text(args, "explain", NULL)) {
        explain(e, p, r->card.bytes);
        r->explanation = e;
    }
    if ((code = compute_epoch(r, err)) != 0) return code;
    return check_warmup(r, err);
}

static int plan_run(const struct arguments *args, struct error *err)
{
    if (strcmp(argument_text(args, "card", ""), "list") == 0)
        return print_cards(argument_flag(args, "json")), 0;
    if (args->operand_count == 0)
        return error_set(err, EXIT_USAGE, "usage: meopt plan [options] CONFIG [key=value ...]",
                         "meopt plan requires CONFIG");
    struct memory_planner planner;
    struct memory_options memory = {0};
    struct explanation e = {0};
    int code =
        memory_planner_load(&planner, args->operands[0], args->operands + 1, args->operand_count - 1, err);
    if (code) return code;
    const char *class = argument_text(args, "explain", NULL);
    struct plan_report r = {.config = &planner.config,
                            .plan = &planner.plan,
                            .largest_micro = -1,
                            .images = -1,
                            .gflops = argument_real(args, "gflops", 0),
                            .step_ms = argument_real(args, "step-ms", 0),
                            .explained = -1};
    for (int c = 0; class && c < MEMORY_CLASS_COUNT; c++)
        if (strcmp(class, memory_class_names[c]) == 0) r.explained = c;
    if ((code = compute_report(&r, &planner, &memory, &e, args, err)) != 0) goto done;
    if (argument_flag(args, "json")) print_json(plan_report_json(&r));
    else {
        plan_report_print(&r);
        if (class) plan_memory_print_tensors(&e, r.explained);
        if (argument_flag(args, "what-if")) plan_memory_print_settings(&e, r.ranks);
        if (r.memory) plan_memory_print_fit(&memory, args->operands[0]);
    }
    code = r.memory ? plan_memory_check(&memory, err) : check_fits(&r, err);
done:
    memory_options_free(&memory);
    explanation_free(&e);
    memory_planner_close(&planner);
    return code;
}

static const struct option options[] = {
    {"card-memory", .type = OPTION_TEXT, .value = "BYTES",
     .help =
         "memory of the card, for example 64G (default: device.memory_limit, else the card's or machine's)"},
    {"card", .type = OPTION_TEXT, .value = "NAME",
     .help = "plan for this card, for example k100-ai: its memory, and the time of a step at its peaks; "
             "--card list prints all names"},
    {"explain", .type = OPTION_TEXT, .value = "CLASS",
     .choices = "all|weights|gradients|optimizer|activations|teacher|workspace|comm|data",
     .help = "list the tensors of this class of memory, each with the key that shrinks it and its cost"},
    {"what-if", .help = "print a table of the important settings with peak memory and relative compute"},
    {"fit", .type = OPTION_TEXT, .value = "BYTES",
     .help = "list memory options with the time of a step and their keys, and mark the fastest one that fits "
             "into BYTES, for example 8GiB, or auto (default: train.memory)"},
    {"carry", .type = OPTION_REAL, .value = "GB/S", .min = 0.001, .max = 1e6,
     .help = "with --fit: bandwidth for streamed weights and offloaded states (default 12 for a card, 1 for "
             "a CPU)"},
    {"ranks", .type = OPTION_INT, .value = "N", .min = 1, .max = 65536,
     .help = "number of ranks (default: that of device.cards, or dist.pipeline times dist.tensor)"},
    {"bandwidth", .type = OPTION_REAL, .value = "GB/S", .max = 1e6,
     .help = "bandwidth of a rank's link; prints a table of steps on 1, 2, 4 ... N ranks"},
    {"latency", .type = OPTION_REAL, .value = "US", .max = 1e9,
     .help = "microseconds per message between ranks (default 5)"},
    {"network", .type = OPTION_REAL, .value = "GB/S", .max = 1e6,
     .help = "bandwidth of a node's network, with more ranks than --node-ranks"},
    {"node-ranks", .type = OPTION_INT, .value = "N", .min = 1, .max = 65536,
     .help = "number of ranks per node (default 8)"},
    {"nodes", .type = OPTION_INT, .value = "N", .min = 1, .max = 65536,
     .help = "number of nodes (default: of --node-ranks ranks each)"},
    {"cores", .type = OPTION_INT, .value = "N", .min = 1, .max = 65536,
     .help = "processors of a node that its ranks, on the CPU, share (default: each rank has its own)"},
    {"advise", .help = "with several ranks: compare dist.shard, train.rounds and dist.pipeline by memory and "
                       "simulated step, and mark the fastest that fits"},
    {"grid", .help = "plan and simulate each division of the ranks into tensor groups, stages and replicas "
                     "(dist.tensor, dist.pipeline), next to the published grid of the same model"},
    {"step-ms", .type = OPTION_REAL, .value = "MS", .max = 1e12,
     .help = "measured step of one rank (meopt bench train; default: from --gflops)"},
    {"gflops", .type = OPTION_REAL, .value = "X", .max = 1e9,
     .help = "measured speed (meopt bench train), for the expected time of a step"},
    {"measure", .help = "measure the best GEMM rate of this machine for a second, for the time of a step; "
                        "with --fit also the bandwidth of the card's link, or on a CPU of the disk"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_plan = {
    .name = "plan",
    .operands = "CONFIG [key=value ...]",
    .summary = "compute memory, time and disk space before a run starts",
    .details =
        "Examples:\n  meopt plan configs/eva_clip.yaml --card-memory 64G --what-if\n  meopt plan "
        "configs/dinov2.yaml train.batch_size=64 train.recompute=block\n  meopt plan configs/eva_clip.yaml "
        "--ranks 512 "
        "--bandwidth 19.4 --network 50 --step-ms 2700",
    .options = options,
    .max_operands = -1,
    .run = plan_run,
};
