/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels that backward needs besides those of forward (kernels.h, where the packing of B is defined): one more
 * table, by the same rules. Backward takes from forward's table the loading, packing and storing of rows, `multiply` and
 * `softcap`.
 */
#ifndef FA_CPU_KERNELS_BACKWARD_H
#define FA_CPU_KERNELS_BACKWARD_H

#include "kernels.h"

typedef struct fa_cpu_backward_kernels {
    /* C += A^T B. A is [depth][rows], its rows a_stride apart; B packed; C row-major; `columns` is a multiple of panel.
     * For each element the products are added in the order of k into one float32 accumulator, which is then added to C,
     * whatever `rows` is. */
    void (*multiply_transposed)(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b,
                                int64_t rows, int64_t columns, int64_t depth);

    /*
     * From scores to weights and their gradients, for `rows` rows of `keys` elements (a multiple of panel), both `stride`
     * apart. In: s, -inf where hidden; d = dot(dout, v). Out: s = exp(s - lse); d = s * (d - delta). Where hidden both
     * are exactly 0, whatever d, lse and delta hold; NaN in a visible score gives NaN in both. lse is not -inf.
     */
    void (*softmax_backward)(float *s, float *d, int64_t stride, int64_t rows, int64_t keys, const float *lse,
                             const float *delta);
} fa_cpu_backward_kernels;

/* The table that goes with forward's of the same instruction set; NULL where the build has none. */
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_portable(void);
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_neon(void);
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_avx2(void);
const fa_cpu_backward_kernels *fa_cpu_backward_kernels_avx512(void);

static inline const fa_cpu_backward_kernels *fa_cpu_backward_kernels_of(fa_isa isa) {
    switch (isa) {
    case FA_ISA_NEON: return fa_cpu_backward_kernels_neon();
    case FA_ISA_AVX2: return fa_cpu_backward_kernels_avx2();
    case FA_ISA_AVX512: return fa_cpu_backward_kernels_avx512();
    default: return fa_cpu_backward_kernels_portable();
    }
}

#endif
