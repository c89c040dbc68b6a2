/* The terminal: see screen.h. */
#include "cli/language.h"
#include "cli/terminal/keys.h"
#include "cli/terminal/screen.h"
#include "core/base/memory.h"

#include <langinfo.h>
#include <limits.h>
#include <ncurses.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

bool screen_ascii, screen_colours;
volatile sig_atomic_t screen_signal;

static const int fatal_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static const int ending_signals[] = {SIGTERM, SIGHUP, SIGINT};
static struct sigaction old_fatal[5], old_suspend;
static bool suspends; /* ncurses has a handler for Ctrl-Z */
static volatile sig_atomic_t in_curses, title_shown;
static SCREEN *screen;
static pid_t owner; /* child processes share the terminal and must not restore it */

static void on_ending(int signal_number) { screen_signal = signal_number; }

/* Writes a control sequence. Titles are saved on the terminal's stack (xterm's XTWINOPS 22 and 23). */
static void write_sequence(const char *sequence)
{
    for (size_t left = strlen(sequence); left > 0;) {
        ssize_t n = write(STDOUT_FILENO, sequence, left);
        if (n <= 0) return;
        sequence += n;
        left -= (size_t)n;
    }
}

static void restore_title(void)
{
    if (title_shown) write_sequence("\033[23;0t");
    title_shown = 0;
}

static void restore_terminal(void)
{
    if (!in_curses || getpid() != owner) return;
    in_curses = 0;
    restore_title();
    keys_paste_mode(false);
    endwin();
}

/* Handles Ctrl-Z. The handler of ncurses stops the process and returns after SIGCONT. */
static void on_suspend(int signal_number)
{
    keys_paste_mode(false);
    old_suspend.sa_handler(signal_number);
    keys_paste_mode(true);
}

static void on_fatal(int signal_number)
{
    restore_terminal();
    for (int i = 0; i < 5; i++)
        if (fatal_signals[i] == signal_number) sigaction(signal_number, &old_fatal[i], NULL);
    raise(signal_number);
}

static void install(bool on)
{
    struct sigaction fatal = {.sa_handler = on_fatal, .sa_flags = SA_NODEFER},
                     end = {.sa_handler = on_ending},
                     suspend = {.sa_handler = on_suspend, .sa_flags = SA_RESTART};
    for (int i = 0; i < 5; i++) {
        if (on) sigaction(fatal_signals[i], &fatal, &old_fatal[i]);
        else sigaction(fatal_signals[i], &old_fatal[i], NULL);
    }
    for (int i = 0; i < 3; i++) {
        if (on) sigaction(ending_signals[i], &end, NULL);
        else signal(ending_signals[i], SIG_DFL);
    }
    if (on) {
        sigaction(SIGTSTP, NULL, &old_suspend);
        suspends = old_suspend.sa_handler != SIG_DFL && old_suspend.sa_handler != SIG_IGN;
    }
    if (suspends) sigaction(SIGTSTP, on ? &suspend : &old_suspend, NULL);
    memory_out_calls(on ? restore_terminal : NULL);
}

/* Returns whether the terminal predates Unicode, whatever the locale is. */
static bool is_ascii_terminal(void)
{
    static const char *const families[] = {"vt1", "vt2", "vt3", "vt4", "vt5", "ansi", "wy", "cons25", "sun"};
    const char *term = getenv("TERM");
    for (size_t i = 0; term && i < sizeof families / sizeof *families; i++)
        if (strncmp(term, families[i], strlen(families[i])) == 0) return true;
    return false;
}

int screen_open(bool ascii, int timeout_ms, struct error *err)
{
    if (!screen_possible()) return screen_refused("this", "", err);
    screen = newterm(NULL, language_plain_stdout(), stdin); /* initscr would exit on a bad TERM */
    if (!screen)
        return error_set(err, EXIT_USAGE, "set TERM", "unknown terminal '%s'",
                         getenv("TERM") ? getenv("TERM") : "");
    owner = getpid();
    in_curses = 1;
    screen_signal = 0;
    install(true);
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    set_escdelay(50);
    keys_begin();
    timeout(timeout_ms);
    screen_ascii = ascii || strcmp(nl_langinfo(CODESET), "UTF-8") != 0 || is_ascii_terminal();
    const char *no = getenv("NO_COLOR"), *ours = getenv("MEOPT_NO_COLOR");
    screen_colours = has_colors() && !(no && no[0]) && !(ours && ours[0]);
    if (screen_colours) {
        start_color();
        use_default_colors();
    }
    return 0;
}

void screen_mouse(void)
{
    mousemask(BUTTON1_CLICKED | BUTTON1_PRESSED | BUTTON4_PRESSED
#ifdef BUTTON5_PRESSED
                  | BUTTON5_PRESSED
#endif
              ,
              NULL);
    mouseinterval(0);
}

