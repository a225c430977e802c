/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix multiply in AMX tiles (Intel, Software Developer's Manual, "TDPBF16PS"), over
 *
 *     TILE_CONFIGURE(shapes)           of all tiles, a tile_shapes
 *     TILE_ZERO(c)
 *     TILE_LOAD(t, address, stride)    rows of up to 64 bytes, `stride` bytes apart
 *     TILE_STORE(t, address, stride)
 *     TILE_DOT(c, a, b)                c[m][n] += a[m][2k] b[k][2n] + a[m][2k + 1] b[k][2n + 1], summed over k
 *     TILE_RELEASE()                   no tile is in use any more
 *
 * with tile numbers that are constants. kernels_amx.c has the instructions; the tests have a model of them in C, so that
 * this file is tested on machines without AMX. It uses no other vector instructions.
 *
 * A block is up to 32 rows by a panel of 32 columns: sums in tiles 0 to 3, two tiles of A and two of B, four loads for four
 * multiplications. The packed layout of kernels.h is B as the tiles want it: row k of a tile holds pairs of one step.
 */
#ifndef FA_CPU_KERNELS_AMX_MULTIPLY_H
#define FA_CPU_KERNELS_AMX_MULTIPLY_H

#include <stdint.h>
#include <string.h>

#define AMX_PANEL 32
#define AMX_DEPTH 32 /* elements of depth in a tile */

/* The operand of LDTILECFG, palette 1: 16 rows of 64 bytes at most. */
typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* Rows of the two rows of tiles as this thread has them configured; 0: not at all. */
static _Thread_local int tiles_of_rows;

/* The compiler does not know what tile instructions read and write. */
#define TILE_FENCE() __asm__ volatile("" : : : "memory")

static void configure_rows(int upper, int lower) {
    int wanted = upper * 32 + lower;
    if (tiles_of_rows == wanted) return;
    _Alignas(64) tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        int rows = t >= 6 ? 16 : t == 2 || t == 3 || t == 5 ? lower : upper;
        shapes.rows[t] = (uint8_t)rows;
        shapes.column_bytes[t] = (uint16_t)(rows > 0 ? 64 : 0);
    }
    TILE_FENCE();
    TILE_CONFIGURE(&shapes);
    tiles_of_rows = wanted;
}

static void leave(void) {
    if (tiles_of_rows != 0) TILE_RELEASE();
    tiles_of_rows = 0;
}

/* 17 to 32 rows. */
static void multiply_two(float *c, int64_t c_stride, const uint16_t *a, int64_t a_stride, const uint16_t *b,
                         int64_t depth, int add) {
    float *lower_c = c + 16 * c_stride;
    const uint16_t *lower_a = a + 16 * a_stride;
    if (add) {
        TILE_LOAD(0, c, c_stride * 4);
        TILE_LOAD(1, c + 16, c_stride * 4);
        TILE_LOAD(2, lower_c, c_stride * 4);
        TILE_LOAD(3, lower_c + 16, c_stride * 4);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < depth; k += AMX_DEPTH, b += AMX_DEPTH * AMX_PANEL) {
        TILE_LOAD(4, a + k, a_stride * 2);
        TILE_LOAD(6, b, AMX_PANEL * 4);
        TILE_LOAD(7, b + 32, AMX_PANEL * 4);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_LOAD(5, lower_a + k, a_stride * 2);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
    TILE_STORE(0, c, c_stride * 4);
    TILE_STORE(1, c + 16, c_stride * 4);
    TILE_STORE(2, lower_c, c_stride * 4);
    TILE_STORE(3, lower_c + 16, c_stride * 4);
}

/* 1 to 16 rows. */
static void multiply_one(float *c, int64_t c_stride, const uint16_t *a, int64_t a_stride, const uint16_t *b,
                         int64_t depth, int add) {
    if (add) {
        TILE_LOAD(0, c, c_stride * 4);
        TILE_LOAD(1, c + 16, c_stride * 4);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
    }
    for (int64_t k = 0; k < depth; k += AMX_DEPTH, b += AMX_DEPTH * AMX_PANEL) {
        TILE_LOAD(4, a + k, a_stride * 2);
        TILE_LOAD(6, b, AMX_PANEL * 4);
        TILE_LOAD(7, b + 32, AMX_PANEL * 4);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
    }
    TILE_STORE(0, c, c_stride * 4);
    TILE_STORE(1, c + 16, c_stride * 4);
}

static void multiply(float *c, int64_t c_stride, const void *a_operand, int64_t a_stride, const void *b_operand,
                     int64_t b_depth, int64_t rows, int64_t columns, int64_t depth, const float *row_scale) {
    const uint16_t *a = a_operand, *b = b_operand;
    int add = row_scale != NULL;
    for (int64_t r = 0; r < rows && add; r++)
        for (int64_t n = 0; n < columns; n++) c[r * c_stride + n] *= row_scale[r];
    TILE_FENCE();
    for (int64_t r = 0; r < rows; r += 32) {
        int64_t left = rows - r < 32 ? rows - r : 32;
        configure_rows((int)(left < 16 ? left : 16), (int)(left > 16 ? left - 16 : 0));
        for (int64_t n = 0; n < columns; n += AMX_PANEL) {
            float *to = c + r * c_stride + n;
            if (left > 16)
                multiply_two(to, c_stride, a + r * a_stride, a_stride, b + n * b_depth, depth, add);
            else
                multiply_one(to, c_stride, a + r * a_stride, a_stride, b + n * b_depth, depth, add);
        }
    }
    TILE_FENCE();
}

#endif
