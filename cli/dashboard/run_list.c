/* The list of runs: keys and drawing, see run_list.h. run_table.c formats the lines. */
#include "cli/dashboard/run_list.h"
#include "cli/language.h"
#include "cli/dashboard/dash.h"
#include "cli/terminal/keys.h"
#include "cli/dashboard/run_table.h"
#include "cli/terminal/screen.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/run/request.h"

#include <errno.h>
#include <langinfo.h>
#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEY_WAIT_MS = 200, REFRESH_SECONDS = 2, MARKS = 8, LEAST_ROWS = 4, LEAST_COLUMNS = 36 };
static const double READ_SECONDS = 0.25; /* per refresh; continues between keys on a slow file system */
enum typing { TYPING_NOTHING, TYPING_FILTER, TYPING_CONFIG };

struct workspace {
    struct run_table table;
    bool ascii, help, leave;
    struct keys_question asks; /* to stop the run */
    enum typing typing;
    char typed[256];
    int selected, top;       /* in the shown runs */
    char marked[MARKS][256]; /* names */
    int marks;
    char message[256];
    struct error *err;
};

static struct run_brief *chosen(const struct workspace *w)
{
    const struct run_table *t = &w->table;
    return w->selected >= 0 && w->selected < t->shown_count ? &t->briefs[t->shown[w->selected]] : NULL;
}

static int mark_of(const struct workspace *w, const char *name)
{
    for (int i = 0; i < w->marks; i++)
        if (strcmp(w->marked[i], name) == 0) return i;
    return -1;
}

static void mark(struct workspace *w)
{
    const struct run_brief *b = chosen(w);
    int at = b ? mark_of(w, b->name) : -1;
    if (at >= 0) memmove(w->marked[at], w->marked[at + 1], sizeof w->marked[0] * (size_t)(--w->marks - at));
    else if (b && w->marks < MARKS) snprintf(w->marked[w->marks++], sizeof w->marked[0], "%s", b->name);
    if (w->selected + 1 < w->table.shown_count) w->selected++;
}

/* ---- other screens and commands ---- */

static int back(struct workspace *w) { return screen_open(w->ascii, KEY_WAIT_MS, w->err); }

static int open_dash(struct workspace *w)
{
    const struct run_brief *b = chosen(w);
    if (!b) return 0;
    char *run = xstrdup(b->directory), *others[DASH_BASELINES] = {NULL};
    for (int i = 0, n = 0; i < w->marks && n < DASH_BASELINES; i++)
        if (strcmp(w->marked[i], b->name) != 0) others[n++] = path_join(w->table.directory, w->marked[i]);
    struct dash_options options = {.directory = run, .baselines = others, .ascii = w->ascii};
    struct error err = {0};
    screen_close();
    int code = dash_view(&options, NULL, &err);
    if (code && err.what[0]) snprintf(w->message, sizeof w->message, "%.200s", err.what);
    else if (code && code != EXIT_STOPPED)
        snprintf(w->message, sizeof w->message, _("it ended with exit %d"), code);
    dash_baselines_free(others);
    free(run);
    return back(w);
}

/* Runs another meopt command in the same terminal, with a pager if available. */
static int run_command(struct workspace *w, char **argv, bool page)
{
    screen_close();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        const char *pager = getenv("PAGER");
        int ends[2];
        if (page && pipe(ends) == 0) {
            if (fork() == 0) {
                dup2(ends[1], STDOUT_FILENO);
                dup2(ends[1], STDERR_FILENO);
                close(ends[0]);
                close(ends[1]);
                setenv(LANGUAGE_OF_TERMINAL, "1", 1);
                execv("/proc/self/exe", argv);
                _exit(127);
            }
            dup2(ends[0], STDIN_FILENO);
            close(ends[0]);
            close(ends[1]);
            setenv("LESS", "R", 0);
            /* less knows UTF-8 and character sets of one byte: here, of all bytes above 127 */
            if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setenv("LESSCHARDEF", "8bcccbcc18b95.b128.", 0);
            execl("/bin/sh", "sh", "-c", pager && pager[0] ? pager : "less || more || cat", (char *)NULL);
            _exit(127);
        }
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    bool failed = pid < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (failed && !page) {
        fprintf(stderr, _("\nEnter goes back to the list of runs"));
        for (int c = getchar(); c != '\n' && c != EOF; c = getchar())
            ;
    }
    return back(w);
}

