/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to scores between Q K^T and the softmax, on accumulator fragments: position masks, and in the GENERAL
 * variants softcap, ALiBi, bias and boolean mask.
 */
#ifndef FA_KERNELS_SCORE_H
#define FA_KERNELS_SCORE_H

#include "element_type.h"
#include "sequence.h"
#include "softmax.h"

/*
 * -inf where the thread's rows `row` and `row + 8` do not see a key by its position. key: the tile's first. count is a
 * constant. Compared with offsets from the thread's first column, which are constants, each end of what a row sees
 * costs one comparison per score, and hardly a tile has both ends; kernels with FEW_REGISTERS compare positions.
 */
DEVICE void mask_positions(float *s, int count, const fa_visibility *visibility, int row, int key) {
    const int column = key + (int)(lane_index() % 4) * 2, first = FEW_REGISTERS ? column : 0;
    UNROLL
    for (int r = 0; r < 2; r++) {
        const fa_key_range keys = fa_visible_keys(visibility, row + 8 * r);
        const int begin = keys.begin - column + first, end = keys.end - column + first;
        UNROLL
        for (int i = 0; i < count / 2; i++) {
            const int offset = first + i / 2 * 8 + i % 2;
            if (offset >= end || (FEW_REGISTERS && offset < begin)) s[4 * (i / 2) + 2 * r + i % 2] = -INFINITY;
        }
        if (!FEW_REGISTERS && begin > 0) {
            UNROLL
            for (int i = 0; i < count / 2; i++) {
                const int offset = i / 2 * 8 + i % 2;
                if (offset < begin) s[4 * (i / 2) + 2 * r + i % 2] = -INFINITY;
            }
        }
    }
}

/*
 * tanh with float32 accuracy: tanh.approx keeps only 11 bits, which softcap would show. 1 - 2 / (exp(2x) + 1) cancels
 * near zero, where the odd Taylor polynomial to x^9 takes over: below 0.25 the next term, 1382/155925 x^11, is under
 * 2^-26 of x. From there on the exponential's 2^-22 is the larger error, 2^-20 of the result at most.
 */
DEVICE float tanh_float32(float x) {
    float a = fabsf(x), x2 = x * x;
    float small = x + x * x2 * (-0x1.555556p-2f + x2 * (0x1.111112p-3f + x2 * (-0x1.ba1ba2p-5f + x2 * 0x1.664f48p-6f)));
    float large = 1.0f - 2.0f / (exp2_approx(2.0f * LOG2_E * a) + 1.0f);
    return a < 0.25f ? small : copysignf(large, x);
}

/* What bias, boolean mask and slope say about the queries and keys of one head: addresses of its first pair. */
typedef struct head_scores {
    const char *bias, *mask; /* NULL: none */
    float slope;
} head_scores;

DEVICE head_scores head_scores_of(const fa_forward_params *p, int entry, int head) {
    head_scores h;
    h.bias = p->bias.data ? p->bias.data + entry * p->bias.batch_stride + head * p->bias.head_stride : p->bias.data;
    h.mask = p->mask.data ? p->mask.data + entry * p->mask.batch_stride + head * p->mask.head_stride : p->mask.data;
    h.slope = p->alibi_slopes.data ? device_table_float(&p->alibi_slopes, entry, head) : 0.0f;
    return h;
}

/* Scaled, and capped: then *tanh_of is the tanh, else 0. */
DEVICE float scale_and_cap(float product, const fa_forward_params *p, float *tanh_of) {
    float x = product * p->softmax_scale;
    *tanh_of = 0.0f;
    if (p->softcap > 0.0f) {
        *tanh_of = tanh_float32(x / p->softcap);
        x = p->softcap * *tanh_of;
    }
    return x;
}

/* The distance that ALiBi's slope multiplies. */
DEVICE float alibi_distance(const fa_visibility *visibility, int row, int key) {
    return fabsf((float)(row + visibility->key_end - visibility->seqlen_q - key));
}

/*
 * The score, from a capped one: biased, -inf where bias or boolean mask hides the key. Only for keys that the row sees
 * by position, so that bias and mask need hold no others.
 */
DEVICE float bias_and_mask(float x, const fa_forward_params *p, const head_scores *h, const fa_visibility *visibility,
                           int row, int key) {
    if (h->bias) {
        float bias = load_element(h->bias + row * p->bias.row_stride + key * p->bias.key_stride, p->bias_type);
        x = bias == -INFINITY ? bias : x + bias; /* -inf hides a key of NaN as well */
    }
    if (p->alibi_slopes.data) x -= h->slope * alibi_distance(visibility, row, key);
    if (h->mask && global_load_u8(h->mask + row * p->mask.row_stride + key * p->mask.key_stride) == 0) x = -INFINITY;
    return x;
}

/* Raw q.k becomes the score in natural units: scaled, capped, biased, -inf where a key is hidden. */
DEVICE void modify_scores(float *s, int count, const fa_forward_params *p, const device_sequence *sequence, int head,
                          int row, int key) {
    const fa_visibility *visibility = &sequence->visibility;
    int column = key + (int)(lane_index() % 4) * 2;
    head_scores scores = head_scores_of(p, sequence->entry, head);
    UNROLL
    for (int r = 0; r < 2; r++) {
        int i = row + 8 * r;
        fa_key_range keys = fa_visible_keys(visibility, i);
        UNROLL
        for (int t = 0; t < count / 4; t++) {
            UNROLL
            for (int e = 0; e < 2; e++) {
                int j = column + 8 * t + e;
                float tanh_of, x = scale_and_cap(s[4 * t + 2 * r + e], p, &tanh_of);
                s[4 * t + 2 * r + e] =
                    j >= keys.begin && j < keys.end ? bias_and_mask(x, p, &scores, visibility, i, j) : -INFINITY;
            }
        }
    }
}

#endif
