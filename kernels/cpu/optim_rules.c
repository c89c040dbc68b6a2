/* The table of rules: see kernels/optim_rules.h. */
#include "kernels/optim_rules.h"

#define ROW(c, number, ...) [RULE_##number] = {__VA_ARGS__},
const struct rule_info optim_rules[RULE_COUNT] = {OPTIM_RULES(ROW, )};