static int compare(struct workspace *w)
{
    const struct run_brief *b = chosen(w);
    char *runs[MARKS + 1] = {NULL}, *argv[MARKS + 4] = {"meopt", "compare"};
    int n = 0, code = 0;
    for (int i = 0; i < w->marks; i++) runs[n++] = path_join(w->table.directory, w->marked[i]);
    if (n == 1 && b && mark_of(w, b->name) < 0) runs[n++] = path_join(w->table.directory, b->name);
    for (int i = 0; i < n; i++) argv[2 + i] = runs[i];
    if (n < 2) snprintf(w->message, sizeof w->message, _("mark two runs with space, then d compares them"));
    else code = run_command(w, argv, true);
    for (int i = 0; i < n; i++) free(runs[i]);
    return code;
}

static int begin(struct workspace *w)
{
    char *argv[] = {"meopt", "train", w->typed, "--run-dir", (char *)(uintptr_t)w->table.directory, NULL};
    return run_command(w, argv, false);
}

static void stop(struct workspace *w)
{
    const struct run_brief *b = chosen(w);
    struct error err = {0};
    if (!b || run_status_over(&b->status)) snprintf(w->message, sizeof w->message, _("it has ended"));
    else if (run_request(b->directory, "stop", &err) != 0)
        snprintf(w->message, sizeof w->message, "%.200s", err.what);
    else snprintf(w->message, sizeof w->message, _("%.200s: asked to save and stop"), b->name);
}

/* ---- keys ---- */

static void move_by(struct workspace *w, int by)
{
    w->selected += by;
    if (w->selected >= w->table.shown_count) w->selected = w->table.shown_count - 1;
    if (w->selected < 0) w->selected = 0;
}

/* Recomputes the list; keeps the selected run. */
static void choose_anew(struct workspace *w)
{
    const struct run_brief *b = chosen(w);
    char *name = b ? xstrdup(b->name) : NULL;
    run_table_choose(&w->table);
    for (int i = 0; name && i < w->table.shown_count; i++)
        if (strcmp(w->table.briefs[w->table.shown[i]].name, name) == 0) w->selected = i;
    free(name);
    move_by(w, 0);
}

/* Returns whether the last key was typed alone; otherwise sets a message that it is ignored. */
static bool alone(struct workspace *w)
{
    if (keys_alone()) return true;
    snprintf(w->message, sizeof w->message, _("ignored: several keys came at once, as in a paste"));
    return false;
}

static int type_key(struct workspace *w, int kind, wint_t c)
{
    size_t n = strlen(w->typed);
    bool filter = w->typing == TYPING_FILTER;
    if (kind == OK && (c == '\n' || c == '\r')) {
        if (!filter && !alone(w)) return 0;
        w->typing = TYPING_NOTHING;
        return filter || !n ? 0 : begin(w);
    }
    if (kind == OK && c == 27) {
        w->typing = TYPING_NOTHING;
        w->typed[0] = 0;
    } else if ((kind == KEY_CODE_YES && c == KEY_BACKSPACE) || (kind == OK && (c == 127 || c == 8))) {
        while (n && (w->typed[n - 1] & 0xC0) == 0x80) n--;
        w->typed[n ? n - 1 : 0] = 0;
    } else if (kind == OK && c == 21) {
        w->typed[0] = 0;
    } else if (kind != KEY_CODE_YES && c >= ' ') {
        char bytes[5];
        int length = screen_utf8(bytes, (wchar_t)c);
        if (n + (size_t)length < sizeof w->table.filter - 1) memcpy(w->typed + n, bytes, (size_t)length + 1);
    }
    if (filter) {
        snprintf(w->table.filter, sizeof w->table.filter, "%.120s", w->typed);
        choose_anew(w);
    }
    return 0;
}

static int letter_key(struct workspace *w, wint_t c)
{
    switch (c) {
    case 'k': move_by(w, -1); break;
    case 'j': move_by(w, 1); break;
    case 'g': move_by(w, -w->table.count); break;
    case 'G': move_by(w, w->table.count); break;
    case '/':
        w->typing = TYPING_FILTER;
        snprintf(w->typed, sizeof w->typed, "%s", w->table.filter);
        break;
    case 'n':
        w->typing = TYPING_CONFIG;
        w->typed[0] = 0;
        break;
    case 's':
        w->table.order = (enum run_order)((w->table.order + 1) % ORDER_COUNT);
        choose_anew(w);
        break;
    case 'r':
        w->table.reversed = !w->table.reversed;
        choose_anew(w);
        break;
    case ' ': mark(w); break;
    case 'd': return alone(w) ? compare(w) : 0;
    case '\n':
    case '\r': return open_dash(w);
    case 'x':
        if (chosen(w) && alone(w)) w->asks.word = "stop";
        break;
    case 'h':
    case '?': w->help = true; break;
    case 12: clearok(stdscr, TRUE); break;
    case 27:
        w->table.filter[0] = 0;
        w->marks = 0;
        choose_anew(w);
        break;
    case 'q': w->leave = !keys_waiting() || alone(w); break; /* pending keys would go to the shell */
    default: break;
    }
    return 0;
}

