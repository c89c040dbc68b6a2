/* Lines of metrics.jsonl: see metrics.h. */
#include "core/train/metrics.h"
#include "core/base/memory.h"
#include "core/run/many_ranks.h"
#include "core/run/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *card_json(const struct card_report *report, int rank)
{
    json_t *card = memory_json(&report->use);
    json_object_set_new(card, "rank", json_integer(rank));
    json_object_set_new(card, "device", json_string(report->name));
    json_object_set_new(card, "images_per_s", json_real(report->images_per_s));
    struct comm_place at = comm_place_of(report->layout, rank);
    if (report->layout.tensor > 1) json_object_set_new(card, "tensor", json_integer(at.tensor));
    if (report->layout.stages > 1) json_object_set_new(card, "stage", json_integer(at.stage));
    if (comm_layout_ranks(report->layout) > 1) json_object_set_new(card, "replica", json_integer(at.replica));
    if (report->layout.stages > 1) json_object_set_new(card, "bubble", json_real(report->bubble));
    json_object_set_new(card, "busy_percent", json_null());
    json_object_set_new(card, "temp_c", json_null());
    json_object_set_new(card, "power_w", json_null());
    return card;
}

/* Returns a measure of a rank. */
static double measure(const struct card_report *report, int number)
{
    const double values[] = {(double)report->use.current_total_bytes, (double)report->use.peak_total_bytes,
                             report->images_per_s, report->bubble};
    return values[number];
}

json_t *metrics_cards_json(const struct card_report *reports, int size)
{
    static const struct {
        const char *key;
        int worst; /* 1: the largest values are listed, -1: the smallest ones */
    } measures[] = {{"mem_bytes", 1}, {"peak_bytes", 1}, {"images_per_s", -1}, {"bubble", 1}};
    bool pipeline = reports[0].layout.stages > 1;
    double bubble = 0;
    json_t *fields = json_object(), *list = json_array(), *summary = json_pack("{s:i}", "ranks", size);
    bool *listed = xcalloc((size_t)size, sizeof *listed);
    double *values = xcalloc((size_t)size, sizeof *values);
    many_ranks_begin(listed, size);
    for (int m = 0; m < (pipeline ? 4 : 3) && size > RANKS_LISTED; m++) {
        for (int r = 0; r < size; r++) values[r] = measure(&reports[r], m);
        many_ranks_mark(listed, values, size, measures[m].worst);
        json_object_set_new(summary, measures[m].key, many_ranks_range(values, size));
    }
    for (int r = 0; r < size; r++)
        if (listed[r]) json_array_append_new(list, card_json(&reports[r], r));
    for (int r = 0; r < size; r++) bubble += reports[r].bubble / size;
    if (pipeline) json_object_set_new(fields, "bubble", json_real(bubble));
    json_object_set_new(fields, "cards", list);
    if (size > RANKS_LISTED) json_object_set(fields, "cards_summary", summary);
    json_decref(summary);
    free(listed);
    free(values);
    return fields;
}

int metrics_cards(struct trainer *t, struct train_progress *p, json_t **cards, struct error *err)
{
    struct comm *ranks = &t->ranks;
    struct card_report *reports = xcalloc((size_t)ranks->size, sizeof *reports);
    reports[ranks->rank].use = t->device->use;
    reports[ranks->rank].images_per_s = p->images_per_s * (double)t->batch / (double)t->images;
    reports[ranks->rank].layout = ranks->layout;
    reports[ranks->rank].bubble =
        ranks->layout.stages > 1 && p->stepped_ms > 0 ? p->waited_ms / p->stepped_ms : 0;
    p->waited_ms = p->stepped_ms = 0;
    memcpy(reports[ranks->rank].name, t->device->name, sizeof reports->name);
    int code = comm_gather_each(ranks, reports, sizeof *reports, err);
    *cards = code ? NULL : metrics_cards_json(reports, ranks->size);
    p->peak_rank = 0;
    for (int r = 0; r < ranks->size && *cards; r++)
        if (reports[r].use.peak_total_bytes > reports[p->peak_rank].use.peak_total_bytes) p->peak_rank = r;
    p->peak = reports[p->peak_rank].use;
    free(reports);
    return code;
}

/* null: a step without labels. */
static json_t *real_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

int metrics_write(struct run *run, const struct train_progress *p, json_t *cards, struct error *err)
{
    json_t *line = json_pack("{s:I, s:I, s:o}", "step", (json_int_t)p->step, "epoch", (json_int_t)p->epoch,
                             "loss", real_or_null(p->loss));
    for (int i = 0; i < OBJECTIVE_METRICS && p->metrics[i].name; i++)
        json_object_set_new(line, p->metrics[i].name, real_or_null(p->metrics[i].value));
    for (int i = 0; i < EVALUATION_METRICS && p->evaluation[i].name; i++)
        json_object_set_new(line, p->evaluation[i].name, json_real(p->evaluation[i].value));
    json_t *more =
        json_pack("{s:f, s:f, s:f, s:f, s:f}", "lr", p->lr, "grad_norm", p->grad_norm, "images_per_s",
                  p->images_per_s, "step_ms", p->step_ms, "data_wait_ms", p->data_wait_ms);
    json_object_update(line, more);
    if (p->tokens_per_s > 0) json_object_set_new(line, "tokens_per_s", json_real(p->tokens_per_s));
    if (p->mfu > 0) json_object_set_new(line, "mfu", json_real(p->mfu));
    json_decref(more);
    if (p->offload_wait_ms >= 0) json_object_set_new(line, "offload_wait_ms", json_real(p->offload_wait_ms));
    if (p->stream_wait_ms >= 0) json_object_set_new(line, "stream_wait_ms", json_real(p->stream_wait_ms));
    if (p->wide_groups) json_object_set_new(line, "wide_groups", json_integer((json_int_t)p->wide_groups));
    json_object_update(line, cards);
    json_decref(cards);
    return run_metric(run, line, err);
}
