/* Units of runs: see units.h. */
#include "core/run/units.h"
#include "core/base/translate.h"

const struct unit *unit_of(bool tokens)
{
    static const struct unit rows[] = {{N_("images"), N_("images"), N_("images/s"), N_("img/s")},
                                       {N_("tokens"), N_("samples"), N_("tokens/s"), N_("tok/s")}};
    return &rows[tokens];
}
