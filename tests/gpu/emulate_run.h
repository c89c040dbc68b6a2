/* Start an emulated kernel by name: what the emulated driver calls. */
#ifndef MEOPT_TESTS_GPU_EMULATE_RUN_H
#define MEOPT_TESTS_GPU_EMULATE_RUN_H

#include "tests/gpu/emulate.h"

#include <vector>

namespace emulate
{
const kernel *find(const char *name); /* nullptr when there is none */
void run(const kernel *k, const int64_t grid[3], int block_threads, void **arguments);

/* For tests/gpu/fake_races.h. Phases are counted from 1 over all launches: each block begins one, and each of
 * its barriers. */
extern uint32_t phase, block_phase, launch_phase; /* now; the first of this block; of this launch */
extern uint32_t operation;                        /* counts the wave operations of all waves */
extern char *stack_end;                           /* of the running thread's */
int64_t block_of(uint32_t phase);                 /* in a launch that has ended: 0 */
struct shared_memory {
    char *begin;
    size_t bytes;
    const char *name; /* as the compiler writes it */
};
const std::vector<shared_memory> &shared_memories();
} // namespace emulate

#endif
