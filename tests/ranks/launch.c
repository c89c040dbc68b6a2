/* Variables of launchers: each launcher alone, one inside another, and refusals. */
#include "core/comm/launch.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* "NAME=VALUE" in a list that ends with NULL. */
static const char *listed(const char *name, const void *context)
{
    for (const char *const *p = context; *p; p++) {
        size_t n = strlen(name);
        if (strncmp(*p, name, n) == 0 && (*p)[n] == '=') return *p + n + 1;
    }
    return NULL;
}

struct trial {
    const char *what, *variables[24];
    int code;
    const char *launcher;
    int rank, size, local_rank, local_size, idle;
    const char *said; /* parts of the error, see mentions(); NULL: any */
};

// clang-format off
#define BATCH "SLURM_JOB_ID=77", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=4"
#define STEP(rank, size) \
    "SLURM_JOB_ID=77", "SLURM_STEP_ID=0", "SLURM_NTASKS=" size, "SLURM_STEP_NUM_TASKS=" size, \
    "SLURM_STEP_NODELIST=n[1-2]", "SLURM_PROCID=" rank, "SLURM_LOCALID=1"
#define OPEN_MPI(rank, size) \
    "OMPI_COMM_WORLD_RANK=" rank, "OMPI_COMM_WORLD_SIZE=" size, "OMPI_COMM_WORLD_LOCAL_RANK=0", \
    "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_RANK=" rank, "PMIX_NAMESPACE=123@0"
#define TORCHRUN(rank, size) \
    "TORCHELASTIC_RUN_ID=none", "RANK=" rank, "WORLD_SIZE=" size, "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", \
    "MASTER_ADDR=n1", "MASTER_PORT=29500"
// clang-format on

