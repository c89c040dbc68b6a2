/* Compares MEOpt's declarations of RCCL and NCCL (core/comm/nccl_api.h) with their header. nccl_api.sh
 * compiles it against every nccl.h and rccl.h of this machine, and against tests/ranks/nccl_2_22.h.
 * Enumerations are ints in calls, and opaque pointers are void pointers. */
#include "nccl.h"

extern "C" {
#include "core/comm/nccl_api.h"
}
#include "tests/gpu/vendor.h"
#include <cstddef>

ALIKE(ncclUniqueId, nccl_id)
ALIKE(ncclConfig_t, nccl_config)

#define SAME(name, symbol, arguments) SAME_CALL(symbol, decltype(nccl_api::name))
NCCL_ENTRIES(SAME)
SAME(text, ncclGetErrorString, )
SAME(last_error, ncclGetLastError, )
#if NCCL_VERSION_CODE >= 21800
SAME(split, ncclCommSplit, )
static_assert(NCCL_SPLIT_NOCOLOR == NCCL_NO_COLOR, "no communicator");
#endif

static_assert(sizeof(ncclUniqueId) == NCCL_ID_BYTES && NCCL_UNIQUE_ID_BYTES == NCCL_ID_BYTES, "id");
static_assert((int)ncclSuccess == NCCL_SUCCESS && (int)ncclInProgress == NCCL_IN_PROGRESS, "results");
static_assert((int)ncclUint8 == NCCL_UINT8 && (int)ncclFloat32 == NCCL_FLOAT32, "types");
static_assert((int)ncclSum == NCCL_SUM, "operations");
static_assert(offsetof(ncclConfig_t, size) == offsetof(nccl_config, size) &&
                  offsetof(ncclConfig_t, magic) == offsetof(nccl_config, magic) &&
                  offsetof(ncclConfig_t, version) == offsetof(nccl_config, version) &&
                  offsetof(ncclConfig_t, blocking) == offsetof(nccl_config, blocking),
              "config");
static_assert(NCCL_CONFIG_UNDEF_INT == INT_MIN, "what is left open");
static_assert(sizeof(nccl_config) == 24 && sizeof(ncclConfig_t) >= 24, "the part of 2.14");
static const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
static const nccl_config ours = NCCL_CONFIG;
int main() { return theirs.magic != ours.magic; }
