/* Structs whose size the caller's header determines: see optim.h. */
#include "core/optim/optim.h"

#include <string.h>

void struct_copy_out(void *to, size_t to_size, const void *from, size_t from_size)
{
    memcpy(to, from, to_size < from_size ? to_size : from_size);
    if (to_size > from_size) memset((char *)to + from_size, 0, to_size - from_size);
}

bool struct_copy_in(void *to, size_t to_size, const void *from, size_t from_size)
{
    memcpy(to, from, to_size < from_size ? to_size : from_size);
    for (size_t i = to_size; i < from_size; i++)
        if (((const char *)from)[i]) return false;
    return true;
}
