/* SPDX-License-Identifier: Apache-2.0 */
/* Presents what was measured: see bench_report.h. */
#include "bench_report.h"

#include "json_output.h"
#include "machine.h"
#include "message.h"
#include "plot.h"
#include "text_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double gflops(const bench_case *c, double seconds) { return seconds > 0 ? c->flops / seconds * 1e-9 : 0; }

static double share_of_peak(const bench_case *c) { return c->peak > 0 ? gflops(c, c->best) * 1e9 / c->peak : 0; }

static double share_of_read(const bench_case *c) { return c->read > 0 ? c->bytes / c->best / c->read : 0; }

/* ---- Table ---- */

static void print_table(const bench_list *list) {
    char machine[256], common[512];
    text_table table;
    machine_name(machine, sizeof machine);
    bench_common_text(list, common, sizeof common);
    (void)printf("%s, %d thread%s\n%s\n\n", machine, list->threads, list->threads == 1 ? "" : "s", common);
    char alignment[TEXT_TABLE_COLUMNS] = "";
    for (int i = 0; i < (int)BENCH_PROPERTIES; i++)
        if (bench_property_role(list, (bench_property)i) == BENCH_VARIES)
            strcat(alignment, i <= (int)BENCH_ISA ? "l" : "r");
    strcat(alignment, "rrrrrrr");
    text_table_begin(&table, alignment);
    text_table_row *row = text_table_add(&table);
    size_t column = 0;
    for (int i = 0; i < (int)BENCH_PROPERTIES; i++)
        if (bench_property_role(list, (bench_property)i) == BENCH_VARIES)
            text_table_cell(row, &column, "%s", bench_property_title(list, (bench_property)i));
    static const char *const heading[] = {"best ms", "median ms", "GFLOP/s", "FMA peak", "of peak", "of read", "runs"};
    for (size_t i = 0; i < sizeof heading / sizeof heading[0]; i++) text_table_cell(row, &column, "%s", heading[i]);
    for (size_t n = 0; n < list->count; n++) {
        const bench_case *c = &list->cases[n];
        row = text_table_add(&table);
        column = 0;
        for (int i = 0; i < (int)BENCH_PROPERTIES; i++) {
            char value[32];
            if (bench_property_role(list, (bench_property)i) != BENCH_VARIES) continue;
            bench_property_text(c, (bench_property)i, value, sizeof value);
            text_table_cell(row, &column, "%s", value);
        }
        text_table_cell(row, &column, "%.3f", c->best * 1e3);
        text_table_cell(row, &column, "%.3f", c->median * 1e3);
        text_table_cell(row, &column, "%.1f", gflops(c, c->best));
        text_table_cell(row, &column, "%.1f", c->peak * 1e-9);
        text_table_cell(row, &column, "%.1f %%", 100 * share_of_peak(c));
        text_table_cell(row, &column, "%.1f %%", 100 * share_of_read(c));
        text_table_cell(row, &column, "%d", c->repetitions);
    }
    text_table_print(&table, stdout);
    text_table_end(&table);
    if (list->machine_busy)
        (void)printf("\nnote: other processes kept this machine busy (load %.1f before the first measurement); a quiet "
                     "one is faster\n",
                     list->load);
}

/* ---- JSON ---- */

static json_t *case_json(const bench_case *c) {
    json_t *entry = json_object();
    for (int i = 0; i < (int)BENCH_PROPERTIES; i++) {
        bench_property property = (bench_property)i;
        char value[32];
        bench_property_text(c, property, value, sizeof value);
        bool text = property == BENCH_DTYPE || property == BENCH_ISA;
        (void)json_object_set_new(entry, bench_property_name(property),
                                  text ? json_string(value) : json_integer(bench_property_value(c, property)));
    }
    (void)json_object_set_new(entry, "backward", json_boolean(c->backward));
    (void)json_object_set_new(entry, "plan", json_string(c->plan));
    (void)json_object_set_new(entry, "flops", json_rounded(c->flops));
    (void)json_object_set_new(entry, "repetitions", json_integer(c->repetitions));
    (void)json_object_set_new(entry, "best_seconds", json_rounded(c->best));
    (void)json_object_set_new(entry, "median_seconds", json_rounded(c->median));
    (void)json_object_set_new(entry, "gflops", json_rounded(gflops(c, c->best)));
    (void)json_object_set_new(entry, "median_gflops", json_rounded(gflops(c, c->median)));
    (void)json_object_set_new(entry, "fma_peak_gflops", json_rounded(c->peak * 1e-9));
    (void)json_object_set_new(entry, "share_of_peak", json_rounded(share_of_peak(c)));
    (void)json_object_set_new(entry, "read_peak_gbytes_per_second", json_rounded(c->read * 1e-9));
    (void)json_object_set_new(entry, "share_of_read", json_rounded(share_of_read(c)));
    return entry;
}

