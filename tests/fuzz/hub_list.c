/* Lists of files, commits and names of a hub. */
#include "fetch/hub.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error err;
    char commit[HUB_REVISION], *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, bytes, size);
    text[size] = 0;
    for (int kind = 0; kind < HUB_KINDS; kind++) {
        struct hub_files files = {0};
        int entries = 0;
        if (hub_files_add(&files, (enum hub_kind)kind, text, size, &entries, &err) == 0 &&
            files.count > entries)
            abort();
        for (int i = 0; i < files.count; i++)
            if (hub_path_refused(files.all[i].path) || files.all[i].size < 0 || strlen(files.all[i].id) < 40)
                abort();
        hub_files_select(&files, "*.json,a/", "b*");
        hub_files_free(&files);
    }
    if (hub_commit_parse(commit, text, size, &err) == 0 && !hub_is_commit(commit)) abort();
    if (hub_is_name(text)) {
        struct hub_name name;
        if (hub_name_parse(&name, text, &err) == 0 && hub_path_refused(name.revision)) abort();
        free(hub_resolve(text, &err));
    }
    free(text);
    return 0;
}