static int key(struct workspace *w, int kind, wint_t c)
{
    if (kind == KEY_CODE_YES && c == KEY_RESIZE) return 0;
    w->message[0] = 0;
    if (w->typing) return type_key(w, kind, c);
    if (w->asks.word) {
        enum keys_answer answer = keys_confirm(&w->asks, kind, c);
        if (answer == KEYS_CONFIRMED) stop(w);
        if (answer == KEYS_CANCELLED) snprintf(w->message, sizeof w->message, _("not stopped"));
        return 0;
    }
    if (kind == KEYS_PASTED) return snprintf(w->message, sizeof w->message, _("pasted text is ignored")), 0;
    if (w->help) return w->help = false, 0;
    if (kind == OK) return letter_key(w, c);
    switch (c) {
    case KEY_UP: move_by(w, -1); break;
    case KEY_DOWN: move_by(w, 1); break;
    case KEY_PPAGE: move_by(w, -LINES / 2); break;
    case KEY_NPAGE: move_by(w, LINES / 2); break;
    case KEY_HOME: move_by(w, -w->table.count); break;
    case KEY_END: move_by(w, w->table.count); break;
    case KEY_ENTER: return open_dash(w);
    default: break;
    }
    return 0;
}

/* ---- drawing ---- */

static void draw_help(int rows, int columns)
{
    static const char *const lines[] = {
        N_("Enter            open the dashboard; compare with the marked run"),
        N_("up down, k j, PgUp PgDn, Home End, g G   move"),
        N_("/                filter: words in name, state, device, bound by"),
        N_("s r              sort by age, name, state, step, loss, peak; reverse"),
        N_("space            mark; Esc clears marks and filter"),
        N_("d                compare the marked runs, or the marked one and this"),
        N_("n                train: type a configuration file"),
        N_("x                save and stop the run"),
        N_("Ctrl-L           redraw"),
        N_("q                leave"),
        "",
        N_("saved: planned peak relative to the same configuration without meopt"),
        N_("silent: no activity, although it has not ended"),
        N_("bound by: what its steps wait for; on narrow screens in the state column"),
    };
    for (int i = 0; i < (int)(sizeof lines / sizeof *lines) && i + 1 < rows; i++)
        screen_put(i, 0, columns, lines[i], false);
    screen_put(rows - 1, 0, columns, "any key: back", false);
}

static void draw_foot(const struct workspace *w, int row, int columns)
{
    char line[600];
    attr_t how = A_REVERSE;
    if (w->typing == TYPING_FILTER) snprintf(line, sizeof line, _("filter: %s_"), w->typed);
    else if (w->typing) snprintf(line, sizeof line, _("train the experiment: %s_"), w->typed);
    else if (w->asks.word)
        snprintf(line, sizeof line, _("type stop, Enter: %s_   it saves first; Esc goes back"),
                 w->asks.typed);
    else if (w->message[0]) snprintf(line, sizeof line, "%s", w->message);
    else {
        how = A_DIM;
        snprintf(line, sizeof line,
                 columns >= 78
                     ? _("Enter open  / filter  s sort  space mark  d compare  n new  x stop  ? help  q")
                     : _("Enter open  / filter  d compare  ? help  q leave"));
    }
    attron(how);
    screen_put(row, 0, columns, line, false);
    attroff(how);
}

