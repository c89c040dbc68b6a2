/* meopt compare: compares runs in a table, as text, JSON, HTML, plots and files for a paper. */
#include "cli/command.h"
#include "cli/commands/compare_run.h"
#include "cli/run_name.h"
#include "cli/slurm/sweep.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/compare/output.h"
#include "core/compare/paper.h"
#include "core/compare/published.h"
#include "core/experiment/objective.h"

#include <langinfo.h>
#include <limits.h>
#include <pthread.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- Reading ---- */

struct task {
    const char *directory;
    struct record *record;
    struct error err;
    int code;
};

static void *read_one(void *argument)
{
    struct task *task = argument;
    task->code = record_read(task->record, task->directory, &task->err);
    return NULL;
}

/* Reads runs in parallel, because a long one takes a second. */
static int read_all(struct task *tasks, int count, struct error *err)
{
    enum { AT_ONCE = 8 };
    for (int first = 0; first < count; first += AT_ONCE) {
        pthread_t threads[AT_ONCE];
        bool started[AT_ONCE] = {false};
        int n = count - first < AT_ONCE ? count - first : AT_ONCE;
        for (int i = 1; i < n; i++)
            started[i] = pthread_create(&threads[i], NULL, read_one, &tasks[first + i]) == 0;
        for (int i = 0; i < n; i++)
            if (!started[i]) read_one(&tasks[first + i]);
        for (int i = 1; i < n; i++)
            if (started[i]) pthread_join(threads[i], NULL);
    }
    int code = 0;
    for (int i = 0; i < count && !code; i++)
        if ((code = tasks[i].code) != 0) *err = tasks[i].err;
    return code;
}

/* Splits "a,b,c" into repeats of one column, unless a directory has that very name. */
static char **split(const char *operand, const char *run_dir, int *count, int *code, struct error *err)
{
    char **parts = NULL;
    *count = 0;
    bool whole = access(operand, F_OK) == 0;
    for (const char *p = operand;;) {
        size_t n = whole ? strlen(p) : strcspn(p, ",");
        parts = xrealloc(parts, (size_t)(*count + 1) * sizeof *parts);
        char *word = xcalloc(n + 1, 1);
        memcpy(word, p, n);
        bool failed = *code != 0;
        parts[(*count)++] = failed ? NULL : run_named(word, run_dir, code, err);
        if (!failed && *code && errno == 0) *code = err->code = EXIT_USAGE; /* no such run */
        free(word);
        if (!p[n]) return parts;
        p += n + 1;
    }
}

struct group {
    char *name; /* NULL: the name of the run */
    char **directories;
    int count;
    bool sweep; /* a run of the operand that names a sweep */
};

static void name_columns(struct column *columns, int count)
{
    for (int c = 0; c < count; c++) {
        if (columns[c].name) continue;
        bool twice = false;
        for (int d = 0; d < count; d++)
            twice |= d != c && strcmp(columns[c].runs[0].name, columns[d].runs[0].name) == 0;
        char printable[256];
        name_printable(printable, sizeof printable,
                       twice ? columns[c].runs[0].path : columns[c].runs[0].name);
        columns[c].name = columns[c].run_count > 1
                              ? xasprintf(_("%s (%d runs)"), printable, columns[c].run_count)
                              : xstrdup(printable);
    }
}

static int read_columns(struct group *groups, int count, struct column **columns, struct error *err)
{
    int runs = 0, t = 0;
    for (int g = 0; g < count; g++) runs += groups[g].count;
    struct task *tasks = xcalloc((size_t)runs, sizeof *tasks);
    *columns = xcalloc((size_t)count, sizeof **columns);
    for (int g = 0; g < count; g++) {
        (*columns)[g] = (struct column){.name = groups[g].name ? xstrdup(groups[g].name) : NULL,
                                        .run_count = groups[g].count,
                                        .runs = xcalloc((size_t)groups[g].count, sizeof(struct record))};
        for (int i = 0; i < groups[g].count; i++)
            tasks[t++] =
                (struct task){.directory = groups[g].directories[i], .record = &(*columns)[g].runs[i]};
    }
    int code = read_all(tasks, runs, err);
    if (!code) name_columns(*columns, count);
    free(tasks);
    return code;
}

