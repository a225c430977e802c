/* SPDX-License-Identifier: Apache-2.0 */
/* How plain attention computes: each intermediate in the inputs' dtype, sums in float32. For standard.c and
 * standard_backward.c. */
#ifndef FA_STANDARD_ARITHMETIC_H
#define FA_STANDARD_ARITHMETIC_H

#include "element.h"

#include <math.h>

/* x as the inputs' dtype holds it. */
static inline double rounded(double x, fa_element type) {
    unsigned char bytes[8];
    fa_element_store(bytes, x, type);
    return fa_element_load(bytes, type);
}

/* exp as the running sum holds it. */
static inline double exponential(double x, fa_element type) {
    return type == FA_ELEMENT_FLOAT64 ? exp(x) : (double)(float)exp(x);
}

/* A running sum: float32, or float64 for float64 inputs. */
static inline double added(double sum, double term, fa_element type) {
    return type == FA_ELEMENT_FLOAT64 ? sum + term : (double)((float)sum + (float)term);
}

static inline double dot(const char *a, fa_element a_type, const char *b, fa_element b_type, int64_t size,
                         fa_element type) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++)
        sum = added(sum,
                    fa_element_load(a + i * fa_element_size(a_type), a_type) *
                        fa_element_load(b + i * fa_element_size(b_type), b_type),
                    type);
    return sum;
}

#endif
