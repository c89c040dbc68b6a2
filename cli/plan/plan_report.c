/* The report of 'meopt plan': see plan_report.h. */
#include "cli/language.h"
#include "cli/plan/plan_report.h"
#include "core/data/token_documents.h"
#include "core/run/memory.h"
#include "core/run/units.h"
#include "core/step/trainer.h"

#include <stdio.h>
#include <string.h>

static const double MIB = 1 << 20, GIB = 1 << 30;

/* ---- Text ---- */

/* Returns the seconds of a step at the rate; 0: none is known. */
static double seconds_at_rate(const struct plan_report *r)
{
    return r->gflops > 0 ? plan_step_operations(r->plan) / (r->gflops * 1e9) : 0;
}

double plan_report_step_seconds(const struct plan_report *r)
{
    return r->step_ms > 0 ? r->step_ms * 1e-3 : seconds_at_rate(r);
}

enum { FIELD = 9 }; /* column at which the values begin */

static void print_tower(const char *role, const struct model_shape *shape, int64_t parameters,
                        const char *note)
{
    char text[512];
    model_shape_text(shape, text, sizeof text);
    print_line(FIELD, "%*s  %s: %.2f M parameters%s", PAD(-7, _(role)), text, (double)parameters / 1e6, note);
}

static void print_model(const struct plan_report *r)
{
    const struct plan *p = r->plan;
    char clipping[320];
    for (int i = 0; i < p->teacher_count; i++)
        print_tower(N_("teacher"), &p->teachers[i], model_shape_parameters(&p->teachers[i]), "");
    print_tower(p->has_teacher ? N_("student") : N_("model"), &p->student, p->student_parameters,
                p->student_parameters != model_shape_parameters(&p->student) ? _(" with its head") : "");
    char unit[48];
    const char *samples = _(unit_of(p->student.context > 0)->samples);
    snprintf(unit, sizeof unit, p->student.context ? _("%.*s of %lld tokens") : "%.*s",
             (int)strlen(samples) - (p->batch == 1 && samples[strlen(samples) - 1] == 's'), samples,
             (long long)p->student.context);
    for (int i = 0; i <= TOWER_STUDENT && !p->student.context; i++) {
        bool teacher = i < p->teacher_count, one = i == (p->has_teacher ? 0 : TOWER_STUDENT);
        if (p->two ? teacher || i == TOWER_STUDENT : one)
            print_line(FIELD, "images   %s%s",
                       !p->two   ? ""
                       : teacher ? _("teacher: ")
                                 : _("student: "),
                       p->images[i]);
    }
    print_line(FIELD, "batch    %lld %s per step and rank, micro-batch %lld%s", (long long)p->batch, unit,
               (long long)p->micro,
               p->from_checkpoints ? "" : _("; model shapes from arch, no checkpoint read"));
    char documents[400];
    if (document_facts_text(&r->documents, documents, sizeof documents))
        print_line(FIELD, "data     %s", documents);
    if (p->micro < p->batch) {
        trainer_rounds(p->breadth, p->twice, (p->batch + p->micro - 1) / p->micro, p->wave, clipping,
                       sizeof clipping);
        print_line(FIELD, "rounds   %s", clipping);
    }
    if (p->stages > 1)
        print_line(
            FIELD, "pipeline %d stages, which wait for %.1f %% of a step%s", p->stages, 100 * p->bubble,
            !p->has_teacher                  ? ""
            : r->config->train.cache_teacher ? _("; each has the whole teacher until its outputs are cached")
                                             : _(", and divide the teacher too"));
    if (p->tensor > 1)
        print_line(FIELD,
                   "tensor   %d ranks divide %lld slices of each layer; they have the same micro-batches",
                   p->tensor, (long long)r->config->model_s.slices);
    trainer_clipping(r->config, p->exact, p->twice, clipping, sizeof clipping);
    print_line(FIELD, "clipping %s", clipping);
    if (r->chosen && r->chosen->keys[0])
        print_line(FIELD, "chosen   %s (by train.memory: %s)%s", r->chosen->keys, r->config->train.memory,
                   memory_option_note(r->chosen));
}

/* Prints one line per storage outside of the device's memory, with its classes in MiB. */
static void print_offloaded(const struct memory_use *use)
{
    static const char *const names[PLACE_COUNT] = {
        [PLACE_HOST] = N_("offloaded to host memory"), [PLACE_FILE] = N_("offloaded to scratch files")};
    for (int place = 0; place < PLACE_COUNT; place++) {
        const char *separator = "";
        for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
            if (!use->offloaded_peak_bytes[place][c]) continue;
            if (!*separator) printf("  %s: ", _(names[place]));
            printf("%s%s %.1f", separator, _(memory_class_names[c]),
                   (double)use->offloaded_peak_bytes[place][c] / MIB);
            separator = ", ";
        }
        if (*separator) printf("\n");
    }
}

