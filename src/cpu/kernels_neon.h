/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary of kernels_simd.h in NEON (aarch64), for the files that are compiled for it. Rows of tensors are loaded
 * as bytes, which need no alignment. */
#ifndef FA_CPU_KERNELS_NEON_H
#define FA_CPU_KERNELS_NEON_H

#include "kernels.h"

#include <arm_neon.h>

#define LANES 4
#define PANEL 8
/* 8 x 2 sums, 8 vectors of A and 2 of B: 26 of 32 registers; 16 loads for 64 multiply-adds. */
#define BLOCK_ROWS 8
#define FEW_CELLS 16

typedef float32x4_t vector;

static inline vector v_set(float x) { return vdupq_n_f32(x); }
static inline vector v_load(const float *p) { return vld1q_f32(p); }
static inline void v_store(float *p, vector x) { vst1q_f32(p, x); }
static inline vector v_add(vector a, vector b) { return vaddq_f32(a, b); }
static inline vector v_sub(vector a, vector b) { return vsubq_f32(a, b); }
static inline vector v_mul(vector a, vector b) { return vmulq_f32(a, b); }
static inline vector v_div(vector a, vector b) { return vdivq_f32(a, b); }
static inline vector v_fma(vector a, vector b, vector c) { return vfmaq_f32(c, a, b); }
static inline vector v_fnma(vector a, vector b, vector c) { return vfmsq_f32(c, a, b); }
#define v_fma_lane(a, i, b, c) vfmaq_laneq_f32(c, b, a, i)
/* Not vmaxnmq, which makes a NaN of a signalling one. */
static inline vector v_max(vector a, vector b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vector v_abs(vector x) { return vabsq_f32(x); }

static inline vector v_load_part(const float *p, int64_t n) {
    float x[4] = {0};
    memcpy(x, p, (size_t)n * sizeof *x);
    return vld1q_f32(x);
}

static inline void v_store_part(float *p, vector x, int64_t n) {
    float lanes[4];
    vst1q_f32(lanes, x);
    memcpy(p, lanes, (size_t)n * sizeof *p);
}

static inline vector v_if_less(vector x, vector bound, vector a, vector b) {
    return vbslq_f32(vcltq_f32(x, bound), a, b);
}

static inline vector v_zero_if_less(vector x, vector bound, vector b) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(b), vcltq_f32(x, bound)));
}

static inline vector v_copysign(vector x, vector sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, x); }

static inline vector v_scale(vector x, vector z) {
    return vmulq_f32(x, vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(z), 23)));
}

static inline vector v_reduce_add_each(const vector *x) {
    return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
}

/* Neighbours are joined until one is left, as vpaddq does it. */
static inline vector v_reduce_max_each(const vector *x) {
    vector a = v_max(vuzp1q_f32(x[0], x[1]), vuzp2q_f32(x[0], x[1]));
    vector b = v_max(vuzp1q_f32(x[2], x[3]), vuzp2q_f32(x[2], x[3]));
    return v_max(vuzp1q_f32(a, b), vuzp2q_f32(a, b));
}

static inline vector v_max_magnitude(vector bits, vector x) {
    uint32x4_t magnitude = vreinterpretq_u32_f32(vabsq_f32(x));
    return vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(bits), magnitude));
}

static inline bool v_any_nonfinite(vector bits) { return vmaxvq_u32(vreinterpretq_u32_f32(bits)) >= 0x7f800000u; }

/* 4 elements of 16 bits to float32. */
static inline vector from_halves(uint16x4_t h, fa_element type) {
    if (type == FA_ELEMENT_FLOAT16) return vcvt_f32_f16(vreinterpret_f16_u16(h));
    return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
}

static inline vector v_load_element(const void *p, fa_element type) {
    if (type == FA_ELEMENT_FLOAT32) return vreinterpretq_f32_u8(vld1q_u8(p));
    return from_halves(vreinterpret_u16_u8(vld1_u8(p)), type);
}

static inline vector v_load_element_part(const void *p, int64_t n, fa_element type) {
    uint8_t bytes[16] = {0};
    memcpy(bytes, p, (size_t)(n * (type == FA_ELEMENT_FLOAT32 ? 4 : 2)));
    return v_load_element(bytes, type);
}

static inline void v_store_element(void *p, vector x, fa_element type) {
    if (type == FA_ELEMENT_FLOAT32) {
        vst1q_u8(p, vreinterpretq_u8_f32(x));
    } else if (type == FA_ELEMENT_FLOAT16) {
        vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(x)));
    } else { /* fa_bfloat16_from_float */
        uint32x4_t u = vreinterpretq_u32_f32(x), upper = vshrq_n_u32(u, 16);
        uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
        uint32x4_t rounded = vshrq_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
        uint32x4_t number = vceqq_f32(x, x);
        vst1_u8(p, vreinterpret_u8_u16(vmovn_u32(vbslq_u32(number, rounded, vorrq_u32(upper, vdupq_n_u32(0x40))))));
    }
}

static inline void v_transpose(vector *x) {
    float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(x[0], x[1]));
    float64x2_t t1 = vreinterpretq_f64_f32(vtrn2q_f32(x[0], x[1]));
    float64x2_t t2 = vreinterpretq_f64_f32(vtrn1q_f32(x[2], x[3]));
    float64x2_t t3 = vreinterpretq_f64_f32(vtrn2q_f32(x[2], x[3]));
    x[0] = vreinterpretq_f32_f64(vtrn1q_f64(t0, t2));
    x[1] = vreinterpretq_f32_f64(vtrn1q_f64(t1, t3));
    x[2] = vreinterpretq_f32_f64(vtrn2q_f64(t0, t2));
    x[3] = vreinterpretq_f32_f64(vtrn2q_f64(t1, t3));
}

#endif
