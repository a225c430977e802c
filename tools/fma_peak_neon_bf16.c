/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of NEON with BF16: BFMMLA, sums of products of small bfloat16 matrices. Compiled with -march=...+bf16. */
#include "fma_peak.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

#    include "fma_peak_loop.h"

#    include <arm_neon.h>

/* A sum grows by two products in each step and stays far below the end of float32. */
#    define VECTOR float32x4_t
#    define LANES 16 /* products */
#    define BROADCAST(x) vdupq_n_f32(x)
#    define MULTIPLY_ADD(a, b, c) vbfmmlaq_f32(a, vreinterpretq_bf16_f32(b), vreinterpretq_bf16_f32(c))
#    define LANE_SUM(v) vaddvq_f32(v)

double fma_peak_neon_bf16(int64_t iterations, float *sink) { FMA_PEAK_LOOP; }

#else

double fma_peak_neon_bf16(int64_t iterations, float *sink) {
    (void)iterations;
    (void)sink;
    return 0;
}

#endif
