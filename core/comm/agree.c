/* Ranks agree whether all of them have done something: see comm.h. */
#include "core/comm/comm.h"

#include <stdio.h>
#include <unistd.h>

void dist_report(struct dist_report *report, int code, const struct error *own)
{
    *report = (struct dist_report){.code = code};
    if (code) report->err = *own;
    gethostname(report->host, sizeof report->host - 1);
}

int dist_name_rank(const struct dist_report *report, int rank, int code, const char *hint, const char *what,
                   struct error *err)
{
    struct error named = {0};
    error_set(&named, code, hint, "rank %d (host %s) %s: %s", rank, report->host, what, report->err.what);
    if (report->err.file[0]) error_at(&named, report->err.file, 0, 0);
    if (err) *err = named;
    return code;
}

int dist_agree(struct dist *dist, int code, const struct error *own, const char *what, struct error *err)
{
    struct dist_report report;
    double first = code ? dist->rank : dist->size; /* that has failed */
    if (!dist->ops || dist->size == 1 || code == EXIT_RANK_LOST) {
        if (code && err) *err = *own;
        return code;
    }
    int lost = dist_all_reduce(dist, DIST_MIN, &first, 1, err);
    if (lost || first >= dist->size) return lost;
    dist_report(&report, code, own);
    lost = dist_broadcast(dist, &report, sizeof report, (int)first, err);
    return lost ? lost : dist_name_rank(&report, (int)first, report.code, report.err.hint, what, err);
}
