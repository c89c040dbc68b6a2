/* meopt complete (hidden): prints completions of a command line, from the tables of commands and options.
 * The completion files of the shells pass the words after "meopt", the unfinished one last. The output is
 * one candidate per line, and ":files" if a file name is possible. */
#include "cli/command.h"
#include "cli/help_topics.h"
#include "cli/config/cmd_config.h"
#include "cli/plan/plan_card.h"
#include "cli/run_name.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/compare/published.h"
#include "core/config/config.h"
#include "core/config/value.h"
#include "fetch/sources.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static void offer(const char *candidate, size_t bytes, const char *word)
{
    if (strlen(word) <= bytes && strncmp(candidate, word, strlen(word)) == 0)
        printf("%.*s\n", (int)bytes, candidate);
}

static void offer_choices(const char *choices, const char *word)
{
    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        offer(p, strcspn(p, "|"), word);
}

/* "optim.na" -> "optim.name="; "optim.name=a" -> "optim.name=apadam" ... */
static void offer_keys(const char *word, bool with_value)
{
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    for (int key = 0; key < config_key_count; key++) {
        const char *spelling, *choice;
        if (!equals && config_key_repeats(key) && n < strcspn(config_keys[key].name, ".")) continue;
        for (int i = 0; (spelling = config_key_spelling(key, i)) != NULL; i++) {
            if (!equals) {
                if (strncmp(spelling, word, n) == 0) printf("%s%s\n", spelling, with_value ? "=" : "");
                continue;
            }
            if (strlen(spelling) != n || strncmp(spelling, word, n) != 0) continue;
            for (int c = 0; (choice = config_choice(key, c)) != NULL; c++)
                if (begins(choice, equals + 1)) printf("%s=%s\n", spelling, choice);
        }
    }
}

/* Offers names of commands: first words, or the second words after `first`. */
static void offer_commands(const char *first, const char *word)
{
    char last[64] = "";
    for (int i = 0; commands[i]; i++) {
        const char *name = commands[i]->name;
        size_t n = strcspn(name, " ");
        if (commands[i]->hidden) continue;
        if (first) {
            if (strlen(first) == n && strncmp(first, name, n) == 0 && name[n])
                offer(name + n + 1, strlen(name + n + 1), word);
        } else if (strlen(last) != n || strncmp(last, name, n) != 0) {
            offer(name, n, word);
            snprintf(last, sizeof last, "%.*s", (int)n, name);
        }
    }
}

/* The words of the line so far. */
struct line {
    char **words;
    int count; /* without the unfinished word */
};

/* Returns the value of an option on the line. */
static const char *option_value(const struct line *line, const char *option, const char *otherwise)
{
    size_t n = strlen(option);
    for (int i = 0; i < line->count; i++) {
        if (strncmp(line->words[i], option, n) != 0) continue;
        if (line->words[i][n] == '=') return line->words[i] + n + 1;
        if (!line->words[i][n] && i + 1 < line->count) return line->words[i + 1];
    }
    return otherwise;
}

/* Offers names of runs, also after a comma; files if no name has that prefix. */
static void offer_runs(const struct line *line, const char *word)
{
    const char *comma = strrchr(word, ','), *last = comma ? comma + 1 : word;
    int count, offered = 0;
    char **names = run_names(option_value(line, "--run-dir", "runs"), true, &count);
    for (int i = 0; i < count; i++) {
        if (!begins(names[i], last)) continue;
        printf("%.*s%s\n", (int)(last - word), word, names[i]);
        offered++;
    }
    run_names_free(names, count);
    if (!offered) printf(":files\n");
}

static void offer_one(void *word, const char *name) { offer(name, strlen(name), word); }

static void offer_published(const struct line *line, const char *word)
{
    const char *given = option_value(line, "--published-file", NULL);
    char *path = given ? xstrdup(given) : path_shipped("published.yaml");
    if (path) published_names(path, offer_one, (char *)(uintptr_t)word);
    free(path);
}

