/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with few query rows, as in decoding: K and V are read once, where they lie, and converted in registers.
 * Packing them first would cost more than the products. Rows of K and V lie far apart, where no hardware prefetcher
 * follows, so each function asks for the rows that will be read next. Over the vocabulary of kernels_simd.h and
 *
 *     FEW_CELLS                sums that stay in registers: 8 or 16, a multiple of LANES or LANES itself
 */
#ifndef FA_CPU_KERNELS_FEW_ROWS_H
#define FA_CPU_KERNELS_FEW_ROWS_H

_Static_assert(FEW_CELLS % LANES == 0 && FEW_CELLS >= 8, "whole vectors of sums");

/* Asks for a row to be brought to the second-level cache. */
ALWAYS_INLINE void prefetch_row(const void *row, int64_t width, fa_element type) {
    const char *begin = row, *end = element(row, width, type);
    for (; begin < end; begin += 64) __builtin_prefetch(begin, 0, 2);
}

/* The scores of `rows` queries with FEW_CELLS / rows keys, one sum of LANES lanes each. `rows` is a constant where this
 * is inlined, and present <= FEW_CELLS / rows. */
ALWAYS_INLINE void dot_block(const int rows, float *s, int64_t s_stride, const float *q, int64_t q_stride,
                             const void *const *keys, int64_t present, int64_t width, fa_element type) {
    enum { MOST = FEW_CELLS };
    const int each = FEW_CELLS / rows;
    const void *key[MOST];
    vector sum[MOST];
    float lane[MOST];
    for (int j = 0; j < each; j++) key[j] = keys[j < present ? j : 0];
    for (int i = 0; i < FEW_CELLS; i++) sum[i] = v_set(0.0f);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
#pragma GCC unroll 16
        for (int j = 0; j < each; j++) {
            vector k = v_load_element(element(key[j], i, type), type);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r * each + j] = v_fma(v_load(q + r * q_stride + i), k, sum[r * each + j]);
        }
    }
    if (i < width) {
#pragma GCC unroll 16
        for (int j = 0; j < each; j++) {
            vector k = v_load_element_part(element(key[j], i, type), width - i, type);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r * each + j] = v_fma(v_load_part(q + r * q_stride + i, width - i), k, sum[r * each + j]);
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < FEW_CELLS; n += LANES) v_store(lane + n, v_reduce_add_each(sum + n));
    for (int r = 0; r < rows; r++) {
        if (present == each)
            memcpy(s + r * s_stride, lane + r * each, (size_t)each * sizeof *s); /* a constant size: one move */
        else
            memcpy(s + r * s_stride, lane + r * each, (size_t)present * sizeof *s);
    }
}

/* Queries four, two or one at a time. */
static inline int64_t rows_at_once(int64_t rows) { return rows >= 4 ? 4 : rows >= 2 ? 2 : 1; }

ALWAYS_INLINE void dot_rows_of(float *s, int64_t s_stride, const float *q, int64_t q_stride, int64_t rows,
                               const void *const *keys, int64_t count, int64_t width, const void *const *next,
                               fa_element type) {
    for (int64_t r = 0, some; r < rows; r += some) {
        some = rows_at_once(rows - r);
        int64_t each = FEW_CELLS / some;
        for (int64_t j = 0; j < count; j += each) {
            float *to = s + r * s_stride + j;
            const float *from = q + r * q_stride;
            int64_t present = minimum(each, count - j);
            for (int64_t i = j; i < j + present && r == 0 && next != NULL; i++) prefetch_row(next[i], width, type);
            if (some == 4)
                dot_block(4, to, s_stride, from, q_stride, keys + j, present, width, type);
            else if (some == 2)
                dot_block(2, to, s_stride, from, q_stride, keys + j, present, width, type);
            else
                dot_block(1, to, s_stride, from, q_stride, keys + j, present, width, type);
        }
    }
}

static void dot_rows(float *s, int64_t s_stride, const float *q, int64_t q_stride, int64_t rows,
                     const void *const *keys, int64_t count, int64_t width, fa_element type, const void *const *next) {
    FOR_TYPE(type, dot_rows_of, s, s_stride, q, q_stride, rows, keys, count, width, next);
}

/* `vectors` vectors of each row of O; beyond `width` they are the padding of O. */
ALWAYS_INLINE void add_block(const int rows, const int vectors, float *o, int64_t o_stride, const float *p,
                             int64_t p_stride, const void *const *values, int64_t count, int64_t first, int64_t width,
                             fa_element type, const float *row_scale, const void *const *next, int64_t next_width) {
    enum { MOST = FEW_CELLS };
    vector sum[MOST];
    for (int i = 0; i < FEW_CELLS; i++) sum[i] = v_set(0.0f);
    bool whole = first + vectors * LANES <= width;
    for (int64_t j = 0; j < count; j++) {
        if (next != NULL) prefetch_row(next[j], next_width, type);
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) {
            vector v = whole ? v_load_element(element(values[j], first + n * LANES, type), type)
                             : load_in_row(values[j], first + n * LANES, width, type);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r * vectors + n] = v_fma(v_set(p[r * p_stride + j]), v, sum[r * vectors + n]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int n = 0; n < vectors; n++) {
            float *to = o + r * o_stride + first + n * LANES;
            v_store(to, v_fma(v_set(row_scale[r]), v_load(to), sum[r * vectors + n]));
        }
}

ALWAYS_INLINE void add_rows_of(float *o, int64_t o_stride, const float *p, int64_t p_stride, int64_t rows,
                               const void *const *values, int64_t count, int64_t width, const float *row_scale,
                               const void *const *next, int64_t next_width, fa_element type) {
    for (int64_t r = 0, some; r < rows; r += some) {
        some = rows_at_once(rows - r);
        float *to = o + r * o_stride;
        const float *from = p + r * p_stride, *scale = row_scale + r;
        for (int64_t i = 0; i < width; i += FEW_CELLS / 4 * LANES) {
            const void *const *ahead = r == 0 && i == 0 ? next : NULL;
            if (some == 4)
                add_block(4, FEW_CELLS / 4, to, o_stride, from, p_stride, values, count, i, width, type, scale, ahead,
                          next_width);
            else if (some == 2)
                add_block(2, FEW_CELLS / 4, to, o_stride, from, p_stride, values, count, i, width, type, scale, ahead,
                          next_width);
            else
                add_block(1, FEW_CELLS / 4, to, o_stride, from, p_stride, values, count, i, width, type, scale, ahead,
                          next_width);
        }
    }
}

static void add_rows(float *o, int64_t o_stride, const float *p, int64_t p_stride, int64_t rows,
                     const void *const *values, int64_t count, int64_t width, fa_element type, const float *row_scale,
                     const void *const *next, int64_t next_width) {
    FOR_TYPE(type, add_rows_of, o, o_stride, p, p_stride, rows, values, count, width, row_scale, next, next_width);
}

ALWAYS_INLINE bool any_nonfinite_of(const void *const *rows, int64_t count, int64_t width, fa_element type) {
    vector bits = v_set(0.0f);
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < width; i += LANES) bits = v_max_magnitude(bits, load_in_row(rows[r], i, width, type));
    return v_any_nonfinite(bits);
}

static bool any_nonfinite(const void *const *rows, int64_t count, int64_t width, fa_element type) {
    return FOR_TYPE(type, any_nonfinite_of, rows, count, width);
}

#endif
