/* Roofline of operations: see op_count.h. */
#include "core/plan/op_count.h"

struct work {
    double flops, bytes;
    enum dtype type; /* of the flops */
};

static _Thread_local struct op_count *now;
static _Thread_local int depth; /* an operation may call others, which are a part of it */

static double size(enum dtype t) { return (double)dtype_bytes(t); }
static double area(int64_t a, int64_t b) { return (double)a * (double)b; }
static struct work moved(double bytes) { return (struct work){.bytes = bytes}; }

/* ---- one function per row of OPERATIONS ---- */

static struct work of_gemm(const struct gemm *o)
{
    double in = size(o->ab_type), out = size(o->c_type) * (o->beta != 0 ? 2 : 1);
    return (struct work){2 * area(o->m, o->n) * (double)o->k,
                         in * (area(o->m, o->k) + area(o->k, o->n)) + out * area(o->m, o->n), o->ab_type};
}
static struct work of_patchify(enum dtype t, const float *images, void *patches, int64_t B, int64_t S,
                               int64_t p)
{
    (void)images, (void)patches, (void)p;
    return moved(3 * (double)B * area(S, S) * (4 + size(t)));
}
static struct work of_embed_forward(const struct embedding *o)
{
    return moved((double)o->B * area(o->N, o->D) * (size(o->type) + 4));
}
static struct work of_embed_backward(const struct embedding_gradient *o)
{
    return moved((double)o->B * area(o->N, o->D) * (size(o->type) + 4));
}
static struct work of_resize_rows(const float *w, const float *in, float *out, int64_t n_out, int64_t n_in,
                                  int64_t D, bool transpose)
{
    (void)w, (void)in, (void)out, (void)transpose;
    return moved(4 * area(n_out + n_in, D));
}
static struct work of_layernorm_forward(const struct layernorm *o)
{
    return moved(area(o->R, o->D) * (size(o->x_type) + size(o->type) + (o->hat ? size(o->hat_type) : 0)));
}
static struct work of_layernorm_apply(const struct layernorm *o)
{
    return moved(area(o->R, o->D) * (size(o->hat ? o->hat_type : o->x_type) + size(o->type)));
}
static struct work of_branch_gradient(const struct branch_gradient *o)
{
    return moved(area(o->R, o->D) * (4 + size(o->type) * ((o->plain != NULL) + (o->scaled && o->gamma))));
}
static struct work of_layernorm_backward(const struct layernorm_gradient *o)
{
    double each = size(o->type) + size(o->x_type) + (o->to ? size(o->type) : 8),
           then = o->then ? of_branch_gradient(o->then).bytes - 4 * area(o->then->R, o->then->D) : 0;
    return moved(area(o->R, o->D) * each + then);
}

/* Pairs of queries and keys: all, with causal half of them, with a window at most its length per query, with
 * lists those of their blocks. */
