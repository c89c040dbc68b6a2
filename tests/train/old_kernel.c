/* Everything works on a kernel as old as CentOS 7's (3.10): a seccomp filter makes every younger call fail
 * with ENOSYS. `test_old_kernel PROGRAM [ARGUMENT...]` runs a program under it. */
#include "core/base/platform.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#if defined(__x86_64__)
#include <linux/filter.h>
#include <linux/seccomp.h>

enum { LAST_OF_3_10 = 313, LEFT_OUT = 77 }; /* finit_module, of 3.8 */

static int become_old(void)
{
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, F_OFD_GETLK, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, F_OFD_SETLKW, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, LAST_OF_3_10, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
#else
enum { LEFT_OUT = 77 };
static int become_old(void) { return -1; }
#endif

static void all_calls(void)
{
    char a[] = "/tmp/meopt-old-XXXXXX", b[64];
    uint8_t random[32] = {0};
    int fd = memory_file("test"), any = 0, closed[2];
    if (fd < 0 || ftruncate(fd, 5000) != 0 || pwrite(fd, "x", 1, 4999) != 1) _exit(1);
    if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC)) _exit(2);
    if (fcntl(fd, F_OFD_GETLK, &(struct flock){.l_type = F_WRLCK}) != -1 || errno != EINVAL) _exit(13);
    if (byte_lock(fd, 3) != 0 || fcntl(fd, F_GETFD) < 0) _exit(14);
    pid_t other = fork(); /* whose locks are its own */
    if (other == 0) _exit(byte_is_free(fd, 3) || !byte_is_free(fd, 2) || byte_lock(fd, 3) != -1);
    int status;
    if (waitpid(other, &status, 0) != other || status != 0) _exit(15);
    if (random_bytes(random, sizeof random) != 0) _exit(4);
    for (size_t i = 0; i < sizeof random; i++) any |= random[i];
    if (!any) _exit(5);
    if (!mkdtemp(a)) _exit(6);
    snprintf(b, sizeof b, "%s-b", a);
    if (rename_new(a, b) != -1 || (errno != ENOSYS && errno != EINVAL))
        _exit(7); /* callers continue without the call */
    if (rename_exchange(a, b) != -1 || (errno != ENOSYS && errno != EINVAL)) _exit(8);
    rmdir(a);
    if (process_open(getpid()) != -1 || errno != ENOSYS) _exit(9);
    if (pipe(closed) != 0) _exit(10);
    close_from(closed[0]);
    for (int i = 0; i < 2; i++)
        if (fcntl(closed[i], F_GETFD) != -1) _exit(11);
    if (fcntl(fd, F_GETFD) == -1) _exit(12);
    _exit(0);
}

static void calls_that_the_kernel_has_not_are_done_without(void **state)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (become_old()) _exit(LEFT_OUT);
        if (syscall(SYS_getpid) < 0 || syscall(314, 0, 0, 0, 0) != -1 || errno != ENOSYS) _exit(LEFT_OUT);
        all_calls();
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == LEFT_OUT) skip();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_that_the_kernel_has_not_are_done_without)};
    if (argc > 1) {
        if (become_old()) return LEFT_OUT;
        execv(argv[1], argv + 1);
        return 127;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
