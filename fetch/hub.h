/* Files of a repository of Hugging Face Hub or ModelScope, in the cache of huggingface_hub or modelscope_hub.
 *
 * API (huggingface_hub, hf_api.py and file_download.py): ENDPOINT/api/models/REPO/revision/REV gives
 * the commit, .../tree/COMMIT?recursive=true its files with git's blob ids and the sha256 of LFS files, in
 * pages (Link: rel="next"); ENDPOINT/REPO/resolve/COMMIT/PATH is a file, usually on another host.
 *
 * Cache: models--OWNER--REPO/blobs/ID (sha256 of an LFS file, git's blob id of any
 * other), snapshots/COMMIT/PATH (links to blobs), refs/REV (the commit); .meopt-fetch has partial files.
 *
 * ModelScope (modelscope_hub, _legacy_api.py and _download.py): api/v1/models/REPO/repo/files?Revision=REV
 * lists the files with their sha256, api/v1/datasets/REPO/repo/tree in numbered pages;
 * .../repo?Revision=REV&FilePath=PATH is a file.
 *
 * Cache: models/OWNER--REPO/snapshots/REV/PATH, files.
 */
#ifndef MEOPT_FETCH_HUB_H
#define MEOPT_FETCH_HUB_H

#include "core/config/hub_name.h"
#include "fetch/download.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hub_file {
    char *path; /* relative, without "..": hub_path_refused */
    int64_t size;
    char id[65]; /* name of its blob */
    bool lfs;    /* id is a sha256, else git's blob id */
};
struct hub_files {
    struct hub_file *all;
    int count;
    int64_t bytes;
};
void hub_files_free(struct hub_files *files);
/* Adds one page of a hub's list of files. *entries: on the page, with its directories. EXIT_INTEGRITY: not a
 * list, a refused path, or a wrong size or id. */
int hub_files_add(struct hub_files *files, enum hub_kind kind, const char *json, size_t bytes, int *entries,
                  struct error *err);
/* Reads the commit, 40 hexadecimal digits, of a description of a revision. EXIT_INTEGRITY. */
int hub_commit_parse(char commit[HUB_REVISION], const char *json, size_t bytes, struct error *err);
/* Keeps the files that match a pattern of `include` (NULL: all) and none of `exclude`: patterns of fnmatch,
 * in which * matches / as well, separated by commas. */
void hub_files_select(struct hub_files *files, const char *include, const char *exclude);

/* A hub, as the environment describes it. */
struct hub {
    enum hub_kind kind;
    char *endpoint, *cache;
    char *authorization; /* header lines with the token, for the endpoint's origin alone; NULL: none */
    const atomic_int *cancel;
    bool offline;               /* HF_HUB_OFFLINE: no requests */
    struct connections *shared; /* with other downloads of the command; NULL: there are none */
    void *easy, *multi;         /* CURL and CURLM, whose open connections are reused; NULL: none */
    void *context;
    void (*notice)(void *context, const char *text); /* a message for the user; may be NULL */
};
/* Reads HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE (and the older names
 * of token and cache), or MODELSCOPE_ENDPOINT, MODELSCOPE_API_TOKEN and MODELSCOPE_CACHE. */
int hub_open(struct hub *hub, enum hub_kind kind, const atomic_int *cancel, struct error *err);
void hub_close(struct hub *hub);

/* Keeps connections open between the requests and downloads of one thread, until they are dropped. */
void hub_keep_connections(struct hub *hub);
void hub_drop_connections(struct hub *hub);

/* Reads the commit of the revision and its files from the cache. EXIT_NETWORK: it is not there, or a file is
 * missing. */
int hub_list_cached(const struct hub *hub, const struct hub_name *name, char commit[HUB_REVISION],
                    struct hub_files *files, struct error *err);
/* Asks for the commit of the revision and its files. EXIT_NETWORK: also a missing or gated repository. */
int hub_list(const struct hub *hub, const struct hub_name *name, char commit[HUB_REVISION],
             struct hub_files *files, struct error *err);
/* Finds the address of a file's bytes. *authorized: it has the endpoint's origin. The caller frees *url. */
int hub_locate(const struct hub *hub, const struct hub_name *name, const char *commit, const char *path,
               char **url, bool *authorized, struct error *err);

/* Makes a repository's directory in the cache. EXIT_FAILED: also if it is a symbolic link. */
int hub_make_repository(const char *directory, struct error *err);
/* Bytes that the file still needs on the disk. */
int64_t hub_file_missing(const struct hub *hub, const struct hub_name *name, const char *commit,
                         const struct hub_file *file);
/* One file of hub_fetch_file. */
struct hub_download {
    const struct hub *hub;
    const struct hub_name *name;
    const char *commit;
    const struct hub_file *file;
    int connections; /* most of them */
    void *context;
    void (*progress)(void *context, const struct transfer_progress *p);
    void (*notice)(void *context, const char *text);
    int64_t received, before; /* bytes: of all addresses, of the earlier ones; 0 at first */
};
/* Brings one file into the cache, resumed and verified, and links it in the snapshot. Not for two files with
 * the same id at the same time. */
int hub_fetch_file(struct hub_download *d, struct error *err);

struct hub_state {
    const struct hub_file *file; /* that is reported */
    int64_t file_bytes;
    int64_t bytes, received; /* of all files: in the cache; of these, over the network by this call */
    int done;                /* complete files */
    int tries;               /* of the file */
    double retry_in;         /* seconds until it; 0: not pausing */
    bool pause_begins;       /* its first report */
    const char *reason;
};
/* Functions that one thread at a time calls. */
struct hub_progress {
    void *context;
    void (*progress)(void *context, const struct hub_state *s);
    void (*notice)(void *context, const struct hub_file *file, const char *text);
    void (*ended)(void *context, const struct hub_file *file, int code, const struct error *err);
};
enum { HUB_CONNECTIONS = 8 };
/* Brings files into the cache, several at a time, with at most `connections` requests at a time (up to
 * HUB_CONNECTIONS). The first error ends all downloads, which keep their bytes. *received: over the
 * network. */
int hub_fetch_files(const struct hub *hub, const struct hub_name *name, const char *commit,
                    const struct hub_files *files, int connections, const struct hub_progress *progress,
                    int64_t *received, struct error *err);
/* Records the revision's commit. Call it when all files are there. */
int hub_finish(const struct hub *hub, const struct hub_name *name, const char *commit, struct error *err);

#endif
