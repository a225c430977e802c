/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exp and tanh of the CPU kernels: the constants, and the reasons for them. kernels_portable.c evaluates them
 * in plain multiplications and additions, kernels_simd.h in fused ones. The coefficients come from
 * bench/exp_coefficients.py; tests/test_cpu_kernels.c checks the bounds.
 *
 * 2^(c d), c > 0, d <= 0 (the weights of a softmax: d = s - max, c = scale * log2 e)
 *     n = c d, rounded to the nearest integer by adding FA_EXP_ROUND
 *     r = c d - n, |r| <= 1/2; fused, only this last step is rounded
 *     2^(c d) = 2^n * (1 + r q(r)), q of degree 5: relative approximation error 6.4e-9
 *   Error as exp(x), x = c d / log2 e, against the exact exponential of the float32 x: below 0.95 + 0.25 |x| ulp fused,
 *   below 1.1 + 1.3 |x| ulp in plain operations; the part with |x| is the rounding of c (and plain, of c d). A weight
 *   exp(x) is that much smaller than the largest, so that the error beside a row's sum never exceeds 1.2 ulp of 1.
 *   Below n = -126, for d = -inf among others, the result is 0, so that no weight is subnormal: beside the largest term
 *   of a softmax, which is 1, less than 2^-125 is nothing. d = 0 gives 1 exactly, no result is above 1, NaN gives NaN.
 *
 * 2^(c d - shift) of AVX-512 with BF16, to be rounded to bfloat16
 *     x = c d - shift, rounded once; r = x - floor(x), 0 <= r < 1 or, for tiny negative x, 1
 *     2^x = 2^floor(x) * (1 + r q(r)), q of degree 4: relative approximation error 8.3e-8
 *   Two instructions find r and put in the exponent. Error below 3 + 0.6 |x| ulp: what is summed up for l is off by less
 *   than 2^-22 of it, which bfloat16, with 2^-9, does not show. c d = -inf gives 0, NaN gives NaN, weights below 2^-126 are
 *   subnormal until they are rounded, when they become 0. c d = 0 gives 1 exactly.
 *
 * exp(x), x <= 0 (in tanh)
 *     n = x / ln 2, rounded to the nearest integer by adding FA_EXP_ROUND
 *     r = x - n ln 2, |r| <= ln(2) / 2; ln 2 = hi + lo, where n * hi is exact even without fused multiply-add
 *     exp(x) = 2^n * (1 + r + r^2 q(r)), q of degree 4: relative approximation error 4.4e-9
 *   Error, measured over every float32 of [-87, 0]: below 0.91 ulp fused, below 1.00 ulp in plain operations.
 *   x < -87, -inf among them, gives 0, so that no result is subnormal: beside the largest term of a softmax,
 *   which is 1, less than 2^-125 is nothing. x = 0 gives 1 exactly, and no result is above 1. NaN gives NaN.
 *   Up to x = 88 the error bound holds as well; beyond, the result means nothing (+inf gives NaN).
 *
 * tanh(x)
 *     |x| < 0.625: x + x^3 t(x^2), t of degree 4: relative approximation error 4.6e-9
 *     otherwise:   1 - 2 e / (1 + e), e = exp(-2 |x|), with the sign of x
 *   Error, measured over every float32 of [2^-123, 512]: below 1.44 ulp fused, below 1.47 ulp in plain
 *   operations; relative below 1.6e-7. Exactly +-1 from |x| = 9.02 on, and never beyond. NaN gives NaN, -0
 *   gives 0.
 *   softcap * tanh(s / softcap) adds two roundings: relative error below 2.8e-7 wherever s / softcap and the
 *   result are normal numbers.
 */
#ifndef FA_CPU_KERNELS_EXP_H
#define FA_CPU_KERNELS_EXP_H

/* 1.5 * 2^23 + 127: the sum x * log2(e) + FA_EXP_ROUND has an ulp of 1, so that it is rounded to an integer,
 * and n + 127, the exponent field of 2^n, stands in its lowest bits. */
#define FA_EXP_ROUND 0x1.8000fep+23f
#define FA_EXP_LOG2E 0x1.715476p+0f
#define FA_EXP_LN2_HI 0x1.62e4p-1f /* 16 bits: times |n| < 256 it is exact */
#define FA_EXP_LN2_LO 0x1.7f7d1cp-20f
#define FA_EXP_FLUSH (-87.0f)
/* Sums from here on have an exponent field of at least 1 in their lowest bits. */
#define FA_EXP_LEAST 0x1.800002p+23f
#define FA_EXP_C2 0x1p-1f
#define FA_EXP_C3 0x1.555466p-3f
#define FA_EXP_C4 0x1.5552fep-5f
#define FA_EXP_C5 0x1.1257d2p-7f
#define FA_EXP_C6 0x1.6ff258p-10f

#define FA_EXP2_C1 0x1.62e432p-1f
#define FA_EXP2_C2 0x1.ebfbe6p-3f
#define FA_EXP2_C3 0x1.c6ada8p-5f
#define FA_EXP2_C4 0x1.3b2176p-7f
#define FA_EXP2_C5 0x1.5fc206p-10f
#define FA_EXP2_C6 0x1.4c2054p-13f

#define FA_WEIGHT_C1 0x1.62e4bap-1f
#define FA_WEIGHT_C2 0x1.ebdb68p-3f
#define FA_WEIGHT_C3 0x1.c91c38p-5f
#define FA_WEIGHT_C4 0x1.277b22p-7f
#define FA_WEIGHT_C5 0x1.e96cf0p-10f

#define FA_TANH_SMALL 0.625f
#define FA_TANH_C3 (-0x1.555532p-2f)
#define FA_TANH_C5 0x1.1106f6p-3f
#define FA_TANH_C7 (-0x1.b835a4p-5f)
#define FA_TANH_C9 0x1.51f8cep-6f
#define FA_TANH_C11 (-0x1.750ce4p-8f)

#endif
