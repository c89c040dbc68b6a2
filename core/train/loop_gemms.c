/* gemm.json: the algorithms of a run's GEMMs, see loop_internal.h and meopt-run(5).
 *
 *     {"card": "NVIDIA H100 80GB HBM3", "library": "cublasLt 130100", "gemms": [
 *         {"m": 2048, "n": 768, "k": 768, "ld": [768, 768, 768], "aligned": [16, 16, 16, 16],
 *          "transpose": [false, true], "in": "BF16", "out": "BF16", "bias": true,
 *          "algorithm": "0a00...", "first_ms": 0.05, "ms": 0.04}, ...]}
 */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/train/loop_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "gemm.json";
enum { FILE_BYTES = 1 << 20 };

static json_t *choice_json(const struct gemm_choice *c, int algorithm_bytes)
{
    const struct gemm_key *k = &c->key;
    char hex[2 * GEMM_ALGORITHM_BYTES + 1] = "";
    for (int i = 0; i < algorithm_bytes; i++) snprintf(hex + 2 * i, 3, "%02x", c->algorithm[i]);
    return json_pack(
        "{s:I, s:I, s:I, s:[I, I, I], s:[i, i, i, i], s:[b, b], s:s, s:s, s:b, s:s, s:f, s:f}", "m",
        (json_int_t)k->m, "n", (json_int_t)k->n, "k", (json_int_t)k->k, "ld", (json_int_t)k->lda,
        (json_int_t)k->ldb, (json_int_t)k->ldc, "aligned", (int)k->aligned[0], (int)k->aligned[1],
        (int)k->aligned[2], (int)k->aligned[3], "transpose", k->transpose_a, k->transpose_b, "in",
        dtype_name(k->in16 ? DTYPE_BF16 : DTYPE_F32), "out", dtype_name(k->out16 ? DTYPE_BF16 : DTYPE_F32),
        "bias", k->bias, "algorithm", hex, "first_ms", c->first_ms, "ms", c->ms);
}

static int write_choices(const struct train_loop *w, struct error *err)
{
    const struct gemm_choices *g = w->gemms;
    json_t *list = json_array(),
           *root = json_pack("{s:s, s:s, s:o}", "card", g->card, "library", g->library, "gemms", list);
    for (int i = 0; i < g->count; i++)
        json_array_append_new(list, choice_json(&g->list[i], g->algorithm_bytes));
    int code = json_write_below(w->run->directory, name, root, JSON_INDENT(1) | JSON_PRESERVE_ORDER, err);
    json_decref(root);
    return code;
}

static bool is_type(const char *text, uint8_t *bf16)
{
    *bf16 = strcmp(text, dtype_name(DTYPE_BF16)) == 0;
    return *bf16 || strcmp(text, dtype_name(DTYPE_F32)) == 0;
}

static bool read_choice(struct gemm_choice *c, json_t *object, int algorithm_bytes)
{
    json_int_t m, n, k, ld[3];
    int aligned[4], transpose[2], bias;
    const char *in, *out, *hex;
    memset(c, 0, sizeof *c);
    if (json_unpack(object, "{s:I, s:I, s:I, s:[I, I, I], s:[i, i, i, i], s:[b, b], s:s, s:s, s:b, s:s}", "m",
                    &m, "n", &n, "k", &k, "ld", &ld[0], &ld[1], &ld[2], "aligned", &aligned[0], &aligned[1],
                    &aligned[2], &aligned[3], "transpose", &transpose[0], &transpose[1], "in", &in, "out",
                    &out, "bias", &bias, "algorithm", &hex) != 0)
        return false;
    c->key = (struct gemm_key){.m = m, .n = n, .k = k, .lda = ld[0], .ldb = ld[1], .ldc = ld[2]};
    for (int i = 0; i < 4; i++) c->key.aligned[i] = (uint32_t)aligned[i];
    c->key.transpose_a = transpose[0] != 0, c->key.transpose_b = transpose[1] != 0, c->key.bias = bias != 0;
    bool right = is_type(in, &c->key.in16) && is_type(out, &c->key.out16) &&
                 strlen(hex) == 2 * (size_t)algorithm_bytes;
    for (int i = 0; right && i < algorithm_bytes; i++) {
        unsigned byte;
        right = sscanf(hex + 2 * i, "%2x", &byte) == 1;
        c->algorithm[i] = (uint8_t)byte;
    }
    return right;
}

