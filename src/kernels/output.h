/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From accumulators to global memory (v2, the standard kernel; v3 its float32 output): a tile of BLOCK_M rows that
 * begins at query `first_row`. tile_row is the first row in it of those that a warp holds, by output_layout.h, or
 * stores.
 */
#ifndef FA_KERNELS_OUTPUT_H
#define FA_KERNELS_OUTPUT_H

#include "fragment.h"
#include "output_layout.h"
#include "sequence.h"

/*
 * The accumulators x of one strip of 16 rows and 2 * count columns, rounded, into rows row .. row + 15 and columns
 * column .. of a tile in shared memory.
 */
DEVICE void round_into_tile(uint32_t tile, int row, int column, const float *x, int count) {
    int lane = (int)lane_index();
    UNROLL
    for (int n = 0; n < count / 4; n++) {
        UNROLL
        for (int r = 0; r < 2; r++)
            shared_store_u32(tile_address(tile, BLOCK_M, row + 8 * r + lane / 4, column / 8 + n) +
                                 (uint32_t)(lane % 4 * 4),
                             pack_16bit(x[4 * n + 2 * r], x[4 * n + 2 * r + 1]));
    }
}

/* The warp's part of O into the tile. */
DEVICE void round_output_into_tile(float o[OUT_STRIPS][OUT_COLUMNS / 2], uint32_t tile, int tile_row) {
    UNROLL
    for (int i = 0; i < OUT_STRIPS; i++) {
        UNROLL
        for (int n = 0; n < OUT_COLUMNS / 8; n += 2)
            round_into_tile(tile, tile_row + 16 * i, out_column(n), &o[i][4 * n], 8);
    }
}

/* STRIPS strips of whole rows from the tile, 16 bytes wide and whole lines. */
DEVICE void store_tile_rows(uint32_t tile, int tile_row, const device_sequence *sequence, int first_row, int head,
                            const fa_forward_params *p) {
    int lane = (int)lane_index();
    const int lanes = TILE_PAGE / 8;
    UNROLL
    for (int page = 0; page < HEAD_DIM / TILE_PAGE; page++) {
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

/* O by way of shared memory, for warps that hold whole rows. Nobody else may still use the warp's rows of `tile`. */
DEVICE void store_rows_aligned(float o[OUT_STRIPS][OUT_COLUMNS / 2], uint32_t tile, int tile_row,
                               const device_sequence *sequence, int first_row, int head, const fa_forward_params *p) {
    warp_sync(); /* the last ldmatrix from there */
    round_output_into_tile(o, tile, tile_row);
    warp_sync();
    store_tile_rows(tile, tile_row, sequence, first_row, head, p);
}

/* One element of a row of out, in whichever type it has. */
DEVICE void store_element(char *out, int column, float x, const fa_forward_params *p) {
    if (p->out_float32)
        global_store_f32(out + 4 * column, x);
    else
        global_store_u16(out + 2 * column, low_half(pack_16bit(x, 0.0f)));
}

/* O from registers, element by element: float32 output, and rows that are not aligned. */
DEVICE void store_rows_elements(float o[OUT_STRIPS][OUT_COLUMNS / 2], int tile_row, const device_sequence *sequence,
                                int first_row, int head, const fa_forward_params *p) {
    int lane = (int)lane_index();
    UNROLL
    for (int i = 0; i < OUT_STRIPS; i++) {
        UNROLL
        for (int r = 0; r < 2; r++) {
            int row = first_row + tile_row + 16 * i + 8 * r + lane / 4;
            if (row >= sequence->q_rows) continue;
            char *out = row_address(&p->out, sequence, sequence->q_begin + row, head);
            UNROLL
            for (int n = 0; n < OUT_COLUMNS / 8; n++) {
                UNROLL
                for (int e = 0; e < 2; e++) {
                    int column = out_column(n) + lane % 4 * 2 + e;
                    if (column < p->head_dim_v) store_element(out, column, o[i][4 * n + 2 * r + e], p);
                }
            }
        }
    }
}

#endif
