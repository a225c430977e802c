/* SPDX-License-Identifier: Apache-2.0 */
/* The error budget: see answer.h. */
#include "answer.h"

#include "testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FACTOR 2.0      /* times the standard kernel's error */
#define FLOOR_UNITS 4.0 /* rounding units */

const char *fault(const char *format, ...) {
    static char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

const char *fault_in_writing(const char *name, const tensor *t) {
    int64_t unwritten = tensor_first_poisoned(t);
    if (unwritten >= 0) return fault("%s: element %" PRId64 " was not written", name, unwritten);
    if (!tensor_canaries_intact(t)) return fault("wrote outside the elements of %s", name);
    return NULL;
}

void norms_add(norms *n, double x) {
    if (x > n->max) n->max = x;
    n->frobenius = hypot(n->frobenius, x); /* hypot: near the largest numbers squares overflow */
}

/* Whether x is the infinity that stands for a finite number beyond float16's range: from 65520 on it is what rounding
 * gives, and within 1 % of that an error may decide. */
static bool stands_for(double expected, double x, const tensor *t) {
    return element_of_dtype(t->fa.dtype) == FA_ELEMENT_FLOAT16 && isfinite(expected) && isinf(x) &&
           fabs(expected) >= 0.99 * 65520 && (x > 0) == (expected > 0);
}

/* Whether x is NaN, infinite or finite where the reference is. An infinite output may turn NaN on its way: a
 * weight too small for float32 times infinity. */
static bool same_kind(const answer *reference, double expected, double x, const tensor *t) {
    if (isfinite(expected)) return isfinite(x) || stands_for(expected, x, t);
    if (isnan(expected)) return isnan(x);
    return reference->sees_key == NULL ? x == expected : !isfinite(x);
}

static const char *fault_in_kind(const answer *reference, const tensor *t) {
    for (int64_t i = 0; i < reference->count; i++) {
        double expected = reference->values[i], x = tensor_get(t, i);
        if (!same_kind(reference, expected, x, t))
            return fault("%s[%" PRId64 "] = %g, and the reference has %.9g", reference->name, i, x, expected);
        if (reference->sees_key != NULL && !reference->sees_key[i / reference->row_length] && !(x == 0))
            return fault("%s[%" PRId64 "] = %g: it takes part in nothing, and must be exactly 0", reference->name, i,
                         x);
    }
    return NULL;
}

/* For infinite and NaN elements, which fault_in_kind() has compared, 0. */
static double error_of(const answer *reference, const tensor *t, int64_t i) {
    double expected = reference->values[i], x = tensor_get(t, i);
    return isfinite(expected) && !stands_for(expected, x, t) ? fabs(x - expected) : 0;
}

static norms errors_of(const answer *reference, const tensor *t) {
    norms n = {0, 0};
    for (int64_t i = 0; i < reference->count; i++) norms_add(&n, error_of(reference, t, i));
    return n;
}

double *values_of(const tensor *t) {
    int64_t count = tensor_count(t);
    double *values = calloc((size_t)count + 1, sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = tensor_get(t, i);
    return values;
}

/* The reference has only float64's own errors: 2^-29 of float32's, and some where float32 would be exact. */
void check_reference(const attention_call *a, const answer *reference, const double *oracle_values, const double *units,
                     int64_t per_unit) {
    for (int64_t i = 0; i < reference->count; i++) {
        double x = reference->values[i], expected = oracle_values[i];
        double allowed = 64 * units[i / per_unit] * 0x1p-29 + 1e-11 * fabs(expected) + 1e-300;
        if (isnan(x) != isnan(expected) || isinf(x) != isinf(expected) || (isinf(x) && (x > 0) != (expected > 0)) ||
            (isfinite(x) && !(fabs(x - expected) <= allowed)))
            call_fail(a, "reference: %s[%" PRId64 "] = %.17g, and the oracle has %.17g (allowed: %.3g)",
                      reference->name, i, x, expected, allowed);
    }
}

/* Half an ulp of a 16-bit format at x. */
double rounding_of(double x, fa_element type) {
    if (x == 0 || !isfinite(x)) return 0;
    int bits = type == FA_ELEMENT_FLOAT16 ? 11 : 8, lowest = type == FA_ELEMENT_FLOAT16 ? -24 : -133;
    int exponent = ilogb(x) + 1 - bits;
    return ldexp(0.5, exponent < lowest ? lowest : exponent);
}

void standard_errors(attention_call *a, answer *reference, const tensor *t) {
    const char *wrong = fault_in_kind(reference, t);
    reference->standard = errors_of(reference, t);
    if (wrong == NULL) return;
    /* Logits beyond a 16-bit format's range are infinite to the standard kernel: no yardstick then, and the
     * one in float32 decides. */
    if (a->c.type == FA_ELEMENT_FLOAT32) call_fail(a, "standard: %s", wrong);
    reference->standard = (norms){(double)INFINITY, (double)INFINITY};
}

void set_allowances(answer *x, const double *units, int64_t per_unit) {
    x->allowance = calloc((size_t)x->count + 1, sizeof *x->allowance);
    assert_non_null(x->allowance);
    for (int64_t i = 0; i < x->count; i++) {
        x->allowance[i] = FLOOR_UNITS * units[i / per_unit];
        norms_add(&x->allowances, x->allowance[i]);
    }
}

static double worst_share;

double judge_worst_share(void) { return worst_share; }

static bool within(const answer *reference, double error, double allowed) {
    if (!(error <= allowed)) return false; /* the end, or somebody grants more */
    if (!reference->rounded_last && allowed > 0 && error / allowed > worst_share) worst_share = error / allowed;
    return true;
}

const char *fault_in_answer(const answer *reference, const tensor *t) {
    const char *wrong = fault_in_kind(reference, t);
    for (int64_t i = 0; i < reference->count && wrong == NULL; i++) {
        double error = error_of(reference, t, i), allowed = FACTOR * reference->standard.max + reference->allowance[i];
        if (!within(reference, error, allowed))
            wrong = fault("%s[%" PRId64 "] = %.9g, reference %.17g: error %.4g > %.4g = %g * the standard kernel's "
                          "%.4g + %.4g for rounding",
                          reference->name, i, tensor_get(t, i), reference->values[i], error, allowed, FACTOR,
                          reference->standard.max, reference->allowance[i]);
    }
    if (wrong != NULL) return wrong;
    double error = errors_of(reference, t).frobenius;
    double allowed = FACTOR * reference->standard.frobenius + reference->allowances.frobenius;
    if (within(reference, error, allowed)) return NULL;
    return fault("%s: the error's Frobenius norm is %.4g > %.4g = %g * the standard kernel's %.4g + %.4g for rounding",
                 reference->name, error, allowed, FACTOR, reference->standard.frobenius,
                 reference->allowances.frobenius);
}
