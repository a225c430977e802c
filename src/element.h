/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number formats of tensors, and the conversion of single numbers. Vector code has its own conversions,
 * equal to these bit for bit.
 */
#ifndef FA_ELEMENT_H
#define FA_ELEMENT_H

#include <stdint.h>
#include <string.h>

typedef enum fa_element {
    FA_ELEMENT_FLOAT32,
    FA_ELEMENT_FLOAT16,  /* IEEE 754 binary16 */
    FA_ELEMENT_BFLOAT16, /* the upper half of a float32 */
    FA_ELEMENT_FLOAT64
} fa_element;

static inline int64_t fa_element_size(fa_element type) {
    switch (type) {
    case FA_ELEMENT_FLOAT32: return 4;
    case FA_ELEMENT_FLOAT16:
    case FA_ELEMENT_BFLOAT16: return 2;
    case FA_ELEMENT_FLOAT64: return 8;
    }
    return 0;
}

static inline uint32_t fa_float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float fa_float_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float fa_float_from_bfloat16(uint16_t h) { return fa_float_from_bits((uint32_t)h << 16); }

/* Round to nearest even. NaN keeps its sign and upper payload and is made quiet, so that truncation cannot
 * turn it into inf. */
static inline uint16_t fa_bfloat16_from_float(float x) {
    uint32_t u = fa_float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float fa_float_from_float16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity; NaN, made quiet as the hardware does */
        return fa_float_from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) |
                                  (magnitude > 0x7c00u ? 0x400000u : 0u));
    if (magnitude >= 0x0400u) return fa_float_from_bits(sign | ((magnitude << 13) + 0x38000000u)); /* bias 127 - 15 */
    /* Zero and subnormals: magnitude * 2^-24 is exact in float32. */
    float x = (float)magnitude * 0x1p-24f;
    return fa_float_from_bits(sign | fa_float_bits(x));
}

/* Round to nearest even; beyond 65520 (half way past the largest finite, 65504) infinity. */
static inline uint16_t fa_float16_from_float(float x) {
    uint32_t u = fa_float_bits(x);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x1ffu)); /* NaN, made quiet */
    if (u >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);                       /* |x| >= 65520 */
    if (u < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the subnormal's bits, correctly rounded, at the
                              bottom */
        float shifted = fa_float_from_bits(u) + 0.5f;
        return (uint16_t)(sign | (uint16_t)(fa_float_bits(shifted) - 0x3f000000u));
    }
    u -= 0x38000000u;
    return (uint16_t)(sign | (uint16_t)((u + 0xfffu + ((u >> 13) & 1u)) >> 13));
}

/* The element at an address of any alignment, as float64 (exact for every format). */
static inline double fa_element_load(const void *address, fa_element type) {
    uint16_t h;
    float f;
    double d = 0;
    switch (type) {
    case FA_ELEMENT_FLOAT32: memcpy(&f, address, sizeof f); return (double)f;
    case FA_ELEMENT_FLOAT16: memcpy(&h, address, sizeof h); return (double)fa_float_from_float16(h);
    case FA_ELEMENT_BFLOAT16: memcpy(&h, address, sizeof h); return (double)fa_float_from_bfloat16(h);
    case FA_ELEMENT_FLOAT64: memcpy(&d, address, sizeof d); return d;
    }
    return d;
}

/* Rounds to nearest even, by way of float32 for the 16-bit formats. */
static inline void fa_element_store(void *address, double x, fa_element type) {
    uint16_t h;
    float f = (float)x;
    switch (type) {
    case FA_ELEMENT_FLOAT32: memcpy(address, &f, sizeof f); return;
    case FA_ELEMENT_FLOAT16:
        h = fa_float16_from_float(f);
        memcpy(address, &h, sizeof h);
        return;
    case FA_ELEMENT_BFLOAT16:
        h = fa_bfloat16_from_float(f);
        memcpy(address, &h, sizeof h);
        return;
    case FA_ELEMENT_FLOAT64: memcpy(address, &x, sizeof x); return;
    }
}

#endif
