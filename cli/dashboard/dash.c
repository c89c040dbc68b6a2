/* The main loop of the dashboard: keys, timing and requests. See dash.h. dash_draw.c draws,
 * core/run/follow.c reads. */
#include "cli/dashboard/dash.h"

#include "cli/dashboard/dash_internal.h"
#include "cli/terminal/keys.h"
#include "cli/terminal/screen.h"
#include "core/base/clock.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/run/checkpoint.h"
#include "core/run/request.h"
#include "core/train/signals.h"

#include <errno.h>
#include <math.h>
#include <ncurses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KEY_WAIT_MS = 100, FRAME_MS = 500, LINGER_MS = 1500 };

static const char confirm_stop[] = "stop", confirm_resume[] = "resume";

static void send_request(struct dash *d, const char *request, const char *said)
{
    struct error err = {0};
    if (!dash_alive(d)) snprintf(d->message, sizeof d->message, _("the run has ended"));
    else if (run_request(d->run->directory, request, &err) != 0)
        snprintf(d->message, sizeof d->message, "%.190s", err.what);
    else snprintf(d->message, sizeof d->message, "%s", translation(said));
}

/* Loads the run as it was at the cursor. */
static void load_at_cursor(struct dash *d)
{
    if (isfinite(d->cursor) && d->past && d->cursor == d->past_step) return;
    follow_close(d->past);
    d->past = NULL;
    d->past_step = d->cursor;
    if (isfinite(d->cursor) && follow_at(&d->past, d->run, d->cursor, NULL)) d->past = NULL;
}

/* Asks for confirmation to resume: from the newest checkpoint in the same run, from an earlier one in a new
 * run. */
static void ask_to_resume(struct dash *d)
{
    int64_t newest = -1;
    struct error err = {0};
    char word[100];
    double at = isfinite(d->cursor) ? d->cursor : INFINITY;
    if (dash_alive(d)) {
        snprintf(d->message, sizeof d->message, _("it is training: x stops it first"));
        return;
    }
    if (checkpoint_before(d->run->directory, INT64_MAX, &newest, &err) ||
        checkpoint_before(d->run->directory, isfinite(at) ? (int64_t)at : INT64_MAX, &d->resume_step, &err))
        snprintf(d->message, sizeof d->message, "%.190s", err.what);
    else if (d->resume_step < 0 && newest >= 0)
        snprintf(d->message, sizeof d->message, _("no complete checkpoint at or before step %.0f"), at);
    else if (d->resume_step < 0) snprintf(d->message, sizeof d->message, _("it has no complete checkpoint"));
    else if (d->run->status.total > 0 && d->resume_step >= d->run->status.total)
        snprintf(d->message, sizeof d->message,
                 _("all %lld steps are made; for more: meopt train --resume %s --steps N"),
                 (long long)d->run->status.total, run_word(word, sizeof word, d->run->directory));
    else {
        d->branches = d->resume_step < newest;
        d->asks.word = confirm_resume;
    }
}

/* Returns the ranks on CPUs that the run had, which config.yaml does not name; 0: one, or cards. */
static int cpu_ranks(const char *directory)
{
    struct config config;
    json_t *meta = json_read_below(directory, "meta.json", 64 << 20, NULL);
    int ranks = (int)json_integer_value(json_object_get(meta, "ranks"));
    json_decref(meta);
    if (ranks < 2 || config_load_below(&config, directory, NULL, 0, NULL) != 0) return 0;
    bool cpu = config.device.type == DEVICE_TYPE_CPU;
    config_free(&config);
    return cpu ? ranks : 0;
}

/* Runs 'meopt train --resume' in the same terminal. */
static int start_resume(const struct dash *d, struct error *err)
{
    char at[32], ranks[16];
    int workers = cpu_ranks(d->run->directory), n = 4;
    const char *argv[9] = {"meopt", "train", "--resume", d->run->directory};
    snprintf(at, sizeof at, "%lld", (long long)d->resume_step);
    snprintf(ranks, sizeof ranks, "%d", workers);
    if (workers) argv[n++] = "--workers", argv[n++] = ranks;
    if (d->branches) argv[n++] = "--at", argv[n++] = at;
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    err->what[0] = 0; /* the command has printed its error */
    if (pid < 0) return error_errno(err, EXIT_FAILED, NULL, "cannot start 'meopt train'");
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_SIGNAL + WTERMSIG(status);
}

