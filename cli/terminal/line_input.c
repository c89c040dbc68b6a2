/* Reads lines from a terminal: see line_input.h. A line is drawn in one row, and moves sideways if it is
 * longer. */
#include "cli/terminal/line_input.h"
#include "cli/terminal/screen.h"
#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/translate.h"

#include <errno.h>
#include <langinfo.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

enum key {
    KEY_NONE = 256,
    KEY_EOF,
    KEY_SIGNAL,
    KEY_LEFT,
    KEY_RIGHT,
    KEY_UP,
    KEY_DOWN,
    KEY_HOME,
    KEY_END,
    KEY_DELETE,
    KEY_PASTE,
    KEY_PASTED
};

static struct {
    FILE *out;
    struct termios usual, raw;
    struct sigaction suspend;
    volatile sig_atomic_t changed; /* the terminal is in our mode */
    bool utf8;                     /* the terminal's encoding, or that is unknown */
    bool pasting;
    int ahead;  /* bytes that were typed before the line was asked */
    char *text; /* UTF-8 */
    size_t count, capacity, cursor;
    char **past; /* earlier lines */
    int past_count, past_at;
} line;

/* ---- the terminal ---- */

static void set_mode(bool on)
{
    tcsetattr(STDIN_FILENO, TCSADRAIN, on ? &line.raw : &line.usual);
    ssize_t ignored = write(STDIN_FILENO, on ? "\033[?2004h" : "\033[?2004l", 8); /* bracketed paste */
    (void)ignored;
    line.changed = on;
}

void line_input_restore(void)
{
    if (line.changed) set_mode(false);
}

static void on_suspend(int number);
static const struct sigaction suspend = {.sa_handler = on_suspend, .sa_flags = SA_RESTART};

/* Handles Ctrl-Z: the shell gets its terminal back. */
static void on_suspend(int number)
{
    int saved = errno;
    sigset_t set;
    line_input_restore();
    sigaction(number, &line.suspend, NULL);
    sigemptyset(&set);
    sigaddset(&set, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &set, NULL); /* stops here */
    sigaction(number, &suspend, NULL);
    set_mode(true);
    errno = saved;
}

bool line_input_open(FILE *out)
{
    const char *encoding = nl_langinfo(CODESET);
    if (!isatty(STDIN_FILENO) || !screen_ansi() || tcgetattr(STDIN_FILENO, &line.usual) != 0) return false;
    line.out = out;
    line.utf8 = strcmp(encoding, "UTF-8") == 0 || strcmp(encoding, "ANSI_X3.4-1968") == 0;
    line.raw = line.usual;
    line.raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN);
    line.raw.c_iflag |= ICRNL;
    line.raw.c_cc[VMIN] = 1;
    line.raw.c_cc[VTIME] = 0;
    sigaction(SIGTSTP, NULL, &line.suspend);
    if (line.suspend.sa_handler != SIG_IGN) sigaction(SIGTSTP, &suspend, NULL);
    memory_out_calls(line_input_restore);
    set_mode(true);
    return true;
}

void line_input_close(void)
{
    if (!line.out) return;
    line_input_restore();
    memory_out_calls(NULL);
    sigaction(SIGTSTP, &line.suspend, NULL);
    for (int i = 0; i < line.past_count; i++) free(line.past[i]);
    free(line.past);
    free(line.text);
    memset(&line, 0, sizeof line);
}

/* ---- keys ---- */

static bool more_queued(int milliseconds)
{
    return poll(&(struct pollfd){.fd = STDIN_FILENO, .events = POLLIN}, 1, milliseconds) > 0;
}

/* Returns a byte, KEY_EOF or KEY_SIGNAL: signals interrupt poll, which no flag restarts. */
static int read_byte(void)
{
    unsigned char byte;
    if (!more_queued(-1)) return KEY_SIGNAL;
    line.ahead -= line.ahead > 0;
    return read(STDIN_FILENO, &byte, 1) == 1 ? byte : KEY_EOF;
}

