/* Draws the dashboard: see dash_draw.h. One erase and one refresh per frame. follow.c has removed control
 * characters from texts of the run. */
#include "cli/dashboard/dash_draw.h"
#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/screen.h"
#include "core/run/bottleneck.h"

#include <math.h>
#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SILENT_SECONDS = 10 };

/* ---- header ---- */

/* Writes the state of the run and its colour pair. */
static void describe_state(const struct dash *d, char *dst, size_t size, int *pair)
{
    const struct follow *f = dash_shown(d);
    const struct run_status *s = &f->status;
    char silent[24];
    *pair = PAIR_GOOD;
    if (d->past) {
        snprintf(dst, size, _("as it was at step %lld"), (long long)f->last.step);
        return;
    }
    if (d->options->replay) {
        snprintf(dst, size, "%s",
                 d->paused       ? _("replay, paused")
                 : f->replay_end ? _("replay, end")
                                 : _("replay"));
        return;
    }
    if (d->run->gone) {
        *pair = PAIR_BAD;
        snprintf(dst, size, _("its directory is gone"));
        return;
    }
    if (run_status_over(s)) {
        if (s->exit_code > 0 && strcmp(s->state, "stopped") != 0)
            snprintf(dst, size, _("%s (exit %d)"), _(s->state), s->exit_code);
        else snprintf(dst, size, "%s", _(s->state));
        if (strcmp(s->state, "done") != 0 && strcmp(s->state, "stopped") != 0) *pair = PAIR_BAD;
        return;
    }
    if (f->worker[0] && strcmp(f->worker, "running") != 0) {
        *pair = PAIR_BAD;
        if (f->silent_s < 1 || !f->phase[0]) snprintf(dst, size, "%s", _(f->worker));
        else
            snprintf(dst, size, _("%s for %s, while %s"), _(f->worker),
                     dash_duration(silent, sizeof silent, f->silent_s), _(f->phase));
    } else if (f->live_time > 0 && (double)time(NULL) - f->live_time > SILENT_SECONDS) {
        *pair = PAIR_BAD;
        dash_duration(silent, sizeof silent, (double)time(NULL) - f->live_time);
        if (!f->disk_full) snprintf(dst, size, _("no activity for %s"), silent);
        else
            snprintf(dst, size, _("disk full: nothing written for %s%s"), silent,
                     s->here ? _("; training continues") : "");
    } else {
        snprintf(dst, size, "%s",
                 f->phase[0] && strcmp(f->phase, "waiting for data") != 0 ? _(f->phase) : _(s->state));
    }
    if (d->paused) snprintf(dst + strlen(dst), size - strlen(dst), _(", drawing paused"));
}

static struct bottleneck find_bottleneck(const struct dash *d)
{
    struct bottleneck v = {0};
    if (!d->past && !d->options->replay) bottleneck_find(&v, d->run);
    return v;
}

/* Returns the mean step time of the last steps, for the estimate of the time left. */
static double step_ms(const struct follow *f)
{
    double sum = 0;
    int64_t n = f->recent_count < 50 ? f->recent_count : 50;
    for (int64_t i = 1; i <= n; i++) sum += f->recent[(f->recent_count - i) % FOLLOW_RECENT].step_ms;
    return n ? sum / (double)n : NAN;
}

/* Draws run, towers and state. A long name ends in dots. */
static void draw_title(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = dash_shown(d);
    char state[160], name[256], line[512];
    int pair;
    const char *base = strrchr(f->directory, '/');
    name_printable(name, sizeof name, base && base[1] ? base + 1 : f->directory);
    describe_state(d, state, sizeof state, &pair);
    struct bottleneck v = find_bottleneck(d);
    size_t n = strlen(state);
    if (v.kind && pair == PAIR_GOOD && dash_alive(d)) {
        snprintf(state + n, sizeof state - n, ", %s", _(bottleneck_names[v.kind]));
        if (v.kind != BOTTLENECK_COMPUTE) pair = PAIR_BAD;
    }
    int used = screen_width(state), space = r->w - used - 2, x = r->x + screen_width(name);
    if (screen_width(name) > space && space > 4) {
        dash_put(r->y, r->x, space - 1, A_BOLD, name);
        dash_put(r->y, r->x + space - (screen_ascii ? 3 : 1), 3, A_BOLD, screen_ascii ? "..." : "…");
    } else dash_put(r->y, r->x, space, A_BOLD, name);
    const char *student = f->student[0] ? f->student : _("student"), *meopt = f->use_meopt ? "  meopt" : "";
    if (f->has_teacher)
        snprintf(line, sizeof line, "  %s %s %s%s", f->teacher[0] ? f->teacher : _("teacher"),
                 screen_ascii ? "->" : "→", student, meopt);
    else snprintf(line, sizeof line, "  %s%s", student, meopt);
    if ((f->teacher[0] || f->student[0]) && x + screen_width(line) <= r->x + space)
        dash_put(r->y, x, r->w, dash_paint(PAIR_DIM), line);
    else if (f->use_meopt && x + 7 <= r->x + space) dash_put(r->y, x, 7, dash_paint(PAIR_DIM), "  meopt");
    dash_put(r->y, used < r->w ? r->x + r->w - used : r->x, used < r->w ? used : r->w,
             dash_paint(pair) | A_BOLD, state);
}

