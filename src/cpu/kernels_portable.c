/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels in plain C: what the others are judged against, and what runs where nothing better does.
 * Loops over a constant number of neighbouring floats are written so that compilers turn them into vector
 * instructions. Without fused multiply-add (-ffp-contract=off), so that the results are the same on every
 * machine.
 */
#include "../problem.h"
#include "kernels.h"
#include "kernels_backward.h"
#include "kernels_exp.h"

#include <float.h>
#include <math.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))
/* Wider than a vector, so that compilers see a loop worth vectorising rather than one to unroll. */
#define PANEL 32
/* Sums and maxima of a row run in this many interleaved lanes. */
#define LANES 16

/* condition ? a : b by masks: a choice between two results that a compiler cannot turn into a branch, which
 * would keep it from vectorising. */
ALWAYS_INLINE float select(bool condition, float a, float b) {
    uint32_t mask = condition ? 0xffffffffu : 0u;
    return fa_float_from_bits((fa_float_bits(a) & mask) | (fa_float_bits(b) & ~mask));
}

ALWAYS_INLINE float exponential(float x) {
    float z = x * FA_EXP_LOG2E + FA_EXP_ROUND;
    float n = z - FA_EXP_ROUND;
    float r = x - n * FA_EXP_LN2_HI;
    r = r - n * FA_EXP_LN2_LO;
    float q = FA_EXP_C6 * r + FA_EXP_C5;
    q = q * r + FA_EXP_C4;
    q = q * r + FA_EXP_C3;
    q = q * r + FA_EXP_C2;
    float p = 1.0f + (q * (r * r) + r);
    float power = fa_float_from_bits(fa_float_bits(z) << 23);
    return select(x < FA_EXP_FLUSH, 0.0f, p * power);
}

/* 2^(c d - shift), round = FA_EXP_ROUND - shift. */
ALWAYS_INLINE float power_of_two(float d, float c, float round) {
    float t = d * c;
    float z = t + round;
    float r = t - (z - round);
    float q = FA_EXP2_C6 * r + FA_EXP2_C5;
    q = q * r + FA_EXP2_C4;
    q = q * r + FA_EXP2_C3;
    q = q * r + FA_EXP2_C2;
    float p = 1.0f + (q * (r * r) + FA_EXP2_C1 * r);
    float power = fa_float_from_bits(fa_float_bits(z) << 23);
    return select(z < FA_EXP_LEAST, 0.0f, p * power);
}

ALWAYS_INLINE float hyperbolic_tangent(float x) {
    float square = x * x;
    float t = FA_TANH_C11 * square + FA_TANH_C9;
    t = t * square + FA_TANH_C7;
    t = t * square + FA_TANH_C5;
    t = t * square + FA_TANH_C3;
    float small = x * square * t + x;
    float magnitude = fabsf(x);
    float e = exponential(-2.0f * magnitude);
    float large = copysignf(1.0f - (e + e) / (1.0f + e), x);
    return select(magnitude < FA_TANH_SMALL, small, large);
}

/* dst[i * step] = element first + i of the row. */
static void convert(float *dst, int64_t step, const void *row, int64_t first, int64_t count, fa_element type) {
    const char *source = (const char *)row + first * fa_element_size(type);
    uint16_t h;
    switch (type) {
    case FA_ELEMENT_FLOAT32:
        for (int64_t i = 0; i < count; i++) memcpy(dst + i * step, source + i * 4, 4);
        break;
    case FA_ELEMENT_FLOAT16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&h, source + i * 2, 2);
            dst[i * step] = fa_float_from_float16(h);
        }
        break;
    case FA_ELEMENT_BFLOAT16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&h, source + i * 2, 2);
            dst[i * step] = fa_float_from_bfloat16(h);
        }
        break;
    case FA_ELEMENT_FLOAT64: break; /* the reference's alone */
    }
}

static void load_rows(float *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                      fa_element type, float factor) {
    for (int64_t r = 0; r < count; r++) {
        float *row = dst + r * dst_stride;
        convert(row, 1, rows[r], 0, width, type);
        for (int64_t i = 0; i < width; i++) row[i] *= factor;
    }
}

static void load_queries(void *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                         fa_element type, float factor) {
    load_rows(dst, dst_stride, rows, count, width, type, factor);
}