static void print_memory(const struct plan_report *r)
{
    const struct memory_use *use = &r->plan->use;
    bool host = r->card.assumed || r->config->device.type == DEVICE_TYPE_CPU, largest = r->plan->rank;
    if (host)
        printf(largest ? _("\nhost memory, largest rank MiB\n") : _("\nhost memory of one rank   MiB\n"));
    else printf(largest ? _("\nmemory of largest rank    MiB\n") : _("\nmemory of one rank        MiB\n"));
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        if (c != MEMORY_TEACHER || r->plan->has_teacher || use->peak_bytes[c])
            printf("  %*s %12.1f\n", PAD(-16, _(memory_class_names[c])), (double)use->peak_bytes[c] / MIB);
    printf("  %*s %12.1f\n", PAD(-16, _("peak")), (double)use->peak_total_bytes / MIB);
    print_offloaded(use);
    if (r->plan->knn_bytes && config_eval_has(r->config, TRAIN_EVAL_KNN))
        printf(_("  data holds %.1f MiB for the features of %lld images (train.knn_bank)\n"),
               (double)r->plan->knn_bytes / MIB, (long long)r->config->train.knn_bank);
    if (r->plan->probe_bytes)
        printf(_("  data holds %.1f MiB for a linear probe of %lld classes (train.probe_classes)\n"),
               (double)r->plan->probe_bytes / MIB, (long long)r->config->train.probe_classes);
    if (r->evaluation_bytes) printf(_("meopt eval         %12.1f\n"), (double)r->evaluation_bytes / MIB);
    if (!r->card.bytes) return;
    printf("%s %.1f MiB (%s)", use->peak_total_bytes <= r->card.bytes ? _("fits") : _("DOES NOT FIT"),
           (double)r->card.bytes / MIB, r->card.name);
    if (r->largest_micro >= 0)
        printf(_("; largest micro-batch that fits: %lld"), (long long)r->largest_micro);
    printf("\n");
}

/* Prints the traffic of optim.offload and how long a drive lasts under it. A drive of 1 TB is commonly rated
 * for 600 terabytes written (TBW). */
static void print_offload_traffic(const struct plan_report *r)
{
    const double endurance = 600e12;
    double read = (double)r->plan->offload_read_bytes, written = (double)r->plan->offload_written_bytes;
    double step_s = plan_report_step_seconds(r), written_per_day = step_s > 0 ? written / step_s * 86400 : 0;
    if (written <= 0) return;
    printf(_("offload  %.3f GB read and %.3f GB written per step"), read / 1e9, written / 1e9);
    if (step_s > 0) printf(_(", overlapped at %.3g GB/s in each direction"), written / step_s / 1e9);
    if (r->config->optim.offload != OPTIM_OFFLOAD_NVME) printf("\n");
    else if (step_s > 0)
        printf(_(", %.3g TB written per day: a drive of 600 TBW lasts %.3g days\n"), written_per_day / 1e12,
               endurance / written_per_day);
    else printf(_(": a drive of 600 TBW lasts %.3g steps (for days: --step-ms)\n"), endurance / written);
    if (!device_is_card(device_type_names[r->config->device.type])) return;
    double bf16_gb = 2e-9 * (double)r->plan->student_parameters;
    printf(
        _("         the card computes the update; on the host it would need %.3f GB of gradients and return "
          "%.3f GB of weights\n"),
        bf16_gb, bf16_gb);
}

/* Returns 0 for images, or if the time of a step is unknown. */
static double rank_tokens_per_second(const struct plan_report *r)
{
    double step_s = plan_report_step_seconds(r);
    return step_s > 0 ? (double)(r->plan->batch * r->plan->student.context) / step_s : 0;
}

/* Returns the seconds of a step at the card's peaks; a stage of a pipeline also waits. */
static double predicted_seconds(const struct plan_report *r)
{
    return (r->count.compute_s + r->count.memory_s) / (1 - r->plan->bubble) + r->update_s;
}

