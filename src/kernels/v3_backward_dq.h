/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dQ in the v3 backward kernel: from the consumer warpgroups to dq_sum in global memory, where those of all key tiles are
 * added up: through shared memory by bulk reductions, which a warp of its own issues, or, where there is no room for
 * that, straight from the registers. Included by v3_backward.c behind its macros.
 */
#ifndef FA_KERNELS_V3_BACKWARD_DQ_H
#define FA_KERNELS_V3_BACKWARD_DQ_H

#include "v3_backward_memory.h"

/* Which of its places dQ of a query tile takes; count: of query tiles before it. */
DEVICE uint32_t dq_place(uint32_t count) { return DQ_PLACES == 2 ? count & 1u : 0; }

/* Where the warp's 16 rows of dQ lie in shared memory on their way to dq_sum. count: of query tiles before this one. */
DEVICE uint32_t dq_part(const shared_layout *s, int consumer, int warp, uint32_t count) {
    return s->dq + (dq_place(count) * 8 + (uint32_t)(4 * consumer + warp)) * (COLUMNS_DQ * 64);
}

DEVICE void store_dq(const float *dq, uint32_t part) {
    UNROLL
    for (int i = 0; i < COLUMNS_DQ / 8; i++) { /* as dq_sum_index() tells */
        const f32x4 x = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
        shared_store_f32x4(part + 512 * (uint32_t)i + 16 * lane_index(), x);
    }
    fence_proxy_async_shared();
}

/* What it takes to know a block's turn at a query tile lies in shared memory, since registers are scarce here. */
DEVICE void store_dq_order(const shared_layout *s, const fa_backward_params *b, const key_work *w) {
    const fa_visibility *v = &w->tile.sequence.visibility;
    const u32x4 order = {(uint32_t)v->seqlen_q, (uint32_t)v->key_end, (uint32_t)(v->diagonal + v->right + 1),
                         (uint32_t)key_tile_number(b, &w->tile, BLOCK_N)};
    shared_store_u32x4(s->order, order);
}

DEVICE uint32_t turn_at(const shared_layout *s, int row) {
    const u32x4 order = shared_load_u32x4(s->order);
    const int seqlen_q = (int)order.x, key_end = (int)order.y;
    const int last = (row + BLOCK_M < seqlen_q ? row + BLOCK_M : seqlen_q) - 1, seen = last + (int)order.z;
    return dq_turn(seen < key_end ? seen : key_end, (int)order.w, BLOCK_N);
}

/* Waits until a query tile has been added to by those before this block. One thread, as below. */
DEVICE void wait_for_dq_turn(const uint32_t *turns, uint32_t turn) {
    while (global_load_acquire_u32(turns) != turn) {}
}

/* Passes the turn on when what has been added is there. */
DEVICE void pass_dq_turn(uint32_t *turns) {
    if (!DQ_FROM_REGISTERS) bulk_wait_group(0);
    fence_gpu(); /* the additions, before the count */
    (void)global_atomic_add_u32(turns, 1);
}

/*
 * Adds what a consumer warpgroup has stored to dq_sum, tile by tile; a warp beside the producer, so that nobody else
 * waits for it. deterministic: in turns. Where the consumers add dQ from their registers, it takes turns for them: then
 * DQ_EMPTY tells that theirs has come, and DQ_FULL that they have added.
 */
