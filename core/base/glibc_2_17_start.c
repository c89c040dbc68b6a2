/* The start of a program linked by glibc_2_17.sh (--wrap=__libc_start_main): the start files since glibc
 * 2.34 leave the program's constructors to glibc, and an older one leaves them to the start files. */
#include <stddef.h>

extern void (*__init_array_start[])(int, char **, char **), (*__init_array_end[])(int, char **, char **);
extern void _init(void);
typedef int main_function(int, char **, char **);
int __real___libc_start_main(main_function *main, int count, char **arguments, main_function *init,
                             void (*fini)(void), void (*end)(void), void *stack);
int __wrap___libc_start_main(main_function *main, int count, char **arguments, main_function *init,
                             void (*fini)(void), void (*end)(void), void *stack);

static int construct(int count, char **arguments, char **environment)
{
    _init();
    for (void (**p)(int, char **, char **) = __init_array_start; p < __init_array_end; p++)
        (*p)(count, arguments, environment);
    return 0;
}

/* The start files before glibc 2.34 name these two, which libc_nonshared.a has there. */
int __libc_csu_init(int count, char **arguments, char **environment);
int __libc_csu_init(int count, char **arguments, char **environment)
{
    return construct(count, arguments, environment);
}
void __libc_csu_fini(void);
void __libc_csu_fini(void) {} /* destructors are called by the dynamic linker */

int __wrap___libc_start_main(main_function *main, int count, char **arguments, main_function *init,
                             void (*fini)(void), void (*end)(void), void *stack)
{
    (void)init;
    return __real___libc_start_main(main, count, arguments, construct, fini, end, stack);
}
