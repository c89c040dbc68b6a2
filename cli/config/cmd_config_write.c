/* meopt config set, unset, new: change or create configurations. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/config/document.h"
#include "core/config/edit.h"
#include "core/config/value.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Prints notes about the values that were just written; `config check` prints all. */
struct notes {
    const struct edit *edits;
    int count;
    const struct config *config;
};

static void report_note(void *context, bool fatal, const struct error *e)
{
    const struct notes *n = context;
    for (int i = 0; i < n->count && !fatal; i++) {
        const struct config_origin *origin = &n->config->origins[config_key_index(n->edits[i].key)];
        if (!n->edits[i].value || e->line == 0 || (origin->from == ORIGIN_FILE && origin->line != e->line))
            continue;
        if (origin->from != ORIGIN_FILE && !strstr(e->what, n->edits[i].value)) continue;
        fprintf(stderr, _("note: %s: %.*s; %s\n"), n->edits[i].key, (int)strcspn(e->what, "\n"), e->what,
                e->hint);
        return;
    }
}

static int change(const struct arguments *args, struct edit *edits, int count, struct error *err)
{
    const char *path = args->operands[0];
    bool dry = argument_flag(args, "dry-run"), json = argument_flag(args, "json");
    char *before, *after;
    size_t before_bytes, after_bytes;
    int code = edit_file(path, edits, count, dry, &before, &before_bytes, &after, &after_bytes, err);
    if (code) return code;
    struct config old, new;
    struct notes notes = {edits, count, &new};
    (void)config_examine(&old, path, before, before_bytes, NULL, 0, NULL, NULL, NULL);
    (void)config_examine(&new, path, after, after_bytes, NULL, 0, report_note, &notes, NULL);
    json_t *keys = json_object();
    for (int i = 0; i < count; i++) {
        int key = config_key_index(edits[i].key);
        json_object_set_new(keys, config_keys[key].name,
                            json_pack("{s:o, s:o}", "old", config_value_json(&old, key), "new",
                                      config_value_json(&new, key)));
    }
    bool changed = before_bytes != after_bytes || memcmp(before, after, before_bytes) != 0;
    char *diff = config_changes(&old, &new);
    if (json)
        print_json(json_pack("{s:b, s:b, s:O, s:s?}", "changed", changed, "written", changed && !dry, "keys",
                             keys, "diff", diff));
    else fputs(diff, dry ? stdout : stderr);
    json_decref(keys);
    config_free(&old);
    config_free(&new);
    free(diff);
    free(before);
    free(after);
    return 0;
}

static int set_run(const struct arguments *args, struct error *err)
{
    int count = args->operand_count - 1, code = 0;
    struct edit *edits = xcalloc((size_t)count, sizeof *edits);
    for (int i = 0; i < count && code == 0; i++) {
        char *equals = strchr(args->operands[i + 1], '=');
        if (!equals) {
            const char *text = args->operands[i + 1];
            char named[96];
            bool other = document_lookalike(named, sizeof named, text, strlen(text), 0);
            code = error_set(err, EXIT_USAGE,
                             other ? named : N_("write key=value, for example optim.use_meopt=true"),
                             "'%s' is not key=value", text);
            break;
        }
        *equals = 0;
        edits[i] = (struct edit){args->operands[i + 1], equals + 1};
        code = config_key_named(edits[i].key, err) < 0 ? EXIT_CONFIG : 0;
    }
    if (code == 0) code = change(args, edits, count, err);
    free(edits);
    return code;
}

static int unset_run(const struct arguments *args, struct error *err)
{
    int count = args->operand_count - 1, code = 0;
    struct edit *edits = xcalloc((size_t)count, sizeof *edits);
    for (int i = 0; i < count && code == 0; i++) {
        edits[i].key = args->operands[i + 1];
        code = config_key_named(edits[i].key, err) < 0 ? EXIT_CONFIG : 0;
    }
    if (code == 0) code = change(args, edits, count, err);
    free(edits);
    return code;
}

