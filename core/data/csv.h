/* Comma-separated values (RFC 4180) in UTF-8, with or without a byte order mark. Lines end in CR LF, LF or
 * CR. */
#ifndef MEOPT_DATA_CSV_H
#define MEOPT_DATA_CSV_H

#include "core/base/error.h"

#include <stdint.h>

struct csv {
    char *at, *end; /* the text that remains */
    int64_t line;   /* of the text at `at`, from 1 */
    int64_t begin;  /* line of the row that csv_row returned */
    char **fields;  /* (count) of that row, terminated; they point into the text */
    int count, capacity;
};
/* Begins with a text of `bytes` bytes and a NUL, which is changed in place and must outlive the fields. */
int csv_open(struct csv *csv, char *text, size_t bytes, struct error *err);
/* Reads the next row; empty lines are skipped. Sets *more to 0 after the last one. An error has no file: the
 * caller adds it, with csv->line. */
int csv_row(struct csv *csv, int *more, struct error *err);
void csv_close(struct csv *csv);

#endif
