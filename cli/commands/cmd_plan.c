/* meopt plan: will it fit? Memory by class per rank, work, traffic and disk, before anything starts. */
#include "cli/commands/cmd_config.h"
#include "cli/commands/link_rates.h"
#include "cli/command.h"
#include "cli/commands/plan_fit.h"
#include "cli/commands/plan_explain.h"
#include "cli/commands/plan_scaling.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/compare/published.h"
#include "core/config/value.h"
#include "core/data/list.h"
#include "core/device/bench.h"
#include "core/run/memory.h"
#include "core/train/experiment.h"
#include "core/train/plan.h"
#include "core/train/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double MIB = 1 << 20, GIB = 1 << 30;

/* The workloads whose figures the original's authors published (configs/published.yaml), by their towers. */
static const struct workload {
    const char *name;
    enum tower_arch teacher, student;
} workloads[] = {
    {"eva_clip", TOWER_ARCH_eva01_g14_plus, TOWER_ARCH_eva01_g14},
    {"open_clip", TOWER_ARCH_openclip_vit_g14, TOWER_ARCH_openclip_vit_h14},
    {"dinov2", TOWER_ARCH_dinov2_vitg14, TOWER_ARCH_dinov2_vitl14},
};

/* Memory of one card at 32 images in MiB, without and with;
 * false: nothing was published, or the file is not there. */
static bool find_published(const struct config *c, double mib[2])
{
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++) {
        if (c->model_t.arch != workloads[i].teacher || c->model_s.arch != workloads[i].student) continue;
        struct column *columns = NULL;
        struct error ignored;
        int count = 0;
        char *path = path_shipped("published.yaml");
        bool found =
            path && published_add(&columns, &count, path, workloads[i].name, &ignored) == 0 && count == 2;
        for (int k = 0; found && k < 2; k++) mib[k] = columns[k].runs[0].peak_bytes / MIB;
        if (count) table_free(table_make(columns, count, 0));
        free(path);
        return found;
    }
    return false;
}

/* The file again with more overrides: what "auto" means is settled anew. */
static int load_variant(struct config *config, const struct arguments *args, const char *const *more,
                        struct error *err)
{
    int count = args->operand_count - 1;
    char **overrides, *text = NULL;
    size_t bytes = 0, further = 0;
    while (more && more[further]) further++;
    overrides = xcalloc((size_t)count + further + 1, sizeof *overrides);
    for (int i = 0; i < count; i++) overrides[i] = args->operands[i + 1];
    while (more && *more) overrides[count++] = (char *)(uintptr_t)*more++;
    int code = config_read_file(args->operands[0], &text, &bytes, err);
    if (code == 0) {
        code = config_examine(config, args->operands[0], text, bytes, overrides, count, NULL, NULL, err);
        if (code) config_free(config);
    }
    free(text);
    free(overrides);
    return code;
}

static int ranks_of(const struct arguments *args, const struct config *config)
{
    int named = config->device.type == DEVICE_TYPE_CPU ? 0 : config_cards(config, NULL);
    return (int)argument_int(args, "ranks", named > 0 ? named : 1);
}

static int host_ranks_of(const struct arguments *args, const struct config *config)
{
    int ranks = ranks_of(args, config), most = (int)argument_int(args, "node-ranks", PLAN_NODE_RANKS);
    return ranks < most ? ranks : most;
}

/* Of the one that holds the most. */
static int plan_rank(struct plan *plan, const struct arguments *args, const struct config *config,
                     struct error *err)
{
    struct comm_options ranks = {.rank = PLAN_LARGEST, .size = ranks_of(args, config)};
    return plan_make_among(plan, config, &ranks, err);
}

static int plan_variant(struct plan *plan, const struct arguments *args, const char *const *more,
                        struct error *err)
{
    struct config config;
    int code = load_variant(&config, args, more, err);
    if (code) return code;
    code = plan_rank(plan, args, &config, err);
    config_free(&config);
    return code;
}