static void offer_cards(const char *word)
{
    for (int i = 0; plan_card_name(i); i++) offer(plan_card_name(i), strlen(plan_card_name(i)), word);
    offer("list", 4, word);
}

/* Offers values of an option. */
static void offer_value(const struct command *command, const struct option *o, const struct line *line,
                        const char *word)
{
    if (o->choices) offer_choices(o->choices, word);
    else if (o->value && strcmp(o->value, "RUN") == 0) offer_runs(line, word);
    else if (strcmp(o->name, "published") == 0) offer_published(line, word);
    else if (strcmp(o->name, "card") == 0 && strcmp(command->name, "plan") == 0) offer_cards(word);
    else if (o->type == OPTION_TEXT || o->type == OPTION_MODEL || o->type == OPTION_LIST) printf(":files\n");
}

static void offer_templates(const char *word)
{
    for (int i = 0; config_templates[i].name; i++)
        offer(config_templates[i].name, strlen(config_templates[i].name), word);
}

static void offer_operand(const struct command *command, const struct line *line, int taken, int operand,
                          const char *word)
{
    const char *what = command->operands;
    bool keys = strstr(what, "key=value") != NULL, first = operand == 0;
    if (strcmp(command->name, "help") == 0) {
        offer_commands(first ? NULL : line->words[taken], word);
        for (const struct help_topic *t = help_topics; t->name && first; t++)
            offer(t->name, strlen(t->name), word);
    } else if (begins(what, "RUN") || begins(what, "[RUN")) offer_runs(line, word);
    else if (strcmp(command->name, "config new") == 0 && first) offer_templates(word);
    else if (begins(what, "[NAME")) {
        struct sources sources;
        struct error err;
        if (sources_load(&sources, &err) != 0) return;
        for (int i = 0; i < sources.count; i++) offer(sources.all[i].name, strlen(sources.all[i].name), word);
        sources_free(&sources);
    } else if (keys && !first) offer_keys(word, true);
    else if ((strstr(what, "key ...") || strstr(what, "KEY")) && !first) offer_keys(word, false);
    else if (*what) printf(":files\n");
}

static int complete_run(const struct arguments *args, struct error *err)
{
    (void)err;
    char **words = args->operands;
    int count = args->operand_count;
    if (count == 0) return offer_commands(NULL, ""), 0;
    const char *word = words[count - 1];
    int taken = 0;
    const struct command *command = count > 1 ? command_find(words, count - 1, &taken) : NULL;
    if (!command) {
        if (count <= 2) offer_commands(count == 2 ? words[0] : NULL, word);
        return 0;
    }
    const struct option *waiting = NULL; /* an option whose value comes next */
    int operands = 0;
    bool only_operands = false;
    for (int i = taken; i < count - 1; i++) {
        if (waiting) {
            waiting = NULL;
            continue;
        }
        if (only_operands || words[i][0] != '-' || !words[i][1]) operands++;
        else if (strcmp(words[i], "--") == 0) only_operands = true;
        else if (!strchr(words[i], '='))
            for (const struct option *o = command->options; o && o->name; o++)
                if (o->type != OPTION_FLAG && (strcmp(words[i] + 2, o->name) == 0 ||
                                               (o->letter && words[i][1] == o->letter && !words[i][2])))
                    waiting = o;
    }
    struct line line = {words, count - 1};
    if (waiting) {
        offer_value(command, waiting, &line, word);
    } else if (word[0] == '-' && !only_operands) {
        for (const struct option *o = command->options; o && o->name; o++)
            if (begins(o->name, word[1] == '-' ? word + 2 : word[1] ? "\n" : "")) printf("--%s\n", o->name);
        if (begins("--help", word)) printf("--help\n");
    } else {
        offer_operand(command, &line, taken, operands, word);
    }
    return 0;
}

const struct command cmd_complete = {
    .name = "complete",
    .operands = "[WORD ...]",
    .summary = "print completions of a command line",
    .max_operands = -1,
    .hidden = true,
    .run = complete_run,
};
