/* SPDX-License-Identifier: Apache-2.0 */
/*
 * After the main backward kernel: dQ = softmax_scale * dq_sum, rounded to dq's dtype; exactly 0 in rows that take no
 * part. One block per query tile. Compiled once per dtype; whatever the head dim.
 */
#define THREADS (WARPS * 32)

#include "backward_tiles.h"
#include "pairs.h"

/*
 * The 8 columns of a row that lie in one piece of dq_sum. By register its even columns are four floats in a row there,
 * and so are its odd ones; by lane its columns are pairs. Eight neighbouring lanes of the warp have the rows of a
 * piece, so that they read whole lines.
 */
DEVICE void load_columns(float x[8], const float *sum, int row, int column, const fa_backward_params *params) {
    const int block_m = params->block_m, part = params->dq_part_columns;
    if (has_sm90()) {
        UNROLL
        for (int c = 0; c < 8; c += 2) {
            const f32x2 pair = global_load_f32x2(sum + dq_sum_index(row, column + c, block_m, part));
            x[c] = pair.x;
            x[c + 1] = pair.y;
        }
        return;
    }
    const f32x4 even = global_load_f32x4(sum + dq_sum_index(row, column, block_m, part));
    const f32x4 odd = global_load_f32x4(sum + dq_sum_index(row, column + 1, block_m, part));
    const float evens[4] = {even.x, even.y, even.z, even.w}, odds[4] = {odd.x, odd.y, odd.z, odd.w};
    UNROLL
    for (int i = 0; i < 4; i++) {
        x[2 * i] = evens[i];
        x[2 * i + 1] = odds[i];
    }
}

/* Whether the row of the tile takes part. */
DEVICE int takes_part(const fa_backward_params *params, int row) {
    return global_load_f32(params->lse_log2 + (int64_t)block_index_x() * params->block_m + row) != INFINITY;
}

/* Any layout and dtype, 8 columns per thread. */
DEVICE void finish_columns(const fa_backward_params *params, const query_tile *t, const float *sum) {
    const fa_forward_params *p = &params->forward;
    const int chunks = params->tile_columns / 8;
    const float scale = p->softmax_scale;
    for (int i = (int)thread_index(); i < params->block_m * chunks; i += THREADS) {
        const int piece = i / 8, r = piece / chunks * 8 + i % 8, column = piece % chunks * 8, row = t->row + r;
        if (row >= t->sequence.q_rows || column >= p->head_dim) continue;
        const int part = takes_part(params, r);
        float x[8];
        load_columns(x, sum, r, column, params);
        UNROLL
        for (int c = 0; c < 8; c++) x[c] = part ? scale * x[c] : 0.0f;
        char *dq = row_address(&params->dq, &t->sequence, t->sequence.q_begin + row, t->head);
        if (params->dq_aligned) {
            const u32x4 packed = {pack_16bit(x[0], x[1]), pack_16bit(x[2], x[3]), pack_16bit(x[4], x[5]),
                                  pack_16bit(x[6], x[7])};
            global_store_u32x4(dq + 2 * column, packed);
            continue;
        }
        UNROLL
        for (int c = 0; c < 8; c += 2) store_pair(dq, column + c, p->head_dim, params->dq_float32, x[c], x[c + 1]);
    }
}

/* x[j] of lane i of each quad and x[i] of lane j change places. */
DEVICE void transpose_in_quads(uint32_t x[4]) {
    const uint32_t lane = lane_index();
    UNROLL
    for (uint32_t bit = 1; bit < 4; bit *= 2) {
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            if (j & bit) continue;
            const uint32_t got = shuffle_xor_u32(lane & bit ? x[j] : x[j + bit], bit);
            x[j] = lane & bit ? got : x[j];
            x[j + bit] = lane & bit ? x[j + bit] : got;
        }
    }
}

/*
 * Sums by lane and rows of whole 16-byte pieces. A warp takes 16 rows and 32 columns, four pieces of dq_sum, of which a
 * lane reads a pair of columns of two rows; the lanes of a quad exchange them, so that each writes 8 columns in a row.
 */
DEVICE void finish_pieces(const fa_backward_params *params, const query_tile *t, const float *sum) {
    const fa_forward_params *p = &params->forward;
    const int lane = (int)lane_index(), groups = params->tile_columns / 32;
    for (int i = (int)warp_index(); i < params->block_m / 16 * groups; i += WARPS) {
        const int strip = i / groups * 16, first = i % groups * 32, column = first + lane % 4 * 8;
        const float *pieces = sum + dq_sum_index(strip, first, params->block_m, params->dq_part_columns);
        uint32_t rows[2][4];
        int part[2];
        UNROLL
        for (int r = 0; r < 2; r++) part[r] = takes_part(params, strip + lane / 4 + 8 * r);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const f32x4 x = global_load_f32x4(pieces + j * 128 + lane * 4);
            rows[0][j] = part[0] ? pack_16bit(p->softmax_scale * x.x, p->softmax_scale * x.y) : 0;
            rows[1][j] = part[1] ? pack_16bit(p->softmax_scale * x.z, p->softmax_scale * x.w) : 0;
        }
        UNROLL
        for (int r = 0; r < 2; r++) {
            const int row = t->row + strip + lane / 4 + 8 * r;
            transpose_in_quads(rows[r]);
            if (row >= t->sequence.q_rows || column >= p->head_dim) continue;
            const u32x4 packed = {rows[r][0], rows[r][1], rows[r][2], rows[r][3]};
            global_store_u32x4(row_address(&params->dq, &t->sequence, t->sequence.q_begin + row, t->head) + 2 * column,
                               packed);
        }
    }
}

KERNEL(KERNEL_NAME, THREADS, 1, fa_backward_params, params) {
    const query_tile t = query_tile_of(params, block_index_x());
    const float *sum = params->dq_sum + (int64_t)block_index_x() * params->block_m * params->tile_columns;
    if (has_sm90() && params->dq_aligned)
        finish_pieces(params, &t, sum);
    else
        finish_columns(params, &t, sum);
}
