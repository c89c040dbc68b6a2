/* Tables of the members of config.json (transformers, timm) and open_clip_config.json. */
#ifndef MEOPT_MODEL_CONFIG_MEMBERS_H
#define MEOPT_MODEL_CONFIG_MEMBERS_H

#include "core/base/json_members.h"

/* Of every class of transformers: names, types of values, classes, tokens, how text is generated. */
extern const struct json_member config_every_class[];
/* Of the vision towers of transformers, vision_cfg of open_clip, and timm's whole file. */
extern const struct json_member config_vision[], config_open_clip[], config_timm[];

#endif
