/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one rule by which partial softmax results come together. A part over some keys holds, for a query, the
 * maximum m of its scores, l = sum exp(s - m) and a vector o = sum exp(s - m) v. With M = max m and L = sum l
 * exp(m - M) the whole is O = sum weight * o, weight = exp(m - M) / L;   lse = M + ln L. Exponents are never
 * positive, so nothing overflows. A normalised part with its lse is the same with m = lse, l = 1. A sink is a
 * part with m = sink, l = 1 and o = 0. A part with l = 0 saw no key: it is left out, whatever its o holds.
 */
#ifndef FA_MERGE_H
#define FA_MERGE_H

#include <math.h>
#include <stdint.h>

typedef struct fa_merged {
    float max; /* M; -inf: no part saw a key */
    float sum; /* L */
} fa_merged;

static inline fa_merged fa_merge_begin(void) { return (fa_merged){-INFINITY, 0.0f}; }

/* NaN in l stays in the sum. */
static inline fa_merged fa_merge_add(fa_merged whole, float m, float l) {
    if (l == 0.0f) return whole;
    float max = m > whole.max ? m : whole.max;
    float shift = max == -INFINITY ? 0.0f : max; /* a part of NaN scores alone has m = -inf, l = NaN */
    float before = whole.sum == 0.0f ? 0.0f : whole.sum * expf(whole.max - shift);
    return (fa_merged){max, before + l * expf(m - shift)};
}

static inline float fa_merge_weight(fa_merged whole, float m) { return expf(m - whole.max) / whole.sum; }

static inline float fa_merge_lse(fa_merged whole) {
    return whole.sum == 0.0f ? -INFINITY : whole.max + logf(whole.sum);
}

#endif
