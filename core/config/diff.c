/* Unified diff (E. W. Myers, An O(ND) difference algorithm, 1986). Files here are pages of text that
 * differ in few lines; beyond MAX_D differing lines the middle is shown as replaced. */
#include "core/base/file.h"
#include "core/config/edit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_D = 400, CONTEXT = 3 };

struct line {
    const char *text;
    size_t bytes; /* with the line ending */
};

struct side {
    struct line *lines;
    int count;
    bool *changed;
};

static void split_lines(struct side *side, const char *text, size_t bytes)
{
    int capacity = 16;
    side->lines = xmalloc((size_t)capacity * sizeof *side->lines);
    side->count = 0;
    for (size_t i = 0; i < bytes;) {
        const char *end = memchr(text + i, '\n', bytes - i);
        size_t n = end ? (size_t)(end - text) + 1 - i : bytes - i;
        if (side->count == capacity)
            side->lines = xrealloc(side->lines, (size_t)(capacity *= 2) * sizeof *side->lines);
        side->lines[side->count++] = (struct line){text + i, n};
        i += n;
    }
    side->changed = xcalloc((size_t)side->count + 1, sizeof *side->changed);
}

static bool equal(const struct line *a, const struct line *b)
{
    return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
}

/* Marks the differences between a[from_a, to_a) and b[from_b, to_b). */
static void compare(struct side *a, int from_a, int to_a, struct side *b, int from_b, int to_b)
{
    int n = to_a - from_a, m = to_b - from_b, limit = n + m < MAX_D ? n + m : MAX_D, found = -1;
    size_t width = 2 * (size_t)limit + 3;
    int *trace = xcalloc((size_t)(limit + 1) * width, sizeof *trace), offset = limit + 1;
    int *v = xcalloc(width, sizeof *v);
    for (int d = 0; d <= limit && found < 0; d++) {
        memcpy(trace + (size_t)d * width, v, width * sizeof *v);
        for (int k = -d; k <= d && found < 0; k += 2) {
            int x = k == -d || (k != d && v[offset + k - 1] < v[offset + k + 1]) ? v[offset + k + 1]
                                                                                 : v[offset + k - 1] + 1;
            int y = x - k;
            while (x < n && y >= 0 && y < m && equal(&a->lines[from_a + x], &b->lines[from_b + y])) {
                x++;
                y++;
            }
            v[offset + k] = x;
            if (x >= n && y >= m) found = d;
        }
    }
    int x = n, y = m;
    for (int d = found; d > 0; d--) {
        const int *t = trace + (size_t)d * width;
        int k = x - y;
        int before = k == -d || (k != d && t[offset + k - 1] < t[offset + k + 1]) ? k + 1 : k - 1;
        int px = t[offset + before], py = px - before;
        if (before == k + 1) b->changed[from_b + py] = true;
        else a->changed[from_a + px] = true;
        x = px;
        y = py;
    }
    for (int i = 0; found < 0 && i < n; i++) a->changed[from_a + i] = true;
    for (int i = 0; found < 0 && i < m; i++) b->changed[from_b + i] = true;
    free(v);
    free(trace);
}

static void print_line(FILE *out, char mark, const struct line *line)
{
    fputc(mark, out);
    fwrite(line->text, 1, line->bytes, out);
    if (line->bytes == 0 || line->text[line->bytes - 1] != '\n')
        fputs("\n\\ No newline at end of file\n", out);
}

static void hunks(FILE *out, const struct side *a, const struct side *b)
{
    for (int i = 0, j = 0; i < a->count || j < b->count;) {
        if (!(i < a->count && a->changed[i]) && !(j < b->count && b->changed[j])) {
            i++;
            j++;
            continue;
        }
        int from_a = i - CONTEXT > 0 ? i - CONTEXT : 0, from_b = j - (i - from_a), quiet = 0, x = i, y = j,
            end_a = i, end_b = j;
        while ((x < a->count || y < b->count) && quiet <= 2 * CONTEXT) {
            bool gone = x < a->count && a->changed[x], come = y < b->count && b->changed[y];
            if (gone) x++;
            if (come) y++;
            if (!gone && !come) {
                x++;
                y++;
                quiet++;
            } else {
                quiet = 0;
                end_a = x;
                end_b = y;
            }
        }
        int to_a = end_a + CONTEXT < a->count ? end_a + CONTEXT : a->count, to_b = end_b + (to_a - end_a);
        int na = to_a - from_a, nb = to_b - from_b;
        fprintf(out, "@@ -%d,%d +%d,%d @@\n", na ? from_a + 1 : from_a, na, nb ? from_b + 1 : from_b, nb);
        for (x = from_a, y = from_b; x < to_a || y < to_b;) {
            if (x < to_a && a->changed[x]) print_line(out, '-', &a->lines[x++]);
            else if (y < to_b && b->changed[y]) print_line(out, '+', &b->lines[y++]);
            else {
                print_line(out, ' ', &a->lines[x++]);
                y++;
            }
        }
        i = to_a;
        j = to_b;
    }
}

char *diff_unified(const char *name_a, const char *a, size_t a_bytes, const char *name_b, const char *b,
                   size_t b_bytes)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return xstrdup("");
    struct side left, right;
    split_lines(&left, a, a_bytes);
    split_lines(&right, b, b_bytes);
    int head = 0, tail = 0;
    while (head < left.count && head < right.count && equal(&left.lines[head], &right.lines[head])) head++;
    while (tail < left.count - head && tail < right.count - head &&
           equal(&left.lines[left.count - 1 - tail], &right.lines[right.count - 1 - tail]))
        tail++;
    if (head < left.count || head < right.count) {
        compare(&left, head, left.count - tail, &right, head, right.count - tail);
        fprintf(out, "--- %s\n+++ %s\n", name_a, name_b);
        hunks(out, &left, &right);
    }
    free(left.lines);
    free(left.changed);
    free(right.lines);
    free(right.changed);
    fclose(out);
    return text;
}
