/* Table of all YAML keys. */
#include "core/config/config.h"

#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
CHOICE_LISTS(CHOICE_NAMES)
MEOPT_CHOICE_LISTS(CHOICE_NAMES)
#define CHOICE_SIZE(tag, LIST) \
    _Static_assert(sizeof(enum tag) == sizeof(unsigned), "stored through an unsigned");
CHOICE_LISTS(CHOICE_SIZE) MODEL_CHOICE_LISTS(CHOICE_SIZE) MEOPT_CHOICE_LISTS(CHOICE_SIZE)

#define WEIGHT_ALIASES "bf16_c4=bf16+4|bf16_c8=bf16+8|bf16_c16=bf16+16"

/* Short rows: type, unit, choices, aliases, min, max, default, commands, help, changes the numbers, field.
 * ENUM_AT: a row does not compile if its list is not that of its field. */
#define AT(field) offsetof(struct config, field)
#define FIELD_IS(tag, field) __builtin_types_compatible_p(enum tag, __typeof__(((struct config *)0)->field))
#define ENUM_AT(tag, field) AT(field) + 0 * sizeof(char[FIELD_IS(tag, field) ? 1 : -1])
#define CHOICE(name, tag, standard, used, help, field) \
    {name, CONFIG_CHOICE, NULL, tag##_names, NULL, 0, 0, standard, used, help, true, ENUM_AT(tag, field)}
#define CHOICE_ALIAS(name, tag, aliases, standard, used, help, field) \
    {name, CONFIG_CHOICE, NULL, tag##_names, aliases, 0, 0, standard, used, help, true, ENUM_AT(tag, field)}
#define INT(name, unit, min, max, standard, used, help, field) \
    {name, CONFIG_INT, unit, NULL, NULL, min, max, standard, used, help, true, AT(field)}
#define REAL(name, unit, min, max, standard, used, help, field) \
    {name, CONFIG_REAL, unit, NULL, NULL, min, max, standard, used, help, true, AT(field)}
#define BOOL(name, standard, used, help, field) \
    {name, CONFIG_BOOL, NULL, NULL, NULL, 0, 0, standard, used, help, true, AT(field)}
#define SWITCH(name, standard, used, help, field) \
    {name, CONFIG_SWITCH, NULL, NULL, NULL, 0, 0, standard, used, help, true, AT(field)}
#define PATH(name, used, help, field) \
    {name, CONFIG_PATH, NULL, NULL, NULL, 0, 0, "", used, help, true, AT(field)}
#define TEXT(name, used, help, field) \
    {name, CONFIG_TEXT, NULL, NULL, NULL, 0, 0, "", used, help, true, AT(field)}
// clang-format on

#define MODEL_SHAPE "train plan embed bench"

#define TOWER(section, who, field)                                                                           \
    PATH(section ".weight", "train embed",                                                                   \
         "checkpoint of the " who ", a file or a directory: see meopt-weights(7)", field.weight),            \
        CHOICE(section ".arch", tower_arch, "custom", MODEL_SHAPE,                                           \
               "published model shape of the " who "; custom: from the checkpoint and the keys below",       \
               field.arch),                                                                                  \
        INT(section ".width", "channels", 0, 65536, "0", MODEL_SHAPE,                                        \
            "width of the " who "; 0: from arch or checkpoint", field.width),                                \
        INT(section ".depth", "blocks", 0, 1024, "0", MODEL_SHAPE,                                           \
            "transformer blocks; 0: from arch or checkpoint", field.depth),                                  \
        INT(section ".heads", "heads", 0, 1024, "0", MODEL_SHAPE,                                            \
            "attention heads, not stored in a checkpoint; 0: width / head_dim", field.heads),                \
        INT(section ".head_dim", "channels", 0, 1024, "0", MODEL_SHAPE,                                      \
            "width of one head; 0: as published at that width (80 at 1280, 88 at 1408, 104 at 1664, 112 at " \
            "1792, else 64)",                                                                                \
            field.head_dim),                                                                                 \
        INT(section ".hidden", "channels", 0, 262144, "0", MODEL_SHAPE,                                      \
            "hidden width of the feed-forward; 0: from arch or checkpoint", field.hidden),                   \
        INT(section ".out", "channels", 0, 65536, "0", MODEL_SHAPE,                                          \
            "width of the embedding; 0: from arch or checkpoint", field.out),                                \
        CHOICE(section ".ffn", tower_ffn, "auto", MODEL_SHAPE,                                               \
               "feed-forward; auto: from arch or checkpoint", field.ffn),                                    \
        CHOICE(section ".activation", tower_activation, "auto", MODEL_SHAPE,                                 \
               "activation of an mlp; auto: from config.json or open_clip_config.json next to the "          \
               "checkpoint, else quick_gelu for a TorchScript archive of CLIP, else gelu",                   \
               field.activation),                                                                            \
        CHOICE(section ".pool", pool, "auto", MODEL_SHAPE,                                                   \
               "embedding: the class token, the mean of the normalised patches, the norm of the mean of "    \
               "the patches or of all tokens (avg_all), the mean of the patches without the last norm "      \
               "(avg_raw), the mean of the normalised class and distillation tokens, or cls and avg "        \
               "concatenated (cls+avg, as linear heads of DINOv2 read); auto: from arch, the names or that " \
               "file, else cls, and avg without a class token",                                              \
               field.pool),                                                                                  \
        CHOICE(section ".norm", norms, "auto", MODEL_SHAPE,                                                  \
               "norms before the branches of a block, after them, or of the sum (bert); auto: from arch or " \
               "that file, else "                                                                            \
               "post for an eva tower 1792 wide (EVA02-CLIP-E), else pre",                                   \
               field.norm),                                                                                  \
        CHOICE(section ".layerscale", layerscale, "auto", MODEL_SHAPE,                                       \
               "LayerScale of the branches of a block, of images; auto: from arch or checkpoint, else with " \
               "it for dinov2 and dinov3",                                                                   \
               field.layerscale),                                                                            \
        REAL(section ".norm_eps", NULL, 0, 0.1, "0", MODEL_SHAPE,                                            \
             "epsilon of the norms, 1e-12 for a ViT of transformers; 0: from the files next to the "         \
             "checkpoint, else the family's",                                                                \
             field.norm_eps),                                                                                \
        INT(section ".patch", "pixels", 0, 1024, "0", MODEL_SHAPE,                                           \
            "side of a patch; 0: from arch or checkpoint", field.patch),                                     \
        INT(section ".pos_grid", "patches", 0, 1024, "0", MODEL_SHAPE,                                       \
            "side of the stored position embedding; 0: from arch or checkpoint", field.pos_grid),            \
        INT(section ".registers", "tokens", 0, 256, "0", MODEL_SHAPE,                                        \
            "register tokens between class token and patches (dinov2, dinov3); 0: from arch or checkpoint, " \
            "else none",                                                                                     \
            field.registers),                                                                                \
        CHOICE(section ".pos_resize", pos_resize, "auto", MODEL_SHAPE,                                       \
               "library whose interpolation resizes the positions if image / patch is not pos_grid; auto: "  \
               "the library that wrote the checkpoint",                                                      \
               field.pos_resize),                                                                            \
        CHOICE(section ".dtype", tower_dtype, "auto", MODEL_SHAPE,                                           \
               "compute type of the " who "; auto: train.precision", field.dtype)

#define IMAGES(section, field)                                                                               \
    TEXT(section ".mean", "train embed",                                                                     \
         "mean of red, green and blue, values from 0 to 1, for example 0.5, 0.5, 0.5", field.mean),          \
        TEXT(section ".std", "train embed", "standard deviation of red, green and blue", field.std),         \
        CHOICE(section ".interpolation", data_interpolation, "auto", "train embed", "filter of the resize",  \
               field.interpolation),                                                                         \
        CHOICE(                                                                                              \
            section ".resize", data_resize, "auto", "train embed",                                           \
            "shortest: the shorter side becomes image_size / crop_pct; squash: both sides do; exact: the "   \
            "image keeps its size",                                                                          \
            field.resize),                                                                                   \
        REAL(section ".crop_pct", "share", 0, 1, "0", "train embed",                                         \
             "share of the resized side that the centre crop keeps, at least 0.1; 0: from the pipeline",     \
             field.crop_pct),                                                                                \
        CHOICE(section ".resize_as", data_resize_as, "auto", "train embed",                                  \
               "library whose rounding the resize and the crop follow: see IMAGES", field.resize_as)

#define TEACHER(section, field)                                                                              \
    TOWER(section, "teacher", field),                                                                        \
        CHOICE_ALIAS(section ".family", family, family_aliases + 1, "auto", MODEL_SHAPE,                     \
                     "model family of the teacher; auto: of the first one model.family, of others from "     \
                     "arch or checkpoint",                                                                   \
                     field.family),                                                                          \
        CHOICE(section ".init", tower_init, "checkpoint", "train",                                           \
               "values of the teacher; random: for measurements", field.init),                               \
        INT(section ".image_size", "pixels", 0, 4096, "0", MODEL_SHAPE,                                      \
            "side of the teacher's input; 0: data.image_size; of a further teacher, if that is not given, "  \
            "its own",                                                                                       \
            field.image_size),                                                                               \
        IMAGES(section, field.images)

#define LOSS(section, field)                                                                                 \
    INT(section ".teacher", NULL, 0, MOST_TEACHERS, "0", "train plan",                                       \
        "number of the teacher that the student is compared with; 0: each", field.teacher),                  \
        CHOICE(section ".tokens", loss_tokens, "cls", "train plan",                                          \
               "what is compared: the embedding (of most towers the class token), the patch tokens, both "   \
               "(cls+patch), or the mean of the patch tokens (avg)",                                         \
               field.tokens),                                                                                \
        INT(section ".block_t", "blocks", 0, 1024, "0", "train plan",                                        \
            "tokens after this many blocks of the teacher, normalised without weights; 0: after all",        \
            field.block_t),                                                                                  \
        INT(section ".block_s", "blocks", 0, 1024, "0", "train plan", "the same of the student",             \
            field.block_s),                                                                                  \
        CHOICE(section ".type", loss_type, "mse", "train plan",                                              \
               "distance between the outputs of student and teacher", field.type),                           \
        SWITCH(section ".normalize", "auto", "train plan",                                                   \
               "L2-normalise both outputs first; auto: true for eva", field.normalize),                      \
        CHOICE(section ".reduction", loss_reduction, "mean", "train plan",                                   \
               "mean over the width, or sum over it", field.reduction),                                      \
        REAL(section ".weight", NULL, 0, 1e6, "1", "train plan", "factor of this part of the loss",          \
             field.weight),                                                                                  \
        CHOICE(section ".standardize", loss_standardize, "none", "train plan",                               \
               "the teacher's outputs, with mean and covariance of train.target_images images: each "        \
               "channel to mean 0 and variance 1 (channel), or the same by a rotation that keeps all "       \
               "angles (phi-s)",                                                                             \
               field.standardize),                                                                           \
        CHOICE(section ".head", loss_head, "auto", "train plan",                                             \
               "from the student's width to the teacher's: a linear layer, or two with norm and GELU "       \
               "between them (mlp); auto: linear if the widths differ; previous: that of the part before, "  \
               "whose tokens are compared a second time",                                                    \
               field.head),                                                                                  \
        INT(section ".head_hidden", "channels", 0, 65536, "0", "train plan",                                 \
            "mlp: width of its hidden layer; 0: the student's width", field.head_hidden)

#define FAMILY_ALIAS(c, number, name, aliases, ...) aliases
    static const char family_aliases[] = ALL_FAMILIES(FAMILY_ALIAS, );
#define RULE_ALIAS(c, number, name, alias, ...) "|" alias "=" name
static const char rule_aliases[] = OPTIM_RULES(RULE_ALIAS, );

const struct config_key config_keys[] = {
    CHOICE_ALIAS("model.family", family, family_aliases + 1, "auto", MODEL_SHAPE,
                 "model family of both towers (student: see model_s.family); auto: from arch or checkpoint",
                 model.family),
    TEACHER("model_t", model_t[0]),
    {"model_t.place", CONFIG_CHOICE, NULL, tower_place_names, NULL, 0, 0, "resident", "train plan bench",
     "location of the weights of all teachers: in the device's memory; or in a scratch file on a CPU, for a "
     "card in host memory, from which each block is read while the previous one computes",
     false, ENUM_AT(tower_place, model_t[0].place)},
    TEACHER("model_t2", model_t[1]),
    TEACHER("model_t3", model_t[2]),
    TEACHER("model_t4", model_t[3]),
    TOWER("model_s", "student", model_s),
    CHOICE_ALIAS("model_s.family", family, family_aliases + 1, "auto", MODEL_SHAPE,
                 "model family of the student if it differs from the teacher's; auto: from its arch, its "
                 "checkpoint if model.family is auto, else model.family",
                 model_s.family),
    CHOICE("model_s.init", tower_init, "checkpoint", "train", "initial values of the student", model_s.init),
    REAL("model_s.drop_path", "probability", 0, 0.999, "0", "train",
         "stochastic depth: chance that a branch of the last block is skipped for an image, decreasing to 0 "
         "in the first block; branches that are kept are scaled by 1 / (1 - p)",
         model_s.drop_path),
    {"model_s.place", CONFIG_CHOICE, NULL, tower_place_names, NULL, 0, 0, "resident", "train plan bench",
     "location of the student's weights; streamed requires one rank and gradients: release", false,
     ENUM_AT(tower_place, model_s.place)},

    {"model_s.freeze", CONFIG_TEXT, NULL, NULL, NULL, 0, 0, "none", "train plan bench",
     "parts that are not trained: none; embed; a number K: embed and the first K blocks; -K: all but the "
     "last K blocks and what follows them; all_but_head (linear probe); frozen blocks need no gradients, "
     "states and activations",
     true, AT(model_s.freeze)},
    {"model_s.slices", CONFIG_INT, "slices", NULL, NULL, 1, 64, "1", "train plan bench",
     "parts of each matrix that dist.tensor divides, a power of 2: heads of attention, rows and columns of "
     "the feed-forward network, the vocabulary; results depend on it, and not on the ranks that have them",
     true, AT(model_s.slices)},
    INT("model_s.classes", "classes", 0, 10000000, "0", MODEL_SHAPE,
        "classify: outputs of the classifier, a new one unless the checkpoint has one of this size; 0: the "
        "number of classes in data.root",
        model_s.classes),

    INT("model_s.vocabulary", "tokens", 0, 16777216, "0", MODEL_SHAPE,
        "of tokens: number of different ones; 0: from arch or checkpoint", model_s.vocabulary),
    INT("model_s.context", "tokens", 0, 16777216, "0", MODEL_SHAPE,
        "of tokens: those of a sample; 0: the model's longest, at most 2048", model_s.context),
    INT("model_s.kv_heads", "heads", 0, 1024, "0", MODEL_SHAPE,
        "language: key and value heads, each for heads / kv_heads query heads; 0: from arch or checkpoint, "
        "else heads",
        model_s.kv_heads),
    SWITCH(
        "model_s.tied", "auto", MODEL_SHAPE,
        "language: the head's matrix is the token table; auto: from arch or checkpoint, else true for gpt2 "
        "and encoders",
        model_s.tied),
    INT("model_s.window", "tokens", 0, 16777216, "0", MODEL_SHAPE,
        "language: a token sees this many, itself included; 0: from arch or checkpoint, else all before it",
        model_s.window),
    REAL("model_s.rope_theta", NULL, 0, 1e15, "0", MODEL_SHAPE,
         "language: base of the rotary positions' frequencies; 0: from arch or checkpoint, else 10000",
         model_s.rope_theta),

    LOSS("loss", loss[0]),
    {"loss.chunk", CONFIG_BYTES, "bytes", NULL, NULL, 1 << 20, 1e15, "134217728", "train plan bench",
     "language: largest part of the logits that is in memory at once, for example 64M; smaller parts need "
     "more time",
     true, AT(loss_chunk)},
    LOSS("loss2", loss[1]),
    LOSS("loss3", loss[2]),
    LOSS("loss4", loss[3]),
    LOSS("loss5", loss[4]),
    LOSS("loss6", loss[5]),
    LOSS("loss7", loss[6]),
    LOSS("loss8", loss[7]),

    INT("lora.rank", NULL, 0, 65536, "0", "train plan bench",
        "rank of the adapters (LoRA) that are trained in place of the model's weights, which stay as they "
        "are, but for a classifier or distillation head; 0: no adapters",
        lora.rank),
    REAL("lora.alpha", NULL, 0, 1e6, "0", "train",
         "factor of the adapters, times lora.rank: y = W x + alpha / rank B A x; 0: lora.rank", lora.alpha),
    {"lora.targets", CONFIG_TEXT, NULL, NULL, NULL, 0, 0, "all-linear", "train plan bench",
     "matrices of each block that have adapters, separated by commas, as in PEFT's target_modules: q_proj, "
     "k_proj, "
     "v_proj, o_proj, gate_proj, up_proj, down_proj of llama; c_attn, c_fc, attn.c_proj, mlp.c_proj of gpt2; "
     "attn.qkv, attn.proj, mlp.fc1, mlp.fc2 of dinov2; all-linear: all of them",
     true, AT(lora.targets)},
    PATH("lora.adapter", "train",
         "adapters to begin with: a directory of PEFT, whose rank, alpha and targets are taken, or a file of "
         "adapters; not set: new ones, which change nothing before the first step",
         lora.adapter),

    PATH("data.root", "train embed",
         "directory of images, JPEG, PNG and WebP, of tar archives of them, or of CIFAR-10 or CIFAR-100: see "
         "IMAGES; of language models: a token file or a directory of them, see TOKENS",
         data.root),
    TEXT("data.include", "train embed",
         "comma-separated patterns of the images to use; not set: all, or those for training if there are "
         "others",
         data.include),
    TEXT("data.exclude", "train embed", "comma-separated patterns of the images to leave out", data.exclude),
    PATH(
        "data.labels", "train",
        "CSV list of images and their classes, or coarse for CIFAR-100's superclasses: see CLASSES; not set: "
        "directories or archives name the classes",
        data.labels),
    CHOICE(
        "data.class_order", data_class_order, "auto", "train",
        "auto: classes that have the names in the checkpoint's config.json (id2label) are numbered as there, "
        "others by the order of their names; sorted: always by the order of their names",
        data.class_order),
    PATH("data.val", "train",
         "images for validation: a directory like data.root, or a CSV list of images in data.root; the "
         "directory may be data.root itself if it has a part for validation; of language models: token files",
         data.val),
    INT("data.image_size", "pixels", 0, 4096, "0", MODEL_SHAPE,
        "side of the input; 0: from the files next to the checkpoint, else from its positions (dinov2's own: "
        "224)",
        data.image_size),
    CHOICE("data.pipeline", data_pipeline, "auto", "train embed",
           "resize, crop, mean and deviation, unless the keys below set them; auto: from the files next to "
           "the checkpoint, else the usual ones of the family",
           data.pipeline),
    IMAGES("data", data.images),
    BOOL("data.augment", "false", "train plan", "random resized crops, the same for teacher and student",
         data.augment),
    REAL("data.crop_scale_min", "share", 0, 1, "0", "train",
         "smallest crop as a share of the area; 0: 0.9 for clip, 0.32 for dinov2", data.crop_scale_min),
    REAL("data.crop_scale_max", "share", 0.01, 1, "1", "train", "largest crop as a share of the area",
         data.crop_scale_max),
    INT("data.crops", "crops", 1, 64, "1", "train plan",
        "with data.augment: crops of each image, next to each other in a batch, each a sample of its own for "
        "teacher and student; the image is decoded once; batch sizes count crops",
        data.crops),
    INT("data.local_crops", "crops", 0, 64, "0", "train",
        "number of data.crops that are small, as DINO's local crops, but resized to data.image_size",
        data.local_crops),
    REAL("data.local_scale_min", "share", 0.001, 1, "0.05", "train",
         "smallest local crop as a share of the area", data.local_scale_min),
    REAL("data.local_scale_max", "share", 0.001, 1, "0.32", "train",
         "largest local crop as a share of the area", data.local_scale_max),
    SWITCH("data.flip", "auto", "train", "mirror half of the crops; auto: true for the dinov2 pipeline",
           data.flip),
    INT("data.randaugment", NULL, 0, 30, "0", "train",
        "magnitude of RandAugment (torchvision's: two operations on each crop); 0: none", data.randaugment),
    REAL("data.erasing", "share", 0, 1, "0", "train",
         "share of the crops of which a random box is erased (torchvision's RandomErasing)", data.erasing),
    REAL("data.mixup", NULL, 0, 100, "0", "train",
         "alpha of mixup: images are mixed in pairs by shares of Beta(alpha, alpha); 0: none", data.mixup),
    REAL("data.cutmix", NULL, 0, 100, "0", "train",
         "alpha of cutmix: a box of each image is replaced by its partner's; with data.mixup, each for half "
         "of the images; 0: none",
         data.cutmix),
    {"data.workers", CONFIG_INT, "threads", NULL, NULL, 0, 1024, "0", "train embed",
     "decoding threads per rank; 0: one per processor", false, AT(data.workers)},
    {"data.prefetch", CONFIG_INT, "batches", NULL, NULL, 1, 64, "2", "train plan", "batches decoded ahead",
     false, AT(data.prefetch)},
    REAL("data.max_bad", "share", 0, 1, "0.01", "train embed",
         "share of undecodable images above which training stops", data.max_bad),
    BOOL("data.shuffle", "true", "train", "new order every epoch, from train.seed", data.shuffle),
    CHOICE("data.tokens", data_tokens, "auto", "train",
           "format of token files, see TOKENS; auto: megatron with an index, llmc by its header, uint16 if "
           "the name ends in .bin, else bytes",
           data.tokens),
    CHOICE("data.documents", data_documents, "auto", "train",
           "whole: a document that fits model.context is never cut, and shares a sample with others; apart: "
           "windows of all tokens, each of which sees and predicts only tokens of its own document; joined: "
           "windows, documents are one text; auto: whole for token files with labels, else apart",
           data.documents),
    CHOICE("data.too_long", data_too_long, "refuse", "train",
           "whole documents that are longer than model.context: refuse the files, cut their end off, or skip "
           "them",
           data.too_long),
    INT("data.end", "token", -1, 2147483647, "-1", "train",
        "token that ends a document, for files without an index; -1: none", data.end),
    INT("data.mask_token", "token", 0, 2147483647, "103", "train",
        "masked: token that stands for a masked one; default: [MASK] or <mask> of the tokenizer.json next to "
        "the checkpoint, without one that of bert-base or bigbird, and the vocabulary's last for roberta",
        data.mask_token),
    INT("data.special_tokens", "tokens", -1, 2147483647, "-1", "train",
        "masked: tokens below this are never masked, [PAD], [CLS], [SEP], ...; -1: those up to "
        "data.mask_token; if that is in the vocabulary's second half, up to the last special one before",
        data.special_tokens),

    INT("data_s.image_size", "pixels", 0, 4096, "0", MODEL_SHAPE,
        "side of the student's input; 0: data.image_size, if that is 0 from the files next to its "
        "checkpoint, else the teacher's",
        data_s.image_size),
    IMAGES("data_s", data_s.images),

    CHOICE("train.objective", train_objective, "distill", "train plan",
           "distill: the output of a teacher; classify: the class of each image, or of each text with an "
           "encoder's model.family (bert, distilbert, roberta, electra, big_bird), without a teacher; "
           "language: the next token of a text; masked: masked tokens of a text, by an encoder",
           train.objective),
    REAL("train.label_smoothing", "share", 0, 0.999, "0", "train",
         "classify, language, masked: share of the target that is spread evenly over all classes or tokens",
         train.label_smoothing),
    REAL("train.ema", "decay", 0, 0.9999999, "0", "train plan bench",
         "exponential moving average of the weights, with warm-up, in 2 more bytes per parameter (for "
         "example 0.9999): meopt export --ema writes it, meopt eval --ema evaluates it; 0: none",
         train.ema),
    INT("train.epochs", "epochs", 1, 1000000, "10", "train plan", "passes over the images", train.epochs),
    INT("train.steps", "steps", 0, 1e12, "0", "train plan", "number of optimizer steps; 0: all epochs",
        train.steps),
    INT("train.batch_size", "images", 1, 65536, "32", "train plan", "images per rank and optimizer step",
        train.batch_size),
    INT("train.micro_batch", "images", 0, 65536, "0", "train plan",
        "images per forward pass, with gradient accumulation; 0: batch_size", train.micro_batch),
    INT("train.global_batch", "images", 0, 1048576, "0", "train plan",
        "images per optimizer step of all ranks, which share its micro-batches: the same steps on any number "
        "of ranks; 0: batch_size of each rank",
        train.global_batch),
    INT("train.seed", NULL, 0, 9007199254740992.0, "0", "train",
        "seed of data order, augmentation, rounding and new weights", train.seed),
    CHOICE("train.precision", train_precision, "bf16", "train plan bench",
           "type of activations and GEMM, if a tower's dtype is auto", train.precision),
    CHOICE("train.recompute", train_recompute, "none", "train plan bench",
           "save all activations, or those of one block and recompute the others", train.recompute),
    CHOICE(
        "train.rounds", train_rounds, "auto", "train plan",
        "order of the micro-batches of a step. depth: all blocks for one, then for the next; breadth: one "
        "block for all of them, then the next block, which recomputes activations; auto: see MICRO-BATCHES",
        train.rounds),
    INT("train.wave", "micro-batches", 0, 1048576, "0", "train plan",
        "micro-batches of a rank that pass through all blocks and back before the next ones, in "
        "breadth-first "
        "rounds: their activations are kept, and accumulators of all blocks; 0: all",
        train.wave),
    CHOICE("train.save_activations", train_save_activations, "minimal", "train plan bench",
           "activations that blocks save for backward: those that are expensive to recompute, or, with 8bit, "
           "the larger part of them in 8 bits; not with train.recompute block",
           train.save_activations),
    {"train.cache_place", CONFIG_CHOICE, NULL, train_cache_place_names, NULL, 0, 0, "memory", "train plan",
     "location of the cached outputs: in host memory of each rank, and in the run directory for a resume; or "
     "there alone (disk), where each step reads its rows",
     false, ENUM_AT(train_cache_place, train.cache_place)},
    CHOICE("train.cache_type", train_cache_type, "fp32", "train plan",
           "number format of the cached outputs; int8: 64 values share a factor", train.cache_type),
    INT("train.target_images", "images", 1, 10000000, "1000", "train",
        "loss.standardize: images of the first epoch whose outputs give mean and covariance, before the "
        "first step",
        train.target_images),
    BOOL("train.cache_teacher", "false", "train plan",
         "compute the teacher's outputs once, store them in the run directory, free the teacher",
         train.cache_teacher),
    {"train.checkpoint_steps", CONFIG_INT, "steps", NULL, NULL, 0, 1e12, "0", "train plan",
     "steps between checkpoints; 0: by time only", false, AT(train.checkpoint_steps)},
    {"train.checkpoint_minutes", CONFIG_REAL, "minutes", NULL, NULL, 0, 1e6, "30", "train",
     "minutes between checkpoints; 0: by steps only", false, AT(train.checkpoint_minutes)},
    {"train.checkpoint_keep", CONFIG_INT, "checkpoints", NULL, NULL, 1, 1000000, "2", "train plan",
     "number of newest checkpoints to keep", false, AT(train.checkpoint_keep)},
    {"train.eval_every", CONFIG_INT, "epochs", NULL, NULL, 0, 1000000, "1", "train",
     "epochs between evaluations on data.val, with one at the end; the checkpoint with the lowest loss, or "
     "the best top-1, is kept; 0: no evaluation",
     false, AT(train.eval_every)},
    {"train.eval", CONFIG_CHOICE, NULL, train_eval_names, NULL, 0, 0, "loss", "train plan",
     "distill: evaluation of the student, by the loss alone or also by the nearest neighbours of its "
     "features (knn), by a linear classifier of them (probe), or by both: see EVALUATION",
     false, ENUM_AT(train_eval, train.eval)},
    {"train.knn_bank", CONFIG_INT, "images", NULL, NULL, 1, 10000000, "10000", "train plan",
     "knn and probe: most images of data.root whose features are read; for knn in 4 bytes per value", false,
     AT(train.knn_bank)},
    {"train.probe_l2", CONFIG_REAL, NULL, NULL, NULL, 0, 1e12, "0", "train plan",
     "probe: L2 regularisation of its least squares over standardised features; 0: chosen at each evaluation "
     "by generalised cross-validation",
     false, AT(train.probe_l2)},
    {"train.probe_classes", CONFIG_INT, "classes", NULL, NULL, 2, 1000000, "1000", "train plan",
     "probe: most classes, in 8 bytes per value of a feature", false, AT(train.probe_classes)},
    {"train.eval_steps", CONFIG_INT, "steps", NULL, NULL, 0, 1e12, "0", "train",
     "steps between evaluations instead of train.eval_every; 0: train.eval_every", false,
     AT(train.eval_steps)},
    {"train.log_every", CONFIG_INT, "steps", NULL, NULL, 1, 1000000, "10", "train",
     "steps between lines on the terminal (metrics.jsonl has all steps)", false, AT(train.log_every)},

    {"train.memory", CONFIG_TEXT, NULL, NULL, NULL, 0, 0, "", "train plan",
     "memory limit of each rank of a new run, for example 8GiB: the fastest option of 'meopt plan --fit' is "
     "written into its keys; auto: the free memory of the card, or of a rank's part of the machine, minus a "
     "twentieth; not set: the keys are used as given; keys that change the numbers of a run are reported",
     false, AT(train.memory)},
    {"train.scratch_dir", CONFIG_PATH, NULL, NULL, NULL, 0, 0, "", "train bench",
     "directory of the scratch files of streamed weights, one per rank, with O_DIRECT, removed with the "
     "process; not set: the run's, or that of the YAML file",
     false, AT(train.scratch_dir)},

    BOOL("optim.use_meopt", "true", "train plan bench",
         "use MEOpt's formats and gradient release; false: the memory of PyTorch AMP + AdamW + DDP",
         optim.use_meopt),
    BOOL("optim.pure_bf16", "false", "train plan bench",
         "no fp32 weights: all bf16; with use_meopt, weights are bf16_sr if optim.weights is auto",
         optim.pure_bf16),
    CHOICE("optim.preset", optim_preset, "balanced", "train plan bench",
           "weights and states together, see meopt-optimizers(7)", optim.preset),
    CHOICE_ALIAS("optim.name", meopt_rule, rule_aliases + 1, "apadamw", "train plan bench", "update rule",
                 optim.name),
    REAL("optim.lr", NULL, 0, 1000, "2.0e-5", "train",
         "peak learning rate; with lora.rank 2.0e-4 if it is not set, as QLoRA (arXiv:2305.14314)", optim.lr),
    REAL("optim.head_lr_scale", NULL, 0, 1e6, "10", "train",
         "learning rate of the head / optim.lr; classify: 1 if it is not set", optim.head_lr_scale),
    REAL("optim.layer_decay", NULL, 0.01, 1, "1", "train",
         "factor of the learning rate of each block to that of the block after it; the final norm has the "
         "head's, as in BEiT, MAE and DINOv2 (timm: the last block's); 1: off",
         optim.layer_decay),
    REAL("optim.min_lr", NULL, 0, 1000, "1.0e-6", "train", "learning rate at the end of the schedule",
         optim.min_lr),
    CHOICE("optim.schedule", optim_schedule, "cosine", "train", "learning rate after the warm-up",
           optim.schedule),
    INT("optim.warmup_steps", "steps", -1, 1e12, "-1", "train",
        "steps of linear warm-up from 0; -1: optim.warmup_ratio of all steps", optim.warmup_steps),
    REAL("optim.warmup_ratio", NULL, 0, 1, "0", "train",
         "share of all steps for the warm-up, in place of optim.warmup_steps; 0: a tenth, at most 500 steps",
         optim.warmup_ratio),
    REAL("optim.beta1", NULL, 0, 0.9999999, "0.9", "train",
         "decay of the first moment; adafactor: 0, no first moment, if it is not set", optim.beta1),
    REAL("optim.beta2", NULL, 0, 0.9999999, "0.98", "train",
         "decay of the second moment (lion: of the momentum)", optim.beta2),
    REAL("optim.eps", NULL, 0, 1, "1.0e-6", "train",
         "term added to the root of the second moment; adafactor: to squares of gradients (torch_form: the "
         "least root), 1e-30 if it is not set",
         optim.eps),
    REAL("optim.weight_decay", NULL, 0, 100, "0.05", "train",
         "weight decay of tensors with two or more dimensions", optim.weight_decay),
    REAL("optim.momentum", NULL, 0, 0.9999999, "0.9", "train", "apsgd and muon; muon: 0.95 if it is not set",
         optim.momentum),
    REAL("optim.dampening", NULL, 0, 1, "0", "train", "apsgd only", optim.dampening),
    BOOL("optim.nesterov", "false", "train", "apsgd and muon; muon: true if it is not set", optim.nesterov),
    INT("optim.ns_steps", "steps", 1, 20, "5", "train", "muon only: steps of Newton-Schulz", optim.ns_steps),
    CHOICE("optim.ns_schedule", meopt_ns_schedule, "quintic", "train",
           "muon only: coefficients of Newton-Schulz, the published ones in each step or each step's own "
           "(Polar Express, arXiv:2505.16932), with singular values nearer to 1",
           optim.ns_schedule),
    CHOICE("optim.ns_form", meopt_ns_form, "auto", "train plan",
           "muon only: direct; gram: steps multiply the square matrix in fp32; auto: gram if one side is 8 "
           "times the other (cards: 40)",
           optim.ns_form),
    CHOICE("optim.ns_precision", optim_ns_precision, "bf16", "train plan",
           "muon only: precision of Newton-Schulz; sums are fp32", optim.ns_precision),
    CHOICE("optim.adjust_lr", meopt_adjust_lr, "rms_match", "train",
           "muon only: factor of the learning rate of a matrix; rms_match: 0.2 sqrt(max(rows, columns)), so "
           "that AdamW's learning rate serves; original: sqrt(max(1, rows / columns)); spectral: without "
           "the limit",
           optim.adjust_lr),
    CHOICE("optim.other_rule", optim_other_rule, "apadamw", "train plan",
           "muon only: rule of the matrices that it does not step (token table, head); adafactor: rows and "
           "columns in place of the second moment, by the keys of adafactor, and a first moment by beta1",
           optim.other_rule),
    BOOL("optim.trust_clip", "false", "train", "lamb only: trust ratio at most 1", optim.trust_clip),
    BOOL("optim.always_adapt", "false", "train", "lamb only: trust ratio also without decay (NVLAMB)",
         optim.always_adapt),
    BOOL("optim.decoupled_decay", "false", "train",
         "lamb only: decay the weights themselves, not in the update (timm)", optim.decoupled_decay),
    REAL("optim.r", NULL, 0, 10, "0", "train",
         "schedule_free only: power of the step in the weights of the average", optim.r),
    REAL("optim.weight_lr_power", NULL, 0, 10, "2", "train",
         "schedule_free only: power of the learning rate in them", optim.weight_lr_power),
    REAL("optim.max_grad_norm", NULL, 0, 1e9, "0", "train plan",
         "lamb only: divide gradients by max(1, norm / this); 0: off", optim.max_grad_norm),
    REAL("optim.eps2", NULL, 0, 1, "1.0e-3", "train",
         "adafactor only: least root mean square of a weight, for scale_parameter", optim.eps2),
    REAL("optim.clip_threshold", NULL, 0.001, 1e30, "1", "train",
         "adafactor only: clipping of the update's root mean square (torch: d)", optim.clip_threshold),
    REAL("optim.decay_rate", NULL, -1000, 0, "-0.8", "train",
         "adafactor only: beta2 of step t is 1 - t^decay_rate (torch: beta2_decay)", optim.decay_rate),
    BOOL("optim.scale_parameter", "false", "train",
         "adafactor only: learning rate times the root mean square of the weight", optim.scale_parameter),
    BOOL("optim.relative_step", "false", "train", "adafactor only: learning rate at most 1 / sqrt(t)",
         optim.relative_step),
    BOOL("optim.warmup_init", "false", "train", "adafactor only: with relative_step, also at most 1e-6 t",
         optim.warmup_init),
    BOOL("optim.torch_form", "false", "train",
         "adafactor only: eps and weight decay as in torch.optim, not transformers", optim.torch_form),
    REAL("optim.clip_grad_norm", NULL, 0, 1e9, "1", "train plan",
         "largest global gradient norm; 0: no clipping", optim.clip_grad_norm),
    CHOICE("optim.clip_mode", optim_clip_mode, "auto", "train plan",
           "norm for clipping: of this step, of the previous step, of each block; auto: exact if that costs "
           "nothing (gradients kept or accumulated), else previous",
           optim.clip_mode),
    CHOICE_ALIAS("optim.weights", optim_weights, WEIGHT_ALIASES, "auto", "train plan bench",
                 "format of the weights; auto: from the preset", optim.weights),
    CHOICE("optim.state_m", optim_state, "auto", "train plan bench",
           "format of the first moment; auto: from the preset", optim.state_m),
    CHOICE("optim.state_v", optim_state, "auto", "train plan bench",
           "format of the second moment; auto: from the preset", optim.state_v),
    CHOICE(
        "optim.gradients", optim_gradients, "auto", "train plan bench",
        "keep all gradients, or update and free block by block during backward; auto: release with use_meopt",
        optim.gradients),
    {"optim.offload", CONFIG_CHOICE, NULL, optim_offload_names, NULL, 0, 0, "none", "train plan bench",
     "location of moments and residual bits between steps; host: those of a card in host memory; nvme: in a "
     "file on a local disk; transfers overlap with the backward pass, a card updates them itself, and "
     "results are bit-identical",
     false, ENUM_AT(optim_offload, optim.offload)},
    {"optim.offload_fraction", CONFIG_REAL, NULL, NULL, NULL, 0, 1, "1", "train plan bench",
     "offloaded part of them, of tensors with at least 8192 elements, evenly over the blocks", false,
     AT(optim.offload_fraction)},
    {"optim.offload_dir", CONFIG_PATH, NULL, NULL, NULL, 0, 0, "", "train bench",
     "directory of the file of optim.offload nvme, which has no name and is removed with the process; not "
     "set: train.scratch_dir",
     false, AT(optim.offload_dir)},

    {"device.type", CONFIG_CHOICE, NULL, device_type_names, NULL, 0, 0, "auto", "train plan bench",
     "device type; auto: cards if there are any", false, ENUM_AT(device_type, device.type)},
    {"device.cards", CONFIG_TEXT, NULL, NULL, NULL, 0, 0, "all", "train plan",
     "numbers of the cards, one rank per card, for example 0 or 0,1,3 or [0, 1, 3]; all: the first one that "
     "works",
     false, AT(device.cards)},
    {"device.memory_limit", CONFIG_BYTES, "bytes", NULL, NULL, 0, 1e15, "0", "train plan",
     "memory limit of each card, for example 16G; 0: all of it", false, AT(device.memory_limit)},

    {"dist.backend", CONFIG_CHOICE, NULL, dist_backend_names, NULL, 0, 0, "auto", "train",
     "method of communication between ranks; auto: the vendor's library (nccl: NCCL, or RCCL on AMD and DCU) "
     "if every rank has a card and the library, else local on one host, else mpi",
     false, ENUM_AT(dist_backend, dist.backend)},
    {"dist.shard", CONFIG_CHOICE, NULL, dist_shard_names, "gradients=optimizer", 0, 0, "none", "train plan",
     "data of which each rank holds only its part: none; optimizer states and the sums of gradients (ZeRO-1, "
     "-2); weights too (ZeRO-3)",
     false, ENUM_AT(dist_shard, dist.shard)},
    {"dist.pipeline", CONFIG_INT, "stages", NULL, NULL, 1, 4096, "1", "train plan",
     "number of ranks that form a pipeline: stage S has the blocks S, S + dist.pipeline and so on; 1: none",
     false, AT(dist.pipeline)},
    {"dist.tensor", CONFIG_INT, "ranks", NULL, NULL, 1, 8, "1", "train plan",
     "number of ranks that divide the slices of each layer (model_s.slices): 1, 2, 4 or 8; they have the "
     "same micro-batches; 1: none",
     false, AT(dist.tensor)},
    {"dist.reduce", CONFIG_CHOICE, NULL, dist_reduce_names, NULL, 0, 0, "ordered", "train plan",
     "sums of gradients over ranks; ordered: in rank order, with the bits of one rank; library: by the "
     "reduce-scatter of MPI, NCCL or RCCL, for more than 64 ranks: bits may depend on the number of ranks, "
     "the "
     "network and the library",
     true, ENUM_AT(dist_reduce, dist.reduce)},

    {"run.dir", CONFIG_PATH, NULL, NULL, NULL, 0, 0, "", "train",
     "directory of runs; not set: runs/ in the working directory", false, AT(run.dir)},
    {"run.name", CONFIG_TEXT, NULL, NULL, NULL, 0, 0, "", "train", "name of the run; not set: FILE-UTCTIME",
     false, AT(run.name)},
    {NULL, CONFIG_TEXT, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL, false, 0},
};
const int config_key_count = (int)(sizeof config_keys / sizeof *config_keys) - 1;

/* The key names of the original's EVA and OpenCLIP files, and those of its DINOv2 files. */
static const char *const key_aliases[][2] = {{"model.weight_t", "model_t.weight"},
                                             {"model.weight_s", "model_s.weight"}};

/* The names of the student's keys without a teacher. */
#define MODEL_KEY(name)                                                                                      \
    {                                                                                                        \
        "model." name, "model_s." name                                                                       \
    }
static const char *const model_aliases[][2] = {
    MODEL_KEY("weight"),   MODEL_KEY("arch"),       MODEL_KEY("width"),      MODEL_KEY("depth"),
    MODEL_KEY("heads"),    MODEL_KEY("head_dim"),   MODEL_KEY("hidden"),     MODEL_KEY("out"),
    MODEL_KEY("ffn"),      MODEL_KEY("activation"), MODEL_KEY("pool"),       MODEL_KEY("norm"),
    MODEL_KEY("norm_eps"), MODEL_KEY("patch"),      MODEL_KEY("pos_grid"),   MODEL_KEY("pos_resize"),
    MODEL_KEY("dtype"),    MODEL_KEY("init"),       MODEL_KEY("place"),      MODEL_KEY("classes"),
    MODEL_KEY("freeze"),   MODEL_KEY("drop_path"),  MODEL_KEY("vocabulary"), MODEL_KEY("context"),
    MODEL_KEY("kv_heads"), MODEL_KEY("tied"),       MODEL_KEY("window"),     MODEL_KEY("rope_theta"),
    MODEL_KEY("slices"),   MODEL_KEY("registers"),  MODEL_KEY("layerscale"),
};

static const struct {
    const char *const (*rows)[2];
    size_t count;
} aliases[] = {{key_aliases, sizeof key_aliases / sizeof *key_aliases},
               {model_aliases, sizeof model_aliases / sizeof *model_aliases}};
enum { ALIAS_LISTS = sizeof aliases / sizeof *aliases };

bool config_given(const struct config *c, const char *key)
{
    const struct config_origin *origin = &c->origins[config_key_index(key)];
    return origin->from == ORIGIN_FILE || origin->from == ORIGIN_OVERRIDE;
}

bool config_key_of_model(const char *name)
{
    for (size_t i = 0; i < aliases[1].count; i++)
        if (strcmp(name, model_aliases[i][0]) == 0) return true;
    return false;
}

const char *config_key_here(const struct config *c, const char *key)
{
    int given = config_key_index(key);
    bool one = c->train.objective != TRAIN_OBJECTIVE_DISTILL &&
               (!config_given(c, key) || c->origins[given].of_model);
    for (size_t i = 0; one && i < aliases[1].count; i++)
        if (strcmp(key, model_aliases[i][1]) == 0) return model_aliases[i][0];
    return key;
}

bool config_key_repeats(int key)
{
    const char *name = config_keys[key].name;
    return isdigit((unsigned char)name[strcspn(name, ".") - 1]);
}

/* Returns the number of the last section of `name`, `name`2, ... that has a key. */
static int last_given(const struct config *c, const char *name)
{
    size_t n = strlen(name);
    int last = 1;
    for (int key = 0; key < config_key_count; key++) {
        int number = strncmp(config_keys[key].name, name, n) == 0 ? atoi(config_keys[key].name + n) : 0;
        if (number > last && c->origins[key].from != ORIGIN_DEFAULT) last = number;
    }
    return last;
}
int config_teachers(const struct config *c) { return last_given(c, "model_t"); }
int config_losses(const struct config *c) { return last_given(c, "loss"); }

const char *config_tower_section(int tower)
{
    static const char *const sections[] = {"model_t", "model_t2", "model_t3", "model_t4", "model_s"};
    return sections[tower];
}

const char *config_tower_name(int tower)
{
    static const char *const names[] = {N_("teacher"), N_("teacher2"), N_("teacher3"), N_("teacher4"),
                                        N_("student")};
    return names[tower];
}

const char *config_loss_section(int part)
{
    static const char *const sections[MOST_LOSSES] = {"loss",  "loss2", "loss3", "loss4",
                                                      "loss5", "loss6", "loss7", "loss8"};
    return sections[part];
}

bool config_key_used(const struct config *c, int key)
{
    const char *name = config_keys[key].name;
    if (!config_key_repeats(key)) return true;
    return atoi(name + strcspn(name, "0123456789")) <=
           (name[0] == 'l' ? config_losses(c) : config_teachers(c));
}

/* All names of keys, aliases included, in alphabetical order. */
static struct key_name {
    const char *name;
    int key;
} key_names[sizeof config_keys / sizeof *config_keys + sizeof key_aliases / sizeof *key_aliases +
            sizeof model_aliases / sizeof *model_aliases];
static int key_name_count;
static pthread_once_t key_names_made = PTHREAD_ONCE_INIT;

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct key_name *)a)->name, ((const struct key_name *)b)->name);
}

static void make_key_names(void)
{
    const char *name;
    for (int i = 0; i < config_key_count; i++)
        for (int k = 0; (name = config_key_spelling(i, k)) != NULL; k++)
            key_names[key_name_count++] = (struct key_name){name, i};
    qsort(key_names, (size_t)key_name_count, sizeof *key_names, compare_names);
}

/* `meopt plan --fit` calls it for every key of every combination of memory options. */
int config_key_index(const char *name)
{
    pthread_once(&key_names_made, make_key_names);
    const struct key_name *found = bsearch(&(struct key_name){.name = name}, key_names,
                                           (size_t)key_name_count, sizeof *key_names, compare_names);
    return found ? found->key : -1;
}

const char *config_key_spelling(int key, int i)
{
    if (i == 0) return config_keys[key].name;
    for (int list = 0; list < ALIAS_LISTS; list++)
        for (size_t k = 0; k < aliases[list].count; k++)
            if (strcmp(aliases[list].rows[k][1], config_keys[key].name) == 0 && --i == 0)
                return aliases[list].rows[k][0];
    return NULL;
}