/* ---- Writing ---- */

static int write_stream(const char *path,
                        void (*print)(FILE *out, const void *what, const void *more,
                                      const struct output_options *options),
                        const void *what, const void *more, const struct output_options *options,
                        struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    print(out, what, more, options);
    int code = fclose(out) == 0 ? file_write_atomic(path, text, bytes, err)
                                : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    free(text);
    return code;
}

static void print_html(FILE *out, const void *table, const void *plots, const struct output_options *options)
{
    output_html(out, table, plots, options);
}
static void print_svg(FILE *out, const void *plot, const void *none, const struct output_options *options)
{
    (void)none;
    (void)options;
    plot_svg(out, plot, true);
}

static int write_pictures(const char *directory, const struct plot plots[PLOT_COUNT], struct error *err)
{
    int code = file_make_dirs(directory, err);
    for (int k = 0; k < PLOT_COUNT && !code; k++) {
        char *path = xasprintf("%s/%s.svg", directory, plots[k].id);
        code = write_stream(path, print_svg, &plots[k], NULL, NULL, err);
        free(path);
    }
    return code;
}

static void print_table(FILE *out, const void *table, const void *language,
                        const struct output_options *options)
{
    (void)options;
    paper_table(out, table, *(const enum paper_language *)language);
}

static int write_paper(const char *directory, const struct table *table, const struct plot plots[PLOT_COUNT],
                       struct error *err)
{
    int code = write_pictures(directory, plots, err);
    for (enum paper_language l = PAPER_ENGLISH; l < PAPER_LANGUAGES && !code; l++) {
        char *path = xasprintf("%s/table%s.tex", directory, paper_suffixes[l]);
        code = write_stream(path, print_table, table, &l, NULL, err);
        free(path);
    }
    return code;
}

static int write_all(const struct arguments *args, const struct table *table,
                     const struct output_options *options, struct error *err)
{
    struct plot plots[PLOT_COUNT];
    const char *html = argument_text(args, "html", NULL), *svg = argument_text(args, "svg", NULL),
               *paper = argument_text(args, "paper", NULL);
    plots_make(plots, table);
    if (argument_flag(args, "json")) output_json(stdout, table, options);
    else if (argument_flag(args, "csv")) output_csv(stdout, table, options);
    else if (argument_flag(args, "md")) output_markdown(stdout, table, options);
    else output_terminal(stdout, table, plots, options);
    fflush(stdout);
    int code = html ? write_stream(html, print_html, table, plots, options, err) : 0;
    if (!code && svg) code = write_pictures(svg, plots, err);
    if (!code && paper) code = write_paper(paper, table, plots, err);
    plots_free(plots);
    return code;
}

static void inspect_terminal(struct output_options *o)
{
    struct winsize size;
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    o->unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    o->color = isatty(STDOUT_FILENO) && !(no_color && no_color[0]) && !(term && strcmp(term, "dumb") == 0);
    o->terminal = isatty(STDOUT_FILENO);
    o->width =
        o->terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 90;
}

/* ---- Thresholds ---- */

