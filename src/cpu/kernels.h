/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU micro-kernels: what every instruction set implements, as one table of functions.
 *
 * A micro-kernel sees one tile of float32 numbers (or rows of the input dtype to pack into one) and knows
 * nothing of heads, masks, lengths or pages: that is forward.c's. The portable table is complete and is the
 * specification; the others are judged against it (tests/test_cpu_kernels.c).
 *
 * A matrix B is packed in panels of `panel` columns, by steps of `step` elements of depth: element (k, n) of a matrix of
 * depth K lies at
 *     b[(n / panel) * K * panel + (k / step) * step * panel + (n % panel) * step + k % step]
 * and columns beyond its width, and elements of depth beyond its own up to K, are zero. Buffers are 64-byte aligned and
 * sized for whole panels; rows of the input dtype are not aligned at all.
 *
 * The operands A and B of a multiply hold float32 numbers, step 1, or where a table says so bfloat16 numbers, step 2 or 4:
 * the layout that dot-product and matrix instructions read. Then inputs are bfloat16, A is Q without softmax_scale, which
 * would have to be rounded, or the weights rounded to bfloat16. Or A holds float32 numbers and B sums of bfloat16 numbers,
 * laid out as kernels_amx_split.c says. Depths K are multiples of `depth`.
 */
#ifndef FA_CPU_KERNELS_H
#define FA_CPU_KERNELS_H

#include "element.h"
#include "flashattn.h"

#include <stdbool.h>

/* Keys in a K/V tile, on every instruction set, so that results do not depend on packing. A multiple of every
 * panel. */
#define FA_TILE_KEYS 128
/* No panel is wider, so buffers for any of them can be sized before the table is chosen. */
#define FA_PANEL_MAX 64
/* No depth is padded to a multiple of more. */
#define FA_DEPTH_MAX 32

/* dst[r * dst_stride + i] = factor * rows[r][i], i < width. rows[r] points at `width` elements of the given type. */
typedef void fa_load_rows(float *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                          fa_element type, float factor);

/* What multiply computes, with its arguments. */
typedef struct fa_cpu_product {
    float *c;
    int64_t c_stride;
    const void *a;
    int64_t a_stride;
    const void *b;
    int64_t b_depth;
    int64_t rows, columns, depth;
    const float *row_scale;
} fa_cpu_product;

typedef struct fa_cpu_kernels {
    fa_isa isa;
    int panel; /* columns of a panel; divides FA_TILE_KEYS */
    /* FA_ELEMENT_FLOAT32 or FA_ELEMENT_BFLOAT16, of A. Tables for one type of inputs (bfloat16 operands, or B in parts) have
     * pack_keys, pack_values and load_queries for rows of that type only, NULL for any_nonfinite, and also for dot_rows and
     * add_rows where those of float32 are as fast. */
    fa_element operand;
    int b_bytes; /* of an element of B */
    int step;    /* of the packed layout */
    int strip; /* rows that had best go through scores, softmax and output together, so that their scores stay in L1 */
    int depth; /* depths of operands are padded to a multiple of it; divides FA_TILE_KEYS and panel */

    fa_load_rows *load_rows;

    /* The same as operand A, padded with zeros up to dst_stride, at most `depth` - 1 elements. bfloat16: only the sign of
     * factor counts. */
    void (*load_queries)(void *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                         fa_element type, float factor);

    /* B = K^T: column n of B is rows[n]. Depth: width, padded. `count` columns. */
    void (*pack_keys)(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type);

    /* B = V: row k of B is rows[k]. Depth: count, padded. `width` columns. Returns whether any element is infinite or
     * NaN. */
    bool (*pack_values)(void *b, const void *const *rows, int64_t count, int64_t width, fa_element type);

    /* row_scale == NULL: C = A B, else C[r] = row_scale[r] * C[r] + (A B)[r]. A is row-major [rows][depth], a_stride in
     * elements; B packed with a depth of b_depth >= depth, and finite where row_scale is given; C float32, row-major;
     * `columns` is a multiple of panel. For each element the products are added in the order of k, bfloat16 by 2, 4 or 32,
     * in parts those of the first parts last, into one float32 accumulator per element, whatever `rows` is: a row's bits
     * do not depend on its neighbours. */
    void (*multiply)(float *c, int64_t c_stride, const void *a, int64_t a_stride, const void *b, int64_t b_depth,
                     int64_t rows, int64_t columns, int64_t depth, const float *row_scale);

    /* After the last multiply of a thread, to give back what it keeps between calls; NULL: nothing. */
    void (*leave)(void);

    /*
     * One step of the online softmax on `rows` rows of `keys` scores (a multiple of half a panel; -inf where
     * masked): m' = max(m, max_j s_j);  p_j = 2^-shift exp(scale (s_j - m'));  rescale = exp(scale (m - m'));
     * l = l * rescale + sum_j p_j;  m = m'. exp(-inf) = 0 exactly. scale > 0. The p_j replace the scores, as operand A: in
     * bfloat16 they take the first half of the scores' place, and l sums them before they are rounded. With m' = -inf
     * (nothing visible so far) 0 stands in for it, so that p = 0, rescale is finite and never NaN. A NaN score leaves
     * NaN in its p and in l. A score of +inf likewise (inf - inf).
     */
    void (*softmax_step)(float *s, int64_t s_stride, int64_t rows, int64_t keys, float scale, int shift, float *m,
                         float *l, float *rescale);

    /*
     * softmax_step of up to `strip` rows and, meanwhile, a few products of up to `strip` rows each, one after another.
     * Their matrices have nothing in common with the scores and rescale, which may be a row_scale of theirs: it is read
     * first. Their depth is a multiple of `depth`. NULL: the machine would not do both at once.
     */
    void (*softmax_beside)(float *s, int64_t s_stride, int64_t rows, int64_t keys, float scale, int shift, float *m,
                           float *l, float *rescale, const fa_cpu_product *products, int count);

    /* s[i] = softcap * tanh(s[i] / softcap), i < count. */
    void (*softcap)(float *s, int64_t count, float softcap);

    /* dst[i] = (type)(factor * src[i]), i < width, rounded to nearest even; dst is not aligned. NaN stays
     * NaN. */
    void (*store_row)(void *dst, const float *src, int64_t width, float factor, fa_element type);

    /* For few rows, where packing would cost more than it saves: q and p are operands A, and rows of any type where they lie,
     * of bfloat16 operands bfloat16. `next`, if not NULL: `count` rows of the same type to prefetch meanwhile. */

    /* s[r][j] = sum_i q[r][i] * keys[j][i], i < width, j < count. */
    void (*dot_rows)(float *s, int64_t s_stride, const void *q, int64_t q_stride, int64_t rows, const void *const *keys,
                     int64_t count, int64_t width, fa_element type, const void *const *next);
    /* o[r][i] = row_scale[r] * o[r][i] + sum_j p[r][j] * values[j][i], i < width; o has room, and may be written, up to
     * the next multiple of FA_PANEL_MAX. bfloat16: where count is odd, one weight more is read, which is 0. */
    void (*add_rows)(float *o, int64_t o_stride, const void *p, int64_t p_stride, int64_t rows,
                     const void *const *values, int64_t count, int64_t width, fa_element type, const float *row_scale,
                     const void *const *next, int64_t next_width);
    /* Whether any element is infinite or NaN. */
    bool (*any_nonfinite)(const void *const *rows, int64_t count, int64_t width, fa_element type);
} fa_cpu_kernels;

