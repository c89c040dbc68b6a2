/* The sidecar config of a checkpoint: the input is an open_clip_config.json and a config.json, of a tower or
 * of a language model. Every value read from it is printable and in range, or the file is refused with a
 * message. */
#include "core/model/language_config.h"
#include "core/model/sidecar.h"
#include "tests/fuzz/weights_directory.h"

#include <string.h>

static void check_text(const char *text, size_t size)
{
    if (!memchr(text, 0, size)) abort();
    for (; *text; text++)
        if ((unsigned char)*text < 0x20) abort();
}

static void check(const char *path, int64_t width)
{
    struct sidecar b;
    struct error err = {0};
    struct model_shape tower = {.width = width};
    int code = sidecar_read(&b, path, &tower, &err);
    if (code != 0 && (code != EXIT_CONFIG || !err.what[0])) abort();
    if (code) return;
    check_text(b.activation, sizeof b.activation);
    check_text(b.pool, sizeof b.pool);
    check_text(b.odd, sizeof b.odd);
    if (!b.name && (b.says.heads || b.says.ffn || b.says.norms || b.odd[0] || b.says.pos_resize)) abort();
}

static void check_language(const char *path)
{
    struct language_config c;
    struct error err = {0};
    int code = language_config_read(&c, path, &err);
    if (code != 0 && (code != EXIT_CONFIG || !err.what[0])) abort();
    check_text(err.what, sizeof err.what);
    check_text(c.type, sizeof c.type);
    const struct model_shape *g = &c.says;
    if (code || !g->family) return;
    const int64_t sizes[] = {g->width, g->depth,    g->hidden,   g->vocabulary, g->positions,
                             g->heads, g->kv_heads, g->head_dim, g->window};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 0 || sizes[i] > INT32_MAX) abort();
    if (!g->ffn || !(g->norm_eps > 0) || g->rope.scaling > ROPE_YARN) abort();
    if (g->family == FAMILY_LLAMA && !(g->rope.theta > 0)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"open_clip_config.json", "config.json"};
    static const int64_t widths[] = {16, 384, 768, 1024, 1280, -1};
    make_directory();
    for (int i = 0; i < 2; i++) {
        char other[128];
        snprintf(other, sizeof other, "%s/%s", fuzz_directory, names[1 - i]);
        unlink(other);
        put_file(names[i], data, bytes);
        for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) check(fuzz_directory, widths[k]);
        check_language(fuzz_directory);
    }
    return 0;
}
