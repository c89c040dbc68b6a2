/* Shared memory and orders of the emulation (tests/gpu/emulate.cc). */
#ifndef MEOPT_TESTS_GPU_EMULATE_SHARED_H
#define MEOPT_TESTS_GPU_EMULATE_SHARED_H

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <link.h>
#include <utility>
#include <vector>

namespace emulate
{
/* ---- What kernels declare with SHARED: NaN before each block ---- */

/* Reads the symbol table of this library: the local variables of functions in its kernel files. */
static std::vector<shared_memory> find_shared()
{
    std::vector<shared_memory> found;
    Dl_info info;
    FILE *f = dladdr((void *)&find_shared, &info) ? fopen(info.dli_fname, "r") : nullptr;
    static std::vector<char> file; /* the names stay */
    for (int c; f && (c = getc(f)) != EOF;) file.push_back((char)c);
    if (f) fclose(f);
    const ElfW(Ehdr) *head = (const ElfW(Ehdr) *)file.data();
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(file.data() + head->e_shoff);
    bool kernels = false;
    for (int s = 0; s < head->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB) continue;
        const char *names = file.data() + sections[sections[s].sh_link].sh_offset;
        const ElfW(Sym) *symbols = (const ElfW(Sym) *)(file.data() + sections[s].sh_offset);
        for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
            const ElfW(Sym) &symbol = symbols[i];
            const char *name = names + symbol.st_name;
            int type = symbol.st_info & 15;
            if (type == STT_FILE) kernels = strstr(name, ".hip");
            if (kernels && type == STT_OBJECT && strncmp(name, "_ZZ", 3) == 0 &&
                sections[symbol.st_shndx].sh_flags & SHF_WRITE)
                found.push_back({(char *)info.dli_fbase + symbol.st_value, symbol.st_size, name});
        }
    }
    return found;
}
/* Plain loops: AddressSanitizer may count its own gaps as parts of an array. */
#define UNWATCHED __attribute__((no_sanitize("address")))
UNWATCHED static void shared_fill(const shared_memory &a)
{
    for (size_t i = 0; i < a.bytes / 8; i++) ((volatile uint64_t *)a.begin)[i] = ~0ull;
}
UNWATCHED static bool shared_is_filled(const shared_memory &a)
{
    uint64_t all = ~0ull;
    for (size_t i = 0; i < a.bytes / 8; i++) all &= ((uint64_t *)a.begin)[i];
    return all == ~0ull;
}

const std::vector<shared_memory> &shared_memories()
{
    static const std::vector<shared_memory> arrays = [] {
        std::vector<shared_memory> found = find_shared();
        for (const shared_memory &a : found) shared_fill(a);
        return found;
    }();
    return arrays;
}

/* ---- The order of blocks, of a block's waves and of a wave's lanes ---- */

/* EMULATE_ORDER: "forward", "reversed" (the default) or a number, from which each block has its own. What
 * others read before the first thread writes it shows in a reversed order. */
struct order {
    int64_t count, first, step;
    int64_t at(int64_t i) const { return (first + i * step) % count; }
};
static bool seeded;
static const char *order_text()
{
    const char *text = getenv("EMULATE_ORDER");
    seeded = text && *text >= '0' && *text <= '9';
    return text ? text : "reversed";
}
static order order_of(const char *text, int64_t count)
{
    static uint64_t random;
    if (!seeded) return *text == 'f' ? order{count, 0, 1} : order{count, count - 1, count - 1};
    random += strtoull(text, nullptr, 10);
    uint64_t draws[2];
    for (uint64_t &x : draws) { /* splitmix64 */
        x = random += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    int64_t step = 1 + (int64_t)(draws[0] % (uint64_t)count), a = count, b = step;
    while (b) a = std::exchange(b, a % b);
    return {count, (int64_t)(draws[1] % (uint64_t)count), a == 1 ? step : 1}; /* step and count: coprime */
}
} // namespace emulate

#endif