static void draw(struct workspace *w)
{
    int rows, columns;
    char line[RUN_LINE], count[64];
    const struct run_table *t = &w->table;
    getmaxyx(stdscr, rows, columns);
    erase();
    curs_set(0);
    if (w->help || rows < LEAST_ROWS || columns < LEAST_COLUMNS) {
        snprintf(line, sizeof line, _("too small: %dx%d"), LEAST_COLUMNS, LEAST_ROWS);
        if (w->help) draw_help(rows, columns);
        else screen_put(0, 0, columns, line, false);
        refresh();
        return;
    }
    if (t->unread) snprintf(count, sizeof count, _("reading, %d of %d"), t->count - t->unread, t->count);
    else
        snprintf(count, sizeof count, _("%d of %d  by %s%s"), t->shown_count, t->count,
                 _(run_order_names[t->order]), t->reversed ? _(", reversed") : "");
    snprintf(line, sizeof line, _("runs in %s%s%s"), t->directory, t->filter[0] ? _("  filter: ") : "",
             t->filter);
    attron(A_BOLD);
    screen_put(0, 0, columns - screen_width(count) - 1, line, false);
    attroff(A_BOLD);
    screen_put(0, columns - screen_width(count), columns, count, false);
    run_table_head(line, columns - 2, 0);
    attron(A_DIM);
    screen_put(1, 2, columns - 2, line, false);
    attroff(A_DIM);
    int space = rows - 3;
    if (w->selected < w->top) w->top = w->selected;
    if (w->selected >= w->top + space) w->top = w->selected - space + 1;
    if (w->top > t->shown_count - space) w->top = t->shown_count > space ? t->shown_count - space : 0;
    if (t->shown_count == 0)
        screen_put(2, 2, columns - 2,
                   t->count ? "no run matches the filter" : N_("no runs yet: n starts one"), false);
    if (!t->unread) run_table_ready(t, w->top, space, columns - 2, 0);
    for (int i = w->top; i < t->shown_count && i < w->top + space; i++) {
        const struct run_brief *b = &t->briefs[t->shown[i]];
        attr_t how = i == w->selected ? A_REVERSE : 0;
        run_table_line(line, b, columns - 2, 0, screen_ascii);
        attron(how);
        screen_put(2 + i - w->top, 0, 2, mark_of(w, b->name) >= 0 ? "* " : "  ", true);
        screen_put(2 + i - w->top, 2, columns - 2, line, true);
        attroff(how);
    }
    draw_foot(w, rows - 1, columns);
    refresh();
}

/* Rereads changed runs; keeps the selected run. */
static bool refresh_table(struct workspace *w)
{
    const struct run_brief *b = chosen(w);
    char *name = b && (w->selected || !w->table.unread) ? xstrdup(b->name) : NULL; /* otherwise the newest */
    bool differs = false;
    int unread = w->table.unread;
    bool read = run_table_refresh(&w->table, READ_SECONDS, &differs),
         none = !read && errno == ENOENT && !w->table.count; /* no run was started here yet */
    if (!read && !none) {                                    /* keeps the old list */
        snprintf(w->message, sizeof w->message, _("cannot list '%.120s': %s"), w->table.directory,
                 strerror(errno));
        w->table.unread = 0;
        differs = true;
    }
    for (int i = 0; name && i < w->table.shown_count; i++)
        if (strcmp(w->table.briefs[w->table.shown[i]].name, name) == 0) w->selected = i;
    free(name);
    move_by(w, 0);
    return differs || unread != w->table.unread;
}

int workspace_view(const char *directory, bool ascii, struct error *err)
{
    struct workspace w = {.table = {.directory = directory}, .ascii = ascii, .err = err};
    if (!screen_possible())
        return screen_refused("the list of runs", "use 'meopt runs' or 'meopt runs --json'", err);
    if (!run_table_refresh(&w.table, READ_SECONDS, NULL) && errno != ENOENT)
        return error_errno(err, EXIT_FAILED, "name it with --run-dir", "cannot list the runs in '%s'",
                           directory);
    int code = back(&w);
    double refreshed = clock_seconds();
    bool changed = true;
    while (!code && !w.leave && !screen_signal) {
        if (changed && !keys_waiting()) {
            draw(&w);
            changed = false;
        }
        wint_t c = 0;
        timeout(w.table.unread ? 0 : KEY_WAIT_MS); /* reads the rest between keys */
        int kind = keys_get(&c);
        if (kind == ERR && !isatty(STDIN_FILENO)) break; /* the terminal was closed */
        if (kind != ERR) {
            code = key(&w, kind, c);
            changed = true;
        }
        if (!w.table.unread && clock_seconds() - refreshed < REFRESH_SECONDS) continue;
        changed |= refresh_table(&w);
        refreshed = clock_seconds();
    }
    int signal_number = screen_signal;
    if (!code) screen_close();
    run_table_free(&w.table);
    if (signal_number) {
        fflush(NULL);
        raise(signal_number); /* so that the shell sees it */
    }
    return code;
}
