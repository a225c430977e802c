/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of attention by mma.sync, as one warp does them. The including kernel says what that is:
 *   BLOCK_M, BLOCK_N  rows of the Q tile and of the K and V tiles in shared memory
 *   STRIPS            strips of 16 query rows that the warp works on
 *   KEYS              keys that it works on, a multiple of 16
 */
#ifndef FA_KERNELS_MULTIPLY_H
#define FA_KERNELS_MULTIPLY_H

#include "fragment.h"
#include "output_layout.h"

/*
 * S = Q K^T; s[strip][n8 tile][4]. Addresses of the warp's first row and first key, of a_fragment_address and
 * key_fragment_address.
 */
DEVICE void multiply_scores(float s[STRIPS][KEYS / 2], uint32_t q_address, uint32_t k_address) {
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        UNROLL
        for (int j = 0; j < KEYS / 2; j++) s[i][j] = 0.0f;
    }
    UNROLL
    for (int step = 0; step < HEAD_DIM / 16; step++) {
        uint32_t a[STRIPS][4];
        UNROLL
        for (int i = 0; i < STRIPS; i++) ldmatrix_x4(a[i], fragment_at(q_address, BLOCK_M, 16 * i, step));
        UNROLL
        for (int n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            ldmatrix_x4(b, fragment_at(k_address, BLOCK_N, 16 * n, step));
            UNROLL
            for (int i = 0; i < STRIPS; i++) {
                mma_16bit(&s[i][8 * n], a[i], b);
                mma_16bit(&s[i][8 * n + 4], a[i], b + 2);
            }
        }
    }
}

/*
 * O += P V. The accumulators of P for 16 keys are, packed, the A operand of a product over these keys. v_address: of
 * the warp's first key.
 */
DEVICE void multiply_values(float o[STRIPS][HEAD_DIM / 2], const float p[STRIPS][KEYS / 2], uint32_t v_address) {
    UNROLL
    for (int step = 0; step < KEYS / 16; step++) {
        uint32_t a[STRIPS][4];
        UNROLL
        for (int i = 0; i < STRIPS; i++) {
            UNROLL
            for (int j = 0; j < 4; j++) a[i][j] = pack_16bit(p[i][8 * step + 2 * j], p[i][8 * step + 2 * j + 1]);
        }
        UNROLL
        for (int n = 0; n < HEAD_DIM / 16; n++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, fragment_at(v_address, BLOCK_N, 16 * step, n));
            UNROLL
            for (int i = 0; i < STRIPS; i++) {
                mma_16bit(&o[i][8 * n], a[i], b);
                mma_16bit(&o[i][8 * n + 4], a[i], b + 2);
            }
        }
    }
}

/*
 * The same with 16-bit weights from a tile in shared memory, of all its BLOCK_N keys, for the part of O that the warp
 * holds. Addresses of its first row and its first columns.
 */
DEVICE void multiply_weights(float o[OUT_STRIPS][OUT_COLUMNS / 2], uint32_t p_address, uint32_t v_address) {
    UNROLL
    for (int step = 0; step < BLOCK_N / 16; step++) {
        uint32_t a[OUT_STRIPS][4];
        UNROLL
        for (int i = 0; i < OUT_STRIPS; i++) ldmatrix_x4(a[i], fragment_at(p_address, BLOCK_M, 16 * i, step));
        UNROLL
        for (int n = 0; n < OUT_COLUMNS / 16; n++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, fragment_at(v_address, BLOCK_N, 16 * step, n * OUT_STEP));
            UNROLL
            for (int i = 0; i < OUT_STRIPS; i++) {
                mma_16bit(&o[i][8 * n], a[i], b);
                mma_16bit(&o[i][8 * n + 4], a[i], b + 2);
            }
        }
    }
}

#endif
