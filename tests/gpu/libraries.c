/* The search for drivers, GEMM libraries and telemetry: in an /opt made by the test, in a mount namespace,
 * without LD_LIBRARY_PATH. Each case is a separate process, because a loaded library stays loaded. */
#include "core/base/library.h"
#include "core/device/device.h"
#include "core/device/gpu.h"
#include "tests/golden/golden.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef FAKES
#define FAKES "" /* a build without stand-ins */
#endif

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, strlen(text)) < 0 || close(fd) != 0) _exit(99);
}

/* An empty /opt that only this process sees; 77: not on this machine. */
static void own_opt(void)
{
    char map[40];
    unsigned user = getuid(), group = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(77);
    write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "0 %u 1", user);
    write_file("/proc/self/uid_map", map);
    snprintf(map, sizeof map, "0 %u 1", group);
    write_file("/proc/self/gid_map", map);
    if (mount("none", "/opt", "tmpfs", 0, NULL) != 0) _exit(77);
}

/* FAKE as a file of the tree, with its directories. */
static void put(const char *fake, const char *path)
{
    char command[2000];
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\" && cp '" FAKES "/%s' '%s'", path, fake,
             path);
    if (system(command) != 0) _exit(98);
}

static void put_dtk(const char *root)
{
    static const char *const files[][2] = {{"libfake_galaxy.so", "hip/lib/libgalaxyhip.so.5"},
                                           {"libfake_loaded.so", "hip/lib/libamdhip64.so"},
                                           {"libfake_amdhip64.so", "lib/libfake_amdhip64.so"},
                                           {"libfake_rocblas.so", "rocblas/lib/librocblas.so.0"}};
    char path[200];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", root, files[i][1]);
        put(files[i][0], path);
    }
}

static void expect(bool right, const char *what, const char *found)
{
    if (right) return;
    fprintf(stderr, "%s: %s\n", what, found);
    _exit(1);
}
static void expect_path(enum library_id id, const char *path)
{
    struct library l;
    library_open(id, &l);
    expect(l.handle && strcmp(l.path, path) == 0, path, l.handle ? l.path : l.why);
}

static bool mapped(const char *name)
{
    char line[4400];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f)) found = found || strstr(line, name);
    if (f) fclose(f);
    return found;
}

