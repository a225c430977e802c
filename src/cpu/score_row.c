/* SPDX-License-Identifier: Apache-2.0 */
/* What bias, ALiBi and masks do to a row of scores: see score_row.h. */
#include "cpu/score_row.h"

#include <math.h>

#include "cpu/arrays.h"

void fa_score_row_offset(const fa_problem *p, fa_load_rows *load_rows, const fa_score_row *row, float *s, float *bias) {
    if (p->bias.data != NULL) {
        const void *source = fa_score_address(&p->bias, row->sequence->batch, row->head, row->query, row->key);
        if (p->bias.key_stride == fa_element_size(p->bias.type)) {
            load_rows(bias, row->count, &source, 1, row->count, p->bias.type, 1.0f);
        } else {
            for (int64_t j = 0; j < row->count; j++)
                bias[j] = (float)fa_element_load((const char *)source + j * p->bias.key_stride, p->bias.type);
        }
        /* Not a sum where it masks: a hidden key's score may be NaN or +inf. */
        for (int64_t j = 0; j < row->count; j++) s[j] = bias[j] == -INFINITY ? -INFINITY : s[j] + bias[j];
    }
    if (p->alibi_slopes.data != NULL) {
        float slope = fa_alibi_slope(p, row->sequence->batch, row->head);
        for (int64_t j = 0; j < row->count; j++)
            s[j] -= slope * (float)fa_alibi_distance(&row->sequence->visibility, row->query, row->key + j);
    }
}

void fa_score_row_hide(const fa_problem *p, const fa_score_row *row, fa_key_range seen, int64_t columns, float *s) {
    for (int64_t j = 0; j < fa_min(seen.begin - row->key, row->count); j++) s[j] = -INFINITY;
    for (int64_t j = fa_max(fa_min(seen.end - row->key, row->count), 0); j < columns; j++) s[j] = -INFINITY;
    if (p->mask.data == NULL) return;
    const char *mask = fa_score_address(&p->mask, row->sequence->batch, row->head, row->query, row->key);
    for (int64_t j = 0; j < row->count; j++)
        if (mask[j * p->mask.key_stride] == 0) s[j] = -INFINITY;
}