/* ---- What if ---- */

static void print_variants(const struct explanation *e, const struct card *card, int ranks)
{
    printf("\nwhat if%*s peak GiB   of now   compute%s\n", 21, "",
           card->bytes ? "" : "   (name a card: --card-memory 64G)");
    for (int i = 0; i < REMEDIES; i++) {
        const struct remedy *r = &e->remedies[i];
        if (!r->name) continue;
        if (!r->possible) {
            printf("  %-26s not possible: %s\n", r->name, r->why);
            continue;
        }
        printf("  %-26s %8.2f   %5.0f %%   x %.2f   %s%s\n", r->name, (double)r->use.peak_total_bytes / GIB,
               100 * (double)r->use.peak_total_bytes / (double)e->plan.use.peak_total_bytes, r->cost,
               !card->bytes ? ""
               : r->fits    ? "fits"
                            : "does not fit",
               r->cheapest ? "  <- cheapest that fits" : "");
        printf("      %s", r->keys[0] ? r->keys : "(as it is)");
        if (ranks > 1) printf("; a rank sends %.1f MiB a step", r->sent / MIB);
        printf("\n");
    }
    printf("  '+': this experiment with that change. compute: of a step, cached teachers behind the first "
           "epoch.\n");
}

/* ---- Output ---- */

enum { MOST_CHOSEN = 32 }; /* keys of one rung */

struct figures {
    const char *chosen; /* keys that train.memory has chosen; NULL: none */
    const char *chosen_note;
    const struct config *config;
    const struct plan *plan;
    struct card card;
    int ranks;
    int64_t largest; /* -1: not known */
    double gflops;   /* speed, 0: not known */
    bool measured;   /* here and now */
    bool published;
    double published_mib[2];          /* without, with */
    double baseline_peak, meopt_peak; /* for the published table */
    int64_t disk;
    struct scaling_table scaling;
    int explained;  /* enum memory_class; -1: all */
    int64_t images; /* of the experiment; -1: not counted */
    double step_ms; /* as it was given; 0: not */
    double epoch_hours;
};

static void print_tower(const char *role, const struct model_shape *g, int64_t parameters, const char *head)
{
    char text[512];
    model_shape_text(g, text, sizeof text);
    printf("%s  %s: %.2f M parameters%s\n", role, text, (double)parameters / 1e6, head);
}

/* Beside the device's own memory. */
static void print_places(const struct memory_use *use)
{
    static const char *const names[PLACE_COUNT] = {
        [PLACE_HOST] = "beside it, in the host's memory", [PLACE_FILE] = "beside it, in working files"};
    for (int place = 0; place < PLACE_COUNT; place++) {
        const char *separator = "";
        for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
            if (!use->offloaded_peak_bytes[place][c]) continue;
            if (!*separator) printf("  %s: ", names[place]);
            printf("%s%s %.1f", separator, memory_class_names[c],
                   (double)use->offloaded_peak_bytes[place][c] / MIB);
            separator = ", ";
        }
        if (*separator) printf("\n");
    }
}

/* Seconds of a step by --step-ms, or by compute; 0: not known. */
static double step_seconds(const struct figures *f)
{
    if (f->step_ms > 0) return f->step_ms * 1e-3;
    return f->gflops > 0 ? f->plan->step_flops / (f->gflops * 1e9) : 0;
}

