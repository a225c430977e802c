/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels that vector instruction sets have in common, written once.
 *
 * kernels_avx2.c, kernels_avx512.c and kernels_neon.c include this file after they have defined
 *
 *     vector                   LANES float32 numbers
 *     LANES, PANEL             PANEL, the `panel` of kernels.h, is 2 * LANES
 *     v_set(x)                 all lanes x
 *     v_load, v_store          LANES floats at a float pointer
 *     v_load_part, v_store_part(..., n)     only the first n < LANES; the lanes beyond load as 0
 *     v_load_element(p, type), v_load_element_part(p, type, n)      converted from float32, float16, bfloat16
 *     v_store_element(p, x, type)           rounded to nearest even
 *     v_add, v_sub, v_mul, v_div
 *     v_fma(a, b, c)           a * b + c, rounded once
 *     v_fnma(a, b, c)          c - a * b, rounded once
 *     v_max(a, b)              the larger; b if a is NaN
 *     v_if_less(x, bound, a, b)             x < bound ? a : b; NaN is not less
 *     v_zero_if_less(x, bound, b)           x < bound ? 0 : b
 *     v_abs, v_copysign(x, sign)
 *     v_scale(x, z)            x * 2^n for an integer n > -127, given as z = n + FA_EXP_ROUND
 *     v_reduce_max_each(x), v_reduce_add_each(x)    lane i: over the lanes of x[i], i < LANES; every one in the same order
 *     v_max_magnitude(bits, x), v_any_nonfinite(bits)    is any x that was folded into bits infinite or NaN?
 *     v_transpose(rows)        LANES vectors in place
 *
 * With OPERAND_BFLOAT16 (kernels.h, `operand`) packing is the file's own, and it defines besides
 *
 *     v_store_bfloat16(p, x, y)             x, then y, rounded to nearest even
 *     V_WEIGHT(d, c, shift)    if it has something faster than v_exp2: 2^(c d - shift), to be rounded to bfloat16
 *
 * Loads and stores take any alignment and touch nothing outside the elements named.
 */
#ifndef FA_CPU_KERNELS_SIMD_H
#define FA_CPU_KERNELS_SIMD_H

#include "kernels.h"
#include "kernels_exp.h"

#include <float.h>
#include <math.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

_Static_assert(PANEL == 2 * LANES && FA_TILE_KEYS % PANEL == 0, "panels are two vectors wide and fill a tile");

ALWAYS_INLINE int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- exp, tanh: see kernels_exp.h ---- */

ALWAYS_INLINE vector v_exp(vector x) {
    vector z = v_fma(x, v_set(FA_EXP_LOG2E), v_set(FA_EXP_ROUND));
    vector n = v_sub(z, v_set(FA_EXP_ROUND));
    vector r = v_fnma(n, v_set(FA_EXP_LN2_HI), x);
    r = v_fnma(n, v_set(FA_EXP_LN2_LO), r);
    vector p = v_fma(v_set(FA_EXP_C6), r, v_set(FA_EXP_C5));
    p = v_fma(p, r, v_set(FA_EXP_C4));
    p = v_fma(p, r, v_set(FA_EXP_C3));
    p = v_fma(p, r, v_set(FA_EXP_C2));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    return v_zero_if_less(x, v_set(FA_EXP_FLUSH), v_scale(p, z));
}

/* 2^(c d - shift), round = FA_EXP_ROUND - shift. */
ALWAYS_INLINE vector v_exp2(vector d, vector c, vector round) {
    vector z = v_fma(d, c, round);
    vector r = v_fma(d, c, v_sub(round, z));
    vector p = v_fma(v_set(FA_EXP2_C6), r, v_set(FA_EXP2_C5));
    p = v_fma(p, r, v_set(FA_EXP2_C4));
    p = v_fma(p, r, v_set(FA_EXP2_C3));
    p = v_fma(p, r, v_set(FA_EXP2_C2));
    p = v_fma(p, r, v_set(FA_EXP2_C1));
    p = v_fma(p, r, v_set(1.0f));
    return v_zero_if_less(z, v_set(FA_EXP_LEAST), v_scale(p, z));
}

