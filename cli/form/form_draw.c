/* Draws the form. The layout depends on the size:
 *
 *   keys and values                      | memory by class   (at least 72 columns)
 *   ...                                  | bars, total, card
 *   help of the key, range, default      |                   (1 line below 16 lines)
 *   message or keys
 *
 * Everything from the file goes through text_printable and is cut by columns, not bytes. */
#include "cli/config/cmd_config.h"
#include "cli/form/form.h"
#include "cli/terminal/screen.h"
#include "core/base/path.h"
#include "core/config/edit.h"
#include "core/config/value.h"

#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

enum { MIN_WIDTH = 24, MIN_HEIGHT = 6, MARGIN_FROM = 72, MARGIN_WIDTH = 32 };
enum { PLAIN_COLOUR, GOOD, BAD, DIM_COLOUR, HEAD };

struct boxes {
    int width, height;
    int list_top, list_lines, list_width;
    int margin; /* column of the memory plan, 0: none */
    int detail_top, detail_lines;
};

static struct boxes boxes_of(int height, int width)
{
    struct boxes b = {.width = width, .height = height, .list_top = 1};
    b.detail_lines = height >= 20 ? 4 : height >= 11 ? 2 : 1;
    b.margin = width >= MARGIN_FROM ? width - MARGIN_WIDTH : 0;
    b.list_width = b.margin ? b.margin - 1 : width;
    b.detail_top = height - 1 - b.detail_lines;
    b.list_lines = b.detail_top - b.list_top - (b.detail_lines > 1 ? 1 : 0);
    return b;
}

void form_draw_start(void)
{
    if (!screen_colours) return;
    init_pair(GOOD, COLOR_GREEN, -1);
    init_pair(BAD, COLOR_RED, -1);
    init_pair(DIM_COLOUR, COLOR_CYAN, -1);
    init_pair(HEAD, COLOR_YELLOW, -1);
}

static int paint(int pair) { return screen_colours ? COLOR_PAIR(pair) : 0; }

/* Returns the end of a text that is too long, because paths differ at their ends. */
static const char *tail(const char *text, int columns)
{
    int width = 0;
    const char *p = text + strlen(text);
    while (p > text) {
        const char *before = p - 1;
        while (before > text && ((unsigned char)*before & 0xC0) == 0x80) before--;
        width += (unsigned char)*before >= 0xE0 ? 2 : 1;
        if (width > columns) return p;
        p = before;
    }
    return text;
}

static void clean(char *dst, size_t size, const char *text)
{
    text_printable(dst, size, text);
    for (char *p = dst; *p; p++)
        if (*p == '\n' || *p == '\t') *p = ' ';
}

static void size_text(char *dst, size_t size, double bytes)
{
    if (bytes >= 1e9) snprintf(dst, size, "%.2f GiB", bytes / (1 << 30));
    else snprintf(dst, size, "%.1f MiB", bytes / (1 << 20));
}

/* ---- Keys ---- */

static void value_shown(const struct form *f, int key, char *dst, size_t size)
{
    bool text = config_keys[key].type == CONFIG_TEXT || config_keys[key].type == CONFIG_PATH;
    char *own = f->config.origins[key].from == ORIGIN_FILE && text
                    ? edit_current(f->text, f->bytes, config_keys[key].name)
                    : NULL;
    char *value = own ? own : config_value_plain(&f->config, key);
    clean(dst, size, value);
    free(value);
}

static void draw_list(struct form *f, const struct boxes *b)
{
    f->page = b->list_lines > 0 ? b->list_lines : 1;
    if (f->selected < f->top) f->top = f->selected;
    if (f->selected > 0 && f->rows[f->selected - 1].key < 0 && f->top == f->selected && f->page > 1)
        f->top--; /* its heading too */
    if (f->selected >= f->top + f->page) f->top = f->selected - f->page + 1;
    if (f->top > f->row_count - f->page) f->top = f->row_count > f->page ? f->row_count - f->page : 0;
    int name_width = b->list_width >= 48 ? 22 : b->list_width / 2 - 1;
    for (int i = 0; i < b->list_lines && f->top + i < f->row_count; i++) {
        const struct form_row *row = &f->rows[f->top + i];
        int y = b->list_top + i;
        if (row->key < 0) {
            attron(A_BOLD | paint(HEAD));
            screen_put(y, 0, b->list_width, row->section, false);
            attroff(A_BOLD | paint(HEAD));
            continue;
        }
        char value[512];
        value_shown(f, row->key, value, sizeof value);
        bool set = f->config.origins[row->key].from == ORIGIN_FILE, here = f->top + i == f->selected;
        if (here) attron(A_REVERSE);
        screen_put(y, 0, 2, here ? ">" : "", true);
        screen_put(y, 2, name_width, strchr(config_keys[row->key].name, '.') + 1, true);
        if (!set && !here) attron(paint(DIM_COLOUR));
        if (set) attron(A_BOLD);
        if (f->mode == FORM_TEXT && here) {
            screen_put(y, 2 + name_width, b->list_width - 2 - name_width, "", true);
        } else {
            bool path = config_keys[row->key].type == CONFIG_PATH;
            screen_put(y, 2 + name_width, b->list_width - 2 - name_width,
                       path ? tail(value, b->list_width - 3 - name_width) : value, true);
        }
        attrset(A_NORMAL);
    }
}

