/* An entry of a list: a name, and after its end where the bytes are. See list.h. */
#include "core/base/memory.h"
#include "core/data/list.h"

#include <string.h>

enum { PLACE_NUMBERS = 5 };

void image_list_add(struct image_list *list, char *name, struct image_place place)
{
    const int64_t numbers[PLACE_NUMBERS] = {place.bytes, place.offset, place.archive_length, place.label,
                                            place.planar};
    size_t n = strlen(name) + 1;
    name = xrealloc(name, n + sizeof numbers);
    for (size_t i = 0; i < sizeof numbers; i++) name[n + i] = (char)((uint64_t)numbers[i / 8] >> 8 * (i % 8));
    if ((list->count & (list->count - 1)) == 0)
        list->names =
            xrealloc(list->names, (size_t)(list->count ? 2 * list->count : 1) * sizeof *list->names);
    list->names[list->count++] = name;
}

struct image_place image_place(const char *name)
{
    uint64_t numbers[PLACE_NUMBERS] = {0};
    name += strlen(name) + 1;
    for (size_t i = 0; i < sizeof numbers; i++)
        numbers[i / 8] |= (uint64_t)(unsigned char)name[i] << 8 * (i % 8);
    return (struct image_place){.bytes = (int64_t)numbers[0],
                                .offset = (int64_t)numbers[1],
                                .archive_length = (int64_t)numbers[2],
                                .label = (int32_t)numbers[3],
                                .planar = (int32_t)numbers[4]};
}