static json_t *list_json(const bench_list *list) {
    char machine[256];
    json_t *root = json_object(), *results = json_array();
    machine_name(machine, sizeof machine);
    for (size_t i = 0; i < list->count; i++) (void)json_array_append_new(results, case_json(&list->cases[i]));
    (void)json_object_set_new(root, "version", json_string(fa_version_text()));
    (void)json_object_set_new(root, "processor", json_string(machine));
    (void)json_object_set_new(root, "threads", json_integer(list->threads));
    (void)json_object_set_new(root, "load_before", json_rounded(list->load));
    (void)json_object_set_new(root, "rules", json_string(list->rules));
    (void)json_object_set_new(root, "results", results);
    return root;
}

/* ---- Plot ---- */

/* Cases of one line differ in their lengths alone. */
static void line_label(const bench_list *list, const bench_case *c, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < (int)BENCH_PROPERTIES && used < size; i++) {
        bench_property property = (bench_property)i;
        char value[32];
        bool length = property == BENCH_SEQLEN_K || (property == BENCH_SEQLEN_Q && c->seqlen_q == c->seqlen_k);
        if (length || bench_property_role(list, property) != BENCH_VARIES) continue;
        bench_property_text(c, property, value, sizeof value);
        bool bare = property == BENCH_DTYPE || property == BENCH_ISA;
        used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", used > 0 ? ", " : "",
                                 bare ? "" : bench_property_name(property), bare ? "" : " ", value);
    }
    if (used == 0) (void)snprintf(text, size, "%s", fa_isa_name(c->isa));
}

/* The series of that label, a new one if there is none yet; NULL if there is no room. */
static plot_series *find_series(line_plot *plot, const char *label) {
    for (size_t i = 0; i < plot->count; i++)
        if (strcmp(plot->series[i].label, label) == 0) return &plot->series[i];
    if (plot->count == PLOT_SERIES_MAX) return NULL;
    plot_series *series = &plot->series[plot->count++];
    (void)snprintf(series->label, sizeof series->label, "%s", label);
    return series;
}

static void add_point(plot_series *series, double x, double y) {
    size_t at = series->count;
    for (; at > 0 && series->x[at - 1] > x; at--) {
        series->x[at] = series->x[at - 1];
        series->y[at] = series->y[at - 1];
    }
    series->x[at] = x;
    series->y[at] = y;
    series->count++;
}

/* False if there are more lines or points than a plot has. */
static bool fill_plot(const bench_list *list, line_plot *plot) {
    bool square = bench_all_square(list);
    for (size_t i = 0; i < list->count; i++) {
        const bench_case *c = &list->cases[i];
        char label[96];
        line_label(list, c, label, sizeof label);
        plot_series *series = find_series(plot, label);
        if (series == NULL || series->count == PLOT_POINTS_MAX) return false;
        add_point(series, (double)c->seqlen_k, gflops(c, c->best));
    }
    for (size_t i = 0; i < list->count; i++) { /* one ceiling per instruction set, the highest measured */
        const bench_case *c = &list->cases[i];
        char label[96];
        (void)snprintf(label, sizeof label, "FMA peak, %s", fa_isa_name(c->isa));
        plot_series *series = find_series(plot, label);
        if (series == NULL) return false;
        series->dashed = true;
        series->count = 1;
        if (c->peak * 1e-9 > series->y[0]) series->y[0] = c->peak * 1e-9;
    }
    (void)snprintf(plot->x_label, sizeof plot->x_label, "%s", square ? "seqlen (queries = keys)" : "seqlen_k (keys)");
    (void)snprintf(plot->y_label, sizeof plot->y_label, "GFLOP/s");
    return true;
}

int bench_report_check_plot(const bench_list *list) {
    line_plot *plot = calloc(1, sizeof *plot);
    if (plot == NULL) return fail_memory("the plot");
    bool fits = fill_plot(list, plot);
    free(plot);
    if (fits) return EXIT_CODE_OK;
    return fail_usage("--plot: these cases make more than %d lines or %d points of a line; choose fewer",
                      PLOT_SERIES_MAX, PLOT_POINTS_MAX);
}

static int write_plot(const bench_list *list, const char *path) {
    char machine[128], common[256];
    line_plot *plot = calloc(1, sizeof *plot);
    if (plot == NULL) return fail_memory("the plot");
    (void)fill_plot(list, plot);
    machine_name(machine, sizeof machine);
    bench_common_text(list, common, sizeof common);
    (void)snprintf(plot->title, sizeof plot->title, "Attention %s, flashattn %s",
                   list->cases[0].backward ? "backward" : "forward", fa_version_text());
    (void)snprintf(plot->subtitle, sizeof plot->subtitle, "%.100s, %d thread%s, %s", machine, list->threads,
                   list->threads == 1 ? "" : "s", common);
    int code = plot_lines(path, plot);
    free(plot);
    return code;
}

int bench_report(const bench_list *list, const char *json, const char *plot) {
    bool text = !json_on_stdout(json);
    int code = EXIT_CODE_OK;
    if (text) print_table(list);
    if (json != NULL) code = json_write(json, list_json(list));
    if (code == EXIT_CODE_OK && plot != NULL) {
        code = write_plot(list, plot);
        if (code == EXIT_CODE_OK && text) (void)printf("\nplot -> %s\n", plot);
    }
    return code;
}
