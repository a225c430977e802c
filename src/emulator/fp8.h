/* SPDX-License-Identifier: Apache-2.0 */
/* The two 8-bit floating-point formats of tensor cores. Both round to nearest even and saturate to the largest finite
 * value. e4m3: bias 7, no infinity, largest 448, NaN = 0x7F. e5m2: bias 15, infinity 0x7C, largest finite 57344. */
#ifndef FA_EMULATOR_FP8_H
#define FA_EMULATOR_FP8_H

#include <math.h>
#include <stdint.h>

static inline float fa_float_from_e4m3(uint8_t bits) {
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    float magnitude = exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    if ((bits & 0x7F) == 0x7F) magnitude = NAN;
    return bits & 0x80 ? -magnitude : magnitude;
}

static inline float fa_float_from_e5m2(uint8_t bits) {
    int exponent = bits >> 2 & 31, mantissa = bits & 3;
    float magnitude = exponent == 0 ? ldexpf((float)mantissa, -16) : ldexpf((float)(4 + mantissa), exponent - 17);
    if (exponent == 31) magnitude = mantissa ? NAN : INFINITY;
    return bits & 0x80 ? -magnitude : magnitude;
}

/* Rounds |x| <= largest to a multiple of the unit of its binade (of the subnormals below the smallest normal), and
 * encodes exponent and mantissa side by side: a carry out of the mantissa then raises the exponent. */
static inline uint8_t fa_fp8_encode(float x, int mantissa_bits, int bias, float largest) {
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float magnitude = fabsf(x);
    if (isnan(x)) return (uint8_t)(sign | 0x7F);
    if (magnitude > largest) magnitude = largest;
    int exponent = 1 - bias;
    if (magnitude >= ldexpf(1, 1 - bias)) exponent = ilogbf(magnitude);
    int units = (int)lrintf(ldexpf(magnitude, mantissa_bits - exponent)); /* default rounding: nearest even */
    int encoded = units + ((exponent + bias - 1) << mantissa_bits);
    return (uint8_t)(sign | encoded);
}

static inline uint8_t fa_e4m3_from_float(float x) { return fa_fp8_encode(x, 3, 7, 448); }
static inline uint8_t fa_e5m2_from_float(float x) { return fa_fp8_encode(x, 2, 15, 57344); }

#endif
