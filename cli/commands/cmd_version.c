/* meopt version: the version; with --verbose what the program was built from and runs with, and what has
 * changed. */
#include "cli/command.h"
#include "cli/config/cmd_config.h"
#include "core/base/translate.h"
#include "core/train/meta.h"
#include "fetch/libarchive.h"
#include "fetch/libcrypto.h"
#include "fetch/libcurl.h"

#include <gnu/libc-version.h>
#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <png.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include <webp/decode.h>
#include <yaml.h>
#include <zlib.h>

struct version_fact {
    const char *name;
    char value[96];
};
enum { FACTS = 16 };

/* Fills what was known when the program was built, then the libraries it runs with; returns their number. */
static int read_facts(struct version_fact all[FACTS])
{
    int n = 0, webp = WebPGetDecoderVersion();
    char pcre[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre);
#define FACT(what, ...) (all[n].name = (what), snprintf(all[n++].value, sizeof all->value, __VA_ARGS__))
    FACT(N_("compiler"), "%s %s", MEOPT_COMPILER, __VERSION__);
    FACT(N_("processor"), "%s", MEOPT_PROCESSOR);
    FACT(N_("code objects"), "%s", *MEOPT_ARCHS ? MEOPT_ARCHS : "none");
    FACT("MPI", "%s", *MEOPT_MPI_VERSION ? MEOPT_MPI_VERSION : "none");
    FACT("glibc", "%s", gnu_get_libc_version());
    bool curl = !libcurl_load(NULL), archive = !libarchive_load(NULL);
    const char *archive_version = archive ? libarchive.version_string() : "none";
    FACT("libcurl", "%s", curl ? libcurl.version_info(CURLVERSION_NOW)->version : "none");
    FACT("libarchive", "%s", archive ? archive_version + strcspn(archive_version, "0123456789") : "none");
    FACT("OpenSSL", "%s", libcrypto_load(NULL) ? "none" : libcrypto.version(OPENSSL_VERSION));
    FACT("libyaml", "%s", yaml_get_version_string());
    FACT("jansson", "%s", JANSSON_VERSION);
    FACT("zlib", "%s", zlibVersion());
    FACT("libpng", "%s", png_get_libpng_ver(NULL));
    FACT("libwebp", "%d.%d.%d", webp >> 16, webp >> 8 & 255, webp & 255);
    FACT("PCRE2", "%s", pcre);
    FACT("utf8proc", "%s", utf8proc_version());
#undef FACT
    return n;
}

static int version_run(const struct arguments *args, struct error *err)
{
    bool verbose = argument_flag(args, "verbose");
    struct version_fact all[FACTS];
    int count = verbose ? read_facts(all) : 0;
    (void)err;
    if (argument_flag(args, "json")) {
        json_t *root = json_pack("{s:s}", "version", meta_version()), *build = json_object();
        for (int i = 0; i < count; i++) json_object_set_new(build, all[i].name, json_string(all[i].value));
        if (verbose) json_object_set(root, "build", build);
        if (verbose) json_object_set_new(root, "changes", json_stringn(changelog, changelog_bytes));
        json_decref(build);
        print_json(root);
        return 0;
    }
    printf("meopt %s\n", meta_version());
    for (int i = 0; i < count; i++) printf("  %*s %s\n", PAD(-14, _(all[i].name)), all[i].value);
    if (verbose) printf("\n%.*s", (int)changelog_bytes, changelog);
    return 0;
}

static const struct option options[] = {
    {"verbose", .letter = 'v', .help = "also the compiler, the libraries, and what has changed"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_version = {
    .name = "version",
    .operands = "",
    .summary = "print the version, and with --verbose what it was built from and what has changed",
    .options = options,
    .run = version_run,
};
