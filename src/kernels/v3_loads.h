/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the roles of the v3 forward kernel share: the layout of shared memory, query tiles as work items, and the loads
 * of tiles. Included by v3_forward.c behind its macros.
 */
#ifndef FA_KERNELS_V3_LOADS_H
#define FA_KERNELS_V3_LOADS_H

#include "pipeline.h"
#include "score.h"
#include "v3_params.h"

/* ---- Shared memory ----------------------------------------------------------------------------------------------- */

#define WORK_BYTES 48 /* of a work item */

typedef struct shared_layout {
    uint32_t q, out, k, v;                     /* tiles; k and v are rings */
    uint32_t q_full, q_empty;                  /* mbarriers */
    uint32_t k_full, k_empty, v_full, v_empty; /* one per stage, 8 bytes apart */
    uint32_t v_raw;                            /* a V tile that the producer still has to clean */
    uint32_t work_full, work;                  /* two slots for the query tiles to come */
} shared_layout;

DEVICE shared_layout layout_shared(void) {
    shared_layout s;
    s.q = shared_base();
    s.out = OUT_IN_Q ? s.q : s.q + BYTES_Q;
    s.k = s.q + BYTES_Q + (NO_PLACE_FOR_OUT ? 0 : BYTES_O);
    s.v = s.k + STAGES * BYTES_K;
    s.q_full = s.v + STAGES * BYTES_V;
    s.q_empty = s.q_full + 8;
    s.k_full = s.q_empty + 8;
    s.k_empty = s.k_full + 8 * STAGES;
    s.v_full = s.k_empty + 8 * STAGES;
    s.v_empty = s.v_full + 8 * STAGES;
    s.work_full = s.v_empty + 8 * STAGES;
    s.work = s.work_full + 16;
    s.v_raw = s.work + 2 * WORK_BYTES;
    return s;
}

DEVICE void init_barriers(const shared_layout *s) {
    mbarrier_init(s->q_full, 1);
    mbarrier_init(s->q_empty, CONSUMERS);
    mbarrier_init(s->v_raw, 1);
    init_ring(s->k_full, s->k_empty, STAGES, CONSUMERS);
    init_ring(s->v_full, s->v_empty, STAGES, CONSUMERS);
    for (uint32_t slot = 0; slot < 2; slot++) mbarrier_init(s->work_full + 8 * slot, 1);
    fence_mbarrier_init();
}

/* ---- Work: query tiles ------------------------------------------------------------------------------------------- */

/* A query tile, as the producer works it out for everybody. */
typedef struct work_item {
    int entry, head;
    int row;                          /* first query; -1: there is no more work */
    int tile_begin, tile_end;         /* K/V tiles that some row sees; equal: none */
    int everyone_begin, everyone_end; /* keys that every used row sees: tiles inside need no mask */
    int key_end;                      /* for a consumer: of the keys that some row of its own sees */
} work_item;

/* What a consumer warpgroup has to do. */
DEVICE work_item work_load(uint32_t address, int consumer) {
    u32x4 a = shared_load_u32x4(address), b = shared_load_u32x4(address + 16);
    work_item w = {(int)a.x, (int)a.y, (int)a.z, (int)a.w, (int)b.x, (int)b.y, (int)b.z, 0};
    w.key_end = (int)shared_load_u32(address + 32 + 4 * (uint32_t)consumer);
    return w;
}

/*
 * From lane 0: the compiler then knows that all lanes have the same, and keeps what follows from it in uniform
 * registers.
 */
DEVICE int from_lane_0(int x) { return (int)shuffle_index_u32((uint32_t)x, 0); }

DEVICE work_item work_from_lane_0(work_item w) {
    const work_item same = {from_lane_0(w.entry),        from_lane_0(w.head),     from_lane_0(w.row),
                            from_lane_0(w.tile_begin),   from_lane_0(w.tile_end), from_lane_0(w.everyone_begin),
                            from_lane_0(w.everyone_end), from_lane_0(w.key_end)};
    return same;
}

