/* core/base/translate: texts in Chinese are broken between characters, not before a comma or after an opening
 * bracket, are truncated to whole characters, and occupy two columns per character. */
#include "core/base/translate.h"
#include "core/base/error.h"
#include "core/base/message.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char *const texts[] = {
    "显存（见 meopt-plan(1)），时间；损失：“最终”。",
    "a|bb|ccc|dddd|eeeee",
    "one two three",
    "没有空格的一段很长的中文文本，需要换行、需要对齐（括号）！",
    "é ü ß mixed 中文 with Latin, and 标点。",
    "x",
    "",
};

static bool whole(const char *text)
{
    char shown[1024];
    return strcmp(text_printable(shown, sizeof shown, text), text) == 0;
}

static void lines_break_between_characters(void **state)
{
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (int columns = 1; columns < 80; columns++) {
            const char *rest = texts[t];
            while (text_columns(rest, SIZE_MAX) > columns) {
                char line[256];
                size_t n = text_line(rest, columns);
                assert_in_range(n, 1, strlen(rest));
                snprintf(line, sizeof line, "%.*s", (int)n, rest);
                assert_true(whole(line));
                if (columns >= 24) {
                    assert_true(text_columns(line, SIZE_MAX) <= columns);
                    assert_int_not_equal(strncmp(rest + n, "，", 3), 0);
                    assert_int_not_equal(strncmp(rest + n, "。", 3), 0);
                    assert_true(n < 3 || strncmp(rest + n - 3, "（", 3) != 0);
                }
                rest += n;
                rest += strspn(rest, " ");
            }
        }
}

static int format(char *dst, size_t size, const char *text, ...)
{
    va_list args;
    va_start(args, text);
    int n = text_format(dst, size, text, args);
    va_end(args);
    return n;
}

static void truncated_texts_end_with_a_whole_character(void **state)
{
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t size = 1; size < 100; size++) {
            char *dst = malloc(size); /* exact: a sanitizer sees a byte too many */
            assert_non_null(dst);
            format(dst, size, "%s", texts[t]);
            assert_true(strlen(dst) < size && whole(dst));
            assert_int_equal(strncmp(dst, texts[t], strlen(dst)), 0);
            assert_true(strlen(dst) == strlen(texts[t]) || strlen(dst) + 4 > size - 1);
            free(dst);
        }
}

static void padding_counts_columns(void **state)
{
    char text[64];
    snprintf(text, sizeof text, "[%*s]", PAD(-8, "显存"));
    assert_string_equal(text, "[显存    ]");
    snprintf(text, sizeof text, "[%*s]", PAD(8, "显存"));
    assert_string_equal(text, "[    显存]");
    assert_int_equal(text_columns("显存 GiB", SIZE_MAX), 8);
}

static void a_missing_catalogue_leaves_english(void **state)
{
    assert_false(translate_open("/nowhere/meopt.mo"));
    assert_false(translate_open("/dev/null"));
    assert_string_equal(translation("loss"), "loss");
    assert_null(translation(NULL));
}

/* Replaces each conversion with a value of its kind. */
static void fill(char *dst, size_t size, const char *format)
{
    size_t used = 0;
    for (const char *p = format; *p && used + 16 < size;) {
        if (*p != '%' || p[1] == '%') {
            dst[used++] = *p;
            p += 1 + (*p == '%');
            continue;
        }
        size_t digits = strspn(p + 1, "0123456789"), bytes = 1 + strcspn(p + 1, "diouxXcsaefgAEFGp");
        char number = p[1 + digits] == '$' ? p[1] : '0';
        bool ending = p[bytes] == 's' && (strncmp(p + bytes - 2, ".0", 2) == 0);
        if (!ending)
            used += (size_t)snprintf(dst + used, size - used, p[bytes] == 's' ? "a%c.yaml" : "%c", number);
        p += bytes + 1;
    }
    dst[used] = 0;
}

static void messages_go_through_files_in_english(void **state)
{
    const char *english, *translated;
    char path[4096], from[2048], text[2048], back[2048], again[2048];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    int count = 0, same = 0;
    assert_true(n > 0);
    path[n] = 0;
    *strrchr(path, '/') = 0;
    strcat(path, "/../share/locale/zh_CN/LC_MESSAGES/meopt.mo");
    if (!translate_open(path)) skip();
    for (uint32_t i = 1; translation_pair(i, &english, &translated); i += 11) {
        fill(text, sizeof text, translated); /* %1$s: the conversions differ in their order only */
        fill(from, sizeof from, english);
        message_english(back, sizeof back, text);
        message_translated(again, sizeof again, back);
        if (!strchr(english, ' ')) continue; /* a word alone has several meanings */
        count++;
        same += strcmp(again, text) == 0;
    }
    assert_true(count > 200 && same > count * 95 / 100);
    message_translated(text, sizeof text, "step 3: weights of the student are not finite");
    assert_string_equal(message_english(back, sizeof back, text),
                        "step 3: weights of the student are not finite");
    assert_string_equal(message_english(back, sizeof back, "x"), "x");
    assert_false(translate_open("/nowhere/meopt.mo"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_break_between_characters),
        cmocka_unit_test(truncated_texts_end_with_a_whole_character),
        cmocka_unit_test(padding_counts_columns),
        cmocka_unit_test(messages_go_through_files_in_english),
        cmocka_unit_test(a_missing_catalogue_leaves_english),
    };
    if (!setlocale(LC_CTYPE, "C.UTF-8")) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
