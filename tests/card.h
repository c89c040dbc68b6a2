/* What a test has to know of the machine that it runs on: whether the card of $MEOPT_TEST_DEVICE is
 * emulated, and where the files of the sources are. The card kit (configs/packaging/card_kit.sh) takes tests
 * and files to other machines. */
#ifndef MEOPT_TESTS_CARD_H
#define MEOPT_TESTS_CARD_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Its driver is tests/gpu/fake_driver.cc. */
static inline bool card_is_emulated(void)
{
    const char *card = getenv("MEOPT_TEST_DEVICE"), *driver = !card ? NULL
                                                              : strncmp(card, "cuda", 4) == 0
                                                                  ? getenv("MEOPT_CUDA_LIBRARY")
                                                                  : getenv("MEOPT_HIP_LIBRARY");
    return driver && strstr(driver, "libfake_");
}

/* Returns the path of a file of the sources, or of $MEOPT_SOURCE; valid until the next call of the thread. */
static inline const char *source_file(const char *path)
{
    static _Thread_local char text[4096];
    const char *root = getenv("MEOPT_SOURCE");
    snprintf(text, sizeof text, "%s/%s", root && *root ? root : MEOPT_SOURCE_DIR, path);
    return text;
}

#endif