/* For each of them; sequence: not used where there is no work. */
DEVICE void work_store(uint32_t address, const work_item *w, const device_sequence *sequence) {
    u32x4 a = {(uint32_t)w->entry, (uint32_t)w->head, (uint32_t)w->row, (uint32_t)w->tile_begin};
    u32x4 b = {(uint32_t)w->tile_end, (uint32_t)w->everyone_begin, (uint32_t)w->everyone_end, 0};
    shared_store_u32x4(address, a);
    shared_store_u32x4(address + 16, b);
    UNROLL
    for (int consumer = 0; consumer < CONSUMERS; consumer++) {
        const int row = w->row + 64 * consumer;
        shared_store_u32(address + 32 + 4 * (uint32_t)consumer,
                         w->row < 0 ? 0 : (uint32_t)tile_keys(&sequence->visibility, row, row + 64).some.end);
    }
}

/* Tile `number` in the order of work. Returns 0 if the sequence has no such rows. */
DEVICE int work_locate(work_item *w, device_sequence *sequence, const fa_v3_params *params, uint32_t number) {
    const fa_forward_params *p = &params->forward;
    uint32_t row_blocks = (uint32_t)p->row_blocks, pair, row_tile;
    if (params->longest_first) {
        uint32_t group = (uint32_t)params->group_heads, pairs = (uint32_t)params->pairs;
        uint32_t first = number / (group * row_blocks) * group, rest = number - first * row_blocks;
        if (pairs - first < group) group = pairs - first;
        row_tile = row_blocks - 1 - rest / group;
        pair = first + rest % group;
    } else {
        row_tile = number % row_blocks;
        pair = number / row_blocks;
    }
    w->head = (int)(pair % (uint32_t)p->heads);
    *sequence = tile_sequence(p, (int)(pair / (uint32_t)p->heads), &row_tile, BLOCK_M);
    w->entry = sequence->entry;
    w->row = (int)row_tile * BLOCK_M;
    if (w->row >= sequence->q_rows) return 0;

    const device_tile_keys keys = tile_keys(&sequence->visibility, w->row, w->row + BLOCK_M);
    w->tile_begin = w->tile_end = 0;
    w->everyone_begin = keys.all.begin;
    w->everyone_end = keys.all.end;
    if (keys.some.begin >= keys.some.end) return 1;
    w->tile_begin = keys.some.begin / BLOCK_N;
    w->tile_end = (keys.some.end + BLOCK_N - 1) / BLOCK_N;
    return 1;
}

/* ---- Loads ------------------------------------------------------------------------------------------------------- */

/* One lane asks for a tile of `rows` rows, page by page, and for its bytes to be counted on the barrier. */
DEVICE void load_pages(uint32_t tile, uint32_t barrier, const fa_tensor_map *map, int rows, int pages, int row,
                       int head, int entry) {
    if (lane_index() != 0) return;
    mbarrier_arrive_expect_tx(barrier, (uint32_t)(rows * pages * V3_PAGE * 2));
    UNROLL
    for (int page = 0; page < pages; page++)
        tma_load_4d(tile + (uint32_t)(page * PAGE_BYTES(rows)), map, barrier, page * V3_PAGE, row, head, entry);
}

/* In the slot that every consumer has read, which named barriers tell. */
DEVICE void publish(const shared_layout *s, uint32_t count, const work_item *w, const device_sequence *sequence) {
    uint32_t slot = ring_stage(count, 2);
    if (count >= 2) named_barrier_sync(BARRIER_WORK_READ(slot), WORK_THREADS);
    if (lane_index() != 0) return;
    work_store(s->work + WORK_BYTES * slot, w, sequence);
    mbarrier_arrive(s->work_full + 8 * slot);
}

#if GENERAL
/* Whether bias or mask hide a key from every row of the query tile. */
DEVICE int key_unseen(const fa_forward_params *p, const device_sequence *sequence, const work_item *w, int key) {
    for (int row = w->row; row < w->row + BLOCK_M && row < sequence->visibility.seqlen_q; row++) {
        fa_key_range keys = fa_visible_keys(&sequence->visibility, row);
        if (key < keys.begin || key >= keys.end) continue;
        if (p->mask.data &&
            global_load_u8(p->mask.data + sequence->entry * p->mask.batch_stride + w->head * p->mask.head_stride +
                           row * p->mask.row_stride + key * p->mask.key_stride) == 0)
            continue;
        if (p->bias.data &&
            load_element(p->bias.data + sequence->entry * p->bias.batch_stride + w->head * p->bias.head_stride +
                             row * p->bias.row_stride + key * p->bias.key_stride,
                         p->bias_type) == -INFINITY)
            continue;
        return 0;
    }
    return 1;
}
#endif

