/* Where archives come from: configs/sources.yaml, then
 * $XDG_CONFIG_HOME/meopt/sources.yaml, whose entries replace those of the same name (man
 * meopt-sources). And what we remember of archives that came without a published checksum. */
#ifndef MEOPT_FETCH_SOURCES_H
#define MEOPT_FETCH_SOURCES_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct source {
    char *name, *about;
    char **urls; /* mirrors in order; https:// or file://, the latter absolute here */
    int url_count;
    char *file;      /* name of the archive on disk */
    char *top;       /* directory that the archive unpacks to; NULL: whatever single one it holds */
    char *dest;      /* where it goes unless --dest says; NULL: the working directory */
    char sha256[65]; /* lower case; "" when the publisher gives none */
    int64_t size, unpacked_size, entries; /* bytes, bytes, files; -1 unknown */
    int64_t size_about; /* where the publisher gives no exact size: for people, and the time left over all */
    bool trust_first_use; /* without sha256: take what TLS brings the first time, then demand the same */
    char **includes;      /* a group: other sources by name; then there is no url */
    int include_count;
};

struct sources {
    struct source *all;
    int count;
};

/* Text of one file; `path` is for messages and for relative file: URLs.
 * Entries replace earlier ones of the same name. */
int sources_add(struct sources *sources, const char *text, size_t bytes, const char *path, struct error *err);
/* The shipped file and the user's. */
int sources_load(struct sources *sources, struct error *err);
void sources_free(struct sources *sources);
const struct source *sources_find(const struct sources *sources, const char *name);

/* 64 hex digits, any case, into lower case. */
bool sha256_parse(char out[65], const char *text);

/* $XDG_STATE_HOME/meopt/known_archives.json: URL -> sha256 and size of what came first. */
bool known_archive(const char *url, char sha256[65], int64_t *size);
int known_archive_add(const char *url, const char *sha256, int64_t size, struct error *err);

/* A URL fit for people and logs: without user, password,
 * query and fragment, control characters escaped. dst of `size` bytes. */
char *url_printable(char *dst, size_t size, const char *url);

#endif
