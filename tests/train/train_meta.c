/* meta.json and plan.json describe the run: its sizes, the plan for this device, and the plan of the same
 * experiment without MEOpt. */
#include "core/nn/nn.h"
#include "core/experiment/experiment.h"
#include "core/train/meta.h"
#include "core/plan/plan.h"
#include "tests/train/tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

enum { TOTAL = 77 };

static json_t *load(const struct run *run, const char *name)
{
    char *path = run_path(run, name);
    json_t *object = json_load_file(path, 0, NULL);
    free(path);
    assert_true(json_is_object(object));
    return object;
}

static json_int_t number(const json_t *object, const char *key)
{
    const json_t *x = json_object_get(object, key);
    if (!json_is_integer(x)) fail_msg("%s is no whole number", key);
    return json_integer_value(x);
}

static void check(const struct tiny *tiny, const struct run *run, const struct data *data)
{
    json_t *meta = load(run, "meta.json"), *plan = load(run, "plan.json"),
           *baseline = json_object_get(plan, "baseline");
    const struct trainer *t = tiny->trainer;
    assert_int_equal(number(meta, "version"), 1);
    assert_int_equal(number(meta, "pid"), getpid());
    assert_int_equal(number(meta, "images"), 5);
    assert_int_equal(number(meta, "batch_images"), 2);
    assert_int_equal(number(meta, "epoch_steps"), 2);
    assert_int_equal(number(meta, "total_steps"), TOTAL);
    assert_int_equal(number(meta, "ranks"), 1);
    assert_int_equal(number(meta, "seed"), t->config->train.seed);
    assert_int_equal(number(meta, "student_parameters"), model_shape_parameters(&t->student_shape));
    assert_int_equal(number(meta, "teacher_parameters"), model_shape_parameters(&t->teachers[0].shape));
    assert_string_equal(json_string_value(json_object_get(meta, "family")), "eva");
    assert_string_equal(json_string_value(json_object_get(meta, "device")), tiny->device->name);
    char hash[16];
    snprintf(hash, sizeof hash, "%08x", (unsigned)data_hash(data));
    assert_string_equal(json_string_value(json_object_get(meta, "data_crc32c")), hash);
    assert_int_equal(strlen(json_string_value(json_object_get(meta, "program_crc32c"))), 8);
    assert_int_equal(strlen(json_string_value(json_object_get(meta, "config_hash"))), 16);
    assert_string_equal(json_string_value(json_object_get(json_object_get(meta, "config"), "optim.beta1")),
                        "0.9");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(json_object_get(meta, "start"), 0), "name")),
        "device");
    struct meopt_bytes held;
    assert_int_equal(meopt_held(t->opt, &held), 0);
    double per_parameter = json_real_value(json_object_get(meta, "optimizer_bytes_per_param"));
    assert_true(per_parameter == (double)held.total / (double)held.parameters);
    struct plan made;
    struct error err = {0};
    if (plan_make(&made, &tiny->config, &err)) fail_msg("%s", err.what);
    assert_int_equal(number(meta, "planned_peak_bytes"), made.use.peak_total_bytes);
    assert_int_equal(number(meta, "checkpoint_bytes"), made.checkpoint_bytes);
    assert_int_equal(number(plan, "peak_bytes"), made.use.peak_total_bytes);
    assert_true(made.use.peak_total_bytes >= tiny->device->use.peak_total_bytes); /* no step was made yet */
    assert_int_equal(number(baseline, "peak_bytes"), number(meta, "planned_baseline_peak_bytes"));
    json_int_t sum = 0;
    const char *name;
    json_t *bytes;
    json_object_foreach(json_object_get(plan, "classes"), name, bytes) sum += json_integer_value(bytes);
    assert_true(sum >= number(plan, "peak_bytes"));
    assert_true(number(json_object_get(baseline, "classes"), "optimizer") >
                number(json_object_get(plan, "classes"), "optimizer"));
    json_decref(meta);
    json_decref(plan);
}

static void meta_json_describes_the_run(void **state)
{
    struct tiny tiny;
    struct run run;
    struct data *data;
    struct error err = {0};
    assert_int_equal(tiny_begin(&tiny), 0);
    if (tiny_open(&tiny, "optim.preset=balanced", NULL, NULL, &err)) fail_msg("%s", err.what);
    uint64_t before = config_hash(&tiny.config);
    struct data_options options = experiment_data_options(&tiny.config);
    assert_int_equal(data_open(&data, &options, &err), 0);
    if (run_create(&run, tiny.directory, "run", &tiny.config, &err)) fail_msg("%s", err.what);
    json_t *start = json_pack("[{s:s}]", "name", "device"),
           *identity = json_pack("{s:s}", "optim.beta1", "0.9");
    if (meta_write(&run, tiny.trainer, data, TOTAL, 5e12, start, identity, &err)) fail_msg("%s", err.what);
    json_decref(identity);
    json_decref(start);
    check(&tiny, &run, data);
    assert_true(config_hash(&tiny.config) == before); /* plans are made of copies */
    data_close(data);
    run_close(&run);
    tiny_close(&tiny);
    assert_int_equal(tiny_end(&tiny), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(meta_json_describes_the_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
