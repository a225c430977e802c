/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of tiles between a producer warp and consumer warpgroups (v3): a full and an empty mbarrier for each of its
 * stages, 8 bytes apart, arrived at once per tile by the producer and by each warpgroup.
 */
#ifndef FA_KERNELS_PIPELINE_H
#define FA_KERNELS_PIPELINE_H

#include "instructions/instructions.h"

/* A place in a ring is the number of stages gone by; stage and parity of the lap follow. stages: a constant. */
DEVICE uint32_t ring_stage(uint32_t count, uint32_t stages) { return count % stages; }
DEVICE uint32_t ring_parity(uint32_t count, uint32_t stages) { return count / stages & 1u; }

/* The mbarriers of a ring, by the first of each. consumers: warpgroups. */
DEVICE void init_ring(uint32_t full, uint32_t empty, uint32_t stages, uint32_t consumers) {
    for (uint32_t i = 0; i < stages; i++) {
        mbarrier_init(full + 8 * i, 1);
        mbarrier_init(empty + 8 * i, consumers);
    }
}

/* One arrival per warpgroup; its threads have come together in the wgmma wait before. thread: within the warpgroup. */
DEVICE void release(uint32_t barrier, int thread) {
    if (thread == 0) mbarrier_arrive(barrier);
}

#endif
