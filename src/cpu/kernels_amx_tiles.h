/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX tiles, for the files that multiply in them (Intel, Software Developer's Manual, "TDPBF16PS"):
 *
 *     TILE_CONFIGURE(shapes)           of all tiles, a tile_shapes
 *     TILE_ZERO(c)
 *     TILE_LOAD(t, address, stride)    rows of up to 64 bytes, `stride` bytes apart
 *     TILE_STREAM(t, address, stride)  the same for what L2 is to hold, but not L1, where it would push out the rest
 *     TILE_STORE(t, address, stride)
 *     TILE_DOT(c, a, b)                c[m][n] += a[m][2k] b[k][2n] + a[m][2k + 1] b[k][2n + 1], summed over k
 *     TILE_RELEASE()                   no tile is in use any more
 *
 * with tile numbers that are constants. Here are the instructions; FA_AMX_MODEL names a header with a model of them in
 * C, with which the tests run where there is no AMX.
 *
 * A block is up to 32 rows by a panel of 32 columns: sums in tiles 0 to 3, two tiles of A and two of B. The packed
 * layout of kernels.h is B as the tiles want it: row k of a tile holds pairs of one step.
 */
#ifndef FA_CPU_KERNELS_AMX_TILES_H
#define FA_CPU_KERNELS_AMX_TILES_H

#include <stdint.h>
#include <string.h>

#ifdef FA_AMX_MODEL
#    include FA_AMX_MODEL
#else
#    include <immintrin.h>
#    define TILE_CONFIGURE(shapes) _tile_loadconfig(shapes)
#    define TILE_ZERO(c) _tile_zero(c)
#    define TILE_LOAD(t, address, stride) _tile_loadd(t, address, stride)
#    define TILE_STREAM(t, address, stride) _tile_stream_loadd(t, address, stride)
#    define TILE_STORE(t, address, stride) _tile_stored(t, address, stride)
#    define TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#    define TILE_RELEASE() _tile_release()
#endif

#define AMX_ROWS 32
#define AMX_PANEL 32
#define AMX_DEPTH 32 /* elements of depth in a tile */
#define AMX_STEPS (AMX_DEPTH / 2)

/* The operand of LDTILECFG, palette 1: 16 rows of 64 bytes at most. */
typedef struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/*
 * The shapes that this thread has configured; 0: none. Each file has its own record, which is right because no thread
 * comes from another file's kernels without leave().
 */
static _Thread_local int configured;

/* The compiler does not know what tile instructions read and write. */
#define TILE_FENCE() __asm__ volatile("" : : : "memory")

/* Rows of the two rows of tiles, and steps of depth, of two elements each. */
static void configure(int upper, int lower, int steps) {
    int wanted = (upper * 32 + lower) * 32 + steps;
    if (configured == wanted) return;
    _Alignas(64) tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        int rows = t >= 6 ? steps : t == 2 || t == 3 || t == 5 ? lower : upper;
        shapes.rows[t] = (uint8_t)rows;
        shapes.column_bytes[t] = (uint16_t)(rows == 0 ? 0 : t == 4 || t == 5 ? 4 * steps : 64);
    }
    TILE_FENCE();
    TILE_CONFIGURE(&shapes);
    configured = wanted;
}

static void leave(void) {
    if (configured != 0) TILE_RELEASE();
    configured = 0;
}

#endif