/* Returns whether the terminal has titles. Terminfo is not reliable: it denies them for screen. */
static bool has_title(void)
{
    static const char *const families[] = {"xterm", "screen",  "tmux",  "rxvt", "alacritty", "foot",
                                           "kitty", "konsole", "gnome", "vte",  "st-",       "putty"};
    const char *term = getenv("TERM");
    for (size_t i = 0; term && i < sizeof families / sizeof *families; i++)
        if (strncmp(term, families[i], strlen(families[i])) == 0) return true;
    return false;
}

void screen_title(const char *text)
{
    char all[200], printable[160];
    if (!screen || !has_title()) return;
    snprintf(all, sizeof all, "%s\033]0;%s\007", title_shown ? "" : "\033[22;0t",
             name_printable(printable, sizeof printable, text));
    write_sequence(all);
    title_shown = 1;
}

void screen_close(void)
{
    in_curses = 0;
    restore_title();
    keys_paste_mode(false);
    endwin();
    delscreen(screen);
    screen = NULL;
    install(false);
}

/* Decodes the next character of UTF-8 and its columns; '?' for invalid bytes and for characters that the
 * locale does not have. Returns the position after it. */
static const char *next(const char *p, wchar_t *wide, int *columns)
{
    static const unsigned char begins[] = {0x80, 0xE0, 0xF0, 0xF8}, with[] = {0, 0xC0, 0xE0, 0xF0};
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *u = (const unsigned char *)p;
    char encoded[MB_LEN_MAX];
    mbstate_t state = {0};
    int n = 0;
    while (n < 4 && (u[0] & begins[n]) != with[n]) n++;
    uint32_t code = n < 4 ? u[0] & (unsigned char)~begins[n] : 0;
    bool whole = n < 4;
    for (int i = 1; i <= n && whole; i++) {
        whole = (u[i] & 0xC0) == 0x80;
        code = code << 6 | (u[i] & 0x3Fu);
    }
    whole = whole && code >= least[n] && code < 0x110000 && (code < 0xD800 || code > 0xDFFF);
    *wide = whole ? (wchar_t)code : L'?';
    *columns = wcwidth(*wide);
    if (*columns < 0 || wcrtomb(encoded, *wide, &state) == (size_t)-1) {
        *wide = L'?';
        *columns = 1;
    }
    return p + (whole ? n + 1 : 1);
}

int screen_width(const char *text)
{
    int used = 0, columns;
    wchar_t wide;
    for (const char *p = text; *p && *p != '\n'; used += columns) p = next(p, &wide, &columns);
    return used;
}

void screen_cut(char *dst, size_t size, const char *text, int columns)
{
    int used = 0, w;
    size_t at = 0;
    wchar_t wide;
    bool utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    for (const char *p = text, *after; *p; p = after) {
        after = next(p, &wide, &w);
        if (used + w > columns - 1 || at + (size_t)(after - p) + 4 >= size) break;
        memcpy(dst + at, p, (size_t)(after - p));
        at += (size_t)(after - p);
        used += w;
    }
    snprintf(dst + at, size - at, "%s", utf8 ? "…" : "~");
}

int screen_utf8(char dst[5], wchar_t wide)
{
    uint32_t c = (uint32_t)wide;
    int n = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; /* bytes after the first */
    static const unsigned char first[] = {0, 0xC0, 0xE0, 0xF0};
    dst[0] = (char)(first[n] | c >> 6 * n);
    for (int i = 1; i <= n; i++) dst[i] = (char)(0x80 | (c >> 6 * (n - i) & 63));
    dst[n + 1] = 0;
    return n + 1;
}

void screen_line(const char *text)
{
    int columns;
    wchar_t wide;
    bool unchanged = !isatty(STDOUT_FILENO) || strcmp(nl_langinfo(CODESET), "ANSI_X3.4-1968") != 0;
    if (unchanged) fputs(text, stdout);
    for (const char *p = text; *p && !unchanged;) {
        char encoded[MB_LEN_MAX];
        mbstate_t state = {0};
        p = next(p, &wide, &columns);
        size_t n = wcrtomb(encoded, wide, &state);
        if (n != (size_t)-1) fwrite(encoded, 1, n, stdout);
    }
    putchar('\n');
}

int screen_put(int y, int x, int columns, const char *text, bool fill)
{
    int used = 0, w;
    wchar_t wide;
    if (strchr(text, ' ')) text = translation(text); /* a text of several words may be a message */
    move(y, x);
    for (const char *p = text; *p && *p != '\n'; used += w) {
        p = next(p, &wide, &w);
        if (used + w > columns) break;
        if (wide < 128) addch((chtype)wide);
        else {
            wchar_t one[2] = {wide, 0};
            addwstr(one);
        }
    }
    for (int i = used; fill && i < columns; i++) addch(' ');
    return used;
}