static void run(void (*scene)(void))
{
    static const char *const variables[] = {
        "LD_LIBRARY_PATH",       "ROCM_PATH",         "HIP_PATH",       "HYHAL_PATH",
        "ROCM_SMI_LIB_PATH",     "CUDA_HOME",         "CUDA_PATH",      "MEOPT_HIP_LIBRARY",
        "MEOPT_ROCBLAS_LIBRARY", "MEOPT_RSMI_LIB",    "MEOPT_NVML_LIB", "MEOPT_CUDA_LIBRARY",
        "MEOPT_CUBLAS_LIBRARY",  "MEOPT_RCCL_LIBRARY"};
    int status;
    if (!FAKES[0]) skip();
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
        own_opt();
        scene();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void dtk_in_opt(void)
{
    struct device *device;
    struct error err = {0};
    put_dtk("/opt/dtk");
    put("libfake_part.so", "/opt/hyhal/lib/libfake_part.so.1"); /* which the runtime needs */
    setenv("MEOPT_KERNELS", FAKES "/fake_kernels", 1);
    expect(device_open(&device, "hip:0", 0, &err) == 0, "no card", err.what);
    const struct gpu *gpu = gpu_of(device);
    expect(strcmp(gpu->driver.path, "/opt/dtk/hip/lib/libgalaxyhip.so.5") == 0, "driver", gpu->driver.path);
    expect(strstr(gpu_gemms(gpu), "/rocblas/lib/librocblas.so.0") != NULL, "products", gpu_gemms(gpu));
    expect(!mapped("/libamdhip64.so"), "two runtimes", "libamdhip64.so is loaded next to libgalaxyhip.so.5");
    device_close(device);
}
static void a_dtk_in_opt_is_whole_without_any_variable(void **state) { run(dtk_in_opt); }

static void dtk_elsewhere(void)
{
    put_dtk("/opt/dtk");
    put_dtk("/opt/site/dtk-26.04");
    put("libfake_part.so", "/opt/site/hyhal/lib/libfake_part.so.1");
    setenv("ROCM_PATH", "/opt/site/dtk-26.04", 1);
    setenv("HYHAL_PATH", "/opt/site/hyhal", 1);
    expect_path(LIBRARY_HIP, "/opt/site/dtk-26.04/hip/lib/libgalaxyhip.so.5");
    struct library l;
    library_open(LIBRARY_ROCBLAS, &l);
    expect(l.handle && strncmp(l.path, "/opt/site/", 10) == 0, "products of another DTK", l.path);
}
static void what_env_sh_has_set_comes_before_opt_dtk(void **state) { run(dtk_elsewhere); }

static void loaded(void)
{
    put_dtk("/opt/dtk");
    put("libfake_part.so", "/opt/hyhal/lib/libfake_part.so.1");
    put("libfake_loaded.so", "/opt/wheel/libamdhip64-1234.so");
    void *torch = dlopen("/opt/wheel/libamdhip64-1234.so", RTLD_NOW | RTLD_LOCAL);
    expect(torch != NULL, "the other program's", "does not load");
    expect_path(LIBRARY_HIP, "/opt/wheel/libamdhip64-1234.so");
    expect(!mapped("/libgalaxyhip"), "two runtimes", "libgalaxyhip.so.5 is loaded next to libamdhip64.so.6");
}
static void a_runtime_that_the_process_has_loaded_is_not_loaded_twice(void **state) { run(loaded); }

static void telemetry(void)
{
    put("libfake_part.so", "/opt/dtk/.hyhal/rocm_smi/lib/librocm_smi64.so.2");
    expect_path(LIBRARY_ROCM_SMI, "/opt/dtk/.hyhal/rocm_smi/lib/librocm_smi64.so.2");
}
static void telemetry_named(void)
{
    put("libfake_part.so", "/opt/dtk/rocm_smi/lib/librocm_smi64.so.2");
    put("libfake_part.so", "/opt/own/librocm_smi64.so.2");
    setenv("ROCM_SMI_LIB_PATH", "/opt/own", 1);
    expect_path(LIBRARY_ROCM_SMI, "/opt/own/librocm_smi64.so.2");
}
static void telemetry_file(void)
{
    put("libfake_part.so", "/opt/hyhal/lib/librocm_smi64.so.2");
    put("libfake_part.so", "/opt/own/another.so");
    setenv("ROCM_SMI_LIB_PATH", "/opt/own/another.so", 1);
    expect_path(LIBRARY_ROCM_SMI, "/opt/own/another.so");
}
static void telemetry_is_found_where_dtk_or_its_variable_has_it(void **state)
{
    run(telemetry);
    run(telemetry_named);
    run(telemetry_file);
}

static void refused(void)
{
    struct library l;
    put_dtk("/opt/dtk"); /* without hyhal */
    library_open_file("/opt/dtk/hip/lib/libgalaxyhip.so.5", &l);
    expect(!l.handle && strstr(l.why, "libfake_part.so.1"), "what it needs is not named", l.why);
    library_open_file("libnowhere.so.1", &l);
    expect(!l.handle && strcmp(l.path, "libnowhere.so.1") == 0, "what was looked for", l.path);
    expect(strncmp(l.why, "libnowhere.so.", 14) == 0, "why", l.why);
    write_file("/opt/broken.so", "no library");
    setenv("MEOPT_ROCBLAS_LIBRARY", "/opt/broken.so", 1);
    library_open(LIBRARY_ROCBLAS, &l);
    expect(!l.handle && strcmp(l.path, "/opt/broken.so") == 0 && strstr(l.why, "/opt/broken.so"), "broken",
           l.why);
    setenv("MEOPT_ROCBLAS_LIBRARY", "none", 1);
    library_open(LIBRARY_ROCBLAS, &l);
    expect(!l.handle && strcmp(l.why, "MEOPT_ROCBLAS_LIBRARY=none") == 0, "none", l.why);
}
static void what_is_not_opened_says_why(void **state) { run(refused); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dtk_in_opt_is_whole_without_any_variable),
        cmocka_unit_test(what_env_sh_has_set_comes_before_opt_dtk),
        cmocka_unit_test(a_runtime_that_the_process_has_loaded_is_not_loaded_twice),
        cmocka_unit_test(telemetry_is_found_where_dtk_or_its_variable_has_it),
        cmocka_unit_test(what_is_not_opened_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
