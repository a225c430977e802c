/* SPDX-License-Identifier: Apache-2.0 */
/* mma.sync: the fragments of 32 lanes are gathered into matrices, multiplied, and the sum is handed back. */
#include "../element.h"
#include "state.h"

enum { M = 16, N = 8, MAX_K = 16 };

/* Instances of these for each type are made by inlining: they are most of the time of kernels with mma.sync. */
#define SPECIALISED static inline __attribute__((always_inline))

/* The element `half` of a register; for tf32 the register without its low 13 bits. */
SPECIALISED float element(fa_matrix_type type, uint32_t bits, uint32_t half) {
    switch (type) {
    case FA_MATRIX_bf16: return fa_float_from_bits(half ? bits & 0xFFFF0000u : bits << 16);
    case FA_MATRIX_f16: return fa_float_from_float16((uint16_t)(bits >> (16 * half)));
    default: return fa_float_from_bits(bits & 0xFFFFE000u);
    }
}

SPECIALISED void multiply_fragments(fa_matrix_type type, const fa_lane *lanes) {
    const uint32_t per_register = type == FA_MATRIX_tf32 ? 1 : 2;
    const uint32_t k_count = 8 * per_register;
    float a[M * MAX_K], b[MAX_K * N], c[M * N];
    for (uint32_t lane = 0; lane < FA_LANES; lane++) {
        const uint32_t p = lane / 4, q = lane % 4;
        const uint32_t *ra = lanes[lane].in[0], *rb = lanes[lane].in[1];
        const float *rc = lanes[lane].out;
        for (uint32_t half = 0; half < per_register; half++) {
            uint32_t k = q * per_register + half; /* in the first half of the k range */
            for (uint32_t j = 0; j < 4; j++)
                a[(p + 8 * (j & 1)) * k_count + k + k_count / 2 * (j >> 1)] = element(type, ra[j], half);
            for (uint32_t j = 0; j < 2; j++) b[(k + k_count / 2 * j) * N + p] = element(type, rb[j], half);
        }
        for (uint32_t v = 0; v < 4; v++) c[(p + 8 * (v >> 1)) * N + 2 * q + (v & 1)] = rc[v];
    }
    fa_multiply(c, a, b, M, N, k_count);
    for (uint32_t lane = 0; lane < FA_LANES; lane++) {
        const uint32_t p = lane / 4, q = lane % 4;
        float *rc = lanes[lane].out;
        for (uint32_t v = 0; v < 4; v++) rc[v] = c[(p + 8 * (v >> 1)) * N + 2 * q + (v & 1)];
    }
}

void fa_emulated_mma(fa_matrix_type type, float *c, const uint32_t *a, const uint32_t *b) {
    fa_thread *self = fa_current();
    fa_lane *lanes = self->warp->lanes;
    lanes[self->lane].value[0] = (uint32_t)type;
    lanes[self->lane].in[0] = a;
    lanes[self->lane].in[1] = b;
    lanes[self->lane].out = c;
    if (!fa_meet_warp(self, FA_MEET_MMA)) return;
    for (uint32_t i = 0; i < FA_LANES; i++)
        if (lanes[i].value[0] != (uint32_t)type)
            fa_emulated_fail("mma", "lanes %u and %u use different element types", self->lane, i);
    switch (type) {
    case FA_MATRIX_bf16: multiply_fragments(FA_MATRIX_bf16, lanes); break;
    case FA_MATRIX_f16: multiply_fragments(FA_MATRIX_f16, lanes); break;
    default: multiply_fragments(FA_MATRIX_tf32, lanes); break;
    }
    self->block->worker->counters.tensor_flops += type == FA_MATRIX_tf32 ? 2 * M * N * 8 : 2 * M * N * 16;
    fa_wake_warp(self->warp);
}
