/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients once more, in float64 with whole matrices, and what float32 arithmetic can be expected to lose on the
 * way (rounding units: see oracle.h). It shares no code with the library but the conversion of single elements.
 */
#ifndef FLASHATTN_TEST_ORACLE_BACKWARD_H
#define FLASHATTN_TEST_ORACLE_BACKWARD_H

#include "attention_case.h"

typedef enum gradient {
    GRADIENT_Q,
    GRADIENT_K,
    GRADIENT_V,
    GRADIENT_BIAS,
    GRADIENT_SINK,
    GRADIENT_SLOPES,
    GRADIENTS
} gradient;

/* "dq" */
const char *gradient_name(gradient which);
/* The tensor whose gradient it is: elements are numbered as there. NULL: the call has none. */
const tensor *gradient_of(const attention_call *a, gradient which);

/* For each element; NULL where the call has no such tensor. */
typedef struct oracle_gradients {
    double *values[GRADIENTS], *units[GRADIENTS];
    double *weight_units[GRADIENTS]; /* of dq, dk, dv: if P and dS were rounded to bfloat16 before the last product */
    bool *takes_part[GRADIENTS];     /* false: no pair touches it, so that it is exactly 0 */
} oracle_gradients;

/* From the given out and lse, which may be rounded. */
oracle_gradients *oracle_gradients_new(const attention_call *a, const tensor *dout, const tensor *out,
                                       const tensor *lse);
void oracle_gradients_free(oracle_gradients *o);

#endif
