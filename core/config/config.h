/* The configuration: the checked content of a YAML file, with all defaults filled in.
 *
 * One table (config_keys) defines every key: type, unit, range or choices, default, help. It drives
 * loading, `meopt config`, the page meopt.yaml(5), completion and the form. A new key is one row there and
 * one field here.
 *
 *     struct config c;
 *     if (config_load(&c, "configs/eva_clip.yaml", overrides, count, &err)) ...
 *     ... c.train.batch_size, c.loss.type == LOSS_TYPE_MSE ...
 *     config_free(&c);
 *
 * Rules: paths are relative to the YAML file, also those in overrides (key=value), and stored absolute; ""
 * if not set. A choice is stored as its number (choices.h). 0 in a field of a tower's model shape means:
 * from the preset (arch) or the checkpoint. "auto" choices are resolved as far as the file alone allows;
 * config_resolve does the rest after the checkpoint was read and the family is known.
 */
#ifndef MEOPT_CONFIG_H
#define MEOPT_CONFIG_H

#include "core/base/error.h"
#include "core/config/choices.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum config_type {
    CONFIG_TEXT,   /* char *, "" when not set */
    CONFIG_PATH,   /* char *, absolute, "" when not set */
    CONFIG_CHOICE, /* an enum of choices.h: the index in `choices` */
    CONFIG_BOOL,   /* bool */
    CONFIG_SWITCH, /* int: -1 auto, 0 false, 1 true */
    CONFIG_INT,    /* int64_t */
    CONFIG_REAL,   /* double */
    CONFIG_BYTES   /* int64_t; "64G", "512M": K, M, G, T are powers of 1024 */
};

struct config_key {
    const char *name; /* "optim.lr" */
    enum config_type type;
    const char *unit;           /* "images", "bytes"; NULL for none */
    const char *const *choices; /* CONFIG_CHOICE: loss_type_names */
    const char *aliases;        /* other spellings: "adamw=apadamw|sgd=apsgd"; NULL for none */
    double min, max;            /* CONFIG_INT, CONFIG_REAL, CONFIG_BYTES */
    const char *standard;       /* default, written as in YAML; "" for not set */
    const char *used_by;        /* commands: "train plan" */
    const char *help;           /* one line, no full stop */
    bool numbers;               /* the key changes the numbers of a run (else: locations, speed, logging) */
    size_t offset;              /* offset of the field in struct config */
};
extern const struct config_key config_keys[]; /* ends with name NULL */
extern const int config_key_count;
int config_key_index(const char *name);          /* -1 if there is none; also finds aliases of a key */
bool config_key_of_model(const char *name);      /* model.KEY, an alias of model_s.KEY */
const char *config_key_spelling(int key, int i); /* 0: its name, then its aliases; NULL after the last */
/* Returns the i-th choice of a CONFIG_CHOICE, CONFIG_BOOL or CONFIG_SWITCH key, NULL after the last. */
const char *config_choice(int key, int i);

/* Preprocessing of a tower's images. "", auto and 0: from its files or its family. */
struct config_images {
    char *mean, *std; /* three numbers: config_three */
    enum data_interpolation interpolation;
    enum data_resize resize;
    enum data_resize_as resize_as;
    double crop_pct;
};

/* One tower. Fields of the model shape are 0 if the preset or the checkpoint sets them. */
struct config_tower {
    char *weight;         /* checkpoint */
    enum tower_arch arch; /* custom, or a published model shape */
    int64_t width, depth, heads, head_dim, hidden, out, patch, pos_grid, registers;
    enum tower_ffn ffn;
    enum tower_activation activation; /* of an mlp */
    enum pool pool;
    enum norms norm;
    enum layerscale layerscale;
    double norm_eps; /* of all norms; 0: from the checkpoint or the family */
    enum pos_resize pos_resize;
    enum tower_dtype dtype; /* of values and frozen weights; auto is resolved */
    enum tower_init init;
    enum tower_place place; /* location of its weights */
    char *freeze;           /* model_s: none, embed, K, -K, all_but_head: config_frozen */
    /* model_s: of a language model; 0: from arch or checkpoint */
    int64_t vocabulary, context, kv_heads, window;
    int64_t slices; /* model_s: parts of each split matrix; 1: whole */
    double rope_theta;
    int tied;           /* -1: from arch or checkpoint */
    int64_t classes;    /* model_s: outputs of its classifier; 0: as many as the data has */
    enum family family; /* model_s: if it differs from model.family; else auto */
    double drop_path;   /* model_s: of the last block, 0 to below 1 */
    int64_t image_size; /* model_t: side of its images; 0: data.image_size, of a further teacher its own */
    struct config_images images; /* model_t: "", auto, 0: as data says, or its files */
};

