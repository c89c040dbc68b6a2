/* comm_agree: all ranks return the error of the lowest failed rank: see comm.h. */
#include "core/comm/comm.h"

#include <stdio.h>
#include <unistd.h>

void comm_stage_text(char text[COMM_STAGE_TEXT], int rank, int stages)
{
    text[0] = 0;
    if (stages > 1)
        snprintf(text, COMM_STAGE_TEXT, _(", stage %d of replica %d"), rank % stages, rank / stages);
}

void comm_report(struct comm_report *report, const struct comm *comm, int code, const struct error *own)
{
    *report = (struct comm_report){.code = code, .stages = comm->stages};
    if (code) report->err = *own;
    gethostname(report->host, sizeof report->host - 1);
}

int comm_name_rank(const struct comm_report *report, int rank, int code, const char *hint, const char *what,
                   struct error *err)
{
    struct error named = {0};
    char stage[COMM_STAGE_TEXT];
    comm_stage_text(stage, rank, report->stages);
    error_set(&named, code, hint, "rank %d (host %s%s) %s: %s", rank, report->host, stage, what,
              report->err.what);
    if (report->err.file[0]) error_at(&named, report->err.file, 0, 0);
    if (err) *err = named;
    return code;
}

int comm_agree(struct comm *comm, int code, const struct error *own, const char *what, struct error *err)
{
    struct comm_report report;
    double first = code ? comm->rank : comm->size; /* the lowest failed rank */
    if (!comm->ops || comm->size == 1 || code == EXIT_RANK_LOST) {
        if (code && err) *err = *own;
        return code;
    }
    int lost = comm_all_reduce(comm, COMM_MIN, &first, 1, err);
    if (lost || first >= comm->size) return lost;
    comm_report(&report, comm, code, own);
    lost = comm_broadcast(comm, &report, sizeof report, (int)first, err);
    return lost ? lost
                : comm_name_rank(&report, comm_world_rank(comm, (int)first), report.code, report.err.hint,
                                 what, err);
}
