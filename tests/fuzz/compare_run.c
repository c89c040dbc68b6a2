/* libFuzzer: any bytes as the files of two runs (metrics.jsonl, meta.json, state.json, config.yaml of one,
 * then of the other, split at 0xff), compared and printed in every form. No output may hold a control
 * character of theirs, and the page no element of theirs. */
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/compare/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const names[] = {"metrics.jsonl", "meta.json", "state.json", "config.yaml"};

static void put(const char *directory, const char *name, const uint8_t *data, size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    if (size) fwrite(data, 1, size, f);
    fclose(f);
}

static void check(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < 0x20 && text[i] != '\n' && text[i] != '\r') abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char directories[2][64];
    log_level = LOG_QUIET;
    for (int i = 0; i < 2; i++) {
        snprintf(directories[i], sizeof directories[i], "/tmp/fuzz_compare_%d_%d", (int)getpid(), i);
        mkdir(directories[i], 0777);
    }
    const uint8_t *end = data + size;
    for (int k = 0; k < 8; k++) {
        const uint8_t *stop = data < end ? memchr(data, 0xff, (size_t)(end - data)) : NULL;
        if (!stop) stop = end;
        put(directories[k / 4], names[k % 4], data, (size_t)(stop - data));
        data = stop < end ? stop + 1 : end;
    }
    struct column *columns = xcalloc(2, sizeof *columns);
    struct error err = {0};
    int good = 0;
    for (int i = 0; i < 2; i++) {
        struct record *r = xcalloc(1, sizeof *r);
        if (record_read(r, directories[i], &err)) {
            if (!err.what[0]) abort();
            free(r);
            continue;
        }
        columns[good++] = (struct column){.name = xstrdup(r->name), .runs = r, .run_count = 1};
    }
    if (good) {
        struct table *table = table_make(columns, good, 0);
        struct plot plots[PLOT_COUNT];
        struct output_options options = {.all = true, .unicode = true, .width = 80};
        char *text = NULL;
        size_t bytes = 0;
        plots_make(plots, table);
        for (int form = 0; form < 5; form++) {
            FILE *out = open_memstream(&text, &bytes);
            if (form == 0) output_terminal(out, table, plots, &options);
            if (form == 1) output_json(out, table, &options);
            if (form == 2) output_csv(out, table, &options);
            if (form == 3) output_markdown(out, table, &options);
            if (form == 4) output_html(out, table, plots, &options);
            fclose(out);
            check(text, bytes);
            if (form == 4 && (strstr(text, "<b>") || strstr(text, "onerror=\""))) abort();
            free(text);
        }
        plots_free(plots);
        table_free(table);
    } else free(columns);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 4; k++) {
            char path[256];
            snprintf(path, sizeof path, "%s/%s", directories[i], names[k]);
            unlink(path);
        }
        rmdir(directories[i]);
    }
    return 0;
}
