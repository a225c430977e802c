/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to scores between Q K^T and the softmax, on accumulator fragments: position masks, and in the GENERAL variants softcap, ALiBi,
 * bias and boolean mask. */
#ifndef FA_KERNELS_SCORE_H
#define FA_KERNELS_SCORE_H

#include "element_type.h"
#include "sequence.h"
#include "softmax.h"

/* -inf where the thread's rows `row` and `row + 8` do not see a key by its position. key: the tile's first. count is a constant. */
DEVICE void mask_positions(float *s, int count, const fa_visibility *visibility, int row, int key) {
    int column = key + (int)(lane_index() % 4) * 2;
    UNROLL
    for (int r = 0; r < 2; r++) {
        fa_key_range keys = fa_visible_keys(visibility, row + 8 * r);
        UNROLL
        for (int i = 0; i < count / 4; i++) {
            UNROLL
            for (int e = 0; e < 2; e++) {
                int j = column + 8 * i + e;
                if (j < keys.begin || j >= keys.end) s[4 * i + 2 * r + e] = -INFINITY;
            }
        }
    }
}

/*
 * tanh with float32 accuracy: tanh.approx keeps only 11 bits, which softcap would show. 1 - 2 / (exp(2x) + 1) cancels near zero, where the
 * odd Taylor polynomial to x^9 takes over: below 0.25 the next term, 1382/155925 x^11, is under 2^-26 of x. From there on the exponential's
 * 2^-22 is the larger error, 2^-20 of the result at most.
 */
DEVICE float tanh_float32(float x) {
    float a = fabsf(x), x2 = x * x;
    float small = x + x * x2 * (-0x1.555556p-2f + x2 * (0x1.111112p-3f + x2 * (-0x1.ba1ba2p-5f + x2 * 0x1.664f48p-6f)));
    float large = 1.0f - 2.0f / (exp2_approx(2.0f * LOG2_E * a) + 1.0f);
    return a < 0.25f ? small : copysignf(large, x);
}

/* Raw q.k becomes the score in natural units: scaled, capped, biased, -inf where the boolean mask hides the key. Only keys that the row sees by
 * position are looked up, so bias and mask need hold no others. */
DEVICE void modify_scores(float *s, int count, const fa_forward_params *p, const device_sequence *sequence, int head,
                          int row, int key) {
    const fa_visibility *visibility = &sequence->visibility;
    int column = key + (int)(lane_index() % 4) * 2;
    float slope = p->alibi_slopes.data ? device_table_float(&p->alibi_slopes, sequence->entry, head) : 0.0f;
    int64_t bias_base = sequence->entry * p->bias.batch_stride + head * p->bias.head_stride;
    int64_t mask_base = sequence->entry * p->mask.batch_stride + head * p->mask.head_stride;
    UNROLL
    for (int r = 0; r < 2; r++) {
        int i = row + 8 * r;
        fa_key_range keys = fa_visible_keys(visibility, i);
        UNROLL
        for (int t = 0; t < count / 4; t++) {
            UNROLL
            for (int e = 0; e < 2; e++) {
                int j = column + 8 * t + e;
                float x = s[4 * t + 2 * r + e] * p->softmax_scale;
                if (p->softcap > 0.0f) x = p->softcap * tanh_float32(x / p->softcap);
                if (j >= keys.begin && j < keys.end) {
                    if (p->bias.data) {
                        float bias = load_element(
                            p->bias.data + bias_base + i * p->bias.row_stride + j * p->bias.key_stride, p->bias_type);
                        x = bias == -INFINITY ? bias : x + bias; /* -inf hides a key of NaN as well */
                    }
                    int distance = i + visibility->key_end - visibility->seqlen_q - j;
                    if (p->alibi_slopes.data) x -= slope * fabsf((float)distance);
                    if (p->mask.data &&
                        global_load_u8(p->mask.data + mask_base + i * p->mask.row_stride + j * p->mask.key_stride) == 0)
                        x = -INFINITY;
                } else {
                    x = -INFINITY;
                }
                s[4 * t + 2 * r + e] = x;
            }
        }
    }
}

#endif