/* A drive of a terabyte is commonly made for 600 terabytes written (TBW). */
static void print_offload(const struct figures *f)
{
    const double endurance = 600e12;
    double written = (double)f->plan->offload_written_bytes, s = step_seconds(f);
    if (written <= 0) return;
    printf("offload  %.3f GB read and %.3f GB written a step", (double)f->plan->offload_read_bytes / 1e9,
           written / 1e9);
    if (s > 0) printf(", %.3g GB/s each way beside it", written / s / 1e9);
    if (f->config->optim.offload != OPTIM_OFFLOAD_NVME) printf("\n");
    else if (s > 0)
        printf(", %.3g TB written a day: a drive of 600 TBW lasts %.3g days\n", written / s * 86400 / 1e12,
               endurance / (written / s * 86400));
    else printf(": a drive of 600 TBW lasts %.3g steps (--step-ms: how many days)\n", endurance / written);
    if (device_is_card(device_type_names[f->config->device.type])) /* bf16 */
        printf("         the card takes the step; the host's cores would be sent %.3f GB of gradients, and "
               "send %.3f "
               "GB of weights\n",
               2e-9 * (double)f->plan->student_parameters, 2e-9 * (double)f->plan->student_parameters);
}

static void print_plan(const struct figures *f)
{
    const struct plan *p = f->plan;
    const struct memory_use *use = &p->use;
    print_tower("teacher", &p->teacher, p->teacher_parameters, "");
    print_tower("student", &p->student, p->student_parameters,
                p->student_parameters != model_shape_parameters(&p->student) ? " with its head" : "");
    for (int i = 0; i <= p->two; i++)
        printf("images   %s%s\n", !p->two ? "" : i ? "student: " : "teacher: ", p->images[i]);
    printf("batch    %lld images a step and rank, %lld a forward%s\n", (long long)p->batch,
           (long long)p->micro, p->from_checkpoints ? "" : "; geometry from arch, no checkpoint read");
    char clipping[320];
    trainer_clipping(f->config, clipping, sizeof clipping);
    printf("clipping %s\n", clipping);
    if (f->chosen)
        printf("chosen   %s (by train.memory: %s)%s\n", f->chosen, f->config->train.memory, f->chosen_note);
    printf("\n");
    printf("memory of %-15s MiB\n", p->rank ? "the largest" : "one rank");
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        printf("  %-16s %12.1f\n", memory_class_names[c], (double)use->peak_bytes[c] / MIB);
    printf("  %-16s %12.1f\n", "peak", (double)use->peak_total_bytes / MIB);
    print_places(use);
    if (f->card.bytes) {
        bool fits = use->peak_total_bytes <= f->card.bytes;
        printf("%s %.1f MiB (%s)", fits ? "fits" : "DOES NOT FIT", (double)f->card.bytes / MIB, f->card.name);
        if (f->largest >= 0) printf("; largest micro-batch that fits: %lld", (long long)f->largest);
        printf("\n");
    }
    printf("\ncompute  %.2f TFLOP a step and rank", p->step_flops / 1e12);
    if (p->first_epoch_step_flops > p->step_flops)
        printf(" (%.2f while the teacher's outputs are not cached)", p->first_epoch_step_flops / 1e12);
    if (f->gflops > 0)
        printf(", %.3g s at %.4g GFLOP/s%s", p->step_flops / (f->gflops * 1e9), f->gflops,
               f->measured ? ", the peak of its matrix product" : "");
    if (f->epoch_hours > 0) printf("\nepoch    %.3g h: %lld images", f->epoch_hours, (long long)f->images);
    printf("\nupdate   %.2f GB of memory traffic a step\n", p->update_bytes / 1e9);
    print_offload(f);
    printf("network  %.1f MB sent by each of %d rank%s a step\n", plan_sent_bytes(p, f->ranks) / 1e6,
           f->ranks, f->ranks == 1 ? "" : "s");
    double carried = (double)p->streamed_teacher_bytes + (double)p->streamed_student_bytes;
    if (carried > 0) printf("streamed %.2f GB of weights a step, from the store and back\n", carried / 1e9);
    if (p->libraries_assumed)
        printf("assumed  the card's libraries, whose driver is not on this machine: hipBLASLt or cuBLASLt, "
               "and for several ranks RCCL or NCCL\n");
    printf("disk     %.2f GiB: %lld checkpoints of %.2f GiB, one being written", (double)f->disk / GIB,
           (long long)f->config->train.checkpoint_keep, (double)p->checkpoint_bytes / GIB);
    if (p->cache_bytes_per_image)
        printf("; and %lld bytes an image of the teacher's outputs", (long long)p->cache_bytes_per_image);
    printf("\n");
    if (f->scaling.count) scaling_table_print(&f->scaling);
    if (!f->published) return;
    printf("\nat 32 images and one card     without      with MEOpt    ratio\n");
    printf("  published, MB            %9.0f      %9.0f     %.3f\n", f->published_mib[0], f->published_mib[1],
           f->published_mib[1] / f->published_mib[0]);
    printf("  here, MiB                %9.0f      %9.0f     %.3f\n", f->baseline_peak / MIB,
           f->meopt_peak / MIB, f->meopt_peak / f->baseline_peak);
    printf("  here / published             %.3f          %.3f\n",
           f->baseline_peak / MIB / f->published_mib[0], f->meopt_peak / MIB / f->published_mib[1]);
}