/* Appends the results of the last step to a line; the least important ones are left out until it fits. */
static void put_results(char *line, size_t size, const struct dash_rect *r, const struct follow *f)
{
    enum { LOSS, SCORES_OF_STEP, LR, NORM, RATE, EVALUATED, PIECES };
    static const int left_out[] = {NORM, LR, RATE, SCORES_OF_STEP};
    const struct metric_line *l = &f->last;
    const struct unit *unit;
    char pieces[PIECES][160], number[24];
    size_t start = strlen(line), used = start;
    double rate = metric_rate(l, &unit);
    snprintf(pieces[LOSS], sizeof pieces[LOSS], _("%sloss %s"), start ? "  " : "",
             dash_number(number, sizeof number, l->loss));
    dash_scores(pieces[SCORES_OF_STEP], sizeof pieces[SCORES_OF_STEP], f, false);
    snprintf(pieces[LR], sizeof pieces[LR], "  lr %s", dash_number(number, sizeof number, l->lr));
    snprintf(pieces[NORM], sizeof pieces[NORM], _("  norm %s"),
             dash_number(number, sizeof number, l->grad_norm));
    snprintf(pieces[RATE], sizeof pieces[RATE], "  %s %s", dash_number(number, sizeof number, rate),
             _(unit->rate));
    dash_scores(pieces[EVALUATED], sizeof pieces[EVALUATED], f, true);
    if (r->h == 2) pieces[RATE][0] = 0; /* it is in the table of cards */
    for (int i = 0; i < PIECES; i++) used += strlen(pieces[i]);
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out && used > (size_t)r->w; i++) {
        used -= strlen(pieces[left_out[i]]);
        pieces[left_out[i]][0] = 0;
    }
    for (int i = 0; i < PIECES; i++) snprintf(line + strlen(line), size - strlen(line), "%s", pieces[i]);
}

static void draw_header(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = dash_shown(d);
    const struct metric_line *l = &f->last;
    char line[512], t1[24], t2[24], n1[24], n3[24], n5[24];
    int64_t step = l->step > 0 ? l->step : f->status.step, total = f->status.total;
    double left = total > step ? (double)(total - step) * step_ms(f) * 1e-3 : total ? 0 : NAN;
    bool over = f->status.ended && !d->options->replay && !d->past;
    draw_title(d, r);
    if (total)
        snprintf(line, sizeof line, _("step %lld/%lld %.0f%%"), (long long)step, (long long)total,
                 100.0 * (double)step / (double)total);
    else snprintf(line, sizeof line, _("step %lld"), (long long)step);
    size_t n = strlen(line);
    snprintf(line + n, sizeof line - n, _("  epoch %lld  trained %s"),
             (long long)(l->epoch < 0 ? 1 : l->epoch + 1), dash_duration(t1, sizeof t1, f->seconds));
    n = strlen(line);
    if (!over) snprintf(line + n, sizeof line - n, _(", %s left"), dash_duration(t2, sizeof t2, left));
    if (r->h == 2) {
        put_results(line, sizeof line, r, f);
        dash_put(r->y + 1, r->x, r->w, 0, line);
        return;
    }
    dash_put(r->y + 1, r->x, r->w, 0, line);
    line[0] = 0;
    const struct unit *unit;
    dash_number(n5, sizeof n5, metric_rate(l, &unit));
    if (r->w >= 66) put_results(line, sizeof line, r, f);
    else
        snprintf(line, sizeof line, _("loss %s  %s %s  lr %s"), dash_number(n1, sizeof n1, l->loss), n5,
                 _(unit->rate), dash_number(n3, sizeof n3, l->lr));
    dash_put(r->y + 2, r->x, r->w, 0, line);
}

