/* Checkpoints of more than one file: a directory as Hugging Face's libraries save and download them, and the
 * index of a checkpoint in shards, {"metadata": {...}, "weight_map": {TENSOR: FILE, ...}} (transformers,
 * modeling_utils.py; huggingface_hub, serialization). */
#include "core/base/json_members.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/weights/weights_internal.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INDEX_MAX_BYTES = 4 << 20, MAX_SHARDS = 1024 };

static bool has_suffix(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n > m && strcmp(text + n - m, suffix) == 0;
}

static bool names_weights(const char *name)
{
    static const char *const suffixes[] = {".safetensors", ".bin", ".pt", ".pth"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        if (has_suffix(name, suffixes[i])) return true;
    return false;
}

/* Accepts only a plain name in the index's directory. */
static bool shard_is_plain(const char *name)
{
    return name && strlen(name) < 256 && !strchr(name, '/') && name[0] != '.' && names_weights(name);
}

static int add_shards(struct weights *w, json_t *map, const char *dir, struct error *err)
{
    json_t *seen = json_object(), *file;
    const char *tensor;
    int code = 0;
    json_object_foreach(map, tensor, file)
    {
        const char *name = json_string_value(file);
        if (!shard_is_plain(name))
            code = error_set(err, EXIT_INTEGRITY, "do not trust this file",
                             "tensor %s is listed in %s, expected a weight file next to the index",
                             quote(tensor, strlen(tensor)), name ? quote(name, strlen(name)) : _("no file"));
        else if (json_object_get(seen, name)) continue;
        else if (json_object_size(seen) == MAX_SHARDS)
            code = error_set(err, EXIT_INTEGRITY, "do not trust this file", "lists more than %d files",
                             MAX_SHARDS);
        if (code) break;
        json_object_set_new(seen, name, json_true());
        char *path = path_join(dir, name);
        if (file_absent(path))
            code =
                error_set(err, EXIT_FAILED, "all files of the index must be in its directory: get the rest",
                          "the index lists %s, which is not there", quote(name, strlen(name)));
        else code = weights_add_file(w, path, err);
        free(path);
        if (code) break;
    }
    json_decref(seen);
    return code;
}

/* Checks that every tensor of the index is in its file. */
static int check_index(const struct weights *w, json_t *map, struct error *err)
{
    json_t *found = json_object();
    for (int64_t i = 0; i < w->count; i++) {
        const char *name = w->rows[i].tensor.name, *in = json_string_value(json_object_get(map, name));
        if (in && strcmp(in, path_basename(w->sources[w->rows[i].source].path)) == 0)
            json_object_set_new(found, name, json_true());
    }
    for (int64_t i = 0; i < w->unread_count; i++) json_object_set_new(found, w->unread[i].name, json_true());
    const char *tensor;
    json_t *file;
    int code = 0;
    json_object_foreach(map, tensor, file)
    {
        if (json_object_get(found, tensor)) continue;
        const char *name = json_string_value(file);
        code = error_set(err, EXIT_INTEGRITY, "index and files are not of one checkpoint: get them again",
                         "tensor %s is not in %s, where the index lists it", quote(tensor, strlen(tensor)),
                         quote(name, strlen(name)));
        break;
    }
    json_decref(found);
    return code;
}

int weights_add_index(struct weights *w, const char *path, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t where;
    int code = file_read(path, INDEX_MAX_BYTES, &text, &bytes, err);
    if (code) return code;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    static const struct json_member members[] = {{"metadata", NULL}, {"weight_map", NULL}, {NULL, NULL}};
    json_t *map = json_object_get(root, "weight_map");
    char *dir = path_dirname(path);
    struct file_map whole = {.data = (const uint8_t *)text, .bytes = bytes};
    if (!json_object_size(map)) code = weights_refuse_foreign(&whole, err);
    else code = json_members_check(root, members, NULL, "index", "save the checkpoint again", err);
    if (!code) {
        w->sharded = true;
        code = add_shards(w, map, dir, err);
        if (code == 0) code = check_index(w, map, err);
        w->sharded = false;
    }
    if (code && !err->file[0]) error_at(err, path, 0, 0);
    json_decref(root);
    free(dir), free(text);
    return code;
}

/* Lists some names of weight files in the directory, for the hint. */
static int list_weights(const char *path, char *text, size_t size)
{
    int count = 0;
    size_t used = 0;
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (names_weights(entries[i]->d_name) && ++count <= 4 && used < size - 1) {
            int more = snprintf(text + used, size - used, "%s%s", count > 1 ? ", " : "",
                                quote(entries[i]->d_name, strlen(entries[i]->d_name)));
            used = used + (size_t)more < size ? used + (size_t)more : size - 1;
        }
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return count;
}

int weights_refuse_part(const char *path, struct error *err)
{
    const char *name = path_basename(path), *of = strstr(name, "-of-");
    int shard = 0, shards = 0, used = 0;
    if (strcmp(name, ".metadata") == 0 || has_suffix(name, ".distcp")) {
        error_set(err, EXIT_INTEGRITY, "name the directory", "is a part of a distributed checkpoint");
        return error_at(err, path, 0, 0);
    }
    if (!of || of - name < 6 || sscanf(of - 6, "-%5d-of-%5d.%n", &shard, &shards, &used) != 2) return 0;
    if (used != 16 || shards < 2) return 0;
    error_set(err, EXIT_INTEGRITY,
              "name the directory, or the index of the shards in it (*.index.json); all shards are needed",
              "is part %d of the %d of one checkpoint", shard, shards);
    return error_at(err, path, 0, 0);
}

/* Finds the first of shards without an index, if all shards of one checkpoint are present and no other file
 * has such a name. */
static bool find_shards(const char *dir, const char *stem, const char *suffix, int *shards)
{
    struct dirent **entries;
    int n = scandir(dir, &entries, NULL, NULL), found = 0;
    *shards = 0;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        int shard = 0, of = 0, used = 0;
        size_t length = strlen(stem);
        bool is = strncmp(name, stem, length) == 0 &&
                  sscanf(name + length, "-%5d-of-%5d%n", &shard, &of, &used) == 2 && used == 15 &&
                  strcmp(name + length + used, suffix) == 0;
        if (is && of > 0 && of <= MAX_SHARDS && (!*shards || of == *shards)) *shards = of, found++;
        else if (is) found = -MAX_SHARDS - 1; /* of two checkpoints */
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return *shards > 0 && found == *shards;
}

static int add_unindexed(struct weights *w, const char *dir, const char *stem, const char *suffix, int shards,
                         struct error *err)
{
    int code = 0;
    w->sharded = true;
    for (int i = 1; i <= shards && code == 0; i++) {
        char *path = xasprintf("%s/%s-%05d-of-%05d%s", dir, stem, i, shards, suffix);
        code = weights_add_file(w, path, err);
        free(path);
    }
    w->sharded = false;
    return code;
}

static bool is_there(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    bool there = !file_absent(path);
    free(path);
    return there;
}

/* Other kinds of directories, recognized by a file or directory that only they have. */
static const struct {
    const char *file, *is, *hint;
} kinds_of_directory[] = {
    {"adapter_config.json", N_("is an adapter (LoRA or another of PEFT), not a model"),
     N_("merge it into its model and name that: merge_and_unload() of peft")},
    {"snapshots", N_("is a model in Hugging Face's cache, expected one of its revisions"),
     N_("name the directory of a revision in its snapshots")},
    {"zero_to_fp32.py", N_("is a checkpoint of DeepSpeed, sharded over its ranks"),
     N_("merge it: python zero_to_fp32.py . pytorch_model.bin, in that directory; up to ZeRO-2 "
        "global_step*/mp_rank_00_model_states.pt has all of it, too")},
    {"zero_pp_rank_0_mp_rank_00_model_states.pt",
     N_("is a step of a DeepSpeed checkpoint (ZeRO-3), sharded over its ranks"),
     N_("merge it with the zero_to_fp32.py in the directory above, and name the resulting file")},
    {"zero", N_("is a universal checkpoint of DeepSpeed, with a directory for each tensor"),
     N_("save the model whole: save_16bit_model() of DeepSpeed, or torch.save(model.state_dict(), ...)")},
    {"pytorch_model_fsdp_0", N_("is a checkpoint of accelerate with FSDP"),
     N_("name the directory pytorch_model_fsdp_0 in it")},
    {"latest_checkpointed_iteration.txt", N_("is a checkpoint of Megatron"),
     N_("convert it to transformers' names")},
    {"saved_model.pb", N_("is a SavedModel of TensorFlow"), N_("convert it to PyTorch or safetensors")},
    {"tf_model.h5", N_("is a model of TensorFlow"),
     N_("convert it with transformers before 5: from_pretrained(DIR, from_tf=True) and save_pretrained")},
    {"flax_model.msgpack", N_("is a model of Flax"),
     N_("convert it with transformers before 5: from_pretrained(DIR, from_flax=True) and save_pretrained")},
    {"_CHECKPOINT_METADATA", N_("is a checkpoint of Orbax (JAX)"),
     N_("convert it to PyTorch or safetensors")},
    {"manifest.ocdbt", N_("is a checkpoint of Orbax (JAX)"), N_("convert it to PyTorch or safetensors")},
    {"onnx", N_("is a model in ONNX"), N_("name the PyTorch or safetensors file it was made from")},
    {"model.onnx", N_("is a model in ONNX"), N_("name the PyTorch or safetensors file it was made from")},
    {"openvino_model.xml", N_("is a model of OpenVINO"),
     N_("name the PyTorch or safetensors file it was made from")},
    {"Manifest.json", N_("is a model of Core ML"),
     N_("name the PyTorch or safetensors file it was made from")},
};

int weights_add_directory(struct weights *w, const char *path, struct error *err)
{
    static const char *const names[] = {"model.safetensors",           "model.safetensors.index.json",
                                        "pytorch_model.bin",           "pytorch_model.bin.index.json",
                                        "open_clip_model.safetensors", "open_clip_pytorch_model.bin"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *file = path_join(path, names[i]);
        if (file_absent(file)) { /* a dangling link is opened, too: the error reports it */
            free(file);
            continue;
        }
        int code = has_suffix(file, ".index.json") ? weights_add_index(w, file, err)
                                                   : weights_add_file(w, file, err);
        free(file);
        return code;
    }
    if (is_there(path, ".metadata")) return weights_add_distributed(w, path, err);
    static const char *const kinds[][2] = {
        {"model", ".safetensors"}, {"pytorch_model", ".bin"}, {"open_clip_model", ".safetensors"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int shards;
        if (find_shards(path, kinds[i][0], kinds[i][1], &shards))
            return add_unindexed(w, path, kinds[i][0], kinds[i][1], shards, err);
    }
    char found[200] = "";
    for (size_t i = 0; i < sizeof kinds_of_directory / sizeof *kinds_of_directory; i++)
        if (is_there(path, kinds_of_directory[i].file))
            return error_set(err, EXIT_INTEGRITY, kinds_of_directory[i].hint, "%s", kinds_of_directory[i].is);
    if (list_weights(path, found, sizeof found))
        return error_set(err, EXIT_INTEGRITY, "name the weight file itself",
                         "is a directory without model.safetensors or pytorch_model.bin; it contains %s",
                         found);
    return error_set(
        err, EXIT_INTEGRITY, "name a weight file, or a directory with model.safetensors",
        "is a directory without a weight file (model.safetensors, pytorch_model.bin or their index)");
}
