/* meopt bench ranks: measures the links between ranks, as `meopt plan --bandwidth` and `--advise` take them.
 *
 * A step reduces gradients in bf16 and gathers sums or weights; both are measured with the calls of a
 * training (core/comm/comm.h), so the rate contains its additions and copies. The model is simulate.h's: N
 * ranks, G of a host, S = bytes (N - 1) / N sent by each rank, take
 * max(S / B, S (N - G) / (N - 1) G / W) + (N - 1) L. B is measured among the ranks of a host, W with all
 * ranks, L with arrays of two values per rank. */
#include "cli/command.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/comm/comm.h"
#include "core/comm/launch.h"
#include "core/compare/statistics.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HOST_BYTES = 64, LATENCY_CALLS = 20 };

struct links {
    struct comm_options join;
    const char *device; /* of this rank: "cpu", "hip:1" */
    int64_t values;
    int repeat;
    /* The ranks; host: those of this rank's host (comm_split), which `meet` joins where cards need it. */
    struct device *cpu, *card;
    struct comm meet, all, host;
    bool meets, joined, parted;
    int hosts, host_ranks; /* most ranks of a host */
    uint16_t *gradient;
    float *sum;
};

/* One kind of transfer: the seconds of a call, for all ranks the slowest's. */
struct link_times {
    double bulk, bulk_sd, call; /* of the array, its deviation, of one value per rank */
};

/* ---- joining ---- */

static int exchange(void *context, const char *name, const void *own, size_t bytes, void *all,
                    struct error *err)
{
    struct comm *meet = context;
    (void)name;
    memcpy((char *)all + (size_t)meet->rank * bytes, own, bytes);
    return comm_gather_each(meet, all, bytes, err);
}

/* Joins in host memory, and with cards once more through their library. */
static int join(struct links *k, struct error *err)
{
    bool card = strcmp(k->device, "cpu") != 0;
    int code = device_open(&k->cpu, "cpu", 0, err);
    if (!code && card) code = device_open(&k->card, k->device, 0, err);
    struct comm_options o = k->join;
    if (!code && card) {
        code = comm_open(&k->meet, &o, k->cpu, err);
        k->meets = !code;
        o.kind = COMM_NCCL;
        o.exchange = exchange;
        o.context = &k->meet;
    }
    if (code) return code;
    code = comm_open(&k->all, &o, card ? k->card : k->cpu, err);
    k->joined = !code;
    if (code == EXIT_CONFIG && card)
        snprintf(err->hint, sizeof err->hint, _("omit --device: ranks are joined in host memory"));
    return code;
}

/* Splits the ranks by host. */
static int split_hosts(struct links *k, struct error *err)
{
    int n = k->all.size, *colors = xcalloc((size_t)n, sizeof *colors),
        *counts = xcalloc((size_t)n, sizeof *counts);
    char *names = xcalloc((size_t)n, HOST_BYTES);
    gethostname(names + (size_t)k->all.rank * HOST_BYTES, HOST_BYTES - 1);
    int code = comm_gather_each(&k->all, names, HOST_BYTES, err);
    for (int q = 0; q < n && !code; q++) {
        while (memcmp(names + (size_t)colors[q] * HOST_BYTES, names + (size_t)q * HOST_BYTES, HOST_BYTES) !=
               0)
            colors[q]++; /* the first rank of its host */
        k->hosts += counts[colors[q]] == 0;
        if (++counts[colors[q]] > k->host_ranks) k->host_ranks = counts[colors[q]];
    }
    if (!code && k->hosts > 1) {
        code = comm_split(&k->all, colors, "host", &k->host, err);
        k->parted = !code;
    }
    free(names);
    free(counts);
    free(colors);
    return code;
}

static void leave(struct links *k)
{
    if (k->card) {
        device_free(k->card, k->gradient);
        device_free(k->card, k->sum);
    } else {
        free(k->gradient);
        free(k->sum);
    }
    if (k->parted) comm_close(&k->host);
    if (k->joined) comm_close(&k->all);
    if (k->meets) comm_close(&k->meet);
    if (k->card) device_close(k->card);
    if (k->cpu) device_close(k->cpu);
}

