/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory of a v2 block, and how many blocks share a multiprocessor: one definition for kernel and launch. */
#ifndef FA_KERNELS_V2_TILES_H
#define FA_KERNELS_V2_TILES_H

/* Q tile, a ring of K and V tiles, and for the general variants a counter per key. */
#define V2_SHARED_BYTES(head_dim, block_m, block_n, stages) \
    (((block_m) + 2 * (stages) * (block_n)) * (head_dim)*2 + (block_n)*4)

/* Backward: K, V, a ring of Q, dO; P and dS; lse and D for each stage; 128 bytes on where the block is. */
#define V2_BACKWARD_SHARED_BYTES(head_dim, block_m, block_n, stages)                           \
    ((2 * (block_n) + ((stages) + 1) * (block_m)) * (head_dim)*2 + 4 * (block_m) * (block_n) + \
     (stages) * (block_m)*8 + 128)

#define V2_BLOCKS_PER_SM (WARPS == 4 ? 2 : 1)

#endif