/* One part of a distillation's loss: what of a teacher the student is compared with. */
struct config_loss {
    int64_t teacher; /* its number from 1; 0: each */
    enum loss_tokens tokens;
    int64_t block_t, block_s; /* tokens after this many blocks; 0: after all */
    enum loss_type type;
    int normalize; /* -1 until the family is known, then 0 or 1 */
    enum loss_reduction reduction;
    double weight;
    enum loss_standardize standardize; /* of the teacher's rows */
    enum loss_head head;               /* auto: linear if widths differ */
    int64_t head_hidden;               /* of mlp; 0: the student's width */
};

/* YAML lists: item N of model_t is the section model_tN, and the same of loss; the first has no number. */
enum { MOST_TEACHERS = 4, MOST_LOSSES = 8 };
/* The number of the student among the towers; teachers are numbered from 0. */
enum { TOWER_STUDENT = MOST_TEACHERS };

struct config {
    char *path;      /* of the YAML file, absolute */
    char *directory; /* directory of the YAML file */
    char *stem;      /* file name without .yaml */

    struct {
        enum family family; /* the teacher's; auto until config_resolve */
    } model;
    struct config_tower model_t[MOST_TEACHERS], model_s;
    struct config_loss loss[MOST_LOSSES];
    int64_t loss_chunk; /* bytes of a language model's logits at once */

    struct {
        int64_t rank;  /* 0: no adapters */
        double alpha;  /* 0: rank */
        char *targets; /* core/model/lora.h */
        char *adapter; /* values to begin with: a directory of PEFT, or a file */
    } lora;

    struct {
        char *root, *include, *exclude;
        char *val;          /* images for validation: a directory, or a list; "": none */
        char *labels;       /* list of images and classes; "": directories or archives name the classes */
        int64_t image_size; /* 0: from the checkpoint (DINOv2: 224) */
        enum data_pipeline pipeline; /* auto until the family is known */
        struct config_images images;
        bool augment;
        /* of the area; min 0: from the pipeline (clip .9, dinov2 .32) */
        double crop_scale_min, crop_scale_max;
        int64_t crops, local_crops; /* of each image; those of them in the range of local_scale */
        double local_scale_min, local_scale_max;
        int flip;             /* -1 until the family is known: true for the dinov2 pipeline when augmenting */
        int64_t randaugment;  /* magnitude, 0 to 30; 0: none */
        double erasing;       /* probability */
        double mixup, cutmix; /* alpha; 0: none */
        int64_t workers;      /* 0: one per processor */
        int64_t prefetch;     /* batches ready ahead */
        double max_bad;       /* share of undecodable images that is fatal */
        bool shuffle;
        enum data_tokens tokens; /* format of the token files */
        int64_t mask_token, special_tokens;
        enum data_documents documents;
        enum data_too_long too_long;
        enum data_class_order class_order;
        int64_t end; /* token that ends a document; -1: none */
    } data;

    struct {                         /* the student's preprocessing where it differs from the teacher's */
        int64_t image_size;          /* 0: the same */
        struct config_images images; /* "", auto, 0: the same */
    } data_s;

    struct {
        enum train_objective objective;
        double label_smoothing; /* classify: 0 to below 1 */
        double ema;             /* decay of the average of the weights; 0: none */
        int64_t epochs;
        int64_t steps;        /* number of optimizer steps; 0: all epochs */
        int64_t batch_size;   /* images per rank and optimizer step */
        int64_t micro_batch;  /* images per forward; 0: batch_size */
        int64_t global_batch; /* images per optimizer step of all ranks; 0: batch_size of each */
        int64_t seed;
        enum train_precision precision; /* replaces auto in the dtype of a tower */
        enum train_recompute recompute;
        enum train_rounds rounds;
        int64_t wave; /* micro-batches of a wave in breadth-first rounds; 0: all of a rank */
        enum train_save_activations save_activations;
        bool cache_teacher;
        enum train_cache_place cache_place;
        enum train_cache_type cache_type;
        int64_t target_images;     /* of loss.standardize */
        int64_t checkpoint_steps;  /* 0: by time only */
        double checkpoint_minutes; /* 0: by steps only */
        int64_t checkpoint_keep;
        int64_t log_every;
        int64_t eval_every; /* epochs; 0: no evaluation */
        int64_t eval_steps; /* 0: eval_every */
        enum train_eval eval;
        int64_t knn_bank; /* images */
        double probe_l2;  /* regularisation of the linear probe; 0: chosen by cross-validation */
        int64_t probe_classes;
        char *memory;      /* bytes, or auto: memory limit of the run; "": the keys are used as given */
        char *scratch_dir; /* of streamed weights; "": the configuration's directory */
    } train;