static int allocate(struct links *k, struct error *err)
{
    size_t count = (size_t)k->values;
    if (!k->card) {
        k->gradient = xcalloc(count, sizeof *k->gradient);
        k->sum = xcalloc(count, sizeof *k->sum);
        return 0;
    }
    k->gradient = device_alloc(k->card, MEMORY_GRADIENTS, count * sizeof *k->gradient, "gradient", err);
    if (k->gradient) k->sum = device_alloc(k->card, MEMORY_GRADIENTS, count * sizeof *k->sum, "sums", err);
    return k->sum ? 0 : err->code;
}

/* ---- measuring ---- */

enum transfer { STEP, MESSAGE }; /* a step's reduction and gather; a message to the next rank */

static int transfer(struct links *k, struct comm *comm, enum transfer what, int64_t values, int64_t *parts,
                    int64_t *bytes, struct error *err)
{
    int n = comm->size;
    if (what == MESSAGE) {
        size_t size = (size_t)values * sizeof *k->gradient / 2; /* a half is sent, the other received */
        char *p = (char *)k->gradient;
        struct comm_message messages[2] = {{p, size, (comm->rank + 1) % n, 1, false},
                                           {p + size, size, (comm->rank + n - 1) % n, 1, true}};
        return comm_transfer(comm, messages, 2, err);
    }
    for (int q = 0; q <= n; q++) {
        parts[q] = values * q / n;
        bytes[q] = parts[q] * (int64_t)sizeof *k->sum;
    }
    struct comm_sum sum = {
        .send = k->gradient, .type = DTYPE_BF16, .offsets = parts, .receive = k->sum + parts[comm->rank]};
    int code = comm_reduce(comm, &sum, err);
    return code ? code : comm_gather(comm, k->sum, bytes, err);
}

/* Sets the seconds of one of `calls` transfers: of the slowest rank. */
static int time_transfer(struct links *k, struct comm *comm, enum transfer what, int64_t values, int calls,
                         double *seconds, struct error *err)
{
    int64_t *parts = xcalloc((size_t)comm->size + 1, 2 * sizeof *parts);
    int code = comm_barrier(comm, err);
    double begin = clock_seconds();
    for (int i = 0; i < calls && !code; i++)
        code = transfer(k, comm, what, values, parts, parts + comm->size + 1, err);
    if (!code && k->card) {
        k->card->sync(k->card);
        code = device_check(k->card, err);
    }
    *seconds = (clock_seconds() - begin) / calls;
    free(parts);
    return code ? code : comm_all_reduce(comm, COMM_MAX, seconds, 1, err);
}

static int measure(struct links *k, struct comm *comm, enum transfer what, struct link_times *times,
                   struct error *err)
{
    double *bulk = xcalloc((size_t)k->repeat, sizeof *bulk), *call = xcalloc((size_t)k->repeat, sizeof *call);
    double first;
    int code = time_transfer(k, comm, what, k->values, 1, &first, err); /* pages, connections */
    for (int i = 0; i < k->repeat && !code; i++) {
        code = time_transfer(k, comm, what, k->values, 1, &bulk[i], err);
        if (!code) code = time_transfer(k, comm, what, 2 * comm->size, LATENCY_CALLS, &call[i], err);
    }
    *times = (struct link_times){.bulk = statistics_median(bulk, k->repeat),
                                 .bulk_sd = statistics_sd(bulk, k->repeat),
                                 .call = statistics_median(call, k->repeat)};
    free(bulk);
    free(call);
    return code;
}

/* ---- the report ---- */

struct link_report {
    double bandwidth, network, message; /* GB/s: B, W (0: one host), of a message to the next rank */
    double latency_us, spread;          /* L; relative deviation of the times of `bandwidth` */
};

/* Returns the bytes that each of n ranks sends for a step's reduction (bf16) and gather (fp32). */
static double sent_bytes(const struct links *k, int n) { return 6.0 * (double)k->values * (n - 1) / n; }

/* A step has two collectives of N - 1 messages. */
static double without_latency(const struct link_times *t)
{
    return t->bulk > 2 * t->call ? t->bulk - t->call : t->bulk;
}

