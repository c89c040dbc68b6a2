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

/* ---- The table ---- */

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

/* ---- Methods ---- */

struct writer {
    FILE *out;
    const struct table *table;
    const struct record *run; /* the first run of the reference, or of the first measured column */
    bool chinese;
};

static void emit(const struct writer *w, const char *english, const char *chinese)
{
    fputs(w->chinese ? chinese : english, w->out);
}

static void emit_name(const struct writer *w, const char *text)
{
    latex_text(w->out, w->chinese ? PAPER_CHINESE : PAPER_ENGLISH, text);
}

static const char *setting(const struct writer *w, const char *key)
{
    const char *history = record_setting_history(w->run, key), *value = record_setting(w->run, key);
    return history ? history : value && value[0] ? value : NULL;
}

static void count(const struct writer *w, int64_t n)
{
    if (n >= 1000000000) fprintf(w->out, "%.2f\\,B", (double)n / 1e9);
    else if (n >= 1000000) fprintf(w->out, "%.1f\\,M", (double)n / 1e6);
    else fprintf(w->out, "%lld", (long long)n);
}

/* By objective; the first is also that of runs that do not record theirs. */
static const struct {
    const char *objective, *english, *chinese;
} tasks[] = {{"distill", "We distilled a teacher", "我们将教师模型"},
             {"classify", "We trained a classifier", "我们训练了分类模型"},
             {"language", "We trained a language model", "我们训练了语言模型"},
             {"masked", "We trained a masked language model", "我们训练了掩码语言模型"}};

static void what_was_trained(const struct writer *w)
{
    const struct record *r = w->run;
    bool tokens = record_unit(r) == unit_of(true);
    const char *size = tokens ? NULL : setting(w, "data.image_size");
    double samples = tokens && !isnan(r->sample_tokens) ? r->sample_tokens : 1;
    const char *counted = samples > 1 ? " tokens"
                          : tokens    ? " samples"
                                      : " images",
               *counted_chinese = samples > 1 ? " 个词元"
                                  : tokens    ? " 个样本"
                                              : " 张图像";
    size_t k = 1;
    while (k < sizeof tasks / sizeof *tasks && strcmp(tasks[k].objective, r->objective) != 0) k++;
    if (k == sizeof tasks / sizeof *tasks) k = 0;
    emit(w, tasks[k].english, tasks[k].chinese);
    if (!k && r->teacher_parameters > 0) {
        emit(w, " of ", "（");
        count(w, r->teacher_parameters);
        emit(w, " parameters", " 参数）");
    }
    if (!k) emit(w, " into a student", "蒸馏到学生模型");
    if (r->student_parameters > 0) {
        emit(w, " of ", "（");
        count(w, r->student_parameters);
        emit(w, " parameters", " 参数）");
    }
    if (r->family[0]) {
        emit(w, " (family ", "，模型族为 ");
        emit_name(w, r->family);
        emit(w, ")", " ");
    }
    if (r->images >= 0) {
        emit(w, " on ", "，使用 ");
        count(w, tokens && r->tokens >= 0 ? r->tokens : r->images);
        emit(w, tokens ? " tokens" : " images", tokens ? " 个词元" : " 张图像");
    }
    if (size) {
        emit(w, " of ", "（边长 ");
        emit_name(w, size);
        emit(w, "\\,px", " 像素）");
    }
    if (r->count > 0)
        fprintf(w->out, w->chinese ? "，共训练 %lld 步" : ", for %lld steps",
                (long long)r->step[r->count - 1]);
    if (r->step_images > 0) {
        emit(w, " of ", "，每步 ");
        count(w, (int64_t)(samples * (double)r->step_images));
        emit(w, counted, counted_chinese);
    }
    if (r->device[0]) {
        fprintf(w->out, w->chinese ? "，在 %lld $\\times$ " : ", on %lld $\\times$ ",
                (long long)(r->ranks > 0 ? r->ranks : 1));
        emit_name(w, r->device);
        emit(w, "", " 上运行");
    }
    emit(w, ". ", "。");
}

