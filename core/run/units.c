/* Units of runs: see units.h. */
#include "core/run/units.h"
#include "core/base/translate.h"

const struct unit *unit_of(bool tokens)
{
    static const struct unit rows[] = {{"images", N_("images"), "images/s", "img/s"},
                                       {"tokens", N_("samples"), "tokens/s", "tok/s"}};
    return &rows[tokens];
}
