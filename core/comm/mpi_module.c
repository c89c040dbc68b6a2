/* The module libmeopt_mpi.so, built with the site's MPI: see mpi_module.h. The collectives are blocking,
 * because MPI does not progress nonblocking ones in the background. FUNNELED threading is sufficient. */
#include "core/comm/mpi_module.h"

#include <mpi.h>
#include <stdio.h>

static MPI_Comm parts[MEOPT_MPI_PARTS]; /* 0: all ranks */
static int part_count;

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
    if (result == MPI_SUCCESS && !part_count) {
        parts[0] = MPI_COMM_NULL;
        result = MPI_Comm_dup(MPI_COMM_WORLD, &parts[0]);
        part_count = 1;
    }
    if (result == MPI_SUCCESS) result = MPI_Comm_set_errhandler(parts[0], MPI_ERRORS_RETURN);
    if (result == MPI_SUCCESS) result = MPI_Comm_rank(parts[0], rank);
    if (result == MPI_SUCCESS) result = MPI_Comm_size(parts[0], size);
    return error_text(result, why, bytes);
}

static int module_exchange(int part, const void *send, void *receive, size_t count, char *why, size_t bytes)
{
    return error_text(MPI_Alltoall(send, (int)count, MPI_BYTE, receive, (int)count, MPI_BYTE, parts[part]),
                      why, bytes);
}

static int module_gather(int part, const void *send, void *receive, size_t count, char *why, size_t bytes)
{
    return error_text(MPI_Allgather(send, (int)count, MPI_BYTE, receive, (int)count, MPI_BYTE, parts[part]),
                      why, bytes);
}

static int module_broadcast(int part, void *p, size_t count, int root, char *why, size_t bytes)
{
    return error_text(MPI_Bcast(p, (int)count, MPI_BYTE, root, parts[part]), why, bytes);
}

static int module_collect(int part, const void *send, void *receive, size_t count, char *why, size_t bytes)
{
    return error_text(MPI_Gather(send, (int)count, MPI_BYTE, receive, (int)count, MPI_BYTE, 0, parts[part]),
                      why, bytes);
}

static int module_scatter_sums(int part, const float *send, float *receive, size_t count, char *why,
                               size_t bytes)
{
    return error_text(MPI_Reduce_scatter_block(send, receive, (int)count, MPI_FLOAT, MPI_SUM, parts[part]),
                      why, bytes);
}

static int module_split(int color, int *part, char *why, size_t bytes)
{
    int rank = 0, result;
    if (part_count == MEOPT_MPI_PARTS) {
        snprintf(why, bytes, "more than %d communicators", MEOPT_MPI_PARTS);
        return 1;
    }
    *part = part_count;
    result = MPI_Comm_rank(parts[0], &rank);
    if (result == MPI_SUCCESS)
        result = MPI_Comm_split(parts[0], color < 0 ? MPI_UNDEFINED : color, rank, &parts[part_count]);
    if (result == MPI_SUCCESS) part_count++;
    return error_text(result, why, bytes);
}

static void module_release(int part)
{
    if (parts[part] != MPI_COMM_NULL) MPI_Comm_free(&parts[part]);
}

static int module_transfer(const struct meopt_mpi_message *messages, int count, char *why, size_t bytes)
{
    MPI_Request requests[MEOPT_MPI_MESSAGES];
    int result = MPI_SUCCESS, begun = 0;
    for (int turn = 0; turn < 2; turn++) /* receives first: their messages need no buffer */
        for (int i = 0; i < count && result == MPI_SUCCESS; i++) {
            const struct meopt_mpi_message *m = &messages[i];
            if (m->receive == (turn == 0))
                result =
                    turn ? MPI_Isend(m->p, (int)m->bytes, MPI_BYTE, m->peer, 0, parts[0], &requests[begun++])
                         : MPI_Irecv(m->p, (int)m->bytes, MPI_BYTE, m->peer, 0, parts[0], &requests[begun++]);
        }
    if (result == MPI_SUCCESS) result = MPI_Waitall(begun, requests, MPI_STATUSES_IGNORE);
    return error_text(result, why, bytes);
}

static void module_abort(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

static void module_close(void)
{
    for (int i = part_count - 1; i >= 0; i--) module_release(i);
    MPI_Finalize();
}

__attribute__((visibility("default"))) const struct meopt_mpi meopt_mpi = {
    MEOPT_MPI_VERSION,   module_open,  module_exchange, module_gather,   module_broadcast, module_collect,
    module_scatter_sums, module_split, module_release,  module_transfer, module_abort,     module_close};
