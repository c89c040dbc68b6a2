/* The module libmeopt_mpi.so, built with the site's MPI: see mpi_module.h. Blocking collectives: MPI's own
 * threads do not move those that do not block. FUNNELED is all that is asked. */
#include "core/comm/mpi_module.h"

#include <mpi.h>
#include <stdio.h>

static MPI_Comm ours = MPI_COMM_NULL;

static int said(int result, char *why, size_t bytes)
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
    int there = 0, level, result = MPI_Initialized(&there);
    if (result == MPI_SUCCESS && !there) result = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    if (result == MPI_SUCCESS && ours == MPI_COMM_NULL) result = MPI_Comm_dup(MPI_COMM_WORLD, &ours);
    if (result == MPI_SUCCESS) result = MPI_Comm_set_errhandler(ours, MPI_ERRORS_RETURN);
    if (result == MPI_SUCCESS) result = MPI_Comm_rank(ours, rank);
    if (result == MPI_SUCCESS) result = MPI_Comm_size(ours, size);
    return said(result, why, bytes);
}

static int module_exchange(const void *send, void *receive, size_t count, char *why, size_t bytes)
{
    return said(MPI_Alltoall(send, (int)count, MPI_BYTE, receive, (int)count, MPI_BYTE, ours), why, bytes);
}

static int module_gather(const void *send, void *receive, size_t count, char *why, size_t bytes)
{
    return said(MPI_Allgather(send, (int)count, MPI_BYTE, receive, (int)count, MPI_BYTE, ours), why, bytes);
}

static int module_broadcast(void *p, size_t count, int root, char *why, size_t bytes)
{
    return said(MPI_Bcast(p, (int)count, MPI_BYTE, root, ours), why, bytes);
}

static void module_abort(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

static void module_close(void)
{
    if (ours != MPI_COMM_NULL) MPI_Comm_free(&ours);
    MPI_Finalize();
}

__attribute__((visibility("default")))
const struct meopt_mpi meopt_mpi = {MEOPT_MPI_VERSION, module_open,  module_exchange, module_gather,
                                    module_broadcast,  module_abort, module_close};
