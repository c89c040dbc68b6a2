/* Parses and prints option tables: see command.h. */
#include "cli/command.h"
#include "cli/language.h"
#include "core/base/memory.h"
#include "core/base/nearest.h"
#include "core/config/hub_name.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct argument_value {
    int count;
    char **texts;
    double number;
};

static int option_index(const struct command *command, const char *name)
{
    for (int i = 0; command->options && command->options[i].name; i++)
        if (strcmp(command->options[i].name, name) == 0) return i;
    return -1;
}

static const struct argument_value *value_of(const struct arguments *args, const char *name)
{
    int i = option_index(args->command, name);
    assert(i >= 0);
    return &args->values[i];
}

bool argument_flag(const struct arguments *args, const char *name) { return value_of(args, name)->count > 0; }

const char *argument_text(const struct arguments *args, const char *name, const char *missing)
{
    const struct argument_value *v = value_of(args, name);
    return v->count ? v->texts[v->count - 1] : missing;
}

int64_t argument_int(const struct arguments *args, const char *name, int64_t missing)
{
    const struct argument_value *v = value_of(args, name);
    return v->count ? (int64_t)v->number : missing;
}

double argument_real(const struct arguments *args, const char *name, double missing)
{
    const struct argument_value *v = value_of(args, name);
    return v->count ? v->number : missing;
}

const char *argument_list(const struct arguments *args, const char *name, int i)
{
    const struct argument_value *v = value_of(args, name);
    return i < v->count ? v->texts[i] : NULL;
}

static const char *option_name_at(const void *table, int i) { return ((const struct option *)table)[i].name; }

/* Returns the i-th of "a|b|c", valid until the next call; NULL after the last. */
static const char *choice_at(const void *table, int i)
{
    static char word[64];
    const char *p = table;
    for (; i > 0 && p; i--) p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL;
    if (!p || strcspn(p, "|") >= sizeof word) return NULL;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(p, "|"), p);
    return word;
}

static int no_choice(const struct option *o, const char *text, struct error *err)
{
    char hint[128], list[256];
    const char *near = nearest_name(text, choice_at, o->choices);
    snprintf(list, sizeof list - 4, "%s", o->choices);
    if (strlen(o->choices) >= sizeof list - 4 && strrchr(list, '|')) strcpy(strrchr(list, '|'), "|...");
    if (near) snprintf(hint, sizeof hint, _("did you mean %s?"), near);
    return error_set(err, EXIT_USAGE, near ? hint : NULL, "--%s must be one of %s, found '%s'", o->name, list,
                     text);
}

