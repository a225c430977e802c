/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After the main backward kernel: dQ = softmax_scale * dq_sum, rounded to dq's dtype; exactly 0 in rows that take no part. One block
 * per query tile. Compiled once per dtype; whatever the head dim.
 */
#define THREADS (WARPS * 32)

#include "backward_tiles.h"
#include "pairs.h"

/*
 * The 8 columns of a row that lie in one piece of dq_sum. By register its even columns are four floats in a row there, and so
 * are its odd ones; by lane its columns are pairs. Eight neighbouring lanes of the warp have the rows of a piece, so that they
 * read whole lines.
 */
DEVICE void load_columns(float x[8], const float *sum, int row, int column, const fa_backward_params *params) {
    const int columns = params->tile_columns;
    if (params->dq_by_lane) {
        UNROLL
        for (int c = 0; c < 8; c += 2) {
            f32x2 pair = global_load_f32x2(sum + dq_sum_index(row, column + c, columns, 1));
            x[c] = pair.x;
            x[c + 1] = pair.y;
        }
        return;
    }
    f32x4 even = global_load_f32x4(sum + dq_sum_index(row, column, columns, 0));
    f32x4 odd = global_load_f32x4(sum + dq_sum_index(row, column + 1, columns, 0));
    x[0] = even.x;
    x[1] = odd.x;
    x[2] = even.y;
    x[3] = odd.y;
    x[4] = even.z;
    x[5] = odd.z;
    x[6] = even.w;
    x[7] = odd.w;
}

KERNEL(KERNEL_NAME, THREADS, 1, fa_backward_params, params) {
    const fa_forward_params *p = &params->forward;
    const query_tile t = query_tile_of(params, block_index_x());
    const int chunks = params->tile_columns / 8;
    const float *sum = params->dq_sum + (int64_t)block_index_x() * params->block_m * params->tile_columns;
    for (int i = (int)thread_index(); i < params->block_m * chunks; i += THREADS) {
        const int piece = i / 8, r = piece / chunks * 8 + i % 8, column = piece % chunks * 8, row = t.row + r;
        if (row >= t.sequence.q_rows || column >= p->head_dim) continue;
        const int64_t slot = (int64_t)block_index_x() * params->block_m + r;
        const int part = global_load_f32(params->lse_log2 + slot) != INFINITY;
        const float scale = p->softmax_scale;
        float x[8];
        load_columns(x, sum, r, column, params);
        char *dq = row_address(&params->dq, &t.sequence, t.sequence.q_begin + row, t.head);
        UNROLL
        for (int c = 0; c < 8; c += 2)
            store_pair(dq, column + c, p->head_dim, params->dq_float32, part ? scale * x[c] : 0.0f,
                       part ? scale * x[c + 1] : 0.0f);
    }
}