static const struct trial trials[] = {
    {"nothing", {NULL}, 0, NULL, 0, 1, -1, -1, 0, NULL},
    {"a script of sbatch is one process", {BATCH}, 0, NULL, 0, 1, -1, -1, 4, NULL},
    {"a shell of salloc on the login node",
     {"SLURM_JOB_ID=77", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=n[1-2]"},
     0,
     NULL,
     0,
     1,
     -1,
     -1,
     4,
     NULL},
    {"an interactive step of salloc",
     {"SLURM_JOB_ID=77", "SLURM_STEP_ID=4294967290", "SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=1",
      "SLURM_STEP_NODELIST=n1", "SLURM_PROCID=0", "SLURM_LOCALID=0"},
     0,
     "srun",
     0,
     1,
     0,
     -1,
     0,
     NULL},
    {"srun", {STEP("3", "4")}, 0, "srun", 3, 4, 1, -1, 0, NULL},
    {"srun --mpi=pmi2",
     {STEP("3", "4"), "PMI_RANK=3", "PMI_SIZE=4", "PMI_FD=9"},
     0,
     "mpirun of MPICH or Intel MPI",
     3,
     4,
     1,
     -1,
     0,
     NULL},
    {"srun --mpi=pmix", {STEP("2", "4"), "PMIX_RANK=2"}, 0, "srun", 2, 4, 1, -1, 0, NULL},
    {"mpirun", {OPEN_MPI("1", "3")}, 0, "mpirun of Open MPI", 1, 3, 0, 2, 0, NULL},
    {"mpirun inside sbatch", {BATCH, OPEN_MPI("1", "4")}, 0, "mpirun of Open MPI", 1, 4, 0, 2, 0, NULL},
    {"mpirun inside srun --pty",
     {STEP("0", "1"), "PMI_RANK=0", "PMI_SIZE=1", OPEN_MPI("2", "4")},
     0,
     "mpirun of Open MPI",
     2,
     4,
     0,
     2,
     0,
     NULL},
    {"on another node of mpirun, whose daemon srun started",
     {STEP("1", "2"), OPEN_MPI("3", "4")},
     0,
     "mpirun of Open MPI",
     3,
     4,
     0,
     2,
     0,
     NULL},
    {"Intel MPI",
     {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"},
     0,
     "mpirun of MPICH or Intel MPI",
     1,
     2,
     1,
     2,
     0,
     NULL},
    {"MVAPICH2",
     {"MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=2", "MV2_COMM_WORLD_LOCAL_RANK=1", "PMI_RANK=1",
      "PMI_SIZE=2"},
     0,
     "mpirun of MVAPICH2",
     1,
     2,
     1,
     -1,
     0,
     NULL},
    {"torchrun", {TORCHRUN("5", "8")}, 0, "torchrun", 5, 8, 1, 2, 0, NULL},
    {"torchrun on each node of srun",
     {STEP("1", "2"), TORCHRUN("5", "8")},
     0,
     "torchrun",
     5,
     8,
     1,
     2,
     0,
     NULL},
    {"RANK by hand, as srun says",
     {STEP("3", "4"), "RANK=3", "WORLD_SIZE=4", "MASTER_ADDR=n1"},
     0,
     "srun",
     3,
     4,
     1,
     -1,
     0,
     NULL},
    {"WORLD_SIZE alone belongs to no launcher",
     {"WORLD_SIZE=4", "MASTER_ADDR=n1"},
     0,
     NULL,
     0,
     1,
     -1,
     -1,
     0,
     NULL},
    {"RANK of some other program", {"RANK=captain", "WORLD_SIZE=4"}, 0, NULL, 0, 1, -1, -1, 0, NULL},
    {"an empty variable is not set",
     {"OMPI_COMM_WORLD_RANK=", "OMPI_COMM_WORLD_SIZE=4"},
     0,
     NULL,
     0,
     1,
     -1,
     -1,
     0,
     NULL},

    {"RANK by hand, different from srun's",
     {STEP("3", "4"), "RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=n1"},
     EXIT_USAGE,
     NULL,
     0,
     1,
     0,
     0,
     0,
     "srun|rank 3 of 4|SLURM_PROCID|SLURM_STEP_NUM_TASKS|RANK|WORLD_SIZE|rank 0 of 4"},
    {"two MPIs, one left over",
     {OPEN_MPI("1", "4"), "MV2_COMM_WORLD_RANK=0", "MV2_COMM_WORLD_SIZE=2"},
     EXIT_USAGE,
     NULL,
     0,
     1,
     0,
     0,
     0,
     "MV2_COMM_WORLD_RANK"},
    {"srun --mpi=pmix that does not agree",
     {STEP("2", "4"), "PMIX_RANK=0"},
     EXIT_USAGE,
     NULL,
     0,
     1,
     0,
     0,
     0,
     "PMIX_RANK| 0|srun|rank 2 of 4"},
    {"a rank without a number of ranks", {"PMIX_RANK=2"}, EXIT_USAGE, NULL, 0, 1, 0, 0, 0, "PMIX_RANK| 2"},
    {"not a number",
     {"OMPI_COMM_WORLD_RANK=x", "OMPI_COMM_WORLD_SIZE=4"},
     EXIT_USAGE,
     NULL,
     0,
     1,
     0,
     0,
     0,
     "OMPI_COMM_WORLD_RANK|'x'"},
    {"a number and more", {STEP("3", "4x")}, EXIT_USAGE, NULL, 0, 1, 0, 0, 0, "'4x'"},
    {"below 0", {STEP("-1", "4")}, EXIT_USAGE, NULL, 0, 1, 0, 0, 0, "'-1'"},
    {"a rank beyond the last",
     {STEP("4", "4")},
     EXIT_USAGE,
     NULL,
     0,
     1,
     0,
     0,
     0,
     "SLURM_PROCID| 4|SLURM_STEP_NUM_TASKS| 4"},
    {"more than there can be",
     {STEP("3", "99999999999999999999")},
     EXIT_USAGE,
     NULL,
     0,
     1,
     0,
     0,
     0,
     "99999999999999999999"},
};

static void variables_say_which_of_how_many(void **state)
{
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        const struct trial *t = &trials[i];
        struct launch launch;
        struct error err = {0};
        int code = launch_read(&launch, listed, t->variables, &err);
        if (code != t->code) fail_msg("%s: code %d (%s), expected %d", t->what, code, err.what, t->code);
        if (code) {
            if (t->said && !mentions(err.what, t->said))
                fail_msg("%s: '%s' lacks '%s'", t->what, err.what, t->said);
            continue;
        }
        const char *found = launch.launcher ? launch.launcher : "none";
        const char *wanted = t->launcher ? t->launcher : "none";
        if (strcmp(found, wanted) != 0) fail_msg("%s: %s, expected %s", t->what, found, wanted);
        int numbers[] = {launch.rank, launch.size, launch.local_rank, launch.local_size, launch.idle_tasks};
        int expected[] = {t->rank, t->size, t->local_rank, t->local_size, t->idle};
        for (int k = 0; k < 5; k++)
            if (numbers[k] != expected[k])
                fail_msg("%s: number %d is %d, expected %d", t->what, k, numbers[k], expected[k]);
    }
}

static void one_host_is_recognised(void **state)
{
    const char *some[] = {OPEN_MPI("0", "4"), NULL}, *all[] = {OPEN_MPI("0", "2"), NULL},
               *step[] = {STEP("0", "4"), "SLURM_STEP_NUM_NODES=1", NULL},
               *steps[] = {STEP("0", "4"), "SLURM_STEP_NUM_NODES=2", NULL}, *none[] = {NULL};
    const char *const *const lists[] = {some, all, step, steps, none};
    for (int i = 0; i < 5; i++) {
        struct launch l;
        assert_int_equal(launch_read(&l, listed, lists[i], NULL), 0);
        assert_int_equal(l.one_host, i == 1 || i == 2 || i == 4);
    }
}

/* All ranks of a launch say the same, and another launch, or the same job put back into the queue, another.
 */
static void a_job_has_one_name(void **state)
{
    const char *first[] = {STEP("0", "4"), NULL}, *last[] = {STEP("3", "4"), NULL},
               *again[] = {STEP("0", "4"), "SLURM_RESTART_COUNT=1", NULL},
               *hostile[] = {OPEN_MPI("0", "2"), "SLURM_JOB_ID=../../etc/x y", NULL};
    struct launch a, b, c, d;
    assert_int_equal(launch_read(&a, listed, first, NULL), 0);
    assert_int_equal(launch_read(&b, listed, last, NULL), 0);
    assert_int_equal(launch_read(&c, listed, again, NULL), 0);
    assert_int_equal(launch_read(&d, listed, hostile, NULL), 0);
    assert_string_equal(a.job, "77-0");
    assert_string_equal(b.job, a.job);
    assert_string_equal(c.job, "77-1-0");
    assert_null(strchr(d.job, '/'));
    assert_null(strchr(d.job, ' '));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variables_say_which_of_how_many),
        cmocka_unit_test(one_host_is_recognised),
        cmocka_unit_test(a_job_has_one_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
