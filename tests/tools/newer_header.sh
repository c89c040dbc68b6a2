#!/bin/sh
# A program that was built with a newer header, which has an additional field in each struct that may grow, runs with this library: it trains
# to the same weights, and nothing is written after a struct. A field that the library does not know must be 0. An older header is refused.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
cat >"$dir/program.c" <<'PROGRAM'
#include <meopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 90, COLUMNS = 70, N = ROWS * COLUMNS };

static void try(int status, const struct meopt_error *err)
{
    if (status == MEOPT_OK) return;
    fprintf(stderr, "%s: %s\n", meopt_status_name(status), err->message);
    exit(1);
}
#define DEMAND(what)                                                                                         \
    if (!(what)) {                                                                                           \
        fprintf(stderr, "FAILED: %s\n", #what);                                                              \
        exit(1);                                                                                             \
    }
/* A struct that the library fills, and what lies behind it. */
#define GUARDED(type, name)                                                                                  \
    struct {                                                                                                 \
        struct type is;                                                                                      \
        unsigned char behind[64];                                                                            \
    } name;                                                                                                  \
    memset(&name, 0x5a, sizeof name)
#define UNTOUCHED(name)                                                                                      \
    for (size_t i_ = 0; i_ < sizeof name.behind; i_++) DEMAND(name.behind[i_] == 0x5a)

static float start[N], gradient[N], end[N];

int main(void)
{
    struct meopt_error err;
    struct meopt *opt;
    GUARDED(meopt_options, o);
    GUARDED(meopt_bytes, bytes);
    GUARDED(meopt_bytes, held);
    GUARDED(meopt_tensor_info, info);
    GUARDED(meopt_step_stats, stats);
    struct meopt_tensor table[3];
    memset(table, 0, sizeof table);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"a", "b", "c"};
        table[i].name = names[i];
        table[i].ndim = 2;
        table[i].shape[0] = ROWS;
        table[i].shape[1] = COLUMNS;
        table[i].flags = i == 1 ? MEOPT_NO_DECAY : 0;
        table[i].lr_scale = i == 2 ? 0.5 : 0;
    }
    try(meopt_options_init(&o.is, sizeof o.is, MEOPT_APADAMW), &err);
    UNTOUCHED(o);
    try(meopt_options_preset(&o.is, "balanced", &err), &err);
    o.is.weight_decay = 0.1;
    try(meopt_query(&o.is, table, 3, &bytes.is, &err), &err);
    UNTOUCHED(bytes);
    try(meopt_create(&opt, &o.is, table, 3, &err), &err);
    try(meopt_held(opt, &held.is), &err);
    UNTOUCHED(held);
    DEMAND(held.is.parameters == 3 * N && memcmp(&held.is, &bytes.is, sizeof held.is) == 0);
    for (size_t i = 0; i < 3; i++) {
        for (int k = 0; k < N; k++) start[k] = (float)(k % 19 - 9) / 7;
        try(meopt_import(opt, i, 0, N, start, &err), &err);
    }
    for (int step = 1; step <= 4; step++) {
        struct meopt_gradient all[3];
        for (int k = 0; k < N; k++) gradient[k] = (float)((k * 7 + step * 3) % 23 - 11) / 50;
        for (int i = 0; i < 3; i++) {
            all[i].data = gradient;
            all[i].dtype = MEOPT_F32;
        }
        if (step == 4) {
            try(meopt_step(opt, step, 0.01, 1, all, &stats.is, &err), &err);
        } else {
            try(meopt_step_begin(opt, step, 0.01, 1, &err), &err);
            for (size_t i = 0; i < 3; i++) try(meopt_step_tensor(opt, i, gradient, MEOPT_F32, 1, &err), &err);
            try(meopt_step_end(opt, step % 2 ? &stats.is : NULL, &err), &err);
        }
        UNTOUCHED(stats);
        DEMAND(stats.is.tensors == 3 && stats.is.grad_norm > 0);
    }
    try(meopt_info(opt, 2, &info.is), &err);
    UNTOUCHED(info);
    DEMAND(strcmp(info.is.name, "c") == 0 && info.is.updates == 4 && info.is.bytes.parameters == N);
    for (size_t i = 0; i < 3; i++) {
        unsigned hash = 2166136261u;
        try(meopt_export(opt, i, 0, N, end, &err), &err);
        for (size_t k = 0; k < sizeof end; k++) hash = (hash ^ ((unsigned char *)end)[k]) * 16777619u;
        printf("%u %.9g\n", hash, stats.is.grad_norm);
    }
    meopt_destroy(opt);
#ifdef LATER
    DEMAND(held.is.later == 0 && bytes.is.later == 0 && info.is.later == 0 && stats.is.later == 0 && o.is.later == 0);
    o.is.later = 1;
    DEMAND(meopt_create(&opt, &o.is, table, 3, &err) == MEOPT_BAD_ARGUMENT && strstr(err.message, "older"));
    o.is.later = 0;
    table[1].later = 1;
    DEMAND(meopt_create(&opt, &o.is, table, 3, &err) == MEOPT_BAD_ARGUMENT && strstr(err.message, "tensor 1"));
#endif
    o.is.size = offsetof(struct meopt_options, torch_form);
    DEMAND(meopt_create(&opt, &o.is, table, 3, &err) == MEOPT_BAD_ARGUMENT && strstr(err.message, "meopt.h"));
    return 0;
}
PROGRAM
for header in today later; do mkdir "$dir/$header"; done
cp "$MEOPT_SOURCE/core/meopt.h" "$dir/today/"
awk '/^struct meopt_(options|tensor|bytes|tensor_info|step_stats) \{/ { inside = 1 }
    /^\};/ && inside { print "    long later;"; inside = 0 }
    { print }' "$dir/today/meopt.h" >"$dir/later/meopt.h"
[ "$(grep -c 'long later;' "$dir/later/meopt.h")" = 5 ] || { echo "not every struct has grown"; exit 1; }
sanitize=
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" && sanitize='-fsanitize=address,undefined'
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$MEOPT_BUILD/CMakeCache.txt")
for library in meopt-optim meopt; do
    for header in today later; do
        later=
        [ $header = later ] && later=-DLATER
        # shellcheck disable=SC2086
        "$cc" $sanitize $later -std=c11 -Wall -Wextra -Werror -I"$dir/$header" "$dir/program.c" -o "$dir/program" -L"$MEOPT_BUILD" -l$library
        LD_LIBRARY_PATH=$MEOPT_BUILD "$dir/program" >"$dir/$library.$header" || { echo "FAILED: lib$library, the $header header"; exit 1; }
        cmp "$dir/meopt-optim.today" "$dir/$library.$header" || { echo "FAILED: lib$library, the $header header: other weights"; exit 1; }
    done
done
[ "$(wc -l <"$dir/meopt.later")" = 3 ] || { echo "FAILED: nothing was trained"; exit 1; }
echo "a program with a newer header runs"