static void print_prediction(const struct plan_report *r)
{
    const struct op_count *c = &r->count;
    if (!(c->peaks.bytes_per_s > 0)) {
        print_line(FIELD, "expected no time of a step: the peaks of this card are not known");
        return;
    }
    print_line(FIELD, "expected %.4g ms per step at least: compute %.4g, memory %.4g, update %.4g",
               predicted_seconds(r) * 1e3, c->compute_s * 1e3, c->memory_s * 1e3, r->update_s * 1e3);
    print_line(
        FIELD,
        "assumed  published peaks: %.4g TFLOP/s in bf16, %.4g in fp32, %.4g GB/s; each operation takes the "
        "longer of both; transfers, launches and the host take no time",
        c->peaks.flops / 1e12, c->peaks.flops_f32 / 1e12, c->peaks.bytes_per_s / 1e9);
}

/* Prints which tensors have which rule, if there are several rules. */
static void print_rules(const struct plan *p)
{
    int rules = 0;
    for (int i = 0; i < RULE_COUNT; i++) rules += p->rules[i].tensors > 0;
    for (int i = 0; i < RULE_COUNT && rules > 1; i++)
        if (p->rules[i].tensors)
            print_line(FIELD, _("%-8s %.2f M parameters, %lld tensors: %s"), optim_rules[i].name,
                       (double)p->rules[i].parameters / 1e6, (long long)p->rules[i].tensors,
                       p->rules[i].names);
}

static void print_time(const struct plan_report *r)
{
    const struct plan *p = r->plan;
    printf(_("\ncompute  %.4g TFLOP per step and rank"), p->step_flops / 1e12);
    if (p->first_epoch_step_flops > p->step_flops)
        printf(_(" (%.4g until the teacher's outputs are cached)"), p->first_epoch_step_flops / 1e12);
    if (r->gflops > 0)
        printf(", %.3g s at %.4g GFLOP/s%s", seconds_at_rate(r), r->gflops,
               r->gflops_measured ? _(", the measured peak of GEMM") : "");
    if (r->epoch_hours > 0)
        printf(_("\nepoch    %.3g h: %lld %s"), r->epoch_hours, (long long)r->images,
               _(unit_of(p->student.context > 0)->samples));
    double tokens = rank_tokens_per_second(r);
    if (tokens > 0) printf(_("\nrate     %.4g tokens/s of one rank"), tokens);
    printf(_("\nupdate   %.2f GB of memory traffic per step"), p->update_bytes / 1e9);
    if (p->update_flops > 0)
        printf(_(", and %.4g TFLOP of Newton-Schulz: %.1f %% of a step's operations"), p->update_flops / 1e12,
               100 * plan_update_share(p));
    printf("\n");
    print_rules(p);
    if (r->predicts) print_prediction(r);
    print_offload_traffic(r);
    printf(_("network  %.1f MB sent by each of %d rank%s per step\n"), plan_sent_bytes(p, r->ranks) / 1e6,
           r->ranks, r->ranks == 1 ? "" : "s");
    double streamed = (double)p->streamed_teacher_bytes + (double)p->streamed_student_bytes;
    if (streamed > 0) printf(_("streamed %.2f GB of weights read and written per step\n"), streamed / 1e9);
}

static const char *size_text(char *text, size_t size, int64_t bytes)
{
    bool large = (double)bytes >= GIB / 10;
    snprintf(text, size, large ? "%.2f GiB" : "%.1f MiB", (double)bytes / (large ? GIB : MIB));
    return text;
}

static void print_disk(const struct plan_report *r)
{
    const struct plan *p = r->plan;
    char disk[24], one[24];
    printf(_("disk     %s: %lld checkpoints of %s, and one while it is written"),
           size_text(disk, sizeof disk, r->disk_bytes), (long long)r->config->train.checkpoint_keep,
           size_text(one, sizeof one, p->checkpoint_bytes));
    if (p->cache_bytes_per_image)
        printf(_("; and %lld bytes per image for the cached teacher"), (long long)p->cache_bytes_per_image);
    printf("\n");
}

static void print_published(const struct plan_report *r)
{
    const double *published = r->published_mib, here[2] = {r->baseline_peak / MIB, r->meopt_peak / MIB};
    printf(_("\nat 32 images and one card     without      with MEOpt    ratio\n"));
    printf(_("  published, MB            %9.0f      %9.0f     %.3f\n"), published[0], published[1],
           published[1] / published[0]);
    printf(_("  here, MiB                %9.0f      %9.0f     %.3f\n"), here[0], here[1], here[1] / here[0]);
    printf(_("  here / published             %.3f          %.3f\n"), here[0] / published[0],
           here[1] / published[1]);
}

