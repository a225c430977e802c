/* SPDX-License-Identifier: Apache-2.0 */
/* A picture file, PNG, SVG or PDF by its extension, and the few strokes that the plots are made of. One unit
 * is 1/72 inch in SVG and PDF and two pixels in PNG; y grows downwards. */
#ifndef FLASHATTN_TOOLS_CANVAS_H
#define FLASHATTN_TOOLS_CANVAS_H

#include "colour_map.h"

#include <cairo.h>
#include <stddef.h>

#define CANVAS_PIXELS_PER_UNIT 2 /* PNG */

typedef struct canvas {
    cairo_surface_t *surface;
    cairo_t *cr;
    const char *path;
    int format;
    unsigned char *bytes; /* the file as far as it is encoded */
    size_t size, capacity;
    int failed; /* no memory */
} canvas;

/* Refuses other extensions; says nothing about the file yet. Returns an exit code. */
int canvas_check_path(const char *path);

int canvas_open(canvas *c, const char *path, double width, double height);
/* Encodes and writes the file, atomically. Returns an exit code. */
int canvas_save(canvas *c);

/* A canvas to measure text on before the size of the picture is known; ends with canvas_discard. */
int canvas_open_for_measuring(canvas *c);
void canvas_discard(canvas *c);

typedef enum text_anchor { ANCHOR_LEFT, ANCHOR_CENTRE, ANCHOR_RIGHT } text_anchor;

typedef struct text_look {
    double size;
    int bold;
    text_anchor anchor;
    double degrees; /* turned counter-clockwise around (x, y) */
    colour ink;
} text_look;

/* The text's x-height is centred on y. Bytes that are no UTF-8 are shown as '?'. */
void canvas_text(canvas *c, double x, double y, text_look look, const char *text);
double canvas_text_width(canvas *c, double size, int bold, const char *text);

void canvas_line(canvas *c, double x0, double y0, double x1, double y1, double width, colour ink);
void canvas_fill(canvas *c, double x, double y, double width, double height, colour ink);
void canvas_frame(canvas *c, double x, double y, double width, double height, double line, colour ink);

extern const colour ink_black, ink_grey, ink_light, ink_white;

/* The smallest of 1, 2, 5, 10, ... times a power of ten that cuts `range` into at most `parts`. */
double nice_step(double range, int parts);

#endif