/* Parses --threshold, and applies each to all columns but the reference. */
static int apply_thresholds(const struct arguments *args, const struct table *table,
                            struct threshold **thresholds, struct threshold_result **results, int *count,
                            struct error *err)
{
    int given = 0, code = 0;
    while (argument_list(args, "threshold", given)) given++;
    *thresholds = xcalloc((size_t)given + 1, sizeof **thresholds);
    *results = xcalloc((size_t)(given * table->column_count) + 1, sizeof **results);
    if (given && table->column_count < 2)
        return error_set(err, EXIT_USAGE, "add a run", "--threshold requires at least two columns");
    for (int i = 0; i < given && !code; i++) {
        struct threshold *t = &(*thresholds)[i];
        code = threshold_parse(t, table, argument_list(args, "threshold", i), err);
        for (int c = 0; c < table->column_count && !code; c++) {
            if (c == table->reference || table->columns[c].runs[0].published) continue;
            struct threshold_result v = {.threshold = t, .column = c};
            v.passed = threshold_passed(t, &t->row->cells[table->reference], &t->row->cells[c], &v.change);
            (*results)[(*count)++] = v;
        }
    }
    if (given && !code && !table->comparable)
        log_warn("these runs are not comparable; thresholds are applied nevertheless");
    return code;
}

/* Logs each exceeded threshold; EXIT_THRESHOLD if there is one. */
static int report_exceeded(const struct table *table, const struct threshold_result *results, int count,
                           struct error *err)
{
    int failed = 0;
    for (int i = 0; i < count; i++) {
        if (results[i].passed) continue;
        const struct threshold_result *v = &results[i];
        log_warn("threshold %s: %s changed by %+.4g%s%s", v->threshold->expression,
                 table->columns[v->column].name, v->change, v->threshold->relative ? " %" : " ",
                 v->threshold->relative ? "" : v->threshold->row->unit);
        failed++;
    }
    return failed ? error_set(err, EXIT_THRESHOLD, NULL, "%d of %d thresholds exceeded", failed, count) : 0;
}

/* ---- The command ---- */

static int choose_reference(const struct arguments *args, const struct column *columns, int count,
                            int *reference, struct error *err)
{
    const char *wanted = argument_text(args, "reference", NULL);
    *reference = 0;
    if (!wanted) return 0;
    for (int c = 0; c < count; c++)
        if (strcmp(columns[c].name, wanted) == 0 || strcmp(columns[c].runs[0].path, wanted) == 0) {
            *reference = c;
            return 0;
        }
    return error_set(err, EXIT_USAGE, "--reference requires the name of a column", "no column '%s'", wanted);
}

/* Adds a group for each run of a sweep. Returns false if the operand names none. */
static bool add_sweep(const struct arguments *args, const char *operand, struct group **groups, int *count,
                      struct sweep *sweep)
{
    int runs;
    const char *run_dir = argument_text(args, "run-dir", "runs");
    char **directories = run_sweep(operand, run_dir, &runs);
    if (!directories) return false;
    *groups = xrealloc(*groups, (size_t)(*count + runs + args->operand_count) * sizeof **groups);
    for (int i = 0; i < runs; i++) {
        (*groups)[*count] =
            (struct group){.directories = xcalloc(1, sizeof(char *)), .count = 1, .sweep = true};
        (*groups)[(*count)++].directories[0] = directories[i];
    }
    char *parent = path_dirname(directories[0]), *whole = path_join(parent, operand);
    while (whole[strlen(whole) - 1] == '/') whole[strlen(whole) - 1] = 0;
    sweep->name = xstrdup(path_basename(whole));
    slurm_sweep_read(sweep, parent);
    free(parent);
    free(whole);
    free(directories);
    return true;
}

/* Orders the columns of the sweep, the best run first. */
static void sort_sweep(const struct group *groups, int count, struct column *columns, struct sweep *sweep)
{
    int first = 0, before = count;
    while (first < count && !groups[first].sweep) first++;
    while (before > first && !groups[before - 1].sweep) before--;
    if (first < before)
        sweep->metric = sweep_sort(columns, first, before, objective_best(columns[first].runs[0].objective));
}

