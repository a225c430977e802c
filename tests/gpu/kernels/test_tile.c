/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel with a tensor map and clusters: see test_params.h. */
#include "instructions/instructions.h"
#include "test_params.h"

#define TILE_BYTES (TEST_TILE_ROWS * TEST_TILE_COLUMNS * 4)

KERNEL(KERNEL_NAME, 128, 1, test_tile_params, p) {
    const uint32_t tile = shared_base(), barrier = tile + TILE_BYTES;
    const int row = (int)block_index_x() * TEST_TILE_ROWS;
    if (thread_index() == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init();
    }
    block_sync();
    if (thread_index() == 0) {
        mbarrier_arrive_expect_tx(barrier, TILE_BYTES);
        tma_load_2d(tile, &p->source, barrier, 0, row);
    }
    mbarrier_wait(barrier, 0);
    for (uint32_t i = thread_index(); i < TEST_TILE_ROWS * TEST_TILE_COLUMNS; i += block_threads())
        if (row + (int)(i / TEST_TILE_COLUMNS) < p->rows)
            global_store_f32(p->destination + (int64_t)row * TEST_TILE_COLUMNS + i,
                             shared_load_f32(tile + 4 * i) + (float)cluster_rank());
}