void plan_report_print(const struct plan_report *r)
{
    print_model(r);
    print_memory(r);
    print_time(r);
    if (r->plan->libraries_assumed)
        print_line(FIELD, "assumed  the card's libraries, because this machine has no driver for it: "
                          "hipBLASLt or cuBLASLt, and for several ranks RCCL or NCCL");
    print_disk(r);
    if (r->scaling.count) scaling_table_print(&r->scaling);
    if (r->advises) scaling_advice_print(&r->advice);
    if (r->grids) plan_grid_print(&r->grid);
    if (r->published) print_published(r);
}

/* ---- JSON ---- */

/* Returns null for a negative number. */
static json_t *count_json(int64_t n) { return n >= 0 ? json_integer((json_int_t)n) : json_null(); }

/* Returns null for a number that is not positive. */
static json_t *positive_json(double x) { return x > 0 ? json_real(x) : json_null(); }

/* Returns where each property comes from. */
static json_t *sources_json(const struct model_shape *shape)
{
    static const char *const sources[] = {"family", "key",     "sidecar", "metadata",
                                          "arch",   "tensors", "assumed"};
    json_t *o = json_object();
    for (enum fact f = 0; f < FACT_VALUES; f++)
        if (shape->facts.from[f] || fact_value(shape, f) > 0)
            json_object_set_new(o, fact_rows[f].name, json_string(sources[shape->facts.from[f]]));
    return o;
}

static json_t *tower_json(const struct model_shape *shape, int64_t parameters)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:b, s:s, s:b, s:I, s:I, s:I, s:o}", "family",
                     family_name(shape->family), "width", (json_int_t)shape->width, "depth",
                     (json_int_t)shape->depth, "heads", (json_int_t)shape->heads, "heads_assumed",
                     fact_assumed(shape, FACT_HEADS), "activation", model_shape_activation(shape),
                     "activation_assumed", fact_assumed(shape, FACT_ACTIVATION), "image_pixels",
                     (json_int_t)shape->image, "out", (json_int_t)shape->out, "parameters",
                     (json_int_t)parameters, "sources", sources_json(shape));
}

static void add_model(json_t *root, const struct plan_report *r)
{
    const struct plan *p = r->plan;
    char clipping[320];
    json_object_set_new(root, "teacher",
                        p->has_teacher ? tower_json(&p->teachers[0], model_shape_parameters(&p->teachers[0]))
                                       : json_null());
    for (int i = 1; i < p->teacher_count; i++)
        json_object_set_new(root, config_tower_name(i),
                            tower_json(&p->teachers[i], model_shape_parameters(&p->teachers[i])));
    json_object_set_new(root, "student", tower_json(&p->student, p->student_parameters));
    json_object_set_new(root, "batch_images", json_integer(p->batch));
    json_object_set_new(root, "micro_batch_images", json_integer(p->micro));
    json_object_set_new(root, "rounds", json_string(p->breadth ? "breadth" : "depth"));
    json_object_set_new(root, "wave", json_integer(p->wave));
    bool tokens = p->student.context > 0;
    if (tokens) json_object_set_new(root, "context_tokens", json_integer(p->student.context));
    json_object_set_new(root, "preprocessing",
                        tokens ? json_null() : json_string(p->images[p->has_teacher ? 0 : TOWER_STUDENT]));
    json_object_set_new(root, "preprocessing_student",
                        tokens ? json_null() : json_string(p->images[TOWER_STUDENT]));
    trainer_clipping(r->config, p->exact, p->twice, clipping, sizeof clipping);
    clipping[strcspn(clipping, ":")] = 0;
    json_object_set_new(root, "clip_mode", config_clips(r->config) ? json_string(clipping) : json_null());
}

static void add_memory(json_t *root, const struct plan_report *r)
{
    const struct memory_use *use = &r->plan->use;
    bool known = r->card.bytes > 0;
    json_t *classes = json_object();
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        json_object_set_new(classes, memory_class_names[c], json_integer((json_int_t)use->peak_bytes[c]));
    json_object_set_new(root, "peak_bytes", json_integer((json_int_t)use->peak_total_bytes));
    json_object_set_new(root, "classes", classes);
    json_object_set_new(root, "evaluation_bytes",
                        r->evaluation_bytes ? json_integer((json_int_t)r->evaluation_bytes) : json_null());
    json_object_set_new(root, "host_classes", memory_offloaded_json(use, PLACE_HOST));
    json_object_set_new(root, "file_classes", memory_offloaded_json(use, PLACE_FILE));
    json_object_set_new(root, "card_bytes", known ? json_integer((json_int_t)r->card.bytes) : json_null());
    json_object_set_new(root, "fits",
                        known ? json_boolean(use->peak_total_bytes <= r->card.bytes) : json_null());
    json_object_set_new(root, "largest_micro_batch_images", count_json(r->largest_micro));
}

