/* meopt config get, list, check, diff: print and check configurations. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "cli/language.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/config/combinations.h"
#include "core/config/document.h"
#include "core/config/edit.h"
#include "core/config/value.h"
#include "core/data/data.h"
#include "core/experiment/experiment.h"
#include "core/experiment/objective.h"
#include "core/step/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Shared ---- */

json_t *config_value_json(const struct config *config, int key)
{
    const void *field = (const char *)config + config_keys[key].offset;
    switch (config_keys[key].type) {
    case CONFIG_TEXT:
    case CONFIG_PATH: {
        const char *text = *(char *const *)field;
        json_t *value = text && text[0] ? json_string(text) : NULL; /* NULL when it is not UTF-8, too */
        return value ? value : json_null();
    }
    case CONFIG_CHOICE: return json_string(config_choice(key, (int)*(const unsigned *)field));
    case CONFIG_BOOL: return json_boolean(*(const bool *)field);
    case CONFIG_SWITCH: return *(const int *)field < 0 ? json_null() : json_boolean(*(const int *)field);
    case CONFIG_REAL: return json_real(*(const double *)field);
    default: return json_integer(*(const int64_t *)field);
    }
}

char *config_value_plain(const struct config *config, int key)
{
    if (config_keys[key].type != CONFIG_TEXT && config_keys[key].type != CONFIG_PATH)
        return config_value_text(config, key);
    const char *text = *(char *const *)((const char *)config + config_keys[key].offset);
    if (!text[0]) return xstrdup("-");
    size_t size = 4 * strlen(text) + 1;
    char *shown = xmalloc(size);
    text_printable(shown, size, text);
    for (char *p = shown; *p; p++)
        if (*p == '\n') *p = ' ';
    return shown;
}

char *config_changes(const struct config *old, const struct config *new)
{
    char *text = xstrdup("");
    for (int key = 0; key < config_key_count; key++) {
        char *x = config_value_plain(old, key), *y = config_value_plain(new, key), *longer;
        int from = old->origins[key].from, to = new->origins[key].from;
        if (from != to || strcmp(x, y) != 0) {
            longer = xasprintf("%s%s: %s%s -> %s%s\n", text, config_keys[key].name, x,
                               from == ORIGIN_DEFAULT ? _(" (default)") : "", y,
                               to == ORIGIN_DEFAULT ? _(" (default)") : "");
            free(text);
            text = longer;
        }
        free(x);
        free(y);
    }
    return text;
}

void config_origin_text(char *dst, size_t size, const struct config *config, int key)
{
    const struct config_origin *origin = &config->origins[key];
    char name[256];
    if (origin->from == ORIGIN_FILE)
        snprintf(dst, size, "%s:%d", text_printable(name, sizeof name, path_basename(config->path)),
                 origin->line);
    else snprintf(dst, size, "%s", origin->from == ORIGIN_OVERRIDE ? _("command line") : "default");
}

