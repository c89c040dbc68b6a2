/* Units of runs: see units.h. */
#include "core/run/units.h"

const struct unit *unit_of(bool tokens)
{
    static const struct unit rows[] = {{"images", "images", "images/s", "img/s"},
                                       {"tokens", "samples", "tokens/s", "tok/s"}};
    return &rows[tokens];
}
