/* See library.h.
 *
 * DTK (Hygon) is installed in /opt/dtk, or where its env.sh sets ROCM_PATH and HIP_PATH. That file's
 * LD_LIBRARY_PATH omits hip/lib, and login shells often have not read it. So files are opened by full path,
 * and dependencies that the loader does not find are loaded first.
 */
#include "core/base/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names of a library and the directories that are searched for it: directories in order, in each all names.
 * "" is the loader's search path. $NAME is skipped if that variable is not set, and may name the file itself.
 * @ is the directory of the HIP runtime that was opened, skipped before one was. */
struct search {
    const char *names[7], *places[13];
};

/* DTK's HIP runtime is libgalaxyhip.so.5 since 23.10; the same directory has a libamdhip64.so with other
 * symbol versions. A libamdhip64.so that the loader finds may be a distribution's, which supports no DCU, so
 * it comes late. */
#define GALAXY "libgalaxyhip.so.5", "libgalaxyhip.so"
#define AMD    "libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"
/* A part of ROCm: first from the runtime's own release, in /opt/rocm/lib, or in /opt/dtk/hip/lib with
 * /opt/dtk/lib and /opt/dtk/rocblas/lib; then from any directory. */
#define PART(part)                                                                                           \
    "@", "@/../../lib", "@/../../" part "/lib", "@/../" part "/lib", "", "$ROCM_PATH/lib",                   \
        "$ROCM_PATH/" part "/lib", "/opt/dtk/lib", "/opt/dtk/" part "/lib", "/opt/rocm/lib"
#define CUDA_PLACES "", "$CUDA_HOME/lib64", "$CUDA_PATH/lib64", "/usr/local/cuda/lib64"

/* Names and directories that the build found (CMakeLists.txt). */
#ifndef MEOPT_CURL
#define MEOPT_CURL "libcurl.so.4"
#endif
#ifndef MEOPT_ARCHIVE
#define MEOPT_ARCHIVE "libarchive.so.13"
#endif
#ifndef MEOPT_CRYPTO
#define MEOPT_CRYPTO "libcrypto.so.3"
#endif
#ifndef MEOPT_CURL_DIRECTORY
#define MEOPT_CURL_DIRECTORY    ""
#define MEOPT_ARCHIVE_DIRECTORY ""
#define MEOPT_CRYPTO_DIRECTORY  ""
#endif

enum { SEARCHES = 3 };
static const struct row {
    const char *variable;
    struct search searches[SEARCHES];
    const char *package; /* of Debian and Ubuntu, for a hint */
} rows[LIBRARIES] = {
    [LIBRARY_HIP] = {"MEOPT_HIP_LIBRARY",
                     {{{GALAXY}, {""}},
                      {{GALAXY, AMD},
                       {"$HIP_PATH/lib", "$ROCM_PATH/hip/lib", "$ROCM_PATH/lib", "/opt/dtk/hip/lib",
                        "/opt/dtk/lib"}},
                      {{AMD}, {"", "/opt/rocm/lib"}}}},
    [LIBRARY_CUDA] = {"MEOPT_CUDA_LIBRARY", {{{"libcuda.so.1", "libcuda.so"}, {"", "/usr/lib/wsl/lib"}}}},
    [LIBRARY_ROCBLAS] = {"MEOPT_ROCBLAS_LIBRARY",
                         {{{"librocblas.so", "librocblas.so.5", "librocblas.so.4", "librocblas.so.3",
                            "librocblas.so.0"},
                           {PART("rocblas")}}}},
    [LIBRARY_CUBLAS] = {"MEOPT_CUBLAS_LIBRARY",
                        {{{"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"},
                          {CUDA_PLACES}}}},
    [LIBRARY_HIPBLASLT] = {"MEOPT_HIPBLASLT_LIBRARY",
                           {{{"libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0"},
                             {PART("hipblaslt")}}}},
    [LIBRARY_CUBLASLT] = {"MEOPT_CUBLASLT_LIBRARY",
                          {{{"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so"},
                            {CUDA_PLACES}}}},
    [LIBRARY_RCCL] = {"MEOPT_RCCL_LIBRARY", {{{"librccl.so.1", "librccl.so"}, {PART("rccl")}}}},
    [LIBRARY_NCCL] = {"MEOPT_NCCL_LIBRARY", {{{"libnccl.so.2", "libnccl.so"}, {CUDA_PLACES}}}},
    [LIBRARY_ROCM_SMI] = {"MEOPT_RSMI_LIB",
                          {{{"librocm_smi64.so", "librocm_smi64.so.1", "librocm_smi64.so.2",
                             "librocm_smi64.so.5", "librocm_smi64.so.6", "librocm_smi64.so.7"},
                            {"$ROCM_SMI_LIB_PATH", "$HYHAL_PATH/lib", "/opt/hyhal/lib",
                             "$ROCM_PATH/rocm_smi/lib", "/opt/dtk/rocm_smi/lib",
                             "/opt/dtk/.hyhal/rocm_smi/lib", "", "$ROCM_PATH/lib", "/opt/rocm/lib"}}}},
    [LIBRARY_NVML] = {"MEOPT_NVML_LIB",
                      {{{"libnvidia-ml.so.1", "libnvidia-ml.so"}, {"", "/usr/lib/wsl/lib"}}}},
    [LIBRARY_CURL] = {"MEOPT_CURL_LIBRARY", {{{MEOPT_CURL}, {"", MEOPT_CURL_DIRECTORY}}}, "libcurl4"},
    [LIBRARY_ARCHIVE] = {"MEOPT_ARCHIVE_LIBRARY",
                         {{{MEOPT_ARCHIVE}, {"", MEOPT_ARCHIVE_DIRECTORY}}},
                         "libarchive13"},
    [LIBRARY_CRYPTO] = {"MEOPT_CRYPTO_LIBRARY",
                        {{{MEOPT_CRYPTO}, {"", MEOPT_CRYPTO_DIRECTORY}}},
                        "openssl"}, /* which requires that release's libssl */
};