/* The table of a file that multiplies float32 operands, and whose functions are called like its members. */
#define FA_CPU_FLOAT32_KERNELS(name)                                                                        \
    {                                                                                                       \
        .isa = (name), .panel = PANEL, .operand = FA_ELEMENT_FLOAT32, .b_bytes = 4, .step = 1, .depth = 1,  \
        .strip = 24, .load_rows = load_rows, .load_queries = load_queries, .pack_keys = pack_keys,          \
        .pack_values = pack_values, .multiply = multiply, .softmax_step = softmax_step, .softcap = softcap, \
        .store_row = store_row, .dot_rows = dot_rows, .add_rows = add_rows, .any_nonfinite = any_nonfinite  \
    }

/* The same for bfloat16 operands and inputs, with STEP and DEPTH of the file. */
#define FA_CPU_BFLOAT16_KERNELS(name)                                                                              \
    {                                                                                                              \
        .isa = (name), .panel = PANEL, .operand = FA_ELEMENT_BFLOAT16, .b_bytes = 2, .step = STEP, .depth = DEPTH, \
        .strip = 24, .load_rows = load_rows, .load_queries = load_queries, .pack_keys = pack_keys,                 \
        .pack_values = pack_values, .multiply = multiply, .softmax_step = softmax_step, .softcap = softcap,        \
        .store_row = store_row, .dot_rows = dot_rows, .add_rows = add_rows                                         \
    }

/* NULL where the build has no such table (another architecture). Whether this machine can run it is
 * dispatch.c's business. */
const fa_cpu_kernels *fa_cpu_kernels_portable(void);
const fa_cpu_kernels *fa_cpu_kernels_neon(void);
const fa_cpu_kernels *fa_cpu_kernels_neon_bf16(void);
const fa_cpu_kernels *fa_cpu_kernels_avx2(void);
const fa_cpu_kernels *fa_cpu_kernels_avx512(void);
const fa_cpu_kernels *fa_cpu_kernels_avx512_bf16(void);
const fa_cpu_kernels *fa_cpu_kernels_amx(void);
const fa_cpu_kernels *fa_cpu_kernels_amx_float32(void);
const fa_cpu_kernels *fa_cpu_kernels_amx_float16(void);

/* The instruction set that an option means for a type of inputs: FA_ISA_AUTO asks the environment, then the machine. On
 * failure FA_ISA_AUTO, with the status and the sentence set as for a public call. */
fa_isa fa_cpu_isa_select(fa_isa isa, fa_element type, fa_status *status);
/* The same as a table. An instruction set without kernels for that type stands for the best one below it that has some. On
 * failure NULL. */
const fa_cpu_kernels *fa_cpu_kernels_select(fa_isa isa, fa_element type, fa_status *status);
/* Where FA_ISA_AUTO means one that multiplies float32 numbers, but the machine has AMX: its table for float32 or float16
 * inputs, in parts, which long sequences are faster with. Else NULL. */
const fa_cpu_kernels *fa_cpu_kernels_in_parts(fa_isa isa, fa_element type);
/* The best table up to an instruction set that the machine has which works in float32 on rows of any type: none of its
 * functions is NULL but leave. */
const fa_cpu_kernels *fa_cpu_kernels_float32(fa_isa isa);

#endif
