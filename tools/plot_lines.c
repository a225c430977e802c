/* SPDX-License-Identifier: Apache-2.0 */
/* Draws measurements over sequence length, each line named at its right end. See plot.h. */
#include "canvas.h"
#include "message.h"
#include "plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MARGIN 26.0
#define TITLE_SIZE 15.0
#define TEXT_SIZE 10.0
#define PLOT_WIDTH 520.0
#define PLOT_HEIGHT 320.0
#define LABEL_SPACING 14.0

/* Colours that the colour-blind can tell apart (Okabe and Ito 2002), without the yellow, which is too light. */
static const colour palette[] = {
    {0.000, 0.447, 0.698}, {0.835, 0.369, 0.000}, {0.000, 0.620, 0.451},
    {0.800, 0.475, 0.655}, {0.902, 0.624, 0.000}, {0.337, 0.706, 0.914},
};
#define PALETTE_SIZE (sizeof palette / sizeof palette[0])

typedef struct line_layout {
    double left, top;
    double total_width, total_height;
    double x_min, x_max; /* log2 */
    double y_top, y_step;
    double ticks[PLOT_POINTS_MAX]; /* distinct values of x, rising */
    size_t tick_count;
} line_layout;

static double x_position(const line_layout *l, double x) {
    if (l->x_max <= l->x_min) return l->left + PLOT_WIDTH / 2;
    double inner = PLOT_WIDTH - 28; /* the first and the last point stand clear of the frame */
    return l->left + 14 + inner * (log2(x) - l->x_min) / (l->x_max - l->x_min);
}

static double y_position(const line_layout *l, double y) { return l->top + PLOT_HEIGHT * (1 - y / l->y_top); }

static void add_tick(line_layout *l, double x) {
    size_t at = 0;
    while (at < l->tick_count && l->ticks[at] < x) at++;
    if (at < l->tick_count && !(l->ticks[at] > x)) return;
    if (l->tick_count == PLOT_POINTS_MAX) return;
    memmove(l->ticks + at + 1, l->ticks + at, (l->tick_count - at) * sizeof l->ticks[0]);
    l->ticks[at] = x;
    l->tick_count++;
}

static void make_layout(const line_plot *plot, canvas *measure, line_layout *l) {
    double widest = 0, top = 0;
    memset(l, 0, sizeof *l);
    for (size_t s = 0; s < plot->count; s++) {
        const plot_series *series = &plot->series[s];
        widest = fmax(widest, canvas_text_width(measure, TEXT_SIZE, 0, series->label));
        for (size_t i = 0; i < series->count; i++) {
            top = fmax(top, series->y[i]);
            if (!series->dashed) add_tick(l, series->x[i]);
        }
    }
    if (l->tick_count > 0) {
        l->x_min = log2(l->ticks[0]);
        l->x_max = log2(l->ticks[l->tick_count - 1]);
    }
    l->y_step = nice_step(top > 0 ? top * 1.02 : 1, 6);
    l->y_top = l->y_step * ceil(top * 1.02 / l->y_step);
    if (!(l->y_top > 0)) l->y_top = l->y_step;
    l->left = MARGIN + 62;
    l->top = MARGIN + 56;
    double title = fmax(canvas_text_width(measure, TITLE_SIZE, 1, plot->title),
                        canvas_text_width(measure, TEXT_SIZE, 0, plot->subtitle));
    l->total_width = ceil(fmax(l->left + PLOT_WIDTH + 16 + widest, l->left + title) + MARGIN);
    l->total_height = l->top + PLOT_HEIGHT + 62;
}

static void draw_frame(canvas *c, const line_plot *plot, const line_layout *l) {
    text_look look = {.size = TEXT_SIZE, .anchor = ANCHOR_RIGHT, .ink = ink_black};
    char text[32];
    double bottom = l->top + PLOT_HEIGHT, right = l->left + PLOT_WIDTH;
    for (int i = 0; i * l->y_step <= l->y_top * (1 + 1e-9); i++) {
        double y = y_position(l, i * l->y_step);
        canvas_line(c, l->left, y, right, y, i == 0 ? 1.0 : 0.6, i == 0 ? ink_grey : ink_light);
        (void)snprintf(text, sizeof text, "%.6g", i * l->y_step);
        canvas_text(c, l->left - 8, y, look, text);
    }
    look.anchor = ANCHOR_CENTRE;
    double previous = -1e9;
    for (size_t i = 0; i < l->tick_count; i++) {
        double x = x_position(l, l->ticks[i]);
        (void)snprintf(text, sizeof text, "%.0f", l->ticks[i]);
        double width = canvas_text_width(c, TEXT_SIZE, 0, text);
        canvas_line(c, x, bottom, x, bottom + 4, 0.8, ink_grey);
        if (x - width / 2 < previous + 6) continue; /* the tick alone where two labels would touch */
        canvas_text(c, x, bottom + 14, look, text);
        previous = x + width / 2;
    }
    look.ink = ink_grey;
    look.size = TEXT_SIZE + 0.5;
    canvas_text(c, l->left + PLOT_WIDTH / 2, bottom + 40, look, plot->x_label);
    look.degrees = 90;
    canvas_text(c, MARGIN + 4, l->top + PLOT_HEIGHT / 2, look, plot->y_label);
}

