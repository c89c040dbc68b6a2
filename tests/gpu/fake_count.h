/* What tests/gpu/fake_driver.cc was asked for, and the file of FAKE_COUNT. */
#ifndef MEOPT_TESTS_GPU_FAKE_COUNT_H
#define MEOPT_TESTS_GPU_FAKE_COUNT_H

static long long launches, allocations, side_copies, side_up_bytes, side_down_bytes, graphs, syncs, waits,
    uploads, downloads, copies, fills;
static std::map<std::string, long long> *kernels =
    new std::map<std::string, long long>; /* launches by name */

namespace
{
struct count {
    ~count()
    {
        const char *path = getenv("FAKE_COUNT");
        FILE *f = path ? fopen(path, "w") : nullptr;
        if (!f) return;
        fprintf(f,
                "{\"allocations\":%lld,\"launches\":%lld,\"graphs\":%lld,\"side_copies\":%lld,"
                "\"side_up_bytes\":%lld,\"side_down_bytes\":%lld,\"held_bytes\":%zu",
                allocations, launches, graphs, side_copies, side_up_bytes, side_down_bytes, held);
        for (const auto &k : *kernels) fprintf(f, ",\"%s\":%lld", k.first.c_str(), k.second);
        fprintf(f, "}\n");
        fclose(f);
    }
} count_at_exit;
} // namespace

#endif
