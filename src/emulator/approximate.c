/* SPDX-License-Identifier: Apache-2.0 */
/* The special function unit and the conversions. The emulator computes the functions to float precision, which is
 * inside the error bounds of the hardware, and flushes subnormals where the instruction does. */
#include <math.h>

#include "../element.h"
#include "fp8.h"
#include "state.h"

/* Subnormal arguments and results become zeros of the same sign. */
static float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static fa_emulator_counters *counters(void) { return &fa_current()->block->worker->counters; }

float fa_emulated_exp2(float x) {
    fa_check_value("exp2_approx", x);
    counters()->exp2_calls++;
    return flush(exp2f(flush(x)));
}

float fa_emulated_log2(float x) {
    fa_check_value("log2_approx", x);
    counters()->other_special_calls++;
    return log2f(flush(x));
}

float fa_emulated_rcp(float x) {
    fa_check_value("rcp_approx", x);
    counters()->other_special_calls++;
    return flush(1.0f / flush(x));
}

float fa_emulated_rsqrt(float x) {
    fa_check_value("rsqrt_approx", x);
    counters()->other_special_calls++;
    return 1.0f / sqrtf(flush(x));
}

float fa_emulated_tanh(float x) {
    fa_check_value("tanh_approx", x);
    counters()->other_special_calls++;
    return tanhf(x);
}

/* cvt gives the canonical NaN. */
static uint32_t bf16_bits(float x) { return isnan(x) ? 0x7FFFu : fa_bfloat16_from_float(x); }
static uint32_t f16_bits(float x) { return isnan(x) ? 0x7FFFu : fa_float16_from_float(x); }

uint32_t fa_emulated_pack_bf16x2(float low, float high) {
    fa_check_value("pack_bf16x2", low);
    fa_check_value("pack_bf16x2", high);
    return bf16_bits(low) | bf16_bits(high) << 16;
}

uint32_t fa_emulated_pack_f16x2(float low, float high) {
    fa_check_value("pack_f16x2", low);
    fa_check_value("pack_f16x2", high);
    return f16_bits(low) | f16_bits(high) << 16;
}

uint32_t fa_emulated_pack_e4m3x4(const float v[4]) {
    fa_require_sm(90, "pack_e4m3x4"); /* sm_89 has it too, but is not among the parts */
    uint32_t packed = 0;
    for (int i = 0; i < 4; i++) {
        fa_check_value("pack_e4m3x4", v[i]);
        packed |= (uint32_t)(isnan(v[i]) ? 0x7F : fa_e4m3_from_float(v[i])) << (8 * i);
    }
    return packed;
}

uint32_t fa_emulated_pack_e5m2x4(const float v[4]) {
    fa_require_sm(90, "pack_e5m2x4");
    uint32_t packed = 0;
    for (int i = 0; i < 4; i++) {
        fa_check_value("pack_e5m2x4", v[i]);
        packed |= (uint32_t)(isnan(v[i]) ? 0x7F : fa_e5m2_from_float(v[i])) << (8 * i);
    }
    return packed;
}

float fa_emulated_unpack_f16(uint32_t bits) { return fa_float_from_float16((uint16_t)bits); }
