/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the test kernels, for kernels and hosts. */
#ifndef FLASHATTN_TEST_PARAMS_H
#define FLASHATTN_TEST_PARAMS_H

#include "kernels/instructions/tensor_map.h"

#include <stdint.h>

/* sum[i] = a[i] + b[i]; one thread per element, 128 per block */
typedef struct test_add_params {
    const float *a, *b;
    float *sum;
    int64_t count;
} test_add_params;

#define TEST_TILE_ROWS 8
#define TEST_TILE_COLUMNS 32

/*
 * Block x of the grid copies rows 8x .. 8x+7 of a matrix of 32 float columns by TMA, and adds its rank in the
 * cluster.
 */
typedef struct test_tile_params {
    fa_tensor_map source;
    float *destination;
    int64_t rows;
} test_tile_params;

#endif
