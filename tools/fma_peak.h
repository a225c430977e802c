/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ceiling that a kernel is measured against: multiply-add operations per second, on registers alone, with each
 * instruction set: float32, or bfloat16 with float32 sums. One file per instruction set, compiled for it; the files of other
 * architectures compile to functions that return 0.
 */
#ifndef FLASHATTN_TOOLS_FMA_PEAK_H
#define FLASHATTN_TOOLS_FMA_PEAK_H

#include "flashattn.h"

#include <stdint.h>

/* Runs `iterations` of the loop on this thread and returns the operations done, a multiply-add counted as 2;
 * 0 if the loop is not in this build. *sink takes the result, so that the loop is not optimised away. */
double fma_peak_portable(int64_t iterations, float *sink);
double fma_peak_neon(int64_t iterations, float *sink);
double fma_peak_avx2(int64_t iterations, float *sink);
double fma_peak_avx512(int64_t iterations, float *sink);
double fma_peak_avx512_bf16(int64_t iterations, float *sink); /* products of bfloat16 pairs */
double fma_peak_amx(int64_t iterations, float *sink);         /* the same in tiles */
double fma_peak_neon_bf16(int64_t iterations, float *sink);   /* and in 2 x 4 by 4 x 2 matrices */

/* Operations per second on `threads` threads, the best of many short runs within `seconds`; 0 if there is no
 * such loop here. The instruction set must be supported (fa_isa_supported). */
double fma_peak_measure(fa_isa isa, int threads, double seconds);

#endif
