/* What an experiment trains on: see experiment.h. */
#include "core/train/experiment.h"
#include "core/base/log.h"
#include "core/train/trainer.h"

#include <stdio.h>

struct data_options train_data_options(const struct config *c)
{
    return (struct data_options){.root = c->data.root,
                                 .include = c->data.include,
                                 .exclude = c->data.exclude,
                                 .image_size = c->data.image_size,
                                 .pipeline = c->data.pipeline == DATA_PIPELINE_DINOV2 ? PIPELINE_DINOV2
                                                                                      : PIPELINE_CLIP,
                                 .augment = c->data.augment,
                                 .flip = c->data.flip == 1,
                                 .crop_scale_min = c->data.crop_scale_min,
                                 .crop_scale_max = c->data.crop_scale_max,
                                 .shuffle = c->data.shuffle,
                                 .seed = (uint64_t)c->train.seed,
                                 .batch = c->train.batch_size,
                                 .rank = 0,
                                 .ranks = 1,
                                 .workers = c->data.workers,
                                 .prefetch = c->data.prefetch,
                                 .max_bad = c->data.max_bad};
}

int train_device_open(struct device **device, const struct config *c, bool limited, struct error *err)
{
    char spec[64];
    int first, named = config_cards(c, &first); /* 0: all */
    bool card = c->device.type != DEVICE_TYPE_CPU;
    if (card && named) snprintf(spec, sizeof spec, "%s:%d", device_type_names[c->device.type], first);
    else snprintf(spec, sizeof spec, "%s", device_type_names[c->device.type]);
    *device = NULL;
    if (card && named > 1)
        return error_set(err, EXIT_CONFIG, "one number, as in --cards 0, or all for the first that works",
                         "device.cards %s: one process trains on one card", c->device.cards);
    int code = device_open(device, spec, limited ? (size_t)c->device.memory_limit : 0, err);
    if (!code && !named && device_count(*device) > 1)
        log_info("%d cards: one process trains on one card, here the first (device.cards chooses another)",
                 device_count(*device));
    return code;
}

int train_rehearse(struct config *c, struct error *err)
{
    struct device *dry = NULL;
    struct trainer *t = NULL;
    struct data *data = NULL;
    int code = device_open(&dry, "dry", 0, err);
    if (!code) code = trainer_create(&t, c, dry, false, NULL, NULL, err);
    trainer_close(t);
    device_close(dry);
    if (!code) {
        struct data_options options = train_data_options(c);
        code = data_open(&data, &options, err);
    }
    data_close(data);
    return code;
}
