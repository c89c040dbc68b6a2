/* Wrong experiments: each is refused with the right line and column, says what was found, and suggests what
 * to do. */
#include "core/config/config.h"

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
    const char *what, *hint; /* parts of the message */
};

static const struct wrong corpus[] = {
    /* keys */
    {"optim:\n  wieght_decay: 0.1\n", 2, 3, "optim.wieght_decay is not a key", "optim.weight_decay"},
    {"model_s:\n  drop_path: 0.1\n", 2, 3, "model_s.drop_path is not a key", "no drop path"},
    {"optim:\n  adaptive: true\n", 2, 3, "it was removed", "optim.preset"},
    {"model_t:\n  drop_path: 0\n", 2, 3, "model_t.drop_path is not a key", "did you mean"},
    {"optim:\n  pure_bf16: true\nmodel_s:\n  dtype: fp32\n", 2, 3, "model_s.dtype fp32", "bf16"},
    {"optim:\n  learning_rate: 0.1\n", 2, 3, "is not a key", "did you mean optim.lr?"},
    {"optim:\n  LR: 0.1\n", 2, 3, "is not a key", "optim.lr"},
    {"optim:\n  momentun: 0.1\n", 2, 3, "is not a key", "optim.momentum"},
    {"optim:\n  use-meopt: true\n", 2, 3, "is not a key", "optim.use_meopt"},
    {"optim:\n  pure_bf61: true\n", 2, 3, "is not a key", "optim.pure_bf16"},
    {"train:\n  lr: 0.1\n", 2, 3, "train.lr is not a key", "optim.lr"},
    {"train:\n  batchsize: 4\n", 2, 3, "is not a key", "train.batch_size"},
    {"train:\n  root: /x\n", 2, 3, "is not a key", "data.root"},
    {"optimizer:\n  lr: 0.1\n", 1, 1, "is not a section", "optim"},
    {"optmi:\n  lr: 0.1\n", 1, 1, "is not a section", "did you mean optim"},
    {"dta:\n  root: /x\n", 1, 1, "is not a section", "did you mean data"},
    {"batch_size: 4\n", 1, 1, "is not a section", "train.batch_size"},
    {"optim.lr: 0.1\n", 1, 1, "is not a section", "indented below it, 'lr:'"},
    {"zzzzzzzz: 1\n", 1, 1, "is not a section", "sections are model"},
    {"model:\n  weigth_t: a.pt\n", 2, 3, "is not a key", "model.weight_t"},
    {"model:\n  weight: a.pt\n", 2, 3, "is not a key", "model_t.weight"},
    {"model_t:\n  weight_t: a.pt\n", 2, 3, "is not a key", "model_t.weight"},
    {"# 注释\nmodel_s:\n  # 宽度\n  宽度: 64\n", 4, 3, "is not a key", "config list"},
    {"optim: {lr: 0.1, 名: 1}\n", 1, 18, "is not a key", "config list"},
    {"? [a, b]\n: 1\n", 1, 3, "not a word", "words"},
    {"optim:\n  [a]: 1\n", 2, 3, "not a word", "words"},
    /* types */
    {"train:\n  batch_size: many\n", 2, 15, "is text, expected a whole number", "default: 32"},
    {"train:\n  batch_size: 3.5\n", 2, 15, "is a number, expected a whole number", "default"},
    {"train:\n  batch_size: 1e3\n", 2, 15, "expected a whole number", "write 1000"},
    {"train:\n  batch_size: 1_000\n", 2, 15, "expected a whole number", "write 1000"},
    {"train:\n  batch_size: '8'\n", 2, 15, "text in quotes", "write 8 without quotes"},
    {"train:\n  batch_size: true\n", 2, 15, "is a truth value", "default"},
    {"train:\n  batch_size:\n", 2, 14, "has no value", "default: 32"},
    {"train:\n  batch_size: [4]\n", 2, 15, "is a list", "one value"},
    {"train:\n  batch_size: {a: 4}\n", 2, 15, "is a group of keys", "one value"},
    {"train:\n  batch_size:\n    value: 4\n", 3, 5, "is a group of keys", "one value"},
    {"optim:\n  lr: 0,001\n", 2, 7, "is text, expected a number", "default"},
    {"optim:\n  lr: \"2e-5\"\n", 2, 7, "text in quotes", "write 2e-5 without quotes"},
    {"optim:\n  lr: 10%\n", 2, 7, "is text", "default"},
    {"optim:\n  use_meopt: 1\n", 2, 14, "is a whole number, expected true or false", "default: true"},
    {"optim:\n  use_meopt: ture\n", 2, 14, "expected true or false", "default"},
    {"optim: yes\n", 1, 8, "has no keys but a value", "below it"},
    {"optim:\n  - lr: 1\n", 2, 3, "has no keys but a list", "below it"},
    {"- optim\n", 1, 1, "found a list", "section"},
    {"just text\n", 1, 1, "found text", "section"},
    {"device:\n  memory_limit: 16 GB of it\n", 2, 17, "expected a number of bytes", "default"},
    /* ranges and choices */
    {"train:\n  batch_size: 0\n", 2, 15, "from 1 to 65536", "images per rank"},
    {"train:\n  batch_size: -4\n", 2, 15, "from 1 to 65536", "default: 32"},
    {"train:\n  batch_size: 99999999999999999999\n", 2, 15, "from 1 to 65536", "default"},
    {"optim:\n  beta2: 1.0\n", 2, 10, "from 0 to 0.9999999", "default"},
    {"optim:\n  lr: -1.0e-3\n", 2, 7, "from 0 to 1000", "default"},
    {"optim:\n  lr: .inf\n", 2, 7, "from 0 to 1000", "default"},
    {"optim:\n  name: adamax\n", 2, 9, "expected one of apadam, apadamw", "did you mean"},
    {"optim:\n  schedule: cosin\n", 2, 13, "expected one of", "did you mean cosine"},
    {"optim:\n  weights: bf16+9\n", 2, 12, "expected one of", "did you mean bf16+"},
    {"model_t:\n  arch: eva01-g14\n", 2, 9, "expected one of", "did you mean eva01_g14?"},
    {"loss:\n  type: l2\n", 2, 9, "expected one of", "default: mse"},
    {"train:\n  precision: fp16\n", 2, 14, "expected one of", "did you mean"},
    /* what an input method writes for ASCII */
    {"optim：\n  lr: 1.0\n", 2, 5, "not valid YAML", "U+FF1A by ':' in line 1, column 6"},
    {"optim:\n  lr：1.0\n", 2, 3, "has no keys but a value", "U+FF1A by ':' in line 2, column 5"},
    {"optim:\n  lr:　1.0\n", 2, 3, "has no keys but a value", "U+3000 by ' ' in line 2, column 6"},
    {"optim:\n  lr:\xC2\xA0"
     "1.0\n",
     2, 3, "has no keys but a value", "U+00A0 by ' ' in line 2, column 6"},
    {"optim:\n  lr: １.0\n", 2, 7, "expected a number", "U+FF11 by '1'"},
    {"optim:\n  use_meopt: “true”\n", 2, 14, "expected true or false", "U+201C by '\"' in line 2"},
    {"run:\n  name: 实验：a/b\n", 2, 3, "run.name has a '/'", "run.dir"},
    /* twice, and what cannot stand together */
    {"optim:\n  lr: 1.0\n  # again\n  lr: 2.0\n", 4, 3, "given before, in line 2", "keep one"},
    {"optim:\n  lr: 1.0\ndata:\n  root: a\noptim:\n  lr: 2.0\n", 5, 1, "given before, in line 1", "keep one"},
    {"model:\n  weight_t: a\nmodel_t:\n  weight: b\n", 4, 3, "given before, in line 2",
     "model.weight_t is model_t.weight"},
    {"train:\n  batch_size: 32\n  micro_batch: 5\n", 3, 3, "not a multiple", "divisor"},
    {"train:\n  cache_teacher: true\ndata:\n  augment: true\n", 2, 3, "fixed crops", "data.augment: false"},
    {"optim:\n  pure_bf16: true\ntrain:\n  precision: fp32\n", 2, 3, "precision fp32", "bf16"},
    {"model:\n  family: eva\nloss:\n  tokens: cls+patch\n", 4, 3, "patch tokens", "cls"},
    {"model_s:\n  arch: dinov2_vitl14\n  family: eva\n", 2, 3, "of family dinov2", "family"},
    {"optim:\n  lr: 1.0e-4\n  min_lr: 1.0e-3\n", 3, 3, "above optim.lr", "ends"},
    {"data:\n  crop_scale_min: 0.9\n  crop_scale_max: 0.5\n", 2, 3, "above", "swap"},
    {"model_s:\n  width: 100\n  heads: 3\n", 3, 3, "not a multiple of 3 heads", "divide"},
    {"device:\n  cards: 0-3\n", 2, 3, "list of card numbers", "0,1,3"},
    {"run:\n  name: a/b\n", 2, 3, "run.name has a '/'", "run.dir"},
    /* YAML */
    {"optim:\n\tlr: 1.0\n", 2, 1, "not valid YAML", "tabs"},
    {"optim:\n  lr: 1.0\n   beta1: 0.9\n", 3, 9, "not valid YAML", "indentation"},
    {"optim: {lr: 1.0\n", 2, 1, "not valid YAML", "brackets"},
    {"data:\n  root: \"a\n", 3, 1, "not valid YAML", "quotes"},
    {"data:\n  root: a: b\n", 2, 10, "not valid YAML", "quotes"},
    {"data:\n  root: @x\n", 2, 9, "not valid YAML", "quotes"},
    {"data:\n  root: *x\n", 2, 9, "no anchor &x", "quotes"},
    {"optim:\n  lr: 1.0\n---\noptim:\n  lr: 2.0\n", 3, 1, "second document", "one document"},
    {"data:\n  root: a\x01\n", 2, 10, "control character 0x01", "text file"},
    {"data:\n  root: 中\xff\n", 2, 10, "0xff is not UTF-8", "UTF-8"},
    {"optim:\n  lr: !!python/object:os.system 1.0\n", 2, 7, "tag", "remove"},
    {"optim:\n  <<: 5\n", 2, 7, "'<<'", "merge"},
    {"\xEF\xBB\xBF# 带BOM\r\noptim:\r\n  lr: x\r\n", 3, 7, "is text", "default"},
};

static void each_is_refused_at_its_place_with_a_suggestion(void **state)
{
    (void)state;
    int count = (int)(sizeof corpus / sizeof *corpus), failed = 0;
    assert_true(count >= 60);
    for (int i = 0; i < count; i++) {
        const struct wrong *w = &corpus[i];
        struct config config;
        struct error e = {0};
        int code = config_load_text(&config, "wrong.yaml", w->text, strlen(w->text), NULL, 0, &e);
        if (code == 0) config_free(&config);
        bool ok = code == EXIT_CONFIG && e.line == w->line && e.column == w->column &&
                  strstr(e.what, w->what) && strstr(e.hint, w->hint) && strcmp(e.file, "wrong.yaml") == 0 &&
                  strchr(e.what, '^');
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
