/* comm_agree: all ranks return the error of the lowest failed rank: see comm.h. */
#include "core/comm/comm.h"

#include <stdio.h>
#include <unistd.h>

void comm_place_text(char text[COMM_PLACE_TEXT], int rank, struct comm_layout layout)
{
    struct comm_place at = comm_place_of(layout, rank);
    text[0] = 0;
    if (layout.stages > 1 && layout.tensor > 1)
        snprintf(text, COMM_PLACE_TEXT, _(", tensor %d of stage %d of replica %d"), at.tensor, at.stage,
                 at.replica);
    else if (layout.tensor > 1)
        snprintf(text, COMM_PLACE_TEXT, _(", tensor %d of replica %d"), at.tensor, at.replica);
    else if (layout.stages > 1)
        snprintf(text, COMM_PLACE_TEXT, _(", stage %d of replica %d"), at.stage, at.replica);
}

void comm_report(struct comm_report *report, const struct comm *comm, int code, const struct error *own)
{
    *report = (struct comm_report){.code = code, .layout = comm->layout};
    if (code) report->err = *own;
    gethostname(report->host, sizeof report->host - 1);
}

int comm_name_rank(const struct comm_report *report, int rank, int code, const char *hint, const char *what,
                   struct error *err)
{
    struct error named = {0};
    char place[COMM_PLACE_TEXT];
    comm_place_text(place, rank, report->layout);
    error_set(&named, code, hint, "rank %d (host %s%s) %s: %s", rank, report->host, place, what,
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
