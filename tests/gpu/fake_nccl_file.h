/* The file in which ranks of tests/gpu/fake_nccl.cc meet. */
#ifndef MEOPT_TESTS_GPU_FAKE_NCCL_FILE_H
#define MEOPT_TESTS_GPU_FAKE_NCCL_FILE_H

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

/* Those that this process has made: removed when it ends, also where no rank has come. */
static struct meeting_files : std::vector<std::string> {
    std::mutex lock;
    ~meeting_files()
    {
        for (const std::string &path : *this) unlink(path.c_str());
    }
} meeting_files;

/* Makes a file of zeros in the directory for temporary files and writes its path. Returns whether it did. */
static bool make_meeting_file(char *path, size_t size, size_t bytes)
{
    const char *directory = getenv("TMPDIR");
    if (snprintf(path, size, "%s/fake-nccl-XXXXXX", directory ? directory : "/tmp") >= (int)size)
        return false;
    int fd = mkstemp(path);
    if (fd < 0) return false;
    bool good = ftruncate(fd, (off_t)bytes) == 0;
    close(fd);
    std::lock_guard<std::mutex> held(meeting_files.lock);
    meeting_files.push_back(path);
    return good;
}

#endif