DEVICE void add_dq(const shared_layout *s, const fa_backward_params *b, const key_work *w, int consumer) {
    const int group = b->forward.group, row_blocks = b->forward.row_blocks,
              ordered = b->deterministic && lane_index() == 0;
    if (w->seen.begin >= w->seen.end || !b->dq.data || (DQ_FROM_REGISTERS && !b->deterministic)) return;
    const device_row_range rows = rows_that_see(&w->tile.sequence.visibility, w->seen.begin, w->seen.end);
    const int tiles = (rows.end + BLOCK_M - 1) / BLOCK_M - rows.begin / BLOCK_M; /* of a head */
    int tile = first_query_tile(b, &w->tile.sequence, w->tile.head_kv * group) + rows.begin / BLOCK_M;
    uint32_t count = 0, ahead = 0; /* ahead: turns of the next tile, loaded while this one is added */
    for (int place = 0; place < DQ_PLACES; place++)
        named_barrier_arrive(BARRIER_DQ_EMPTY(consumer, (uint32_t)place), DQ_THREADS);
    for (int head = 0; head < group; head++, tile += row_blocks - tiles) {
        NO_UNROLL
        for (int i = 0; i < tiles; i++, tile++, count++) {
            uint32_t *turns = b->turns + 2 * (int64_t)tile + consumer;
            if (ordered) {
                const uint32_t turn = turn_at(s, (rows.begin / BLOCK_M + i) * BLOCK_M);
                if (i == 0 || ahead != turn) wait_for_dq_turn(turns, turn);
            }
            warp_sync();
#if DQ_FROM_REGISTERS
            named_barrier_arrive(BARRIER_DQ_EMPTY(consumer, count), DQ_THREADS);
            named_barrier_sync(BARRIER_DQ_FULL(consumer, count), DQ_THREADS);
            if (ordered && i + 1 < tiles) ahead = global_load_relaxed_u32(turns + 2); /* pass_dq_turn() has a fence */
#else
            named_barrier_sync(BARRIER_DQ_FULL(consumer, count), DQ_THREADS);
            if (lane_index() == 0) {
                bulk_reduce_add_f32(b->dq_sum + (int64_t)tile * DQ_TILE + consumer * 64 * COLUMNS_DQ,
                                    dq_part(s, consumer, 0, count), 4 * COLUMNS_DQ * 64);
                bulk_commit_group();
                if (ordered && i + 1 < tiles) ahead = global_load_relaxed_u32(turns + 2); /* likewise */
                bulk_wait_group_read(0);
            }
            warp_sync();
            named_barrier_arrive(BARRIER_DQ_EMPTY(consumer, count), DQ_THREADS);
#endif
            if (ordered) pass_dq_turn(turns);
        }
    }
    if (!DQ_FROM_REGISTERS && lane_index() == 0) bulk_wait_group(0);
}

/* dQ of a query tile straight from the registers. sum: its tile. */
DEVICE void add_dq_from_registers(const float *dq, float *sum, int consumer) {
    float *to =
        sum + consumer * 64 * COLUMNS_DQ + (int)thread_index() / 32 % 4 * 16 * COLUMNS_DQ + 4 * (int)lane_index();
    UNROLL
    for (int i = 0; i < COLUMNS_DQ / 8; i++) { /* as dq_sum_index() tells */
        const f32x4 x = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
        global_reduce_add_f32x4(to + 128 * i, x);
    }
}

/* dQ of query tile `count`, which `work` tells of, to dq_sum, or to the warp that adds it. */
DEVICE void hand_over_dq(float *dq, const shared_layout *shared, const fa_backward_params *b, const u32x4 *work,
                         int consumer, uint32_t count) {
    register_fence_f32(dq, COLUMNS_DQ / 2);
    if (!b->dq.data) return;
#if DQ_FROM_REGISTERS
    (void)shared;
    if (b->deterministic) named_barrier_sync(BARRIER_DQ_EMPTY(consumer, count), DQ_THREADS);
    add_dq_from_registers(dq, b->dq_sum + (int64_t)work->w * DQ_TILE, consumer);
    if (b->deterministic) named_barrier_arrive(BARRIER_DQ_FULL(consumer, count), DQ_THREADS);
#else
    (void)work;
    named_barrier_sync(BARRIER_DQ_EMPTY(consumer, count), DQ_THREADS);
    store_dq(dq, dq_part(shared, consumer, (int)thread_index() / 32 % 4, count));
    named_barrier_arrive(BARRIER_DQ_FULL(consumer, count), DQ_THREADS);
#endif
}

#endif
