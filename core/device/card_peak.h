/* Published peaks of cards, for model FLOPs utilization. */
#ifndef MEOPT_DEVICE_CARD_PEAK_H
#define MEOPT_DEVICE_CARD_PEAK_H

/* Returns the dense bf16 FLOP/s (of cards without bf16: fp16) of a device, from the name that its driver
 * reports and its number of compute units; 0: unknown, as for a part of a card. */
double card_peak_flops(const char *name, int units);

#endif
