/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From scores to their gradients, on transposed accumulator fragments: S^T = K Q^T and dP^T = V dO^T, as mma.sync and wgmma give them. Of a strip
 * of 16 keys a thread has two, p and p + 8, and of each n8 tile two queries, 2q and 2q + 1: element [4 n + v] is key p + 8 (v / 2) and query
 * 8 n + 2 q + v % 2.
 *
 * S^T becomes P^T = exp2(s scale_log2 - lse_log2), and dP^T becomes dS^T = P^T * (dP^T - D), with softcap times its derivative. Where P is
 * masked both are exactly 0, whatever dP is.
 */
#ifndef FA_KERNELS_SCORE_BACKWARD_H
#define FA_KERNELS_SCORE_BACKWARD_H

#include "backward_tiles.h"
#include "score.h"

/*
 * Without a mask, in two steps, of which the first needs no dP^T. lse, delta: shared memory addresses of the first query's
 * lse_log2 and D (backward_params.h). Two strips of count elements each, a constant, with the same queries.
 */
DEVICE void scores_to_weights(float *s, int count, uint32_t lse, float scale_log2) {
    const uint32_t pair = lane_index() % 4 * 8;
    UNROLL
    for (int n = 0; n < count / 4; n++) {
        const f32x2 l = shared_load_f32x2(lse + pair + 32 * (uint32_t)n);
        UNROLL
        for (int i = 0; i < 2; i++) {
            float *x = s + i * count + 4 * n;
            UNROLL
            for (int v = 0; v < 4; v++) x[v] = exp2_approx(fmaf(x[v], scale_log2, v % 2 ? -l.y : -l.x));
        }
    }
}

DEVICE void weights_to_gradients(const float *p, float *dp, int count, uint32_t delta) {
    const uint32_t pair = lane_index() % 4 * 8;
    UNROLL
    for (int n = 0; n < count / 4; n++) {
        const f32x2 d = shared_load_f32x2(delta + pair + 32 * (uint32_t)n);
        UNROLL
        for (int i = 0; i < 2; i++) {
            const int at = i * count + 4 * n;
            UNROLL
            for (int v = 0; v < 4; v++) dp[at + v] = p[at + v] * (dp[at + v] - (v % 2 ? d.y : d.x));
        }
    }
}

/* Where the scores are: the head of a batch entry, and the thread's first query and key. */
typedef struct score_place {
    int entry, head;
    int query, key;
} score_place;

/* The same with masks, queries that take no part, and in the GENERAL variants changed scores. */
DEVICE void scores_to_gradients_masked(float *s, float *dp, int count, uint32_t lse, uint32_t delta,
                                       const fa_visibility *visibility, score_place at, const fa_forward_params *p) {
    const uint32_t pair = lane_index() % 4 * 8;
#if GENERAL
    const head_scores scores = head_scores_of(p, at.entry, at.head);
    const float scale_log2 = LOG2_E;
#else
    const float scale_log2 = p->softmax_scale * LOG2_E;
#endif
    UNROLL
    for (int n = 0; n < count / 4; n++) {
        const f32x2 l = shared_load_f32x2(lse + pair + 32 * (uint32_t)n),
                    d = shared_load_f32x2(delta + pair + 32 * (uint32_t)n);
        UNROLL
        for (int e = 0; e < 2; e++) {
            const int i = at.query + 8 * n + e;
            const float row_lse = e ? l.y : l.x, row_delta = e ? d.y : d.x;
            const fa_key_range keys = fa_visible_keys(visibility, i);
            UNROLL
            for (int r = 0; r < 2; r++) {
                const int v = 4 * n + 2 * r + e, j = at.key + 8 * r;
                int visible = row_lse != INFINITY && j >= keys.begin && j < keys.end;
                float x = s[v], slope = 1.0f;
#if GENERAL
                float tanh_of;
                x = scale_and_cap(x, p, &tanh_of);
                slope = 1.0f - tanh_of * tanh_of;
                if (visible) x = bias_and_mask(x, p, &scores, visibility, i, j);
                visible = visible && x != -INFINITY;
#endif
                x = exp2_approx(fmaf(x, scale_log2, -row_lse));
                s[v] = visible ? x : 0.0f;
                dp[v] = visible ? x * (dp[v] - row_delta) * slope : 0.0f;
            }
        }
    }
}

#if GENERAL
/* Whether bias and boolean mask let some query of the group that takes part see the key. */
DEVICE int some_query_sees(const fa_backward_params *params, const key_tile *tile, int key) {
    const fa_forward_params *p = &params->forward;
    const device_sequence *s = &tile->sequence;
    device_row_range rows = rows_that_see(&s->visibility, key, key + 1);
    for (int head = tile->head_kv * p->group; head < (tile->head_kv + 1) * p->group; head++) {
        head_scores scores = head_scores_of(p, s->entry, head);
        const float *lse = params->lse_log2 + (int64_t)first_query_tile(params, s, head) * params->block_m;
        scores.slope = 0.0f; /* hides nothing */
        for (int row = rows.begin; row < rows.end; row++)
            if (global_load_f32(lse + row) != INFINITY &&
                bias_and_mask(0.0f, p, &scores, &s->visibility, row, key) != -INFINITY)
                return 1;
    }
    return 0;
}
#endif

#endif
