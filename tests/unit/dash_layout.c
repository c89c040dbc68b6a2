/* Layout over all sizes and card counts, plots, bars and numbers of the dashboard, without a terminal. */
#include "cli/dashboard/dash_layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void rectangles_fit(void **state)
{
    static unsigned char used[100][300];
    for (int rows = 1; rows <= 100; rows += rows < 45 ? 1 : 11)
        for (int columns = 1; columns <= 300; columns += columns < 140 ? 1 : 20)
            for (int cards = 0; cards <= 64; cards += cards < 4 ? 1 : 12)
                for (int tab = 0; tab < TAB_COUNT; tab++)
                    for (int zoomed = 0; zoomed < 2; zoomed++) {
                        struct dash_layout l = dash_layout(rows, columns, cards, (enum dash_tab)tab, zoomed);
                        assert_int_equal(l.too_small, rows < DASH_MIN_ROWS || columns < DASH_MIN_COLUMNS);
                        if (l.too_small) continue;
                        const struct dash_rect all[] = {l.header, l.cards, l.savings, l.loss,
                                                        l.speed,  l.log,   l.footer};
                        memset(used, 0, sizeof used);
                        for (int i = 0; i < 7; i++) {
                            if (all[i].h == 0) continue;
                            assert_true(all[i].h > 0 && all[i].w > 0 && all[i].y >= 0 && all[i].x >= 0);
                            assert_true(all[i].y + all[i].h <= rows && all[i].x + all[i].w <= columns);
                            for (int y = all[i].y; y < all[i].y + all[i].h; y++)
                                for (int x = all[i].x; x < all[i].x + all[i].w; x++)
                                    assert_int_equal(used[y][x]++, 0);
                        }
                        assert_true(l.header.h && l.footer.h);
                        if (tab == TAB_MEMORY && rows >= 24) assert_true(l.savings.h >= 12);
                        if (tab == TAB_OVERVIEW) {
                            assert_true(l.card_rows >= 1 && l.cards.h == l.card_rows + l.card_titles &&
                                        l.savings.h > 0);
                            if (rows >= 12) assert_true(l.loss.h >= 3);
                        }
                    }
}

static void curves_become_dots(void **state)
{
    struct dash_plot p;
    char cell[8];
    const double x[] = {0, 1, 2, 3}, y[] = {0, 1, 2, 3}, broken[] = {0, NAN, NAN, 3};
    dash_plot_begin(&p, 2, 1, GLYPHS_BRAILLE, 0, 3, 0, 3, false);
    dash_plot_curve(&p, 1, x, y, 4);
    dash_plot_cell(&p, 0, 0, cell);
    assert_string_equal(cell, "⡠"); /* the lower half of a rising line: dots 7 and 6 */
    dash_plot_cell(&p, 0, 1, cell);
    assert_string_equal(cell, "⠊");
    dash_plot_end(&p);
    dash_plot_begin(&p, 2, 1, GLYPHS_BRAILLE, 0, 3, 0, 3, false);
    dash_plot_curve(&p, 1, x, broken, 4);
    dash_plot_cell(&p, 0, 0, cell);
    assert_string_equal(cell, "⡀");
    dash_plot_cell(&p, 0, 1, cell);
    assert_string_equal(cell, "⠈");
    dash_plot_end(&p);
    dash_plot_begin(&p, 3, 1, GLYPHS_ASCII, 0, 2, 0, 1, false);
    const double step[] = {0, 1, 0};
    dash_plot_curve(&p, 1, x, step, 3);
    dash_plot_cell(&p, 0, 0, cell);
    assert_string_equal(cell, ".");
    dash_plot_cell(&p, 0, 1, cell);
    assert_string_equal(cell, "'");
    dash_plot_end(&p);
    /* nothing, one value, everything equal, infinite ranges, no room: no crash, dots inside */
    for (int n = 0; n < 4; n++)
        for (int w = 0; w < 4; w++)
            for (int g = 0; g < 3; g++) {
                const double same[] = {2, 2, 2, 2}, bad[] = {NAN, INFINITY, -INFINITY, 0};
                double min = INFINITY, max = -INFINITY;
                dash_range(same, n, &min, &max);
                dash_plot_begin(&p, w, w, (enum dash_glyphs)g, 0, n, min, max, n & 1);
                dash_plot_curve(&p, 1, x, same, n);
                dash_plot_curve(&p, 2, x, bad, n);
                dash_plot_end(&p);
            }
    /* a curve in front hides the later one in its cells */
    dash_plot_begin(&p, 4, 2, GLYPHS_BLOCK, 0, 3, 0, 3, true);
    assert_false(p.log); /* zero cannot stand on a logarithmic axis */
    dash_plot_curve(&p, 1, x, y, 4);
    dash_plot_curve(&p, 2, x, y, 4);
    for (int i = 0; i < 8; i++) assert_true(p.cells[i] == 0 || p.series[i] == 2);
    dash_plot_end(&p);
}