/* Directories that may contain the dependencies of these libraries. */
static const char *const needs[] = {"$HYHAL_PATH/lib",
                                    "/opt/hyhal/lib",
                                    "$ROCM_PATH/lib",
                                    "$ROCM_PATH/hip/lib",
                                    "$ROCM_PATH/hsa/lib",
                                    "$ROCM_PATH/rocm_smi/lib",
                                    "$ROCM_PATH/dcc/comgr/lib64",
                                    "$ROCM_PATH/llvm/lib",
                                    "/opt/dtk/lib",
                                    "/opt/dtk/hip/lib",
                                    "/opt/dtk/hsa/lib",
                                    "/opt/dtk/rocm_smi/lib",
                                    "/opt/dtk/dcc/comgr/lib64",
                                    "/opt/dtk/llvm/lib",
                                    "/opt/dtk/.hyhal/lib",
                                    "/opt/rocm/lib",
                                    NULL};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char runtime[PATH_MAX]; /* directory of the HIP runtime; "" */

/* Path of `name` in directory `place`; false: no such directory. */
static bool file_in(const char *place, const char *name, char file[PATH_MAX])
{
    char variable[32];
    const char *root = "", *rest = place;
    if (place[0] == '@') {
        root = runtime;
        rest = place + 1;
    } else if (place[0] == '$') {
        snprintf(variable, sizeof variable, "%.*s", (int)strcspn(place + 1, "/"), place + 1);
        root = getenv(variable);
        rest = place + 1 + strlen(variable);
    }
    if (place[0] && rest != place && (!root || root[0] != '/')) return false;
    int n = rest != place && !*rest && strstr(root, ".so") ? snprintf(file, PATH_MAX, "%s", root)
            : place[0] ? snprintf(file, PATH_MAX, "%s%s/%s", root, rest, name)
                       : snprintf(file, PATH_MAX, "%s", name);
    return n > 0 && n < PATH_MAX;
}

/* Name of the dependency of `file` that the loader did not find. The loader's message begins with it:
 * "libx.so.1: cannot open ...". */
static bool need_of(const char *file, const char *words, char name[128])
{
    size_t n = strcspn(words, ":");
    if (n == 0 || n >= 128 || strncmp(words, "lib", 3) != 0) return false;
    memcpy(name, words, n);
    name[n] = 0;
    return !strchr(name, '/') && strstr(name, ".so") && strcmp(name, file) != 0;
}

/* The reason why no file was opened, and whether that reason concerns an existing file. */
struct refusal {
    char *why;
    size_t size;
    bool there;
};
static void *open_file(const char *file, int depth, struct refusal *refusal);

static bool open_need(const char *file, const char *name, int depth, struct refusal *refusal)
{
    enum { DEEPEST = 8 };
    char path[PATH_MAX];
    const char *slash = strrchr(file, '/');
    int n = slash ? snprintf(path, sizeof path, "%.*s/%s", (int)(slash - file), file, name) : 0;
    if (depth > DEEPEST) return false;
    if (n > 0 && n < PATH_MAX && open_file(path, depth, refusal)) return true;
    for (int i = 0; needs[i]; i++)
        if (file_in(needs[i], name, path) && open_file(path, depth, refusal)) return true;
    return false;
}

static void *open_file(const char *file, int depth, struct refusal *refusal)
{
    enum { NEEDS = 32 };
    char words[256], name[128], before[128] = "";
    for (int i = 0; i < NEEDS; i++) {
        void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (handle) return handle;
        const char *why = dlerror();
        snprintf(words, sizeof words, "%s", why ? why : "unknown reason");
        bool lacks = need_of(file, words, name);
        if (lacks && strcmp(name, before) != 0 && open_need(file, name, depth + 1, refusal)) {
            memcpy(before, name, sizeof before);
            continue;
        }
        bool there = lacks || strncmp(words, file, strlen(file)) != 0 ||
                     (strchr(file, '/') && access(file, F_OK) == 0);
        if (!refusal->why[0] || (there && !refusal->there))
            snprintf(refusal->why, refusal->size, "%s", words);
        refusal->there = refusal->there || there;
        return NULL;
    }
    return NULL;
}

