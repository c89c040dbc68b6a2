/* Learning rate of a step: linear warm-up, then constant,
 * linear or cosine (Loshchilov, Hutter, arXiv 1608.03983) to min_lr. */
#include "core/train/loop.h"

#include <math.h>

double schedule_lr(const struct config *c, int64_t step, int64_t total)
{
    double lr = c->optim.lr, low = c->optim.min_lr;
    int64_t warmup = config_warmup(c, total);
    if (step <= warmup) return lr * (double)step / (double)(warmup > 0 ? warmup : 1);
    double done = total > warmup ? (double)(step - warmup) / (double)(total - warmup) : 1;
    if (c->optim.schedule == OPTIM_SCHEDULE_CONSTANT) return lr;
    if (c->optim.schedule == OPTIM_SCHEDULE_LINEAR) return lr + (low - lr) * done;
    return low + (lr - low) * 0.5 * (1 + cos(3.14159265358979323846 * done));
}