static json_t *tower_json(const struct model_shape *g, int64_t parameters)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:b, s:s, s:b, s:I, s:I, s:I}", "family", family_name(g->family),
                     "width", (json_int_t)g->width, "depth", (json_int_t)g->depth, "heads",
                     (json_int_t)g->heads, "heads_assumed", (g->assumed & ASSUMED_HEADS) != 0, "activation",
                     model_shape_activation(g), "activation_assumed", (g->assumed & ASSUMED_ACTIVATION) != 0,
                     "image_pixels", (json_int_t)g->image, "out", (json_int_t)g->out, "parameters",
                     (json_int_t)parameters);
}

static json_t *plan_json(const struct figures *f, const struct explanation *e)
{
    const struct plan *p = f->plan;
    json_t *classes = json_object(), *root;
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        json_object_set_new(classes, memory_class_names[c], json_integer((json_int_t)p->use.peak_bytes[c]));
    root =
        json_pack("{s:o, s:o, s:I, s:I, s:I, s:o}", "teacher", tower_json(&p->teacher, p->teacher_parameters),
                  "student", tower_json(&p->student, p->student_parameters), "batch_images",
                  (json_int_t)p->batch, "micro_batch_images", (json_int_t)p->micro, "peak_bytes",
                  (json_int_t)p->use.peak_total_bytes, "classes", classes);
    json_object_set_new(root, "preprocessing", json_string(p->images[0]));
    json_object_set_new(root, "preprocessing_student", json_string(p->images[p->two]));
    json_object_set_new(root, "host_classes", memory_offloaded_json(&p->use, PLACE_HOST));
    json_object_set_new(root, "file_classes", memory_offloaded_json(&p->use, PLACE_FILE));
    char clipping[320];
    trainer_clipping(f->config, clipping, sizeof clipping);
    clipping[strcspn(clipping, ":")] = 0;
    json_object_set_new(root, "clip_mode", config_clips(f->config) ? json_string(clipping) : json_null());
    json_object_set_new(root, "card_bytes",
                        f->card.bytes ? json_integer((json_int_t)f->card.bytes) : json_null());
    json_object_set_new(root, "fits",
                        f->card.bytes ? json_boolean(p->use.peak_total_bytes <= f->card.bytes) : json_null());
    json_object_set_new(root, "largest_micro_batch_images",
                        f->largest >= 0 ? json_integer(f->largest) : json_null());
    json_object_set_new(root, "step_flops", json_real(p->step_flops));
    json_object_set_new(root, "step_s",
                        f->gflops > 0 ? json_real(p->step_flops / (f->gflops * 1e9)) : json_null());
    json_object_set_new(root, "update_bytes", json_real(p->update_bytes));
    json_object_set_new(root, "streamed_bytes_per_step",
                        json_integer(p->streamed_teacher_bytes + p->streamed_student_bytes));
    json_object_set_new(root, "offload_read_bytes_per_step", json_integer(p->offload_read_bytes));
    json_object_set_new(root, "offload_written_bytes_per_step", json_integer(p->offload_written_bytes));
    json_object_set_new(root, "ranks", json_integer(f->ranks));
    json_object_set_new(root, "rank", json_integer(p->rank));
    json_object_set_new(root, "libraries_assumed", json_boolean(p->libraries_assumed));
    json_object_set_new(root, "sent_bytes_per_step", json_real(plan_sent_bytes(p, f->ranks)));
    json_object_set_new(root, "scaling", f->scaling.count ? scaling_table_json(&f->scaling) : json_null());
    json_object_set_new(root, "checkpoint_bytes", json_integer(p->checkpoint_bytes));
    json_object_set_new(root, "cache_bytes_per_image", json_integer(p->cache_bytes_per_image));
    json_object_set_new(root, "disk_bytes", json_integer(f->disk));
    if (f->published)
        json_object_set_new(root, "published",
                            json_pack("{s:f, s:f, s:f, s:f}", "without_mib", f->published_mib[0], "with_mib",
                                      f->published_mib[1], "here_without_mib", f->baseline_peak / MIB,
                                      "here_with_mib", f->meopt_peak / MIB));
    json_t *rows = e ? json_array() : NULL;
    for (int i = 0; e && i < REMEDIES; i++) {
        const struct remedy *r = &e->remedies[i];
        if (!r->name) continue;
        json_t *row = json_pack("{s:s, s:b}", "name", r->name, "possible", r->possible);
        json_object_set_new(row, "peak_bytes",
                            r->possible ? json_integer((json_int_t)r->use.peak_total_bytes) : json_null());
        json_object_set_new(row, "relative_compute", r->possible ? json_real(r->cost) : json_null());
        json_object_set_new(row, "sent_bytes_per_step", r->possible ? json_real(r->sent) : json_null());
        json_object_set_new(row, "fits", r->possible && f->card.bytes ? json_boolean(r->fits) : json_null());
        json_object_set_new(row, "cheapest_that_fits", json_boolean(r->cheapest));
        json_object_set_new(row, "keys", json_string(r->keys));
        json_array_append_new(rows, row);
    }
    if (rows) json_object_set_new(root, "what_if", rows);
    if (e) json_object_set_new(root, "tensors", plan_explain_json(e, f->explained));
    json_object_set_new(root, "images", f->images >= 0 ? json_integer(f->images) : json_null());
    json_object_set_new(root, "epoch_hours", f->epoch_hours > 0 ? json_real(f->epoch_hours) : json_null());
    return root;
}

