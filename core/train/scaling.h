/* Predicts the time of a step on many ranks from the time on one rank and the bytes that ranks send, so
 * that a cluster can be evaluated before it is bought (man meopt-plan, SCALING).
 *
 * A step of one rank takes T seconds; the share `backward` of it is the student's backward pass. Its
 * gradients are sent in `messages` groups of equal size, each after its part of the backward pass. Each of
 * N ranks sends S(N) bytes per step, evenly to all others, over a link of B bytes per second. The G ranks
 * of a node share its network of W bytes per second to other nodes. Every group takes 2 (N - 1) messages of
 * L seconds, half of them to reduce, half to gather.
 *
 *     sums(N)    = max(S / B, S (N - G) / (N - 1) G / W) + messages 2 (N - 1) L
 *     b          = T backward / messages
 *     c          = sums(N) / messages
 *     step(N)    = T - T backward + b + (messages - 1) max(b, c) + c     if sums overlap with backward
 *     step(N)    = T + sums(N)                                           if they follow it
 *     efficiency = T / step(N)                                           with the images per rank unchanged
 */
#ifndef MEOPT_TRAIN_SCALING_H
#define MEOPT_TRAIN_SCALING_H

#include <stdbool.h>

struct scaling {
    double step_s;    /* T, of one rank alone */
    double backward;  /* share of step_s, 0 to 1 */
    int messages;     /* at least 1 */
    bool overlap;     /* sums overlap with backward */
    double bandwidth; /* B, of a rank's link, bytes/s */
    double network;   /* W, of a node's, bytes/s; 0: as much as its ranks send */
    int node_ranks;   /* G; 0: all ranks are in one node */
    double latency_s; /* L, of a message */
};

/* Return the seconds of all sums of a step and of a whole step, with `sent` bytes per rank. */
double scaling_sums_s(const struct scaling *s, int ranks, double sent);
double scaling_step_s(const struct scaling *s, int ranks, double sent);

#endif