static int run(struct links *k, struct link_report *r, struct error *err)
{
    struct link_times all = {0}, host = {0}, message = {0};
    int code = join(k, err);
    if (!code) code = split_hosts(k, err);
    if (!code) code = allocate(k, err);
    if (!code) code = comm_reserve(&k->all, k->values * (int64_t)sizeof *k->sum / k->all.size + 64, err);
    if (!code) code = measure(k, &k->all, STEP, &all, err);
    if (!code) code = measure(k, &k->all, MESSAGE, &message, err);
    bool parted = k->parted && k->host_ranks > 1, part = parted && k->host.size > 1;
    if (part && !code) code = measure(k, &k->host, STEP, &host, err);
    if (code) return code;
    int n = k->all.size, g = k->host_ranks;
    *r = (struct link_report){.bandwidth = sent_bytes(k, n) / without_latency(&all) / 1e9,
                              .latency_us = 1e6 * all.call / (2 * (n - 1)),
                              .spread = all.bulk_sd / all.bulk,
                              .message = (double)k->values / message.bulk / 1e9};
    if (k->hosts > 1) r->network = r->bandwidth * (n - g) / (n - 1) * g;
    if (!parted) return 0;
    double slowest[2] = {part ? sent_bytes(k, k->host.size) / without_latency(&host) : INFINITY,
                         part ? -host.bulk_sd / host.bulk : 0};
    code = comm_all_reduce(&k->all, COMM_MIN, slowest, 2, err);
    r->bandwidth = slowest[0] / 1e9;
    r->spread = -slowest[1];
    return code;
}

static void report(const struct links *k, const struct link_report *r, bool json)
{
    int n = k->all.size;
    if (json) {
        json_t *j = json_pack("{s:i, s:i, s:s, s:s, s:I, s:i, s:f, s:f, s:f, s:f}", "ranks", n, "hosts",
                              k->hosts, "backend", k->all.ops->name, "device", k->device, "bytes",
                              (json_int_t)k->values * 2, "n", k->repeat, "bandwidth_gb_s", r->bandwidth,
                              "message_gb_s", r->message, "latency_us", r->latency_us, "spread", r->spread);
        json_object_set_new(j, "network_gb_s", k->hosts > 1 ? json_real(r->network) : json_null());
        json_print(stdout, j, JSON_INDENT(1) | JSON_REAL_PRECISION(6) | JSON_PRESERVE_ORDER);
        json_decref(j);
        return;
    }
    printf(_("%d ranks on %d host%s, %s, gradients of %.4g MiB, %d times\n"), n, k->hosts,
           k->hosts > 1 ? "s" : "", k->all.ops->name, (double)k->values * 2 / (1 << 20), k->repeat);
    char spread[32] = ""; /* of one time: unknown */
    if (isfinite(r->spread)) snprintf(spread, sizeof spread, " +- %.0f %%", 100 * r->spread);
    printf("  %*s %10.4g GB/s%s\n",
           PAD(-20, k->hosts > 1 && k->host_ranks > 1 ? _("a rank in its host") : _("a rank")), r->bandwidth,
           spread);
    if (k->hosts > 1) printf("  %*s %10.4g GB/s\n", PAD(-20, _("a host's network")), r->network);
    printf("  %*s %10.4g GB/s\n", PAD(-20, _("message to the next")), r->message);
    printf(_("  %*s %10.4g us per message\n"), PAD(-20, _("latency")), r->latency_us);
    printf(_("use: meopt plan CONFIG --advise --ranks %d --bandwidth %.4g --latency %.4g"), n, r->bandwidth,
           r->latency_us);
    if (k->hosts > 1) printf(" --network %.4g --nodes %d", r->network, k->hosts);
    printf("\n");
}

/* ---- ranks ---- */

static int measure_and_report(struct links *k, bool json, struct error *err)
{
    struct link_report r;
    int code = run(k, &r, err);
    if (!code && k->all.rank == 0) report(k, &r, json);
    leave(k);
    return code;
}

/* The process of one rank of this host. Prints its error, and returns its exit code. */
static int run_rank(struct links *k, int rank, int size, int shared, const char *device, bool json,
                    struct error *err)
{
    bool card = strcmp(device, "cpu") != 0 && !strchr(device, ':');
    char *spec = card ? xasprintf("%s:%d", device, rank) : xstrdup(device);
    k->device = spec;
    k->join = (struct comm_options){.rank = rank, .size = size, .local_rank = rank, .shared = shared};
    int code = measure_and_report(k, json, err);
    if (code) error_print(err);
    free(spec);
    fflush(stdout);
    return code;
}

