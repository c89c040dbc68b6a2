/* The comparison as one HTML file without network access or other files. A short script shows the values
 * under the pointer. The page follows the reader's light or dark scheme and prints in black on white. */
#include "core/compare/output.h"
#include "core/compare/sweep.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1c1e21;--dim:#5d6470;--line:#d5d9e0;"
    "--bad:#b3261e;--tip:#1c1e21;--tipfg:#fff}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#16181c;--fg:#e4e6ea;--dim:#9aa2ad;"
    "--line:#353a42;--bad:#ff8a80;--tip:#e4e6ea;--tipfg:#16181c}}\n"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;"
    "max-width:76rem;margin:2rem auto;padding:0 1rem;overflow-wrap:break-word}\n"
    "h1{font-size:1.5rem;line-height:1.25;margin-bottom:.5rem}h2{font-size:1.1rem;"
    "margin-top:2rem}\n"
    ".lead{font-size:1.15rem;margin:.4rem 0}.from{color:var(--dim);font-size:.85rem;"
    "margin:.2rem 0}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;"
    "font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:right;"
    "white-space:nowrap}\n"
    "th:first-child,td:first-child,.why{text-align:left}.in td:first-child{padding-left:2rem}\n"
    ".ch{color:var(--dim);padding-left:.6rem;display:inline-block;min-width:4.2rem}\n"
    ".why{white-space:normal}.bad h2{color:var(--bad)}.pub{font-weight:normal;color:var(--dim);"
    "display:block}li{margin:.2rem 0}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(30rem,100%),1fr));"
    "gap:1.5rem 1rem;margin-top:1.5rem}\n"
    "figure{margin:0;min-width:0;break-inside:avoid}figcaption{font-weight:600}\n"
    ".key{display:flex;flex-wrap:wrap;gap:0 1rem;font-size:.85rem;margin:.2rem 0 .3rem}.key svg{"
    "width:22px;height:10px;margin-right:.35rem}\n"
    ".plots figure>svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;"
    "fill:var(--fg)}.grid{stroke:var(--line)}.axis{stroke:var(--dim)}\n"
    ".s{fill:none;stroke-width:1.6}.cursor{stroke:var(--dim);stroke-dasharray:2 2;"
    "visibility:hidden}\n"
    "#tip{position:fixed;pointer-events:none;background:var(--tip);color:var(--tipfg);"
    "padding:.3rem .5rem;border-radius:4px;font-size:12px;white-space:pre;display:none}\n"
    "@media(max-width:640px){body{margin:1rem auto}h1{font-size:1.25rem}.lead{font-size:1.05rem}"
    "svg text{font-size:18px}.s{stroke-width:2.6}\n"
    "table,thead,tbody{display:block}tr{display:grid;grid-template-columns:repeat(var(--n),"
    "minmax(0,1fr));border-bottom:1px solid var(--line);padding:.15rem 0}\n"
    "th,td{border:0;padding:0 .3rem;white-space:normal}th:first-child:empty{display:none}\n"
    "td:first-child,.in td:first-child,.why{grid-column:1/-1;padding-left:0;color:var(--dim);"
    "font-size:.85rem}.in td:first-child{padding-left:.8rem}.ch{display:block}}\n"
    "@media print{@page{margin:14mm}:root{--bg:#fff;--fg:#000;--dim:#444;--line:#bbb}body{"
    "margin:0;padding:0;max-width:none;font-size:9.5pt}\n"
    "h1{font-size:15pt}.lead{font-size:11pt}h2{break-after:avoid;margin-top:1rem}.plots{"
    "grid-template-columns:1fr 1fr;gap:.6rem}th,td{padding:.08rem .4rem}\n"
    "tr,figure{break-inside:avoid}thead{display:table-header-group}rect,path,.key{"
    "print-color-adjust:exact;-webkit-print-color-adjust:exact}#tip{display:none!important}}\n";

