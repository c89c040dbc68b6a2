/* State of the form, and its reaction to keys. Every change is made by core/config/edit.h, which keeps all
 * other bytes of the file. Undo saves whole texts. */
#include "cli/form/form.h"
#include "cli/config/cmd_config.h"
#include "cli/terminal/screen.h"
#include "core/base/memory.h"
#include "core/config/edit.h"
#include "core/config/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_UNDO = 1000 };

/* ---- Text ---- */

static char *to_bytes(const wchar_t *wide)
{
    char *text = xmalloc(4 * wcslen(wide) + 5), *p = text;
    for (*p = 0; *wide; wide++) p += screen_utf8(p, *wide);
    return text;
}

static void set_input(struct form *f, const char *text)
{
    f->length = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p && f->length < 511;) {
        unsigned c = *p, n = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        c = n == 1 ? c : c & (0xFFu >> (n + 1));
        for (unsigned k = 1; k < n && (p[k] & 0xC0) == 0x80; k++) c = c << 6 | (p[k] & 63);
        f->input[f->length++] = (wchar_t)c;
        for (; n && *p; n--) p++;
    }
    f->input[f->length] = 0;
    f->cursor = f->length;
}

/* ---- State ---- */

static void refresh(struct form *f)
{
    config_free(&f->config);
    f->problem = (struct error){0};
    (void)config_examine(&f->config, f->path, f->text, f->bytes, NULL, 0, NULL, NULL, &f->problem);
    f->plan_error = (struct error){0};
    if (f->problem.code) f->plan_error = f->problem;
    else if (!f->plan) error_set(&f->plan_error, EXIT_FAILED, NULL, "unknown");
    else if (f->plan(&f->config, &f->use, &f->plan_error) && !f->plan_error.code)
        f->plan_error.code = EXIT_FAILED;
}

bool form_changed(const struct form *f)
{
    return f->bytes != f->saved_bytes || memcmp(f->text, f->saved, f->bytes) != 0;
}

static int selected_key(const struct form *f) { return f->rows[f->selected].key; }

static void show_message(struct form *f, const char *text)
{
    snprintf(f->message, sizeof f->message, "%s", translation(text));
}

/* Changes the value of a key; NULL removes the key. Returns false with a message if that is refused. */
static bool change(struct form *f, int key, const char *value)
{
    struct edit edit = {config_keys[key].name, value};
    struct error err = {0};
    char *text = NULL;
    size_t bytes = 0;
    if (edit_checked(f->path, f->text, f->bytes, &edit, 1, &text, &bytes, &err)) {
        snprintf(f->message, sizeof f->message, "%.*s", (int)strcspn(err.what, "\n"), err.what);
        return false;
    }
    if (bytes == f->bytes && memcmp(text, f->text, bytes) == 0) {
        free(text);
        return true;
    }
    if (f->undo_count == MAX_UNDO) {
        free(f->undo[0].text);
        memmove(f->undo, f->undo + 1, (size_t)--f->undo_count * sizeof *f->undo);
    }
    f->undo = xrealloc(f->undo, (size_t)(f->undo_count + 1) * sizeof *f->undo);
    f->undo[f->undo_count].text = f->text;
    f->undo[f->undo_count++].bytes = f->bytes;
    f->text = text;
    f->bytes = bytes;
    refresh(f);
    return true;
}

static void undo(struct form *f)
{
    if (f->undo_count == 0) {
        show_message(f, "nothing to undo");
        return;
    }
    free(f->text);
    f->text = f->undo[--f->undo_count].text;
    f->bytes = f->undo[f->undo_count].bytes;
    refresh(f);
    show_message(f, "undone");
}

