/* libFuzzer: any bytes as a configuration. One that loads must be the same after loading its resolved
 * text. */
#include "core/base/log.h"
#include "core/config/config.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config config, again;
    struct error err = {0};
    log_level = LOG_QUIET;
    if (config_load_text(&config, "/d/fuzz.yaml", (const char *)data, size, NULL, 0, &err)) {
        if (err.what[0] == 0) abort(); /* a refusal says why */
        return 0;
    }
    char *text = config_resolved_text(&config);
    if (config_load_text(&again, "/d/fuzz.yaml", text, strlen(text), NULL, 0, &err)) abort();
    char *second = config_resolved_text(&again);
    if (strcmp(text, second) != 0) abort();
    free(text);
    free(second);
    config_free(&again);
    config_free(&config);
    return 0;
}
