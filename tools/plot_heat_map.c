/* SPDX-License-Identifier: Apache-2.0 */
/* Draws attention weights: a row per query, a column per key, darker where a query looks more. See plot.h.
 *
 * Colours follow the square root of the weight: a row's weights sum to 1, so most are small, and on a linear
 * scale all but a few would be white. The legend's numbers are weights. */
#include "canvas.h"
#include "message.h"
#include "plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 26.0
#define TITLE_SIZE 15.0
#define TEXT_SIZE 9.5
#define WANTED_SIDE 560.0 /* of the map's longer side */
#define BAR_WIDTH 13.0
#define BAR_GAP 26.0

static const colour ink_hidden = {0.905, 0.908, 0.915};
static const colour ink_nan = {0.85, 0.15, 0.20};

/* Labels of one axis: which positions get one, how large, and how wide the widest is. */
typedef struct axis {
    char *const *labels; /* NULL: numbers */
    int64_t count;       /* positions: queries or keys */
    double cell;         /* units per position */
    double size;         /* of the text */
    int64_t every;       /* of how many positions one is labelled */
    double widest;
} axis;

typedef struct heat_map_layout {
    int pixels; /* per cell, in PNG; the map is an image of this resolution in SVG and PDF too */
    double left, top, width, height;
    double bottom; /* of the tick labels under the map */
    double total_width, total_height;
    double top_weight; /* the colour map's end */
    bool has_hidden, has_nan;
    axis rows, columns;
} heat_map_layout;

static void axis_label(const axis *a, int64_t position, char *text, size_t size) {
    enum { LONGEST = 28 };
    if (a->labels == NULL) {
        (void)snprintf(text, size, "%" PRId64, position);
        return;
    }
    /* Cut long tokens between UTF-8 sequences. */
    const char *label = a->labels[position];
    size_t length = strlen(label);
    if (length > LONGEST) {
        length = LONGEST;
        while (length > 0 && ((unsigned char)label[length] & 0xc0) == 0x80) length--;
        (void)snprintf(text, size, "%.*s…", (int)length, label);
    } else {
        (void)snprintf(text, size, "%s", label);
    }
}

/* Tokens are labelled one by one where a line of text fits, numbers at round distances. */
static void axis_init(axis *a, canvas *measure, char *const *labels, int64_t count, double cell) {
    a->labels = labels;
    a->count = count;
    a->cell = cell;
    a->size = TEXT_SIZE;
    if (labels != NULL) {
        a->size = fmin(TEXT_SIZE, fmax(cell * 0.86, 6.5));
        a->every = (int64_t)ceil(a->size * 1.1 / cell);
    } else {
        char last[64];
        axis_label(a, count - 1, last, sizeof last);
        double room = (double)count * cell / (canvas_text_width(measure, a->size, 0, last) + 12);
        double step = nice_step((double)count, room < 1 ? 1 : room > 12 ? 12 : (int)room);
        a->every = step < 1 ? 1 : (int64_t)step;
    }
    a->widest = 0;
    for (int64_t i = 0; i < count; i += a->every) {
        char text[64];
        axis_label(a, i, text, sizeof text);
        a->widest = fmax(a->widest, canvas_text_width(measure, a->size, 0, text));
    }
}

/* Tokens under the columns stand upright if they are too long for their column. */
static bool columns_upright(const axis *a) { return a->widest > a->cell * (double)a->every - 3; }

static void scan_weights(const attention_weights *w, heat_map_layout *l) {
    float largest = 0;
    for (int64_t i = 0; i < w->rows * w->columns; i++) {
        if (!w->visible[i])
            l->has_hidden = true;
        else if (isnan(w->weight[i]))
            l->has_nan = true;
        if (w->weight[i] > largest) largest = w->weight[i];
    }
    l->top_weight = largest > 0 ? (double)largest : 1;
    if (l->top_weight > 0.97 && l->top_weight < 1.001) l->top_weight = 1;
}