/* ---- The command ---- */

static int compare_published(struct figures *f, const struct arguments *args, struct error *err)
{
    static const char *const batch = "train.batch_size=32", *const whole = "train.micro_batch=0";
    const char *const without[] = {batch,
                                   whole,
                                   "optim.use_meopt=false",
                                   "optim.pure_bf16=false",
                                   "optim.gradients=auto",
                                   "optim.clip_mode=auto",
                                   "model_t.place=resident",
                                   "model_s.place=resident",
                                   "optim.offload=none",
                                   NULL};
    const char *const with[] = {
        batch, whole, "optim.use_meopt=true", "optim.gradients=auto", "optim.clip_mode=auto", NULL};
    struct plan plan;
    f->published = find_published(f->config, f->published_mib);
    if (!f->published) return 0;
    int code = plan_variant(&plan, args, without, err);
    if (code) return code;
    f->baseline_peak = (double)plan.use.peak_total_bytes;
    code = plan_variant(&plan, args, with, err);
    f->meopt_peak = (double)plan.use.peak_total_bytes;
    return code;
}

/* Peak of the matrix product on the experiment's device. */
static int measure(struct figures *f, struct error *err)
{
    struct device *device;
    int code = train_device_open(&device, f->config, false, err);
    if (code) return code;
    f->gflops = device_gemm_peak_gflops(device, trainer_tower_type(&f->config->model_s));
    f->measured = true;
    device_close(device);
    return 0;
}

