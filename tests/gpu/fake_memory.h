/* The memory of tests/gpu/fake_driver.cc: NaN, not zeros, where it was never written. Large blocks map one
 * file of NaN repeatedly, so that untouched pages cost nothing. */
#ifndef MEOPT_TESTS_GPU_FAKE_MEMORY_H
#define MEOPT_TESTS_GPU_FAKE_MEMORY_H

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

enum { NAN_FILE = 2 << 20, NAN_AT_MOST = 64 << 20 };
static bool is_mapped(size_t bytes) { return bytes >= NAN_FILE && bytes <= NAN_AT_MOST; }
static char *take_memory(size_t bytes)
{
    if (!is_mapped(bytes)) {
        char *p = (char *)aligned_alloc(256, (bytes + 255) & ~(size_t)255);
        if (p && bytes <= NAN_AT_MOST) memset(p, 0xFF, bytes);
        return p;
    }
    static const int file = [] {
        int fd = memfd_create("nan", MFD_CLOEXEC);
        std::vector<char> pattern(NAN_FILE, (char)0xFF);
        return write(fd, pattern.data(), NAN_FILE) == NAN_FILE ? fd : -1;
    }();
    char *p = (char *)mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; p != MAP_FAILED && at < bytes; at += NAN_FILE)
        if (mmap(p + at, std::min(bytes - at, (size_t)NAN_FILE), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
            abort();
    return p == MAP_FAILED ? nullptr : p;
}
static void return_memory(char *p, size_t bytes)
{
    if (is_mapped(bytes)) munmap(p, bytes);
    else free(p);
}

#endif