/* The keys that some query of the sequence sees by position. */
DEVICE fa_key_range keys_seen(const device_sequence *s) {
    return tile_keys(&s->visibility, 0, s->visibility.seqlen_q).some;
}

/*
 * Whether a V tile holds rows that no query may see, for their position or, perhaps, because bias or mask hide them:
 * their weights are 0, but 0 times NaN or infinity is NaN. Rows behind the tensor are zero already.
 */
DEVICE int values_need_cleaning(const fa_forward_params *p, fa_key_range seen, int key) {
    if (GENERAL && (p->bias.data || p->mask.data)) return 1;
    const int whole = !p->cu_seqlens_k.data && seen.end == p->rows_k;
    return key < seen.begin || (key + BLOCK_N > seen.end && !whole);
}

DEVICE void clean_values(uint32_t tile, const fa_forward_params *p, const device_sequence *sequence, fa_key_range seen,
                         const work_item *w, int key) {
    for (int row = (int)lane_index(); row < BLOCK_N; row += 32) {
        int unseen = key + row < seen.begin || key + row >= seen.end;
#if GENERAL
        if (!unseen && (p->bias.data || p->mask.data) && tile_row_not_finite(tile, BLOCK_N, row, HEAD_DIM_V))
            unseen = key_unseen(p, sequence, w, key + row);
#else
        (void)p;
        (void)sequence;
        (void)w;
#endif
        if (unseen) clear_tile_row(tile, BLOCK_N, row, HEAD_DIM_V);
    }
}

/*
 * The query tile that this block takes after `number`, in two steps, so that the tile at hand can be worked on in
 * between. All lanes get the answer.
 */
DEVICE uint32_t tile_request(const fa_v3_params *params) {
    return params->next_tile && lane_index() == 0 ? global_atomic_add_u32(params->next_tile, 1) : 0;
}

DEVICE uint32_t tile_answer(const fa_v3_params *params, uint32_t taken, uint32_t number) {
    return (params->next_tile ? shuffle_index_u32(taken, 0) : number) + grid_blocks_x();
}

/* A place in the ring of K and V tiles. */
typedef struct kv_stage {
    uint32_t number, empty; /* empty: parity of the phase that ends when all consumers have left the stage */
    uint32_t k, v;          /* tiles */
} kv_stage;

DEVICE kv_stage stage_of(const shared_layout *s, uint32_t kv) {
    kv_stage stage;
    stage.number = ring_stage(kv, STAGES);
    stage.empty = ring_parity(kv, STAGES) ^ 1u;
    stage.k = s->k + stage.number * BYTES_K;
    stage.v = s->v + stage.number * BYTES_V;
    return stage;
}

DEVICE void load_keys(const shared_layout *s, const fa_v3_params *params, const kv_stage *stage, int row, int head,
                      int entry) {
    mbarrier_wait(s->k_empty + 8 * stage->number, stage->empty);
    load_pages(stage->k, s->k_full + 8 * stage->number, &params->k, BLOCK_N, PAGES, row, head, entry);
}

/* Values that need cleaning; parity: of the number of such tiles before. */
DEVICE void load_cleaned_values(const shared_layout *s, const fa_v3_params *params, const kv_stage *stage, int row,
                                int head, int entry, const device_sequence *sequence, fa_key_range seen,
                                const work_item *w, int key, uint32_t parity) {
    load_pages(stage->v, s->v_raw, &params->v, BLOCK_N, PAGES_V, row, head, entry);
    mbarrier_wait(s->v_raw, parity);
    clean_values(stage->v, &params->forward, sequence, seen, w, key);
    fence_proxy_async_shared();
    warp_sync();
    if (lane_index() == 0) mbarrier_arrive(s->v_full + 8 * stage->number);
}

#endif
