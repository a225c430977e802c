/* SPDX-License-Identifier: Apache-2.0 */
/* The two kinds of plots: a heat map of attention weights, and lines over sequence length. */
#ifndef FLASHATTN_TOOLS_PLOT_H
#define FLASHATTN_TOOLS_PLOT_H

#include "attention_weights.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct heat_map {
    const attention_weights *weights;
    const char *title;
    const char *subtitle;
    char *const *key_labels;   /* [weights->keys], or NULL: numbers */
    char *const *query_labels; /* [weights->queries], or NULL */
} heat_map;

/* Writes the picture; the extension says the format. Returns an exit code. */
int plot_heat_map(const char *path, const heat_map *map);

#define PLOT_SERIES_MAX 16
#define PLOT_POINTS_MAX 64

typedef struct plot_series {
    char label[96];
    bool dashed; /* a ceiling: one value, over the whole width */
    size_t count;
    double x[PLOT_POINTS_MAX], y[PLOT_POINTS_MAX]; /* x rises */
} plot_series;

typedef struct line_plot {
    char title[128];
    char subtitle[512];
    char x_label[96]; /* the axis is logarithmic, its ticks are the values of x */
    char y_label[96]; /* from 0 */
    size_t count;
    plot_series series[PLOT_SERIES_MAX];
} line_plot;

int plot_lines(const char *path, const line_plot *plot);

#endif
