/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels in NEON with BF16 (FEAT_BF16), for bfloat16 inputs. The products of tiles are BFMMLA's: two rows of A
 * by two columns of B, four elements deep, 16 multiply-adds where a float32 instruction has 4. Those of few rows are
 * BFDOT's. (I8MM, which comes with the same processors, multiplies integers of 8 bits, for which exact attention has no
 * use.)
 *
 * What BFMMLA, and BFDOT likewise, computes for an element of C with FPCR.EBF = 0, as Linux starts every program (Arm
 * Architecture Reference Manual, BFDotAdd and BFMatMulAdd): two pairs of products one after the other, each as
 *
 *     sum = odd(sum + odd(a0 * b0 + a1 * b1))
 *
 * The products are exact. odd() rounds to the one of the two neighbouring float32 numbers whose last bit is 1, whatever
 * the rounding mode: off by less than an ulp, twice as far as to nearest, but a product goes through half as many
 * additions as there are elements. Subnormal operands and results count as 0, a sum beyond float32 is infinite, NaN stays
 * NaN. A thread that has set FPCR.EBF, where the processor has it (FEAT_EBF16), gets a0 * b0 + a1 * b1 fused and its
 * own rounding mode, which is never further off. docs/numerics.md has the bound.
 */
#include "kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#    define OPERAND_BFLOAT16
#    define STEP 4
#    define DEPTH 8

#    include "kernels_neon_bf16.h"

#    include "kernels_simd.h"

#    include "kernels_few_rows.h"

static int64_t padded(int64_t depth) { return (depth + DEPTH - 1) / DEPTH * DEPTH; }

static void load_queries(void *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                         fa_element type, float factor) {
    (void)type;
    uint16x8_t flip = vdupq_n_u16(factor < 0 ? 0x8000 : 0);
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < dst_stride; i += 8)
            store_8((uint16_t *)dst + r * dst_stride + i, veorq_u16(load_8(rows[r], i, width), flip));
}

/* Elements 0 to 3 of two rows or columns, or their elements 4 to 7: an operand of BFMMLA. */
static inline uint16x8_t first_halves(uint16x8_t x, uint16x8_t y) {
    return vreinterpretq_u16_u64(vzip1q_u64(vreinterpretq_u64_u16(x), vreinterpretq_u64_u16(y)));
}
static inline uint16x8_t second_halves(uint16x8_t x, uint16x8_t y) {
    return vreinterpretq_u16_u64(vzip2q_u64(vreinterpretq_u64_u16(x), vreinterpretq_u64_u16(y)));
}

static void pack_keys(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    (void)type;
    int64_t depth = padded(width);
    for (int64_t n = 0; n < (count + PANEL - 1) / PANEL * PANEL; n += 2) {
        uint16_t *dst = (uint16_t *)b + n / PANEL * PANEL * depth + n % PANEL * STEP;
        for (int64_t k = 0; k < depth; k += 8) {
            uint16x8_t x = n < count ? load_8(rows[n], k, width) : vdupq_n_u16(0);
            uint16x8_t y = n + 1 < count ? load_8(rows[n + 1], k, width) : vdupq_n_u16(0);
            store_8(dst + k * PANEL, first_halves(x, y));
            store_8(dst + (k + STEP) * PANEL, second_halves(x, y));
        }
    }
}

/* Four keys at a time, so that the elements of a column stand side by side. */
static bool pack_values(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    (void)type;
    uint16x8_t largest = vdupq_n_u16(0);
    int64_t depth = padded(count);
    for (int64_t k = 0; k < depth; k += STEP) {
        uint16_t *dst = (uint16_t *)b + k * PANEL;
        for (int64_t n = 0; n < width; n += PANEL, dst += depth * PANEL) {
            uint16x8x4_t x;
            for (int i = 0; i < STEP; i++) {
                x.val[i] = k + i < count ? load_8(rows[k + i], n, width) : vdupq_n_u16(0);
                largest = vmaxq_u16(largest, vandq_u16(x.val[i], vdupq_n_u16(0x7fff)));
            }
            vst4q_u16(dst, x);
        }
    }
    return vmaxvq_u16(largest) >= 0x7f80;
}

/*
 * Up to four pairs of rows of A times one panel of B, 16 sums of 2 x 2 elements in registers; a last row without another
 * is its own. For 8 elements of depth that is 32 BFMMLA to 16 loads and 8 permutations. The preprocessor spells the pairs
 * out, since not every compiler unrolls such loops early enough to keep an array in registers.
 */
#    define EACH_PAIR(f, ...) f(0, __VA_ARGS__) f(1, __VA_ARGS__) f(2, __VA_ARGS__) f(3, __VA_ARGS__)

#    define PAIR_ZERO(i, zero) sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = zero;