static void how(const struct writer *w)
{
    static const struct {
        const char *key, *english, *chinese, *unset; /* the value that means: not given */
    } all[] = {{"optim.name", "update rule ", "优化算法 ", NULL},
               {"optim.lr", "learning rate ", "学习率 ", NULL},
               {"optim.schedule", "schedule ", "学习率调度 ", NULL},
               {"optim.warmup_steps", "warm-up steps ", "预热步数 ", "-1"},
               {"optim.warmup_ratio", "share of warm-up steps ", "预热步数占比 ", "0"},
               {"optim.weight_decay", "weight decay ", "权重衰减 ", NULL},
               {"loss.type", "loss ", "损失函数 ", NULL}};
    bool any = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *value = setting(w, all[i].key);
        if (!value || (all[i].unset && strcmp(value, all[i].unset) == 0)) continue;
        if (!any) emit(w, "Settings of ", "");
        if (!any) emit_name(w, w->run->name);
        if (!any) emit(w, ": ", " 的设置：");
        else emit(w, ", ", "，");
        emit(w, all[i].english, all[i].chinese);
        emit_name(w, value);
        any = true;
    }
    if (any) emit(w, ". ", "。");
}

/* Writes the settings that changed during a run, with all their values. */
static void changes(const struct writer *w)
{
    const struct table *t = w->table;
    bool any = false;
    for (int r = 0; r < t->row_count; r++) {
        const struct row *row = &t->rows[r];
        if (!changed_in_run(row, t->column_count)) continue;
        for (int c = 0; c < t->column_count; c++) {
            if (strcmp(row->cells[c].history, row->cells[c].text) == 0) continue;
            emit(w, any ? "; " : "Changed during training: ", any ? "；" : "训练中更改：");
            fputs("\\texttt{", w->out);
            emit_name(w, row->key);
            emit(w, "} of ", "}（");
            emit_name(w, t->columns[c].name);
            emit(w, " (", "，");
            emit_name(w, row->cells[c].history);
            emit(w, ")", "）");
            any = true;
        }
    }
    if (any) emit(w, "; @ is the step after which a value held. ", "；@ 后为步数。");
}

/* Writes the keys in which the columns differ, up to MOST of them. */
static void differences(const struct writer *w)
{
    enum { MOST = 8 };
    const struct table *t = w->table;
    int said = 0;
    for (int r = 0; r < t->row_count; r++) {
        const struct row *row = &t->rows[r];
        if (row->section != SECTION_CONFIG || !row->changed) continue;
        if (changed_in_run(row, t->column_count) || ++said > MOST) continue; /* already written */
        if (said == 1) emit(w, "The runs differ in ", "各次运行的不同之处为 ");
        else emit(w, "; ", "；");
        fputs("\\texttt{", w->out);
        emit_name(w, row->key);
        fputs("} (", w->out);
        for (int c = 0, n = 0; c < t->column_count; c++) {
            if (t->columns[c].runs[0].published) continue;
            if (n++) fputs(" / ", w->out);
            emit_name(w, cell_shown(&row->cells[c])[0] ? cell_shown(&row->cells[c]) : "-");
        }
        fputc(')', w->out);
    }
    if (said > MOST) {
        emit(w, ", and more settings: ", "，以及其他设置：");
        count(w, said - MOST);
    }
    if (said) emit(w, ". ", "。");
}

static void measured(const struct writer *w)
{
    const struct record *r = w->run;
    emit(w,
         "Memory is the highest sum of all bytes that the trainer held on one card, by class, as its "
         "allocator "
         "counted them. Training time is the sum of the steps without start-up, checkpoints and pauses; a "
         "step is "
         "their median. ",
         "显存为训练程序在单卡上持有的全部字节之和的最大值，"
         "由其分配器按类别统计。训练时间为各步时间之和，"
         "不含启动、检查点与暂停；单步时间取中位数。");
    if (r->tail_steps > 0)
        fprintf(w->out,
                w->chinese ? "收敛损失为最后 %lld 步的平均值。"
                           : "The converged loss is the mean of the last %lld steps. ",
                (long long)r->tail_steps);
    int seeds = 0;
    for (int c = 0; c < w->table->column_count; c++)
        for (int i = 0; i < w->table->columns[c].run_count; i++) {
            const struct record *one = &w->table->columns[c].runs[i];
            if (one->published || one->seed < 0) continue;
            if (seeds++) fprintf(w->out, ", ");
            else emit(w, "The seeds were ", "随机种子为 ");
            fprintf(w->out, "%lld", (long long)one->seed);
        }
    if (seeds) emit(w, ". ", "。");
    if (r->data[0]) {
        emit(w, "The list of the data has the CRC-32C ", "数据列表的 CRC-32C 为 ");
        emit_name(w, r->data);
        emit(w, ". ", "。");
    }
    if (r->version[0]) {
        emit(w, "The program was meopt ", "所用程序为 meopt ");
        emit_name(w, r->version);
        if (r->program[0]) {
            emit(w, " (CRC-32C of the file ", "（程序文件的 CRC-32C 为 ");
            emit_name(w, r->program);
            emit(w, ")", "）");
        }
        emit(w, ". ", "。");
    }
}

