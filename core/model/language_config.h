/* Properties of a language model from the config.json of transformers: those that no tensor shows, and sizes
 * that must match the tensors. */
#ifndef MEOPT_MODEL_LANGUAGE_CONFIG_H
#define MEOPT_MODEL_LANGUAGE_CONFIG_H

#include "core/model/shape.h"

struct language_config {
    char type[48];           /* model_type, printable; "": no config.json of a language model */
    double dropout;          /* the largest of its probabilities, which meopt does not apply */
    struct model_shape says; /* family 0: none; a size 0: absent, and the class has no default that matters */
};

/* Reads the file in the checkpoint's directory. EXIT_CONFIG for a type, a member or a value that is not
 * supported, by its name, for values out of range, and for two members that contradict each other. A file of
 * an unknown model_type is no error: says.family is FAMILY_UNKNOWN. */
int language_config_read(struct language_config *config, const char *checkpoint, struct error *err);
/* Sets the properties of nanoGPT's model_args, which are in the file of the weights; without any, `config`
 * stays. EXIT_CONFIG for a value out of range. */
int language_config_arguments(struct language_config *config, const struct weights *weights,
                              struct error *err);
const char *language_rope_type(enum rope_scaling scaling); /* "default", "linear", "llama3", "yarn" */
/* Refuses (EXIT_CONFIG) a type that is not of the family. */
int language_config_check(const struct language_config *config, enum family family, struct error *err);

#endif