static int store_value(struct arguments *args, int index, const char *text, struct error *err)
{
    const struct option *o = &args->command->options[index];
    struct argument_value *v = &args->values[index];
    if (o->type == OPTION_INT || o->type == OPTION_REAL) {
        char *end;
        errno = 0;
        double x = o->type == OPTION_INT ? (double)strtoll(text, &end, 10) : strtod(text, &end);
        if (end == text || *end || errno || !isfinite(x))
            return error_set(err, EXIT_USAGE, NULL, "--%s requires %s, found '%s'", o->name,
                             o->type == OPTION_INT ? _("an integer") : _("a number"), text);
        if (o->min < o->max && (x < o->min || x > o->max))
            return error_set(err, EXIT_USAGE, NULL, "--%s must be in %g to %g, found %s", o->name, o->min,
                             o->max, text);
        v->number = x;
    }
    if (o->choices) {
        size_t n = strlen(text);
        const char *file = strstr(o->choices, "|FILE.json");
        bool found = file && n > 5 && strcmp(text + n - 5, ".json") == 0;
        for (const char *p = o->choices; p && !found; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
            found = n && strncmp(p, text, n) == 0 && (p[n] == 0 || p[n] == '|');
        if (!found) return no_choice(o, text, err);
    }
    char *path = o->type == OPTION_MODEL && hub_is_name(text) ? hub_resolve(text, err) : xstrdup(text);
    if (!path) return err->code;
    v->texts = xrealloc(v->texts, (size_t)(v->count + 1) * sizeof *v->texts);
    v->texts[v->count++] = path;
    return 0;
}

/* "[FILE]" and not "FILE" in the table. */
static bool may_lack_value(const struct option *o) { return o->value[0] == '['; }

int arguments_parse(struct arguments *args, const struct command *command, int argc, char **argv,
                    struct error *err)
{
    int options = 0;
    while (command->options && command->options[options].name) options++;
    *args = (struct arguments){.command = command};
    args->values = xcalloc((size_t)options + 1, sizeof *args->values);
    args->operands = xcalloc((size_t)argc + 1, sizeof *args->operands);
    char hint[128];
    snprintf(hint, sizeof hint, _("see 'meopt %s --help'"), command->name);
    bool only_operands = false;
    struct argument_value *taken = NULL; /* by an option that may lack its value */
    char *taken_word = NULL;
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (only_operands || word[0] != '-' || word[1] == 0) {
            args->operands[args->operand_count++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            only_operands = true;
            continue;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            command_help(command);
            return -1;
        }
        char name[64] = "";
        const char *value = NULL;
        int index = -1;
        if (word[1] == '-') {
            value = strchr(word, '=');
            snprintf(name, sizeof name, "%.*s", value ? (int)(value - word - 2) : (int)sizeof name - 1,
                     word + 2);
            if (value) value++;
            index = option_index(command, name);
        } else {
            for (int k = 0; k < options; k++)
                if (command->options[k].letter == word[1]) index = k;
            if (word[2]) value = word + 2;
        }
        if (index < 0) {
            const char *near = command->options ? nearest_name(name, option_name_at, command->options) : NULL;
            if (near)
                snprintf(hint, sizeof hint, _("did you mean --%s? see 'meopt %s --help'"), near,
                         command->name);
            return error_set(err, EXIT_USAGE, hint, "unknown option '%s'", word);
        }
        const struct option *o = &command->options[index];
        if (o->type == OPTION_FLAG) {
            if (value) return error_set(err, EXIT_USAGE, hint, "option --%s takes no value", o->name);
            args->values[index].count++;
            continue;
        }
        bool lacks = may_lack_value(o) && (i + 1 == argc || argv[i + 1][0] == '-');
        if (!value && lacks) value = "";
        else if (!value && i + 1 < argc) {
            value = argv[++i];
            if (may_lack_value(o)) taken = &args->values[index], taken_word = argv[i];
        }
        if (!value)
            return error_set(err, EXIT_USAGE, hint, "option --%s requires a value %s", o->name, o->value);
        int code = store_value(args, index, value, err);
        if (code) return code;
    }
    if (taken && args->operand_count == command->min_operands - 1) { /* --merge RUN */
        taken->texts[taken->count - 1][0] = 0;
        args->operands[args->operand_count++] = taken_word;
    }
    if (args->operand_count < command->min_operands)
        return error_set(err, EXIT_USAGE, hint, "meopt %s requires %s", command->name, command->operands);
    if (command->max_operands >= 0 && args->operand_count > command->max_operands)
        return error_set(err, EXIT_USAGE, hint, "unexpected operand '%s'",
                         args->operands[command->max_operands]);
    return 0;
}

void arguments_free(struct arguments *args)
{
    for (int i = 0; args->values && args->command->options && args->command->options[i].name; i++) {
        for (int k = 0; k < args->values[i].count; k++)
            if (args->values[i].texts) free(args->values[i].texts[k]);
        free(args->values[i].texts);
    }
    free(args->values);
    free(args->operands);
    args->values = NULL;
    args->operands = NULL;
}

void command_help(const struct command *command)
{
    enum { HELP_COLUMN = 31 };
    printf(_("Usage: meopt %s%s%s%s\n\n%s\n"), command->name, command->options ? _(" [options]") : "",
           command->operands[0] ? " " : "", command->operands, translation(command->summary));
    if (command->details) printf("\n%s\n", translation(command->details));
    if (!command->options) return;
    printf("%s", _("\nOptions:\n"));
    for (const struct option *o = command->options; o->name; o++) {
        char left[64], letter[8] = "    ";
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        char *help = xasprintf("%s%s%s", translation(o->help), o->choices ? _(": ") : "",
                               o->choices ? o->choices : "");
        printf("  %-28s ", left);
        print_wrapped(HELP_COLUMN, HELP_COLUMN, help);
        free(help);
    }
    printf("  %-28s ", "-h, --help");
    print_wrapped(HELP_COLUMN, HELP_COLUMN, _("print this help; details: man meopt-..."));
}
