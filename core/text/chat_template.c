/* Chat templates: see chat_template.h. */
#include "core/text/chat_template.h"
#include "core/base/file.h"

#include <stdlib.h>
#include <string.h>

#define CHATML     "<|im_start|>", "\n", "<|im_end|>", "\n"
#define LLAMA3     "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", ""
#define NO_THOUGHT "<think>\n\n</think>\n\n"
const struct chat_template chat_templates[] = {
    {"chatml", "", CHATML, NULL, "", THOUGHTS_STAY, false, false, false},
    {"qwen2", "", CHATML, "You are a helpful assistant.", "", THOUGHTS_STAY, false, false, false},
    {"qwen2.5", "", CHATML, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", "",
     THOUGHTS_STAY, false, false, false},
    {"qwen3", "", CHATML, NULL, NO_THOUGHT, THOUGHTS_LAST, false, false, false},
    {"llama3", "<|begin_of_text|>", LLAMA3, NULL, "", THOUGHTS_STAY, true, false, false},
    {"chatml-bos", NULL, CHATML, NULL, "", THOUGHTS_STAY, false, false, false},
    {"qwen3-thinking", "", CHATML, NULL, "<think>\n", THOUGHTS_LAST, false, false, false},
    {"qwen3.5", "", CHATML, NULL, NO_THOUGHT, THOUGHTS_AFTER, true, false, true},
    {"smollm2", "", CHATML, "You are a helpful AI assistant named SmolLM, trained by Hugging Face", "",
     THOUGHTS_STAY, false, false, false},
    {"lfm2", NULL, CHATML, NULL, "", THOUGHTS_STAY, false, true, false},
    {0},
};

/* Published templates by chat_template_checksum. tests/tools/compare_templates.py renders those that it
 * finds. */
static const struct {
    uint64_t checksum;
    const char *row;
} published[] = {
    {0x11dd5d2000000123, "chatml"},         /* Hermes, Dolphin, Yi */
    {0x0d469078000000c4, "chatml"},         /* ChatML */
    {0x49ab552c000000c7, "chatml"},         /* OpenHermes 2.5 */
    {0x88452c0100001444, "chatml"},         /* Qwen3-Coder of 2025-10 */
    {0xd5c0881000001405, "chatml"},         /* Qwen3-Coder of 2026 */
    {0xf6341cad000013b5, "chatml"},         /* Qwen3-Coder */
    {0x09f4c76400000126, "chatml"},         /* Hermes, Dolphin, Yi */
    {0xc28f7d3700000806, "chatml"},         /* Qwen3-Instruct-2507 */
    {0xf54e2f5d00000a01, "chatml"},         /* the same of trl, for training */
    {0x0a716ef00000018e, "chatml"},         /* the same of unsloth */
    {0x274064fa000003f9, "qwen2"},          /* Qwen2.5-VL */
    {0xfba3e1ab0000014d, "qwen2"},          /* Qwen2 */
    {0xde076a1100000148, "qwen2"},          /* Qwen2 */
    {0xa7ca6202000009a4, "qwen2"},          /* the same of trl */
    {0xd3b3d9670000082d, "qwen2.5"},        /* Qwen2.5 */
    {0xa21a778700000861, "qwen2.5"},        /* Qwen2.5 of 2024-09 */
    {0xf7ced6c100000984, "qwen2.5"},        /* the same of trl */
    {0x8215c3d600000ce0, "qwen3"},          /* Qwen3, its base models */
    {0xc57f688000000cfc, "qwen3"},          /* Qwen3 of 2025-07 */
    {0xff4698220000132b, "qwen3"},          /* the same of axolotl */
    {0xed03e58200001482, "qwen3"},          /* the same of axolotl */
    {0x81a483cd00000ee7, "qwen3"},          /* the same of unsloth */
    {0x7f52ea85000002b8, "llama3"},         /* the same of axolotl */
    {0xda9fff2600000189, "llama3"},         /* Llama 3 */
    {0x49272a48000001e8, "llama3"},         /* Llama 3 */
    {0x1cb3eff1000001e4, "llama3"},         /* Llama 3 */
    {0xa6ebd3a200000185, "llama3"},         /* Llama 3 */
    {0x9c396bad00000314, "llama3"},         /* the same of trl */
    {0x9bcf578500000227, "llama3"},         /* the same of unsloth */
    {0xdd655f6d000000d4, "chatml-bos"},     /* InternLM 2 */
    {0xcf36937e000000d1, "chatml-bos"},     /* InternLM 2 */
    {0xd92f266a000000d6, "chatml-bos"},     /* InternLM 2 */
    {0xd4c51288000000d3, "chatml-bos"},     /* InternLM 2 */
    {0xb74156920000019d, "chatml-bos"},     /* ChatML of unsloth */
    {0x5ae0001a00000c98, "qwen3-thinking"}, /* Qwen3-Thinking-2507 */
    {0xbfea4ace00000c96, "qwen3-thinking"}, /* the same of unsloth */
    {0x0f63c302000017da, "qwen3.5"},        /* Qwen3.5 */
    {0xa3d32387000017db, "qwen3.5"},        /* Qwen3.5 */
    {0x1f78a361000017e3, "qwen3.5"},        /* Qwen3.6 */
    {0xcabee37700000175, "smollm2"},        /* SmolLM2 */
    {0x7b2ce96c00000170, "smollm2"},        /* SmolLM2 */
    {0x783f94a7000004fe, "lfm2"},           /* LFM2 */
    {0x3aef21be00000b59, "lfm2"},           /* LFM2 of 2025-11 */
    {0x657f294d00000583, "lfm2"},           /* the same of trl */
    {0xbda2a81800000bea, "lfm2"},           /* the same of trl */
};

const struct chat_template *chat_template_named(const char *name)
{
    for (const struct chat_template *c = chat_templates; c->name; c++)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Returns whether the text has one of Jinja's three marks there: {%- {{- {#-, or -%} -}} -#}. */
static bool is_mark(const char *p, bool opens)
{
    return opens ? p[0] == '{' && p[1] && strchr("%{#", p[1]) && p[2] == '-'
                 : p[0] == '-' && p[1] && strchr("%}#", p[1]) && p[2] == '}';
}

uint64_t chat_template_checksum(const char *jinja)
{
    char *text = xmalloc(strlen(jinja) + 1);
    size_t n = 0;
    for (const char *p = jinja; *p;) {
        const char *next = p;
        while (is_space(*next)) next++;
        bool unseen = next > p && (is_mark(next, true) || (n >= 3 && is_mark(text + n - 3, false)));
        if (unseen) p = next;
        else if (next > p)
            for (; p < next; p++) n += (text[n] = *p) != '\r';
        else text[n++] = *p++;
    }
    n -= n && text[n - 1] == '\n';
    uint64_t sum = (uint64_t)crc32c(0, text, n) << 32 | (uint32_t)n;
    free(text);
    return sum;
}

const struct chat_template *chat_template_like(const char *jinja)
{
    uint64_t sum = chat_template_checksum(jinja);
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (published[i].checksum == sum) return chat_template_named(published[i].row);
    return NULL;
}