static void select_card(struct dash *d, int by)
{
    if (d->tab == TAB_HELP) {
        d->scroll = d->scroll + by > 0 ? d->scroll + by : 0;
        return;
    }
    if (d->tab == TAB_LOG) {
        d->scroll = d->scroll - by > 0 ? d->scroll - by : 0;
        return;
    }
    d->selected += by;
    int cards = d->run->card_count + d->run->other_count;
    if (d->selected >= cards) d->selected = cards - 1;
    if (d->selected < 0) d->selected = 0;
}

/* Handles a key of a confirmation. Returns whether to leave. */
static bool answer(struct dash *d, int kind, wint_t c)
{
    bool stop = d->asks.word == confirm_stop;
    enum keys_answer answer = keys_confirm(&d->asks, kind, c);
    if (answer == KEYS_CANCELLED)
        snprintf(d->message, sizeof d->message, stop ? _("not stopped") : _("not resumed"));
    if (answer == KEYS_CONFIRMED && stop) send_request(d, "stop", "asked to save and stop");
    d->resumes = answer == KEYS_CONFIRMED && !stop;
    return d->resumes;
}

bool dash_key(struct dash *d, int kind, wint_t c)
{
    if (d->asks.word) return answer(d, kind, c);
    bool field = (d->edit.open && d->edit.typing) || (d->tab == TAB_LOG && d->log.typing);
    if (kind == KEYS_PASTED && !field) {
        snprintf(d->message, sizeof d->message, _("pasted text is ignored"));
        return false;
    }
    d->message[0] = 0;
    if (d->others.open) {
        dash_others_key(d, kind, c);
        return false;
    }
    if (d->edit.open) {
        dash_edit_key(d, kind, c);
        return false;
    }
    if (dash_log_key(d, kind, c) || dash_why_key(d, kind, c) || dash_chart_key(d, kind, c)) return false;
    if (kind == KEY_CODE_YES) {
        if (c == KEY_UP) select_card(d, -1);
        else if (c == KEY_DOWN) select_card(d, 1);
        else if (c == KEY_PPAGE) select_card(d, -8);
        else if (c == KEY_NPAGE) select_card(d, 8);
        else if (c == KEY_BTAB) d->tab = (enum dash_tab)((d->tab + TAB_COUNT - 1) % TAB_COUNT);
        return false;
    }
    switch (c) {
    case '\t': d->tab = (enum dash_tab)((d->tab + 1) % TAB_COUNT); break;
    case '1':
    case '2':
    case '3':
    case '4': d->tab = (enum dash_tab)(c - '1'); break;
    case '?':
    case 'h':
        d->tab = d->tab == TAB_HELP ? TAB_OVERVIEW : TAB_HELP;
        d->scroll = 0;
        break;
    case 'b':
        if (d->tab != TAB_HELP) dash_others_open(d);
        break;
    case 'k': select_card(d, -1); break;
    case 'j': select_card(d, 1); break;
    case 'g':
        if (!screen_ascii) d->glyphs = (enum dash_glyphs)((d->glyphs + 1) % 3);
        break;
    case 'p':
    case ' ': d->paused = !d->paused; break;
    case 'e': dash_edit_open(d); break;
    case 'r':
        if (dash_key_alone(d)) ask_to_resume(d);
        break;
    case 'c':
        if (dash_key_alone(d))
            send_request(d, "checkpoint",
                         "asked to save after the step in progress; it stays until train.checkpoint_keep "
                         "newer ones are there");
        break;
    case 'x':
        if (!dash_key_alone(d)) break;
        if (dash_alive(d)) d->asks.word = confirm_stop;
        else snprintf(d->message, sizeof d->message, _("the run has ended"));
        break;
    case 12: clearok(stdscr, TRUE); break; /* Ctrl-L */
    case 'q':
    case 'd':
        if (d->tab != TAB_HELP && keys_waiting()) dash_key_alone(d); /* pending keys would go to the shell */
        else if (d->tab != TAB_HELP) return true;
        else d->tab = TAB_OVERVIEW;
        break;
    case 27:
        if (d->tab == TAB_OVERVIEW) break;
        d->tab = TAB_OVERVIEW;
        break;
    default: break;
    }
    return false;
}

/* Handles SIGINT of meopt train: first save and stop, then stop at once. Returns whether to leave. */
static bool on_signal(struct dash *d, struct signal_interrupts *interrupts)
{
    if (screen_signal != SIGINT || !d->options->trains || !dash_alive(d)) return true;
    screen_signal = 0;
    if (signals_force_quit(interrupts, clock_seconds())) send_request(d, "stop-now", "stopping at once");
    else send_request(d, "stop", "saving, then stopping; Ctrl-C once more stops at once");
    return false;
}

