/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products of bfloat16 operands in AMX tiles, over kernels_amx_tiles.h: four loads for four multiplications. It
 * uses no other vector instructions, so that the tests can run it in their model on any machine.
 */
#ifndef FA_CPU_KERNELS_AMX_MULTIPLY_H
#define FA_CPU_KERNELS_AMX_MULTIPLY_H

#include "kernels_amx_tiles.h"

/* The sums of a block: 17 to 32 rows with `two`, else 1 to 16. */
static inline void begin_block(int two, const float *c, int64_t c_stride, int add) {
    if (!add) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        if (!two) return;
        TILE_ZERO(2);
        TILE_ZERO(3);
        return;
    }
    TILE_LOAD(0, c, c_stride * 4);
    TILE_LOAD(1, c + 16, c_stride * 4);
    if (!two) return;
    TILE_LOAD(2, c + 16 * c_stride, c_stride * 4);
    TILE_LOAD(3, c + 16 * c_stride + 16, c_stride * 4);
}

/* The products of AMX_DEPTH elements of depth. */
static inline void add_products(int two, const uint16_t *a, int64_t a_stride, const uint16_t *b) {
    TILE_LOAD(4, a, a_stride * 2);
    TILE_STREAM(6, b, AMX_PANEL * 4);
    TILE_STREAM(7, b + 32, AMX_PANEL * 4);
    TILE_DOT(0, 4, 6);
    TILE_DOT(1, 4, 7);
    if (!two) return;
    TILE_LOAD(5, a + 16 * a_stride, a_stride * 2);
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
}

static inline void end_block(int two, float *c, int64_t c_stride) {
    TILE_STORE(0, c, c_stride * 4);
    TILE_STORE(1, c + 16, c_stride * 4);
    if (!two) return;
    TILE_STORE(2, c + 16 * c_stride, c_stride * 4);
    TILE_STORE(3, c + 16 * c_stride + 16, c_stride * 4);
}

static inline void multiply_block(int two, float *c, int64_t c_stride, const uint16_t *a, int64_t a_stride,
                                  const uint16_t *b, int64_t depth, int add) {
    begin_block(two, c, c_stride, add);
    for (int64_t k = 0; k < depth; k += AMX_DEPTH) add_products(two, a + k, a_stride, b + k * AMX_PANEL);
    end_block(two, c, c_stride);
}

/*
 * C = A B, or with `add` C += A B, in any height and any even depth. Columns come in whole panels, of which one is
 * b_depth elements deep.
 */
static void multiply_blocks(float *c, int64_t c_stride, const uint16_t *a, int64_t a_stride, const uint16_t *b,
                            int64_t b_depth, int64_t rows, int64_t columns, int64_t depth, int add) {
    int64_t whole = depth / AMX_DEPTH * AMX_DEPTH;
    TILE_FENCE();
    for (int64_t r = 0; r < rows; r += 32) {
        int64_t left = rows - r < 32 ? rows - r : 32;
        int64_t begin = 0, part;
        do {
            part = begin < whole ? whole : depth - whole; /* whole tiles, then a shallower one */
            int64_t steps = part % AMX_DEPTH == 0 ? AMX_STEPS : part / 2;
            configure((int)(left < 16 ? left : 16), (int)(left > 16 ? left - 16 : 0), (int)steps);
            for (int64_t n = 0; n < columns; n += AMX_PANEL) {
                float *to = c + r * c_stride + n;
                const uint16_t *from = a + r * a_stride + begin, *panel = b + n * b_depth + begin * AMX_PANEL;
                if (left > 16)
                    multiply_block(1, to, c_stride, from, a_stride, panel, part, add || begin > 0);
                else
                    multiply_block(0, to, c_stride, from, a_stride, panel, part, add || begin > 0);
            }
            begin += part;
        } while (begin < depth);
    }
    TILE_FENCE();
}

#endif
