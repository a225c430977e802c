/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of `flashattn check` share: the settings, errors and their budget, the report. */
#ifndef FLASHATTN_TOOLS_CHECK_H
#define FLASHATTN_TOOLS_CHECK_H

#include "attention.h"
#include "terminal.h"
#include "text_table.h"

#include <jansson.h>

typedef struct check_settings {
    option_integer batch, heads, heads_kv, seqlen, seqlen_q, seqlen_k, head_dim, head_dim_v;
    uint32_t dtypes; /* bits of fa_element */
    option_integer seed;
    uint32_t kernels; /* bits of checked_kernels; 0: cpu */
    uint32_t isas;    /* of the cpu kernel, bits of fa_isa; 0: all that can run */
    bool backward;
    parallel_settings parallel;
    const char *expected, *expected_lse;
    const char *json;
} check_settings;

/* The reference and plain attention are what others are judged by. */
#define CHECKED_KERNELS 5
extern const fa_kernel checked_kernels[CHECKED_KERNELS];

/* What is asked for by name is run, so that the library says why it cannot; "all" means what can run. */
bool check_isa_chosen(const check_settings *s, const attention *a, int isa);
bool check_kernel_chosen(const check_settings *s, int index);
/* "cpu avx2" */
void check_name(fa_kernel kernel, fa_isa isa, char *text, size_t size);

/* ---- Errors ---- */

/* Four roundings of float32, relative to the largest value (lse: to 1 at least). */
#define BUDGET_FLOOR 0x1p-22

typedef struct error_size {
    double max;       /* largest absolute difference */
    double frobenius; /* root of the sum of squares, relative to that of the reference */
    double largest;   /* absolute value in the reference */
} error_size;

/* Equal infinities do not differ; a NaN on either side makes the error NaN, which is within no budget. */
error_size error_between(const tensor *x, const tensor *reference);

/* ---- Report ---- */

typedef struct check_report {
    text_table table;
    json_t *rows;
    size_t bad;
    progress bar;
    double done;
} check_report;

/* Shows what is being computed. */
void check_step(check_report *r, const char *label);

/* ---- Backward (check_backward.c) ---- */

/* The headings of its table, "" behind the last. */
extern const char *const check_backward_heading[];
/* Gradients of q, k, v, and of bias, sink and ALiBi slopes where given, for a random dout. Returns an exit code. */
int check_backward(attention *a, const check_settings *s, const char *dtype, check_report *report);

#endif
