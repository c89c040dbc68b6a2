/* Published chat templates are known by a checksum of what Jinja sees of their text, any other text is
 * unknown. With files as arguments it prints the checksum and the row of each. */
#include "core/text/chat_template.h"
#include "core/base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The shortest published one (OpenHermes and others), and the same with a word changed. */
static const char chatml[] = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                             "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if "
                             "add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static void test_identity(void **state)
{
    char changed[sizeof chatml + 16];
    struct chat_template c = {0};
    assert_true(chat_template_like(&c, chatml));
    assert_string_equal(c.name, "chatml");
    for (size_t i = 0; i < sizeof chatml - 1; i++) { /* no byte can change */
        memcpy(changed, chatml, sizeof chatml);
        changed[i] ^= 1;
        assert_false(chat_template_like(&c, changed));
    }
    snprintf(changed, sizeof changed, "%s ", chatml);
    assert_false(chat_template_like(&c, changed));
    snprintf(changed, sizeof changed, "%s\n", chatml); /* which Jinja removes */
    assert_true(chat_template_like(&c, changed));
    assert_false(chat_template_like(&c, ""));
}

/* White space that Jinja does not see is no part of the text; what it sees is. */
static void test_white_space(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } rows[] = {
        {"{%- if a %}\n    {{- b }}\n{%- endif %}", "{%- if a %}{{- b }}\r\n  {%- endif %}\n", true},
        {"{% if a -%}\n\n b{# c -#} d", "{% if a -%}b{# c -#}d", true},
        {"{% if a %}\n b", "{% if a %}b", false},
        {"{{ 'a\nb' }}", "{{ 'a b' }}", false},
        {"{{ 'a\r\nb' }}", "{{ 'a\nb' }}", true},
        {"a\n\n", "a\n", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((chat_template_checksum(rows[i].a) == chat_template_checksum(rows[i].b)) != rows[i].same)
            fail_msg("row %zu", i);
}

/* The options offer each row. */
static void test_names(void **state)
{
    char names[4096] = "";
    for (const struct chat_template *c = chat_templates; c->name; c++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s|", c->name);
        assert_ptr_equal(chat_template_named(c->name), c);
    }
    strcat(names, "FILE.json");
    assert_string_equal(names, CHAT_TEMPLATE_NAMES);
    for (const struct chat_published *p = chat_published; p->row; p++)
        assert_non_null(chat_template_named(p->row));
}

static int print(int count, char **files)
{
    for (int i = 0; i < count; i++) {
        char *text;
        size_t bytes;
        struct error err;
        if (file_read(files[i], 1 << 24, &text, &bytes, &err)) return 1;
        struct chat_template c = {0};
        bool known = chat_template_like(&c, text);
        printf("%016llx %s %s\n", (unsigned long long)chat_template_checksum(text), known ? c.name : "-",
               files[i]);
        free(text);
    }
    return 0;
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_identity), cmocka_unit_test(test_white_space),
                                       cmocka_unit_test(test_names)};
    return count > 1 ? print(count - 1, arguments + 1) : cmocka_run_group_tests(tests, NULL, NULL);
}
