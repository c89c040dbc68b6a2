/* meopt config man (hidden): prints the table of keys as the part of the page meopt.yaml(5) between its two
 * marks, in the user's language; tests/tools/config_pages.sh puts it there. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "core/base/translate.h"
#include "core/config/value.h"

#include <stdlib.h>
#include <string.h>

/* Converts ASCII to upper case; toupper depends on the locale (Turkish i). */
static char capital(char letter)
{
    return letter >= 'a' && letter <= 'z' ? (char)(letter - 'a' + 'A') : letter;
}

/* Prints text for mdoc: escapes backslashes and control characters at the beginning of a line. */
static void put_text(const char *text, bool capitalised)
{
    if (*text == '.' || *text == '\'') fputs("\\&", stdout);
    for (const char *p = text; *p; p++) {
        if (*p == '\\') fputs("\\e", stdout);
        else putchar(p == text && capitalised ? capital(*p) : *p);
    }
}

static void put_key(int key)
{
    const struct config_key *k = &config_keys[key];
    printf(".It Ic %s\n", k->name);
    put_text(_(k->help), strcmp(_(k->help), k->help) == 0);
    fputs(_(".\n"), stdout);
    char *expected = value_expected(key);
    put_text(expected, true);
    if (k->unit && !strstr(expected, k->unit)) printf(_(", in %s"), _(k->unit));
    fputs(_(".\n"), stdout);
    free(expected);
    if (k->standard[0]) printf(_("Default:\n.Cm %s .\n"), k->standard);
    if (k->aliases) {
        fputs(_("Aliases: "), stdout);
        for (const char *p = k->aliases; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
            printf("%s%.*s", p == k->aliases ? "" : _(", "), (int)strcspn(p, "|"), p);
        fputs(_(".\n"), stdout);
    }
    const char *spelling;
    for (int i = 1; (spelling = config_key_spelling(key, i)) != NULL; i++)
        printf(_("Alternative spelling:\n.Ic %s .\n"), spelling);
    fputs(_("Used by:\n"), stdout);
    for (const char *p = k->used_by; *p; p += strcspn(p, " "), p += *p == ' ') {
        const char *next = p + strcspn(p, " ");
        printf(".Cm %.*s%s\n", (int)(next - p), p, *next ? _(" ,") : _(" ."));
    }
    bool chooses = strcmp(k->name, "train.memory") == 0; /* its help names the changes */
    if (!k->numbers && !chooses) printf("%s", _("Does not change the numbers of a run.\n"));
}

static const char *const sections[][2] = {
    {"model", N_("The teacher, and both towers if they belong to one family.")},
    {"model_t", N_("The teacher, or a list of up to 4, each with its own keys; the second one is also "
                   "called\n.Ic model_t2 ,\nand so on.")},
    {"model_s", N_("The student.")},
    {"loss", N_("The loss, or a list of up to 8 that are added, each with its weight; the second one is also "
                "called\n.Ic loss2 ,\nand so on.\nWithout\n.Ic loss.teacher\neach is for every teacher.")},
    {"lora", N_("Adapters (LoRA) of a language model, or of the student or classifier of images.")},
    {"data", N_("The images, or tokens.")},
    {"data_s",
     N_("The images of a student whose preprocessing differs from the teacher's, for example one of "
        "a different family.\n"
        "Each image is decoded once; random crops use the same box.")},
    {"train", N_("Length, batches and precision of the training.")},
    {"optim", N_("The optimizer.\n.Xr meopt-optimizers 7\nexplains formats and presets.")},
    {"device", N_("The device.")},
    {"dist", N_("Several ranks.\n.Xr meopt-train 1\ndescribes what each of them holds and sends.")},
    {"run", N_("The run directory.")},
};

static int man_run(const struct arguments *args, struct error *err)
{
    (void)args;
    (void)err;
    for (size_t s = 0; s < sizeof sections / sizeof *sections; s++) {
        size_t n = strlen(sections[s][0]);
        printf(".Ss %s\n", sections[s][0]);
        printf("%s\n", _(sections[s][1]));
        printf(".Bl -tag -width Ds\n");
        for (int key = 0; key < config_key_count; key++)
            if (strncmp(config_keys[key].name, sections[s][0], n) == 0 && config_keys[key].name[n] == '.')
                put_key(key);
        printf(".El\n");
    }
    return 0;
}

const struct command cmd_config_man = {
    .name = "config man",
    .operands = "",
    .summary = "print the keys as in meopt.yaml(5)",
    .hidden = true,
    .run = man_run,
};