static void *opened(struct library *l, const char *file, void *handle)
{
    struct link_map *map;
    bool known = handle && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0];
    snprintf(l->path, sizeof l->path, "%s", known ? map->l_name : file);
    if (handle) l->why[0] = 0;
    return l->handle = handle;
}

void *library_open_file(const char *file, struct library *l)
{
    struct refusal refusal = {l->why, sizeof l->why, false};
    l->why[0] = 0;
    return opened(l, file, open_file(file, 0, &refusal));
}

static void *open_loaded(const struct row *row, struct library *l)
{
    for (int s = 0; s < SEARCHES; s++)
        for (int i = 0; row->searches[s].names[i]; i++) {
            void *handle = dlopen(row->searches[s].names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
            if (handle) return opened(l, row->searches[s].names[i], handle);
        }
    return NULL;
}

static void *open_searched(const struct row *row, struct library *l)
{
    char file[PATH_MAX];
    struct refusal refusal = {l->why, sizeof l->why, false};
    for (int s = 0; s < SEARCHES; s++)
        for (int place = 0; row->searches[s].places[place]; place++)
            for (int i = 0; row->searches[s].names[i]; i++) {
                if (!file_in(row->searches[s].places[place], row->searches[s].names[i], file)) continue;
                void *handle = open_file(file, 0, &refusal);
                if (handle) return opened(l, file, handle);
            }
    return opened(l, row->searches[0].names[0], NULL);
}

const char *library_variable(enum library_id id) { return rows[id].variable; }

void *library_open(enum library_id id, struct library *l)
{
    const struct row *row = &rows[id];
    const char *own = getenv(row->variable);
    memset(l, 0, sizeof *l);
    pthread_mutex_lock(&lock);
    if (own && strcmp(own, "none") == 0) {
        opened(l, own, NULL);
        snprintf(l->why, sizeof l->why, "%s=none", row->variable);
    } else if (own && *own) library_open_file(own, l);
    else if (!open_loaded(row, l)) open_searched(row, l);
    if (id == LIBRARY_HIP && l->handle && realpath(l->path, runtime)) *strrchr(runtime, '/') = 0;
    pthread_mutex_unlock(&lock);
    return l->handle;
}

static int fill(void **functions, const char *const *names, size_t count, const struct library *l,
                const struct row *row, struct error *err)
{
    char hint[160], reason[160];
    size_t i = 0;
    while (l->handle && i < count && (functions[i] = dlsym(l->handle, names[i]))) i++;
    if (i == count) return 0;
    snprintf(reason, sizeof reason, _("it has no %s"), names[i]);
    snprintf(hint, sizeof hint, _("install the package %s (Debian, Ubuntu), or set %s to its file"),
             row->package, row->variable);
    return error_set(err, EXIT_FAILED, hint, "%s could not be loaded: %s", l->path,
                     l->handle ? reason : l->why);
}

int library_load_functions(enum library_id id, const char *const *names, const void *linked, void *table,
                           struct error *err)
{
    static pthread_mutex_t fill_lock = PTHREAD_MUTEX_INITIALIZER;
    enum { MOST = 32 };
    void *functions[MOST];
    size_t count = 0;
    int code = 0;
    struct library l;
    while (names[count]) count++;
    pthread_mutex_lock(&fill_lock);
    memcpy(functions, table, count * sizeof *functions);
    if (!functions[0] && linked) memcpy(table, linked, count * sizeof *functions);
    else if (!functions[0]) {
        library_open(id, &l);
        code = fill(functions, names, count, &l, &rows[id], err);
        if (!code) memcpy(table, functions, count * sizeof *functions);
    }
    pthread_mutex_unlock(&fill_lock);
    return code;
}

#ifndef MEOPT_LIBDIR
#define MEOPT_LIBDIR "lib"
#endif

void *library_open_mpi(struct library *l)
{
    static const char *const places[] = {"%s/libmeopt_mpi.so",
                                         "%s/../" MEOPT_LIBDIR "/meopt/libmeopt_mpi.so"};
    char self[sizeof l->path - 64] = "";
    const char *given = getenv("MEOPT_MPI_MODULE");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = n > 0 ? strrchr(self, '/') : NULL;
    if (slash) *slash = 0;
    *l = (struct library){.path = "libmeopt_mpi.so"};
    snprintf(l->why, sizeof l->why, "is neither in the program's directory nor in ../" MEOPT_LIBDIR "/meopt");
    for (int i = given ? -1 : 0; i < (given ? 0 : 2) && !l->handle; i++) {
        char path[sizeof l->path];
        if (i < 0) snprintf(path, sizeof path, "%s", given);
        else snprintf(path, sizeof path, i ? places[1] : places[0], slash ? self : ".");
        if (i >= 0 && access(path, F_OK) != 0) continue;
        snprintf(l->path, sizeof l->path, "%s", path);
        l->handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* Open MPI's components need its symbols */
        if (!l->handle) snprintf(l->why, sizeof l->why, "%s", dlerror());
        break;
    }
    return l->handle;
}
