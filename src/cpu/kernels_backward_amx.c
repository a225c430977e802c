/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward's products of bfloat16 operands in AMX tiles. Operands are those of kernels_backward_avx512_bf16.c, whose
 * panels are what tiles want of a right operand. Numbers are rounded as there; but sums begin with what C holds, where
 * it is added to.
 *
 * A thread may use tiles only after the process was permitted to (dispatch.c).
 */
#include "kernels_backward.h"

/* As in kernels_amx.c. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__) && (defined(__AMX_BF16__) || defined(__AMXBF16__) || defined(FA_AMX_MODEL))

#    include "kernels_avx512.h"

#    include "kernels_amx_multiply.h"

_Static_assert(PANEL == AMX_PANEL, "packed panels are pairs of tiles");

static void pack_rows(float *a, int64_t stride, const void *const *rows, int64_t count, int64_t width,
                      fa_element type) {
    fa_cpu_products_avx512_bf16()->pack_rows(a, stride, rows, count, width, type);
}

static void pack_columns(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    fa_cpu_products_avx512_bf16()->pack_columns(b, rows, count, width, type);
}

static bool pack_panels(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type) {
    return fa_cpu_products_avx512_bf16()->pack_panels(b, rows, count, width, type);
}

static void pack_weights(float *by_rows, float *by_columns, const float *x, int64_t rows) {
    fa_cpu_products_avx512_bf16()->pack_weights(by_rows, by_columns, x, rows);
}

/* Depths and strides of operands are words of two elements. */
static void product(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b, int64_t b_depth,
                    int64_t rows, int64_t columns, int64_t depth, bool add) {
    multiply_blocks(c, c_stride, (const uint16_t *)(const void *)a, 2 * a_stride, (const uint16_t *)(const void *)b,
                    2 * b_depth, rows, columns, 2 * depth, add);
}

static void multiply(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b, int64_t rows,
                     int64_t columns, int64_t depth, float factor, bool accumulate) {
    product(c, c_stride, a, a_stride, b, depth, rows, columns, depth, accumulate);
    for (int64_t r = 0; r < rows && !accumulate && factor != 1.0f; r++)
        for (int64_t n = 0; n < columns; n += LANES)
            v_store(c + r * c_stride + n, v_mul(v_load(c + r * c_stride + n), v_set(factor)));
}

static vector load_words(const float *words, int64_t count) {
    return count < LANES ? v_load_part(words, count) : v_load(words);
}

/* The left operand's words are transposed first, for all panels at once: tiles read it by rows. */
static void multiply_transposed(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                                int64_t b_depth, int64_t rows, int64_t columns, int64_t depth) {
    enum { DEPTH = 64 }; /* words at a time; tiles of queries have fewer */
    float transposed[AMX_ROWS * DEPTH];
    for (int64_t r = 0; r < rows; r += AMX_ROWS) {
        int64_t height = rows - r < AMX_ROWS ? rows - r : AMX_ROWS;
        for (int64_t k = 0; k < depth; k += DEPTH) {
            int64_t words = depth - k < DEPTH ? depth - k : DEPTH;
            for (int64_t top = 0; top < height; top += LANES)
                for (int64_t left = 0; left < words; left += LANES) {
                    vector block[LANES];
                    for (int64_t i = 0; i < LANES; i++)
                        block[i] = left + i < words ? load_words(a + (k + left + i) * a_stride + r + top, height - top)
                                                    : v_set(0.0f);
                    v_transpose(block);
                    for (int64_t i = 0; i < LANES; i++) v_store(transposed + (top + i) * DEPTH + left, block[i]);
                }
            product(c + r * c_stride, c_stride, transposed, DEPTH, b + k * PANEL, b_depth, height, columns, words,
                    true);
        }
    }
}

const fa_cpu_products *fa_cpu_products_amx(void) {
    static const fa_cpu_products products = {.operand = FA_ELEMENT_BFLOAT16,
                                             .step = 2,
                                             .panel = PANEL,
                                             .pack_rows = pack_rows,
                                             .pack_columns = pack_columns,
                                             .pack_panels = pack_panels,
                                             .pack_weights = pack_weights,
                                             .multiply = multiply,
                                             .multiply_transposed = multiply_transposed,
                                             .leave = leave};
    return &products;
}

#else

const fa_cpu_products *fa_cpu_products_amx(void) { return NULL; }

#endif
