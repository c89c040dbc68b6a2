/* Names of repositories of Hugging Face Hub, and their snapshots in the cache of huggingface_hub, whose
 * layout fetch/hub.h describes. Nothing here sends a request.
 */
#ifndef MEOPT_CONFIG_HUB_NAME_H
#define MEOPT_CONFIG_HUB_NAME_H

#include "core/base/error.h"

#include <stdbool.h>

struct hub_name {
    char repo[200], revision[200]; /* OWNER/REPO; "main" if none was given */
    bool dataset;
};
/* Returns whether the text is the name of a repository, right or wrong. */
bool hub_is_name(const char *text);
/* Parses hf:[datasets/]OWNER/REPO[@REV]. EXIT_USAGE. */
int hub_name_parse(struct hub_name *name, const char *text, struct error *err);
/* Returns why this path is not written below a directory, or NULL. */
const char *hub_path_refused(const char *path);
/* Returns whether the text is a commit: 40 hexadecimal digits. */
bool hub_is_commit(const char *text);

/* Directories by the environment, malloc'ed: HF_HOME, of the token; HF_HUB_CACHE, of the repositories. */
char *hub_home(void);
char *hub_cache(void);
/* Directory of a repository in a cache, malloc'ed. */
char *hub_repository(const char *cache, const struct hub_name *name);
/* Finds the commit that the cache has for a revision, and its snapshot. */
bool hub_cached_commit(char commit[41], const char *repository, const char *revision);

/* Returns the path of hf:[datasets/]OWNER/REPO[@REV][/PATH] in the cache, malloc'ed: a directory, or the file
 * PATH. NULL: EXIT_USAGE for a wrong name, EXIT_CONFIG if the cache does not have it. */
char *hub_resolve(const char *text, struct error *err);

#endif
