/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AMX tile instructions in C, after Intel's manual: what kernels_amx_multiply.h and all above it are tested with
 * where there is no AMX. Using a tile that is not configured, or in another shape than it is configured for, ends the
 * program, as the machine would.
 */
#ifndef FLASHATTN_TEST_AMX_MODEL_H
#define FLASHATTN_TEST_AMX_MODEL_H

#include "element.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODEL_TILES = 8, MODEL_ROWS = 16, MODEL_BYTES = 64 };

typedef struct model_tile {
    int rows, bytes; /* of a row; 0: not configured */
    unsigned char data[MODEL_ROWS][MODEL_BYTES];
} model_tile;

static _Thread_local model_tile model_tiles[MODEL_TILES];

static void model_require(int right, const char *rule) {
    if (right) return;
    (void)fprintf(stderr, "AMX model: %s\n", rule);
    abort();
}

static void model_configure(const void *operand) {
    const unsigned char *bytes = operand;
    model_require((uintptr_t)operand % 64 == 0 && bytes[0] == 1 && bytes[1] == 0, "palette 1 from the first row on");
    for (int i = 2; i < 16; i++) model_require(bytes[i] == 0, "reserved bytes are 0");
    for (int t = 0; t < 16; t++) {
        uint16_t width;
        memcpy(&width, bytes + 16 + 2 * t, sizeof width);
        int rows = bytes[48 + t];
        model_require(rows <= MODEL_ROWS && width <= MODEL_BYTES, "a tile has at most 16 rows of 64 bytes");
        model_require((rows == 0) == (width == 0), "a tile has rows and columns, or neither");
        if (t >= MODEL_TILES) {
            model_require(rows == 0, "there are 8 tiles");
            continue;
        }
        memset(&model_tiles[t], 0, sizeof model_tiles[t]);
        model_tiles[t].rows = rows;
        model_tiles[t].bytes = width;
    }
}

static model_tile *model_of(int t) {
    model_require(model_tiles[t].rows > 0, "the tile is configured");
    return &model_tiles[t];
}

static void model_zero(int t) { memset(model_of(t)->data, 0, sizeof model_tiles[t].data); }

static void model_load(int t, const void *address, int64_t stride) {
    model_tile *tile = model_of(t);
    memset(tile->data, 0, sizeof tile->data);
    for (int r = 0; r < tile->rows; r++) memcpy(tile->data[r], (const char *)address + r * stride, (size_t)tile->bytes);
}

static void model_store(int t, void *address, int64_t stride) {
    const model_tile *tile = model_of(t);
    for (int r = 0; r < tile->rows; r++) memcpy((char *)address + r * stride, tile->data[r], (size_t)tile->bytes);
}

/* Subnormal numbers count as 0, going in and coming out. */
static float model_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static float model_number(const model_tile *tile, int row, int i) {
    uint16_t h;
    memcpy(&h, tile->data[row] + 2 * i, sizeof h);
    return model_flushed(fa_float_from_bfloat16(h));
}

/* Even and odd elements of depth are summed apart, with fused multiply-adds, and then added to C. */
static void model_dot(int c, int a, int b) {
    model_tile *sums = model_of(c);
    const model_tile *left = model_of(a), *right = model_of(b);
    model_require(left->rows == sums->rows && right->bytes == sums->bytes && left->bytes == 4 * right->rows,
                  "C is as high as A and as wide as B, and A as deep as B");
    /* Columns innermost, so that compilers make vectors of them: the tests run through a great many of these. */
    float y[MODEL_ROWS][2][MODEL_ROWS] = {{{0}}};
    for (int k = 0; k < right->rows; k++)
        for (int i = 0; i < right->bytes / 2; i++) y[k][i % 2][i / 2] = model_number(right, k, i);
    for (int m = 0; m < sums->rows; m++) {
        float sum[2][MODEL_ROWS] = {{0}}, old[MODEL_ROWS];
        for (int k = 0; k < right->rows; k++)
            for (int odd = 0; odd < 2; odd++) {
                float x = model_number(left, m, 2 * k + odd);
                for (int n = 0; n < MODEL_ROWS; n++) sum[odd][n] = model_flushed(fmaf(x, y[k][odd][n], sum[odd][n]));
            }
        memcpy(old, sums->data[m], sizeof old);
        for (int n = 0; n < MODEL_ROWS; n++)
            old[n] = model_flushed(model_flushed(old[n]) + model_flushed(sum[0][n] + sum[1][n]));
        memcpy(sums->data[m], old, (size_t)sums->bytes);
    }
}

static void model_release(void) { memset(model_tiles, 0, sizeof model_tiles); }

#define TILE_CONFIGURE(shapes) model_configure(shapes)
#define TILE_ZERO(c) model_zero(c)
#define TILE_LOAD(t, address, stride) model_load(t, address, stride)
#define TILE_STREAM(t, address, stride) model_load(t, address, stride)
#define TILE_STORE(t, address, stride) model_store(t, address, stride)
#define TILE_DOT(c, a, b) model_dot(c, a, b)
#define TILE_RELEASE() model_release()

#endif