/* For each plot: {left, right, x_min, x_max, curves: [[name, [x...], [y...]], ...]}. Shows every curve's
 * value at the x nearest to the pointer. */
static const char script[] =
    "'use strict';const tip=document.getElementById('tip');\n"
    "const "
    "show=(e,t)=>{tip.textContent=t;tip.style.display='block';tip.style.left=Math.min(e.clientX+14,"
    "innerWidth-tip.offsetWidth-8)+'px';"
    "tip.style.top=Math.max(4,e.clientY-tip.offsetHeight-10)+'px'};const "
    "hide=()=>{tip.style.display='none'};\n"
    "const near=(a,x)=>{let l=0,h=a.length-1;while(h-l>1){const m=l+h>>1;a[m]<x?l=m:h=m}return "
    "x-a[l]<a[h]-x?l:h};\n"
    "document.querySelectorAll('[data-tip]').forEach(b=>{const "
    "t=b.querySelector('title');if(t)t.remove();b.onmousemove=e=>show(e,b.dataset.tip);b.onmouseleave=hide});"
    "\n"
    "for(const d of JSON.parse(document.getElementById('curves').textContent)){const "
    "s=document.getElementById(d.id);if(!s)continue;\n"
    "const "
    "c=document.createElementNS('http://www.w3.org/2000/"
    "svg','path');c.setAttribute('class','cursor');s.append(c);\n"
    "s.onmousemove=e=>{const p=new "
    "DOMPoint(e.clientX,e.clientY).matrixTransform(s.getScreenCTM().inverse());\n"
    "if(p.x<d.left||p.x>d.right){s.onmouseleave();return}const "
    "x=d.min+(p.x-d.left)/(d.right-d.left)*(d.max-d.min);\n"
    "c.setAttribute('d','M'+p.x+' '+d.top+'V'+d.bottom);c.style.visibility='visible';\n"
    "show(e,d.curves.map(k=>{const i=near(k[1],x);return k[0]+'  '+d.label+' '+k[1][i]+'  "
    "'+(k[2][i]===null?'NaN':k[2][i])}).join('\\n'))};\n"
    "s.onmouseleave=()=>{c.style.visibility='hidden';hide()}}\n";

/* Writes JSON inside a script element: it must not contain "<", and JSON has its own escapes. */
static void json_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\') fprintf(out, "\\%c", *p);
        else if (*p < 0x20 || *p == '<' || *p == '>' || *p == '&') fprintf(out, "\\u%04x", *p);
        else fputc(*p, out);
    }
    fputc('"', out);
}

static void curve_data(FILE *out, const struct plot *p, bool *first)
{
    if (!p->series_count) return;
    fprintf(out,
            "%s{\"id\":\"%s\",\"label\":\"%s\",\"left\":%g,\"right\":%g,\"top\":%g,\"bottom\":%g,\"min\":%."
            "12g,\"max\":%.12g,\"curves\":[",
            *first ? "" : ",\n", p->id, _(p->x_label), p->left, p->right, p->top, p->bottom, p->x_min,
            p->x_max);
    *first = false;
    for (int k = 0; k < p->series_count; k++) {
        const struct series *s = &p->series[k];
        fputs(k ? ",[" : "[", out);
        json_text(out, s->name);
        fputs(",[", out);
        for (int i = 0; i < s->count; i++) fprintf(out, "%s%.9g", i ? "," : "", s->x[i]);
        fputs("],[", out);
        for (int i = 0; i < s->count; i++)
            fprintf(out, isnan(s->y[i]) ? "%snull" : "%s%.6g", i ? "," : "", s->y[i]);
        fputs("]]", out);
    }
    fputs("]}", out);
}

