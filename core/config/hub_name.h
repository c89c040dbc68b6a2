/* Names of repositories of Hugging Face Hub and ModelScope, and their snapshots in the caches of
 * huggingface_hub and modelscope_hub, whose layouts fetch/hub.h describes. Nothing here sends a request.
 */
#ifndef MEOPT_CONFIG_HUB_NAME_H
#define MEOPT_CONFIG_HUB_NAME_H

#include "core/base/error.h"

#include <stdbool.h>

enum { HUB_REVISION = 200 };
struct hub_row {
    const char *prefix, *title, *revision;      /* "hf:", name for messages, revision if none is given */
    const char *endpoint, *url, *token, *cache; /* variables; url: of the hub without a variable */
};
extern const struct hub_row hub_rows[];
enum hub_kind { HUB_HUGGING_FACE, HUB_MODELSCOPE, HUB_KINDS };

struct hub_name {
    enum hub_kind kind;
    char repo[200], revision[HUB_REVISION]; /* OWNER/REPO */
    bool dataset;
};
/* Returns whether the text is the name of a repository, right or wrong. */
bool hub_is_name(const char *text);
/* Parses PREFIX[datasets/]OWNER/REPO[@REV]. EXIT_USAGE. */
int hub_name_parse(struct hub_name *name, const char *text, struct error *err);
/* Returns why this path is not written below a directory, or NULL. */
const char *hub_path_refused(const char *path);
/* Returns whether the text is a commit: 40 hexadecimal digits. */
bool hub_is_commit(const char *text);

/* Directories by the environment, malloc'ed: HF_HOME, of the token; the hub's cache. */
char *hub_home(void);
char *hub_cache(enum hub_kind kind);
/* Directory of a repository in a cache, malloc'ed. */
char *hub_repository(const char *cache, const struct hub_name *name);
/* Finds the snapshot that the cache has for a revision, malloc'ed; NULL: none. commit: of Hugging Face Hub;
 * at ModelScope the revision, since its snapshots follow their branch. */
char *hub_cached_snapshot(char commit[HUB_REVISION], const char *cache, const struct hub_name *name);

/* Returns the path of PREFIX[datasets/]OWNER/REPO[@REV][/PATH] in the cache, malloc'ed: a directory, or the
 * file PATH. NULL: EXIT_USAGE for a wrong name, EXIT_CONFIG if the cache does not have it. */
char *hub_resolve(const char *text, struct error *err);

#endif
