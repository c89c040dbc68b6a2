# A program that knows the installed header and pkg-config alone runs the optimizers on the CPU and on cards, from two threads with a
# handle each: on one device, on two, in a context and on a stream of its own. The same bits come out everywhere. What fails comes back
# as an error, and a program that was built with an older, shorter struct of options keeps working.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
cmake --install "$MEOPT_BUILD" --prefix "$dir/usr" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
cat >"$dir/outside.c" <<'PROGRAM'
#include <dlfcn.h>
#include <meopt.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 150, COLUMNS = 70, N = ROWS * COLUMNS, STEPS = 4 };

static void try(int status, const struct meopt_error *err)
{
    if (status == MEOPT_OK) return;
    fprintf(stderr, "%s: %s\n", meopt_status_name(status), err->message);
    exit(1);
}
static void demand(int true_, const char *what)
{
    if (true_) return;
    fprintf(stderr, "FAILED: %s\n", what);
    exit(1);
}

struct saved {
    char *data;
    size_t bytes;
};
static int save(void *context, const void *data, size_t bytes)
{
    struct saved *s = context;
    s->data = realloc(s->data, s->bytes + bytes);
    memcpy(s->data + s->bytes, data, bytes);
    s->bytes += bytes;
    return 0;
}

struct work {
    struct meopt_device *device; /* NULL: this machine's memory */
    struct saved saved;
    int (*current)(void **context); /* NULL: not asked */
};

/* A training in a thread of its own: released gradients, checked and clipped by their norm. */
static void *train(void *context)
{
    struct work *w = context;
    struct meopt_error err;
    struct meopt_options o;
    struct meopt_tensor table[2] = {{.name = "a", .ndim = 2, .shape = {ROWS, COLUMNS}},
                                    {.name = "b", .ndim = 1, .shape = {ROWS}, .flags = MEOPT_NO_DECAY}};
    static const int64_t counts[2] = {N, ROWS};
    struct meopt *opt;
    float *host = malloc(N * sizeof *host);
    void *gradient[2] = {host, host};
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    try(meopt_options_preset(&o, "balanced", &err), &err);
    o.weight_decay = 0.1;
    o.accumulator = MEOPT_STATE_8BIT;
    o.device = w->device;
    try(meopt_create(&opt, &o, table, 2, &err), &err);
    for (int i = 0; i < 2; i++) {
        for (int64_t j = 0; j < counts[i]; j++) host[j] = (float)(j % 19 - 9) / 7;
        try(meopt_import(opt, (size_t)i, 0, counts[i], host, &err), &err);
        if (w->device) try(meopt_device_allocate(w->device, N * sizeof *host, &gradient[i], &err), &err);
    }
    for (int step = 1; step <= STEPS; step++) {
        double norm;
        int finite;
        for (int i = 0; i < 2; i++)
            for (int micro = 0; micro < 2; micro++) {
                for (int64_t j = 0; j < counts[i]; j++) host[j] = (float)((j * 7 + step * 3 + micro) % 23 - 11) / 50;
                if (w->device) try(meopt_device_upload(w->device, gradient[i], host, (size_t)counts[i] * 4, &err), &err);
                try(meopt_accumulate(opt, (size_t)i, gradient[i], MEOPT_F32, 0.5, &err), &err);
            }
        try(meopt_gradient_norm(opt, NULL, &norm, &finite, &err), &err);
        demand(finite && norm > 0, "a norm");
        try(meopt_step_begin(opt, step, 0.01, 1, &err), &err);
        for (size_t i = 0; i < 2; i++)
            try(meopt_step_tensor(opt, i, NULL, MEOPT_F32, meopt_clip_scale(norm, 1), &err), &err);
        try(meopt_step_end(opt, NULL, &err), &err);
    }
    try(meopt_save(opt, save, &w->saved, &err), &err);
    if (w->device)
        for (int i = 0; i < 2; i++) meopt_device_release(w->device, gradient[i]);
    meopt_destroy(opt);
    if (w->current) {
        void *now = w;
        demand(w->current(&now) == 0 && now == NULL, "a thread without a context is left without one");
    }
    free(host);
    return NULL;
}

/* Two threads, a handle each; what they save. */
static void pair(struct work w[2], const struct saved *expected, const char *what)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) demand(pthread_create(&threads[i], NULL, train, &w[i]) == 0, "a thread");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        demand(w[i].saved.bytes == expected->bytes && memcmp(w[i].saved.data, expected->data, expected->bytes) == 0, what);
        free(w[i].saved.data);
    }
    printf("%s: the same bits\n", what);
}