/* Returns the key of a sequence after ESC. */
static int read_sequence(void)
{
    static const struct {
        const char *text;
        int key;
    } keys[] = {{"[D", KEY_LEFT},    {"[C", KEY_RIGHT},    {"[A", KEY_UP},       {"[B", KEY_DOWN},
                {"[H", KEY_HOME},    {"[F", KEY_END},      {"OD", KEY_LEFT},     {"OC", KEY_RIGHT},
                {"OA", KEY_UP},      {"OB", KEY_DOWN},     {"OH", KEY_HOME},     {"OF", KEY_END},
                {"[1~", KEY_HOME},   {"[4~", KEY_END},     {"[7~", KEY_HOME},    {"[8~", KEY_END},
                {"[3~", KEY_DELETE}, {"[200~", KEY_PASTE}, {"[201~", KEY_PASTED}};
    enum { WITHIN_MS = 50 };
    char text[16] = "";
    size_t n = 0;
    while (n + 1 < sizeof text && more_queued(WITHIN_MS)) {
        int byte = read_byte();
        if (byte > 255) break;
        text[n++] = (char)byte;
        if (n > 1 && byte >= 0x40 && byte <= 0x7E) break;
        if (n == 1 && byte != '[' && byte != 'O') break;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(text, keys[i].text) == 0) return keys[i].key;
    return KEY_NONE;
}

/* ---- editing ---- */

/* Returns the begin of the character before `at`, or the end of the one at `at`. */
static size_t before(size_t at)
{
    do at -= at > 0;
    while (at > 0 && ((uint8_t)line.text[at] & 0xC0) == 0x80);
    return at;
}

static size_t after(size_t at)
{
    do at += at < line.count;
    while (at < line.count && ((uint8_t)line.text[at] & 0xC0) == 0x80);
    return at;
}

static void insert(const char *bytes, size_t count)
{
    if (line.count + count + 1 > line.capacity) {
        line.capacity = 2 * (line.count + count) + 64;
        line.text = xrealloc(line.text, line.capacity);
    }
    memmove(line.text + line.cursor + count, line.text + line.cursor, line.count - line.cursor);
    memcpy(line.text + line.cursor, bytes, count);
    line.count += count;
    line.cursor += count;
    line.text[line.count] = 0;
}

/* Removes the bytes from `from` to `to`, where the cursor is then. */
static void erase(size_t from, size_t to)
{
    memmove(line.text + from, line.text + to, line.count - to);
    line.count -= to - from;
    line.cursor = from;
    if (line.text) line.text[line.count] = 0;
}

/* Inserts a byte of a character in the terminal's encoding; control characters are not text. */
static void insert_byte(int byte)
{
    static mbstate_t state;
    char c = (char)byte, utf8[5];
    wchar_t wide;
    if (byte != '\n' && byte != '\t' && (byte < ' ' || byte == 127)) return;
    if (line.utf8) insert(&c, 1);
    else {
        size_t n = mbrtowc(&wide, &c, 1, &state);
        if (n == 1) insert(utf8, (size_t)screen_utf8(utf8, wide));
        if (n == (size_t)-1) memset(&state, 0, sizeof state);
    }
}

static size_t word_begin(void)
{
    size_t at = line.cursor;
    while (at > 0 && strchr(" \n\t", line.text[at - 1])) at--;
    while (at > 0 && !strchr(" \n\t", line.text[at - 1])) at--;
    return at;
}

/* Shows an earlier line, or from the last one on an empty one. */
static void show_past(int step)
{
    int at = line.past_at + step;
    if (at < 0 || at > line.past_count) return;
    line.past_at = at;
    erase(0, line.count);
    if (at < line.past_count) insert(line.past[at], strlen(line.past[at]));
}

static void edit(int key)
{
    switch (key) {
    case KEY_LEFT:
    case 'B' & 31: line.cursor = before(line.cursor); break;
    case KEY_RIGHT:
    case 'F' & 31: line.cursor = after(line.cursor); break;
    case KEY_HOME:
    case 'A' & 31: line.cursor = 0; break;
    case KEY_END:
    case 'E' & 31: line.cursor = line.count; break;
    case KEY_UP:
    case 'P' & 31: show_past(-1); break;
    case KEY_DOWN:
    case 'N' & 31: show_past(1); break;
    case 'H' & 31:
    case 127: erase(before(line.cursor), line.cursor); break;
    case KEY_DELETE:
    case 'D' & 31: erase(line.cursor, after(line.cursor)); break;
    case 'W' & 31: erase(word_begin(), line.cursor); break;
    case 'U' & 31: erase(0, line.cursor); break;
    case 'K' & 31: erase(line.cursor, line.count); break;
    default:
        if (key < KEY_NONE) insert_byte(key);
    }
}

