/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of AMX: products of bfloat16 tiles. Compiled with -mamx-tile -mamx-bf16. */
#include "fma_peak.h"

#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* Clang before 16 */

#    include <immintrin.h>
#    include <string.h>

/* Four tiles of sums, two of A, two of B. The numbers are random bits with exponents around 1: with zeros the units run
 * faster than on any real data. */
double fma_peak_amx(int64_t iterations, float *sink) {
    struct __attribute__((aligned(64))) {
        uint8_t palette, start_row, reserved[14];
        uint16_t columns[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    _Alignas(64) uint16_t operand[4][512];
    _Alignas(64) float sums[256];
    uint32_t random = 1;
    for (int i = 0; i < 4 * 512; i++) {
        random = random * 1664525u + 1013904223u;
        operand[i / 512][i % 512] = (uint16_t)((random >> 16 & 0x80ffu) | 0x3f00u);
    }
    for (int t = 0; t < 8; t++) shape.rows[t] = 16, shape.columns[t] = 64;
    __asm__ volatile("" : : "r"(&shape) : "memory"); /* or its stores may be dropped */
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, operand[0], 64);
    _tile_loadd(5, operand[1], 64);
    _tile_loadd(6, operand[2], 64);
    _tile_loadd(7, operand[3], 64);
    for (int64_t i = 0; i < iterations; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    *sink = sums[0];
    _tile_stored(3, sums, 64);
    *sink += sums[0];
    _tile_release();
    return (double)iterations * 4 * 16 * 16 * 32 * 2;
}

#else

double fma_peak_amx(int64_t iterations, float *sink) {
    (void)iterations;
    (void)sink;
    return 0;
}

#endif
