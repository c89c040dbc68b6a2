/* The form of `meopt config edit`: state and keys (form.c, independent of the terminal), drawing
 * (form_draw.c, ncurses). */
#ifndef MEOPT_CLI_FORM_FORM_H
#define MEOPT_CLI_FORM_FORM_H

#include "core/config/config.h"
#include "core/device/device.h"

#include <wchar.h>

enum form_mode {
    FORM_BROWSE,
    FORM_TEXT,
    FORM_CHOICE,
    FORM_SEARCH,
    FORM_DIFF,
    FORM_SAVE,
    FORM_QUIT,
    FORM_HELP,
    FORM_DONE
};

/* Keys that are not characters. */
enum form_input {
    INPUT_UP = 0x110000,
    INPUT_DOWN,
    INPUT_LEFT,
    INPUT_RIGHT,
    INPUT_PAGE_UP,
    INPUT_PAGE_DOWN,
    INPUT_HOME,
    INPUT_END,
    INPUT_DELETE,
    INPUT_BACK_TAB
};

/* Computes the memory of a configuration; an error code if it cannot be computed. */
typedef int (*form_plan)(const struct config *config, struct memory_use *use, struct error *err);

struct form_row {
    int key; /* -1: the heading of `section` */
    char section[16];
};

struct form {
    const char *path; /* as given by the user */
    char *text;       /* edited text */
    size_t bytes;
    char *saved; /* text of the file */
    size_t saved_bytes;
    struct config config; /* parsed from text */
    struct error problem; /* error in text; code 0: none */

    struct form_row *rows;
    int row_count, selected, top;
    int page; /* rows on the screen, set by drawing */

    enum form_mode mode;
    wchar_t input[512]; /* FORM_TEXT, FORM_SEARCH */
    int length, cursor;
    char input_problem[320]; /* error or note about the input; "": none */
    int choice;              /* FORM_CHOICE */
    int scroll;              /* FORM_DIFF, FORM_SAVE, FORM_HELP */
    char *diff;
    wchar_t sought[64];
    char message[320];
    bool quit_after_save;

    struct {
        char *text;
        size_t bytes;
    } * undo;
    int undo_count;

    form_plan plan;
    struct memory_use use, saved_use;
    struct error plan_error; /* code 0: use is valid */
    size_t card_bytes;       /* 0: unknown */
};

int form_open(struct form *form, const char *path, form_plan plan, size_t card_bytes, struct error *err);
void form_close(struct form *form);
/* Handles a key: a character or enum form_input. */
void form_input(struct form *form, wint_t c);
/* Handles a click on a row: selects it; a click on the selected row is Enter. */
void form_click(struct form *form, int row);
bool form_changed(const struct form *form);

/* ---- Drawing, while curses is initialised ---- */

void form_draw_start(void); /* sets the colours */
void form_draw(struct form *form);
/* Returns the row of the list at a position of the screen, -1 if there is none. */
int form_row_at(const struct form *form, int y, int x);

#endif
