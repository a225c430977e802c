/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels in AMX: products in tiles of bfloat16, everything else in AVX-512. Products are exact, sums
 * float32; subnormal operands and sums count as 0 (docs/numerics.md). A thread may use tiles only after the process was
 * permitted to (dispatch.c).
 */
#include "kernels.h"

/* Clang before 16 spells its macros without the underscore. FA_AMX_MODEL: kernels_amx_tiles.h. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__) && (defined(__AMX_BF16__) || defined(__AMXBF16__) || defined(FA_AMX_MODEL))

#    define OPERAND_BFLOAT16
#    define DEPTH 32

#    include "kernels_avx512_bf16_operands.h"

#    include "kernels_amx_multiply.h"

_Static_assert(PANEL == AMX_PANEL && DEPTH == AMX_DEPTH, "packed panels are pairs of tiles");

/* C[r] = row_scale[r] * C[r]. Once a row has seen a few tiles, its maximum rarely rises, so most factors are 1. */
static void scale_rows(float *c, int64_t c_stride, int64_t rows, int64_t columns, const float *row_scale) {
    for (int64_t first = 0; first < rows; first += LANES) {
        int64_t count = minimum(LANES, rows - first);
        vector factors = v_load_part(row_scale + first, count);
        unsigned left = _mm512_mask_cmp_ps_mask(first_lanes(count), factors, v_set(1.0f), _CMP_NEQ_UQ);
        for (; left != 0; left &= left - 1) {
            int64_t r = first + __builtin_ctz(left);
            for (int64_t n = 0; n < columns; n += LANES)
                v_store(c + r * c_stride + n, v_mul(v_set(row_scale[r]), v_load(c + r * c_stride + n)));
        }
    }
}

static void multiply(float *c, int64_t c_stride, const void *a, int64_t a_stride, const void *b, int64_t b_depth,
                     int64_t rows, int64_t columns, int64_t depth, const float *row_scale) {
    if (row_scale != NULL) scale_rows(c, c_stride, rows, columns, row_scale);
    multiply_blocks(c, c_stride, a, a_stride, b, b_depth, rows, columns, depth, row_scale != NULL);
}

/* A row, and the maximum of the one that will have its place in the next group. */
ALWAYS_INLINE void next_row(softmax_rows *x) {
    if (x->next % LANES == 0) softmax_begin_group(x);
    if (x->next + LANES < x->rows) softmax_find_largest(x, x->next + LANES);
    softmax_row(x);
    if (x->next % LANES == 0 || x->next == x->rows) softmax_end_group(x);
}

/* A product, and after each step of it, AMX_DEPTH of a block, as many rows as are due; `steps`: of all products. */
ALWAYS_INLINE void multiply_beside(int two, const fa_cpu_product *p, softmax_rows *x, int64_t steps, int64_t *due) {
    for (int64_t n = 0; n < p->columns; n += AMX_PANEL) {
        const uint16_t *a = p->a, *b = (const uint16_t *)p->b + n * p->b_depth;
        begin_block(two, p->c + n, p->c_stride, p->row_scale != NULL);
        for (int64_t k = 0; k < p->depth; k += AMX_DEPTH) {
            add_products(two, a + k, p->a_stride, b + k * AMX_PANEL);
            for (*due += x->rows; *due >= steps; *due -= steps) next_row(x);
        }
        end_block(two, p->c + n, p->c_stride);
    }
}

/* The tiles are a unit of their own: while it multiplies, the processor goes on with vector instructions. */
static void softmax_beside(float *s, int64_t s_stride, int64_t rows, int64_t keys, float scale, int shift, float *m,
                           float *l, float *rescale, const fa_cpu_product *products, int count) {
    softmax_rows x;
    vector largest[LANES], sum[LANES];
    x.largest = largest, x.sum = sum;
    softmax_begin(&x, s, s_stride, rows, keys, scale, shift, m, l, rescale);
    int64_t steps = 0, due = 0;
    for (int i = 0; i < count; i++) {
        const fa_cpu_product *p = &products[i];
        if (p->row_scale != NULL) scale_rows(p->c, p->c_stride, p->rows, p->columns, p->row_scale);
        steps += p->columns / AMX_PANEL * (p->depth / AMX_DEPTH);
    }
    for (int64_t r = 0; r < minimum(LANES, rows); r++) softmax_find_largest(&x, r);
    TILE_FENCE();
    for (int i = 0; i < count; i++) {
        int64_t height = products[i].rows;
        configure((int)minimum(height, 16), (int)(height - minimum(height, 16)), AMX_STEPS);
        if (height > 16)
            multiply_beside(1, &products[i], &x, steps, &due);
        else
            multiply_beside(0, &products[i], &x, steps, &due);
    }
    TILE_FENCE();
    while (x.next < rows) next_row(&x);
}

const fa_cpu_kernels *fa_cpu_kernels_amx(void) {
    static const fa_cpu_kernels table = {.isa = FA_ISA_AMX,
                                         .panel = PANEL,
                                         .operand = FA_ELEMENT_BFLOAT16,
                                         .b_bytes = 2,
                                         .step = STEP,
                                         .depth = DEPTH,
                                         .strip = 32,
                                         .load_rows = load_rows,
                                         .load_queries = load_queries,
                                         .pack_keys = pack_keys,
                                         .pack_values = pack_values,
                                         .multiply = multiply,
                                         .leave = leave,
                                         .softmax_step = softmax_step,
                                         .softmax_beside = softmax_beside,
                                         .softcap = softcap,
                                         .store_row = store_row};
    return &table;
}

#else

const fa_cpu_kernels *fa_cpu_kernels_amx(void) { return NULL; }

#endif