#    define PAIR_LOAD(i, k)                                                       \
        if (2 * i < rows) {                                                       \
            uint16x8_t x = load_whole(a + 2 * i * a_stride + k), y = x;           \
            if (2 * i + 1 < rows) y = load_whole(a + (2 * i + 1) * a_stride + k); \
            first[i] = vreinterpretq_bf16_u16(first_halves(x, y));                \
            second[i] = vreinterpretq_bf16_u16(second_halves(x, y));              \
        }

#    define PAIR_MULTIPLY(i, pair, n, x) \
        if (2 * i < rows) sum[i][n] = vbfmmlaq_f32(sum[i][n], pair[i], x);

#    define MULTIPLY_COLUMNS(pair, b, n)                                             \
        {                                                                            \
            bfloat16x8_t x = vreinterpretq_bf16_u16(load_whole((b) + (n)*2 * STEP)); \
            EACH_PAIR(PAIR_MULTIPLY, pair, n, x)                                     \
        }

#    define PAIR_STORE(i, scale)                                                         \
        if (2 * i < rows) store_sums(c + 2 * i * c_stride, sum[i], false, scale, 2 * i); \
        if (2 * i + 1 < rows) store_sums(c + (2 * i + 1) * c_stride, sum[i], true, scale, 2 * i + 1);

/* One row of four sums of 2 x 2, the upper or the lower one. */
ALWAYS_INLINE void store_sums(float *dst, const vector *sum, bool lower, const float *row_scale, int row) {
    for (int half = 0; half < 2; half++, dst += LANES) {
        float64x2_t x = vreinterpretq_f64_f32(sum[2 * half]), y = vreinterpretq_f64_f32(sum[2 * half + 1]);
        vector of_row = vreinterpretq_f32_f64(lower ? vzip2q_f64(x, y) : vzip1q_f64(x, y));
        v_store(dst, row_scale == NULL ? of_row : v_fma(v_set(row_scale[row]), v_load(dst), of_row));
    }
}

ALWAYS_INLINE void multiply_block(const int rows, float *c, int64_t c_stride, const uint16_t *a, int64_t a_stride,
                                  const uint16_t *b, int64_t depth, const float *row_scale) {
    vector sum[4][4];
    EACH_PAIR(PAIR_ZERO, v_set(0.0f))
    for (int64_t k = 0; k < depth; k += 2 * STEP, b += 2 * STEP * PANEL) {
        bfloat16x8_t first[4], second[4];
        EACH_PAIR(PAIR_LOAD, k)
        MULTIPLY_COLUMNS(first, b, 0)
        MULTIPLY_COLUMNS(first, b, 1)
        MULTIPLY_COLUMNS(first, b, 2)
        MULTIPLY_COLUMNS(first, b, 3)
        MULTIPLY_COLUMNS(second, b + STEP * PANEL, 0)
        MULTIPLY_COLUMNS(second, b + STEP * PANEL, 1)
        MULTIPLY_COLUMNS(second, b + STEP * PANEL, 2)
        MULTIPLY_COLUMNS(second, b + STEP * PANEL, 3)
    }
    EACH_PAIR(PAIR_STORE, row_scale)
}

#    define HEIGHT(rows) \
    case rows: multiply_block(rows, c, c_stride, a, a_stride, b, depth, row_scale); break

static void multiply_rows(int64_t rows, float *c, int64_t c_stride, const uint16_t *a, int64_t a_stride,
                          const uint16_t *b, int64_t depth, const float *row_scale) {
    switch (rows) {
        HEIGHT(1);
        HEIGHT(2);
        HEIGHT(3);
        HEIGHT(4);
        HEIGHT(5);
        HEIGHT(6);
        HEIGHT(7);
        HEIGHT(8);
    }
}

static void multiply(float *c, int64_t c_stride, const void *a_operand, int64_t a_stride, const void *b_operand,
                     int64_t b_depth, int64_t rows, int64_t columns, int64_t depth, const float *row_scale) {
    const uint16_t *a = a_operand, *b = b_operand;
    /* Rows in blocks of nearly equal height, as in kernels_multiply.h. */
    int64_t blocks = (rows + 7) / 8;
    for (int64_t n = 0; n < columns; n += PANEL)
        for (int64_t r = 0, left = blocks; left > 0; left--) {
            int64_t height = (rows - r + left - 1) / left;
            multiply_rows(height, c + r * c_stride + n, c_stride, a + r * a_stride, a_stride, b + n * b_depth, depth,
                          row_scale == NULL ? NULL : row_scale + r);
            r += height;
        }
}

const fa_cpu_kernels *fa_cpu_kernels_neon_bf16(void) {
    static const fa_cpu_kernels table = FA_CPU_BFLOAT16_KERNELS(FA_ISA_NEON_BF16);
    return &table;
}

#else

const fa_cpu_kernels *fa_cpu_kernels_neon_bf16(void) { return NULL; }

#endif
