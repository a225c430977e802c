/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of code compiled for the architecture's baseline: on x86-64 SSE2, where a multiply-add is two
 * instructions; on aarch64 the same as NEON's without a fused multiply-add. */
#include "fma_peak.h"
#include "fma_peak_loop.h"

typedef float vector __attribute__((vector_size(16)));

#define VECTOR vector
#define LANES 4
#define BROADCAST(x) \
    { x, x, x, x }
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#define LANE_SUM(v) ((v)[0] + (v)[1] + (v)[2] + (v)[3])

double fma_peak_portable(int64_t iterations, float *sink) { FMA_PEAK_LOOP; }