int form_open(struct form *f, const char *path, form_plan plan, size_t card_bytes, struct error *err)
{
    *f = (struct form){.path = path, .plan = plan, .card_bytes = card_bytes, .page = 10};
    int code = config_read_file(path, &f->saved, &f->saved_bytes, err);
    if (code) return code;
    f->text = xmalloc(f->saved_bytes + 1);
    memcpy(f->text, f->saved, f->saved_bytes + 1);
    f->bytes = f->saved_bytes;
    refresh(f);
    if (f->problem.code) { /* the form cannot show a text that is not valid */
        if (err) *err = f->problem;
        code = f->problem.code;
        form_close(f);
        return code;
    }
    f->saved_use = f->use;
    f->rows = xcalloc(2 * (size_t)config_key_count, sizeof *f->rows);
    for (int key = 0; key < config_key_count; key++) {
        const char *name = config_keys[key].name;
        size_t n = strcspn(name, ".");
        if (!config_key_used(&f->config, key)) continue;
        bool same = f->row_count && strncmp(f->rows[f->row_count - 1].section, name, n) == 0 &&
                    !f->rows[f->row_count - 1].section[n];
        for (int k = same; k < 2; k++) {
            struct form_row *row = &f->rows[f->row_count++];
            row->key = k ? key : -1;
            snprintf(row->section, sizeof row->section, "%.*s", (int)n, name);
        }
    }
    f->selected = 1;
    return 0;
}

void form_close(struct form *f)
{
    for (int i = 0; i < f->undo_count; i++) free(f->undo[i].text);
    free(f->undo);
    free(f->rows);
    free(f->text);
    free(f->saved);
    free(f->diff);
    config_free(&f->config);
    *f = (struct form){0};
}

/* ---- Moving ---- */

static void move(struct form *f, int by)
{
    int step = by < 0 ? -1 : 1, to = f->selected + by;
    if (to < 0) to = 0;
    if (to >= f->row_count) to = f->row_count - 1;
    while (to >= 0 && to < f->row_count && f->rows[to].key < 0) to += step;
    if (to < 0) to = 1;
    if (to < f->row_count) f->selected = to;
}

static void next_section(struct form *f, int step)
{
    int at = f->selected;
    if (step < 0) /* to the heading of this section first */
        while (at > 0 && f->rows[at].key >= 0) at--;
    do at = (at + step + f->row_count) % f->row_count;
    while (f->rows[at].key >= 0);
    f->selected = at + 1;
}

static bool contains(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (; *text; text++)
        if (strncasecmp(text, word, n) == 0) return true;
    return n == 0;
}

static void search(struct form *f)
{
    char *word = to_bytes(f->sought);
    bool found = false;
    for (int pass = 0; pass < 2 && !found && word[0]; pass++) /* names first, then help texts */
        for (int i = 1; i <= f->row_count && !found; i++) {
            int at = (f->selected + i) % f->row_count, key = f->rows[at].key;
            if (key < 0 || !contains(pass ? config_keys[key].help : config_keys[key].name, word)) continue;
            f->selected = at;
            found = true;
        }
    if (!found) show_message(f, "not found");
    free(word);
}

/* ---- Modes ---- */

/* Checks the input and sets input_problem. */
static void check_input(struct form *f)
{
    int key = selected_key(f);
    char *text = to_bytes(f->input), message[320], hint[320];
    struct value value;
    enum value_status status =
        value_read(key, text, strlen(text), false, &value, message, hint, sizeof message);
    f->input_problem[0] = 0;
    if (status == VALUE_BAD) snprintf(f->input_problem, sizeof f->input_problem, "%s", message);
    if (status == VALUE_NOTE)
        snprintf(f->input_problem, sizeof f->input_problem, _("note: %.200s; %.100s"), message, hint);
    free(text);
}

static void begin(struct form *f)
{
    int key = selected_key(f);
    if (config_choice(key, 0)) {
        char *now = config_value_text(&f->config, key);
        const char *choice;
        f->choice = 0;
        for (int i = 0; (choice = config_choice(key, i)) != NULL; i++)
            if (strcmp(choice, now) == 0) f->choice = i;
        free(now);
        f->mode = FORM_CHOICE;
        return;
    }
    bool text = config_keys[key].type == CONFIG_TEXT || config_keys[key].type == CONFIG_PATH;
    char *now = edit_current(f->text, f->bytes, config_keys[key].name);
    if (!now) now = text ? xstrdup("") : config_value_text(&f->config, key);
    set_input(f, now);
    free(now);
    f->mode = FORM_TEXT;
    check_input(f);
}