    struct {
        bool use_meopt;
        bool pure_bf16;
        enum optim_preset preset;
        enum meopt_rule name;
        double lr, head_lr_scale, layer_decay, min_lr;
        enum optim_schedule schedule;
        int64_t warmup_steps; /* -1: by the ratio */
        double warmup_ratio;  /* 0: a tenth, at most 500 steps */
        double beta1, beta2, eps, weight_decay;
        double momentum, dampening; /* apsgd; muon: momentum */
        bool nesterov;              /* apsgd, muon */
        int64_t ns_steps;           /* muon, up to adjust_lr */
        enum meopt_ns_schedule ns_schedule;
        enum meopt_ns_form ns_form;
        enum optim_ns_precision ns_precision;
        enum meopt_adjust_lr adjust_lr;
        enum optim_other_rule other_rule;               /* muon: of matrices that are not hidden */
        bool trust_clip, always_adapt, decoupled_decay; /* lamb */
        double r, weight_lr_power;                      /* schedule_free */
        double max_grad_norm;                    /* lamb: divide gradients by max(1, norm / this); 0: off */
        double eps2, clip_threshold, decay_rate; /* adafactor */
        bool scale_parameter, relative_step, warmup_init, torch_form; /* adafactor */
        double clip_grad_norm;                                        /* 0: no clipping */
        enum optim_clip_mode clip_mode;                               /* auto is resolved */
        enum optim_weights weights;                                   /* auto: from the preset */
        enum optim_state state_m, state_v;                            /* auto: from the preset */
        enum optim_gradients gradients;                               /* auto is resolved */
        enum optim_offload offload;
        double offload_fraction; /* 0 to 1 */
        char *offload_dir;       /* "": the run directory */
    } optim;

    struct {
        enum device_type type;
        char *cards;          /* "all" or card numbers "0,2,3" */
        int64_t memory_limit; /* bytes; 0: all memory of the card */
    } device;

    struct {
        enum dist_backend backend;
        enum dist_shard shard;
        int64_t pipeline; /* stages; 1: none */
        int64_t tensor;   /* ranks that divide the slices of a layer; 1: none */
        enum dist_reduce reduce;
    } dist;

    struct {
        char *dir;  /* directory of runs; "" for runs/ in the working directory */
        char *name; /* "" for CONFIG-UTCTIME */
    } run;

    /* source of the preprocessing of teacher and student, for messages; "" until resolved */
    char images_from[MOST_TEACHERS + 1][80]; /* the student's last */

    struct model_files *model_files; /* already read (model_files.h), not owned; NULL: none */

    struct config_origin {
        enum { ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_OVERRIDE, ORIGIN_RESOLVED } from;
        bool of_model;    /* written as model.KEY, for model_s.KEY */
        int line, column; /* ORIGIN_FILE */
    } * origins;          /* one per row of config_keys */
};

/* Reads, checks and completes `path`, then applies overrides "key=value" in order. Warnings (values that
 * other YAML readers parse differently) go to the log. EXIT_CONFIG with file, line and column if the file
 * is invalid. */
int config_load(struct config *config, const char *path, char **overrides, int override_count,
                struct error *err);
/* The same for the config.yaml of a run; symbolic links are not followed there. */
int config_load_below(struct config *config, const char *directory, char **overrides, int override_count,
                      struct error *err);
/* The same from memory; `path` is the base of relative paths and the name in messages. */
int config_load_text(struct config *config, const char *path, const char *text, size_t bytes,
                     char **overrides, int override_count, struct error *err);
void config_free(struct config *config);
/* Makes a copy with its own memory. */
void config_copy(struct config *to, const struct config *from);

/* Sets the values that depend on the family, after the checkpoint was read, and checks the combination
 * again. config_load calls it if the file determines the family. */
int config_resolve(struct config *config, enum family family, struct error *err);

/* Sets a field to a value as if it were written in the file: for values that the trainer resolves (widths,
 * formats). */
int config_assign(struct config *config, const char *key, const char *value, struct error *err);

