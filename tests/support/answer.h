/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error budget for one tensor of results: out, lse, or a gradient. judge.h states the rule; this is where it stands
 * in code, once.
 */
#ifndef FLASHATTN_TEST_ANSWER_H
#define FLASHATTN_TEST_ANSWER_H

#include "attention_case.h"

typedef struct norms {
    double max, frobenius;
} norms;

/* What is known about a tensor of results before a contender is looked at. */
typedef struct answer {
    const char *name;
    int64_t count;
    double *values;    /* the reference's */
    double *allowance; /* of each element, besides the standard kernel's error */
    norms allowances;
    norms standard;    /* error of the standard kernel */
    norms in_dtype;    /* the same, always in the inputs' dtype */
    bool rounded_last; /* the allowance holds the half ulp of a 16-bit out, which is always used up */
    bool *sees_key;    /* of each row, by the oracle: does it depend on anything? If not it is exactly 0. lse: NULL */
    int64_t row_length;
} answer;

/* A verdict: NULL if all is well, else what is wrong, good until the next one. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
const char *
fault(const char *format, ...);

const char *fault_in_writing(const char *name, const tensor *t);

void norms_add(norms *n, double x);
double *values_of(const tensor *t);
/* Half an ulp of a 16-bit format at x. */
double rounding_of(double x, fa_element type);

/* Holds the reference's values against the oracle's; one rounding unit for `per_unit` elements each. */
void check_reference(const attention_call *a, const answer *reference, const double *oracle_values, const double *units,
                     int64_t per_unit);
void set_allowances(answer *x, const double *units, int64_t per_unit);
/* What the standard kernel's result t loses. */
void standard_errors(attention_call *a, answer *reference, const tensor *t);
const char *fault_in_answer(const answer *reference, const tensor *t);

/* The largest error so far, as a share of what was allowed; 16-bit outputs in the strict comparison apart. */
double judge_worst_share(void);

#endif
