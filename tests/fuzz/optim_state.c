/* libFuzzer: saved optimizer states. For any bytes, loading succeeds or is refused, and an accepted state
 * can be stepped and saved again. First byte: formats of the loading optimizer. Second byte: a record or
 * the file of meopt_save; bit 7: correct the checksums, so that later fields are reached. */
#include "core/base/crc32c.h"
#include "core/meopt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int sink(void *context, const void *data, size_t bytes)
{
    (void)context;
    (void)data;
    return bytes == (size_t)-1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 1 << 16) return 0;
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    meopt_options_init(&o, sizeof o, data[0] % MEOPT_RULE_COUNT);
    o.weights = data[0] / 8 % MEOPT_WEIGHT_FORMAT_COUNT;
    o.first_moment = o.second_moment = data[1] % 64 / 2 % MEOPT_STATE_FORMAT_COUNT;
    o.small_count = 100;
    o.threads = 1;
    struct meopt_tensor table[2] = {{.name = "a", .ndim = 2, .shape = {10, 13}},
                                    {.name = "b", .ndim = 1, .shape = {5}}};
    if (meopt_create(&opt, &o, table, 2, &err)) abort();
    uint8_t *copy = malloc(size);
    if (!copy) return 0;
    memcpy(copy, data + 2, size - 2);
    size -= 2;
    int status;
    if (data[1] & 1) {
        if (data[1] & 128 && size > 4) {
            uint32_t crc = crc32c(0, copy, size - 4);
            memcpy(copy + size - 4, &crc, 4);
        }
        status = meopt_state_load(opt, 0, copy, size, &err);
    } else status = meopt_load(opt, copy, size, &err);
    if (status == MEOPT_OK) {
        float gradient[130] = {0}, weights[130];
        for (int i = 0; i < 130; i++) gradient[i] = (float)(i - 60) * 1e-3f;
        struct meopt_gradient g[2] = {{gradient, MEOPT_F32}, {gradient, MEOPT_F32}};
        if (meopt_step(opt, 7, 1e-3, 1, g, NULL, &err)) abort();
        if (meopt_export(opt, 0, 0, 130, weights, &err)) abort();
        if (meopt_save(opt, sink, NULL, &err)) abort();
    }
    free(copy);
    meopt_destroy(opt);
    return 0;
}