static void draw_input(const struct form *f, const struct boxes *b, int y, int x, int columns)
{
    (void)b;
    int from = 0, width = 0;
    for (int i = f->cursor; i > 0; i--) { /* scrolls to the cursor */
        int w = wcwidth(f->input[i - 1]);
        width += w < 0 ? 1 : w;
        if (width >= columns - 1) {
            from = i;
            break;
        }
    }
    int used = 0, cursor = x;
    attron(A_UNDERLINE);
    for (int i = from; i <= f->length; i++) {
        if (i == f->cursor) cursor = x + used;
        if (i == f->length) break;
        wchar_t one[2] = {f->input[i], 0};
        int w = wcwidth(one[0]);
        if (w < 0) {
            one[0] = L'?';
            w = 1;
        }
        if (used + w > columns) break;
        move(y, x + used);
        if (one[0] < 128) addch((chtype)one[0]);
        else addwstr(one);
        used += w;
    }
    move(y, x + used);
    for (; used < columns; used++) addch(' ');
    attroff(A_UNDERLINE);
    curs_set(1);
    move(y, cursor);
}

static void draw_detail(const struct form *f, const struct boxes *b)
{
    int key = f->rows[f->selected].key;
    const struct config_key *k = &config_keys[key];
    const char *help = translation(k->help);
    char line[512], from[320], *expected = value_expected(key);
    int y = b->detail_top;
    if (b->detail_lines > 1) {
        attron(paint(DIM_COLOUR));
        for (int x = 0; x < b->list_width; x++) mvaddch(y - 1, x, '-');
        attroff(paint(DIM_COLOUR));
    }
    config_origin_text(from, sizeof from, &f->config, key);
    attron(A_BOLD);
    int used = screen_put(y, 0, b->list_width, k->name, false);
    attroff(A_BOLD);
    if (b->detail_lines == 1) {
        if (used + 2 < b->list_width) screen_put(y, used + 2, b->list_width - used - 2, help, false);
    } else if (b->detail_lines == 2) {
        screen_put(y + 1, 0, b->list_width, help, false);
    } else {
        snprintf(line, sizeof line, "  (%s)", from);
        screen_put(y, used, b->list_width - used, line, false);
        size_t cut = text_line(help, b->list_width); /* the help on two lines */
        snprintf(line, sizeof line, "%.*s", (int)cut, help);
        screen_put(y + 1, 0, b->list_width, line, false);
        if (help[cut]) screen_put(++y + 1, 0, b->list_width, help + cut + (help[cut] == ' '), false);
        size_t n = 0;
        line[0] = 0;
        if (k->standard[0]) n = (size_t)snprintf(line, sizeof line, _("default %s; "), k->standard);
        snprintf(line + n, sizeof line - n, k->unit ? _("%s, in %s") : "%s", expected, _(k->unit));
        screen_put(y + 2, 0, b->list_width, line, false);
    }
    free(expected);
}

/* ---- Memory ---- */

static void bar(int y, int x, int columns, double share, int pair)
{
    int eighths = (int)(share * columns * 8 + 0.5);
    if (eighths < 0) eighths = 0;
    if (eighths > columns * 8) eighths = columns * 8;
    move(y, x);
    attron(paint(pair));
    for (int i = 0; i < columns; i++) {
        int part = eighths - 8 * i;
        if (screen_ascii) addch(part >= 4 ? '#' : '.');
        else {
            wchar_t one[2] = {part >= 8 ? 0x2588 : part <= 0 ? 0xB7 : (wchar_t)(0x2590 - part), 0};
            addwstr(one);
        }
    }
    attroff(paint(pair));
}

