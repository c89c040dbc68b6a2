/* Requests to a run: see request.h. */
#include "core/run/request.h"
#include "core/base/file.h"
#include "core/base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static char *request_name(const char *name) { return path_join("request", name); }

int run_request(const char *directory, const char *name, struct error *err)
{
    char *request = request_name(name);
    int fd = -1, code = file_make_dirs_below(directory, "request", err);
    if (!code) code = file_open_below(directory, request, O_WRONLY | O_CREAT, &fd, NULL, err);
    if (fd >= 0) close(fd);
    free(request);
    return code;
}

/* A directory of that name counts as a request: otherwise it could not be removed. */
bool run_requested(const char *directory, const char *name)
{
    char *request = request_name(name);
    bool found =
        file_unlink_below(directory, request, 0) == 0 ||
        ((errno == EISDIR || errno == EPERM) && file_unlink_below(directory, request, AT_REMOVEDIR) == 0);
    free(request);
    return found;
}

void run_requests_forget(const char *directory)
{
    static const char *const names[] = {"stop", "checkpoint", "change", "stop-now"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) run_requested(directory, names[i]);
}