/* Writes Welch's test of the converged loss if there are repeats. */
static void significance(const struct writer *w)
{
    const struct table *t = w->table;
    const struct row *row = table_row(t, "converged_loss");
    bool tested = false;
    for (int c = 0; row && c < t->column_count; c++) {
        const struct cell *cell = &row->cells[c];
        if (c == t->reference || !isfinite(cell->p)) continue;
        char p[32];
        snprintf(p, sizeof p, "%.2g", cell->p);
        fprintf(w->out,
                w->chinese ? "%d 次与 %d 次运行的收敛损失经双侧 Welch $t$ 检验，$p$ = "
                           : "The converged losses of %d and %d runs were compared by Welch's two-sided "
                             "$t$-test: $p$ = ",
                row->cells[t->reference].n, cell->n);
        emit_name(w, p);
        emit(w, ". ", "。");
        tested = true;
    }
    if (!tested)
        emit(w, "Each configuration was run once; the significance of differences was not measured. ",
             "每种配置仅运行一次，未测量随机性对差异的影响。");
    if (!t->comparable) {
        emit(w, "\\textbf{These runs are not comparable}: ", "\\textbf{这些运行不可直接比较}：");
        for (int r = 0, n = 0; r < t->row_count; r++)
            if (t->rows[r].section == SECTION_COMPARABLE) {
                if (n++) emit(w, ", ", "、");
                emit_name(w, t->rows[r].label);
            }
        emit(w, ". ", "。");
    }
    for (int c = 0; c < t->column_count; c++) {
        if (!t->columns[c].runs[0].published) continue;
        emit(w, "The column ", "");
        emit_name(w, t->columns[c].name);
        emit(w, " is published, not measured here (", " 一列为已发表的数据，并非在此测量（");
        emit_name(w, t->columns[c].runs[0].source);
        emit(w, "). ", "）。");
    }
}

void paper_methods(FILE *out, const struct table *t, enum paper_language language)
{
    int c = t->reference;
    if (t->columns[c].runs[0].published)
        for (c = 0; c + 1 < t->column_count && t->columns[c].runs[0].published;) c++;
    const struct writer w = {out, t, &t->columns[c].runs[0], language == PAPER_CHINESE};
    what_was_trained(&w);
    how(&w);
    changes(&w);
    differences(&w);
    measured(&w);
    significance(&w);
    fputc('\n', out);
}

/* ---- The document ---- */

void paper_document(FILE *out, const struct plot plots[PLOT_COUNT], enum paper_language language)
{
    static const char *const captions[PLOT_COUNT][PAPER_LANGUAGES] = {
        [PLOT_MEMORY] = {"Peak memory of one card by class.", "单卡峰值显存（按类别）。"},
        [PLOT_LOSS] = {"Loss by iteration.", "损失随迭代步数的变化。"},
        [PLOT_DIFFERENCE] = {"Loss less the reference's.", "同一步数下与基线损失之差。"},
        [PLOT_EPOCHS] = {"Mean loss by epoch.", "各轮平均损失。"},
        [PLOT_RATE] = {"Throughput.", "吞吐量。"},
    };
    const char *suffix = paper_suffixes[language];
    fprintf(out,
            "\\documentclass{%s}\n\\usepackage{booktabs}\n\\usepackage{graphicx}\n\\begin{document}\n"
            "\\input{methods%s}\n\n\\input{table%s}\n",
            language == PAPER_CHINESE ? "ctexart" : "article", suffix, suffix);
    for (int k = 0; k < PLOT_COUNT; k++)
        if (plot_worthwhile(&plots[k]))
            fprintf(out,
                    "\n\\begin{figure}\n\\centering\n\\includegraphics[width=\\linewidth]{%s.pdf}\n"
                    "\\caption{%s}\n\\end{figure}\n",
                    plots[k].id, captions[k][language]);
    fputs("\\end{document}\n", out);
}