static int make_groups(const struct arguments *args, struct group **groups, int *count, struct sweep *sweep,
                       struct error *err)
{
    const char *config = argument_text(args, "run", NULL);
    int repeats = (int)argument_int(args, "repeat", 1), code = 0;
    *groups = xcalloc((size_t)args->operand_count + 2, sizeof **groups);
    if (!config && argument_int(args, "repeat", 0))
        return error_set(err, EXIT_USAGE, "to compare finished repeats: meopt compare a-1,a-2 b-1,b-2",
                         "--repeat requires --run");
    if (!config && argument_text(args, "rules", NULL))
        return error_set(err, EXIT_USAGE, "to compare finished runs: meopt compare RUN RUN",
                         "--rules requires --run");
    if (config) {
        struct compare_plan plan = {.config = config,
                                    .overrides = args->operands,
                                    .override_count = args->operand_count,
                                    .repeats = repeats,
                                    .run_dir = argument_text(args, "run-dir", NULL),
                                    .name = argument_text(args, "name", NULL)};
        code = compare_variants(&plan, argument_text(args, "rules", NULL), err);
        if (code) return code;
        size_t variants = (size_t)plan.variant_count;
        char **directories = xcalloc(variants * (size_t)repeats, sizeof *directories);
        *groups = xrealloc(*groups, (variants + 2) * sizeof **groups);
        code = compare_run(&plan, directories, err);
        for (int g = 0; g < plan.variant_count; g++) {
            struct group *group = &(*groups)[(*count)++];
            *group = (struct group){.name = xstrdup(plan.variants[g].label),
                                    .count = repeats,
                                    .directories = xcalloc((size_t)repeats, sizeof(char *))};
            memcpy(group->directories, directories + g * repeats, (size_t)repeats * sizeof *directories);
        }
        free(directories);
        compare_variants_free(&plan);
        return code;
    }
    if (args->operand_count == 0)
        return error_set(err, EXIT_USAGE, "see 'meopt compare --help'",
                         "meopt compare requires runs or --run CONFIG");
    for (int i = 0; i < args->operand_count; i++) {
        if (!sweep->name && add_sweep(args, args->operands[i], groups, count, sweep)) continue;
        struct group *group = &(*groups)[(*count)++];
        *group = (struct group){0};
        group->directories =
            split(args->operands[i], argument_text(args, "run-dir", NULL), &group->count, &code, err);
    }
    return code;
}

static int compare(const struct arguments *args, struct error *err)
{
    struct group *groups = NULL;
    struct column *columns = NULL;
    struct table *table = NULL;
    struct threshold *thresholds = NULL;
    struct threshold_result *results = NULL;
    struct sweep sweep = {0};
    struct output_options options = {.all = argument_flag(args, "all")};
    int group_count = 0, count = 0, reference = 0, result_count = 0;
    const char *published = argument_text(args, "published", NULL);
    if (argument_flag(args, "json") + argument_flag(args, "csv") + argument_flag(args, "md") > 1)
        return error_set(err, EXIT_USAGE, "use one of them; --html and --svg can be added",
                         "only one of --json, --csv and --md can be used");
    int code = make_groups(args, &groups, &group_count, &sweep, err);
    if (!code) {
        count = group_count;
        code = read_columns(groups, group_count, &columns, err);
    }
    if (!code) sort_sweep(groups, group_count, columns, &sweep);
    if (!code && published) {
        char *path = argument_text(args, "published-file", NULL)
                         ? xstrdup(argument_text(args, "published-file", NULL))
                         : path_shipped("published.yaml");
        code = path ? published_add(&columns, &count, path, published, err)
                    : error_set(err, EXIT_FAILED, "install meopt again, or give it with --published-file",
                                "published.yaml is not in the installation of this program");
        free(path);
    }
    if (!code) code = choose_reference(args, columns, count, &reference, err);
    if (!code) {
        table = table_make(columns, count, reference);
        if (sweep.name) table->sweep = &sweep;
        code = apply_thresholds(args, table, &thresholds, &results, &result_count, err);
    }
    if (!code) {
        inspect_terminal(&options);
        options.results = results;
        options.result_count = result_count;
        for (int i = 0; i < table->warning_count; i++) log_warn("%s", table->warnings[i]);
        code = write_all(args, table, &options, err);
    }
    if (!code) code = report_exceeded(table, results, result_count, err);
    if (table) table_free(table);
    else {
        for (int c = 0; c < count; c++) {
            for (int i = 0; columns && i < columns[c].run_count; i++) record_free(&columns[c].runs[i]);
            if (columns) {
                free(columns[c].runs);
                free(columns[c].name);
            }
        }
        free(columns);
    }
    for (int g = 0; g < group_count; g++) {
        for (int i = 0; i < groups[g].count; i++) free(groups[g].directories[i]);
        free(groups[g].directories);
        free(groups[g].name);
    }
    free(groups);
    sweep_free(&sweep);
    free(thresholds);
    free(results);
    return code;
}

