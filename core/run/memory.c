/* Memory by class, as JSON: see memory.h. */
#include "core/run/memory.h"
#include "core/base/json.h"

json_t *memory_offloaded_json(const struct memory_use *use, enum memory_place place)
{
    json_t *classes = json_object();
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        if (use->offloaded_peak_bytes[place][c])
            json_object_set_new(classes, memory_class_names[c],
                                json_integer((json_int_t)use->offloaded_peak_bytes[place][c]));
    return classes;
}

json_t *memory_json(const struct memory_use *use)
{
    json_t *classes = json_object();
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        json_object_set_new(classes, memory_class_names[c], json_integer((json_int_t)use->peak_bytes[c]));
    return json_pack("{s:I, s:I, s:o, s:o, s:o}", "mem_bytes", (json_int_t)use->current_total_bytes,
                     "peak_bytes", (json_int_t)use->peak_total_bytes, "classes", classes, "host_classes",
                     memory_offloaded_json(use, PLACE_HOST), "file_classes",
                     memory_offloaded_json(use, PLACE_FILE));
}

struct run_memory memory_parse(const json_t *object)
{
    static const char *const class_keys[PLACE_COUNT] = {
        [PLACE_HOST] = "host_classes", [PLACE_FILE] = "file_classes"};
    struct run_memory m = {
        json_member_count(object, "mem_bytes"), json_member_count(object, "peak_bytes"), {0}, {{0}}};
    const json_t *classes = json_object_get(object, "classes");
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        m.class_bytes[c] = json_member_count(classes, memory_class_names[c]);
    for (int place = 0; place < PLACE_COUNT; place++)
        for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
            int64_t bytes =
                json_member_count(json_object_get(object, class_keys[place]), memory_class_names[c]);
            m.offloaded_bytes[place][c] = bytes > 0 ? bytes : 0;
        }
    return m;
}
