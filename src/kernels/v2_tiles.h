/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of a v2 block, and how many blocks share a multiprocessor: one definition for kernel and launch. */
#ifndef FA_KERNELS_V2_TILES_H
#define FA_KERNELS_V2_TILES_H

/* Forward: where the warps share P V by columns, and K and V have one buffer each. */
#define V2_IS_WIDE(head_dim) ((head_dim) > 128)

/*
 * Q tile, a ring of K and V tiles; for the general variants a counter per key; for wide heads two factors per row,
 * while tiles are added up and at the end, and the weights of a tile, which can do without a place of their own.
 */
#define V2_WEIGHTS_BYTES(head_dim, block_m, block_n) (V2_IS_WIDE(head_dim) ? 2 * (block_m) * (block_n) : 0)
#define V2_SHARED_BYTES(head_dim, block_m, block_n, stages)                                                           \
    (((block_m) + 2 * (stages) * (block_n)) * (head_dim)*2 + (block_n)*4 + (V2_IS_WIDE(head_dim) ? (block_m)*8 : 0) + \
     V2_WEIGHTS_BYTES(head_dim, block_m, block_n))

/*
 * Backward: K and V; P and dS; a ring of Q and dO, with lse and D; 128 bytes on where the block is. variants.def has as
 * many stages as the 163 KiB of an A100 hold; code for sm_90 has two always, of the 227 KiB there. Newer GPUs run sm_80's
 * code as PTX, and leave what a second stage would take unused.
 */
#define V2_BACKWARD_STAGES(stages, sm90) ((sm90) ? 2 : (stages))
#define V2_BACKWARD_SHARED_BYTES(head_dim, block_m, block_n, stages) \
    (4 * (block_n) * (head_dim) + 4 * (block_m) * (block_n) + (stages) * (block_m) * (4 * (head_dim) + 8) + 128)

#define V2_BLOCKS_PER_SM (WARPS == 4 ? 2 : 1)

#endif