static void pack_keys(void *operand, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    float *b = operand;
    for (int64_t first = 0; first < count; first += PANEL, b += width * PANEL)
        for (int64_t n = 0; n < PANEL; n++) {
            if (first + n < count) {
                convert(b + n, PANEL, rows[first + n], 0, width, type);
            } else {
                for (int64_t k = 0; k < width; k++) b[k * PANEL + n] = 0.0f;
            }
        }
}

static bool pack_values(void *operand, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    float *b = operand;
    uint32_t nonfinite = 0;
    for (int64_t first = 0; first < width; first += PANEL)
        for (int64_t k = 0; k < count; k++, b += PANEL) {
            int64_t present = width - first < PANEL ? width - first : PANEL;
            convert(b, 1, rows[k], first, present, type);
            for (int64_t n = present; n < PANEL; n++) b[n] = 0.0f;
            for (int n = 0; n < PANEL; n++) nonfinite |= (fa_float_bits(b[n]) & 0x7f800000u) == 0x7f800000u;
        }
    return nonfinite != 0;
}

/* One or two rows of C, one panel wide; four steps of k at a time, so that sums are loaded and stored less. */
ALWAYS_INLINE void multiply_rows(const int rows, float *restrict c, int64_t c_stride, const float *restrict a,
                                 int64_t a_stride, const float *restrict b, int64_t depth,
                                 const float *restrict row_scale) {
    float sum[2][PANEL] = {{0.0f}};
    const float *a0 = a, *a1 = rows > 1 ? a + a_stride : a;
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4, b += 4 * PANEL) {
        float a00 = a0[k], a01 = a0[k + 1], a02 = a0[k + 2], a03 = a0[k + 3];
        float a10 = a1[k], a11 = a1[k + 1], a12 = a1[k + 2], a13 = a1[k + 3];
        for (int n = 0; n < PANEL; n++) {
            float b0 = b[n], b1 = b[n + PANEL], b2 = b[n + 2 * PANEL], b3 = b[n + 3 * PANEL];
            sum[0][n] = (((sum[0][n] + a00 * b0) + a01 * b1) + a02 * b2) + a03 * b3;
            if (rows > 1) sum[1][n] = (((sum[1][n] + a10 * b0) + a11 * b1) + a12 * b2) + a13 * b3;
        }
    }
    for (; k < depth; k++, b += PANEL) {
        float a00 = a0[k], a10 = a1[k];
        for (int n = 0; n < PANEL; n++) {
            sum[0][n] += a00 * b[n];
            if (rows > 1) sum[1][n] += a10 * b[n];
        }
    }
    for (int r = 0; r < rows; r++, c += c_stride) {
        if (row_scale == NULL) {
            memcpy(c, sum[r], sizeof sum[r]);
        } else {
            float scale = row_scale[r];
            for (int n = 0; n < PANEL; n++) c[n] = scale * c[n] + sum[r][n];
        }
    }
}

static void multiply(float *c, int64_t c_stride, const void *a_operand, int64_t a_stride, const void *b_operand,
                     int64_t b_depth, int64_t rows, int64_t columns, int64_t depth, const float *row_scale) {
    const float *a = a_operand, *b = b_operand;
    for (int64_t n = 0; n < columns; n += PANEL)
        for (int64_t r = 0; r < rows; r += 2) {
            const float *scale = row_scale == NULL ? NULL : row_scale + r;
            if (rows - r > 1) {
                multiply_rows(2, c + r * c_stride + n, c_stride, a + r * a_stride, a_stride, b + n * b_depth, depth,
                              scale);
            } else {
                multiply_rows(1, c + r * c_stride + n, c_stride, a + r * a_stride, a_stride, b + n * b_depth, depth,
                              scale);
            }
        }
}

