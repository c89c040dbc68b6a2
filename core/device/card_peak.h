/* Published peaks of cards, for model FLOPs utilization and predicted times. */
#ifndef MEOPT_DEVICE_CARD_PEAK_H
#define MEOPT_DEVICE_CARD_PEAK_H

/* Returns the dense bf16 FLOP/s (of cards without bf16: fp16) of a device, from the name that its driver
 * reports and its number of compute units; 0: unknown, as for a part of a card. */
double card_peak_flops(const char *name, int units);

/* All published peaks of such a device; 0: unknown. */
struct card_peaks {
    double flops, flops_f32; /* dense FLOP/s of bf16 (else fp16) and of fp32 GEMMs */
    double bytes_per_s;      /* of its memory */
};
struct card_peaks card_peaks(const char *name, int units);

#endif
