/* How long a step takes on many ranks, from what one rank needs and what they send each other: arithmetic, so
 * that a cluster can be judged before it is bought (man meopt-plan, SCALING).
 *
 * A step of one rank takes T seconds, of which the share `backward` is the student's backward pass. Its
 * gradients leave in `messages` groups of equal size, each behind its part of the backward pass. Of N ranks
 * each sends S(N) bytes a step, alike to all others, over a link of B bytes a second; of a node's G ranks
 * what goes to other nodes shares its network of W bytes a second. Every group takes 2 (N - 1) messages of L
 * seconds, half of them to add up, half to hand round.
 *
 *     sums(N) = max(S / B, S (N - G) / (N - 1) G / W) + messages 2 (N - 1) L
 *     b = T backward / messages          c = sums(N) / messages
 *     step(N) = T - T backward + b + (messages - 1) max(b, c) + c        where sums go on beside backward
 *     step(N) = T + sums(N)                                              where they come behind it
 *     efficiency = T / step(N)                                           each rank has as many images as
 * alone
 */
#ifndef MEOPT_TRAIN_SCALING_H
#define MEOPT_TRAIN_SCALING_H

#include <stdbool.h>

struct scaling {
    double step_s;    /* T, of one rank alone */
    double backward;  /* share of it, 0 to 1 */
    int messages;     /* at least 1 */
    bool beside;      /* sums beside backward */
    double bandwidth; /* B, of a rank's link, bytes/s */
    double network;   /* W, of a node's, bytes/s; 0: as much as its ranks send */
    int node_ranks;   /* G; 0: all ranks are in one node */
    double latency_s; /* L, of a message */
};

/* Seconds of all sums of a step, of `sent` bytes a rank; 0 for one rank. */
double scaling_sums_s(const struct scaling *s, int ranks, double sent);
double scaling_step_s(const struct scaling *s, int ranks, double sent);

#endif
