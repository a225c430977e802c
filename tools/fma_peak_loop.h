/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of fma_peak_*.c. The includer defines VECTOR, LANES, BROADCAST(x), MULTIPLY_ADD(a, b, c) = a * b + c
 * and LANE_SUM(v), and calls FMA_PEAK_LOOP in a function of (iterations, sink).
 *
 * Twelve independent sums cover a latency of 4 to 5 cycles on two units, and fit 16 registers with the two
 * factors. x' = x * 0.75 + 0.25 has the fixed point 1: never a subnormal or infinite number, which could run
 * at another speed.
 */
#ifndef FLASHATTN_TOOLS_FMA_PEAK_LOOP_H
#define FLASHATTN_TOOLS_FMA_PEAK_LOOP_H

#define FMA_PEAK_SUMS 12

/* The sums begin apart, or the compiler would see that one is enough. */
#define FMA_PEAK_LOOP                                                                                                \
    VECTOR a = BROADCAST(0.75f), b = BROADCAST(0.25f);                                                               \
    VECTOR s0 = BROADCAST(0.1f);                                                                                     \
    VECTOR s1 = BROADCAST(0.2f);                                                                                     \
    VECTOR s2 = BROADCAST(0.3f);                                                                                     \
    VECTOR s3 = BROADCAST(0.4f);                                                                                     \
    VECTOR s4 = BROADCAST(0.5f);                                                                                     \
    VECTOR s5 = BROADCAST(0.6f);                                                                                     \
    VECTOR s6 = BROADCAST(0.7f);                                                                                     \
    VECTOR s7 = BROADCAST(0.8f);                                                                                     \
    VECTOR s8 = BROADCAST(0.9f);                                                                                     \
    VECTOR s9 = BROADCAST(1.0f);                                                                                     \
    VECTOR s10 = BROADCAST(1.1f);                                                                                    \
    VECTOR s11 = BROADCAST(1.2f);                                                                                    \
    for (int64_t i = 0; i < iterations; i++) {                                                                       \
        s0 = MULTIPLY_ADD(s0, a, b);                                                                                 \
        s1 = MULTIPLY_ADD(s1, a, b);                                                                                 \
        s2 = MULTIPLY_ADD(s2, a, b);                                                                                 \
        s3 = MULTIPLY_ADD(s3, a, b);                                                                                 \
        s4 = MULTIPLY_ADD(s4, a, b);                                                                                 \
        s5 = MULTIPLY_ADD(s5, a, b);                                                                                 \
        s6 = MULTIPLY_ADD(s6, a, b);                                                                                 \
        s7 = MULTIPLY_ADD(s7, a, b);                                                                                 \
        s8 = MULTIPLY_ADD(s8, a, b);                                                                                 \
        s9 = MULTIPLY_ADD(s9, a, b);                                                                                 \
        s10 = MULTIPLY_ADD(s10, a, b);                                                                               \
        s11 = MULTIPLY_ADD(s11, a, b);                                                                               \
    }                                                                                                                \
    *sink = LANE_SUM(s0) + LANE_SUM(s1) + LANE_SUM(s2) + LANE_SUM(s3) + LANE_SUM(s4) + LANE_SUM(s5) + LANE_SUM(s6) + \
            LANE_SUM(s7) + LANE_SUM(s8) + LANE_SUM(s9) + LANE_SUM(s10) + LANE_SUM(s11);                              \
    return (double)iterations * FMA_PEAK_SUMS * LANES * 2

#endif
