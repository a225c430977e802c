/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of AVX2 with FMA. Compiled with -mavx2 -mfma. */
#include "fma_peak.h"

#if defined(__AVX2__) && defined(__FMA__)

#    include "fma_peak_loop.h"

#    include <immintrin.h>

static float lane_sum(__m256 v) {
    float lanes[8];
    _mm256_storeu_ps(lanes, v);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3] + lanes[4] + lanes[5] + lanes[6] + lanes[7];
}

#    define VECTOR __m256
#    define LANES 8
#    define BROADCAST(x) _mm256_set1_ps(x)
#    define MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#    define LANE_SUM(v) lane_sum(v)

double fma_peak_avx2(int64_t iterations, float *sink) { FMA_PEAK_LOOP; }

#else

double fma_peak_avx2(int64_t iterations, float *sink) {
    (void)iterations;
    (void)sink;
    return 0;
}

#endif