static void commit(struct form *f, const char *value)
{
    if (change(f, selected_key(f), value)) f->mode = FORM_BROWSE;
}

static void cycle(struct form *f)
{
    int key = selected_key(f), i = 0;
    const char *choice;
    if (!config_choice(key, 0)) {
        begin(f);
        return;
    }
    char *now = config_value_text(&f->config, key);
    while ((choice = config_choice(key, i)) != NULL && strcmp(choice, now) != 0) i++;
    free(now);
    /* a choice that is incompatible with other keys is skipped */
    for (int k = 1; k < 32; k++) {
        choice = config_choice(key, i + k);
        if (!choice) {
            i = -k;
            choice = config_choice(key, 0);
        }
        f->message[0] = 0;
        if (change(f, key, choice)) return;
    }
}

static void show_diff(struct form *f, enum form_mode mode)
{
    free(f->diff);
    struct config saved;
    (void)config_examine(&saved, f->path, f->saved, f->saved_bytes, NULL, 0, NULL, NULL, NULL);
    f->diff = config_changes(&saved, &f->config);
    config_free(&saved);
    f->scroll = 0;
    f->mode = mode;
}

static void save(struct form *f)
{
    struct error err = {0};
    f->mode = FORM_BROWSE;
    if (edit_replace(f->path, f->saved, f->saved_bytes, f->text, f->bytes, &err)) {
        snprintf(f->message, sizeof f->message, _("not saved: %.*s"), (int)strcspn(err.what, "\n"), err.what);
        return;
    }
    free(f->saved);
    f->saved = xmalloc(f->bytes + 1);
    memcpy(f->saved, f->text, f->bytes + 1);
    f->saved_bytes = f->bytes;
    f->saved_use = f->use;
    show_message(f, "saved");
    if (f->quit_after_save) f->mode = FORM_DONE;
}

static void browse(struct form *f, wint_t c)
{
    switch (c) {
    case INPUT_UP:
    case 'k': move(f, -1); break;
    case INPUT_DOWN:
    case 'j': move(f, 1); break;
    case INPUT_PAGE_UP: move(f, -(f->page > 1 ? f->page - 1 : 1)); break;
    case INPUT_PAGE_DOWN: move(f, f->page > 1 ? f->page - 1 : 1); break;
    case INPUT_HOME:
    case 'g': f->selected = 1; break;
    case INPUT_END:
    case 'G': f->selected = f->row_count - 1; break;
    case '\t': next_section(f, 1); break;
    case INPUT_BACK_TAB: next_section(f, -1); break;
    case '\n':
    case '\r':
    case INPUT_RIGHT: begin(f); break;
    case ' ': cycle(f); break;
    case 'x':
    case INPUT_DELETE:
        if (change(f, selected_key(f), NULL)) show_message(f, "removed: the default applies");
        break;
    case 'u': undo(f); break;
    case '/':
        set_input(f, "");
        f->mode = FORM_SEARCH;
        break;
    case 'n': search(f); break;
    case 'd':
        if (form_changed(f)) show_diff(f, FORM_DIFF);
        else show_message(f, "nothing has changed");
        break;
    case 's':
        f->quit_after_save = false;
        if (form_changed(f)) show_diff(f, FORM_SAVE);
        else show_message(f, "nothing has changed");
        break;
    case '?':
        f->scroll = 0;
        f->mode = FORM_HELP;
        break;
    case 'q':
        if (!form_changed(f)) f->mode = FORM_DONE;
        else {
            f->quit_after_save = true;
            show_diff(f, FORM_QUIT);
        }
        break;
    default: break;
    }
}

