/* SPDX-License-Identifier: Apache-2.0 */
/* What makes output pleasant on a terminal and plain elsewhere: styles, width, a progress bar. */
#ifndef FLASHATTN_TOOLS_TERMINAL_H
#define FLASHATTN_TOOLS_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

typedef enum text_style { STYLE_NONE, STYLE_BOLD, STYLE_FAINT, STYLE_GOOD, STYLE_BAD } text_style;

/* The escape sequence that begins a style (STYLE_NONE ends it); "" if the stream is no terminal, or if the
 * environment sets NO_COLOR or TERM=dumb. */
const char *style(FILE *stream, text_style which);

/* Columns; 80 if the stream is no terminal or does not say. */
int terminal_width(FILE *stream);

/*
 * A bar on stderr, drawn only if that is a terminal. One thread draws.
 */
typedef struct progress {
    bool shown;
    bool utf8;
    double total;
    double start; /* seconds */
    double drawn; /* seconds; redrawn at most every 50 ms */
} progress;

void progress_begin(progress *p, double total);
/* `done` of `total`; label says what is going on and is cut to fit. */
void progress_update(progress *p, double done, const char *label);
/* Removes the bar, so that what is printed next stands in its place. */
void progress_end(progress *p);

#endif