static void softmax_row(float *restrict s, int64_t keys, float c, float round, float *m, float *l, float *rescale) {
    float lane[LANES];
    for (int n = 0; n < LANES; n++) lane[n] = -INFINITY;
    for (int64_t j = 0; j < keys; j += LANES) /* NaN scores are passed over here; they come back as exp(NaN) */
        for (int n = 0; n < LANES; n++) lane[n] = s[j + n] > lane[n] ? s[j + n] : lane[n];
    float new_max = *m;
    for (int n = 0; n < LANES; n++) new_max = lane[n] > new_max ? lane[n] : new_max;
    float base = new_max == -INFINITY ? 0.0f : new_max;

    for (int n = 0; n < LANES; n++) lane[n] = 0.0f;
    for (int64_t j = 0; j < keys; j += LANES)
        for (int n = 0; n < LANES; n++) {
            float p = power_of_two(s[j + n] - base, c, round);
            s[j + n] = p;
            lane[n] += p;
        }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int n = 0; n < half; n++) lane[n] += lane[n + half];

    *rescale = power_of_two(*m - base, c, FA_EXP_ROUND);
    *l = *l * *rescale + lane[0];
    *m = new_max;
}

static void softmax_step(float *s, int64_t s_stride, int64_t rows, int64_t keys, float scale, int shift, float *m,
                         float *l, float *rescale) {
    float c = scale * FA_EXP_LOG2E, round = FA_EXP_ROUND - (float)shift;
    for (int64_t r = 0; r < rows; r++) softmax_row(s + r * s_stride, keys, c, round, m + r, l + r, rescale + r);
}

static void softcap(float *s, int64_t count, float cap) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int n = 0; n < LANES; n++) s[i + n] = cap * hyperbolic_tangent(s[i + n] / cap);
    for (; i < count; i++) s[i] = cap * hyperbolic_tangent(s[i] / cap);
}

static void store_row(void *dst, const float *src, int64_t width, float factor, fa_element type) {
    char *bytes = dst;
    switch (type) {
    case FA_ELEMENT_FLOAT32:
        for (int64_t i = 0; i < width; i++) {
            float x = factor * src[i];
            memcpy(bytes + i * 4, &x, 4);
        }
        break;
    case FA_ELEMENT_FLOAT16:
        for (int64_t i = 0; i < width; i++) {
            uint16_t h = fa_float16_from_float(factor * src[i]);
            memcpy(bytes + i * 2, &h, 2);
        }
        break;
    case FA_ELEMENT_BFLOAT16:
        for (int64_t i = 0; i < width; i++) {
            uint16_t h = fa_bfloat16_from_float(factor * src[i]);
            memcpy(bytes + i * 2, &h, 2);
        }
        break;
    case FA_ELEMENT_FLOAT64: break; /* the reference's alone */
    }
}

/* ---- Few rows ---- */

static void dot_rows(float *s, int64_t s_stride, const void *q, int64_t q_stride, int64_t rows, const void *const *keys,
                     int64_t count, int64_t width, fa_element type, const void *const *next) {
    (void)next;
    float key[FA_HEAD_DIM_MAX];
    for (int64_t j = 0; j < count; j++) {
        convert(key, 1, keys[j], 0, width, type);
        for (int64_t r = 0; r < rows; r++) {
            float lane[LANES] = {0.0f};
            const float *query = (const float *)q + r * q_stride;
            int64_t i = 0;
            for (; i + LANES <= width; i += LANES)
                for (int n = 0; n < LANES; n++) lane[n] += query[i + n] * key[i + n];
            for (; i < width; i++) lane[i % LANES] += query[i] * key[i];
            for (int half = LANES / 2; half > 0; half /= 2)
                for (int n = 0; n < half; n++) lane[n] += lane[n + half];
            s[r * s_stride + j] = lane[0];
        }
    }
}

static void add_rows(float *o, int64_t o_stride, const void *p, int64_t p_stride, int64_t rows,
                     const void *const *values, int64_t count, int64_t width, fa_element type, const float *row_scale,
                     const void *const *next, int64_t next_width) {
    (void)next, (void)next_width;
    float value[FA_HEAD_DIM_MAX];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) o[r * o_stride + i] *= row_scale[r];
    for (int64_t j = 0; j < count; j++) {
        convert(value, 1, values[j], 0, width, type);
        for (int64_t r = 0; r < rows; r++) {
            float weight = ((const float *)p)[r * p_stride + j];
            for (int64_t i = 0; i < width; i++) o[r * o_stride + i] += weight * value[i];
        }
    }
}