/* Reads the choices of the run's file. *found: there are some for this card and library; if not, it is
 * reported. A file that cannot be read now is an error: new choices would replace it. */
static int read_choices(const struct train_loop *w, struct gemm_choices *g, bool *found, struct error *err)
{
    char *text;
    size_t bytes;
    int code = file_read_below(w->run->directory, name, FILE_BYTES, &text, &bytes, err);
    if (code) return code;
    json_t *root = json_parse(text, bytes, 0, NULL), *list;
    free(text);
    const char *card = "", *library = "";
    bool right =
        root &&
        json_unpack(root, "{s:s, s:s, s:o}", "card", &card, "library", &library, "gemms", &list) == 0 &&
        json_is_array(list) && json_array_size(list) <= GEMM_CHOICES;
    bool same = right && strcmp(card, g->card) == 0 && strcmp(library, g->library) == 0;
    for (size_t i = 0; same && right && i < json_array_size(list); i++)
        right = read_choice(&g->list[g->count++], json_array_get(list, i), g->algorithm_bytes);
    if (right && !same)
        log_warn("%s is of %s on %s, and this is %s on %s: algorithms of GEMMs are tried again, results may "
                 "be rounded "
                 "differently",
                 name, library, card, g->library, g->card);
    else if (!right)
        log_warn("%s cannot be read: algorithms of GEMMs are tried again, results may be rounded differently",
                 name);
    json_decref(root);
    if (!right || !same) g->count = 0;
    *found = right && same;
    return 0;
}

/* Sends rank 0's choices to all ranks, which use them. A rank without such a library takes part. */
static int use_choices(struct train_loop *w, struct error *err)
{
    int code = comm_broadcast(&w->t->ranks, w->gemms, sizeof *w->gemms, 0, err);
    if (!code && w->gemms->count) device_gemm_use(w->t->device, w->gemms);
    return code;
}

int loop_gemms_begin(struct train_loop *w, struct error *err)
{
    enum { FIRST, TRY, STORED } mode = FIRST; /* of the library, tried, or those of the file */
    struct error own = {0};
    int code = 0;
    w->gemms = xcalloc(1, sizeof *w->gemms);
    if (is_rank0(w) && device_gemm_choices(w->t->device, w->gemms)) {
        const char *wanted = getenv("MEOPT_GEMM_TRIALS");
        bool absent = file_absent_below(w->run->directory, name), /* a resume then repeats the first ones */
            found = false;
        if (!absent) code = read_choices(w, w->gemms, &found, &own);
        if (found) mode = STORED;
        else if ((!absent || w->from == 0) && !(wanted && strcmp(wanted, "none") == 0)) mode = TRY;
    }
    code = comm_agree(&w->t->ranks, code, &own, "cannot read the algorithms of GEMMs", err);
    if (!code) code = comm_broadcast(&w->t->ranks, &mode, sizeof mode, 0, err);
    if (code) return code;
    w->try_gemms = mode == TRY;
    if (w->try_gemms && is_rank0(w)) device_gemm_try(w->t->device, true);
    /* the first step of a run is always computed by the first algorithms */
    if (mode == TRY || (mode == STORED && w->from == 0)) return 0;
    if (mode == STORED) code = use_choices(w, err);
    free(w->gemms);
    w->gemms = NULL;
    return code;
}

static void report_gain(const struct gemm_choices *g)
{
    double first = 0, ms = 0;
    int other = 0;
    for (int i = 0; i < g->count; i++) {
        first += g->list[i].first_ms, ms += g->list[i].ms;
        other += g->list[i].ms < g->list[i].first_ms;
    }
    if (other)
        log_info(
            "GEMM: %d of %d shapes use another algorithm than the first one of %s, in %.0f %% of its time",
            other, g->count, g->library, 100 * ms / first);
}

int loop_gemms_stepped(struct train_loop *w, struct error *err)
{
    struct error why = {0};
    if (!w->gemms) return 0;
    if (w->try_gemms && is_rank0(w)) {
        device_gemm_try(w->t->device, false);
        device_gemm_found(w->t->device, w->gemms);
        if (w->gemms->count && write_choices(w, &why)) {
            log_warn(
                "%s: %s; a resume would choose algorithms of GEMMs again, so this run keeps the first ones",
                name, why.what);
            w->gemms->count = 0;
        } else report_gain(w->gemms);
    }
    int code = use_choices(w, err);
    free(w->gemms);
    w->gemms = NULL;
    return code;
}