void print_json(json_t *root)
{
    json_print(stdout, root, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    json_decref(root);
}

json_t *path_json(const char *path)
{
    json_t *text = json_string(path);
    char *shown = text ? NULL : xmalloc(4 * strlen(path) + 1);
    if (!text) text = json_string(name_printable(shown, 4 * strlen(path) + 1, path));
    free(shown);
    return text;
}

bool colour_wanted(FILE *stream)
{
    const char *no = getenv("NO_COLOR"), *ours = getenv("MEOPT_NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(stream)) && !(no && no[0]) && !(ours && ours[0]) && term &&
           strcmp(term, "dumb") != 0;
}

int config_key_named(const char *name, struct error *err)
{
    int key = config_key_index(name);
    if (key >= 0) return key;
    const char **names = xcalloc((size_t)config_key_count, sizeof *names), *near = config_synonym(name);
    for (int i = 0; i < config_key_count; i++) names[i] = config_keys[i].name;
    if (!near) near = value_nearest(name, names, config_key_count);
    free(names);
    char hint[160] = N_("to list all keys: meopt config list");
    if (near) snprintf(hint, sizeof hint, _("did you mean %s?"), near);
    error_set(err, EXIT_CONFIG, hint, "%s is not a key", name);
    return -1;
}

/* Ignores notes, which are for `config check`. */
static int load_quietly(struct config *config, const char *path, char **overrides, int count,
                        struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    int code = config_read_file(path, &text, &bytes, err);
    if (code) return code;
    code = config_examine(config, path, text, bytes, overrides, count, NULL, NULL, err);
    free(text);
    if (code) config_free(config);
    return code;
}

/* ---- get ---- */

static int get_run(const struct arguments *args, struct error *err)
{
    struct config config;
    for (int i = 1; i < args->operand_count; i++)
        if (config_key_named(args->operands[i], err) < 0) return EXIT_CONFIG;
    int code = load_quietly(&config, args->operands[0], NULL, 0, err);
    if (code) return code;
    bool json = argument_flag(args, "json");
    json_t *root = json ? json_object() : NULL;
    for (int i = 1; i < args->operand_count; i++) {
        int key = config_key_index(args->operands[i]);
        char *text = config_value_plain(&config, key);
        if (json) json_object_set_new(root, config_keys[key].name, config_value_json(&config, key));
        else if (args->operand_count == 2) printf("%s\n", strcmp(text, "-") == 0 ? "" : text);
        else printf("%s = %s\n", config_keys[key].name, text);
        free(text);
    }
    if (json) print_json(root);
    config_free(&config);
    return 0;
}

static const struct option json_option[] = {
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_config_get = {
    .name = "config get",
    .operands = "FILE KEY ...",
    .summary = "print values of a configuration, including defaults",
    .details = "Example:\n  meopt config get configs/eva_clip.yaml optim.lr train.batch_size",
    .options = json_option,
    .min_operands = 2,
    .max_operands = -1,
    .run = get_run,
};

/* ---- list ---- */

static void list_table(bool json)
{
    json_t *root = json ? json_object() : NULL;
    for (int key = 0; key < config_key_count; key++) {
        const struct config_key *k = &config_keys[key];
        if (config_key_repeats(key)) continue;
        char *expected = value_expected(key);
        if (json) {
            json_object_set_new(root, k->name,
                                json_pack("{s:s, s:s?, s:s, s:s, s:s}", "expected", expected, "unit", k->unit,
                                          "default", k->standard, "used_by", k->used_by, "help", k->help));
        } else {
            if (key == 0 || strncmp(k->name, config_keys[key - 1].name, strcspn(k->name, ".") + 1) != 0)
                printf("%s%.*s\n", key ? "\n" : "", (int)strcspn(k->name, "."), k->name);
            printf("  %-26s %s\n  %-26s ", k->name, translation(k->help), "");
            printf(k->unit ? _("%s, in %s") : "%s", expected, k->unit);
            if (k->standard[0]) printf(_("; default %s"), k->standard);
            putchar('\n');
        }
        free(expected);
    }
    if (json) print_json(root);
}

static void list_row(void *context, const char *key, bool fatal, const char *hint, const char *sentence)
{
    json_t *rows = context;
    const char *more = strchr("._", key[strlen(key) - 1]) ? "*" : "";
    char name[80];
    snprintf(name, sizeof name, "%s%s", key, more);
    if (rows)
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:s}", "key", name, "severity",
                                              fatal ? "error" : "note", "what", sentence, "hint",
                                              translation(hint)));
    else printf("%s\n", name);
    for (int i = 0; !rows && i < 2; i++) {
        fputs("  ", stdout);
        print_wrapped(2, 2, translation(i ? hint : sentence));
    }
}

/* Lists the combinations of keys that are refused or have no effect. */
static int list_combinations(bool json, struct error *err)
{
    struct config config;
    int code = config_load_text(&config, "-", "", 0, NULL, 0, err);
    if (code) return code;
    json_t *rows = json ? json_array() : NULL;
    experiment_combinations(
        &(struct combinations){.config = &config, .bad = list_row, .context = rows, .list = true});
    if (json) print_json(rows);
    config_free(&config);
    return 0;
}

