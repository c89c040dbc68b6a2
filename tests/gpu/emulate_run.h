/* Start an emulated kernel by name: what the emulated driver calls. */
#ifndef MEOPT_TESTS_GPU_EMULATE_RUN_H
#define MEOPT_TESTS_GPU_EMULATE_RUN_H

#include "tests/gpu/emulate.h"

namespace emulate
{
const kernel *find(const char *name); /* nullptr when there is none */
void run(const kernel *k, const int64_t grid[3], int block_threads, void **arguments);
} // namespace emulate

#endif
