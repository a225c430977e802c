/* SPDX-License-Identifier: Apache-2.0 */
/* Picture files by way of cairo: see canvas.h. */
#define _XOPEN_SOURCE 700 /* M_PI */

#include "canvas.h"

#include "io/atomic_output.h"
#include "message.h"

#include <cairo-pdf.h>
#include <cairo-svg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const colour ink_black = {0.13, 0.14, 0.16};
const colour ink_grey = {0.40, 0.42, 0.45};
const colour ink_light = {0.88, 0.89, 0.90};
const colour ink_white = {1, 1, 1};

enum { FORMAT_NONE, FORMAT_PNG, FORMAT_SVG, FORMAT_PDF };

/* ---- Files ---- */

static int format_of_path(const char *path) {
    const char *dot = strrchr(path, '.');
    if (dot == NULL) return FORMAT_NONE;
    if (strcasecmp(dot, ".png") == 0) return FORMAT_PNG;
    if (strcasecmp(dot, ".svg") == 0) return FORMAT_SVG;
    if (strcasecmp(dot, ".pdf") == 0) return FORMAT_PDF;
    return FORMAT_NONE;
}

int canvas_check_path(const char *path) {
    if (format_of_path(path) != FORMAT_NONE) return EXIT_CODE_OK;
    return fail_usage("%s: a picture's name must end in .png, .svg or .pdf", path);
}

static cairo_status_t append_bytes(void *closure, const unsigned char *data, unsigned int length) {
    canvas *c = closure;
    if (c->size + length > c->capacity) {
        size_t capacity = (c->size + length) * 2;
        unsigned char *bytes = realloc(c->bytes, capacity);
        if (bytes == NULL) {
            c->failed = 1;
            return CAIRO_STATUS_NO_MEMORY;
        }
        c->bytes = bytes;
        c->capacity = capacity;
    }
    memcpy(c->bytes + c->size, data, length);
    c->size += length;
    return CAIRO_STATUS_SUCCESS;
}

int canvas_open(canvas *c, const char *path, double width, double height) {
    memset(c, 0, sizeof *c);
    c->path = path;
    c->format = format_of_path(path);
    if (c->format == FORMAT_SVG) {
        c->surface = cairo_svg_surface_create_for_stream(append_bytes, c, width, height);
    } else if (c->format == FORMAT_PDF) {
        c->surface = cairo_pdf_surface_create_for_stream(append_bytes, c, width, height);
    } else {
        c->surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)ceil(width * CANVAS_PIXELS_PER_UNIT),
                                                (int)ceil(height * CANVAS_PIXELS_PER_UNIT));
    }
    c->cr = cairo_create(c->surface);
    if (c->format == FORMAT_PNG) cairo_scale(c->cr, CANVAS_PIXELS_PER_UNIT, CANVAS_PIXELS_PER_UNIT);
    cairo_set_source_rgb(c->cr, 1, 1, 1);
    cairo_paint(c->cr);
    if (cairo_status(c->cr) == CAIRO_STATUS_SUCCESS) return EXIT_CODE_OK;
    canvas_discard(c);
    return fail_memory("a picture");
}

int canvas_open_for_measuring(canvas *c) { return canvas_open(c, "", 8, 8); }

void canvas_discard(canvas *c) {
    cairo_destroy(c->cr);
    cairo_surface_finish(c->surface);
    cairo_surface_destroy(c->surface);
    free(c->bytes);
    c->bytes = NULL;
}

static int write_file(const canvas *c) {
    fa_atomic_output output;
    fa_file_error error;
    if (fa_atomic_output_open(&output, c->path, &error) != FA_FILE_OK) return fail_file("%s", error.text);
    if (fa_atomic_output_write(&output, c->bytes, c->size, &error) != FA_FILE_OK) {
        fa_atomic_output_discard(&output);
        return fail_file("%s", error.text);
    }
    return fa_atomic_output_commit(&output, &error) == FA_FILE_OK ? EXIT_CODE_OK : fail_file("%s", error.text);
}