static int list_run(const struct arguments *args, struct error *err)
{
    bool json = argument_flag(args, "json"), origin = argument_flag(args, "show-origin");
    if (argument_flag(args, "combinations")) {
        if (args->operand_count || origin)
            return error_set(err, EXIT_USAGE, "leave FILE and --show-origin out",
                             "--combinations lists rows of all configurations");
        return list_combinations(json, err);
    }
    if (args->operand_count == 0) {
        if (origin) return error_set(err, EXIT_USAGE, "give FILE", "--show-origin requires FILE");
        list_table(json);
        return 0;
    }
    struct config config;
    int code = load_quietly(&config, args->operands[0], args->operands + 1, args->operand_count - 1, err);
    if (code) return code;
    json_t *root = json ? json_object() : NULL;
    for (int key = 0; key < config_key_count; key++) {
        if (!config_key_used(&config, key)) continue;
        char from[320], *text = config_value_plain(&config, key);
        config_origin_text(from, sizeof from, &config, key);
        json_t *value = json ? config_value_json(&config, key) : NULL;
        if (json && origin) value = json_pack("{s:o, s:s}", "value", value, "origin", from);
        if (json) json_object_set_new(root, config_keys[key].name, value);
        else if (origin) printf("%-22s %s = %s\n", from, config_keys[key].name, text);
        else printf("%s = %s\n", config_keys[key].name, text);
        free(text);
    }
    if (json) print_json(root);
    config_free(&config);
    return 0;
}

