/* The functions of each kind of model (core/model/family.h). */
#include "core/nn/tower.h"

/* One image tower: patches and a cls token in, the normalised cls row (and patch rows) out. */
static const struct model image_model = {.embed = image_embed,
                                         .block = tower_block,
                                         .head = image_head,
                                         .embed_backward = image_embed_backward,
                                         .block_backward = tower_block_backward,
                                         .head_backward = image_head_backward};
/* A decoder language model: tokens and labels in, the loss out. */
static const struct model language_model = {.embed = language_embed,
                                            .block = tower_block,
                                            .head = language_head,
                                            .head_backward = language_head_backward,
                                            .block_backward = tower_block_backward,
                                            .embed_backward = language_embed_backward,
                                            .owns_loss = true};

/* An encoder of tokens, whose masked tokens are predicted. */
static const struct model encoder_model = {.embed = encoder_embed,
                                           .block = tower_block,
                                           .head = encoder_head,
                                           .head_backward = encoder_head_backward,
                                           .block_backward = tower_block_backward,
                                           .embed_backward = encoder_embed_backward,
                                           .owns_loss = true};

static const struct model encoder_classifier = {.embed = encoder_embed,
                                                .block = tower_block,
                                                .head = encoder_classify,
                                                .head_backward = encoder_classify_backward,
                                                .block_backward = tower_block_backward,
                                                .embed_backward = encoder_embed_backward};

const struct model *model_of(const struct model_shape *shape)
{
    switch (family_row(shape->family)->kind) {
    case MODEL_DECODER: return &language_model;
    case MODEL_ENCODER: return shape->classes > 0 ? &encoder_classifier : &encoder_model;
    default: return &image_model;
    }
}