static void draw_memory(const struct form *f, const struct boxes *b)
{
    int x = b->margin + 1, columns = b->width - x, y = 1;
    attron(paint(DIM_COLOUR));
    for (int i = 1; i < b->height - 1; i++) {
        if (screen_ascii) mvaddch(i, b->margin - 1, '|');
        else mvaddwstr(i, b->margin - 1, L"\x2502");
    }
    attroff(paint(DIM_COLOUR));
    attron(A_BOLD);
    screen_put(y++, x, columns, "Memory of one rank", false);
    attroff(A_BOLD);
    if (f->plan_error.code) {
        char why[512];
        clean(why, sizeof why, f->plan_error.what);
        for (size_t at = 0; y < b->height - 2 && at < strlen(why); at += (size_t)columns)
            screen_put(y++, x, columns, why + at, false);
        return;
    }
    double whole = (double)f->use.peak_total_bytes;
    char text[64], line[96];
    for (int c = 0; c < MEMORY_CLASS_COUNT && y < b->height - 6; c++) {
        double bytes = (double)f->use.peak_bytes[c];
        size_text(text, sizeof text, bytes);
        screen_put(y, x, 12, _(memory_class_names[c]), true);
        bar(y, x + 12, columns - 24, whole > 0 ? bytes / whole : 0, GOOD);
        snprintf(line, sizeof line, "%11s", text);
        screen_put(y++, x + columns - 12, 11, line, false);
    }
    y++;
    size_text(text, sizeof text, whole);
    snprintf(line, sizeof line, _("peak %s"), text);
    attron(A_BOLD);
    screen_put(y++, x, columns, line, false);
    attroff(A_BOLD);
    double before = (double)f->saved_use.peak_total_bytes;
    if (before > 0 && f->saved_use.peak_total_bytes != f->use.peak_total_bytes) {
        size_text(text, sizeof text, before);
        snprintf(line, sizeof line, _("was %s (%+.1f %%)"), text, 100 * (whole / before - 1));
        screen_put(y, x, columns, line, false);
    }
    y++;
    if (f->card_bytes) {
        bool fits = f->use.peak_total_bytes <= f->card_bytes;
        size_text(text, sizeof text, (double)f->card_bytes);
        bar(y++, x, columns - 1, whole / (double)f->card_bytes, fits ? GOOD : BAD);
        snprintf(line, sizeof line, fits ? _("fits %s") : _("DOES NOT FIT %s"), text);
        attron(A_BOLD | paint(fits ? GOOD : BAD));
        screen_put(y, x, columns, line, false);
        attroff(A_BOLD | paint(fits ? GOOD : BAD));
    } else {
        screen_put(y, x, columns, "card: --card-memory 64G", false);
    }
}

/* ---- Boxes over the form ---- */

static void draw_choices(const struct form *f, const struct boxes *b)
{
    int key = f->rows[f->selected].key, count = 0, widest = 8;
    const char *choice;
    while ((choice = config_choice(key, count)) != NULL) {
        if ((int)strlen(choice) > widest) widest = (int)strlen(choice);
        count++;
    }
    int lines = count < b->height - 4 ? count : b->height - 4,
        first = f->choice >= lines ? f->choice - lines + 1 : 0;
    int y = b->list_top + (f->selected - f->top), x = b->list_width >= 48 ? 22 : b->list_width / 2 - 1;
    if (y + lines + 2 > b->height - 1) y = b->height - 1 - lines - 2;
    if (y < 0) y = 0;
    if (x + widest + 4 > b->width) x = b->width - widest - 4;
    for (int i = -1; i <= lines; i++) {
        move(y + 1 + i, x);
        for (int c = 0; c < widest + 4; c++) {
            bool edge = i == -1 || i == lines, side = c == 0 || c == widest + 3;
            addch(edge && side ? '+' : edge ? '-' : side ? '|' : ' ');
        }
        if (i < 0 || i == lines) continue;
        if (first + i == f->choice) attron(A_REVERSE);
        screen_put(y + 1 + i, x + 1, widest + 2, "", true);
        screen_put(y + 1 + i, x + 2, widest, config_choice(key, first + i), false);
        attroff(A_REVERSE);
    }
}

static const char help_text[] = N_(
    "Up Down PgUp PgDn Home End   move\nTab                          next section\nEnter                     "
    "   change the value\n"
    "Space                        next choice\nx                            remove the key: its default "
    "applies\nu                            undo\n"
    "/  n                         search, next\nd                            show the changes\ns             "
    "               save\n"
    "q                            quit\n\nBold values are set in the file, the others are defaults.\nEvery "
    "unchanged byte is kept: comments, quotes, order.\n");

