/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The online softmax on accumulator fragments, shared by all versions: mma.sync and wgmma give a thread two rows (p and
 * p + 8 of its warp's 16) and of each row the columns 8t + 2q, 8t + 2q + 1, so that a row lies in the four lanes of a
 * quad. s[4t + v] is row v / 2.
 *
 * Exponentials are base 2: exp(scale * (s - m)) = exp2(s * scale_log2 - m * scale_log2), one fused multiply-add each,
 * with scale_log2 = scale * log2(e) > 0. The rounding of m * scale_log2 is the same for all keys of a row and cancels
 * in O, as long as its power of two is a float32 number: |m * scale_log2| < 2^28 suffices. With a bias any finite score
 * is an ordinary one, down to the lowest: the GENERAL variants take the difference first, exp2((s - m) * scale_log2),
 * which is one addition more for each score.
 */
#ifndef FA_KERNELS_SOFTMAX_H
#define FA_KERNELS_SOFTMAX_H

#include "instructions/instructions.h"

/* 1: the including kernel has none to spare, so that masks and softmax take a little longer and keep less at hand. */
#ifndef FEW_REGISTERS
#    define FEW_REGISTERS 0
#endif

#define LOG2_E 0x1.715476p+0f /* log2(e) */
#define LN_2 0x1.62e430p-1f   /* ln(2) */

/* Running state of a thread's two rows. sum holds the thread's own columns only, until softmax_finish. */
typedef struct softmax_rows {
    float max[2]; /* raw scores; -inf: no visible key so far */
    float sum[2];
} softmax_rows;

DEVICE void softmax_begin(softmax_rows *rows) {
    rows->max[0] = rows->max[1] = -INFINITY;
    rows->sum[0] = rows->sum[1] = 0.0f;
}

DEVICE float quad_max(float x) {
    x = fmaxf(x, shuffle_xor_f32(x, 1));
    return fmaxf(x, shuffle_xor_f32(x, 2));
}

DEVICE float quad_sum(float x) {
    x += shuffle_xor_f32(x, 1);
    return x + shuffle_xor_f32(x, 2);
}

/*
 * What the weights of a row are computed from; a row of -inf alone uses 0 for its maximum, so that it never computes
 * inf - inf.
 */
DEVICE float weight_shift(float max, float scale_log2) {
    if (max == -INFINITY) return 0.0f;
    return GENERAL ? max : max * scale_log2;
}

DEVICE float weight(float s, float shift, float scale_log2) {
    return exp2_approx(GENERAL ? (s - shift) * scale_log2 : fmaf(s, scale_log2, -shift));
}

/*
 * s becomes exp(scale (s - m')), sum is brought up to date, and what O has to be multiplied with is left in rescale:
 * exactly 1 where the maximum did not move. -inf becomes 0. fmaxf passes over NaN, but its exponential is NaN and stays
 * in sum. count is a constant.
 *
 * slack: the maximum is left as it was unless scores rise by more than 2^slack above it (FlashAttention-4's conditional
 * rescaling). O and sum are relative to the same maximum, so that it cancels whatever it is; weights are up to 2^slack
 * then. 0: always the true one.
 */
DEVICE void softmax_step(float *s, int count, softmax_rows *rows, float scale_log2, float slack, float *rescale) {
    UNROLL
    for (int r = 0; r < 2; r++) {
        float max = rows->max[r];
#if FEW_REGISTERS
        UNROLL
        for (int i = 0; i < count / 4; i++) max = fmaxf(max, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
#else
        float part[4] = {max, max, max, max}; /* four chains: one alone would be waited for */
        UNROLL
        for (int i = 0; i < count / 2; i++) part[i % 4] = fmaxf(part[i % 4], s[4 * (i / 2) + 2 * r + i % 2]);
        max = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
#endif
        max = quad_max(max);
        if (slack > 0.0f && !((max - rows->max[r]) * scale_log2 > slack)) max = rows->max[r];
        float shift = weight_shift(max, scale_log2);
        rescale[r] = max == rows->max[r] ? 1.0f
                     : GENERAL           ? weight(rows->max[r], shift, scale_log2)
                                         : exp2_approx(rows->max[r] * scale_log2 - shift);
        rows->max[r] = max;
        float sum = rows->sum[r] * rescale[r];
        UNROLL
        for (int i = 0; i < count / 4; i++) {
            s[4 * i + 2 * r] = weight(s[4 * i + 2 * r], shift, scale_log2);
            s[4 * i + 2 * r + 1] = weight(s[4 * i + 2 * r + 1], shift, scale_log2);
            sum += s[4 * i + 2 * r] + s[4 * i + 2 * r + 1];
        }
        rows->sum[r] = sum;
    }
}

/* What a finished row comes to. */
typedef struct softmax_result {
    float factor; /* 1 / l: O times this is the output; 0 for a row that saw nothing */
    float lse;    /* natural logarithm */
} softmax_result;

/*
 * max and sink in natural units; sink -inf: none. It takes part as a key without a value: with it the maximum may move
 * once more.
 */
DEVICE softmax_result softmax_finish_row(float max, float sum, float sink) {
    softmax_result result;
    float whole_max = fmaxf(max, sink);
    result.factor = 0.0f;
    result.lse = -INFINITY;
    if (sum == 0.0f && sink == -INFINITY) return result;
    if (sink != -INFINITY) {
        float before = sum == 0.0f ? 0.0f : exp2_approx((max - whole_max) * LOG2_E);
        sum = sum * before + exp2_approx((sink - whole_max) * LOG2_E);
        result.factor = before / sum;
        result.lse = whole_max + logf(sum);
        return result;
    }
    result.factor = 1.0f / sum;
    result.lse = max + logf(sum);
    return result;
}

/* All lanes of the quad get the result. */
DEVICE softmax_result softmax_finish(const softmax_rows *rows, int r, float scale_log2, float sink) {
    float sum = quad_sum(rows->sum[r]);
    return softmax_finish_row(rows->max[r] * (scale_log2 * LN_2), sum, sink); /* scale_log2 > 0: -inf stays -inf */
}

#endif