static void make_layout(const heat_map *map, canvas *measure, heat_map_layout *l) {
    const attention_weights *w = map->weights;
    memset(l, 0, sizeof *l);
    scan_weights(w, l);
    int64_t longer = w->rows > w->columns ? w->rows : w->columns;
    double pixels = floor(WANTED_SIDE * CANVAS_PIXELS_PER_UNIT / (double)longer + 0.5);
    l->pixels = pixels < 1 ? 1 : pixels > 96 ? 96 : (int)pixels;
    double cell = (double)l->pixels / CANVAS_PIXELS_PER_UNIT;
    l->width = cell * (double)w->columns;
    l->height = cell * (double)w->rows;
    axis_init(&l->rows, measure, map->query_labels, w->queries, cell / (double)w->row_step);
    axis_init(&l->columns, measure, map->key_labels, w->keys, cell / (double)w->column_step);
    l->left = ceil(MARGIN + 20 + l->rows.widest + 8);
    l->top = MARGIN + 56;
    double labels = columns_upright(&l->columns) ? l->columns.widest : l->columns.size;
    l->bottom = l->top + l->height + 8 + labels;
    double legend = l->top + 150 + (l->has_hidden ? 24 : 0) + (l->has_nan ? 24 : 0);
    l->total_height = ceil(fmax(l->bottom + 26, legend) + MARGIN - 6);
    double title = fmax(canvas_text_width(measure, TITLE_SIZE, 1, map->title),
                        canvas_text_width(measure, TEXT_SIZE, 0, map->subtitle));
    double right = l->left + l->width + BAR_GAP + BAR_WIDTH + 84;
    l->total_width = ceil(fmax(right, l->left + title + MARGIN));
}

/* The cells as an image of whole pixels, so that no viewer blurs them. */
static cairo_surface_t *cell_image(const attention_weights *w, const heat_map_layout *l, const colour_map *colours) {
    int width = (int)w->columns * l->pixels, height = (int)w->rows * l->pixels;
    cairo_surface_t *image = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
    if (cairo_surface_status(image) != CAIRO_STATUS_SUCCESS) return image;
    unsigned char *data = cairo_image_surface_get_data(image);
    int stride = cairo_image_surface_get_stride(image);
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            int64_t i = y / l->pixels * w->columns + x / l->pixels;
            colour ink =
                !w->visible[i] ? ink_hidden : colour_map_at(colours, sqrt((double)w->weight[i] / l->top_weight));
            if (w->visible[i] && isnan(w->weight[i])) ink = ink_nan;
            uint32_t pixel = colour_rgb24(ink);
            memcpy(data + (ptrdiff_t)y * stride + (ptrdiff_t)x * 4, &pixel, sizeof pixel);
        }
    }
    cairo_surface_mark_dirty(image);
    return image;
}

static void draw_cells(canvas *c, const attention_weights *w, const heat_map_layout *l, const colour_map *colours) {
    cairo_surface_t *image = cell_image(w, l, colours);
    double scale = 1.0 / CANVAS_PIXELS_PER_UNIT;
    cairo_save(c->cr);
    cairo_translate(c->cr, l->left, l->top);
    cairo_scale(c->cr, scale, scale);
    cairo_set_source_surface(c->cr, image, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(c->cr), CAIRO_FILTER_NEAREST);
    cairo_paint(c->cr);
    cairo_restore(c->cr);
    cairo_surface_destroy(image);
    double cell = (double)l->pixels / CANVAS_PIXELS_PER_UNIT;
    if (cell >= 7) { /* thin joints between large cells */
        for (int64_t i = 1; i < w->columns; i++)
            canvas_line(c, l->left + cell * (double)i, l->top, l->left + cell * (double)i, l->top + l->height, 0.5,
                        ink_white);
        for (int64_t i = 1; i < w->rows; i++)
            canvas_line(c, l->left, l->top + cell * (double)i, l->left + l->width, l->top + cell * (double)i, 0.5,
                        ink_white);
    }
    canvas_frame(c, l->left, l->top, l->width, l->height, 0.75, ink_grey);
}

static void draw_axes(canvas *c, const heat_map_layout *l) {
    char text[64];
    text_look look = {.size = l->rows.size, .anchor = ANCHOR_RIGHT, .ink = ink_black};
    for (int64_t i = 0; i < l->rows.count; i += l->rows.every) {
        double y = l->top + l->rows.cell * ((double)i + 0.5);
        axis_label(&l->rows, i, text, sizeof text);
        canvas_line(c, l->left - 3.5, y, l->left - 0.75, y, 0.6, ink_grey);
        canvas_text(c, l->left - 6, y, look, text);
    }
    bool upright = columns_upright(&l->columns);
    look.size = l->columns.size;
    look.anchor = upright ? ANCHOR_RIGHT : ANCHOR_CENTRE;
    look.degrees = upright ? 90 : 0;
    double bottom = l->top + l->height;
    for (int64_t i = 0; i < l->columns.count; i += l->columns.every) {
        double x = l->left + l->columns.cell * ((double)i + 0.5);
        axis_label(&l->columns, i, text, sizeof text);
        canvas_line(c, x, bottom + 0.75, x, bottom + 3.5, 0.6, ink_grey);
        canvas_text(c, x, bottom + (upright ? 6 : 6 + look.size / 2), look, text);
    }
    text_look name = {.size = TEXT_SIZE + 1, .anchor = ANCHOR_CENTRE, .ink = ink_grey};
    canvas_text(c, l->left + l->width / 2, l->bottom + 14, name, "key");
    name.degrees = 90;
    canvas_text(c, MARGIN + 2, l->top + l->height / 2, name, "query");
}

