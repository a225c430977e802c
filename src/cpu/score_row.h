/* SPDX-License-Identifier: Apache-2.0 */
/* What bias, ALiBi and masks do to a row of scores: the same for forward and backward. */
#ifndef FA_CPU_SCORE_ROW_H
#define FA_CPU_SCORE_ROW_H

#include "cpu/kernels.h"
#include "problem.h"

/* The scores of one query and head with the keys [key, key + count). */
typedef struct fa_score_row {
    const fa_sequence *sequence;
    int64_t query, head, key, count;
} fa_score_row;

/* s += bias and ALiBi. `bias`: room for `count` floats. */
void fa_score_row_offset(const fa_problem *p, fa_load_rows *load_rows, const fa_score_row *row, float *s, float *bias);

/* s = -inf for keys outside `seen` or hidden by the mask, and from `count` up to `columns`, the panel's edge. */
void fa_score_row_hide(const fa_problem *p, const fa_score_row *row, fa_key_range seen, int64_t columns, float *s);

#endif