static void table_section(FILE *out, const struct table *t, enum section section,
                          const struct output_options *o)
{
    bool any = false;
    for (int r = 0; r < t->row_count; r++) {
        const struct row *row = &t->rows[r];
        if (row->section != section || !output_row_shown(t, row, o)) continue;
        if (!any) {
            fprintf(
                out,
                "<section%s><h2>%s</h2><div class=\"wide\"><table style=\"--n:%d\">\n<thead><tr><th></th>",
                section == SECTION_COMPARABLE ? " class=\"bad\"" : "",
                section == SECTION_COMPARABLE ? _("Not comparable") : _(section_titles[section]),
                t->column_count);
            for (int c = 0; c < t->column_count; c++) {
                fputs("<th>", out);
                html_text(out, t->columns[c].name);
                if (c == t->reference) fprintf(out, " <span class=\"pub\">%s</span>", _("reference"));
                if (t->columns[c].runs[0].published)
                    fprintf(out, " <span class=\"pub\">%s</span>", _("published, not measured"));
                fputs("</th>", out);
            }
            fputs(section == SECTION_COMPARABLE ? "<th></th></tr></thead>\n<tbody>\n"
                                                : "</tr></thead>\n<tbody>\n",
                  out);
            any = true;
        }
        fprintf(out, "<tr%s data-key=\"", row->label[0] == ' ' ? " class=\"in\"" : "");
        html_text(out, row->key);
        fputs("\"><td>", out);
        html_text(out, output_label(row) + strspn(row->label, " "));
        fputs("</td>", out);
        for (int c = 0; c < t->column_count; c++) {
            const struct cell *cell = &row->cells[c];
            char words[CELL_TEXT];
            fputs("<td", out);
            if (cell->number && isfinite(cell->mean)) fprintf(out, " data-value=\"%.12g\"", cell->mean);
            fputs("><span class=\"v\">", out);
            html_text(out, cell_words(words, row, cell, "±"));
            fputs("</span>", out);
            /* an empty element keeps the values aligned */
            if (c != t->reference && section == SECTION_FACTS) {
                cell_change(words, row, cell, "±");
                fputs("<span class=\"ch\">", out);
                html_text(out, words);
                if (!isnan(cell->p)) fprintf(out, " p=%.2g", cell->p);
                fputs("</span>", out);
            }
            fputs("</td>", out);
        }
        if (row->why) {
            fputs("<td class=\"why\">", out);
            html_text(out, _(row->why));
            fputs("</td>", out);
        }
        fputs("</tr>\n", out);
    }
    if (any) fputs("</tbody></table></div></section>\n", out);
}

/* Writes the origin of a run's figures, one line per run. */
static void origin(FILE *out, const struct record *r)
{
    char when[64] = "";
    time_t started = isfinite(r->started) ? (time_t)r->started : 0;
    struct tm tm;
    if (started > 0 && gmtime_r(&started, &tm))
        strftime(when, sizeof when, _(", begun %Y-%m-%d %H:%M UTC"), &tm);
    fputs("<p class=\"from\"><strong>", out);
    html_text(out, r->name);
    fprintf(out, "</strong>%s", _(": "));
    html_text(out, r->published ? r->source : r->device[0] ? r->device : _("a device that was not recorded"));
    if (r->host[0]) {
        fputs(_(" on "), out);
        html_text(out, r->host);
    }
    fputs(when, out);
    if (r->version[0]) {
        fputs(_("; meopt "), out);
        html_text(out, r->version);
    }
    if (r->program[0]) {
        fputs(_(", program "), out);
        html_text(out, r->program);
    }
    if (r->data[0]) {
        fputs(_(", data "), out);
        html_text(out, r->data);
    }
    if (r->seed >= 0) fprintf(out, _(", seed %lld"), (long long)r->seed);
    fputs("</p>\n", out);
}

static void title(FILE *out, const struct table *t)
{
    int other = t->column_count == 2 ? 1 - t->reference : -1;
    for (int c = 0; c < t->column_count && other < 0; c++) {
        if (c) fputs(" · ", out);
        html_text(out, t->columns[c].name);
    }
    if (other < 0) return;
    char *both = xasprintf(_("%s against %s"), t->columns[other].name, t->columns[t->reference].name);
    html_text(out, both);
    free(both);
}

