/* meopt doctor: checks the hardware, drivers and libraries of this machine. */
#include "cli/command.h"
#include "cli/language.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/doctor/doctor.h"
#include "core/experiment/experiment.h"
#include "core/train/meta.h"
#include "core/plan/plan.h"
#include "core/step/trainer.h"
#include "fetch/libarchive.h"
#include "fetch/libcrypto.h"
#include "fetch/libcurl.h"

#include <curses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <unistd.h>

static void check_terminal(struct doctor *d)
{
    const char *name = getenv("TERM");
    int known = ERR, error = 0;
    if (name && *name) known = setupterm(name, STDERR_FILENO, &error);
    if (known == ERR) {
        line_advise(doctor_add(d, FINDING_WARNING, "TERM is %s%s", name && *name ? name : _("not set"),
                               name && *name ? _(", which is unknown on this machine") : ""),
                    name && *name && strcmp(name, "dumb") != 0
                        ? N_("the dashboard and the form draw for xterm-256color")
                        : N_("the dashboard and the form cannot draw; everything else works"),
                    "export TERM=xterm-256color");
        return;
    }
    char colors_name[] = "colors", move_name[] = "cup";
    int colors = tigetnum(colors_name);
    const char *move = tigetstr(move_name);
    bool able = move && move != (char *)-1;
    struct line *l = doctor_add(d, able ? FINDING_OK : FINDING_WARNING, "%s, %d colours%s%s", name,
                                colors > 0 ? colors : 0, able ? "" : _(", no cursor movement"),
                                isatty(STDOUT_FILENO) ? "" : _("; output is not a terminal"));
    line_real(l, "colors", colors > 0 ? colors : 0);
    if (!able) line_advise(l, "the dashboard and the form cannot draw", "export TERM=xterm-256color");
}

static void check_fetch_libraries(struct doctor *d)
{
    struct error err;
    if (libcurl_load(&err) || libarchive_load(&err) || libcrypto_load(&err)) {
        line_advise(doctor_add(d, FINDING_MISSING, "%s", err.what), "meopt fetch does not work here",
                    err.hint);
        return;
    }
    const curl_version_info_data *curl = libcurl.version_info(CURLVERSION_NOW);
    doctor_add(d, FINDING_OK, "libcurl %s (%s), %s, %s, %s", curl->version,
               curl->ssl_version ? curl->ssl_version : "no TLS", libarchive.version_string(),
               libcrypto.version(OPENSSL_VERSION), curses_version());
}

static void check_version(struct doctor *d)
{
    struct line *l = doctor_add(d, FINDING_OK, "meopt %s", meta_version());
    line_text(l, "version", meta_version());
}

static const char *device;
static struct error device_error;
static int device_code;
static void check_device(struct doctor *d) { device_code = doctor_device(d, device, &device_error); }

static const struct doctor_row only[] = {{N_("device"), check_device}, {NULL, NULL}};
static const struct doctor_row first[] = {{N_("version"), check_version}, {NULL, NULL}};
static const struct doctor_row last[] = {
    {N_("libraries"), check_fetch_libraries}, {N_("terminal"), check_terminal}, {NULL, NULL}};

/* ---- Shapes of a configuration ---- */

struct shapes {
    struct doctor_shape rows[MOST_TEACHERS + 1]; /* teachers if there are any, student */
    int count;
    struct meopt_options optimizer;
    struct error err;
    int code;
};

static void shape_of(struct doctor_shape *s, const char *of, const struct model_shape *g,
                     const struct config_tower *tower, int64_t images, bool trained)
{
    *s = (struct doctor_shape){.type = experiment_tower_type(tower),
                               .images = images,
                               .tokens = model_shape_tokens(g),
                               .width = g->width,
                               .heads = g->heads,
                               .hidden = g->hidden,
                               .gated = strcmp(model_shape_activation(g), "swiglu") == 0,
                               .trained = trained};
    snprintf(s->of, sizeof s->of, "%s", of);
}

static void read_shapes(void *context, const struct trainer *t)
{
    struct shapes *s = context;
    if (!t->student) return;
    s->count = 0;
    for (int i = 0; i < t->teacher_count; i++)
        shape_of(&s->rows[s->count++], config_tower_name(i), &t->teachers[i].shape, &t->config->model_t[i],
                 t->micro, false);
    shape_of(&s->rows[s->count++], "student", &t->student_shape, &t->config->model_s, t->micro, true);
    s->code = trainer_optimizer(t, &s->optimizer, &s->err);
}

static int shapes_of(struct shapes *s, const struct arguments *args, struct error *err)
{
    struct config config;
    struct plan plan;
    int code = config_load(&config, args->operands[0], args->operands + 1, args->operand_count - 1, err);
    if (code) return code;
    code = experiment_set_classes(&config, err);
    if (!code) code = plan_make_inspect(&plan, &config, NULL, read_shapes, s, err);
    config_free(&config);
    if (!code && s->code) *err = s->err;
    return code ? code : s->code;
}