/* ---- events, help, footer ---- */

/* Draws the error of the run or its bottleneck, and the last events. */
static void draw_events(const struct dash *d, const struct dash_rect *r)
{
    const struct follow *f = dash_shown(d);
    int y = r->y, lines = r->h;
    const struct run_status *s = &f->status;
    struct bottleneck v = find_bottleneck(d);
    if (s->message[0] && lines >= 2 && !d->options->replay && !d->past) {
        char text[600];
        name_printable(text, sizeof text, s->message);
        dash_put(y++, r->x, r->w, dash_paint(PAIR_BAD) | A_BOLD, text);
        name_printable(text, sizeof text, s->hint[0] ? s->hint : v.remedy);
        dash_put(y++, r->x, r->w, 0, text);
        lines -= 2;
    } else if (v.kind && v.kind != BOTTLENECK_COMPUTE && lines >= 3) {
        char text[300];
        snprintf(text, sizeof text, "%s: %s", _(bottleneck_names[v.kind]), v.cause);
        dash_put(y++, r->x, r->w, dash_paint(PAIR_BAD) | A_BOLD, text);
        dash_put(y++, r->x, r->w, 0, v.remedy);
        lines -= 2;
    }
    int64_t n = f->event_count < lines ? f->event_count : lines;
    if (n > FOLLOW_LINES) n = FOLLOW_LINES;
    for (int64_t i = f->event_count - n; i < f->event_count; i++)
        dash_put(y++, r->x, r->w, dash_paint(PAIR_DIM), f->events[i % FOLLOW_LINES]);
}

static void draw_help(struct dash *d, const struct dash_rect *r)
{
    static const char *const lines[] = {
        N_("1-4, Tab, Shift-Tab   overview, charts, memory, log"),
        N_("up down, k j, PgUp PgDn   select a card or chart, its page; in the log, scroll"),
        N_("left right   through the run: bars, cards, log, charts as at that step; Home, End;"),
        N_("             Shift: longer steps, Esc: back to now; in the log: along long lines, oldest, "
           "newest"),
        N_("/ n N        in the log: search a word, next older and newer line"),
        N_("r            resume an ended run from the checkpoint before that step"),
        N_("+ - [ ] 0    zoom in and out at the cursor, earlier, later, all"),
        N_("z            the last 2000 steps, the last 200, all"),
        N_("t            along steps, epochs, minutes of training"),
        N_("Enter f      one large chart; in memory: the memory of each tensor"),
        N_("l            logarithmic"),
        N_("R s S        raw curve; more smoothing, less"),
        N_("b            compare with the curves of other runs"),
        N_("o            include or cut off outliers"),
        N_("g            braille, blocks, ASCII"),
        N_("p space      pause drawing"),
        N_("c x          checkpoint now; save and stop the run, after a confirmation"),
        N_("e            change lr, intervals, checkpoint times while it trains"),
        N_("? h          this help, up and down; Esc, q close it"),
        N_("Ctrl-L       redraw"),
        N_("q d          leave; the run continues. Settings are saved"),
        N_("Ctrl-C       of meopt train: save and stop; again: at once"),
        N_("bar: W weights G gradients O optimizer A activations"),
        N_("     T teacher S workspace C comm D data X other processes"),
    };
    const char *marks = screen_ascii ? _("     | highest so far  ! planned peak  (n) stale")
                                     : _("     ▏ highest so far  ┊ planned peak  (n) stale");
    int count = (int)(sizeof lines / sizeof *lines) + 1, space = r->h;
    if (d->scroll > count - space) d->scroll = count > space ? count - space : 0;
    for (int i = 0; i < space && d->scroll + i < count; i++) {
        int at = d->scroll + i;
        bool more = i == space - 1 && at < count - 1;
        dash_put(r->y + i, r->x, r->w, 0, more ? "..." : at < count - 1 ? lines[at] : marks);
    }
}