static const struct option list_options[] = {
    {"show-origin", .help = "print the line, or the default, that each value comes from"},
    {"combinations", .help = "list the combinations of keys that are refused or have no effect"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_config_list = {
    .name = "config list",
    .operands = "[FILE [key=value ...]]",
    .summary = "list every key, or every value of a configuration",
    .details = "Examples:\n  meopt config list\n  meopt config list --combinations\n"
               "  meopt config list --show-origin configs/eva_clip.yaml",
    .options = list_options,
    .max_operands = -1,
    .run = list_run,
};

/* ---- check ---- */

struct check {
    json_t *problems; /* NULL without --json */
    int fatal, notes;
};

static void check_problem(void *context, bool fatal, const struct error *e)
{
    struct check *c = context;
    if (fatal) c->fatal++;
    else c->notes++;
    if (c->problems) {
        json_array_append_new(c->problems,
                              json_pack("{s:s, s:s, s:i, s:i, s:s, s:s}", "severity",
                                        fatal ? "error" : "note", "file", e->file, "line", e->line, "column",
                                        e->column, "what", e->what, "hint", e->hint));
    } else if (fatal) {
        error_print(e);
    } else {
        struct error named = *e;
        snprintf(named.what, sizeof named.what, _("note: %.600s"), e->what);
        error_print(&named);
    }
}

/* Checks the files that training requires. */
static void check_missing(void *context, const struct error *e) { check_problem(context, false, e); }

/* Prints a note about unset keys that training requires; the command line may still set them. */
static void check_unset(struct check *check, const char *path, const struct config *config)
{
    static const struct {
        const char *key, *unless, *is; /* required only if the key `unless` is NULL or has the value `is` */
    } needed[] = {{"model_t.weight", "model_t.init", "checkpoint"},
                  {"model_s.weight", "model_s.init", "checkpoint"},
                  {"data.root", NULL, NULL}};
    char keys[120] = "";
    for (size_t i = objective_of(config)->teacher ? 0 : 1; i < sizeof needed / sizeof *needed; i++) {
        char *value = config_value_plain(config, config_key_index(needed[i].key)),
             *other =
                 needed[i].unless ? config_value_plain(config, config_key_index(needed[i].unless)) : NULL;
        size_t n = strlen(keys);
        if (strcmp(value, "-") == 0 && (!other || strcmp(other, needed[i].is) == 0))
            snprintf(keys + n, sizeof keys - n, "%s%s", n ? ", " : "", needed[i].key);
        free(value);
        free(other);
    }
    struct error e = {0};
    if (!keys[0]) return;
    error_set(&e, EXIT_CONFIG, "to write a complete configuration: meopt config new",
              "not set, but required to train: %s", keys);
    error_at(&e, path, 0, 0);
    check_problem(check, false, &e);
}

/* Decodes every image (--data). Bad images are notes; more than data.max_bad, with which training would
 * end, are an error. */
static int check_data(struct check *check, const char *path, struct config *config)
{
    struct error e = {0};
    struct data_findings found = {0};
    struct model_shape shape;
    struct weights *weights = NULL;
    int code = 0;
    if (objective_of(config)->tokens && (!config->model_s.vocabulary || !config->model_s.context)) {
        /* those of the weights */
        code = experiment_set_classes(config, &e);
        if (!code) code = experiment_tower_shape(config, TOWER_STUDENT, &shape, &weights, &e);
    }
    weights_close(weights);
    struct data_options options = experiment_data_options(config);
    if (!code) code = data_check(&options, check_missing, check, &found, &e);
    int64_t allowed = data_bad_allowed(config->data.max_bad, found.images);
    if (!code && found.unlisted) {
        code = error_set(&e, EXIT_FAILED, "repair or exclude the entries in the notes",
                         "cannot list %lld entries below data.root", (long long)found.unlisted);
        error_at(&e, path, 0, 0);
    } else if (!code && found.bad > allowed) {
        code = error_set(&e, EXIT_FAILED, "repair or remove them, or raise data.max_bad",
                         "cannot decode %lld of %lld images; data.max_bad allows %lld", (long long)found.bad,
                         (long long)found.images, (long long)allowed);
        error_at(&e, path, 0, 0);
    }
    struct error note = {0};
    if (!code && !options.tokens && !config->train.steps &&
        experiment_mostly_warmup(config, found.images, &note)) {
        error_at(&note, path, 0, 0);
        check_problem(check, false, &note);
    }
    if (!code) code = experiment_check_samples(config, &e);
    if (code) check_problem(check, true, &e);
    if (!check->problems && found.images)
        printf(options.tokens ? _("%lld tokens in data.root, %lld bad\n")
                              : _("%lld images below data.root, %lld bad\n"),
               (long long)found.images, (long long)found.bad);
    return code;
}

static int check_run(const struct arguments *args, struct error *err)
{
    struct check check = {.problems = argument_flag(args, "json") ? json_array() : NULL};
    int code = 0, files = args->operand_count;
    while (files > 1 && strchr(args->operands[files - 1], '=') &&
           access(args->operands[files - 1], F_OK) != 0)
        files--; /* key=value ... */
    for (int i = 0; i < files; i++) {
        char *text = NULL;
        size_t bytes = 0;
        struct config config = {0};
        struct error e = {0};
        int before = check.fatal;
        int result = config_read_file(args->operands[i], &text, &bytes, &e);
        if (result) {
            check_problem(&check, true, &e);
        } else {
            result = config_examine(&config, args->operands[i], text, bytes, args->operands + files,
                                    args->operand_count - files, check_problem, &check, &e);
            if (result == 0) check_unset(&check, args->operands[i], &config);
            if (result == 0 && config.train.steps && experiment_mostly_warmup(&config, 0, &e)) {
                error_at(&e, args->operands[i], 0, 0);
                check_problem(&check, false, &e);
            }
            if (result == 0) experiment_check_files(&config, check_missing, &check, NULL);
            if (result == 0 && argument_flag(args, "data"))
                result = check_data(&check, args->operands[i], &config);
            int set = 0;
            for (int key = 0; config.origins && key < config_key_count; key++)
                set += config.origins[key].from == ORIGIN_FILE;
            char name[256];
            if (!check.problems && check.fatal == before)
                printf(_("%s: ok, %d keys set\n"), text_printable(name, sizeof name, args->operands[i]), set);
            config_free(&config);
        }
        free(text);
        if (code == 0) code = result;
    }
    if (check.problems)
        print_json(json_pack("{s:b, s:o}", "ok", check.fatal == 0, "problems", check.problems));
    (void)err; /* all problems are already printed */
    return code;
}

static const struct option check_options[] = {
    {"data", .help = "read every token, or read and decode every image and name each bad one"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_config_check = {
    .name = "config check",
    .operands = "FILE ... [key=value ...]",
    .summary = "check configurations: keys, types, ranges, combinations, files",
    .details = "Every problem is printed with file, line and column. Values that "
               "other YAML readers\ninterpret differently (1e-3, no, 012) are noted.",
    .options = check_options,
    .min_operands = 1,
    .max_operands = -1,
    .run = check_run,
};

/* ---- diff ---- */

static void default_config(struct config *config, const char *path)
{
    (void)config_load_text(config, path, "", 0, NULL, 0, NULL);
}

/* Prints the values that differ, one per line. */
static void diff_values(const struct config *a, const struct config *b, const char *name_a,
                        const char *name_b, bool json)
{
    json_t *root = json ? json_object() : NULL;
    if (!json) printf("%-26s %-28s %s\n", "", name_a, name_b);
    for (int key = 0; key < config_key_count; key++) {
        char *x = config_value_plain(a, key), *y = config_value_plain(b, key);
        if (strcmp(x, y) != 0) {
            if (json)
                json_object_set_new(root, config_keys[key].name,
                                    json_pack("{s:o, s:o}", "old", config_value_json(a, key), "new",
                                              config_value_json(b, key)));
            else printf("%-26s %-28s %s\n", config_keys[key].name, x, y);
        }
        free(x);
        free(y);
    }
    if (json) print_json(root);
}

static int diff_run(const struct arguments *args, struct error *err)
{
    const char *file = args->operands[0], *second = args->operand_count > 1 ? args->operands[1] : NULL;
    struct config a, b;
    bool json = argument_flag(args, "json");
    int code;
    if (second && strchr(second, '=') && access(second, F_OK) != 0) { /* the result of `set` */
        struct edit *edits = xcalloc((size_t)args->operand_count, sizeof *edits);
        char *before = NULL, *after = NULL;
        size_t before_bytes = 0, after_bytes = 0;
        code = 0;
        for (int i = 1; i < args->operand_count && code == 0; i++) {
            char *equals = strchr(args->operands[i], '=');
            if (!equals) {
                code =
                    error_set(err, EXIT_USAGE, "write key=value", "'%s' is not key=value", args->operands[i]);
                break;
            }
            *equals = 0;
            edits[i - 1] = (struct edit){args->operands[i], equals + 1};
            if (config_key_named(args->operands[i], err) < 0) code = EXIT_CONFIG;
        }
        if (code == 0)
            code = edit_file(file, edits, args->operand_count - 1, 1, &before, &before_bytes, &after,
                             &after_bytes, err);
        if (code == 0) {
            (void)config_examine(&a, file, before, before_bytes, NULL, 0, NULL, NULL, NULL);
            (void)config_examine(&b, file, after, after_bytes, NULL, 0, NULL, NULL, NULL);
            diff_values(&a, &b, path_basename(file), _("result"), json);
            config_free(&a);
            config_free(&b);
        }
        free(before);
        free(after);
        free(edits);
        return code;
    }
    if (args->operand_count > 2)
        return error_set(err, EXIT_USAGE, "give two files, or one file and key=value ...",
                         "unexpected operand '%s'", args->operands[2]);
    code = load_quietly(&a, file, NULL, 0, err);
    if (code) return code;
    if (second) {
        code = load_quietly(&b, second, NULL, 0, err);
        if (code == 0) diff_values(&a, &b, path_basename(file), path_basename(second), json);
    } else {
        default_config(&b, file);
        diff_values(&b, &a, "default", path_basename(file), json);
    }
    if (code == 0) config_free(&b);
    config_free(&a);
    return code;
}

const struct command cmd_config_diff = {
    .name = "config diff",
    .operands = "FILE [FILE | key=value ...]",
    .summary = "compare a configuration with the defaults, with another one, or with the result of 'set'",
    .details = "Examples:\n  meopt config diff configs/eva_clip.yaml\n  meopt config diff a.yaml b.yaml\n"
               "  meopt config diff configs/eva_clip.yaml optim.lr=1.0e-4",
    .options = json_option,
    .min_operands = 1,
    .max_operands = -1,
    .run = diff_run,
};
