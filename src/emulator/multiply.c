/* SPDX-License-Identifier: Apache-2.0 */
/* The product of small float matrices, on which the time of the emulated tensor cores depends: once for any CPU and
 * once for x86-64 CPUs with AVX2 and FMA, chosen at run time. The order of summation is by k; that of the hardware is
 * unknown. */
#include "state.h"

typedef float float8 __attribute__((vector_size(32), aligned(4), may_alias));

/* Eight rows by eight columns of c at a time, in registers. */
#define MULTIPLY_BODY                                                                 \
    for (uint32_t i = 0; i < m; i += 8)                                               \
        for (uint32_t j = 0; j < n; j += 8) {                                         \
            float8 sum[8];                                                            \
            for (uint32_t r = 0; r < 8; r++) sum[r] = *(float8 *)&c[(i + r) * n + j]; \
            for (uint32_t l = 0; l < k; l++) {                                        \
                float8 row = *(const float8 *)&b[l * n + j];                          \
                for (uint32_t r = 0; r < 8; r++) sum[r] += a[(i + r) * k + l] * row;  \
            }                                                                         \
            for (uint32_t r = 0; r < 8; r++) *(float8 *)&c[(i + r) * n + j] = sum[r]; \
        }

static void multiply_plain(float *c, const float *a, const float *b, uint32_t m, uint32_t n, uint32_t k) {
    MULTIPLY_BODY
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) static void multiply_avx2(float *c, const float *a, const float *b, uint32_t m,
                                                              uint32_t n, uint32_t k) {
    MULTIPLY_BODY
}

void fa_multiply(float *c, const float *a, const float *b, uint32_t m, uint32_t n, uint32_t k) {
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        multiply_avx2(c, a, b, m, n, k);
    else
        multiply_plain(c, a, b, m, n, k);
}

#else

void fa_multiply(float *c, const float *a, const float *b, uint32_t m, uint32_t n, uint32_t k) {
    multiply_plain(c, a, b, m, n, k);
}

#endif
