/* SPDX-License-Identifier: Apache-2.0 */
/* From options to a heat map: labels, titles, downsampling notes. See picture.h. */
#define _XOPEN_SOURCE 700

#include "picture.h"

#include "attention_weights.h"
#include "canvas.h"
#include "message.h"
#include "plot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PICTURE(member) offsetof(picture_settings, member)

const option picture_options[] = {
    {.name = "picture",
     .kind = OPTION_TEXT,
     .offset = PICTURE(picture),
     .placeholder = "FILE",
     .help = "draw the attention weights of one head, rows = queries, columns = keys; .png, .svg or .pdf; at most "
             "4096 x 4096, and above 1024 a cell shows the largest of several weights"},
    {.name = "head",
     .kind = OPTION_INTEGER,
     .offset = PICTURE(head),
     .placeholder = "N",
     .max = INT32_MAX,
     .help = "which head; default 0"},
    {.name = "batch",
     .kind = OPTION_INTEGER,
     .offset = PICTURE(batch),
     .placeholder = "N",
     .max = INT32_MAX,
     .help = "which batch entry or sequence; default 0"},
    {.name = "labels",
     .kind = OPTION_TEXT,
     .offset = PICTURE(labels),
     .placeholder = "FILE",
     .help = "text with one token per line for the axes, a line per key; the queries are the last of them"},
    {.name = "title",
     .kind = OPTION_TEXT,
     .offset = PICTURE(title),
     .placeholder = "TEXT",
     .help = "title of the picture; default \"Attention weights, head N\""},
};
const size_t picture_option_count = sizeof picture_options / sizeof picture_options[0];

int picture_check(const picture_settings *s) {
    if (s->picture != NULL) return canvas_check_path(s->picture);
    const char *lonely = s->head.given       ? "--head"
                         : s->batch.given    ? "--batch"
                         : s->labels != NULL ? "--labels"
                         : s->title != NULL  ? "--title"
                                             : NULL;
    return lonely == NULL ? EXIT_CODE_OK : fail_usage("%s belongs to --picture, which is not given", lonely);
}

/* ---- Labels ---- */

typedef struct label_list {
    char *text; /* the file, lines ended by '\0' */
    char **lines;
    size_t count;
} label_list;

static void labels_free(label_list *l) {
    free(l->text);
    free(l->lines);
}

static char *read_text(const char *path, size_t *size, const char **reason) {
    enum { LIMIT = 1 << 20 };
    FILE *file = fopen(path, "rb");
    *reason = NULL;
    if (file == NULL) {
        *reason = strerror(errno);
        return NULL;
    }
    char *text = malloc(LIMIT + 1);
    errno = 0;
    *size = text == NULL ? 0 : fread(text, 1, LIMIT + 1, file);
    if (text == NULL)
        *reason = "no memory";
    else if (ferror(file))
        *reason = errno != 0 ? strerror(errno) : "cannot be read";
    else if (*size > LIMIT)
        *reason = "has more than 1 MiB";
    (void)fclose(file);
    if (*reason != NULL) {
        free(text);
        return NULL;
    }
    text[*size] = '\0';
    return text;
}

/* Empty lines are labels too; a line feed at the end of the file begins no line. */
static int labels_read(label_list *l, const char *path, int64_t expected) {
    size_t size = 0;
    const char *reason = NULL;
    memset(l, 0, sizeof *l);
    l->text = read_text(path, &size, &reason);
    if (l->text == NULL) return fail_file("--labels = %s: %s", path, reason);
    if (size > 0 && l->text[size - 1] == '\n') size--;
    size_t lines = size > 0 ? 1 : 0;
    for (size_t i = 0; i < size; i++) lines += l->text[i] == '\n';
    if ((int64_t)lines != expected)
        return fail_file("--labels = %s: has %zu lines; the sequence has %" PRId64 " keys", path, lines, expected);
    l->lines = calloc(lines, sizeof *l->lines);
    if (l->lines == NULL) return fail_memory("the labels");
    char *at = l->text;
    l->text[size] = '\0';
    for (l->count = 0; l->count < lines; l->count++) {
        size_t length = strcspn(at, "\n");
        l->lines[l->count] = at;
        at[length] = '\0';
        if (length > 0 && at[length - 1] == '\r') at[length - 1] = '\0';
        at += length + 1;
    }
    return EXIT_CODE_OK;
}

/* ---- Picture ---- */

static int draw(const picture_settings *s, const attention *a, const attention_weights *w, const char *source,
                bool quiet) {
    label_list labels = {NULL, NULL, 0};
    char title[128], subtitle[512], rules[256], cells[160] = "";
    int64_t head = s->head.value, batch = s->batch.value;
    const char *slash = strrchr(source, '/');
    if (slash != NULL) source = slash + 1;
    int code = EXIT_CODE_OK;
    if (s->labels != NULL) code = labels_read(&labels, s->labels, w->keys);
    if (code == EXIT_CODE_OK && s->labels != NULL && w->queries > w->keys)
        code = fail_usage("--labels: the sequence has %" PRId64 " queries but %" PRId64
                          " keys, so queries have no tokens of their own",
                          w->queries, w->keys);
    if (code == EXIT_CODE_OK) {
        attention_describe(a, rules, sizeof rules);
        if (w->row_step > 1 || w->column_step > 1)
            (void)snprintf(cells, sizeof cells, ", each cell the largest of %" PRId64 " x %" PRId64 " weights",
                           w->row_step, w->column_step);
        (void)snprintf(title, sizeof title, "Attention weights, head %" PRId64, head);
        (void)snprintf(subtitle, sizeof subtitle, "%s, batch %" PRId64 ", %" PRId64 " quer%s x %" PRId64 " key%s, %s%s",
                       source, batch, w->queries, w->queries == 1 ? "y" : "ies", w->keys, w->keys == 1 ? "" : "s",
                       rules, cells);
        heat_map map = {.weights = w, .title = s->title ? s->title : title, .subtitle = subtitle};
        if (s->labels != NULL) {
            map.key_labels = labels.lines;
            map.query_labels = labels.lines + (w->keys - w->queries);
        }
        code = plot_heat_map(s->picture, &map);
    }
    if (code == EXIT_CODE_OK && !quiet)
        (void)printf("  picture  head %" PRId64 ", batch %" PRId64 ", %" PRId64 " x %" PRId64 " weights%s -> %s\n",
                     head, batch, w->queries, w->keys, cells, s->picture);
    labels_free(&labels);
    return code;
}

int picture_draw(const picture_settings *s, const attention *a, const char *source, bool quiet) {
    attention_weights w;
    int code = attention_weights_compute(a, s->batch.value, s->head.value, &w);
    if (code != EXIT_CODE_OK) return code;
    code = draw(s, a, &w, source, quiet);
    attention_weights_free(&w);
    return code;
}