ALWAYS_INLINE vector v_tanh(vector x) {
    vector square = v_mul(x, x);
    vector t = v_fma(v_set(FA_TANH_C11), square, v_set(FA_TANH_C9));
    t = v_fma(t, square, v_set(FA_TANH_C7));
    t = v_fma(t, square, v_set(FA_TANH_C5));
    t = v_fma(t, square, v_set(FA_TANH_C3));
    vector small = v_fma(v_mul(x, square), t, x);

    vector magnitude = v_abs(x);
    vector e = v_exp(v_mul(magnitude, v_set(-2.0f)));
    vector one = v_set(1.0f);
    vector large = v_sub(one, v_div(v_add(e, e), v_add(one, e)));
    return v_if_less(magnitude, v_set(FA_TANH_SMALL), small, v_copysign(large, x));
}

static void softcap(float *s, int64_t count, float softcap_value) {
    vector cap = v_set(softcap_value);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) v_store(s + i, v_mul(cap, v_tanh(v_div(v_load(s + i), cap))));
    if (i < count) {
        vector x = v_load_part(s + i, count - i);
        v_store_part(s + i, v_mul(cap, v_tanh(v_div(x, cap))), count - i);
    }
}

/* ---- Online softmax ---- */

/* The weights of keys j .. j + 2 * LANES - 1 as an operand, in place of scores that have been read. */
ALWAYS_INLINE void store_weights(float *row, int64_t j, vector p0, vector p1) {
#ifdef OPERAND_BFLOAT16
    v_store_bfloat16((uint16_t *)(void *)row + j, p0, p1);
#else
    v_store(row + j, p0);
    v_store(row + j + LANES, p1);
#endif
}

/* The same of keys j .. j + LANES - 1, the last ones of a row. */
ALWAYS_INLINE void store_weights_half(float *row, int64_t j, vector p0) {
#ifdef OPERAND_BFLOAT16
    v_store_bfloat16((uint16_t *)(void *)row + j, p0, v_set(0.0f));
#else
    v_store(row + j, p0);
#endif
}

#ifndef V_WEIGHT
#    define V_WEIGHT(d, c, shift) v_exp2(d, c, v_set(FA_EXP_ROUND - (shift)))
#endif

/*
 * softmax_step, row by row. LANES rows make a group, so that m, l and rescale are computed in vectors as well. Sums run over
 * even and odd vectors of a row apart, then over the lanes: an order that depends on nothing but `keys`.
 */
typedef struct softmax_rows {
    float *s;
    int64_t s_stride, rows, keys;
    float *m, *l, *rescale;
    float scale;
    int shift;
    int64_t next;    /* row */
    vector *largest; /* [LANES], of the rows of a group */
    vector *sum;     /* likewise; the same memory, if maxima are not looked for ahead */
    float base[LANES];
    vector before; /* rescale */
} softmax_rows;

/* Not an initializer, which would fill the vectors too: for a single row that took as long as the rest. */
ALWAYS_INLINE void softmax_begin(softmax_rows *x, float *s, int64_t s_stride, int64_t rows, int64_t keys, float scale,
                                 int shift, float *m, float *l, float *rescale) {
    x->s = s, x->s_stride = s_stride, x->rows = rows, x->keys = keys;
    x->m = m, x->l = l, x->rescale = rescale;
    x->scale = scale, x->shift = shift;
    x->next = 0;
    x->before = v_set(0.0f);
}

/* NaN scores are passed over here; they come back as exp(NaN) below. */
ALWAYS_INLINE void softmax_find_largest(softmax_rows *x, int64_t r) {
    const float *row = x->s + r * x->s_stride;
    int64_t keys = x->keys;
    vector even = v_set(-INFINITY), odd = v_set(-INFINITY);
    int64_t j = 0;
#pragma GCC unroll 4
    for (; j + LANES < keys; j += 2 * LANES) {
        even = v_max(v_load(row + j), even);
        odd = v_max(v_load(row + j + LANES), odd);
    }
    if (j < keys) even = v_max(v_load(row + j), even);
    x->largest[r % LANES] = v_max(even, odd);
}

