/* Wrong configurations: each is refused with the right line and column, the value found, and a hint. */
#include "core/config/config.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct wrong {
    const char *text;
    int line, column;
    const char *what, *hint; /* what they name, see mentions() */
};

static const struct wrong corpus[] = {
    /* keys */
    {"optim:\n  wieght_decay: 0.1\n", 2, 3, "optim.wieght_decay", "optim.weight_decay"},
    {"model_s:\n  drop_path: 1\n", 2, 14, "model_s.drop_path", ""},
    {"model_t:\n  drop_path: 0\n", 2, 3, "model_t.drop_path", ""},
    {"optim:\n  pure_bf16: true\nmodel_s:\n  dtype: fp32\n", 2, 3, "optim.pure_bf16|model_s.dtype|fp32",
     "model_s.dtype: bf16"},
    {"optim:\n  beta2: 0.5\n", 2, 3, "optim.beta2|0.5|0.81", "optim.beta2|optim.state_v: bf16"},
    {"optim:\n  name: apsgd\n  momentum: 0\ntrain:\n  ema: 0.9\n", 5, 3, "train.ema|apsgd", "optim.momentum"},
    {"optim:\n  name: schedule_free\n  schedule: constant\n  state_m: 4bit\n", 4, 3, "optim.state_m|4bit",
     "optim.state_m: bf16"},
    {"optim:\n  offload: host\ndevice:\n  type: cpu\n", 2, 3, "optim.offload|host", "optim.offload: nvme"},
    {"optim:\n  nesterov: true\n  name: apsgd\n  dampening: 0.5\n", 2, 3, "optim.nesterov", ""},
    {"loss:\n  type: cosine\n  reduction: sum-dim\n", 3, 3, "loss.reduction", "mean"},
    {"model_s:\n  ffn: swiglu\n  activation: gelu\n", 3, 3, "model_s.activation", ""},
    {"train:\n  memory: 1\n", 2, 3, "train.memory|1", "8GiB"},
    {"optim:\n  learning_rate: 0.1\n", 2, 3, "optim.learning_rate", "optim.lr"},
    {"optim:\n  LR: 0.1\n", 2, 3, "optim.LR", "optim.lr"},
    {"optim:\n  momentun: 0.1\n", 2, 3, "optim.momentun", "optim.momentum"},
    {"optim:\n  use-meopt: true\n", 2, 3, "optim.use-meopt", "optim.use_meopt"},
    {"optim:\n  pure_bf61: true\n", 2, 3, "optim.pure_bf61", "optim.pure_bf16"},
    {"train:\n  lr: 0.1\n", 2, 3, "train.lr", "optim.lr|'optim:'"},
    {"train:\n  batchsize: 4\n", 2, 3, "train.batchsize", "train.batch_size"},
    {"train:\n  root: /x\n", 2, 3, "train.root", "data.root|'data:'"},
    {"optimizer:\n  lr: 0.1\n", 1, 1, "optimizer", "optim.name"},
    {"optmi:\n  lr: 0.1\n", 1, 1, "optmi", "optim"},
    {"dta:\n  root: /x\n", 1, 1, "dta", "data"},
    {"batch_size: 4\n", 1, 1, "batch_size", "train.batch_size|'train:'"},
    {"optim.lr: 0.1\n", 1, 1, "optim.lr", "'optim:'|'lr:'"},
    {"zzzzzzzz: 1\n", 1, 1, "zzzzzzzz",
     "model, model_t, model_s, loss, lora, data, data_s, train, optim, device, dist, run"},
    {"model:\n  weigth_t: a.pt\n", 2, 3, "model.weigth_t", "model.weight_t"},
    {"model:\n  weight: a.pt\n", 2, 3, "model.weight", "model_t|model_s|classify"},
    {"model_t:\n  weight_t: a.pt\n", 2, 3, "model_t.weight_t", "model_t.weight"},
    {"# 注释\nmodel_s:\n  # 宽度\n  宽度: 64\n", 4, 3, "model_s.宽度", "meopt config list"},
    {"optim: {lr: 0.1, 名: 1}\n", 1, 18, "optim.名", "meopt config list"},
    {"? [a, b]\n: 1\n", 1, 3, "key", ""},
    {"optim:\n  [a]: 1\n", 2, 3, "key|optim", ""},
    /* types */
    {"train:\n  batch_size: many\n", 2, 15, "train.batch_size|1|65536", "32"},
    {"train:\n  batch_size: 3.5\n", 2, 15, "train.batch_size|1|65536", "32"},
    {"train:\n  batch_size: 1e3\n", 2, 15, "train.batch_size|1|65536", "1000"},
    {"train:\n  batch_size: 1_000\n", 2, 15, "train.batch_size|1|65536", "1000"},
    {"train:\n  batch_size: '8'\n", 2, 15, "train.batch_size|1|65536", "8"},
    {"train:\n  batch_size: true\n", 2, 15, "train.batch_size|1|65536", "32"},
    {"train:\n  batch_size:\n", 2, 14, "train.batch_size|1|65536", "32"},
    {"train:\n  batch_size: [4]\n", 2, 15, "train.batch_size|1|65536", ""},
    {"train:\n  batch_size: {a: 4}\n", 2, 15, "train.batch_size|1|65536", ""},
    {"train:\n  batch_size:\n    value: 4\n", 3, 5, "train.batch_size|1|65536", ""},
    {"optim:\n  lr: 0,001\n", 2, 7, "optim.lr|0|1000", "2.0e-5"},
    {"optim:\n  lr: \"2e-5\"\n", 2, 7, "optim.lr|0|1000", "2e-5"},
    {"optim:\n  lr: 10%\n", 2, 7, "optim.lr|0|1000", "2.0e-5"},
    {"optim:\n  use_meopt: 1\n", 2, 14, "optim.use_meopt|true|false", "true"},
    {"optim:\n  use_meopt: ture\n", 2, 14, "optim.use_meopt|true|false", "true"},
    {"optim: yes\n", 1, 8, "optim", ""},
    {"optim:\n  - lr: 1\n", 2, 3, "optim", ""},
    {"- optim\n", 1, 1, "sections|list", "'data:'"},
    {"just text\n", 1, 1, "sections|text", "'data:'"},
    {"device:\n  memory_limit: 16 GB of it\n", 2, 17, "device.memory_limit|512M|64G", "0"},
    /* ranges and choices */
    {"train:\n  batch_size: 0\n", 2, 15, "train.batch_size| 0,| 1 | 65536", "32"},
    {"train:\n  batch_size: -4\n", 2, 15, "train.batch_size| -4,| 1 | 65536", "32"},
    {"train:\n  batch_size: 99999999999999999999\n", 2, 15,
     "train.batch_size| 99999999999999999999,| 1 | 65536", "32"},
    {"optim:\n  beta2: 1.0\n", 2, 10, "optim.beta2| 1.0,| 0 | 0.9999999", "0.98"},
    {"optim:\n  lr: -1.0e-3\n", 2, 7, "optim.lr| -1.0e-3,| 0 | 1000", "2.0e-5"},
    {"optim:\n  lr: .inf\n", 2, 7, "optim.lr| .inf,| 0 | 1000", "2.0e-5"},
    {"optim:\n  name: adamax\n", 2, 9, "optim.name|'adamax'|apadam, apadamw, apsgd, lamb, lion", "apadam"},
    {"optim:\n  schedule: cosin\n", 2, 13, "optim.schedule|'cosin'|cosine, linear, constant", "cosine"},
    {"optim:\n  weights: bf16+9\n", 2, 12, "optim.weights|'bf16+9'|fp32+copy, bf16, bf16_sr, bf16+4",
     "bf16+"},
    {"model_t:\n  arch: eva01-g14\n", 2, 9, "model_t.arch|'eva01-g14'|eva01_g14,", "eva01_g14"},
    {"loss:\n  type: l2\n", 2, 9, "loss.type|'l2'|mse, cosine, smooth-l1", "mse"},
    {"train:\n  precision: fp16\n", 2, 14, "train.precision|'fp16'|bf16, fp32", "bf16"},
    /* what an input method writes for ASCII */
    {"optim：\n  lr: 1.0\n", 2, 5, "YAML", "U+FF1A|':'|1|6"},
    {"optim:\n  lr：1.0\n", 2, 3, "optim", "U+FF1A|':'|2|5"},
    {"optim:\n  lr:　1.0\n", 2, 3, "optim", "U+3000|' '|2|6"},
    {"optim:\n  lr:\xC2\xA0"
     "1.0\n",
     2, 3, "optim", "U+00A0|' '|2|6"},
    {"optim:\n  lr: １.0\n", 2, 7, "optim.lr", "U+FF11|'1'|2|7"},
    {"optim:\n  use_meopt: “true”\n", 2, 14, "optim.use_meopt", "U+201C|'\"'|2|14"},
    {"run:\n  name: 实验：a/b\n", 2, 3, "run.name|'/'", "run.dir"},
    /* twice, and what cannot stand together */
    {"optim:\n  lr: 1.0\n  # again\n  lr: 2.0\n", 4, 3, "'lr'|2", ""},
    {"optim:\n  lr: 1.0\ndata:\n  root: a\noptim:\n  lr: 2.0\n", 5, 1, "'optim'|1", ""},
    {"model:\n  weight_t: a\nmodel_t:\n  weight: b\n", 4, 3, "model_t.weight|2",
     "model.weight_t|model_t.weight"},
    {"train:\n  batch_size: 32\n  micro_batch: 5\n", 3, 3, "train.batch_size 32|train.micro_batch 5", ""},
    {"train:\n  cache_teacher: true\ndata:\n  augment: true\n", 2, 3, "train.cache_teacher|data.augment",
     "data.augment: false"},
    {"optim:\n  pure_bf16: true\ntrain:\n  precision: fp32\n", 2, 3, "optim.pure_bf16|train.precision|fp32",
     "train.precision: bf16"},
    {"loss:\n  - type: mse\n  - teacher: 2\n", 3, 5, "loss2.teacher|2|1", "model_t"},
    {"loss:\n  - head: previous\n", 2, 5, "loss.head|previous", "linear|mlp"},
    {"loss3:\n  type: mse\n", 2, 3, "loss2|loss3", "gap"},
    {"model_t3:\n  width: 64\n", 2, 3, "model_t2|model_t3", "gap"},
    {"loss:\n  - type: mse\n  - block_s: 2\n", 3, 5, "block", "block_t|block_s"},
    {"loss:\n  - type: mse\n  - {}\n", 3, 5, "2|loss", "weight"},
    {"loss: []\n", 1, 7, "loss", "leave"},
    {"lora:\n  - rank: 2\n", 2, 3, "lora|list", "indented"},
    {"model_t:\n  - arch: dinov2_vits14\n  - wieght: a\n", 3, 5, "model_t2.wieght", "model_t2.weight"},
    {"model_s:\n  arch: dinov2_vitl14\n  family: eva\n", 2, 3,
     "model_s.arch|dinov2_vitl14|dinov2|model_s.family|eva", ""},
    {"model_t:\n  - arch: dinov2_vits14\n  - arch: siglip_b16\n    family: openclip\n", 3, 5,
     "model_t2.arch|siglip_b16|siglip|model_t2.family|openclip", ""},
    {"model_t:\n  - arch: openclip_vit_l14\n  - patch: 14\n    image_size: 250\n", 4, 5,
     "model_t2.image_size 250|model_t2.patch 14", ""},
    {"optim:\n  lr: 1.0e-4\n  min_lr: 1.0e-3\n", 3, 3, "optim.min_lr|optim.lr", ""},
    {"data:\n  crop_scale_min: 0.9\n  crop_scale_max: 0.5\n", 2, 3, "data.crop_scale_min|data.crop_scale_max",
     ""},
    {"data:\n  augment: true\n  crops: 3\ntrain:\n  batch_size: 32\n", 3, 3,
     "train.batch_size 32|data.crops 3", ""},
    {"data:\n  crops: 2\n", 2, 3, "data.crops|data.augment", "data.augment: true"},
    {"data:\n  augment: true\n  crops: 2\n  local_crops: 3\n", 4, 3, "data.local_crops 3|data.crops 2", ""},
    {"data:\n  augment: true\n  crops: 2\n  mixup: 0.2\ntrain:\n  objective: classify\n", 3, 3,
     "data.crops|data.mixup", ""},
    {"data:\n  local_scale_min: 0.4\n", 2, 3, "data.local_scale_min|data.local_scale_max", ""},
    {"model_s:\n  width: 100\n  heads: 3\n", 3, 3, "model_s.width 100|3", ""},
    {"train:\n  recompute: block\n  save_activations: 8bit\n", 3, 3, "train.save_activations|train.recompute",
     ""},
    {"train:\n  rounds: depth\n  wave: 2\n", 3, 3, "train.wave|train.rounds", "train.rounds: breadth"},
    {"optim:\n  gradients: keep\ntrain:\n  rounds: breadth\n", 4, 3, "train.rounds|optim.gradients",
     "train.rounds: auto"},
    {"optim:\n  gradients: keep\ndist:\n  pipeline: 2\n", 4, 3, "dist.pipeline 2|optim.gradients",
     "optim.gradients: release"},
    {"device:\n  cards: 0-3\n", 2, 3, "device.cards", "0,1,3"},
    {"run:\n  name: a/b\n", 2, 3, "run.name|'/'", "run.dir"},
    /* YAML */
    {"optim:\n\tlr: 1.0\n", 2, 1, "YAML", "tabs"},
    {"optim:\n  lr: 1.0\n   beta1: 0.9\n", 3, 9, "YAML", "indentation"},
    {"optim: {lr: 1.0\n", 2, 1, "YAML", "brackets"},
    {"data:\n  root: \"a\n", 3, 1, "YAML", "quotes"},
    {"data:\n  root: a: b\n", 2, 10, "YAML", "quotes"},
    {"data:\n  root: @x\n", 2, 9, "YAML", "quotes"},
    {"data:\n  root: *x\n", 2, 9, "&x", "&name"},
    {"optim:\n  lr: 1.0\n---\noptim:\n  lr: 2.0\n", 3, 1, "document", ""},
    {"data:\n  root: a\x01\n", 2, 10, "0x01", ""},
    {"data:\n  root: 中\xff\n", 2, 10, "0xff", "UTF-8"},
    {"optim:\n  lr: !!python/object:os.system 1.0\n", 2, 7, "tag:yaml.org,2002:python/object:os.system", ""},
    {"optim:\n  <<: 5\n", 2, 7, "'<<'", "<<: *"},
    {"\xEF\xBB\xBF# 带BOM\r\noptim:\r\n  lr: x\r\n", 3, 7, "optim.lr|0|1000", "2.0e-5"},
};