static void draw_swatch(canvas *c, double x, double y, colour ink, const char *text) {
    text_look look = {.size = TEXT_SIZE, .anchor = ANCHOR_LEFT, .ink = ink_black};
    canvas_fill(c, x, y, BAR_WIDTH, BAR_WIDTH, ink);
    canvas_frame(c, x, y, BAR_WIDTH, BAR_WIDTH, 0.5, ink_grey);
    canvas_text(c, x + BAR_WIDTH + 6, y + BAR_WIDTH / 2, look, text);
}

static void draw_legend_tick(canvas *c, double x, double y, double weight) {
    const text_look look = {.size = TEXT_SIZE, .anchor = ANCHOR_LEFT, .ink = ink_black};
    char text[32];
    (void)snprintf(text, sizeof text, "%.2g", weight);
    canvas_line(c, x + 0.5, y, x + 3.5, y, 0.6, ink_grey);
    canvas_text(c, x + 6, y, look, text);
}

/* The ends, and of 1, 2, 5, 10, ... times powers of ten those that have room, from the largest down. */
static void draw_legend_ticks(canvas *c, const heat_map_layout *l, double x, double top, double height) {
    static const double factors[] = {5, 2, 1};
    const double room = TEXT_SIZE * 1.5, zero = top + height;
    double above = top, power = pow(10, floor(log10(l->top_weight)) + 1);
    draw_legend_tick(c, x, top, l->top_weight);
    draw_legend_tick(c, x, zero, 0);
    for (int i = 0; i < 12; i++) {
        if (i % 3 == 0) power /= 10;
        double weight = factors[i % 3] * power, y = zero - height * sqrt(weight / l->top_weight);
        if (y < above + room || y > zero - room) continue;
        draw_legend_tick(c, x, y, weight);
        above = y;
    }
}

static void draw_legend(canvas *c, const heat_map_layout *l, const colour_map *colours) {
    double x = l->left + l->width + BAR_GAP, swatches = (l->has_hidden ? 24 : 0) + (l->has_nan ? 24 : 0);
    double height = fmin(fmax(l->height - 22 - swatches, 104), 260), top = l->top + 22;
    const text_look look = {.size = TEXT_SIZE + 1, .anchor = ANCHOR_LEFT, .ink = ink_grey};
    canvas_text(c, x, l->top + 5, look, "weight");
    int strips = COLOUR_MAP_SIZE;
    for (int i = 0; i < strips; i++) { /* overlapping, so that no seam shows */
        double y = top + height * (strips - 1 - i) / strips;
        canvas_fill(c, x, y, BAR_WIDTH, top + height - y < height / strips * 2 ? top + height - y : height / strips * 2,
                    colour_map_at(colours, (double)i / (strips - 1)));
    }
    canvas_frame(c, x, top, BAR_WIDTH, height, 0.5, ink_grey);
    draw_legend_ticks(c, l, x + BAR_WIDTH, top, height);
    double y = top + height + 12;
    if (l->has_hidden) {
        draw_swatch(c, x, y, ink_hidden, "not visible");
        y += 24;
    }
    if (l->has_nan) draw_swatch(c, x, y, ink_nan, "NaN");
}

int plot_heat_map(const char *path, const heat_map *map) {
    canvas c;
    heat_map_layout l;
    int code = canvas_open_for_measuring(&c);
    if (code != EXIT_CODE_OK) return code;
    make_layout(map, &c, &l);
    canvas_discard(&c);
    code = canvas_open(&c, path, l.total_width, l.total_height);
    if (code != EXIT_CODE_OK) return code;
    colour_map *colours = malloc(sizeof *colours);
    if (colours == NULL) {
        canvas_discard(&c);
        return fail_memory("a picture");
    }
    colour_map_init(colours);
    text_look look = {.size = TITLE_SIZE, .bold = 1, .anchor = ANCHOR_LEFT, .ink = ink_black};
    canvas_text(&c, l.left, MARGIN + 8, look, map->title);
    look = (text_look){.size = TEXT_SIZE, .anchor = ANCHOR_LEFT, .ink = ink_grey};
    canvas_text(&c, l.left, MARGIN + 30, look, map->subtitle);
    draw_cells(&c, map->weights, &l, colours);
    draw_axes(&c, &l);
    draw_legend(&c, &l, colours);
    free(colours);
    return canvas_save(&c);
}
