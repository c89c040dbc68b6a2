/* How many arguments a kernel has, and of how many bytes: what a driver knows from the code object, and needs
 * to keep the arguments of a launch that runs later. Included in front of the kernels that the emulated
 * drivers are built from. */
#ifndef MEOPT_TESTS_GPU_FAKE_ARGUMENTS_H
#define MEOPT_TESTS_GPU_FAKE_ARGUMENTS_H

#include "tests/gpu/emulate.h"

#include <map>
#include <string>
#include <vector>

namespace fake
{
inline std::map<std::string, std::vector<size_t>> &argument_sizes() /* by kernel */
{
    static std::map<std::string, std::vector<size_t>> sizes;
    return sizes;
}
struct arguments {
    template <class... A> arguments(const char *kernel, void (*)(A...))
    {
        argument_sizes()[kernel] = {sizeof(A)...};
    }
};
} // namespace fake

#undef KERNEL
#define KERNEL(name, ...)                                                                                    \
    static void name(__VA_ARGS__);                                                                           \
    static emulate::registration registration_##name(#name, name);                                           \
    static fake::arguments arguments_##name(#name, name);                                                    \
    static void name(__VA_ARGS__)

#endif
