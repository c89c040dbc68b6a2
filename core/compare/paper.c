/* LaTeX output: see paper.h. All figures come from the table; nothing is computed here. */
#include "core/compare/paper.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const paper_suffixes[PAPER_LANGUAGES] = {"", "_zh"};

/* Placeholder of the plus-minus sign until latex_text writes it. */
static const char plus_minus[] = "\001";

/* Writes characters after Latin's letters (U+0180 on) as their code points: pdfLaTeX knows none of them
 * without extra packages and fonts. Returns the number of bytes read. */
static size_t beyond_latin(FILE *out, const char *text)
{
    size_t n = 0;
    while ((unsigned char)text[n] >= 0xC6) {
        const char *between = n ? " " : "";
        unsigned char first = (unsigned char)text[n++];
        unsigned code = first & (first < 0xE0 ? 0x1Fu : first < 0xF0 ? 0x0Fu : 0x07u);
        for (; ((unsigned char)text[n] & 0xC0) == 0x80; n++)
            code = code << 6 | ((unsigned char)text[n] & 0x3Fu);
        fprintf(out, "%sU+%04X", between, code);
    }
    return n;
}

/* Writes external text, and figures: 3.3e-06 becomes a power of ten, a hyphen before a digit a minus, and
 * -> an arrow. */
static void latex_text(FILE *out, enum paper_language language, const char *text)
{
    for (const char *c = text; *c; c++) {
        size_t wide = language == PAPER_CHINESE ? 0 : beyond_latin(out, c);
        if (wide) {
            c += wide - 1;
            continue;
        }
        bool digit_before = c > text && isdigit((unsigned char)c[-1]),
             free_before = c == text || strchr(" (\001", c[-1]);
        if (*c == *plus_minus) fputs("$\\pm$", out);
        else if (*c == 'e' && digit_before && strchr("+-", c[1]) && isdigit((unsigned char)c[2])) {
            char *end;
            fprintf(out, "$\\times10^{%ld}$", strtol(c + 1, &end, 10));
            c = end - 1;
        } else if (c[0] == '-' && c[1] == '>') {
            fputs("$\\to$", out);
            c++;
        } else if (*c == '-' && free_before && isdigit((unsigned char)c[1])) fputs("$-$", out);
        else if (*c == '\\') fputs("\\textbackslash{}", out);
        else if (*c == '~' || *c == '^') fprintf(out, "\\%c{}", *c);
        else if (*c == '<' || *c == '>') fprintf(out, "$%c$", *c);
        else if (strchr("&%$#_{}", *c)) fprintf(out, "\\%c", *c);
        else fputc(*c, out);
    }
}

/* Rows of a paper's table, in its order; the other output formats have all rows. */
static const struct {
    const char *key, *labels[PAPER_LANGUAGES];
} lines[] = {
    {"peak_bytes", {"Peak memory of one card", "单卡峰值显存"}},
    {"weights_bytes", {"\\quad weights", "\\quad 权重"}},
    {"gradients_bytes", {"\\quad gradients", "\\quad 梯度"}},
    {"optimizer_bytes", {"\\quad optimizer states", "\\quad 优化器状态"}},
    {"activations_bytes", {"\\quad activations", "\\quad 激活"}},
    {"teacher_bytes", {"\\quad teacher", "\\quad 教师模型"}},
    {"workspace_bytes", {"\\quad workspace", "\\quad 工作区"}},
    {"comm_bytes", {"\\quad communication", "\\quad 通信"}},
    {"data_bytes", {"\\quad data", "\\quad 数据"}},
    {"optimizer_bytes_per_param", {"Optimizer bytes per parameter", "优化器每参数字节数"}},
    {"time_s", {"Training time", "训练时间"}},
    {"step_ms", {"Step (median)", "单步时间（中位数）"}},
    {"images_per_s", {"Images/s (median)", "每秒图像数（中位数）"}},
    {"tokens_per_s", {"Tokens/s (median)", "每秒词元数（中位数）"}},
    {"mfu_percent", {"Model FLOPs utilization (mean)", "模型算力利用率（均值）"}},
    {"card_energy_wh", {"Energy of all cards (Wh)", "全部加速卡能耗 (Wh)"}},
    {"converged_loss", {"Converged loss", "收敛损失"}},
    {"final_cosine", {"Cosine to the teacher", "与教师的余弦相似度"}},
    {"best_val_top1", {"Validation top-1 (best)", "验证集 top-1（最佳）"}},
    {"best_val_perplexity", {"Validation perplexity (best)", "验证集困惑度（最佳）"}},
    {"max_loss_gap", {"Largest loss gap at equal step", "同一步数下最大损失差"}},
};

/* Whether a setting that matters changed during a run of any column. */
static bool changed_in_run(const struct row *row, int columns)
{
    if (table_harmless(row->key)) return false;
    for (int c = 0; c < columns && row->section == SECTION_CONFIG; c++)
        if (strcmp(row->cells[c].history, row->cells[c].text) != 0) return true;
    return false;
}

void paper_table(FILE *out, const struct table *t, enum paper_language language)
{
    static const char *const captions[] = {
        "Memory, time and loss. Percentages are changes against the first column; $\\pm$ is the sample "
        "standard "
        "deviation of repeats.",
        "显存、时间与损失。百分数为相对于第一列的变化，"
        "$\\pm$ 为重复实验的样本标准差。"};
    int order[64], n = 0;
    order[n++] = t->reference;
    for (int c = 0; c < t->column_count && n < 64; c++)
        if (c != t->reference) order[n++] = c;
    fputs("\\begin{table}\n\\centering\n"
          "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{\\begin{tabular}{l",
          out);
    for (int c = 0; c < n; c++) fputc('r', out);
    fputs("}\n\\toprule\n", out);
    for (int c = 0; c < n; c++) {
        fputs(" & ", out);
        latex_text(out, language, t->columns[order[c]].name);
    }
    fputs(" \\\\\n\\midrule\n", out);
    for (size_t k = 0; k < sizeof lines / sizeof *lines; k++) {
        const struct row *row = table_row(t, lines[k].key);
        if (!row || row->hidden) continue;
        fputs(lines[k].labels[language], out);
        for (int c = 0; c < n; c++) {
            char value[CELL_TEXT], change[CELL_TEXT];
            const struct cell *cell = &row->cells[order[c]];
            fputs(" & ", out);
            latex_text(out, language, cell_text(value, row, cell, plus_minus));
            if (!cell_change(change, row, cell, plus_minus)[0]) continue;
            fputs(" (", out);
            latex_text(out, language, change);
            fputc(')', out);
        }
        fputs(" \\\\\n", out);
    }
    for (int r = 0; r < t->row_count; r++)
        if (changed_in_run(&t->rows[r], t->column_count)) {
            fputs("\\texttt{", out);
            latex_text(out, language, t->rows[r].key);
            fputc('}', out);
            for (int c = 0; c < n; c++) {
                fputs(" & ", out);
                const char *text = cell_shown(&t->rows[r].cells[order[c]]);
                latex_text(out, language, text[0] ? text : "-");
            }
            fputs(" \\\\\n", out);
        }
    fprintf(out, "\\bottomrule\n\\end{tabular}}\n\\caption{%s}\n\\label{tab:meopt}\n\\end{table}\n",
            captions[language]);
}
