/* The keys of adafactor. */
#include "core/config/value.h"
#include "kernels/optim_rules.h"

#include <stdio.h>
#include <stdlib.h>

static bool factored(const struct config *c) { return RULE_HAS(c->optim.name, WITH_FACTORS); }

void factored_settle(struct config *c)
{
    if (!factored(c)) return;
    if (!config_given(c, "optim.beta1")) c->optim.beta1 = 0;
    if (!config_given(c, "optim.eps")) c->optim.eps = optim_rules[c->optim.name].eps;
}

void factored_check(const struct config *c, combination_bad bad, void *context)
{
    static const char *const own[] = {"optim.eps2",          "optim.clip_threshold",
                                      "optim.decay_rate",    "optim.scale_parameter",
                                      "optim.relative_step", "optim.warmup_init",
                                      "optim.torch_form"},
                             *const others[] = {"optim.beta2", "optim.state_v"};
    bool is = factored(c);
    size_t count = is ? sizeof others / sizeof *others : sizeof own / sizeof *own;
    for (size_t i = 0; i < count; i++) {
        const char *key = is ? others[i] : own[i];
        char sentence[240], hint[80];
        if (!config_changed(c, key)) continue;
        rules_with(is ? WITH_V : WITH_FACTORS, hint, sizeof hint);
        snprintf(sentence, sizeof sentence, _("%s has no effect on %s"), key,
                 optim_rules[c->optim.name].name);
        bad(context, key, false, hint, sentence);
    }
    if (!is) return;
    if (!c->optim.torch_form && c->optim.eps > 1e-10)
        bad(context, "optim.eps", false, "1e-30 is usual, and the default",
            "adafactor adds optim.eps to squares of gradients");
    if (c->optim.warmup_init && !c->optim.relative_step)
        bad(context, "optim.warmup_init", true, "set optim.relative_step: true, or leave it out",
            "optim.warmup_init needs optim.relative_step");
    if (c->optim.scale_parameter && c->optim.eps2 == 0)
        bad(context, "optim.eps2", true, "0.001 is usual",
            "optim.eps2 is 0 with optim.scale_parameter: a weight of zeros would never move");
    if (c->train.ema > 0 && c->optim.beta1 == 0)
        bad(context, "train.ema", true, "set optim.beta1, for example 0.9, or leave train.ema out",
            "train.ema needs a first moment, which adafactor has with optim.beta1 alone");
}