/* Draws the tabs with the open one marked, then the key hints that fit. */
static void draw_footer(const struct dash *d, const struct dash_rect *r)
{
    int x = r->x;
    char text[32];
    char line[160], from[80];
    if (d->asks.word && d->asks.word[0] == 's')
        snprintf(line, sizeof line, _("type stop, Enter: %s_   it saves first; Esc goes back"),
                 d->asks.typed);
    else if (d->asks.word) {
        snprintf(from, sizeof from, _("from step %lld%s"), (long long)d->resume_step,
                 d->branches ? _(", in a new run") : _(", its newest checkpoint"));
        snprintf(line, sizeof line, _("type resume, Enter: %s_   %s; Esc goes back"), d->asks.typed, from);
    }
    if (d->asks.word || d->message[0]) {
        dash_put(r->y, r->x, r->w, A_REVERSE, d->asks.word ? line : d->message);
        return;
    }
    for (int i = 0; i < TAB_COUNT; i++) {
        if (i == TAB_HELP) snprintf(text, sizeof text, _("? help"));
        else if (r->w >= 60) snprintf(text, sizeof text, "%d %s", i + 1, _(dash_tab_names[i]));
        else
            snprintf(text, sizeof text, "%d %.*s", i + 1, (int)text_line(_(dash_tab_names[i]), 3),
                     _(dash_tab_names[i]));
        dash_put(r->y, x, r->x + r->w - x, i == (int)d->tab ? (int)A_REVERSE : dash_paint(PAIR_DIM), text);
        x += screen_width(text) + 2;
    }
    bool memory = d->tab == TAB_MEMORY, log = d->tab == TAB_LOG, back = isfinite(d->cursor);
    const char *all = back  ? _("Esc back to now")
                      : log ? _("/ search  left right  End newest  q leave")
                      : dash_alive(d)
                          ? memory ? _("Enter why so much  c save  x stop  q leave, the run continues")
                                   : _("c save  e change  x stop  q leave, the run continues")
                      : memory ? _("Enter why so much  r resume  q leave")
                               : _("z range  r resume  q leave"),
               *few = back  ? _("Esc back to now")
                      : log ? _("/ search  left right")
                      : dash_alive(d)
                          ? memory ? _("Enter why so much  x stop  q") : _("c save  e change  x stop  q")
                      : memory ? _("Enter why so much  q leave")
                               : _("r resume  q leave"),
               *hints = all;
    if (x + 1 + screen_width(hints) > r->x + r->w) hints = few;
    if (x + 1 + screen_width(hints) > r->x + r->w) hints = _("q leave");
    int w = screen_width(hints);
    if (x + w <= r->x + r->w) dash_put(r->y, r->x + r->w - w, w, dash_paint(PAIR_DIM), hints);
}

void dash_draw(struct dash *d)
{
    int rows, columns;
    getmaxyx(stdscr, rows, columns);
    struct dash_layout l =
        dash_layout(rows, columns, d->run->card_count + d->run->other_count, d->tab, d->zoomed);
    erase();
    curs_set(0);
    if (l.too_small) {
        char line[48];
        snprintf(line, sizeof line, _("too small: %dx%d"), DASH_MIN_COLUMNS, DASH_MIN_ROWS);
        dash_put(0, 0, columns, 0, line);
        refresh();
        return;
    }
    draw_header(d, &l.header);
    if (l.cards.h) dash_cards(d, &l);
    if (l.savings.h && d->tab == TAB_MEMORY && d->why.open) dash_why_draw(d, &l.savings);
    else if (l.savings.h && d->tab == TAB_MEMORY) dash_memory(d, &l.savings);
    else if (l.savings.h) dash_savings(d, &l.savings);
    if (d->tab == TAB_CHARTS && l.loss.h) dash_charts(d, &l.loss);
    else if (l.loss.h) {
        dash_chart(d, METRIC_LOSS, &l.loss, false);
        int rate =
            d->run->scored[SCORE_TOKENS_PER_S] ? METRIC_SCORES + SCORE_TOKENS_PER_S : METRIC_IMAGES_PER_S;
        if (l.speed.h) dash_chart(d, rate, &l.speed, false);
    }
    if (l.log.h && d->tab == TAB_HELP) draw_help(d, &l.log);
    else if (l.log.h > 2 && d->tab == TAB_LOG) dash_log_draw(d, &l.log);
    else if (l.log.h) draw_events(d, &l.log);
    if (d->others.open) dash_others_draw(d, rows, columns);
    if (d->edit.open) dash_edit_draw(d, rows, columns);
    draw_footer(d, &l.footer);
    refresh();
}