static const struct option options[] = {
    {"run", .type = OPTION_TEXT, .value = "CONFIG",
     .help = "train CONFIG without and with MEOpt, then compare; resumes interrupted runs"},
    {"rules", .type = OPTION_TEXT, .value = "RULE,...",
     .help = "with --run: train with these rules of optim.name instead; RULE:KEY=VALUE is a setting of one"},
    {"repeat", .type = OPTION_INT, .value = "N", .min = 1, .max = 100,
     .help = "with --run: N runs of each, with seeds train.seed, train.seed+1, ..."},
    {"run-dir", .type = OPTION_TEXT, .value = "DIR", .help = "directory of runs (default runs)"},
    {"name", .type = OPTION_TEXT, .value = "NAME",
     .help = "with --run: the runs are NAME-without and NAME-with, or NAME-RULE (default: after CONFIG)"},
    {"reference", .type = OPTION_TEXT, .value = "NAME",
     .help = "column to compare with (default: the first)"},
    {"published", .type = OPTION_TEXT, .value = "NAME",
     .help = "add published figures: eva_clip, open_clip, dinov2; eva_clip_k100 ..."},
    {"published-file", .type = OPTION_TEXT, .value = "FILE",
     .help = "read published figures from this file (format of published.yaml)"},
    {"threshold", .type = OPTION_LIST, .value = "KEY:LIMIT",
     .help = "exit 8 if the change exceeds LIMIT, for example 'peak_bytes:-20%'; may be repeated"},
    {"all", .letter = 'a', .help = "print all settings, not only those that differ"},
    {"json", .letter = 'j', .help = "print JSON"},
    {"csv", .help = "print CSV"},
    {"md", .help = "print Markdown"},
    {"html", .type = OPTION_TEXT, .value = "FILE",
     .help = "write one self-contained page with tables and curves"},
    {"svg", .type = OPTION_TEXT, .value = "DIR",
     .help = "write the plots as SVG, which rsvg-convert makes PNG or PDF"},
    {"paper", .type = OPTION_TEXT, .value = "DIR",
     .help = "write files for a paper: LaTeX table, English and Chinese, and the plots as SVG"},
    {0},
};

const struct command cmd_compare = {
    .name = "compare",
    .operands = "RUN[,REPEAT ...] [RUN ...]",
    .summary = "compare runs: memory, time, loss",
    .details =
        "Examples:\n  meopt compare runs/without runs/with --html comparison.html\n"
        "  meopt compare eva                      all runs of the sweep eva, the best first\n"
        "  meopt compare --run configs/quickstart_compare.yaml train.steps=40\n"
        "  meopt compare --run configs/bytes.yaml --rules adamw,lion,schedule_free lion:optim.lr=3e-4\n"
        "  meopt compare runs/a-1,runs/a-2,runs/a-3 runs/b-1,runs/b-2,runs/b-3 --md\n"
        "  meopt compare runs/without runs/with --threshold 'peak_bytes:-20%' --threshold 'final_loss:+1%'",
    .options = options,
    .max_operands = -1,
    .run = compare,
};
