/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention once more, in float64 with whole matrices, and what float32 arithmetic can be expected to lose on
 * the way. It shares no code with the library but the conversion of single elements.
 */
#ifndef FLASHATTN_TEST_ORACLE_H
#define FLASHATTN_TEST_ORACLE_H

#include "attention_case.h"

typedef struct oracle {
    int64_t rows, out_count, lse_count; /* of all sequences; as out and lse number their elements */
    double *out, *lse;
    /*
     * The rounding unit of each lse and of each row of out: the first-order error if each operation of the
     * formula, done in float32, is off by 2^-24 of its result where that is inexact. Independent roundings add
     * up in the square. In lse those of different keys are taken at their worst, since what they have in
     * common (a rounded query) adds up there; in out it cancels. Besides, where scores and weights are held in a
     * 16-bit dtype: half an ulp of it for each of them.
     */
    double *out_unit, *lse_unit;
    bool *sees_key; /* for each row of out */
} oracle;

/* held: the dtype in which the contender holds scores and weights. */
oracle *oracle_new(const attention_call *a, fa_element held);
void oracle_free(oracle *o);

/* ---- For oracles ---- */

#define UNIT 0x1p-24 /* half an ulp of float32, relative */

double *zeros(int64_t count);
/* What rounding x to float32 may lose: nothing if x is one already. */
double lost(double x);

/* One head of one sequence, as plain matrices. */
typedef struct head_view {
    const attention_call *a;
    call_sequence s;
    int64_t n, head;
    double scale, sink;
    fa_element held;
    double *q;            /* [q_rows][head_dim] */
    double *k, *v;        /* [keys][head_dim], [keys][head_dim_v] */
    double *score, *unit; /* [keys], of one row */
} head_view;

head_view head_view_new(const attention_call *a, int64_t n, int64_t head);
void head_view_free(head_view *w);
/* Score and rounding unit of a visible pair. */
double score_of(const head_view *w, int64_t row, int64_t key, double *unit);

#endif
