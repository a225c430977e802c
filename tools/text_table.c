/* SPDX-License-Identifier: Apache-2.0 */
/* Aligned text: see text_table.h. */
#include "text_table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void text_table_begin(text_table *table, const char *alignment) {
    memset(table, 0, sizeof *table);
    table->columns = strlen(alignment);
    for (size_t i = 0; i < table->columns; i++) table->right[i] = alignment[i] == 'r';
}

text_table_row *text_table_add(text_table *table) {
    static text_table_row spare; /* written to when there is no memory, never printed */
    text_table_row *rows = realloc(table->rows, (table->count + 1) * sizeof *rows);
    if (rows == NULL) {
        table->failed = true;
        return &spare;
    }
    table->rows = rows;
    memset(&rows[table->count], 0, sizeof *rows);
    return &rows[table->count++];
}

void text_table_cell(text_table_row *row, size_t *column, const char *format, ...) {
    va_list arguments;
    if (*column >= TEXT_TABLE_COLUMNS) return;
    va_start(arguments, format);
    (void)vsnprintf(row->cells[*column], sizeof row->cells[0], format, arguments);
    va_end(arguments);
    ++*column;
}

void text_table_print(const text_table *table, FILE *stream) {
    size_t width[TEXT_TABLE_COLUMNS] = {0};
    for (size_t r = 0; r < table->count; r++) {
        for (size_t i = 0; i < table->columns; i++) {
            size_t length = strlen(table->rows[r].cells[i]);
            if (length > width[i]) width[i] = length;
        }
    }
    for (size_t r = 0; r < table->count; r++) {
        const text_table_row *row = &table->rows[r];
        for (size_t i = 0; i < table->columns; i++) {
            bool last = i + 1 == table->columns;
            text_style used = r == 0 ? STYLE_BOLD : last ? row->style : STYLE_NONE;
            int pad = (int)(width[i] - strlen(row->cells[i]));
            (void)fprintf(stream, "%*s%s%s%s%*s", (i > 0 ? 2 : 0) + (table->right[i] ? pad : 0), "",
                          used == STYLE_NONE ? "" : style(stream, used), row->cells[i],
                          used == STYLE_NONE ? "" : style(stream, STYLE_NONE), table->right[i] || last ? 0 : pad, "");
        }
        (void)fputc('\n', stream);
    }
}

void text_table_end(text_table *table) {
    free(table->rows);
    table->rows = NULL;
    table->count = 0;
}