static void legend_entry(FILE *out, int color, const char *name, bool box)
{
    fputs("<span><svg viewBox=\"0 0 22 10\" aria-hidden=\"true\">", out);
    fprintf(out,
            box ? "<rect class=\"f%d\" x=\"6\" width=\"10\" height=\"10\"/>"
                : "<path class=\"s c%d\" d=\"M0 5H22\"/>",
            color);
    fputs("</svg>", out);
    html_text(out, name);
    fputs("</span>", out);
}

static void figure(FILE *out, const struct plot *p)
{
    fprintf(out, "<figure><figcaption>%s</figcaption><div class=\"key\">", _(p->title));
    for (int k = 0; k < MEMORY_CLASS_COUNT; k++)
        if (plot_has_class(p, k)) legend_entry(out, k, _(memory_class_names[k]), true);
    for (int k = 0; k < p->series_count; k++)
        if (!p->series[k].repeat) legend_entry(out, p->series[k].color, p->series[k].name, false);
    fputs("</div>\n", out);
    plot_svg(out, p, false);
    fputs("</figure>\n", out);
}

static void head(FILE *out, const struct table *t)
{
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"%s\">", _("en")); /* the language of the page */
    fputs("<head><meta charset=\"utf-8\"><meta name=\"viewport\" "
          "content=\"width=device-width\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
          "<link rel=\"icon\" href=\"data:,\"><title>",
          out);
    title(out, t);
    fprintf(out, " - meopt compare</title>\n<style>\n%s", style);
    for (int k = 0; k < PLOT_COLORS; k++)
        fprintf(out, ".c%d{stroke:%s;stroke-dasharray:%s}.f%d{fill:%s}\n", k, plot_colors[k],
                plot_dashes[k][0] ? plot_dashes[k] : "none", k, plot_colors[k]);
    /* the two darkest are too dark on black */
    fputs("@media screen and (prefers-color-scheme:dark){.c0{stroke:#4aa8e0}.c1{stroke:#f07f2f}.f0{fill:"
          "#4aa8e0}.f1{fill:#f07f2f}}\n</style></head><body>\n<h1>",
          out);
    title(out, t);
    fputs("</h1>\n", out);
}

void output_html(FILE *out, const struct table *t, const struct plot plots[PLOT_COUNT],
                 const struct output_options *o)
{
    head(out, t);
    if (t->sweep) sweep_html(out, t);
    for (int c = 0; c < t->column_count; c++) {
        char *headline = table_headline(t, c);
        if (headline) {
            fputs("<p class=\"lead\">", out);
            html_text(out, headline);
            fputs("</p>\n", out);
        }
        free(headline);
    }
    for (int c = 0; c < t->column_count; c++)
        for (int i = 0; i < t->columns[c].run_count; i++) origin(out, &t->columns[c].runs[i]);
    table_section(out, t, SECTION_COMPARABLE, o);
    if (t->warning_count) {
        fputs("<ul class=\"warnings\">\n", out);
        for (int i = 0; i < t->warning_count; i++) {
            fputs("<li>", out);
            html_text(out, t->warnings[i]);
            fputs("</li>\n", out);
        }
        fputs("</ul>\n", out);
    }
    fputs("<div class=\"plots\">\n", out);
    for (int k = 0; k < PLOT_COUNT; k++)
        if (plot_worthwhile(&plots[k])) figure(out, &plots[k]);
    fputs("</div>\n", out);
    table_section(out, t, SECTION_FACTS, o);
    table_section(out, t, SECTION_CONFIG, o);
    fputs("<div id=\"tip\"></div>\n<script type=\"application/json\" id=\"curves\">[", out);
    bool first = true;
    for (int k = 0; k < PLOT_COUNT; k++) curve_data(out, &plots[k], &first);
    fprintf(out, "]</script>\n<script>\n%s</script>\n</body></html>\n", script);
}