int canvas_save(canvas *c) {
    cairo_status_t status = cairo_status(c->cr);
    if (status == CAIRO_STATUS_SUCCESS && c->format == FORMAT_PNG)
        status = cairo_surface_write_to_png_stream(c->surface, append_bytes, c);
    cairo_surface_finish(c->surface); /* SVG and PDF are encoded here */
    if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_status(c->surface);
    int code = EXIT_CODE_OK;
    if (c->failed)
        code = fail_memory("a picture");
    else if (status != CAIRO_STATUS_SUCCESS && status != CAIRO_STATUS_SURFACE_FINISHED)
        code = fail_file("%s: cannot be drawn: %s", c->path, cairo_status_to_string(status));
    else
        code = write_file(c);
    canvas_discard(c);
    return code;
}

/* ---- Text ---- */

static void set_font(canvas *c, double size, int bold) {
    cairo_select_font_face(c->cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(c->cr, size);
}

/* Length of the UTF-8 sequence at text, 0 if it is none (overlong forms and surrogates are none). */
static size_t utf8_length(const unsigned char *text) {
    unsigned char first = text[0];
    if (first < 0x80) return 1;
    size_t length = first >= 0xc2 && first <= 0xdf   ? 2
                    : first >= 0xe0 && first <= 0xef ? 3
                    : first >= 0xf0 && first <= 0xf4 ? 4
                                                     : 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    if (first == 0xe0 && text[1] < 0xa0) return 0;
    if (first == 0xed && text[1] > 0x9f) return 0;
    if (first == 0xf0 && text[1] < 0x90) return 0;
    if (first == 0xf4 && text[1] > 0x8f) return 0;
    return length;
}

/* cairo stops drawing for good at a malformed string, and control characters have no shape. */
static void printable(const char *text, char *clean, size_t size) {
    size_t used = 0;
    while (*text != '\0' && used + 5 < size) {
        size_t length = utf8_length((const unsigned char *)text);
        if (length == 0 || (unsigned char)*text < 0x20 || *text == 0x7f) {
            clean[used++] = '?';
            text++;
        } else {
            memcpy(clean + used, text, length);
            used += length;
            text += length;
        }
    }
    clean[used] = '\0';
}

double canvas_text_width(canvas *c, double size, int bold, const char *text) {
    char clean[512];
    cairo_text_extents_t extents;
    printable(text, clean, sizeof clean);
    set_font(c, size, bold);
    cairo_text_extents(c->cr, clean, &extents);
    return extents.x_advance;
}

void canvas_text(canvas *c, double x, double y, text_look look, const char *text) {
    char clean[512];
    cairo_text_extents_t extents;
    printable(text, clean, sizeof clean);
    set_font(c, look.size, look.bold);
    cairo_text_extents(c->cr, clean, &extents);
    double shift = look.anchor == ANCHOR_LEFT ? 0 : look.anchor == ANCHOR_CENTRE ? 0.5 : 1;
    cairo_save(c->cr);
    cairo_translate(c->cr, x, y);
    cairo_rotate(c->cr, -look.degrees * M_PI / 180);
    cairo_move_to(c->cr, -shift * extents.x_advance, 0.36 * look.size);
    cairo_set_source_rgb(c->cr, look.ink.red, look.ink.green, look.ink.blue);
    cairo_show_text(c->cr, clean);
    cairo_new_path(c->cr); /* the current point stays behind the text otherwise */
    cairo_restore(c->cr);
}

/* ---- Shapes ---- */

void canvas_line(canvas *c, double x0, double y0, double x1, double y1, double width, colour ink) {
    cairo_set_source_rgb(c->cr, ink.red, ink.green, ink.blue);
    cairo_set_line_width(c->cr, width);
    cairo_move_to(c->cr, x0, y0);
    cairo_line_to(c->cr, x1, y1);
    cairo_stroke(c->cr);
}

void canvas_fill(canvas *c, double x, double y, double width, double height, colour ink) {
    cairo_set_source_rgb(c->cr, ink.red, ink.green, ink.blue);
    cairo_rectangle(c->cr, x, y, width, height);
    cairo_fill(c->cr);
}

void canvas_frame(canvas *c, double x, double y, double width, double height, double line, colour ink) {
    cairo_set_source_rgb(c->cr, ink.red, ink.green, ink.blue);
    cairo_set_line_width(c->cr, line);
    cairo_rectangle(c->cr, x - line / 2, y - line / 2, width + line, height + line);
    cairo_stroke(c->cr);
}

double nice_step(double range, int parts) {
    if (!(range > 0)) return 1;
    double power = pow(10, floor(log10(range / parts)));
    static const double factors[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (range / (factors[i] * power) <= parts + 1e-9) return factors[i] * power;
    return 10 * power;
}
