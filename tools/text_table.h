/* SPDX-License-Identifier: Apache-2.0 */
/* A table of text with aligned columns, for terminals and for files alike. ASCII cells. */
#ifndef FLASHATTN_TOOLS_TEXT_TABLE_H
#define FLASHATTN_TOOLS_TEXT_TABLE_H

#include "terminal.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TEXT_TABLE_COLUMNS 16

typedef struct text_table_row {
    char cells[TEXT_TABLE_COLUMNS][40];
    text_style style; /* of the last cell */
} text_table_row;

typedef struct text_table {
    size_t columns;
    bool right[TEXT_TABLE_COLUMNS]; /* aligned to the right, as numbers are */
    text_table_row *rows;           /* the first one is the heading */
    size_t count;
    bool failed; /* out of memory; printed as far as it came */
} text_table;

/* alignment: one letter per column, 'l' or 'r'. */
void text_table_begin(text_table *table, const char *alignment);
/* A new row of empty cells; the first call makes the heading. Valid until the next call. */
text_table_row *text_table_add(text_table *table);
/* The next cell of a row, counted by *column. */
void text_table_cell(text_table_row *row, size_t *column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void text_table_print(const text_table *table, FILE *stream);
void text_table_end(text_table *table);

#endif