/* Maxima of the group that begins with the next row; softmax_find_largest() has been called for its rows. */
ALWAYS_INLINE void softmax_begin_group(softmax_rows *x) {
    int64_t first = x->next, count = minimum(LANES, x->rows - first);
    vector c = v_set(x->scale * FA_EXP_LOG2E);
    for (int64_t r = count; r < LANES; r++) x->largest[r] = v_set(0.0f);
    for (int64_t r = count; r < LANES && x->sum != x->largest; r++) x->sum[r] = v_set(0.0f);
    vector old_max = v_load_part(x->m + first, count);
    vector new_max = v_max(v_reduce_max_each(x->largest), old_max);
    /* -inf: nothing visible so far; 0 stands in. */
    vector base = v_zero_if_less(new_max, v_set(-FLT_MAX), new_max);
    x->before = v_exp2(v_sub(old_max, base), c, v_set(FA_EXP_ROUND));
    v_store_part(x->m + first, new_max, count);
    v_store_part(x->rescale + first, x->before, count);
    v_store(x->base, base);
}

/* The weights of the next row. */
ALWAYS_INLINE void softmax_row(softmax_rows *x) {
    float *row = x->s + x->next * x->s_stride;
    int64_t keys = x->keys;
    vector c = v_set(x->scale * FA_EXP_LOG2E), largest = v_set(x->base[x->next % LANES]);
    vector even = v_set(0.0f), odd = v_set(0.0f);
    int64_t j = 0;
#pragma GCC unroll 4
    for (; j + LANES < keys; j += 2 * LANES) {
        vector p0 = V_WEIGHT(v_sub(v_load(row + j), largest), c, (float)x->shift);
        vector p1 = V_WEIGHT(v_sub(v_load(row + j + LANES), largest), c, (float)x->shift);
        store_weights(row, j, p0, p1);
        even = v_add(even, p0);
        odd = v_add(odd, p1);
    }
    if (j < keys) {
        vector p0 = V_WEIGHT(v_sub(v_load(row + j), largest), c, (float)x->shift);
        store_weights_half(row, j, p0);
        even = v_add(even, p0);
    }
    x->sum[x->next++ % LANES] = v_add(even, odd);
}

/* Sums of the group whose last row is done. */
ALWAYS_INLINE void softmax_end_group(softmax_rows *x) {
    int64_t first = (x->next - 1) / LANES * LANES, count = x->next - first;
    vector sums = v_reduce_add_each(x->sum);
    v_store_part(x->l + first, v_fma(v_load_part(x->l + first, count), x->before, sums), count);
}

static void softmax_step(float *s, int64_t s_stride, int64_t rows, int64_t keys, float scale, int shift, float *m,
                         float *l, float *rescale) {
    softmax_rows x;
    vector of_row[LANES]; /* maxima, later sums */
    x.largest = x.sum = of_row;
    softmax_begin(&x, s, s_stride, rows, keys, scale, shift, m, l, rescale);
    while (x.next < rows) {
        int64_t end = minimum(x.next + LANES, rows);
        for (int64_t r = x.next; r < end; r++) softmax_find_largest(&x, r);
        softmax_begin_group(&x);
        while (x.next < end) softmax_row(&x);
        softmax_end_group(&x);
    }
}

/* ---- Rows of the input dtype in and out ---- */

/* Calls f with `type` as a constant, so that each dtype gets code of its own. float64 is the reference's
 * alone (problem.c). */
#define FOR_TYPE(type, f, ...)                                           \
    ((type) == FA_ELEMENT_FLOAT32   ? f(__VA_ARGS__, FA_ELEMENT_FLOAT32) \
     : (type) == FA_ELEMENT_FLOAT16 ? f(__VA_ARGS__, FA_ELEMENT_FLOAT16) \
                                    : f(__VA_ARGS__, FA_ELEMENT_BFLOAT16))

/* Element i of a row. */
ALWAYS_INLINE const void *element(const void *row, int64_t i, fa_element type) {
    return (const char *)row + i * (type == FA_ELEMENT_FLOAT32 ? 4 : 2);
}

/* Elements i .. i + LANES - 1 of a row of `width`; 0 beyond its end. */
ALWAYS_INLINE vector load_in_row(const void *row, int64_t i, int64_t width, fa_element type) {
    if (i + LANES <= width) return v_load_element(element(row, i, type), type);
    if (i < width) return v_load_element_part(element(row, i, type), width - i, type);
    return v_set(0.0f);
}