/* Waits for the ranks, and ends the others when one fails. Each has printed its error. */
static int await_ranks(pid_t *pids, int count, int code, struct error *err)
{
    for (int left = count; left > 0; left--) {
        int status, which = 0;
        for (int i = 0; i < count && code; i++)
            if (pids[i] > 0) kill(pids[i], SIGKILL);
        pid_t pid = waitpid(-1, &status, 0);
        while (which < count && pids[which] != pid) which++;
        if (which < count) pids[which] = 0;
        if (status == 0 || code) continue;
        code = WIFEXITED(status) ? WEXITSTATUS(status)
                                 : error_set(err, EXIT_RANK_LOST, NULL, "rank %d was ended by signal %d",
                                             which, WTERMSIG(status));
    }
    return code;
}

/* Starts the ranks on this host. */
static int run_local(struct links *k, int size, const char *device, bool json, struct error *err)
{
    int shared, started = 0, code = comm_local_create(size, &shared, err);
    if (code) return code;
    pid_t parent = getpid(), *pids = xcalloc((size_t)size, sizeof *pids);
    fflush(stdout);
    for (; started < size && !code; started++) {
        pids[started] = fork();
        if (pids[started] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(getppid() == parent ? run_rank(k, started, size, shared, device, json, err) : EXIT_FAILED);
        }
        if (pids[started] < 0) {
            code =
                error_errno(err, EXIT_HOST_MEMORY, "give fewer --workers", "cannot start rank %d", started);
            break;
        }
    }
    code = await_ranks(pids, started, code, err);
    free(pids);
    close(shared);
    return code;
}

static int bench_ranks(const struct arguments *args, struct error *err)
{
    int workers = (int)argument_int(args, "workers", 0);
    bool json = argument_flag(args, "json");
    const char *device = argument_text(args, "device", "cpu");
    struct links k = {.values = argument_int(args, "mib", 32) << 19,
                      .repeat = (int)argument_int(args, "repeat", 10)};
    struct launch launch;
    int code = launch_read(&launch, NULL, NULL, err);
    if (code) return code;
    if (launch.size > 1 && workers)
        return error_set(err, EXIT_USAGE, "omit --workers", "%s has started %d ranks", launch.launcher,
                         launch.size);
    if (launch.size < 2) return run_local(&k, workers ? workers : 2, device, json, err);
    bool card = strcmp(device, "cpu") != 0 && !strchr(device, ':');
    if (card && launch.local_rank < 0)
        return error_set(err, EXIT_USAGE, "name the card: --device hip:0",
                         "%s does not set the rank on this host", launch.launcher);
    char *spec = card ? xasprintf("%s:%d", device, launch.local_rank) : xstrdup(device);
    k.device = spec;
    k.join = (struct comm_options){.kind = COMM_MPI,
                                   .rank = launch.rank,
                                   .size = launch.size,
                                   .local_rank = launch.local_rank,
                                   .shared = -1};
    code = measure_and_report(&k, json, err);
    free(spec);
    return code;
}

static const struct option options[] = {
    {"workers", .letter = 'w', .type = OPTION_INT, .value = "N", .min = 2, .max = 1024,
     .help = "start N ranks on this host (default 2); not below mpirun or srun"},
    {"device", .letter = 'd', .type = OPTION_TEXT, .value = "DEVICE",
     .help = "cpu (the default); hip or cuda: a card per rank"},
    {"mib", .letter = 'm', .type = OPTION_INT, .value = "MIB", .min = 1, .max = 4096,
     .help = "size of the gradients in bf16 (default 32)"},
    {"repeat", .type = OPTION_INT, .value = "N", .min = 1, .max = 1000,
     .help = "number of measured collectives (default 10)"},
    {"json", .letter = 'j', .help = "print JSON"},
    {0},
};

const struct command cmd_bench_ranks = {
    .name = "bench ranks",
    .operands = "",
    .summary = "measure the links between ranks, for 'meopt plan --advise'",
    .details = "Examples:\n  meopt bench ranks --workers 4\n  mpirun -n 8 meopt bench ranks --device hip\n",
    .options = options,
    .run = bench_ranks,
};
