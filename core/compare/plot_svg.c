/* A plot as SVG, with classes of a style sheet, so that a page can follow the reader's light or dark
 * scheme. */
#include "core/compare/plot.h"

#include <string.h>

void html_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        case '\'': fputs("&#39;", out); break;
        default: fputc(*text, out);
        }
    }
}

static void svg_line(void *out, enum ink ink, double x1, double y1, double x2, double y2)
{
    fprintf(out, "<path class=\"%s\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", ink == INK_GRID ? "grid" : "axis", x1,
            y1, x2, y2);
}

static void svg_curve(void *out, int color, const double *xy, int count)
{
    fprintf(out, "<path class=\"s c%d\" d=\"", color);
    for (int i = 0; i < count; i++) fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', xy[2 * i], xy[2 * i + 1]);
    fputs("\"/>\n", out);
}

static void svg_box(void *out, int color, double x, double y, double w, double h, const char *tip)
{
    fprintf(out, "<rect class=\"b f%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"", color, x, y, w,
            h);
    if (!tip) {
        fputs("/>\n", out);
        return;
    }
    fputs(" data-tip=\"", out);
    html_text(out, tip);
    fputs("\"><title>", out);
    html_text(out, tip);
    fputs("</title></rect>\n", out);
}

static void svg_text(void *out, enum anchor anchor, double x, double y, const char *text)
{
    static const char *const anchors[] = {"start", "middle", "end"};
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchors[anchor]);
    html_text(out, text);
    fputs("</text>\n", out);
}

void plot_svg(FILE *out, const struct plot *p, bool alone)
{
    const struct canvas canvas = {out, !alone, svg_line, svg_curve, svg_box, svg_text};
    int head = alone ? 0 : p->bars ? PLOT_HEAD + 10 : PLOT_HEAD;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" id=\"%s\" viewBox=\"0 %d %d %d\" role=\"img\" "
            "aria-label=\"%s\">\n",
            p->id, head, PLOT_WIDTH, PLOT_HEIGHT - head, alone ? p->title : _(p->title));
    if (alone) {
        fputs("<style>svg{background:#fff}text{font:11px "
              "sans-serif;fill:#222}.grid{stroke:#ddd}.axis{stroke:#555}.s{fill:none;stroke-width:1.6}\n",
              out);
        for (int k = 0; k < PLOT_COLORS; k++)
            fprintf(out, ".c%d{stroke:%s;stroke-dasharray:%s}.f%d{fill:%s}\n", k, plot_colors[k],
                    plot_dashes[k][0] ? plot_dashes[k] : "none", k, plot_colors[k]);
        fputs("@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#ddd}.grid{stroke:#333}."
              "axis{stroke:#999}}</style>\n",
              out);
    }
    plot_draw(p, &canvas);
    fputs("</svg>\n", out);
}
