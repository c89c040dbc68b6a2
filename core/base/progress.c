/* Progress callbacks: see progress.h. */
#include "core/base/progress.h"

#include <stddef.h>

static void (*progress_listener)(void *context);
static void *progress_context;

void progress_listen(void (*listener)(void *context), void *context)
{
    progress_listener = NULL;
    progress_context = context;
    progress_listener = listener;
}

void progress_mark(void)
{
    if (progress_listener) progress_listener(progress_context);
}