static void each_is_refused_at_its_place_with_a_suggestion(void **state)
{
    int count = (int)(sizeof corpus / sizeof *corpus), failed = 0;
    assert_true(count >= 60);
    for (int i = 0; i < count; i++) {
        const struct wrong *w = &corpus[i];
        struct config config;
        struct error e = {0};
        int code = config_load_text(&config, "wrong.yaml", w->text, strlen(w->text), NULL, 0, &e);
        if (code == 0) config_free(&config);
        char said[640]; /* the first line, before the place in the text */
        snprintf(said, sizeof said, "%.*s", (int)strcspn(e.what, "\n"), e.what);
        bool ok = code == EXIT_CONFIG && e.line == w->line && e.column == w->column &&
                  mentions(said, w->what) && mentions(e.hint, w->hint) && e.hint[0] &&
                  strcmp(e.file, "wrong.yaml") == 0 && strchr(e.what, '^');
        if (!ok)
            fprintf(stderr, "--- %d:\n%s=> exit %d, %d:%d (expected %d:%d)\n%s\n%s\n", i, w->text, code,
                    e.line, e.column, w->line, w->column, e.what, e.hint);
        failed += !ok;
    }
    printf("%d wrong files, %d not refused as they should be\n", count, failed);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_is_refused_at_its_place_with_a_suggestion)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