static void draw_series(canvas *c, const plot_series *s, const line_layout *l, colour ink) {
    static const double dashes[] = {6, 4};
    cairo_set_source_rgb(c->cr, ink.red, ink.green, ink.blue);
    cairo_set_line_join(c->cr, CAIRO_LINE_JOIN_ROUND);
    if (s->dashed) {
        double y = y_position(l, s->y[0]);
        cairo_set_dash(c->cr, dashes, 2, 0);
        canvas_line(c, l->left, y, l->left + PLOT_WIDTH, y, 1.3, ink);
        cairo_set_dash(c->cr, NULL, 0, 0);
        return;
    }
    cairo_set_line_width(c->cr, 2);
    cairo_new_path(c->cr);
    for (size_t i = 0; i < s->count; i++) cairo_line_to(c->cr, x_position(l, s->x[i]), y_position(l, s->y[i]));
    cairo_stroke(c->cr);
    for (size_t i = 0; i < s->count; i++) {
        cairo_arc(c->cr, x_position(l, s->x[i]), y_position(l, s->y[i]), 3.4, 0, 6.2831853);
        cairo_fill_preserve(c->cr);
        cairo_set_source_rgb(c->cr, 1, 1, 1);
        cairo_set_line_width(c->cr, 1);
        cairo_stroke(c->cr);
        cairo_set_source_rgb(c->cr, ink.red, ink.green, ink.blue);
    }
}

/* Labels stand right of the plot at the height of their line's end, pushed apart where they would overlap. */
static void draw_labels(canvas *c, const line_plot *plot, const line_layout *l, const colour *inks) {
    size_t order[PLOT_SERIES_MAX];
    double at[PLOT_SERIES_MAX], wanted[PLOT_SERIES_MAX];
    for (size_t s = 0; s < plot->count; s++) {
        const plot_series *series = &plot->series[s];
        wanted[s] = series->count > 0 ? y_position(l, series->y[series->count - 1]) : l->top;
        size_t i = s;
        for (; i > 0 && wanted[order[i - 1]] > wanted[s]; i--) order[i] = order[i - 1];
        order[i] = s;
    }
    for (size_t i = 0; i < plot->count; i++) { /* from the top, each at least one line below the last */
        at[i] = wanted[order[i]];
        if (i > 0 && at[i] < at[i - 1] + LABEL_SPACING) at[i] = at[i - 1] + LABEL_SPACING;
    }
    double limit = l->top + PLOT_HEIGHT + 4;
    for (size_t i = plot->count; i-- > 0;) { /* and from the bottom, none below the plot */
        if (at[i] > limit) at[i] = limit;
        limit = at[i] - LABEL_SPACING;
    }
    double right = l->left + PLOT_WIDTH;
    for (size_t i = 0; i < plot->count; i++) {
        text_look look = {.size = TEXT_SIZE, .anchor = ANCHOR_LEFT, .ink = inks[order[i]]};
        canvas_line(c, right + 2, wanted[order[i]], right + 11, at[i], 0.8, look.ink);
        canvas_text(c, right + 14, at[i], look, plot->series[order[i]].label);
    }
}

int plot_lines(const char *path, const line_plot *plot) {
    canvas c;
    line_layout l;
    colour inks[PLOT_SERIES_MAX];
    int code = canvas_open_for_measuring(&c);
    if (code != EXIT_CODE_OK) return code;
    make_layout(plot, &c, &l);
    canvas_discard(&c);
    code = canvas_open(&c, path, l.total_width, l.total_height);
    if (code != EXIT_CODE_OK) return code;
    text_look look = {.size = TITLE_SIZE, .bold = 1, .anchor = ANCHOR_LEFT, .ink = ink_black};
    canvas_text(&c, l.left, MARGIN + 8, look, plot->title);
    look = (text_look){.size = TEXT_SIZE, .anchor = ANCHOR_LEFT, .ink = ink_grey};
    canvas_text(&c, l.left, MARGIN + 30, look, plot->subtitle);
    draw_frame(&c, plot, &l);
    for (size_t s = 0, used = 0; s < plot->count; s++)
        inks[s] = plot->series[s].dashed ? ink_grey : palette[used++ % PALETTE_SIZE];
    for (size_t s = 0; s < plot->count; s++) draw_series(&c, &plot->series[s], &l, inks[s]);
    draw_labels(&c, plot, &l, inks);
    return canvas_save(&c);
}