static double pairs(const struct attention *o)
{
    double n = (double)o->N, seen = o->causal ? (n + 1) / 2 : n, window = (double)o->window;
    if (o->block) return (double)o->B * area(o->listed, o->block) * (double)o->block;
    return (double)o->B * (double)o->H * (double)(o->N - o->first) *
           (o->window > 0 && window < seen ? window : seen);
}
static double heads_bytes(const struct attention *o, int64_t heads)
{
    return size(o->type) * (double)o->B * area(o->N, heads) * (double)o->dh;
}
static struct work of_attention_forward(const struct attention *o)
{
    return (struct work){4 * pairs(o) * (double)o->dh, heads_bytes(o, 2 * o->H + 2 * o->G), o->type};
}
static struct work of_attention_backward(const struct attention_gradient *o)
{
    const struct attention *f = &o->forward; /* five GEMMs, where forward has two */
    return (struct work){10 * pairs(f) * (double)f->dh, heads_bytes(f, 4 * f->H + 4 * f->G), f->type};
}
static struct work of_rotate(const struct rotation *o)
{
    return moved(2 * size(o->type) * (double)o->B * area(o->N, o->H + o->G) * (double)o->dh);
}
static struct work of_row_mean_forward(const struct row_mean *o)
{
    return moved(size(o->type) * (double)o->B * area(o->N, o->D));
}
static struct work of_row_mean_backward(const struct row_mean_gradient *o)
{
    return moved(8 * (double)o->B * area(o->N, o->D));
}
static struct work of_activation_forward(const struct activation_value *o)
{
    return moved(size(o->type) * area(o->R, o->F) * (o->kind == ACTIVATION_SWIGLU ? 3 : 2));
}
static struct work of_activation_backward(const struct activation_gradient *o)
{
    double each = (o->kind == ACTIVATION_SWIGLU ? 5 : 3) + (o->act != NULL);
    return moved(size(o->type) * area(o->R, o->F) * each);
}
static struct work of_residual_forward(const struct residual *o)
{
    double each = size(o->type) + (o->x ? 4 : 0) + (o->y ? 4 : 0);
    if (o->second) each += size(o->second->from.type) + size(o->type);
    return moved(area(o->R, o->D) * each);
}
static struct work of_column_sums(enum dtype t, const void *x, float *sums, int64_t R, int64_t D)
{
    (void)x, (void)sums;
    return moved(size(t) * area(R, D));
}
static struct work of_layerscale_backward(const struct layerscale_gradient *o)
{
    return moved(area(o->D, o->K) * (size(o->weight_type) + 2 * size(o->gradient_type)));
}
static struct work of_encode(const struct coded *o) { return moved(area(o->R, o->D) * (size(o->type) + 1)); }
static struct work of_decode(const struct coded *o) { return of_encode(o); }
static struct work of_distill_loss(const struct distillation *o)
{
    return moved(4 * area(o->R, o->D) * (o->dy ? 3 : 2));
}
static struct work of_cross_entropy(const struct cross_entropy *o)
{
    return moved(4 * area(o->R, o->C) * (o->dlogits ? 2 : 1));
}
static struct work of_head_norm(const struct head_norm *o)
{
    return moved(2 * size(o->type) * area(o->R, o->H + 2 * o->G) * (double)o->dh);
}
static struct work of_head_norm_gradient(const struct head_norm_gradient *o)
{
    return moved(3 * size(o->type) * area(o->R, o->H + o->G) * (double)o->dh);
}
static struct work of_token_embed(const struct token_embedding *o)
{
    return moved(area(o->R, o->D) * (size(o->type) + 4));
}
static struct work of_token_embed_gradient(const struct token_embedding_gradient *o)
{
    double table = o->dtable ? area(o->rows, o->D) * size(o->type) * (o->add ? 2 : 1) : 0;
    return moved(4 * area(o->R, o->D) + table);
}
static struct work of_logit_sums(const struct logit_sums *o) { return moved(4 * area(o->R, o->C)); }
static struct work of_logit_merge(const struct logit_merge *o)
{
    return moved(area(o->R, o->S + 1) * LOGIT_STATE * sizeof(double));
}
static struct work of_logit_gradient(const struct logit_gradient *o)
{
    return moved(area(o->R, o->C) * (4 + size(o->type)));
}
static struct work of_cast(const void *src, enum dtype src_type, void *dst, enum dtype dst_type, int64_t n)
{
    (void)src, (void)dst;
    return moved((double)n * (size(src_type) + size(dst_type)));
}
static struct work of_fill(void *p, int byte, size_t bytes)
{
    (void)p, (void)byte;
    return moved((double)bytes);
}
static struct work of_copy(void *dst, const void *src, size_t bytes)
{
    (void)dst, (void)src;
    return moved(2 * (double)bytes);
}
static struct work of_sum_squares(const void *x, enum dtype t, int64_t n, double *sum, int *finite)
{
    (void)x, (void)sum, (void)finite;
    return moved((double)n * size(t));
}

/* ---- counting ---- */

static void add(struct work w)
{
    double peak = w.type == DTYPE_BF16 ? now->peaks.flops : now->peaks.flops_f32, compute = w.flops / peak,
           memory = w.bytes / now->peaks.bytes_per_s;
    now->calls++;
    now->flops += w.flops, now->bytes += w.bytes;
    if (compute > memory) now->compute_s += compute;
    else now->memory_s += memory;
}

#define COUNTED(name, kind, parameters, arguments, ...)                                                      \
    static void count_##name(struct device *dev, OPERATION_LIST parameters)                                  \
    {                                                                                                        \
        if (!depth++) add(of_##name(OPERATION_LIST arguments));                                              \
        now->inner->name(dev, OPERATION_LIST arguments);                                                     \
        depth--;                                                                                             \
    }
OPERATIONS(COUNTED)

static int supports(const struct device *dev, const struct operation_shape *shape, struct error *err)
{
    return now->inner->supports(dev, shape, err);
}

#define ROW(name, ...) .name = count_##name,
static const struct device_ops counting = {.supports = supports, OPERATIONS(ROW)};

void op_count_begin(struct op_count *c, struct device *dev)
{
    *c = (struct op_count){.peaks = c->peaks, .inner = dev->ops};
    now = c;
    dev->ops = &counting;
}

void op_count_end(struct op_count *c, struct device *dev)
{
    dev->ops = c->inner;
    now = NULL;
}