/* Where the time of a step is known, that of an epoch, if the images are here to be counted. */
static int find_epoch(struct figures *f, struct error *err)
{
    const struct config *c = f->config;
    struct image_list list;
    double step_ms = step_seconds(f) * 1e3;
    if (step_ms <= 0 || !c->data.root[0] || file_absent(c->data.root)) return 0;
    int code = image_list_read(&list, c->data.root, c->data.include, c->data.exclude, err);
    if (code) return code;
    f->images = list.count;
    image_list_free(&list);
    int64_t step = c->train.global_batch > 0 ? c->train.global_batch : f->plan->batch * f->ranks;
    f->epoch_hours = (double)(f->images / (step > 0 ? step : 1)) * step_ms / 3.6e6;
    return 0;
}

/* For batch scripts: EXIT_CONFIG where the card is named, or here, and too small. */
static int fits_or_not(const struct figures *f, const struct explanation *e, struct error *err)
{
    double peak = (double)f->plan->use.peak_total_bytes;
    char hint[320] = "--what-if tells what would, and what it costs";
    if (!f->card.bytes || f->card.assumed || peak <= (double)f->card.bytes) return 0;
    if (e) snprintf(hint, sizeof hint, "none of the settings above fits: fewer images, a smaller student");
    for (int i = 0; e && i < REMEDIES; i++)
        if (e->remedies[i].cheapest)
            snprintf(hint, sizeof hint, "this fits at the least cost: %s", e->remedies[i].keys);
    return error_set(err, EXIT_CONFIG, hint, "the planned peak of %.1f MiB does not fit into %.1f MiB (%s)",
                     peak / MIB, (double)f->card.bytes / MIB, f->card.name);
}

/* --fit, or train.memory: *limit 0 where neither is given. */
static int find_limit(size_t *limit, const struct arguments *args, const struct config *config,
                      const struct card *card, struct error *err)
{
    const char *fit = argument_text(args, "fit", NULL);
    struct config named = {.train.memory = (char *)(uintptr_t)fit};
    int64_t bytes = config_memory(fit ? &named : config);
    *limit = bytes < 0 ? fit_auto(card) : (size_t)bytes;
    return bytes == INT64_MIN ? error_set(err, EXIT_USAGE, "as in 8GiB, or auto",
                                          "--fit takes a number of bytes, found '%s'", fit)
                              : 0;
}

/* Finds the memory options and their times for `limit` bytes per rank; with 0 does nothing. */
static int find_memory_options(struct memory_options *ladder, const struct figures *f,
                               const struct arguments *args, size_t limit, struct error *err)
{
    struct comm_options ranks = {.rank = PLAN_LARGEST, .size = f->ranks};
    struct memory_options_speed speed = memory_options_assumed(f->config);
    double carry = argument_real(args, "carry", 0);
    int code = 0;
    if (!limit) return 0;
    if (carry > 0) speed.carried_gb_per_s = carry, speed.carry = CARRY_GIVEN;
    else if (argument_flag(args, "measure") && (code = carry_measure(&speed, f->config, err)) != 0)
        return code;
    if (f->gflops > 0) speed.gflops = f->gflops, speed.assumed = false;
    return memory_options_find(ladder, args->operands[0], args->operands + 1, args->operand_count - 1, &ranks,
                               limit, &speed, err);
}

