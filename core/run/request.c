/* Requests to a run: see request.h. */
#include "core/run/request.h"
#include "core/base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static char *request_path(const char *directory, const char *name)
{
    char *requests = path_join(directory, "request"), *path = path_join(requests, name);
    free(requests);
    return path;
}

int run_request(const char *directory, const char *name, struct error *err)
{
    char *path = request_path(directory, name), *requests = path_dirname(path);
    int code = file_make_dirs(requests, err);
    if (!code) {
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (fd < 0) {
            code = error_errno(err, EXIT_FAILED, "may you write there?", "cannot make the request");
            error_at(err, path, 0, 0);
        } else {
            close(fd);
        }
    }
    free(path);
    free(requests);
    return code;
}

bool run_requested(const char *directory, const char *name)
{
    char *path = request_path(directory, name);
    bool found = unlink(path) == 0;
    free(path);
    return found;
}

void run_requests_forget(const char *directory)
{
    static const char *const names[] = {"stop", "checkpoint", "change", "stop-now"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) run_requested(directory, names[i]);
}
