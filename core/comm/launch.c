/* Launchers' variables: see launch.h. The names are those of Slurm 20.11 to 24 (srun(1), sbatch(1)), Open
 * MPI 4 and 5, MVAPICH2, Hydra (MPICH, Intel MPI), PMIx and torch.distributed.run. */
#include "core/comm/launch.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum level { INNER, MPI, STEP, BY_HAND }; /* of nesting: a smaller level runs inside a larger one */

struct row {
    const char *name;
    enum level level;
    const char *marker; /* must also be set; NULL: none */
    const char *rank, *size, *local_rank, *local_size;
    const char *job[3]; /* variables that identify this launch */
};

/* Innermost first. sbatch sets SLURM_PROCID=0 and SLURM_NTASKS for its script, which is a single process:
 * only the list of nodes identifies a step. RANK and WORLD_SIZE are common names, so they require
 * MASTER_ADDR. */
static const struct row rows[] = {
    {"torchrun",
     INNER,
     "TORCHELASTIC_RUN_ID",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
    {"mpirun of Open MPI",
     MPI,
     NULL,
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", NULL, NULL}},
    {"mpirun of MVAPICH2",
     MPI,
     NULL,
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     {"PMI_KVSNAME", "MPIRUN_ID", NULL}},
    {"mpirun of MPICH or Intel MPI",
     MPI,
     NULL,
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {"PMI_KVSNAME", "PMI_JOBID", NULL}},
    {"srun",
     STEP,
     "SLURM_STEP_NODELIST",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     NULL,
     {"SLURM_STEP_ID", NULL, NULL}},
    {"RANK and WORLD_SIZE",
     BY_HAND,
     "MASTER_ADDR",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT", NULL}},
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Variables of batch systems, equal on all ranks. */
static const char *const jobs[] = {"SLURM_JOB_ID", "SLURM_RESTART_COUNT", "PBS_JOBID", "LSB_JOBID", "JOB_ID"};

static const char *process_variable(const char *name, const void *context)
{
    (void)context;
    return getenv(name);
}

struct reading {
    launch_variable *get;
    const void *context;
};

/* Returns the value if the variable is set and not empty. */
static const char *variable_text(const struct reading *in, const char *name)
{
    const char *text = name ? in->get(name, in->context) : NULL;
    return text && *text ? text : NULL;
}

static int variable_number(const struct reading *in, const char *name, int *number, struct error *err)
{
    const char *text = variable_text(in, name);
    char *end;
    errno = 0;
    long value = text ? strtol(text, &end, 10) : 0;
    if (text && (*end || errno || value < 0 || value > LAUNCH_RANKS_MAX || !isdigit((unsigned char)*text)))
        return error_set(err, EXIT_USAGE, "unset it, or use the launcher that sets it",
                         "%s is '%.60s', not a number from 0 to %d", name, text, LAUNCH_RANKS_MAX);
    *number = text ? (int)value : -1;
    return 0;
}

/* The variables of one row. */
struct values {
    bool complete;
    int rank, size, local_rank, local_size;
};

static int row_read(const struct reading *in, const struct row *row, struct values *values, struct error *err)
{
    *values = (struct values){0};
    if (!variable_text(in, row->rank) || !variable_text(in, row->size) ||
        (row->marker && !variable_text(in, row->marker)))
        return 0;
    int code = variable_number(in, row->rank, &values->rank, err);
    if (!code) code = variable_number(in, row->size, &values->size, err);
    if (!code) code = variable_number(in, row->local_rank, &values->local_rank, err);
    if (!code && row->local_size) code = variable_number(in, row->local_size, &values->local_size, err);
    if (code) return code;
    if (!row->local_size) values->local_size = -1;
    if (values->rank >= values->size)
        return error_set(err, EXIT_USAGE, "unset them, or use the launcher that sets them",
                         "%s is %d, but %s is %d: ranks count from 0", row->rank, values->rank, row->size,
                         values->size);
    values->complete = true;
    return 0;
}

/* Refuses two rows that differ although they cannot be nested: a variable is left over or was set by hand.
 * */
static int check_agreement(const struct row *a, const struct values *ta, const struct row *b,
                           const struct values *tb, bool under_srun, struct error *err)
{
    bool same = ta->rank == tb->rank && ta->size == tb->size;
    bool nested = b->level > a->level && b->level != BY_HAND;
    if (same || nested || (a->level == MPI && b->level == MPI && under_srun)) return 0;
    return error_set(err, EXIT_USAGE, "unset the variables of the launcher that did not start this process",
                     "%s says rank %d of %d (%s, %s), %s says rank %d of %d (%s, %s)", a->name, ta->rank,
                     ta->size, a->rank, a->size, b->name, tb->rank, tb->size, b->rank, b->size);
}

/* PMIx sets only the rank. That detects N processes that would each train alone. */
static int check_pmix(const struct reading *in, const struct row *row, const struct values *values,
                      struct error *err)
{
    int rank;
    int code = variable_number(in, "PMIX_RANK", &rank, err);
    if (code || rank < 0) return code;
    if (!row)
        return error_set(err, EXIT_USAGE,
                         "start the ranks with srun or mpirun, or unset PMIX_RANK to train alone",
                         "PMIX_RANK is %d, but no variable has the number of ranks", rank);
    if (row->level <= MPI || rank == values->rank) return 0; /* set by an outer launcher */
    return error_set(err, EXIT_USAGE, "unset the variables of the launcher that did not start this process",
                     "PMIX_RANK is %d, but %s says rank %d of %d (%s)", rank, row->name, values->rank,
                     values->size, row->rank);
}

static void add_word(char *job, size_t size, const char *word)
{
    size_t n = strlen(job);
    if (!word) return;
    if (n && n + 1 < size) job[n++] = '-';
    for (; *word && n + 1 < size; word++)
        job[n++] = isalnum((unsigned char)*word) || *word == '.' ? *word : '_';
    job[n] = 0;
}

static void name_job(const struct reading *in, const struct row *row, struct launch *launch)
{
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        add_word(launch->job, sizeof launch->job, variable_text(in, jobs[i]));
    for (int i = 0; i < 3 && row->job[i]; i++)
        add_word(launch->job, sizeof launch->job, variable_text(in, row->job[i]));
    if (!launch->job[0]) add_word(launch->job, sizeof launch->job, "ranks");
}

int launch_read(struct launch *launch, launch_variable *get, const void *context, struct error *err)
{
    struct reading in = {get ? get : process_variable, context};
    struct values values[ROWS];
    int code = 0, chosen = -1, tasks;
    *launch = (struct launch){.size = 1, .local_rank = -1, .local_size = -1, .one_host = true};
    for (int i = 0; i < ROWS && !code; i++) {
        code = row_read(&in, &rows[i], &values[i], err);
        if (code || !values[i].complete) continue;
        if (rows[i].level == BY_HAND && values[0].complete) values[i].complete = false; /* set by torchrun */
        else if (chosen < 0) chosen = i;
    }
    if (code) return code;
    const struct row *row = chosen < 0 ? NULL : &rows[chosen];
    bool under_srun = variable_text(&in, "SLURM_STEP_NODELIST") != NULL;
    for (int i = chosen + 1; chosen >= 0 && i < ROWS && !code; i++)
        if (values[i].complete)
            code = check_agreement(row, &values[chosen], &rows[i], &values[i], under_srun, err);
    if (!code) code = check_pmix(&in, row, chosen < 0 ? NULL : &values[chosen], err);
    if (code) return code;
    if (chosen < 0) {
        if (variable_number(&in, "SLURM_NTASKS", &tasks, NULL) == 0 && tasks > 1 && !under_srun)
            launch->idle_tasks = tasks;
        return 0;
    }
    launch->launcher = row->name;
    launch->rank = values[chosen].rank;
    launch->size = values[chosen].size;
    for (int i = chosen; i < ROWS; i++) { /* other rows fill in missing values */
        if (!values[i].complete || values[i].rank != launch->rank || values[i].size != launch->size) continue;
        if (launch->local_rank < 0) launch->local_rank = values[i].local_rank;
        if (launch->local_size < 0) launch->local_size = values[i].local_size;
    }
    int nodes = -1;
    if (row->level == STEP && (code = variable_number(&in, "SLURM_STEP_NUM_NODES", &nodes, err)) != 0)
        return code;
    launch->one_host = launch->size == 1 || launch->local_size == launch->size || nodes == 1;
    name_job(&in, row, launch);
    return 0;
}
