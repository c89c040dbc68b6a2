/* The form of `meopt config edit`:
 * state and keys (form.c, knows no terminal), drawing (form_draw.c, ncurses). */
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

/* Keys beyond characters. */
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

/* Memory of the experiment: 0, or the reason why it is not known. */
typedef int (*form_plan)(const struct config *config, struct memory_use *use, struct error *err);

struct form_row {
    int key; /* -1: the heading of `section` */
    char section[16];
};

struct form {
    const char *path; /* as the user wrote it */
    char *text;       /* as it would be saved */
    size_t bytes;
    char *saved; /* as it is on disk */
    size_t saved_bytes;
    struct config config; /* of text */
    struct error problem; /* what is wrong with text; code 0: nothing */

    struct form_row *rows;
    int row_count, selected, top;
    int page; /* rows on the screen, set by drawing */

    enum form_mode mode;
    wchar_t input[512]; /* FORM_TEXT, FORM_SEARCH */
    int length, cursor;
    char verdict[320]; /* on the text as it stands; "" when it is good */
    int choice;        /* FORM_CHOICE */
    int scroll;        /* FORM_DIFF, FORM_SAVE, FORM_HELP */
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
    size_t card_bytes;       /* 0: not known */
};

int form_open(struct form *form, const char *path, form_plan plan, size_t card_bytes, struct error *err);
void form_close(struct form *form);
/* A character or enum form_input. */
void form_input(struct form *form, wint_t c);
/* Select the row (a click); its second click is Enter. */
void form_click(struct form *form, int row);
bool form_changed(const struct form *form);

/* ---- Drawing: between initialising and ending curses ---- */

void form_draw_start(void); /* colours */
void form_draw(struct form *form);
/* Row of the list at screen line y, -1 when there is none. */
int form_row_at(const struct form *form, int y, int x);

#endif
