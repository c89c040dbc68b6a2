/* Decodes every image of a dataset once, without training: see data.h. Workers process images in the
 * list's order. Problems are reported in that order, each after all images before it are done. */
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/platform.h"
#include "core/base/progress.h"
#include "core/data/data.h"
#include "core/data/list.h"
#include "core/data/token_loader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct check {
    const struct image_list *list;
    const char *root;
    data_problem *report;
    void *context;
    pthread_mutex_t lock;
    struct error **problems; /* (list->count) NULL: no problem, or not known yet */
    uint8_t *done;           /* (list->count) */
    int64_t next, reported, bad;
};

/* Decodes one image; NULL if it can be decoded, else the problem, malloc'ed. */
static struct error *examine(const struct check *c, int64_t id)
{
    struct error err = {0};
    struct image image;
    int code = image_load(&image, c->root, c->list->names[id], &err);
    if (code) {
        char *path = path_join(c->root, c->list->names[id]);
        error_at(&err, path, 0, 0);
        free(path);
    }
    image_free(&image);
    struct error *problem = code ? xmalloc(sizeof *problem) : NULL;
    if (problem) *problem = err;
    return problem;
}

static void *work(void *argument)
{
    struct check *c = argument;
    pthread_mutex_lock(&c->lock);
    while (c->next < c->list->count) {
        int64_t id = c->next++;
        pthread_mutex_unlock(&c->lock);
        struct error *problem = examine(c, id);
        progress_mark();
        pthread_mutex_lock(&c->lock);
        c->problems[id] = problem;
        c->done[id] = 1;
        for (; c->reported < c->list->count && c->done[c->reported]; c->reported++) {
            struct error *first = c->problems[c->reported];
            c->bad += first != NULL;
            if (first) c->report(c->context, first);
            free(first);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int data_check(const struct data_options *options, data_problem *report, void *context,
               struct data_findings *findings, struct error *err)
{
    struct image_list list;
    *findings = (struct data_findings){0};
    if (options->tokens) return token_check(options, findings, err);
    struct image_search search = {.root = options->root,
                                  .include = options->include,
                                  .exclude = options->exclude,
                                  .apart = options->apart,
                                  .labels = options->labels,
                                  .report = report,
                                  .context = context,
                                  .unlisted = &findings->unlisted};
    int code = image_list_search(&list, &search, err);
    if (code) return code;
    image_list_report(&list, options->root);
    struct check c = {.list = &list, .root = options->root, .report = report, .context = context};
    pthread_mutex_init(&c.lock, NULL);
    c.problems = xcalloc((size_t)list.count, sizeof *c.problems);
    c.done = xcalloc((size_t)list.count, sizeof *c.done);
    int64_t threads = options->workers > 0 ? options->workers : sysconf(_SC_NPROCESSORS_ONLN), started = 0;
    pthread_t *thread = xcalloc((size_t)threads, sizeof *thread);
    while (started + 1 < threads && thread_start(&thread[started], work, &c) == 0) started++;
    work(&c); /* the caller is a worker, too, and the only one if no thread can be started */
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    findings->images = list.count;
    findings->bad = c.bad;
    free(thread);
    free(c.problems);
    free(c.done);
    pthread_mutex_destroy(&c.lock);
    image_list_free(&list);
    return 0;
}
