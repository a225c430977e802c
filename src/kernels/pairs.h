/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of any alignment in global memory, two neighbouring elements at a time (float32, or the kernel's 16-bit type), and sums over a warp. */
#ifndef FA_KERNELS_PAIRS_H
#define FA_KERNELS_PAIRS_H

#include "fragment.h"

/* Elements `column`, even, and column + 1; the second is 0 beyond the row's end. */
DEVICE f32x2 load_pair(const char *row, int column, int columns, int is_float32) {
    const int whole = column + 1 < columns;
    if (is_float32) {
        f32x2 x;
        x.x = global_load_f32(row + 4 * column);
        x.y = whole ? global_load_f32(row + 4 * column + 4) : 0.0f;
        return x;
    }
    if (whole && (uintptr_t)row % 4 == 0) return unpack_16bit(global_load_u32(row + 2 * column));
    uint32_t low = global_load_u16(row + 2 * column), high = whole ? global_load_u16(row + 2 * column + 2) : 0;
    return unpack_16bit(low | high << 16);
}

/* What lies beyond the row's end is left out. */
DEVICE void store_pair(char *row, int column, int columns, int is_float32, float x, float y) {
    const int whole = column + 1 < columns;
    if (column >= columns) return;
    if (is_float32) {
        global_store_f32(row + 4 * column, x);
        if (whole) global_store_f32(row + 4 * column + 4, y);
        return;
    }
    const uint32_t packed = pack_16bit(x, y);
    if (whole && (uintptr_t)row % 4 == 0) {
        global_store_u32(row + 2 * column, packed);
        return;
    }
    global_store_u16(row + 2 * column, low_half(packed));
    if (whole) global_store_u16(row + 2 * column + 2, low_half(packed >> 16));
}

/* The same in all lanes, always summed in the same order; warp. */
DEVICE float warp_sum(float x) {
    UNROLL
    for (uint32_t distance = 16; distance > 0; distance /= 2) x += shuffle_xor_f32(x, distance);
    return x;
}

#endif
