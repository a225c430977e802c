/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of 16-bit elements in shared memory and the mma.sync fragments that come from them.
 *
 * A tile of `rows` rows and HEAD_DIM columns lies in pages of TILE_PAGE columns, [HEAD_DIM / TILE_PAGE][rows][TILE_PAGE], swizzled as
 * TMA would: then the eight rows of an 8x8 matrix lie in eight different bank groups, for ldmatrix as for the 16-byte copies.
 * 96 is no multiple of 64, so its pages are 32 columns wide and use the 64-byte swizzle.
 */
#ifndef FA_KERNELS_FRAGMENT_H
#define FA_KERNELS_FRAGMENT_H

#include "instructions/instructions.h"

#ifndef TILE_PAGE
#    define TILE_PAGE (HEAD_DIM % 64 == 0 ? 64 : 32)
#endif
#define TILE_PAGE_BYTES (TILE_PAGE * 2)

/* Address of the 16-byte chunk (8 columns) of a row; rows is a constant. */
DEVICE uint32_t tile_address(uint32_t tile, int rows, int row, int chunk) {
    int page = chunk / (TILE_PAGE / 8), in_page = chunk % (TILE_PAGE / 8);
    uint32_t address = tile + (uint32_t)((page * rows + row) * TILE_PAGE_BYTES + in_page * 16);
    return TILE_PAGE == 64 ? swizzle_128b(address) : swizzle_64b(address);
}

/*
 * ldmatrix addresses of a lane. A tile starts at a multiple of 1024 bytes, so the swizzle depends on row % 8 alone: rows further by a multiple of
 * 8 are a constant further away, and a step of 16 columns is an XOR with a constant, which costs no register to keep.
 */

/* A operand (rows x depth): rows [row, row + 16), first step of depth. */
DEVICE uint32_t a_fragment_address(uint32_t tile, int rows, int row) {
    int lane = (int)lane_index();
    return tile_address(tile, rows, row + lane % 16, lane / 16);
}

/* B operand from K (stored [key][depth]): keys [0, 16) as two n8 tiles (b[0..1], b[2..3]), first step of depth. */
DEVICE uint32_t key_fragment_address(uint32_t tile, int rows) {
    int lane = (int)lane_index();
    return tile_address(tile, rows, lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

/* B operand from V (stored [key][column], by ldmatrix.trans): depth = keys [0, 16), columns [0, 16) as two n8 tiles. */
DEVICE uint32_t value_fragment_address(uint32_t tile, int rows) { return a_fragment_address(tile, rows, 0); }

/* The same 16 `step` columns and `row` rows (a multiple of 8) further. */
DEVICE uint32_t fragment_at(uint32_t address, int rows, int row, int step) {
    const int steps = TILE_PAGE / 16;
    return (address ^ (uint32_t)(step % steps * 32)) + (uint32_t)((step / steps * rows + row) * TILE_PAGE_BYTES);
}

/* The two 16-bit input types, by the macro BF16. */
#if BF16
#    define MMA_TYPE bf16 /* as the wgmma macros name it */
#    define mma_16bit mma_m16n8k16_bf16
#    define pack_16bit pack_bf16x2
#    define unpack_16bit unpack_bf16x2
#else
#    define MMA_TYPE f16
#    define mma_16bit mma_m16n8k16_f16
#    define pack_16bit pack_f16x2
#    define unpack_16bit unpack_f16x2
#endif

/* 1 if one of the two is NaN or infinity. */
DEVICE int not_finite_16bit(uint32_t pair) {
    const uint32_t exponent = BF16 ? 0x7F80u : 0x7C00u;
    return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

/* Of a row of a tile: 1 if NaN or infinity is among its elements. */
DEVICE int tile_row_not_finite(uint32_t tile, int rows, int row, int columns) {
    int found = 0;
    for (int chunk = 0; chunk < columns / 8; chunk++) {
        u32x4 x = shared_load_u32x4(tile_address(tile, rows, row, chunk));
        found |= not_finite_16bit(x.x) | not_finite_16bit(x.y) | not_finite_16bit(x.z) | not_finite_16bit(x.w);
    }
    return found;
}

DEVICE void clear_tile_row(uint32_t tile, int rows, int row, int columns) {
    const u32x4 zero = {0, 0, 0, 0};
    for (int chunk = 0; chunk < columns / 8; chunk++) shared_store_u32x4(tile_address(tile, rows, row, chunk), zero);
}

/* The first of a packed pair. */
DEVICE uint16_t low_half(uint32_t pair) { return (uint16_t)(pair & 0xFFFFu); }

/*
 * Accumulators of 16 rows and `columns` columns, a constant, rounded, into a tile of `rows` rows; sm_90. address: of
 * a_fragment_address().
 */
DEVICE void store_rounded(uint32_t address, int rows, const float *x, int columns) {
    UNROLL
    for (int n = 0; n < columns / 16; n++) {
        uint32_t pairs[4];
        UNROLL
        for (int i = 0; i < 4; i++) pairs[i] = pack_16bit(x[8 * n + 2 * i], x[8 * n + 2 * i + 1]);
        stmatrix_x4(fragment_at(address, rows, 0, n), pairs);
    }
}

#endif
