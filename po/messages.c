/* Prints the texts of the tables of commands, options and keys as C for xgettext (po/extract.sh): a row has its
 * text as a whole only in the program. */
#undef main
#include "cli/command.h"
#include "core/config/config.h"
#include "core/run/scores.h"

#include <stdio.h>

static void put(const char *text)
{
    if (!text || !text[0]) return;
    printf("N_(\"");
    for (; *text; text++) {
        if (*text == '\n') printf("\\n");
        else if (*text == '"' || *text == '\\') printf("\\%c", *text);
        else putchar(*text);
    }
    printf("\")\n");
}

int main(void)
{
    for (int i = 0; commands[i]; i++) {
        if (commands[i]->hidden) continue;
        put(commands[i]->summary);
        put(commands[i]->details);
        for (const struct option *o = commands[i]->options; o && o->name; o++) put(o->help);
    }
    for (int key = 0; key < config_key_count; key++) put(config_keys[key].help);
#define LABELS(number, key, label, compare, ...) put(label), put(compare);
    SCORES(LABELS)
    return 0;
}