static const struct option change_options[] = {
    {"dry-run", .letter = 'n', .help = "print the change, write nothing"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_config_set = {
    .name = "config set",
    .operands = "FILE key=value ...",
    .summary = "change values; comments, quotes and every other byte stay",
    .details =
        "Examples:\n  meopt config set configs/eva_clip.yaml optim.use_meopt=true\n"
        "  meopt config set -n configs/eva_clip.yaml optim.lr=1.0e-4 train.micro_batch=8\n\n"
        "Several changes are one atomic write. Aliases, merged keys and block scalars are refused with\n"
        "their line and column, because they cannot be changed safely.",
    .options = change_options,
    .min_operands = 2,
    .max_operands = -1,
    .run = set_run,
};

const struct command cmd_config_unset = {
    .name = "config unset",
    .operands = "FILE KEY ...",
    .summary = "remove keys, so that their defaults apply",
    .details = "Example:\n  meopt config unset configs/eva_clip.yaml optim.weight_decay",
    .options = change_options,
    .min_operands = 2,
    .max_operands = -1,
    .run = unset_run,
};

/* ---- new ---- */

static const char *template_name(int i) { return config_templates[i].name; }

/* Returns the path from the file's directory to the working directory, where `meopt fetch` unpacks: "" if
 * they are equal, "../" for a subdirectory, else absolute. malloc'ed. */
static char *way_back(const char *path)
{
    char *within = strcmp(path, "-") == 0 ? xstrdup(".") : path_dirname(path), *file = realpath(within, NULL),
         *here = realpath(".", NULL), *way = NULL;
    size_t n = here ? strlen(here) : 0;
    if (file && here && strncmp(file, here, n) == 0 && (file[n] == 0 || file[n] == '/' || n == 1)) {
        way = xstrdup("");
        for (const char *p = file + n; *p; p++) {
            if (*p != '/' && p != file + n) continue;
            char *longer = xasprintf("../%s", way);
            free(way);
            way = longer;
        }
    } else {
        way = here ? xasprintf("%s/", strcmp(here, "/") == 0 ? "" : here) : xstrdup("../");
    }
    free(here);
    free(file);
    free(within);
    return way;
}

/* Replaces "../" at the beginning of the template's paths, which is only correct in configs/, by the path
 * to the working directory. */
static int relocate(const struct config_template *t, const char *path, char **text, size_t *bytes,
                    struct error *err)
{
    const char *from = (const char *)t->text;
    struct document d;
    int code = document_parse(&d, path, from, t->bytes, err);
    if (code) return code;
    size_t done = 0;
    char *way = way_back(path);
    FILE *out = open_memstream(text, bytes);
    for (int i = 0; i < d.count && out; i++) {
        const struct node *n = &d.nodes[i];
        if (n->kind != NODE_SCALAR || strncmp(n->text, "../", 3) != 0) continue;
        char *value = xasprintf("%s%s", way, n->text + 3);
        char *word = value_plain_safe(value, false) ? xstrdup(value) : value_quoted(value);
        fwrite(from + done, 1, n->start - done, out);
        fputs(word, out);
        done = n->end;
        free(word);
        free(value);
    }
    if (out) fwrite(from + done, 1, t->bytes - done, out);
    if (!out || fclose(out) != 0) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    free(way);
    document_free(&d);
    return code;
}

static int new_run(const struct arguments *args, struct error *err)
{
    const char *name = args->operands[0];
    const struct config_template *found = NULL;
    const char *names[32] = {NULL};
    int count = 0;
    for (; template_name(count) && count < 32; count++) {
        names[count] = template_name(count);
        if (strcmp(names[count], name) == 0) found = &config_templates[count];
    }
    if (!found) {
        char hint[320];
        snprintf(hint, sizeof hint, "%s", _("one of"));
        const char *near = value_nearest(name, names, count);
        if (near) snprintf(hint, sizeof hint, _("did you mean %s?"), near);
        for (int i = 0; i < count && !near; i++) {
            size_t n = strlen(hint);
            snprintf(hint + n, sizeof hint - n, "%s %s", i ? "," : "", names[i]);
        }
        return error_set(err, EXIT_USAGE, hint, "no configuration '%s'", name);
    }
    char *path = args->operand_count > 1 ? xstrdup(args->operands[1]) : xasprintf("%s.yaml", name);
    struct stat st;
    char *text = NULL;
    size_t bytes = 0;
    int code = relocate(found, path, &text, &bytes, err);
    if (code) {
        free(path);
        return code;
    }
    if (strcmp(path, "-") == 0) {
        fwrite(text, 1, bytes, stdout);
    } else if (!argument_flag(args, "force") && lstat(path, &st) == 0) {
        code = error_set(err, EXIT_FAILED, "use a different name, or --force", "already exists");
        error_at(err, path, 0, 0);
    } else {
        code = file_write_atomic(path, text, bytes, err);
        if (code == 0) printf("%s\n", path);
    }
    free(text);
    free(path);
    return code;
}

static const struct option new_options[] = {
    {"force", .letter = 'f', .help = "replace an existing file"},
    {0},
};

const struct command cmd_config_new = {
    .name = "config new",
    .operands = "NAME [FILE]",
    .summary = "write a commented configuration: eva_clip, open_clip, dinov2, quickstart, ...",
    .details =
        "FILE: default NAME.yaml in the working directory; - for standard output.\n"
        "Its paths refer to COCO2014 and ModelWeight in the working directory, where 'meopt fetch' unpacks "
        "them.\n\n"
        "Example:\n  meopt config new eva_clip my.yaml",
    .options = new_options,
    .min_operands = 1,
    .max_operands = 2,
    .run = new_run,
};
