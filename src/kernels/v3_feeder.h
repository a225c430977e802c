/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The v3 forward kernel without warp specialisation (WARP_SPECIALISATION 0): what produce() of v3_producer.h does, a
 * piece at a time between the products of the consumers. With a producer, is_feeder() is 0 and nothing of this remains.
 *
 * K runs STAGES - 1 tiles ahead of the products, and V one tile less. When the products of a tile have been issued,
 * those of the tile before it are done or first in the queue, so that the warp hardly waits for the stages that they
 * leave.
 */
#ifndef FA_KERNELS_V3_FEEDER_H
#define FA_KERNELS_V3_FEEDER_H

#include "v3_loads.h"

/* The warp that issues the loads: the first of the consumers. */
DEVICE int is_feeder(int consumer) { return !WARP_SPECIALISATION && consumer == 0 && thread_index() < 32; }

typedef struct feeder {
    uint32_t number;  /* of the next query tile */
    uint32_t cleaned; /* V tiles so far */
} feeder;

/* The next query tile, for all consumers. */
DEVICE void feed_work(feeder *f, const shared_layout *s, const fa_v3_params *params, int consumer, uint32_t published) {
    if (!is_feeder(consumer)) return;
    device_sequence sequence;
    work_item w;
    int found = 0;
    while (!found && f->number < (uint32_t)params->tiles) {
        const uint32_t number = f->number;
        f->number = tile_answer(params, tile_request(params), number);
        found = work_locate(&w, &sequence, params, number);
    }
    if (!found) w.row = -1;
    publish(s, published, &w, &sequence);
}

/* K of a tile, the one at `kv` of the ring, and V of the tile before it, as far as they belong to the query tile. */
DEVICE void feed_tiles(feeder *f, const shared_layout *s, const fa_v3_params *params, const work_item *w, int tile,
                       uint32_t kv) {
    const fa_forward_params *p = &params->forward;
    const device_sequence sequence = sequence_load(p, w->entry);
    const int head_kv = w->head / p->group, entry_k = p->cu_seqlens_k.data ? 0 : w->entry;
    const int row = (int)sequence.k_begin + tile * BLOCK_N, key_v = (tile + 1) * BLOCK_N;
    if (tile >= w->tile_begin) {
        const kv_stage stage = stage_of(s, kv);
        load_keys(s, params, &stage, row, head_kv, entry_k);
    }
    if (tile + 1 < w->tile_begin || tile + 1 >= w->tile_end) return;
    const kv_stage stage = stage_of(s, kv - 1);
    const fa_key_range seen = keys_seen(&sequence);
    mbarrier_wait(s->v_empty + 8 * stage.number, stage.empty);
    if (!values_need_cleaning(p, seen, key_v))
        load_pages(stage.v, s->v_full + 8 * stage.number, &params->v, BLOCK_N, PAGES_V, row + BLOCK_N, head_kv,
                   entry_k);
    else
        load_cleaned_values(s, params, &stage, row + BLOCK_N, head_kv, entry_k, &sequence, seen, w, key_v,
                            f->cleaned++ & 1u);
}

/* Q, and as many tiles as go ahead of the products. */
DEVICE void feed_first(feeder *f, const shared_layout *s, const fa_v3_params *params, const work_item *w, int consumer,
                       uint32_t kv, uint32_t q_parity) {
    if (!is_feeder(consumer)) return;
    const fa_forward_params *p = &params->forward;
    const device_sequence sequence = sequence_load(p, w->entry);
    mbarrier_wait(s->q_empty, q_parity ^ 1u);
    load_pages(s->q, s->q_full, &params->q, BLOCK_M, PAGES, (int)sequence.q_begin + w->row, w->head,
               p->cu_seqlens_q.data ? 0 : w->entry);
    NO_UNROLL
    for (int i = 0; i < STAGES - 1; i++) feed_tiles(f, s, params, w, w->tile_end - 1 - i, kv + (uint32_t)i);
}

/*
 * Behind the products with K of a tile, the one at `kv`, and V of the tile before: what takes the place of their
 * predecessors.
 */
DEVICE void feed_next(feeder *f, const shared_layout *s, const fa_v3_params *params, const work_item *w, int consumer,
                      int tile, uint32_t kv) {
    if (is_feeder(consumer)) feed_tiles(f, s, params, w, tile - (STAGES - 1), kv + STAGES - 1);
}

#endif