/* Updates the window title once a second; rings the bell when the run ends. */
struct title_state {
    double updated_at;
    bool alive;
};

static void update_title(const struct dash *d, struct title_state *s, double t)
{
    const struct follow *f = d->run;
    char text[160], loss[24];
    if (d->options->replay || t - s->updated_at < 1) return;
    s->updated_at = t;
    if (s->alive && f->status.ended) beep();
    s->alive = dash_alive(d);
    if (s->alive && f->status.total > 0)
        snprintf(text, sizeof text, _("%.80s %.0f%% loss %s - meopt"), path_basename(f->directory),
                 100.0 * (double)f->last.step / (double)f->status.total,
                 dash_number(loss, sizeof loss, f->last.loss));
    else snprintf(text, sizeof text, _("%.80s %s - meopt"), path_basename(f->directory), _(f->status.state));
    screen_title(text);
}

static void loop(struct dash *d, int *ended)
{
    double frame = 0, clock = 0, last = clock_seconds(), over = 0;
    struct title_state title_state = {0};
    struct signal_interrupts interrupts = {0};
    bool leave = false, draw = true, stays = false; /* stays: a key was pressed after the run's end */
    while (!leave) {
        if (screen_signal && on_signal(d, &interrupts)) break;
        double t = clock_seconds();
        if (d->options->replay) {
            if (!d->paused) clock += (t - last) * d->options->speed;
            follow_replay(d->run, d->options->speed > 0 ? clock : INFINITY);
        }
        last = t;
        if ((t - frame) * 1e3 >=
            (d->tab == TAB_CHARTS ? 2 * FRAME_MS : FRAME_MS)) { /* the charts tab is slower to draw */
            frame = t;
            if (!d->paused) {
                follow_refresh(d->run);
                for (int i = 0; i < d->baseline_count; i++) follow_refresh(d->baselines[i]);
                draw = true;
            }
            if (d->options->trains && d->run->status.ended) {
                if (over == 0) over = t;
                if (!stays && (t - over) * 1e3 >= LINGER_MS) {
                    *ended = d->run->status.exit_code;
                    break;
                }
            }
        }
        update_title(d, &title_state, t);
        load_at_cursor(d);
        if (draw && !keys_waiting()) {
            dash_draw(d);
            draw = false;
        }
        wint_t c = 0;
        int kind = keys_get(&c);
        if (kind == ERR) {
            if (!isatty(STDIN_FILENO)) break; /* the terminal was closed */
            continue;
        }
        draw = true;
        if (kind == KEY_CODE_YES && c == KEY_RESIZE) continue;
        stays |= over > 0;
        leave = dash_key(d, kind, c);
    }
    if (stays && leave) *ended = d->run->status.exit_code;
}

/* Prints the result of the run after the dashboard has closed. */
static void print_exit_message(const struct dash *d, int ended)
{
    const struct follow *f = d->run;
    if (!d->options->trains) return;
    if (ended >= 0) dash_summary(f);
    else
        log_info("the run continues: 'meopt attach %s' shows it, 'meopt stop %s' stops it", f->directory,
                 f->directory);
}

int dash_view(const struct dash_options *options, int *ended, struct error *err)
{
    struct dash d = dash_begin(options);
    int code = follow_open(&d.run, options->directory, options->replay, err), own = -1;
    if (code) return code;
    if (!ended) ended = &own;
    *ended = -1;
    for (int i = 0; options->baselines && i < DASH_BASELINES && options->baselines[i] && !code; i++)
        code = dash_baseline_add(&d, options->baselines[i], err);
    if (!code) code = screen_open(options->ascii, KEY_WAIT_MS, err);
    int signal_number = 0;
    if (!code) {
        dash_settings_load(&d);
        dash_draw_start();
        loop(&d, ended);
        dash_settings_save(&d);
        signal_number = screen_signal;
        screen_close();
        print_exit_message(&d, *ended);
        if (d.resumes && !signal_number) code = start_resume(&d, err);
    }
    follow_close(d.past);
    dash_why_end(&d);
    follow_close(d.run);
    dash_baselines_end(&d);
    if (signal_number == SIGTERM || (signal_number == SIGINT && !options->trains)) {
        fflush(NULL);
        raise(signal_number); /* so that the shell sees it */
    }
    return code;
}
