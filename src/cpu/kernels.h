/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU micro-kernels: what every instruction set implements, as one table of functions.
 *
 * A micro-kernel sees one tile of float32 numbers (or rows of the input dtype to pack into one) and knows
 * nothing of heads, masks, lengths or pages: that is forward.c's. The portable table is complete and is the
 * specification; the others are judged against it (tests/test_cpu_kernels.c).
 *
 * A matrix B is packed in panels of `panel` columns: element (k, n) of a matrix of depth K lies at
 *     b[(n / panel) * K * panel + k * panel + n % panel]
 * and columns beyond its width are zero. Buffers are 64-byte aligned and sized for whole panels; rows of the
 * input dtype are not aligned at all.
 */
#ifndef FA_CPU_KERNELS_H
#define FA_CPU_KERNELS_H

#include "element.h"
#include "flashattn.h"

#include <stdbool.h>

/* Keys in a K/V tile, on every instruction set, so that results do not depend on packing. A multiple of every
 * panel. */
#define FA_TILE_KEYS 64
/* No panel is wider, so buffers for any of them can be sized before the table is chosen. */
#define FA_PANEL_MAX 64

typedef struct fa_cpu_kernels {
    fa_isa isa;
    int panel; /* columns of a panel; divides FA_TILE_KEYS */

    /* dst[r * dst_stride + i] = factor * rows[r][i], i < width. rows[r] points at `width` elements of the
     * given type. */
    void (*load_rows)(float *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                      fa_element type, float factor);

    /* B = K^T: column n of B is rows[n]. depth = width, `count` columns. */
    void (*pack_keys)(float *b, const void *const *rows, int64_t count, int64_t width, fa_element type);

    /* B = V: row k of B is rows[k]. depth = count, `width` columns. Returns whether any element is infinite
     * or NaN. */
    bool (*pack_values)(float *b, const void *const *rows, int64_t count, int64_t width, fa_element type);

    /* row_scale == NULL: C = A B, else C[r] = row_scale[r] * C[r] + (A B)[r]. A is row-major [rows][depth], B
     * packed; C row-major; `columns` is a multiple of panel. For each element the products are added in the
     * order of k into one float32 accumulator per element, whatever `rows` is: a row's bits do not depend on
     * its neighbours. */
    void (*multiply)(float *c, int64_t c_stride, const float *a, int64_t a_stride, const float *b, int64_t rows,
                     int64_t columns, int64_t depth, const float *row_scale);

    /*
     * One step of the online softmax on `rows` rows of `keys` scores (a multiple of panel; -inf where
     * masked): m' = max(m, max_j s_j);  s_j = exp(s_j - m');  rescale = exp(m - m');  l = l * rescale + sum_j
     * s_j;  m = m' exp(-inf) = 0 exactly. With m' = -inf (nothing visible so far) 0 stands in for it, so that
     * s = 0, rescale is finite and never NaN. A NaN score leaves NaN in its s and in l. A score of +inf
     * likewise (inf - inf).
     */
    void (*softmax_step)(float *s, int64_t s_stride, int64_t rows, int64_t keys, float *m, float *l, float *rescale);

    /* s[i] = softcap * tanh(s[i] / softcap), i < count. */
    void (*softcap)(float *s, int64_t count, float softcap);

    /* dst[i] = (type)(factor * src[i]), i < width, rounded to nearest even; dst is not aligned. NaN stays
     * NaN. */
    void (*store_row)(void *dst, const float *src, int64_t width, float factor, fa_element type);
} fa_cpu_kernels;

/* NULL where the build has no such table (another architecture). Whether this machine can run it is
 * dispatch.c's business. */
const fa_cpu_kernels *fa_cpu_kernels_portable(void);
const fa_cpu_kernels *fa_cpu_kernels_neon(void);
const fa_cpu_kernels *fa_cpu_kernels_avx2(void);
const fa_cpu_kernels *fa_cpu_kernels_avx512(void);

/* The instruction set that an option means: FA_ISA_AUTO asks the environment, then the machine. On failure FA_ISA_AUTO,
 * with the status and the sentence set as for a public call. */
fa_isa fa_cpu_isa_select(fa_isa isa, fa_status *status);
/* Its table, whose `isa` says whose it is; NULL on failure. */
const fa_cpu_kernels *fa_cpu_kernels_select(fa_isa isa, fa_status *status);

#endif
