/* Sources of archives: configs/sources.yaml, then $XDG_CONFIG_HOME/meopt/sources.yaml, whose entries
 * replace those with the same name (man meopt-sources). Also the stored checksums of archives without a
 * published one. */
#ifndef MEOPT_FETCH_SOURCES_H
#define MEOPT_FETCH_SOURCES_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct source {
    char *name, *about;
    char **urls; /* mirrors in order; https://, or file:// with an absolute path */
    int url_count;
    char *file;      /* name of the archive on disk */
    char *top;       /* directory that the archive unpacks to; NULL: its only directory */
    char *dest;      /* default of --dest; NULL: the working directory */
    char sha256[65]; /* lower case; "": not published */
    int64_t size, unpacked_size, entries; /* bytes, bytes, files; -1 unknown */
    int64_t size_about;   /* approximate size, if no exact one is published: for display and time estimates */
    bool trust_first_use; /* without sha256: accept the first download over TLS, then require the same */
    char **includes;      /* a group: names of other sources; excludes urls */
    int include_count;
};

struct sources {
    struct source *all;
    int count;
};

/* Parses the text of one file; `path` is for messages and relative file: URLs. Entries replace earlier ones
 * with the same name. */
int sources_add(struct sources *sources, const char *text, size_t bytes, const char *path, struct error *err);
/* Loads the installed file and the user's. */
int sources_load(struct sources *sources, struct error *err);
void sources_free(struct sources *sources);
const struct source *sources_find(const struct sources *sources, const char *name);

/* Parses 64 hex digits and converts them to lower case. */
bool sha256_parse(char out[65], const char *text);

/* Reads and adds entries of $XDG_STATE_HOME/meopt/known_archives.json: URL -> sha256 and size of the first
 * download. */
bool known_archive(const char *url, char sha256[65], int64_t *size);
int known_archive_add(const char *url, const char *sha256, int64_t size, struct error *err);

/* Writes a URL for display to dst (size): without user, password, query and fragment, control characters
 * escaped. */
char *url_printable(char *dst, size_t size, const char *url);

#endif
