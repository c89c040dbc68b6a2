/* Signs of life: see progress.h. */
#include "core/base/progress.h"

#include <stddef.h>

static void (*progress_hear)(void *context);
static void *progress_context;

void progress_listen(void (*hear)(void *context), void *context)
{
    progress_hear = NULL;
    progress_context = context;
    progress_hear = hear;
}

void progress_mark(void)
{
    if (progress_hear) progress_hear(progress_context);
}
