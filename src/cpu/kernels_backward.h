/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels of backward, by the rules of kernels.h, where the packing of B is defined too. Two tables: what
 * computes in float32 on one instruction set, and the matrix products, which exist for two kinds of operands.
 *
 * An operand is made of 32-bit words. Float32: a word is one number. Bfloat16: a word is two numbers that are
 * neighbours along the depth of the product, the first one in its lower half; a depth that does not fill its last word
 * is filled up with 0. Strides and depths of operands count words. Products of bfloat16 are exact, and sums float32.
 */
#ifndef FA_CPU_KERNELS_BACKWARD_H
#define FA_CPU_KERNELS_BACKWARD_H

#include "kernels.h"

/* Keys of a tile; a multiple of every panel. */
#define FA_BACKWARD_KEYS 64

typedef struct fa_cpu_products {
    fa_element operand; /* FA_ELEMENT_FLOAT32 or FA_ELEMENT_BFLOAT16 */
    int step;           /* numbers in a word: 1 or 2 */
    int panel;          /* columns of a panel; divides FA_BACKWARD_KEYS */

    /* Left operand: row r is rows[r], `stride` words apart. */
    void (*pack_rows)(float *a, int64_t stride, const void *const *rows, int64_t count, int64_t width, fa_element type);
    /* Right operand: column n is rows[n]; depth = width, `count` columns, at most FA_BACKWARD_KEYS. */
    void (*pack_columns)(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type);
    /* Right operand: row k is rows[k]; depth = count, `width` columns. Returns whether any element is infinite or
     * NaN. */
    bool (*pack_panels)(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type);
    /* A float32 matrix [rows][FA_BACKWARD_KEYS] as two left operands, each number rounded to nearest even: words of two
     * rows, [rows words][FA_BACKWARD_KEYS], for multiply_transposed; words of two columns, [rows][FA_BACKWARD_KEYS
     * words], for multiply; either may be NULL. Float32 operands: NULL, since the matrix itself is both. */
    void (*pack_weights)(float *by_rows, float *by_columns, const float *x, int64_t rows);

    /* accumulate: C += A B, else C = factor * A B. `columns` is a multiple of panel. For each element the products are
     * added in the order of k into one float32 accumulator, which is then added to C, or in AMX begins with it: a row's
     * bits do not depend on its neighbours. */
    void (*multiply)(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b, int64_t rows,
                     int64_t columns, int64_t depth, float factor, bool accumulate);
    /* C += A^T B by the same rules; A is [depth][rows], its rows a_stride apart. B is part of a matrix that was
     * packed with a depth of b_depth words: its panels are b_depth * panel words apart. */
    void (*multiply_transposed)(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                                int64_t b_depth, int64_t rows, int64_t columns, int64_t depth);
    /* After the last product of a thread, to give back what it keeps between calls; NULL: nothing. */
    void (*leave)(void);
} fa_cpu_products;

typedef struct fa_cpu_backward_kernels {
    fa_cpu_products products; /* of float32 operands, made from any dtype */

    /*
     * From scores to weights and their gradients, for `rows` rows of `keys` elements (a multiple of 16), both `stride`
     * apart. In: s, -inf where hidden; d = dot(dout, v). Out: s = exp(s - lse); d = s * (d - delta). Where hidden both
     * are exactly 0, whatever d, lse and delta hold; NaN in a visible score gives NaN in both. lse is not -inf.
     */
    void (*softmax_backward)(float *s, float *d, int64_t stride, int64_t rows, int64_t keys, const float *lse,
                             const float *delta);

    /* As in kernels.h. */
    fa_load_rows *load_rows;
    void (*softcap)(float *s, int64_t count, float softcap);
    void (*store_row)(void *dst, const float *src, int64_t width, float factor, fa_element type);
} fa_cpu_backward_kernels;

/* NULL where the build has none. */
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_portable(void);
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_neon(void);
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_avx2(void);
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_avx512(void);
/* Products of bfloat16 operands, from bfloat16 tensors. */
const fa_cpu_products *fa_cpu_products_avx512_bf16(void);
const fa_cpu_products *fa_cpu_products_amx(void);
const fa_cpu_products *fa_cpu_products_neon_bf16(void);

#endif
