/* The module libmeopt_mpi.so, built with the site's MPI: see mpi_module.h. The collectives are blocking,
 * because MPI does not progress nonblocking ones in the background. FUNNELED threading is sufficient. */
#include "core/comm/mpi_module.h"

#include <mpi.h>
#include <stdio.h>

static MPI_Comm world = MPI_COMM_NULL;

static int error_text(int result, char *why, size_t bytes)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (result == MPI_SUCCESS) return 0;
    MPI_Error_string(result, text, &length);
    snprintf(why, bytes, "%s", text);
    return 1;
}

static int module_open(int *rank, int *size, char *why, size_t bytes)
{
    int initialized = 0, level, result = MPI_Initialized(&initialized);
    if (result == MPI_SUCCESS && !initialized)
        result = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (result == MPI_SUCCESS && world == MPI_COMM_NULL) result = MPI_Comm_dup(MPI_COMM_WORLD, &world);
    if (result == MPI_SUCCESS) result = MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    if (result == MPI_SUCCESS) result = MPI_Comm_rank(world, rank);
    if (result == MPI_SUCCESS) result = MPI_Comm_size(world, size);
    return error_text(result, why, bytes);
}

static int module_exchange(const void *send, void *receive, size_t count, char *why, size_t bytes)
{
    return error_text(MPI_Alltoall(send, (int)count, MPI_BYTE, receive, (int)count, MPI_BYTE, world), why,
                      bytes);
}

static int module_gather(const void *send, void *receive, size_t count, char *why, size_t bytes)
{
    return error_text(MPI_Allgather(send, (int)count, MPI_BYTE, receive, (int)count, MPI_BYTE, world), why,
                      bytes);
}

static int module_broadcast(void *p, size_t count, int root, char *why, size_t bytes)
{
    return error_text(MPI_Bcast(p, (int)count, MPI_BYTE, root, world), why, bytes);
}

static void module_abort(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

static void module_close(void)
{
    if (world != MPI_COMM_NULL) MPI_Comm_free(&world);
    MPI_Finalize();
}

__attribute__((visibility("default")))
const struct meopt_mpi meopt_mpi = {MEOPT_MPI_VERSION, module_open,  module_exchange, module_gather,
                                    module_broadcast,  module_abort, module_close};