static json_t *prediction_json(const struct plan_report *r)
{
    const struct op_count *c = &r->count;
    if (!r->predicts || !(c->peaks.bytes_per_s > 0)) return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "step_s", predicted_seconds(r),
                     "compute_s", c->compute_s, "memory_s", c->memory_s, "update_s", r->update_s, "flops",
                     c->flops, "bytes", c->bytes, "peak_flops", c->peaks.flops, "peak_flops_f32",
                     c->peaks.flops_f32, "peak_bytes_per_s", c->peaks.bytes_per_s);
}

static void add_time(json_t *root, const struct plan_report *r)
{
    const struct plan *p = r->plan;
    json_object_set_new(root, "step_flops", json_real(p->step_flops));
    json_object_set_new(root, "step_s", r->gflops > 0 ? json_real(seconds_at_rate(r)) : json_null());
    if (p->student.context)
        json_object_set_new(root, "tokens_per_s", positive_json(rank_tokens_per_second(r)));
    json_object_set_new(root, "predicted", prediction_json(r));
    json_object_set_new(root, "update_bytes", json_real(p->update_bytes));
    json_object_set_new(root, "update_flops", json_real(p->update_flops));
    json_object_set_new(root, "update_share", json_real(plan_update_share(p)));
    json_t *rules = json_object();
    for (int i = 0; i < RULE_COUNT; i++)
        if (p->rules[i].tensors)
            json_object_set_new(rules, optim_rules[i].name,
                                json_pack("{s:I, s:I, s:s}", "tensors", (json_int_t)p->rules[i].tensors,
                                          "parameters", (json_int_t)p->rules[i].parameters, "names",
                                          p->rules[i].names));
    json_object_set_new(root, "rules", rules);
    json_object_set_new(root, "streamed_bytes_per_step",
                        json_integer(p->streamed_teacher_bytes + p->streamed_student_bytes));
    json_object_set_new(root, "offload_read_bytes_per_step", json_integer(p->offload_read_bytes));
    json_object_set_new(root, "offload_written_bytes_per_step", json_integer(p->offload_written_bytes));
    json_object_set_new(root, "ranks", json_integer(r->ranks));
    json_object_set_new(root, "rank", json_integer(p->rank));
    json_object_set_new(root, "stages", json_integer(p->stages));
    json_object_set_new(root, "tensor", json_integer(p->tensor));
    json_object_set_new(root, "bubble", json_real(p->bubble));
    json_object_set_new(root, "libraries_assumed", json_boolean(p->libraries_assumed));
    json_object_set_new(root, "sent_bytes_per_step", json_real(plan_sent_bytes(p, r->ranks)));
    json_object_set_new(root, "scaling", r->scaling.count ? scaling_table_json(&r->scaling) : json_null());
    json_object_set_new(root, "advice", r->advises ? scaling_advice_json(&r->advice) : json_null());
    json_object_set_new(root, "grid", r->grids ? plan_grid_json(&r->grid) : json_null());
}

json_t *plan_report_json(const struct plan_report *r)
{
    const struct plan *p = r->plan;
    json_t *root = json_object();
    add_model(root, r);
    add_memory(root, r);
    add_time(root, r);
    json_object_set_new(root, "checkpoint_bytes", json_integer(p->checkpoint_bytes));
    json_object_set_new(root, "knn_bytes", json_integer(r->plan->knn_bytes));
    json_object_set_new(root, "probe_bytes", json_integer(r->plan->probe_bytes));
    json_object_set_new(root, "cache_bytes_per_image", json_integer(p->cache_bytes_per_image));
    json_object_set_new(root, "disk_bytes", json_integer(r->disk_bytes));
    if (r->published)
        json_object_set_new(root, "published",
                            json_pack("{s:f, s:f, s:f, s:f}", "without_mib", r->published_mib[0], "with_mib",
                                      r->published_mib[1], "here_without_mib", r->baseline_peak / MIB,
                                      "here_with_mib", r->meopt_peak / MIB));
    if (r->explanation) plan_memory_explain_json(root, r->explanation, r->explained);
    json_object_set_new(root, "images", count_json(r->images));
    json_object_set_new(root, "documents", document_facts_json(r->documents.samples ? &r->documents : NULL));
    json_object_set_new(root, "epoch_hours", positive_json(r->epoch_hours));
    if (r->memory) json_object_set_new(root, "fit", plan_memory_fit_json(r->memory));
    return root;
}
