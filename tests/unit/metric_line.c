/* metrics.jsonl is read fast and exactly: numbers as strtod, torn and foreign lines refused, fields lenient.
 */
#include "core/run/metric_line.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static bool parse(struct metric_line *l, const char *text)
{
    return metric_line_parse(l, text, strlen(text));
}

static const char whole_line[] = "{\"step\":7,\"epoch\":2,\"loss\":0.0123456789,\"cosine\":-0.5,\"lr\":2."
                                 "0000000000000002e-05,\"grad_norm\":1,"
                                 "\"images_per_s\":123.25,\"step_ms\":10.5,\"data_wait_ms\":0,\"cards\":[{"
                                 "\"rank\":0,\"device\":\"a]}\\\"b\",\"peak_bytes\":5}]}";

static void every_field_is_read(void **state)
{
    struct metric_line l;
    assert_true(parse(&l, whole_line));
    assert_int_equal(l.step, 7);
    assert_int_equal(l.epoch, 2);
    assert_true(l.loss == 0.0123456789 && l.scores[SCORE_COSINE] == -0.5 && l.lr == 2.0000000000000002e-05 &&
                l.grad_norm == 1 && l.images_per_s == 123.25);
    assert_true(l.step_ms == 10.5 && l.data_wait_ms == 0);
    assert_memory_equal(whole_line + l.cards_at, "[{\"rank\":0", 10);
    assert_int_equal(l.cards_at + l.cards_bytes, strlen(whole_line) - 1);
}

static void order_spaces_and_unknown_fields_do_not_matter(void **state)
{
    struct metric_line l;
    assert_true(parse(&l, " { \"new\" : { \"a\" : [ 1 , \"}\" ] } , \"loss\" : null , \"lr\":\"text\", "
                          "\"cosine\" : NaN, \"step_ms\":-Infinity, \"step\" : 3 } \r\n"));
    assert_int_equal(l.step, 3);
    assert_int_equal(l.epoch, -1);
    assert_true(isnan(l.loss) && isnan(l.scores[SCORE_COSINE]) && isnan(l.lr) && isnan(l.grad_norm) &&
                isinf(l.step_ms));
    assert_int_equal(l.cards_bytes, 0);
    assert_true(parse(&l, "{\"step\":0}"));
    assert_true(isnan(l.images_per_s));
}

static void the_throughput_has_the_unit_of_the_run(void **state)
{
    struct metric_line l;
    const struct unit *unit;
    assert_true(parse(&l, whole_line));
    assert_true(metric_rate(&l, &unit) == 123.25);
    assert_ptr_equal(unit, unit_of(false));
    assert_true(parse(&l, "{\"step\":1,\"images_per_s\":3,\"tokens_per_s\":96}"));
    assert_true(metric_rate(&l, &unit) == 96);
    assert_ptr_equal(unit, unit_of(true));
}

static void every_torn_line_is_refused(void **state)
{
    struct metric_line l;
    for (size_t n = 0; n < strlen(whole_line); n++) assert_false(metric_line_parse(&l, whole_line, n));
    static const char *const foreign[] = {"",
                                          "\n",
                                          "[]",
                                          "{}",
                                          "null",
                                          "{\"step\":-1}",
                                          "{\"step\":1.5}",
                                          "{\"step\":\"1\"}",
                                          "{\"loss\":1}",
                                          "{\"step\":1}x",
                                          "{\"step\":1,}",
                                          "{\"step\":1,\"loss\":}",
                                          "{\"step\":1 \"loss\":2}",
                                          "{\"step\":1e30}",
                                          "{\"step\":1,\"loss\":1.}",
                                          "{\"step\":1,\"loss\":--1}",
                                          "{\"step\":1,\"a\nb\":1}",
                                          "\x89PNG\r\n"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) assert_false(parse(&l, foreign[i]));
}

static void numbers_are_rounded_as_strtod_does(void **state)
{
    static const char *const hard[] = {"9007199254740993",
                                       "9007199254740992.5",
                                       "0.1",
                                       "1e23",
                                       "8.5e22",
                                       "123456789012345678e-27",
                                       "5e-324",
                                       "1.7976931348623157e308",
                                       "2.2250738585072011e-308",
                                       "1e400",
                                       "0e5",
                                       "-0.0",
                                       "18446744073709551615",
                                       "99999999999999999999999",
                                       "7450580596923828125e-27",
                                       "1e27",
                                       "1e-27",
                                       "9007199254740991e27",
                                       "4503599627370497.5",
                                       "0.000000000000000000000000001",
                                       "1E+5",
                                       "36893488147419103232",
                                       "184467440737095516160e-3",
                                       "3.5e-5",
                                       "1e22",
                                       "1e0"};
    uint64_t random = 1;
    for (size_t i = 0; i < 400000 + sizeof hard / sizeof *hard; i++) {
        char text[64];
        if (i < sizeof hard / sizeof *hard) snprintf(text, sizeof text, "%s", hard[i]);
        else {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t bits = random ^ random >> 29;
            double value;
            if (i % 3 == 0) memcpy(&value, &bits, 8);
            else value = ldexp((double)(bits >> 11), (int)(bits % 140) - 120);
            if (!isfinite(value)) continue;
            snprintf(text, sizeof text, i % 2 ? "%.17g" : i % 4 ? "%.9g" : "%.19g", value);
        }
        const char *after;
        double mine = metric_number(text, text + strlen(text), &after), theirs = strtod(text, NULL);
        if (memcmp(&mine, &theirs, 8) != 0 || *after) fail_msg("%s: %.17g, strtod %.17g", text, mine, theirs);
    }
}

static void two_million_lines_take_about_a_second(void **state)
{
    enum { LINES = 200000 };
    char *text = malloc((size_t)LINES * 320), *p = text;
    for (int i = 1; i <= LINES; i++)
        p += sprintf(p,
                     "{\"step\":%d,\"epoch\":%d,\"loss\":%.9g,\"cosine\":%.9g,\"lr\":%.9g,\"grad_norm\":%.9g,"
                     "\"images_per_s\":%.9g,\"step_ms\":%.9g,\"data_wait_ms\":%.9g}\n",
                     i, i / 100, 1.0 / i, 1 - 0.5 / i, 2e-5 * i / LINES, 3.0 / i, 100 + 1.0 / i, 10 + 1.0 / i,
                     0.01 / i);
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    int count = 0;
    struct metric_line l;
    for (char *at = text; at < p; count++) {
        char *end = memchr(at, '\n', (size_t)(p - at));
        assert_true(metric_line_parse(&l, at, (size_t)(end - at)));
        at = end + 1;
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
    print_message("%.0f ns a line, 2,000,000 lines in %.2f s\n", seconds / count * 1e9,
                  seconds / count * 2e6);
    assert_int_equal(count, LINES);
    assert_int_equal(l.step, LINES);
#if !defined(__SANITIZE_ADDRESS__) && defined(__OPTIMIZE__)
    assert_true(seconds / count < 5e-6); /* a loaded machine; alone it is a tenth */
#endif
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_field_is_read),
                                       cmocka_unit_test(order_spaces_and_unknown_fields_do_not_matter),
                                       cmocka_unit_test(the_throughput_has_the_unit_of_the_run),
                                       cmocka_unit_test(every_torn_line_is_refused),
                                       cmocka_unit_test(numbers_are_rounded_as_strtod_does),
                                       cmocka_unit_test(two_million_lines_take_about_a_second)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
