/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of what is added to scores: bias, ALiBi slopes, and the sink. Pairs are computed once more, in float32 without tensor
 * cores, and every result is summed by one warp or block in a fixed order: the same bits in every run. Compiled once per dtype;
 * whatever the head dim.
 */
#define THREADS (WARPS * 32)

#include "backward_tiles.h"
#include "pairs.h"
#include "score.h"

/* A head of a sequence. */
typedef struct head_rows {
    device_sequence sequence;
    int head;
    int64_t slot; /* of its first query in the workspace */
    head_scores scores;
} head_rows;

DEVICE head_rows head_rows_of(const fa_backward_params *params, const device_sequence *sequence, int head) {
    head_rows h;
    h.sequence = *sequence;
    h.head = head;
    h.slot = (int64_t)first_query_tile(params, sequence, head) * params->block_m;
    h.scores = head_scores_of(&params->forward, sequence->entry, head);
    return h;
}

/* The dot product of two rows, the second of which may be float32; warp. */
DEVICE float dot(const char *x, const char *y, int columns, int y_float32) {
    float sum = 0.0f;
    for (int c = 2 * (int)lane_index(); c < columns; c += 64) {
        f32x2 a = load_pair(x, c, columns, 0), b = load_pair(y, c, columns, y_float32);
        sum = fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
    }
    return warp_sum(sum);
}

/* dS of a pair that sees each other by position, or 0 where it is hidden or the query takes no part; warp. */
DEVICE float pair_gradient(const fa_backward_params *params, const head_rows *h, int row, int key) {
    const fa_forward_params *p = &params->forward;
    const device_sequence *s = &h->sequence;
    const float lse_log2 = global_load_f32(params->lse_log2 + h->slot + row);
    if (lse_log2 == INFINITY) return 0.0f;
    const char *q = row_address(&p->q, s, s->q_begin + row, h->head);
    const char *dout = row_address(&params->dout, s, s->q_begin + row, h->head);
    const char *k = row_address(&p->k, s, s->k_begin + key, h->head / p->group);
    const char *v = row_address(&p->v, s, s->k_begin + key, h->head / p->group);
    float tanh_of, x = scale_and_cap(dot(q, k, p->head_dim, 0), p, &tanh_of);
    x = bias_and_mask(x, p, &h->scores, &s->visibility, row, key);
    if (x == -INFINITY) return 0.0f;
    float weight = exp2_approx(fmaf(x, LOG2_E, -lse_log2));
    return weight * (dot(v, dout, p->head_dim_v, 0) - global_load_f32(params->delta + h->slot + row));
}

/* Sums an element of dbias over the dimensions that it is broadcast in. */
DEVICE float bias_gradient(const fa_score_gradient_params *g, const int64_t index[4]) {
    const fa_forward_params *p = &g->backward.forward;
    const int entry_begin = g->shape[0] == 1 ? 0 : (int)index[0],
              entry_end = g->shape[0] == 1 ? p->batch : entry_begin + 1;
    const int head_begin = g->shape[1] == 1 ? 0 : (int)index[1],
              head_end = g->shape[1] == 1 ? p->heads : head_begin + 1;
    float sum = 0.0f;
    for (int entry = entry_begin; entry < entry_end; entry++) {
        const device_sequence s = sequence_load(p, entry);
        const int row_begin = g->shape[2] == 1 ? 0 : (int)index[2];
        const int row_end =
            g->shape[2] == 1 || row_begin >= s.visibility.seqlen_q ? s.visibility.seqlen_q : row_begin + 1;
        for (int head = head_begin; head < head_end; head++) {
            const head_rows h = head_rows_of(&g->backward, &s, head);
            for (int row = row_begin; row < row_end; row++) {
                fa_key_range keys = fa_visible_keys(&s.visibility, row);
                if (g->shape[3] != 1) {
                    if (keys.begin < (int)index[3]) keys.begin = (int)index[3];
                    if (keys.end > (int)index[3] + 1) keys.end = (int)index[3] + 1;
                }
                for (int key = keys.begin; key < keys.end; key++) sum += pair_gradient(&g->backward, &h, row, key);
            }
        }
    }
    return sum;
}

DEVICE void store_result(char *address, float x, int type) {
    if (type == DEVICE_FLOAT32)
        global_store_f32(address, x);
    else
        global_store_u16(address, low_half(type == DEVICE_FLOAT16 ? pack_f16x2(x, 0.0f) : pack_bf16x2(x, 0.0f)));
}

/* dbias, a warp per element. */
DEVICE void bias_element(const fa_score_gradient_params *g) {
    int64_t number = (int64_t)block_index_x() * WARPS + warp_index(), rest = number, index[4];
    UNROLL
    for (int i = 3; i >= 0; i--) {
        index[i] = rest % g->shape[i];
        rest /= g->shape[i];
    }
    if (rest > 0) return; /* behind the last */
    float sum = bias_gradient(g, index);
    if (lane_index() == 0)
        store_result(g->result + index[0] * g->stride[0] + index[1] * g->stride[1] + index[2] * g->stride[2] +
                         index[3] * g->stride[3],
                     sum, g->result_type);
}

/* What each query of a tile adds to the gradient of its head's slope. */
DEVICE void slope_rows(const fa_backward_params *params) {
    const query_tile t = query_tile_of(params, block_index_x());
    if (t.row >= t.sequence.visibility.seqlen_q) return; /* rows behind the last sequence have no slopes either */
    const head_rows h = head_rows_of(params, &t.sequence, t.head);
    for (int r = (int)warp_index(); r < params->block_m; r += WARPS) {
        const int row = t.row + r;
        float sum = 0.0f;
        fa_key_range keys = fa_visible_keys(&t.sequence.visibility, row);
        for (int key = keys.begin; key < keys.end; key++)
            sum -= pair_gradient(params, &h, row, key) * alibi_distance(&t.sequence.visibility, row, key);
        if (lane_index() == 0) global_store_f32(params->row_sum + (int64_t)block_index_x() * params->block_m + r, sum);
    }
}

/* A block per result: the queries of a head, in one sequence or all. */
DEVICE void sum_rows(const fa_score_gradient_params *g) {
    const fa_forward_params *p = &g->backward.forward;
    const int head = (int)(block_index_x() % (uint32_t)p->heads), entry = (int)(block_index_x() / (uint32_t)p->heads);
    const int begin = g->shape[0] == 1 ? 0 : entry, end = g->shape[0] == 1 ? p->batch : entry + 1;
    const uint32_t parts = shared_base();
    float sum = 0.0f;
    for (int n = begin; n < end; n++) {
        const device_sequence s = sequence_load(p, n);
        const int64_t slot = (int64_t)first_query_tile(&g->backward, &s, head) * g->backward.block_m;
        for (int row = (int)thread_index(); row < s.visibility.seqlen_q; row += THREADS)
            sum += global_load_f32(g->backward.row_sum + slot + row);
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) shared_store_f32(parts + 4 * warp_index(), sum);
    block_sync();
    if (thread_index() != 0) return;
    for (uint32_t i = 1; i < WARPS; i++) sum += shared_load_f32(parts + 4 * i);
    store_result(g->result + entry * g->stride[0] + head * g->stride[1], sum, g->result_type);
}

KERNEL(KERNEL_NAME, THREADS, 1, fa_score_gradient_params, g) {
    if (g->what == FA_SCORE_BIAS)
        bias_element(g);
    else if (g->what == FA_SCORE_SLOPE_ROWS)
        slope_rows(&g->backward);
    else
        sum_rows(g);
}