/* With train.memory, plans again with the keys that training would choose. */
static int plan_chosen(struct figures *f, struct config *config, struct plan *plan,
                       const struct arguments *args, const struct memory_options *ladder, struct error *err)
{
    const char *words[MOST_CHOSEN + 1] = {NULL};
    char *at, *keys;
    if (ladder->chosen < 0 || !ladder->rungs[ladder->chosen].keys[0]) return 0;
    f->chosen = ladder->rungs[ladder->chosen].keys;
    f->chosen_note = memory_options_note(&ladder->rungs[ladder->chosen]);
    keys = xstrdup(f->chosen);
    int count = 0;
    for (char *word = strtok_r(keys, " ", &at); word && count < MOST_CHOSEN; word = strtok_r(NULL, " ", &at))
        words[count++] = word;
    config_free(config);
    int code = load_variant(config, args, words, err);
    if (code) *config = (struct config){0};
    else code = plan_rank(plan, args, config, err);
    free(keys);
    return code;
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

static int plan_run(const struct arguments *args, struct error *err)
{
    if (strcmp(argument_text(args, "card", ""), "list") == 0)
        return print_cards(argument_flag(args, "json")), 0;
    if (args->operand_count == 0)
        return error_set(err, EXIT_USAGE, "usage: meopt plan [options] CONFIG [key=value ...]",
                         "meopt plan requires CONFIG");
    struct config config;
    struct plan plan;
    struct memory_options ladder = {0};
    size_t limit;
    struct explanation e = {0};
    struct comm_options ranks = {.rank = PLAN_LARGEST};
    int code = load_variant(&config, args, NULL, err);
    if (code) return code;
    struct figures f = {
        .config = &config, .plan = &plan, .largest = -1, .gflops = argument_real(args, "gflops", 0)};
    const char *class = argument_text(args, "explain", NULL);
    bool what_if = argument_flag(args, "what-if");
    f.explained = class ? plan_explain_class(class) : -1;
    f.images = -1;
    if ((code = fit_card(&f.card, args, &config, host_ranks_of(args, &config), err)) != 0) goto done;
    if (config.device.type == DEVICE_TYPE_AUTO && config_cards(&config, NULL) > 0 && !device_is_card("auto"))
        log_warn(
            "device.cards names cards, and no driver of any is on this machine: device.type auto is planned "
            "for the processor; for a card: device.type=hip or device.type=cuda");
    f.step_ms = argument_real(args, "step-ms", 0);
    if ((code = plan_rank(&plan, args, &config, err)) != 0) goto done;
    if (argument_flag(args, "measure") && f.gflops <= 0 && (code = measure(&f, err)) != 0) goto done;
    f.ranks = ranks_of(args, &config);
    if ((code = find_limit(&limit, args, &config, &f.card, err)) != 0) goto done;
    if ((code = find_memory_options(&ladder, &f, args, limit, err)) != 0) goto done;
    if (limit && !argument_text(args, "fit", NULL) &&
        (code = plan_chosen(&f, &config, &plan, args, &ladder, err)) != 0)
        goto done;
    if ((code = scaling_table_make(&f.scaling, args, &config, &plan, f.ranks, f.gflops, err)) != 0) goto done;
    f.disk = plan.checkpoint_bytes * (config.train.checkpoint_keep + 1);
    ranks.size = f.ranks;
    if (f.card.bytes) f.largest = plan_largest_batch(&config, &ranks, f.card.bytes, NULL);
    if ((code = compare_published(&f, args, err)) != 0) goto done;
    if ((what_if || class) && (code = explain(&e, args->operands[0], args->operands + 1,
                                              args->operand_count - 1, &ranks, f.card.bytes, err)) != 0)
        goto done;
    if ((code = find_epoch(&f, err)) != 0) goto done;
    if (argument_flag(args, "json")) {
        json_t *root = plan_json(&f, what_if || class ? &e : NULL);
        if (limit) json_object_set_new(root, "fit", fit_json(&ladder));
        print_json(root);
    } else {
        print_plan(&f);
        if (class) plan_explain_print(&e, f.explained);
        if (what_if) print_variants(&e, &f.card, f.ranks);
        if (limit) fit_print(&ladder, args->operands[0]);
    }
    code = limit ? fit_check(&ladder, err) : fits_or_not(&f, what_if || class ? &e : NULL, err);
done:
    memory_options_free(&ladder);
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