static void line_edit(struct form *f, wint_t c)
{
    if (c == INPUT_LEFT && f->cursor > 0) f->cursor--;
    else if (c == INPUT_RIGHT && f->cursor < f->length) f->cursor++;
    else if (c == INPUT_HOME || c == 1) f->cursor = 0;
    else if (c == INPUT_END || c == 5) f->cursor = f->length;
    else if (c == 21) { /* Ctrl-U */ f->length = f->cursor = 0;
        f->input[0] = 0;
    } else if ((c == 127 || c == 8) && f->cursor > 0) {
        wmemmove(f->input + f->cursor - 1, f->input + f->cursor, (size_t)(f->length - f->cursor + 1));
        f->cursor--;
        f->length--;
    } else if (c == INPUT_DELETE && f->cursor < f->length) {
        wmemmove(f->input + f->cursor, f->input + f->cursor + 1, (size_t)(f->length - f->cursor));
        f->length--;
    } else if (c >= 32 && c != 127 && c < 0x110000 && !(c >= 0xD800 && c < 0xE000) &&
               f->length < (f->mode == FORM_SEARCH ? 62 : 510)) {
        wmemmove(f->input + f->cursor + 1, f->input + f->cursor, (size_t)(f->length - f->cursor + 1));
        f->input[f->cursor++] = (wchar_t)c;
        f->length++;
    }
}

static void text_mode(struct form *f, wint_t c)
{
    if (c == 27) {
        f->mode = FORM_BROWSE;
    } else if (c == '\n' || c == '\r') {
        char *text = to_bytes(f->input);
        commit(f, text);
        free(text);
    } else {
        line_edit(f, c);
        check_input(f);
    }
}

static void choice_mode(struct form *f, wint_t c)
{
    int key = selected_key(f);
    if ((c == INPUT_UP || c == 'k') && f->choice > 0) f->choice--;
    else if ((c == INPUT_DOWN || c == 'j') && config_choice(key, f->choice + 1)) f->choice++;
    else if (c == '\n' || c == '\r' || c == ' ') commit(f, config_choice(key, f->choice));
    else if (c == 27 || c == 'q' || c == INPUT_LEFT) f->mode = FORM_BROWSE;
}

static void scroll_by(struct form *f, wint_t c)
{
    if (c == INPUT_DOWN || c == 'j') f->scroll++;
    else if (c == INPUT_PAGE_DOWN) f->scroll += f->page;
    else if (c == INPUT_PAGE_UP) f->scroll -= f->page;
    else if (c == INPUT_UP || c == 'k') f->scroll--;
    if (f->scroll < 0) f->scroll = 0;
}

void form_input(struct form *f, wint_t c)
{
    bool scrolls = c == INPUT_UP || c == INPUT_DOWN || c == INPUT_PAGE_UP || c == INPUT_PAGE_DOWN ||
                   c == 'j' || c == 'k';
    f->message[0] = 0;
    switch (f->mode) {
    case FORM_BROWSE: browse(f, c); break;
    case FORM_TEXT: text_mode(f, c); break;
    case FORM_CHOICE: choice_mode(f, c); break;
    case FORM_SEARCH:
        if (c == 27) f->mode = FORM_BROWSE;
        else if (c == '\n' || c == '\r') {
            wcsncpy(f->sought, f->input, 63);
            f->sought[63] = 0;
            f->mode = FORM_BROWSE;
            search(f);
        } else line_edit(f, c);
        break;
    case FORM_DIFF:
    case FORM_HELP:
        if (scrolls) scroll_by(f, c);
        else f->mode = FORM_BROWSE;
        break;
    case FORM_SAVE:
        if (scrolls) scroll_by(f, c);
        else if (c == 'y') save(f);
        else if (c == 'n' || c == 27) f->mode = FORM_BROWSE;
        break;
    case FORM_QUIT:
        if (scrolls) scroll_by(f, c);
        else if (c == 'y') save(f);
        else if (c == 'n') f->mode = FORM_DONE;
        else if (c == 27 || c == 'c') f->mode = FORM_BROWSE;
        break;
    case FORM_DONE: break;
    }
}

void form_click(struct form *f, int row)
{
    if (f->mode != FORM_BROWSE || row < 0 || row >= f->row_count || f->rows[row].key < 0) return;
    if (row == f->selected) begin(f);
    else f->selected = row;
}
