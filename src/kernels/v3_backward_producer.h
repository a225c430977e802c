/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer of the v3 backward kernel: one warp that feeds a whole block. Included by v3_backward.c behind its
 * macros.
 */
#ifndef FA_KERNELS_V3_BACKWARD_PRODUCER_H
#define FA_KERNELS_V3_BACKWARD_PRODUCER_H

#include "v3_backward_memory.h"

DEVICE void load_pages(uint32_t tile, uint32_t barrier, const fa_tensor_map *map, int rows, int pages, int row,
                       int head, int entry) {
    UNROLL
    for (int page = 0; page < pages; page++)
        tma_load_4d(tile + (uint32_t)(page * PAGE_BYTES(rows)), map, barrier, page * TILE_PAGE, row, head, entry);
}

/*
 * K and V, once. Rows that no query may see become zero: what they hold must not meet a weight of 0. Each lane arrives at
 * kv_full for what it has cleared, since the consumers write there themselves in the end. Returns whether it took the
 * barrier `raw`.
 */
DEVICE int load_keys(const shared_layout *s, const fa_v3_backward_params *params, const key_work *w) {
    const fa_forward_params *p = &params->backward.forward;
    const int entry = p->cu_seqlens_k.data ? 0 : w->tile.sequence.entry, row = (int)w->tile.sequence.k_begin + w->key;
    const int whole = w->seen.begin == w->key && w->seen.end == w->key + BLOCK_N;
    const int by_value = GENERAL && (p->bias.data || p->mask.data);
    const int clean = !whole || by_value;
    const uint32_t barrier = clean ? s->raw : s->kv_full;
    if (lane_index() == 0) {
        mbarrier_arrive_expect_tx(barrier, BYTES_K + BYTES_V);
        load_pages(s->k, barrier, &params->k, BLOCK_N, PAGES_K, row, w->tile.head_kv, entry);
        load_pages(s->v, barrier, &params->v, BLOCK_N, PAGES_V, row, w->tile.head_kv, entry);
    }
    if (!clean) {
        if (lane_index() != 0) mbarrier_arrive(s->kv_full);
        return 0;
    }
    mbarrier_wait(s->raw, 0);
    for (int i = (int)lane_index(); i < BLOCK_N; i += 32) {
        int unseen = w->key + i < w->seen.begin || w->key + i >= w->seen.end;
#if GENERAL
        if (!unseen && by_value &&
            (tile_row_not_finite(s->k, BLOCK_N, i, HEAD_DIM) || tile_row_not_finite(s->v, BLOCK_N, i, HEAD_DIM_V)))
            unseen = !some_query_sees(&params->backward, &w->tile, w->key + i);
#endif
        if (!unseen) continue;
        clear_tile_row(s->k, BLOCK_N, i, HEAD_DIM);
        clear_tile_row(s->v, BLOCK_N, i, HEAD_DIM_V);
    }
    fence_proxy_async_shared();
    mbarrier_arrive(s->kv_full);
    warp_sync(); /* all have seen `raw`, before its next use */
    return 1;
}

/* A tile of Q with the log-sum-exps, or of dO with D. In a dirty tile rows that take no part become zero. */
DEVICE void load_queries(uint32_t tile, uint32_t numbers, uint32_t full, const fa_tensor_map *map, int pages,
                         int columns, const float *source, int row, int head, int entry, int dirty, uint32_t lse,
                         uint32_t raw, uint32_t raw_parity) {
    const uint32_t barrier = dirty ? raw : full;
    if (lane_index() == 0) {
        mbarrier_arrive_expect_tx(barrier, (uint32_t)(pages * PAGE_BYTES(BLOCK_M) + BLOCK_M * 4));
        load_pages(tile, barrier, map, BLOCK_M, pages, row, head, entry);
        bulk_load(numbers, source, BLOCK_M * 4, barrier);
    }
    if (!dirty) return;
    mbarrier_wait(raw, raw_parity);
    for (int i = (int)lane_index(); i < BLOCK_M; i += 32)
        if (shared_load_f32(lse + 4 * (uint32_t)i) == INFINITY) clear_tile_row(tile, BLOCK_M, i, columns);
    fence_proxy_async_shared();
    warp_sync();
    if (lane_index() == 0) mbarrier_arrive(full);
}

/*
 * Until everybody has left the stage that query tile `count` takes. A named barrier of all threads that read it, since
 * each reads log-sum-exps, D and work. One arrival per warpgroup, as where products alone read a stage (release()), would
 * do behind the barrier of dS, but compute-sanitizer's racecheck follows no order through a third thread.
 */
DEVICE void wait_until_left(uint32_t barrier, uint32_t count) {
    if (count >= STAGES) named_barrier_sync(barrier, STAGE_THREADS);
}

DEVICE void produce(const shared_layout *s, const fa_v3_backward_params *params, const key_work *w) {
    const fa_backward_params *b = &params->backward;
    const fa_forward_params *p = &b->forward;
    const fa_visibility *v = &w->tile.sequence.visibility;
    uint32_t count = 0; /* stages gone by */
    if (w->seen.begin < w->seen.end) {
        const int entry = p->cu_seqlens_q.data ? 0 : w->tile.sequence.entry;
        const device_row_range rows = rows_that_see(v, w->seen.begin, w->seen.end);
        uint32_t raws = (uint32_t)load_keys(s, params, w);
        for (int head = w->tile.head_kv * p->group; head < (w->tile.head_kv + 1) * p->group; head++) {
            NO_UNROLL
            for (int row = rows.begin / BLOCK_M * BLOCK_M; row < rows.end; row += BLOCK_M) {
                const uint32_t stage = ring_stage(count, STAGES);
                const int64_t tile = first_query_tile(b, &w->tile.sequence, head) + row / BLOCK_M;
                const int idle = global_load_i32(b->idle_rows + tile), dirty = idle & FA_IDLE_ROWS_DIRTY;
                const fa_key_range all = tile_keys(v, row, row + BLOCK_M).all;
                const int masked = idle || w->key < all.begin || w->key + BLOCK_N > all.end;
                const u32x4 work = {(uint32_t)head, (uint32_t)row, masked ? WORK_MASKED : WORK_PLAIN, (uint32_t)tile};
                const int first = (int)w->tile.sequence.q_begin + row;
                const uint32_t lse = s->lse + stage * BLOCK_M * 4;
                wait_until_left(BARRIER_Q_LEFT(stage), count);
                if (lane_index() == 0) shared_store_u32x4(s->work + 16 * stage, work);
                load_queries(s->q + stage * BYTES_Q, lse, s->q_full + 8 * stage, &params->q, PAGES_K, HEAD_DIM,
                             b->lse_log2 + tile * BLOCK_M, first, head, entry, dirty, lse, s->raw, raws & 1u);
                raws += dirty != 0;
                wait_until_left(BARRIER_DOUT_LEFT(stage), count);
                load_queries(s->dout + stage * BYTES_DO, s->delta + stage * BLOCK_M * 4, s->dout_full + 8 * stage,
                             &params->dout, PAGES_V, HEAD_DIM_V, b->delta + tile * BLOCK_M, first, head, entry, dirty,
                             lse, s->raw, raws & 1u);
                raws += dirty != 0;
                count++;
            }
        }
    }
    const uint32_t stage = ring_stage(count, STAGES);
    const u32x4 end = {0, 0, WORK_END, 0};
    wait_until_left(BARRIER_Q_LEFT(stage), count);
    if (lane_index() != 0) return;
    shared_store_u32x4(s->work + 16 * stage, end);
    mbarrier_arrive(s->q_full + 8 * stage);
}

#endif