ALWAYS_INLINE void load_rows_of(float *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                                float factor, fa_element type) {
    for (int64_t r = 0; r < count; r++) {
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES)
            v_store(dst + r * dst_stride + i, v_mul(v_load_element(element(rows[r], i, type), type), v_set(factor)));
        if (i < width)
            v_store_part(dst + r * dst_stride + i, v_mul(load_in_row(rows[r], i, width, type), v_set(factor)),
                         width - i);
    }
}

static void load_rows(float *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                      fa_element type, float factor) {
    FOR_TYPE(type, load_rows_of, dst, dst_stride, rows, count, width, factor);
}

/* Words i .. i + LANES - 1 of a row: its elements, or pairs of bfloat16 elements; 0 beyond its end. */
typedef vector load_words(const void *row, int64_t i, int64_t width, fa_element type);

/* Blocks of LANES keys by LANES words are transposed in registers; what is left at the ends goes through memory, key by
 * key. A packed column has `words` of them. */
ALWAYS_INLINE void pack_keys_of(float *b, const void *const *rows, int64_t count, int64_t words, int64_t width,
                                load_words *load, fa_element type) {
    for (int64_t n = 0; n < (count + PANEL - 1) / PANEL * PANEL; n += LANES) {
        float *dst = b + n / PANEL * PANEL * words + n % PANEL;
        int64_t k = 0;
        if (n + LANES <= count)
            for (; k + LANES <= words; k += LANES) {
                vector block[LANES];
                for (int i = 0; i < LANES; i++) block[i] = load(rows[n + i], k, width, type);
                v_transpose(block);
                for (int i = 0; i < LANES; i++) v_store(dst + (k + i) * PANEL, block[i]);
            }
        for (; k < words; k += LANES)
            for (int i = 0; i < LANES; i++) {
                float key[LANES];
                v_store(key, n + i < count ? load(rows[n + i], k, width, type) : v_set(0.0f));
                for (int64_t j = 0; j < minimum(LANES, words - k); j++)
                    memcpy(dst + (k + j) * PANEL + i, key + j, sizeof *key); /* words: any bits */
            }
    }
}

#if !defined(OPERAND_BFLOAT16) && !defined(OPERAND_PARTS) /* whose packing is their own */

static void load_queries(void *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                         fa_element type, float factor) {
    load_rows(dst, dst_stride, rows, count, width, type, factor);
}

static void pack_keys(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    FOR_TYPE(type, pack_keys_of, b, rows, count, width, width, load_in_row);
}

ALWAYS_INLINE bool pack_values_of(float *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    vector bits = v_set(0.0f);
    for (int64_t k = 0; k < count; k++) {
        float *dst = b + k * PANEL;
        int64_t n = 0;
        for (; n + PANEL <= width; n += PANEL, dst += count * PANEL)
            for (int64_t i = 0; i < PANEL; i += LANES) {
                vector x = v_load_element(element(rows[k], n + i, type), type);
                bits = v_max_magnitude(bits, x);
                v_store(dst + i, x);
            }
        for (int64_t i = 0; n < width && i < PANEL; i += LANES) {
            vector x = load_in_row(rows[k], n + i, width, type);
            bits = v_max_magnitude(bits, x);
            v_store(dst + i, x);
        }
    }
    return v_any_nonfinite(bits);
}

static bool pack_values(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    return FOR_TYPE(type, pack_values_of, b, rows, count, width);
}
#endif

ALWAYS_INLINE void store_row_of(void *dst, const float *src, int64_t width, float factor, fa_element type) {
    char *bytes = dst;
    int64_t size = type == FA_ELEMENT_FLOAT32 ? 4 : 2, i = 0;
    for (; i + LANES <= width; i += LANES)
        v_store_element(bytes + i * size, v_mul(v_load(src + i), v_set(factor)), type);
    if (i < width) {
        char last[LANES * 4];
        v_store_element(last, v_mul(v_load_part(src + i, width - i), v_set(factor)), type);
        memcpy(bytes + i * size, last, (size_t)((width - i) * size));
    }
}

static void store_row(void *dst, const float *src, int64_t width, float factor, fa_element type) {
    FOR_TYPE(type, store_row_of, dst, src, width, factor);
}

#endif