/* Return the teachers and the parts of the loss that the file or options give; at least 1. */
int config_teachers(const struct config *config);
int config_losses(const struct config *config);
/* Return the section of a tower's keys (model_t2), and its name in files and options (teacher2): of a teacher
 * from 0, or of TOWER_STUDENT. */
const char *config_tower_section(int tower);
const char *config_tower_name(int tower);
/* Returns the section of a part of the loss, from 0. */
const char *config_loss_section(int part);
/* Returns whether the key is of a numbered section: item 2 or later of a list. */
bool config_key_repeats(int key);
/* Returns whether it is of one that the configuration has. */
bool config_key_used(const struct config *config, int key);

/* Returns whether adapters alone are trained: the run's checkpoints have no other weights. */
bool config_trains_adapters(const struct config *config);
/* Returns whether train.eval includes the nearest neighbours, or the linear probe. */
static inline bool config_eval_has(const struct config *config, enum train_eval part)
{
    _Static_assert(TRAIN_EVAL_KNN == 1 && TRAIN_EVAL_PROBE == 2 && TRAIN_EVAL_KNN_PROBE == 3,
                   "train.eval: bits");
    return (config->train.eval & part) != 0;
}
/* Returns whether the samples are tokens: by the objective, or by the family of a classifier. */
bool config_reads_tokens(const struct config *config);
/* Returns the bytes of a text such as "8GiB", "500MB" or "4096"; INT64_MIN: it is no such text, or 0. */
int64_t config_bytes(const char *text);
/* Returns train.memory: 0 not set, -1 auto, else bytes. */
int64_t config_memory(const struct config *config);
/* Returns whether optim.clip_grad_norm or LAMB's optim.max_grad_norm limits the gradient norm. */
bool config_clips(const struct config *config);
/* Returns the steps of warm-up of a run of `total` steps. */
int64_t config_warmup(const struct config *config, int64_t total);
/* Returns the stages of a pipeline (dist.pipeline); 1: there is none. */
static inline int config_stages(const struct config *config)
{
    return config->dist.pipeline > 1 ? (int)config->dist.pipeline : 1;
}
/* Returns the ranks of a tensor group (dist.tensor), and of a replica. */
static inline int config_tensor(const struct config *config)
{
    return config->dist.tensor > 1 ? (int)config->dist.tensor : 1;
}
static inline int config_replica_ranks(const struct config *config)
{
    return config_stages(config) * config_tensor(config);
}
/* Returns the copies of the student that `ranks` ranks train. */
static inline int config_replicas(const struct config *config, int ranks)
{
    int each = config_replica_ranks(config);
    return ranks > each ? ranks / each : 1;
}
/* Returns whether steps are made of micro-batches that ranks share. */
static inline bool config_shares_steps(const struct config *config, int ranks)
{
    return ranks > 1 || config->train.global_batch > 0;
}
/* How a step of `ranks` ranks is divided: samples of all of them, of a micro-batch, and micro-batches. */
struct step_division {
    int64_t samples, micro, count;
};
struct step_division config_divide_step(const struct config *config, int ranks);
/* Reads model_s.freeze of a tower of `depth` blocks: the number of groups (embedding, blocks) that are
 * frozen, and whether all but the head are. false: it is not such a text, or there are fewer blocks. */
bool config_frozen(const struct config *config, int64_t depth, int *groups, bool *end);

/* Returns the usual pipeline of that family's towers. */
enum data_pipeline config_usual_pipeline(enum family family);
/* Whether the key was written in the file or on the command line. */
bool config_given(const struct config *config, const char *key);
/* Returns a key as a user of this configuration writes it: without a teacher, model.KEY for model_s.KEY. */
const char *config_key_here(const struct config *config, const char *key);
/* Parses three finite numbers separated by commas or spaces; false: invalid text. */
bool config_three(const char *text, double values[3]);

/* Returns the number of cards in device.cards, and the first one in *first (may be NULL); 0 for all. */
int config_cards(const struct config *config, int *first);

/* Returns the value of a key as YAML ("2.0e-5", "true", a path), malloc'ed. */
char *config_value_text(const struct config *config, int key);

/* Returns all values as valid YAML, with absolute paths and every key that is set: loading it gives the
 * same configuration. */
char *config_resolved_text(const struct config *config);
int config_write_resolved(const struct config *config, const char *path, struct error *err);

/* Returns a hash of all values that change the numbers of a run. Ranks and a resume must agree on it.
 * Checkpoints are hashed by path and the dataset by root, not by content. */
uint64_t config_hash(const struct config *config);

#endif
