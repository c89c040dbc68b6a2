/* A plot as PDF: one page, vector graphics, no embedded font. Helvetica is built into every viewer; text
 * beyond ASCII (the name of a run) uses the Song typeface that PDF 1.7, 9.7.5.2, predefines for Chinese.
 * It has no date: equal figures give equal bytes. */
#include "core/compare/plot.h"
#include "core/base/file.h"

#include <stdlib.h>
#include <string.h>

enum { FONT_SIZE = 11 };

/* Returns the width in Helvetica, in thousandths of its size, for the kinds of characters in plots. */
static double width_of(const char *text)
{
    double width = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        width += *c >= 0x80                  ? (*c & 0xc0) == 0x80 ? 0 : 1000
                 : strchr("ijl.,:;|'!", *c)  ? 250
                 : strchr(" ftI/()[]-r", *c) ? 300
                 : *c >= '0' && *c <= '9'    ? 556
                 : strchr("mwMW%@", *c)      ? 850
                 : *c >= 'A' && *c <= 'Z'    ? 690
                                             : 540;
    return width / 1000 * FONT_SIZE;
}

static void color(FILE *out, unsigned rgb, const char *operator)
{
    fprintf(out, "%.3f %.3f %.3f %s\n", (rgb >> 16) / 255.0, (rgb >> 8 & 255) / 255.0,
            (rgb & 255) / 255.0, operator);
}

static unsigned rgb_of(int index)
{
    return (unsigned)strtoul(plot_colors[index % PLOT_COLORS] + 1, NULL, 16);
}

static void pdf_line(void *out, enum ink ink, double x1, double y1, double x2, double y2)
{
    color(out, ink == INK_GRID ? 0xdddddd : 0x555555, "RG");
    fprintf(out, "[] 0 d 0.6 w %.2f %.2f m %.2f %.2f l S\n", x1, PLOT_HEIGHT - y1, x2, PLOT_HEIGHT - y2);
}

static void pdf_curve(void *out, int index, const double *xy, int count)
{
    color(out, rgb_of(index), "RG");
    fprintf(out, "[%s] 0 d 1.3 w 1 j ", plot_dashes[index % PLOT_COLORS]);
    for (int i = 0; i < count; i++)
        fprintf(out, "%.2f %.2f %c\n", xy[2 * i], PLOT_HEIGHT - xy[2 * i + 1], i ? 'l' : 'm');
    fputs("S\n", out);
}

static void pdf_box(void *out, int index, double x, double y, double w, double h, const char *tip)
{
    (void)tip;
    color(out, rgb_of(index), "rg");
    fprintf(out, "%.2f %.2f %.2f %.2f re f\n", x, PLOT_HEIGHT - y - h, w, h);
}

/* Writes UTF-8 as big-endian UTF-16 in hexadecimal digits; invalid UTF-8 becomes a box. */
static void utf16(FILE *out, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        int more = *c >= 0xf0 ? 3 : *c >= 0xe0 ? 2 : *c >= 0xc0 ? 1 : 0;
        unsigned value = more == 3 ? *c & 7u : more == 2 ? *c & 15u : more == 1 ? *c & 31u : *c;
        for (c++; more && (*c & 0xc0) == 0x80; more--) value = value << 6 | (*c++ & 63u);
        if (more || value > 0x10ffff) value = 0x25a1;
        if (value >= 0x10000)
            fprintf(out, "%04x%04x", 0xd800 + ((value - 0x10000) >> 10), 0xdc00 + (value & 0x3ff));
        else fprintf(out, "%04x", value);
    }
}

static void pdf_text(void *context, enum anchor anchor, double x, double y, const char *text)
{
    FILE *out = context;
    bool ascii = true;
    for (const char *c = text; *c; c++) ascii &= (unsigned char)*c < 0x80;
    if (anchor != ANCHOR_START) x -= width_of(text) * (anchor == ANCHOR_END ? 1 : 0.5);
    color(out, 0x222222, "rg");
    fprintf(out, "BT /%s %d Tf %.2f %.2f Td ", ascii ? "F1" : "F2", FONT_SIZE, x, PLOT_HEIGHT - y);
    if (ascii) {
        fputc('(', out);
        for (; *text; text++) fprintf(out, strchr("()\\", *text) ? "\\%c" : "%c", *text);
        fputs(") Tj ET\n", out);
    } else {
        fputc('<', out);
        utf16(out, text);
        fputs("> Tj ET\n", out);
    }
}

static const char *const objects[] = {
    "<</Type/Catalog/Pages 2 0 R>>",
    "<</Type/Pages/Kids[3 0 R]/Count 1>>",
    NULL, /* the page, and its content */
    NULL,
    "<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
    "<</Type/Font/Subtype/Type0/BaseFont/STSong-Light-UniGB-UTF16-H/Encoding/UniGB-UTF16-H"
    "/DescendantFonts[7 0 R]>>",
    "<</Type/Font/Subtype/CIDFontType0/BaseFont/STSong-Light/CIDSystemInfo<</Registry(Adobe)/Ordering(GB1)"
    "/Supplement 4>>/FontDescriptor 8 0 R>>",
    "<</Type/FontDescriptor/FontName/STSong-Light/Flags 6/FontBBox[-25 -254 1000 880]/ItalicAngle 0"
    "/Ascent 880/Descent -120/CapHeight 880/StemV 93>>",
};
enum { OBJECTS = sizeof objects / sizeof *objects };

void plot_pdf(FILE *out, const struct plot *p)
{
    char *content = NULL;
    size_t bytes = 0;
    long at[OBJECTS];
    FILE *drawn = open_memstream(&content, &bytes);
    if (!drawn) return; /* out of memory: the caller's stream is in memory, too, and reports it */
    const struct canvas canvas = {drawn, false, pdf_line, pdf_curve, pdf_box, pdf_text};
    plot_draw(p, &canvas);
    if (fclose(drawn) != 0) bytes = 0;
    long length = fprintf(out, "%%PDF-1.7\n%%\xc3\xa4\xc3\xb6\n");
    for (int i = 0; i < OBJECTS; i++) {
        at[i] = length;
        length += fprintf(out, "%d 0 obj\n", i + 1);
        if (objects[i]) length += fprintf(out, "%s\n", objects[i]);
        else if (i == 2)
            length += fprintf(out,
                              "<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d %d]/Contents 4 0 R"
                              "/Resources<</Font<</F1 5 0 R/F2 6 0 R>>>>>>\n",
                              PLOT_WIDTH, PLOT_HEIGHT);
        else {
            length += fprintf(out, "<</Length %zu>>\nstream\n", bytes);
            length += (long)fwrite(content, 1, bytes, out);
            length += fprintf(out, "\nendstream\n");
        }
        length += fprintf(out, "endobj\n");
    }
    fprintf(out, "xref\n0 %d\n0000000000 65535 f \n", OBJECTS + 1);
    for (int i = 0; i < OBJECTS; i++) fprintf(out, "%010ld 00000 n \n", at[i]);
    fprintf(out, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%ld\n%%%%EOF\n", OBJECTS + 1, length);
    free(content);
}