static void random_curves_stay_inside(void **state)
{
    srand(1);
    for (int round = 0; round < 2000; round++) {
        double x[64], y[64], min = INFINITY, max = -INFINITY;
        int n = rand() % 64;
        for (int i = 0; i < n; i++) {
            x[i] = i;
            y[i] = rand() % 10 == 0 ? NAN : pow(10, rand() % 30 - 15) * (rand() % 100);
        }
        dash_range(y, n, &min, &max);
        struct dash_plot p;
        dash_plot_begin(&p, rand() % 100, rand() % 30, (enum dash_glyphs)(rand() % 3), 0, n - 1, min, max,
                        rand() & 1);
        dash_plot_curve(&p, 1, x, y, n);
        dash_plot_end(&p);
    }
}

static void smoothing_keeps_constants(void **state)
{
    double in[] = {3, 3, NAN, 3, 3}, out[5];
    dash_smooth(in, out, 5, 0.9);
    for (int i = 0; i < 5; i++) {
        if (i == 2) assert_true(isnan(out[i]));
        else assert_float_equal(out[i], 3, 1e-12);
    }
}

static void bars_add_up(void **state)
{
    srand(2);
    for (int round = 0; round < 20000; round++) {
        double parts[8], sum = 0, total;
        int cells[8], w = 1 + rand() % 100, filled = 0;
        for (int i = 0; i < 8; i++) sum += parts[i] = rand() % 3 ? rand() % 1000 : 0;
        total = sum * (1 + rand() % 4) + 1;
        dash_split(parts, 8, total, w, cells);
        for (int i = 0; i < 8; i++) {
            assert_true(cells[i] >= 0 && (parts[i] > 0 || cells[i] == 0));
            filled += cells[i];
        }
        assert_true(filled <= w);
        if (sum > 0) assert_true(filled >= 1 && fabs(filled - sum / total * w) <= 1);
    }
    assert_int_equal(dash_mark(5, 10, 10), 5);
    assert_int_equal(dash_mark(10, 10, 10), 9);
    assert_int_equal(dash_mark(NAN, 10, 10), -1);
    assert_int_equal(dash_mark(1, 0, 10), -1);
}

static void numbers_are_short(void **state)
{
    char t[64];
    assert_string_equal(dash_bytes(t, sizeof t, 0), "0");
    assert_string_equal(dash_number(t, sizeof t, 0), "0");
    assert_string_equal(dash_bytes(t, sizeof t, 1536), "1.50K");
    assert_string_equal(dash_bytes(t, sizeof t, 64.0 * (1 << 30)), "64.0G");
    assert_string_equal(dash_bytes(t, sizeof t, 999.9 * 1024), "0.98M");
    assert_string_equal(dash_bytes(t, sizeof t, -1), "-");
    assert_string_equal(dash_duration(t, sizeof t, 59.4), "59s");
    assert_string_equal(dash_duration(t, sizeof t, 59.6), "1:00");
    assert_string_equal(dash_duration(t, sizeof t, 3723), "1:02:03");
    assert_string_equal(dash_duration(t, sizeof t, 2 * 86400 + 3 * 3600), "2d03h");
    assert_string_equal(dash_duration(t, sizeof t, NAN), "-");
    assert_string_equal(dash_number(t, sizeof t, 0.12345678), "0.1235");
    assert_string_equal(dash_number(t, sizeof t, 1.5e-9), "1.50e-09");
    assert_string_equal(dash_number(t, sizeof t, NAN), "-");
    for (double x = 1e-3; x < 1e16; x *= 1.37) {
        assert_true(strlen(dash_bytes(t, sizeof t, x)) <= 7);
        assert_true(strlen(dash_number(t, sizeof t, x)) <= 8);
        assert_true(strlen(dash_duration(t, sizeof t, x)) <= 9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rectangles_fit),
        cmocka_unit_test(curves_become_dots),
        cmocka_unit_test(random_curves_stay_inside),
        cmocka_unit_test(smoothing_keeps_constants),
        cmocka_unit_test(bars_add_up),
        cmocka_unit_test(numbers_are_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