static void draw_text(struct form *f, const struct boxes *b, const char *text)
{
    int lines = 0, visible = b->height - 2;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    if (f->scroll > lines - visible) f->scroll = lines > visible ? lines - visible : 0;
    int y = 1, skip = f->scroll;
    for (const char *p = text; *p && y <= visible; p += strcspn(p, "\n") + (p[strcspn(p, "\n")] == '\n')) {
        if (skip-- > 0) continue;
        char raw[1024], shown[2048];
        snprintf(raw, sizeof raw, "%.*s", (int)strcspn(p, "\r\n"), p);
        clean(shown, sizeof shown, raw);
        screen_put(y++, 0, b->width, shown, false);
    }
}

/* ---- All of it ---- */

static void draw_status(const struct form *f, const struct boxes *b)
{
    int y = b->height - 1;
    char text[512];
    switch (f->mode) {
    case FORM_TEXT:
        snprintf(text, sizeof text, "%s",
                 f->message[0]         ? f->message
                 : f->input_problem[0] ? f->input_problem
                                       : _("Enter: accept  Esc: cancel"));
        break;
    case FORM_CHOICE:
        snprintf(text, sizeof text, "%s", f->message[0] ? f->message : _("Enter: accept  Esc: cancel"));
        break;
    case FORM_SEARCH: snprintf(text, sizeof text, "/"); break;
    case FORM_SAVE: snprintf(text, sizeof text, "Save? y n"); break;
    case FORM_QUIT: snprintf(text, sizeof text, _("Save before quitting? y n, c: cancel")); break;
    case FORM_DIFF:
    case FORM_HELP: snprintf(text, sizeof text, _("any key: back")); break;
    default: {
        const char *keys =
            b->width >= 60 ? _("Enter change  Space next  x unset  u undo  / find  d diff  s save  q quit  ?")
                           : _("Enter x u / d s q ?");
        char peak[32] = "";
        if (!b->margin && !f->plan_error.code) {
            size_text(peak, sizeof peak, (double)f->use.peak_total_bytes);
            strcat(peak, "  ");
        }
        snprintf(text, sizeof text, "%s%s", f->message[0] ? "" : peak, f->message[0] ? f->message : keys);
    }
    }
    bool bad = f->message[0] || (f->mode == FORM_TEXT && f->input_problem[0]);
    attron(A_REVERSE | (bad ? A_BOLD : 0));
    char shown[1024];
    clean(shown, sizeof shown, text);
    screen_put(y, 0, b->width - 1, shown, true); /* never the last cell, which scrolls some terminals */
    attrset(A_NORMAL);
    if (f->mode == FORM_SEARCH) draw_input(f, b, y, 1, b->width - 3);
}

void form_draw(struct form *f)
{
    int height, width;
    getmaxyx(stdscr, height, width);
    erase();
    curs_set(0);
    if (width < MIN_WIDTH || height < MIN_HEIGHT) {
        screen_put(0, 0, width, "terminal too small", false);
        refresh();
        return;
    }
    struct boxes b = boxes_of(height, width);
    char title[600], name[512];
    clean(name, sizeof name, path_basename(f->path));
    snprintf(title, sizeof title, " %s%s", name, form_changed(f) ? " *" : "");
    attron(A_REVERSE);
    screen_put(0, 0, width, title, true);
    attroff(A_REVERSE);
    if (f->mode == FORM_DIFF || f->mode == FORM_SAVE || f->mode == FORM_QUIT) {
        draw_text(f, &b, f->diff);
    } else if (f->mode == FORM_HELP) {
        draw_text(f, &b, translation(help_text));
    } else {
        draw_list(f, &b);
        draw_detail(f, &b);
        if (b.margin) draw_memory(f, &b);
        if (f->mode == FORM_CHOICE) draw_choices(f, &b);
    }
    draw_status(f, &b);
    if (f->mode == FORM_TEXT) {
        int name_width = b.list_width >= 48 ? 22 : b.list_width / 2 - 1;
        draw_input(f, &b, b.list_top + f->selected - f->top, 2 + name_width, b.list_width - 3 - name_width);
    }
    refresh();
}

int form_row_at(const struct form *f, int y, int x)
{
    int height, width;
    getmaxyx(stdscr, height, width);
    struct boxes b = boxes_of(height, width);
    int row = f->top + y - b.list_top;
    return y >= b.list_top && y < b.list_top + b.list_lines && x < b.list_width && row < f->row_count ? row
                                                                                                      : -1;
}
