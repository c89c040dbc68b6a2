/* Prints the texts of the tables of commands, options and keys as C for xgettext (po/extract.sh): a row has its
 * text as a whole only in the program. */
#undef main
#include "cli/command.h"
#include "core/config/config.h"
#include "core/run/scores.h"
#include "core/run/units.h"

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
    for (int key = 0; key < config_key_count; key++) put(config_keys[key].help), put(config_keys[key].unit);
#define LABELS(number, key, label, compare, ...)                                                             \
    put(label), put(compare), put(compare ", final"), put(compare ", best");
    SCORES(LABELS)
    put("communication"); /* labels of compare */
    for (int tokens = 0; tokens < 2; tokens++) {
        const struct unit *unit = unit_of(tokens);
        const char *counted[] = {unit->counted, unit->samples};
        for (int i = 0; i < 2; i++) {
            char text[2][64];
            snprintf(text[0], sizeof text[0], "%s in the dataset", counted[i]);
            snprintf(text[1], sizeof text[1], "%s/s (median step)", counted[i]);
            put(text[0]), put(text[1]);
        }
    }
    return 0;
}
