/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From accumulators to global memory, by warps that own whole rows (v2, the standard kernel): STRIPS strips of 16
 * rows of a tile of BLOCK_M rows that begins at query `first_row`; tile_row is the warp's first row in it.
 */
#ifndef FA_KERNELS_OUTPUT_H
#define FA_KERNELS_OUTPUT_H

#include "fragment.h"
#include "sequence.h"

/* Columns of O in registers. */
#ifndef OUT_COLUMNS
#    define OUT_COLUMNS HEAD_DIM
#endif

/*
 * The accumulators x of one strip of 16 rows and 2 * count columns, rounded, into rows row .. row + 15 of a tile in
 * shared memory.
 */
DEVICE void round_into_tile(uint32_t tile, int row, const float *x, int count) {
    int lane = (int)lane_index();
    UNROLL
    for (int n = 0; n < count / 4; n++) {
        UNROLL
        for (int r = 0; r < 2; r++)
            shared_store_u32(tile_address(tile, BLOCK_M, row + 8 * r + lane / 4, n) + (uint32_t)(lane % 4 * 4),
                             pack_16bit(x[4 * n + 2 * r], x[4 * n + 2 * r + 1]));
    }
}

/*
 * O by way of shared memory, so that stores are 16 bytes wide and whole lines. Nobody else may still use the warp's
 * rows of `tile`.
 */
DEVICE void store_rows_aligned(float o[STRIPS][OUT_COLUMNS / 2], uint32_t tile, int tile_row,
                               const device_sequence *sequence, int first_row, int head, const fa_forward_params *p) {
    int lane = (int)lane_index();
    warp_sync(); /* the last ldmatrix from there */
    UNROLL
    for (int i = 0; i < STRIPS; i++) round_into_tile(tile, tile_row + 16 * i, o[i], OUT_COLUMNS / 2);
    warp_sync();
    const int lanes = TILE_PAGE / 8;
    UNROLL
    for (int page = 0; page < OUT_COLUMNS / TILE_PAGE; page++) {
        int chunk = page * lanes + lane % lanes;
        UNROLL
        for (int i = 0; i < 16 * STRIPS; i += 32 / lanes) {
            int r = tile_row + i + lane / lanes;
            if (first_row + r < sequence->q_rows && chunk * 8 < p->head_dim_v)
                global_store_u32x4(row_address(&p->out, sequence, sequence->q_begin + first_row + r, head) + chunk * 16,
                                   shared_load_u32x4(tile_address(tile, BLOCK_M, r, chunk)));
        }
    }
}

/* One element of a row of out, in whichever type it has. */
DEVICE void store_element(char *out, int column, float x, const fa_forward_params *p) {
    if (p->out_float32)
        global_store_f32(out + 4 * column, x);
    else
        global_store_u16(out + 2 * column, low_half(pack_16bit(x, 0.0f)));
}

/* O from registers, element by element: float32 output, and rows that are not aligned. */
DEVICE void store_rows_elements(float o[STRIPS][OUT_COLUMNS / 2], int tile_row, const device_sequence *sequence,
                                int first_row, int head, const fa_forward_params *p) {
    int lane = (int)lane_index();
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        UNROLL
        for (int r = 0; r < 2; r++) {
            int row = first_row + tile_row + 16 * i + 8 * r + lane / 4;
            if (row >= sequence->q_rows) continue;
            char *out = row_address(&p->out, sequence, sequence->q_begin + row, head);
            UNROLL
            for (int n = 0; n < OUT_COLUMNS / 8; n++) {
                UNROLL
                for (int e = 0; e < 2; e++) {
                    int column = 8 * n + lane % 4 * 2 + e;
                    if (column < p->head_dim_v) store_element(out, column, o[i][4 * n + 2 * r + e], p);
                }
            }
        }
    }
}

#endif
