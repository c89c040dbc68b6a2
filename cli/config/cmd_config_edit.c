/* meopt config edit: runs the form. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "cli/form/form.h"
#include "cli/terminal/keys.h"
#include "cli/terminal/screen.h"
#include "core/config/value.h"

#include <ncurses.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static wint_t special(wint_t c)
{
    switch (c) {
    case KEY_UP: return INPUT_UP;
    case KEY_DOWN: return INPUT_DOWN;
    case KEY_LEFT: return INPUT_LEFT;
    case KEY_RIGHT: return INPUT_RIGHT;
    case KEY_PPAGE: return INPUT_PAGE_UP;
    case KEY_NPAGE: return INPUT_PAGE_DOWN;
    case KEY_HOME: return INPUT_HOME;
    case KEY_END: return INPUT_END;
    case KEY_DC: return INPUT_DELETE;
    case KEY_BACKSPACE: return 127;
    case KEY_BTAB: return INPUT_BACK_TAB;
    case KEY_ENTER: return '\n';
    default: return 0;
    }
}

static void mouse(struct form *form)
{
    MEVENT event;
    if (getmouse(&event) != OK) return;
    if (event.bstate & BUTTON4_PRESSED) form_input(form, INPUT_UP);
#ifdef BUTTON5_PRESSED
    else if (event.bstate & BUTTON5_PRESSED) form_input(form, INPUT_DOWN);
#endif
    else if (event.bstate & (BUTTON1_CLICKED | BUTTON1_PRESSED))
        form_click(form, form_row_at(form, event.y, event.x));
}

/* Ignores pasted text outside of text fields; saving or discarding changes requires a single key. */
static bool ignored(const struct form *form, int kind, wint_t c)
{
    bool field = form->mode == FORM_TEXT || form->mode == FORM_SEARCH,
         decides = form->mode == FORM_SAVE || form->mode == FORM_QUIT;
    if (kind == KEYS_PASTED) return !field || c < ' ';
    return decides && !keys_alone();
}

static void loop(struct form *form)
{
    bool changed = true;
    while (form->mode != FORM_DONE && !screen_signal) {
        if (changed && !keys_waiting()) {
            form_draw(form);
            changed = false;
        }
        wint_t c = 0;
        int kind = keys_get(&c);
        if (kind == ERR) {
            if (!isatty(STDIN_FILENO)) break; /* the terminal is gone */
            continue;                         /* timeout: checks for signals */
        }
        changed = true;
        if (ignored(form, kind, c)) continue;
        if (kind == KEY_CODE_YES && c == KEY_MOUSE) mouse(form);
        else if (kind == KEY_CODE_YES && c != KEY_RESIZE) {
            if (special(c)) form_input(form, special(c));
        } else if (kind != KEY_CODE_YES && c == 12) {
            clearok(stdscr, TRUE); /* Ctrl-L */
        } else if (kind != KEY_CODE_YES) {
            form_input(form, c);
        }
    }
}

static int edit_run(const struct arguments *args, struct error *err)
{
    const char *card = argument_text(args, "card-memory", NULL);
    struct value memory = {0};
    char message[320], hint[320];
    if (card && value_read(config_key_index("device.memory_limit"), card, strlen(card), false, &memory,
                           message, hint, sizeof message) == VALUE_BAD)
        return error_set(err, EXIT_USAGE, "for example 64G",
                         "--card-memory requires a number of bytes, found '%s'", card);
    if (!screen_possible()) return screen_refused("config edit", "use 'meopt config set' in scripts", err);
    struct form form;
    int code = form_open(&form, args->operands[0], config_plan, (size_t)memory.integer, err);
    if (code) return code;
    code = screen_open(argument_flag(args, "ascii"), 250, err);
    if (code) {
        form_close(&form);
        return code;
    }
    screen_mouse();
    form_draw_start();
    loop(&form);
    screen_close();
    bool lost = screen_signal && form_changed(&form);
    form_close(&form);
    if (lost) fprintf(stderr, _("meopt: changes were not saved\n"));
    if (screen_signal) {
        fflush(NULL);
        raise(screen_signal); /* ends by the signal, for the shell */
    }
    return 0;
}

static const struct option options[] = {
    {"ascii", .help = "draw with ASCII characters only"},
    {"card-memory", .type = OPTION_TEXT, .value = "BYTES",
     .help = "memory of the card for the plan, for example 64G"},
    {0},
};

const struct command cmd_config_edit = {
    .name = "config edit",
    .operands = "FILE",
    .summary = "change a configuration in a form, with its memory plan",
    .details = "Example:\n  meopt config edit --card-memory 64G configs/eva_clip.yaml",
    .options = options,
    .min_operands = 1,
    .max_operands = 1,
    .run = edit_run,
};
