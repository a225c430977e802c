/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of NEON. */
#include "fma_peak.h"

#if defined(__aarch64__)

#    include "fma_peak_loop.h"

#    include <arm_neon.h>

#    define VECTOR float32x4_t
#    define LANES 4
#    define BROADCAST(x) vdupq_n_f32(x)
#    define MULTIPLY_ADD(a, b, c) vfmaq_f32(c, a, b)
#    define LANE_SUM(v) vaddvq_f32(v)

double fma_peak_neon(int64_t iterations, float *sink) { FMA_PEAK_LOOP; }

#else

double fma_peak_neon(int64_t iterations, float *sink) {
    (void)iterations;
    (void)sink;
    return 0;
}

#endif
