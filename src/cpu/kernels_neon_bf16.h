/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of NEON with rows of bfloat16 numbers, for the files that are compiled for BF16 (FEAT_BF16). Memory is
 * read and written as bytes, since operands share it with float32 numbers. */
#ifndef FA_CPU_KERNELS_NEON_BF16_H
#define FA_CPU_KERNELS_NEON_BF16_H

#include "kernels_neon.h"

static inline uint16x8_t load_whole(const void *p) { return vreinterpretq_u16_u8(vld1q_u8(p)); }
static inline void store_8(void *p, uint16x8_t x) { vst1q_u8(p, vreinterpretq_u8_u16(x)); }

/* Elements i .. i + 7 of a row of `width`; 0 beyond its end. */
static inline uint16x8_t load_8(const void *row, int64_t i, int64_t width) {
    const char *p = (const char *)row + 2 * i;
    if (i + 8 <= width) return load_whole(p);
    uint16_t x[8] = {0};
    if (i < width) memcpy(x, p, (size_t)(width - i) * sizeof *x);
    return vld1q_u16(x);
}

/* Both to bfloat16, rounded to nearest even. */
static inline uint16x8_t round_8(vector x, vector y) {
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x), y));
}

static inline vector v_dot_pairs(vector a, vector b, vector c) {
    return vbfdotq_f32(c, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}

static inline vector v_load_pairs(const void *row, int64_t i, int64_t width) {
    return vreinterpretq_f32_u16(load_8(row, i, width));
}

/* All lanes: the pair at p. */
static inline vector v_set_pair(const uint16_t *p) {
    uint32_t pair;
    memcpy(&pair, p, sizeof pair);
    return vreinterpretq_f32_u32(vdupq_n_u32(pair));
}

/* Elements i .. i + 7 of two rows side by side, 0 beyond `width`: columns i .. i + 3, then the others. NULL: zeros. */
static inline void v_load_two_rows(const void *row0, const void *row1, int64_t i, int64_t width, vector *low,
                                   vector *high) {
    uint16x8_t even = row0 != NULL ? load_8(row0, i, width) : vdupq_n_u16(0);
    uint16x8_t odd = row1 != NULL ? load_8(row1, i, width) : vdupq_n_u16(0);
    *low = vreinterpretq_f32_u16(vzip1q_u16(even, odd));
    *high = vreinterpretq_f32_u16(vzip2q_u16(even, odd));
}

/* For pairs what v_max_magnitude and v_any_nonfinite are for float32. */
static inline vector v_max_pair_magnitudes(vector bits, vector pairs) {
    uint16x8_t magnitudes = vandq_u16(vreinterpretq_u16_f32(pairs), vdupq_n_u16(0x7fff));
    return vreinterpretq_f32_u16(vmaxq_u16(vreinterpretq_u16_f32(bits), magnitudes));
}

static inline bool v_any_nonfinite_pair(vector bits) { return vmaxvq_u16(vreinterpretq_u16_f32(bits)) >= 0x7f80; }

static inline void v_store_bfloat16(void *p, vector x, vector y) { store_8(p, round_8(x, y)); }

#endif
