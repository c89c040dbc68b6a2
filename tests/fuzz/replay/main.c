/* Runs a fuzz target once over each file named, or each in the directories named, with any compiler: a corpus
 * is a set of regression tests. Usage: corpus_NAME PATH... */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int replay(const char *path)
{
    struct error err;
    char *data;
    size_t bytes;
    if (file_read(path, (size_t)64 << 20, &data, &bytes, &err)) {
        error_print(&err);
        return 1;
    }
    uint8_t *exact = xmalloc(bytes); /* without the NUL after it, so that ASan sees a read beyond the end */
    memcpy(exact, data, bytes);
    free(data);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
    return 0;
}

int main(int argc, char **argv)
{
    int count = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            failed += replay(argv[i]), count++;
            continue;
        }
        for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
            if (entry->d_name[0] == '.') continue;
            char *path = path_join(argv[i], entry->d_name);
            failed += replay(path), count++;
            free(path);
        }
        closedir(dir);
    }
    printf("%d inputs, %d unreadable\n", count, failed);
    return failed || !count;
}