static void *symbol(void *library, const char *name)
{
    void *p = dlsym(library, name);
    demand(p != NULL, name);
    return p;
}

/* As PyTorch would: its context, current on this thread, and its stream. */
static void in_the_caller_s_context(const struct saved *expected)
{
    void *cuda = dlopen(getenv("MEOPT_CUDA_LIBRARY"), RTLD_NOW);
    demand(cuda != NULL, "libcuda");
    int (*retain)(void **, int), (*set)(void *), (*get)(void **), (*create)(void **, unsigned);
    *(void **)&retain = symbol(cuda, "cuDevicePrimaryCtxRetain");
    *(void **)&set = symbol(cuda, "cuCtxSetCurrent");
    *(void **)&get = symbol(cuda, "cuCtxGetCurrent");
    *(void **)&create = symbol(cuda, "cuStreamCreate");
    void *context = NULL, *other = NULL, *stream = NULL, *now = NULL;
    struct meopt_error err;
    struct meopt_device *device;
    demand(retain(&context, 1) == 0 && retain(&other, 0) == 0 && set(context) == 0 && create(&stream, 0) == 0, "a stream");
    set(other);
    try(meopt_device_open(&device, MEOPT_DEVICE_CUDA, 1, context, stream, &err), &err);
    demand(get(&now) == 0 && now == other, "opening leaves the caller's context");
    pair((struct work[2]){{.device = device, .current = get}, {.device = device, .current = get}}, expected,
         "the caller's context and stream");
    meopt_device_close(device);
    demand(get(&now) == 0 && now == other, "closing leaves the caller's context");
}

int main(void)
{
    struct meopt_error err;
    struct work one = {.device = NULL};
    struct meopt_device *devices[2], *none = NULL;
    train(&one);
    pair((struct work[2]){{.device = NULL}, {.device = NULL}}, &one.saved, "this machine");
    for (int kind = MEOPT_DEVICE_CPU; kind <= MEOPT_DEVICE_CUDA; kind++) {
        for (int i = 0; i < 2; i++) try(meopt_device_open(&devices[i], kind, kind == MEOPT_DEVICE_CPU ? 0 : i, NULL, NULL, &err), &err);
        pair((struct work[2]){{.device = devices[0]}, {.device = devices[0]}}, &one.saved, meopt_device_name(devices[0]));
        pair((struct work[2]){{.device = devices[0]}, {.device = devices[1]}}, &one.saved, "two devices");
        for (int i = 0; i < 2; i++) meopt_device_close(devices[i]);
    }
    in_the_caller_s_context(&one.saved);

    demand(meopt_device_open(&none, MEOPT_DEVICE_HIP, 7, NULL, NULL, &err) == MEOPT_DEVICE_FAILED && !none, "no such card");
    demand(strstr(err.message, "hip:7") != NULL, "its number");
    demand(meopt_device_open(&none, 99, 0, NULL, NULL, &err) == MEOPT_BAD_ARGUMENT, "no such kind");
    demand(meopt_device_open(&none, MEOPT_DEVICE_HIP, 0, &err, NULL, &err) == MEOPT_BAD_ARGUMENT, "HIP has no contexts");

    struct meopt_options o;
    struct meopt_tensor large = {.name = "large", .ndim = 2, .shape = {1 << 14, 1 << 12}};
    struct meopt *opt;
    meopt_options_init(&o, sizeof o, MEOPT_APADAMW);
    try(meopt_device_open(&o.device, MEOPT_DEVICE_HIP, 0, NULL, NULL, &err), &err);
    demand(meopt_create(&opt, &o, &large, 1, &err) == MEOPT_NO_MEMORY && !opt, "a card that is full");
    meopt_device_close(o.device);
    puts("errors are values");
    return 0;
}
PROGRAM
PKG_CONFIG_PATH=$(dirname "$(find "$dir/usr" -name meopt.pc)")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir meopt)
sanitize=
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && sanitize='-fsanitize=address,undefined'
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt")
cd "$dir"
"$cc" $sanitize -std=c11 -Wall -Wextra -Werror -Wno-array-bounds outside.c -o outside $(pkg-config --cflags --libs meopt) -lpthread -ldl
# 192 MiB of card: enough for what is trained, not for 64 M parameters
FAKE_CARDS=2 FAKE_MEMORY=201326592 LD_LIBRARY_PATH=$libdir ./outside
