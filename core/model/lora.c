/* The modules and parameters of adapters: see lora.h. */
#include "core/model/lora.h"
#include "core/base/memory.h"
#include "core/model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const enum role matrices[] = {ROLE_QKV_W, ROLE_PROJ_W, ROLE_FC1_W, ROLE_FC2_W};

static int add(struct lora_module *modules, int count, const char *name, enum role role, int64_t first,
               int64_t out, int64_t in)
{
    struct lora_module *m = &modules[count];
    *m = (struct lora_module){.role = (int)role, .first = first, .out = out, .in = in};
    snprintf(m->name, sizeof m->name, "%s", name);
    return count + 1;
}

int lora_modules(const struct model_shape *g, struct lora_module modules[LORA_MODULES])
{
    const struct family_row *row = family_row(g->family);
    bool gated = g->ffn == 1 + ACTIVATION_SWIGLU;
    int64_t D = g->width, F = g->hidden, Q = model_shape_attn_width(g), all = model_shape_qkv_width(g);
    int64_t rows[][3] = {{Q, (all - Q) / 2, (all - Q) / 2}, {D}, {F, gated ? F : 0}, {D}};
    int64_t in[] = {D, Q, D, F};
    int count = 0;
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        const char *const *parts = i == 0 ? row->lora_qkv : i == 2 && gated ? row->lora_gated : NULL;
        const char *key = family_key(row, matrices[i], g->ffn);
        int64_t first = 0;
        for (int k = 0; k < (i == 0 ? 3 : 2) && parts && parts[0]; first += rows[i][k++])
            count = add(modules, count, parts[k], matrices[i], first, rows[i][k], in[i]);
        if ((parts && parts[0]) || !key) continue;
        char name[48];
        size_t length = strlen(key), end = strlen(".weight");
        bool module = length > end && strcmp(key + length - end, ".weight") == 0;
        if (!module) continue; /* not a linear layer of its own in the library: attn.in_proj_weight */
        snprintf(name, sizeof name, "%.*s", (int)(length - end), key);
        count = add(modules, count, name, matrices[i], 0, rows[i][0] + rows[i][1] + rows[i][2], in[i]);
    }
    return count;
}

/* The name is `target`, or ends in a dot and it. */
static bool fits(const char *name, const char *target, size_t length)
{
    size_t n = strlen(name);
    return n >= length && memcmp(name + n - length, target, length) == 0 &&
           (n == length || name[n - length - 1] == '.');
}

int lora_targets(const struct model_shape *g, const char *text, unsigned *targets, struct error *err)
{
    struct lora_module modules[LORA_MODULES];
    int count = lora_modules(g, modules);
    *targets = 0;
    for (const char *p = text; *p;) {
        p += strspn(p, ", ");
        size_t length = strcspn(p, ", ");
        if (!length) continue;
        unsigned found = 0;
        bool all = length == strlen("all-linear") && strncmp(p, "all-linear", length) == 0;
        for (int i = 0; i < count; i++)
            if (all || fits(modules[i].name, p, length)) found |= 1u << i;
        if (!found) {
            char names[400];
            lora_target_names(g, ~0u, names, sizeof names);
            return error_set(err, EXIT_CONFIG, "choose among these, or all-linear",
                             "lora.targets: %.*s is no matrix of a %s block, which has %s",
                             length < 60 ? (int)length : 60, p, family_name(g->family), names);
        }
        *targets |= found;
        p += length;
    }
    return *targets ? 0
                    : error_set(err, EXIT_CONFIG, "all-linear, or for example q_proj,v_proj",
                                "lora.targets is empty");
}

void lora_target_names(const struct model_shape *g, unsigned targets, char *text, size_t size)
{
    struct lora_module modules[LORA_MODULES];
    int count = lora_modules(g, modules);
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < count; i++) {
        const char *dot = strrchr(modules[i].name, '.'),
                   *name = dot && g->vocabulary ? dot + 1 : modules[i].name;
        for (int k = 0; k < count; k++)
            if (k != i && fits(modules[k].name, name, strlen(name))) name = modules[i].name;
        if (!(targets & 1u << i) || at >= size) continue;
        int n = snprintf(text + at, size - at, "%s%s", at ? "," : "", name);
        if (n > 0) at += (size_t)n;
    }
}

static struct parameter adapter(const struct lora_module *m, const char *prefix, int group, const char *end,
                                int64_t rows, int64_t columns, bool resident)
{
    struct parameter p = {.slice = -1,
                          .slices = 1,
                          .ndim = 2,
                          .shape = {rows, columns},
                          .count = rows * columns,
                          .role = m->role,
                          .group = group,
                          .matrix = true,
                          .trained = true,
                          .resident = resident,
                          .decay = rows > 1 && columns > 1,
                          .hidden = rows > 1 && columns > 1,
                          .adapter = true,
                          .first = m->first};
    snprintf(p.name, sizeof p.name, "%.28s%.36s.%.6s.weight", prefix, m->name, end);
    return p;
}

int lora_parameters(const struct model_shape *g, const struct lora_options *o, struct parameter **list,
                    int count)
{
    struct lora_module modules[LORA_MODULES];
    int modules_count = lora_modules(g, modules), done = 0;
    size_t most = (size_t)count + (size_t)g->depth * 2 * LORA_MODULES;
    struct parameter *all = xcalloc(most, sizeof *all);
    for (int i = 0; i < count; i++) {
        const struct parameter *p = &(*list)[i];
        all[done++] = *p;
        if (p->group < 1 || p->group > g->depth || (i + 1 < count && p[1].group == p->group)) continue;
        char prefix[48];
        snprintf(prefix, sizeof prefix, "%s%d.", family_row(g->family)->block_prefix, p->group - 1);
        for (int k = 0; k < modules_count; k++) {
            const struct lora_module *m = &modules[k];
            if (!(o->targets & 1u << k)) continue;
            all[done++] = adapter(m, prefix, p->group, "lora_A", o->rank, m->in, o->resident);
            all[done - 1].initial = INITIAL_UNIFORM;
            all[done++] = adapter(m, prefix, p->group, "lora_B", m->out, o->rank, o->resident);
            all[done - 1].initial = INITIAL_ZERO;
        }
    }
    free(*list);
    *list = all;
    return done;
}