/* ---- drawing ---- */

/* Returns the columns of the character at `at`; control characters are shown as one. */
static int columns_at(size_t at)
{
    return text_control(line.text + at) ? 1 : text_columns(line.text + at, after(at) - at);
}

static void draw(const char *prompt)
{
    struct winsize size;
    int left = text_columns(prompt, SIZE_MAX),
        width = ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > left + 8 ? size.ws_col : 80,
        used = 0;
    size_t from = line.cursor;
    width -= left + 1;
    while (from > 0 && used + columns_at(before(from)) <= width) used += columns_at(from = before(from));
    fprintf(line.out, "\r%s", prompt);
    int shown = 0;
    for (size_t at = from; at < line.count; at = after(at)) {
        shown += columns_at(at);
        if (shown > width) break;
        const char *sign = line.text[at] == '\t'   ? " "
                           : line.text[at] != '\n' ? "?"
                           : line.utf8             ? "\xE2\x86\xB5"
                                                   : "|";
        bool control = text_control(line.text + at) != 0;
        fprintf(line.out, "%.*s", control ? (int)strlen(sign) : (int)(after(at) - at),
                control ? sign : line.text + at);
    }
    fprintf(line.out, "\033[K\r\033[%dC", left + used);
    fflush(line.out);
}

/* Shows the whole text, and moves to the next row. */
static void draw_whole(const char *prompt)
{
    char *text = xmalloc(4 * line.count + 1);
    fprintf(line.out, "\r\033[K%s%s\n", prompt,
            line.count ? text_printable(text, 4 * line.count + 1, line.text) : "");
    fflush(line.out);
    free(text);
}

static enum line_input_end finish(const char *prompt, enum line_input_end end, char **text)
{
    draw_whole(prompt);
    if (end != LINE_READ) return end;
    insert("", 0);
    *text = xstrdup(line.text);
    if (line.count) {
        line.past = xrealloc(line.past, (size_t)(line.past_count + 1) * sizeof *line.past);
        line.past[line.past_count++] = xstrdup(line.text);
    }
    return end;
}

enum line_input_end line_input_read(const char *prompt, volatile sig_atomic_t *stopped, char **text)
{
    enum { PASTE_SILENCE_MS = 1000 }; /* after which a paste ends whose end was lost */
    *text = NULL;
    erase(0, line.count);
    line.past_at = line.past_count;
    if (ioctl(STDIN_FILENO, FIONREAD, &line.ahead) != 0) line.ahead = 0;
    draw(prompt);
    for (;;) {
        if (line.pasting && !more_queued(PASTE_SILENCE_MS)) line.pasting = false;
        bool ahead = line.ahead > 0;
        int key = *stopped ? KEY_SIGNAL : read_byte();
        if (key == 27) key = read_sequence();
        if (key == KEY_SIGNAL && *stopped) {
            bool clears = *stopped == SIGINT && line.count > 0;
            if (!clears) return finish(prompt, LINE_INTERRUPTED, text);
            *stopped = 0;
            erase(0, line.count);
        }
        if (key == KEY_EOF || (key == ('D' & 31) && !line.count && !line.pasting))
            return finish(prompt, LINE_END_OF_INPUT, text);
        if (key == KEY_PASTE || key == KEY_PASTED) line.pasting = key == KEY_PASTE;
        else if (key == '\n' && !line.pasting && (ahead || !more_queued(0)))
            return finish(prompt, LINE_READ, text); /* more after it: a paste, unless typed ahead */
        else if (line.pasting && key < KEY_NONE) insert_byte(key);
        else if (!line.pasting) edit(key);
        if (!more_queued(0)) draw(prompt);
    }
}