/* Returns the name of a check for people: other languages have two words for the memory of host and card. */
static const char *label_of(const char *check)
{
    return strcmp(check, "memory") == 0 ? _("host memory") : _(check);
}

static void print(const struct doctor *d)
{
    enum { TEXT = 25 }; /* column */
    int count[3] = {0};
    for (size_t i = 0; i < d->row_count; i++) {
        const struct line *l = &d->rows[i];
        count[l->finding]++;
        printf("%*s %*s ", PAD(-8, _(finding_names[l->finding])), PAD(-15, label_of(l->check)));
        print_wrapped(TEXT, TEXT, l->found);
        if (l->meaning[0]) printf("%*s", TEXT, ""), print_wrapped(TEXT, TEXT, l->meaning);
        if (l->remedy[0]) printf("%*s-> ", TEXT, ""), print_wrapped(TEXT + 3, TEXT + 3, l->remedy);
    }
    printf(_("%d ok, %d warning%s, %d missing\n"), count[0], count[1], count[1] == 1 ? "" : "s", count[2]);
    if (count[2]) print_line(0, "what is missing is optional; without a card, training runs on the CPU");
}

/* Draws progress in one line of the terminal. */
static void show_progress(const struct doctor *d, const char *check)
{
    fputs("\r\033[K", stderr);
    fprintf(stderr, _("checking %s (%zu results so far)"), check, d->row_count);
}

static void clear_progress(const struct doctor *d)
{
    if (d->progress) fputs("\r\033[K", stderr);
}

/* Writes the report without names of hosts, users and directories. */
static int write_shared(const char *path, struct doctor *d, struct error *err)
{
    json_t *report = doctor_json(d);
    doctor_anonymous(report);
    int code = json_write(path, report, JSON_INDENT(1) | JSON_PRESERVE_ORDER, err);
    json_decref(report);
    if (code) doctor_free(d);
    else log_info("%s can be sent: it has no host name, no user name and no directories", path);
    return code;
}

static int doctor_command(const struct arguments *args, struct error *err)
{
    struct doctor d = {.root = argument_text(args, "root", ""),
                       .run_directory = argument_text(args, "run-dir", "runs"),
                       .quick = argument_flag(args, "quick")};
    const char *term = getenv("TERM");
    struct shapes shapes = {.code = 0};
    struct error own;
    if (!err) err = &own;
    if (isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0) d.progress = show_progress;
    if (args->operand_count) {
        int code = shapes_of(&shapes, args, err);
        if (code) return code;
        d.shapes = shapes.rows;
        d.shape_count = shapes.count;
        d.optimizer = &shapes.optimizer;
    }
    device = argument_text(args, "device", NULL);
    device_code = 0;
    if (device) doctor_run(&d, only);
    else {
        doctor_run(&d, first);
        doctor_run(&d, doctor_host);
        doctor_run(&d, last);
        doctor_run(&d, doctor_cards);
    }
    clear_progress(&d);
    const char *share = argument_text(args, "share", NULL);
    if (share) {
        int code = write_shared(share, &d, err);
        if (code) return code;
    } else if (argument_flag(args, "json")) {
        json_t *report = doctor_json(&d);
        json_print(stdout, report, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
        json_decref(report);
    } else print(&d);
    doctor_free(&d);
    if (device_code) *err = device_error;
    return device_code;
}

static const struct option options[] = {
    {"run-dir", .type = OPTION_TEXT, .value = "DIR",
     .help = "directory of runs, whose disk is measured (default runs)"},
    {"device", .type = OPTION_TEXT, .value = "DEVICE",
     .help = "check only this device: auto, cpu, hip:N, cuda:N; fails if it cannot be used"},
    {"quick", .help = "skip measurements: bandwidth, GEMM, disk speed"},
    {"root", .type = OPTION_TEXT, .value = "DIR", .help = "read /dev, /sys, /proc and /etc below DIR"},
    {"share", .type = OPTION_TEXT, .value = "FILE",
     .help = "write the report as JSON, without host, user and directories, to be sent"},
    {"json", .help = "print one JSON object: an array of checks, and the number of each status"},
    {0},
};

const struct command cmd_doctor = {
    .name = "doctor",
    .operands = "[CONFIG [key=value ...]]",
    .summary = "check the hardware, drivers and libraries of this machine",
    .details = "Examples:\n  meopt doctor\n  meopt doctor eva_clip.yaml              cards at the shapes of "
               "this configuration\n  meopt doctor --json > report.json        for a bug report",
    .options = options,
    .max_operands = -1,
    .run = doctor_command,
};
