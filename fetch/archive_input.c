/* See archive_input.h. */
#include "fetch/archive_input.h"

int archive_unreadable(const struct archive_input *input, struct error *err)
{
    error_errno(err, EXIT_FAILED, "check the disk", "cannot read the archive");
    return error_at(err, input->path, 0, 0);
}
