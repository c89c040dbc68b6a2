/* Opens a catalogue: see translate.h. Apart, because what reads files translates its errors. */
#include "core/base/file.h"
#include "core/base/translate.h"

enum { MO_MOST = 64 << 20 };

bool translate_open(const char *path)
{
    char *data = NULL;
    size_t bytes = 0;
    if (file_read(path, MO_MOST, &data, &bytes, NULL)) data = NULL;
    return translate_use(data, bytes);
}
