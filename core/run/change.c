/* Configuration changes during a run: see change.h. */
#include "core/run/change.h"
#include "core/base/json.h"
#include "core/config/edit.h"
#include "core/config/value.h"
#include "core/run/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { META_BYTES = 1 << 24 };

const char *const change_keys[CHANGE_KEYS] = {"optim.lr",
                                              "optim.min_lr",
                                              "train.checkpoint_steps",
                                              "train.checkpoint_minutes",
                                              "train.checkpoint_keep",
                                              "train.log_every"};

int change_request(const char *directory, const char *key, const char *value, struct error *err)
{
    char *typed = value_typed(config_key_index(key), value);
    const struct edit edit = {key, typed};
    int code = edit_below(directory, "config.yaml", &edit, 1, 0, NULL, NULL, err);
    free(typed);
    return code ? code : run_request(directory, "change", err);
}

int change_read(struct change_values *values, const char *directory, struct error *err)
{
    struct config config;
    int code = config_load_below(&config, directory, NULL, 0, err);
    if (code) return code;
    for (int i = 0; i < CHANGE_KEYS; i++) {
        char *text = config_value_text(&config, config_key_index(change_keys[i]));
        snprintf(values->text[i], sizeof values->text[i], "%s", text);
        free(text);
    }
    config_free(&config);
    return 0;
}

json_t *change_apply(struct config *config, const struct change_values *values)
{
    json_t *changed = NULL;
    for (int i = 0; i < CHANGE_KEYS; i++) {
        char *was = config_value_text(config, config_key_index(change_keys[i]));
        if (strcmp(was, values->text[i]) != 0 &&
            config_assign(config, change_keys[i], values->text[i], NULL) == 0) {
            if (!changed) changed = json_object();
            json_object_set_new(changed, change_keys[i], json_pack("[s, s]", was, values->text[i]));
        }
        free(was);
    }
    return changed;
}

int change_record(const char *directory, const json_t *changed, struct error *err)
{
    const char *key;
    json_t *values;
    static const char name[] = "meta.json";
    json_t *meta = json_read_below(directory, name, META_BYTES, err),
           *config = json_object_get(meta, "config");
    json_object_foreach((json_t *)(uintptr_t)changed, key, values)
        json_object_set(config, key, json_array_get(values, 1));
    int code = meta ? json_write_below(directory, name, meta, JSON_INDENT(1) | JSON_PRESERVE_ORDER, err)
                    : EXIT_FAILED;
    json_decref(meta);
    return code;
}