static bool any_nonfinite(const void *const *rows, int64_t count, int64_t width, fa_element type) {
    float row[FA_HEAD_DIM_MAX];
    uint32_t nonfinite = 0;
    for (int64_t r = 0; r < count; r++) {
        convert(row, 1, rows[r], 0, width, type);
        for (int64_t i = 0; i < width; i++) nonfinite |= (fa_float_bits(row[i]) & 0x7f800000u) == 0x7f800000u;
    }
    return nonfinite != 0;
}

const fa_cpu_kernels *fa_cpu_kernels_portable(void) {
    static const fa_cpu_kernels table = FA_CPU_FLOAT32_KERNELS(FA_ISA_PORTABLE);
    return &table;
}

/* ---- Backward: kernels_backward.h ---- */

static void pack_operand_rows(float *a, int64_t stride, const void *const *rows, int64_t count, int64_t width,
                              fa_element type) {
    load_rows(a, stride, rows, count, width, type, 1.0f);
}

/* One or two rows of C, one panel wide. Word k of row r of A is a[r * row_step + k * step]. */
ALWAYS_INLINE void product_rows(const int rows, float *restrict c, int64_t c_stride, const float *restrict a,
                                int64_t row_step, int64_t step, const float *restrict b, int64_t depth, float factor,
                                bool accumulate) {
    float sum[2][PANEL] = {{0.0f}};
    for (int64_t k = 0; k < depth; k++, a += step, b += PANEL) {
        float a0 = a[0], a1 = rows > 1 ? a[row_step] : 0.0f;
        for (int n = 0; n < PANEL; n++) {
            sum[0][n] += a0 * b[n];
            if (rows > 1) sum[1][n] += a1 * b[n];
        }
    }
    for (int r = 0; r < rows; r++, c += c_stride)
        for (int n = 0; n < PANEL; n++) c[n] = accumulate ? c[n] + sum[r][n] : factor * sum[r][n];
}

ALWAYS_INLINE void product(float *c, int64_t c_stride, const float *a, int64_t row_step, int64_t step, const float *b,
                           int64_t b_depth, int64_t rows, int64_t columns, int64_t depth, float factor,
                           bool accumulate) {
    for (int64_t n = 0; n < columns; n += PANEL)
        for (int64_t r = 0; r < rows; r += 2) {
            float *to = c + r * c_stride + n;
            if (rows - r > 1)
                product_rows(2, to, c_stride, a + r * row_step, row_step, step, b + n * b_depth, depth, factor,
                             accumulate);
            else
                product_rows(1, to, c_stride, a + r * row_step, row_step, step, b + n * b_depth, depth, factor,
                             accumulate);
        }
}

static void product_plain(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b, int64_t rows,
                          int64_t columns, int64_t depth, float factor, bool accumulate) {
    product(c, c_stride, a, a_stride, 1, b, depth, rows, columns, depth, factor, accumulate);
}

static void product_transposed(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                               int64_t b_depth, int64_t rows, int64_t columns, int64_t depth) {
    product(c, c_stride, a, 1, a_stride, b, b_depth, rows, columns, depth, 1.0f, true);
}

static void softmax_backward(float *s, float *d, int64_t stride, int64_t rows, int64_t keys, const float *lse,
                             const float *delta) {
    for (int64_t r = 0; r < rows; r++, s += stride, d += stride) {
        float shift = lse[r], mean = delta[r];
        for (int64_t j = 0; j < keys; j += LANES)
            for (int n = 0; n < LANES; n++) {
                float x = s[j + n], weight = exponential(x - shift);
                s[j + n] = select(x < -FLT_MAX, 0.0f, weight);
                d[j + n] = select(x < -FLT_MAX, 0.0f, weight * (d[j + n] - mean));
            }
    }
}

const fa_cpu_backward_kernels *fa_cpu_backward_kernels_portable(void) {
    static const fa_cpu_backward_kernels table = {.products = {.operand = FA_ELEMENT_FLOAT32,
                                                               .step = 1,
                                                               .panel = PANEL,
                                                               .pack_rows = pack_operand_rows,
                                                               .pack_columns = pack_keys,
                                                               .pack_panels = pack_values,
                                                               .multiply = product_plain,
                                                               .multiply_transposed = product_transposed},
                                                  .softmax_backward = softmax_backward,
                                                  .load_rows = load_rows,
                                                  .softcap = softcap,
                                                  .store_row = store_row};
    return &table;
}
