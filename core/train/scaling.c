/* Predicted steps of many ranks: see scaling.h. */
#include "core/train/scaling.h"

double scaling_sums_s(const struct scaling *s, int ranks, double sent)
{
    if (ranks < 2) return 0;
    double seconds = sent / s->bandwidth;
    if (s->network > 0 && s->node_ranks > 0 && ranks > s->node_ranks) {
        double out = sent * (ranks - s->node_ranks) / (ranks - 1) * s->node_ranks / s->network;
        if (out > seconds) seconds = out;
    }
    return seconds + s->messages * 2.0 * (ranks - 1) * s->latency_s;
}

double scaling_step_s(const struct scaling *s, int ranks, double sent)
{
    double sums = scaling_sums_s(s, ranks, sent);
    if (!s->overlap || s->messages < 1) return s->step_s + sums;
    double b = s->step_s * s->backward / s->messages, c = sums / s->messages;
    return s->step_s * (1 - s->backward) + b + (s->messages - 1) * (b > c ? b : c) + c;
}
