/* Which calls are counted: those of the program, and of libraries whose failures it must handle. Calls of
 * libc, the loader and OpenMP never fail here. */
#include "shim.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>

enum { RANGES = 32 };
static struct {
    uintptr_t from, to;
} ranges[RANGES];
static int range_count;
static uintptr_t program_from, program_to, program_base;

static int add(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    (void)context;
    static const char *const libraries[] = {"libjansson", "libyaml", "libarchive", "libjpeg", "libpng"};
    bool ours = !info->dlpi_name || !*info->dlpi_name; // the program
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries && !ours; i++)
        ours = strstr(info->dlpi_name, libraries[i]) != NULL;
    for (int i = 0; ours && i < info->dlpi_phnum && range_count < RANGES; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            ranges[range_count].from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ranges[range_count].to = ranges[range_count].from + info->dlpi_phdr[i].p_memsz;
            if (!info->dlpi_name || !*info->dlpi_name) {
                program_base = info->dlpi_addr;
                program_from = ranges[range_count].from;
                program_to = ranges[range_count].to;
            }
            range_count++;
        }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    if (getenv("FAULT_SHARED")) dl_iterate_phdr(add, NULL);
}

uintptr_t program_offset(uintptr_t address)
{
    return address >= program_from && address < program_to ? address - program_base : 0;
}

bool of_the_program(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    for (int i = 0; i < range_count; i++)
        if (at >= ranges[i].from && at < ranges[i].to) return true;
    return false;
}

bool memory_fails(const void *caller) { return of_the_program(caller) && fault(CALL_MALLOC, "memory") != 0; }
