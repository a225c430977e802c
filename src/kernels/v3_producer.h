/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer of the v3 forward kernel: one warp that feeds a whole block. Included by v3_forward.c behind its macros.
 */
#ifndef FA_KERNELS_V3_PRODUCER_H
#define FA_KERNELS_V3_PRODUCER_H

#include "v3_loads.h"

typedef struct producer {
    uint32_t number;                          /* of the next query tile to look at, in the order of work */
    uint32_t published, kv, cleaned, q_tiles; /* so far: query tiles, K/V tiles, V tiles cleaned, Q tiles */
} producer;

DEVICE void load_queries(producer *f, const shared_layout *s, const fa_v3_params *params, const work_item *w,
                         const device_sequence *sequence) {
    mbarrier_wait(s->q_empty, ring_parity(f->q_tiles, 1) ^ 1u);
    f->q_tiles++;
    load_pages(s->q, s->q_full, &params->q, BLOCK_M, PAGES, (int)sequence->q_begin + w->row, w->head,
               params->forward.cu_seqlens_q.data ? 0 : w->entry);
}

/*
 * K and V of a query tile, from the last tile to the first, as the consumers go through them. Q behind the first K:
 * where the consumers have no registers for it, they leave its place late. (Where they have, announce() loads it.)
 */
DEVICE void load_tiles(producer *f, const shared_layout *s, const fa_v3_params *params, const work_item *w) {
    const fa_forward_params *p = &params->forward;
    const device_sequence sequence = sequence_load(p, w->entry);
    const fa_key_range seen = keys_seen(&sequence);
    const int head_kv = w->head / p->group, entry_k = p->cu_seqlens_k.data ? 0 : w->entry;
    NO_UNROLL
    for (int tile = w->tile_end - 1; tile >= w->tile_begin; tile--) {
        const int row = (int)sequence.k_begin + tile * BLOCK_N;
        const kv_stage stage = stage_of(s, f->kv++);
        load_keys(s, params, &stage, row, head_kv, entry_k);
        if (!Q_REGISTERS && tile == w->tile_end - 1) load_queries(f, s, params, w, &sequence);
        mbarrier_wait(s->v_empty + 8 * stage.number, stage.empty);
        if (!values_need_cleaning(p, seen, tile * BLOCK_N))
            load_pages(stage.v, s->v_full + 8 * stage.number, &params->v, BLOCK_N, PAGES_V, row, head_kv, entry_k);
        else
            load_cleaned_values(s, params, &stage, row, head_kv, entry_k, &sequence, seen, w, tile * BLOCK_N,
                                f->cleaned++ & 1u);
    }
}

/* Tells the consumers their next query tile, or that there is none: then it returns 0. */
DEVICE int announce(producer *f, const shared_layout *s, const fa_v3_params *params) {
    while (f->number < (uint32_t)params->tiles) {
        work_item w;
        device_sequence sequence;
        if (!work_locate(&w, &sequence, params, f->number)) {
            f->number = tile_answer(params, tile_request(params), f->number);
            continue;
        }
        publish(s, f->published++, &w, &sequence);
        if (Q_REGISTERS && w.tile_begin < w.tile_end) load_queries(f, s, params, &w, &sequence);
        return 1;
    }
    const work_item end = {0, 0, -1, 0, 0, 0, 0, 0};
    publish(s, f->published++, &end, 0);
    return 0;
}

/* The next query tile is announced when all of this one has been loaded, while the consumers still work on it. */
DEVICE void produce(const shared_layout *s, const fa_v3_params *params) {
    producer f = {block_index_x(), 0, 0, 0, 0};
    while (announce(&f, s, params)) {
        warp_sync(); /* one lane has written it */
        const work_item w = work_load(s->work + WORK_BYTES * ring_stage(f.published - 1, 2), 0);
        const uint32_t taken = tile_request(params); /* early: the answer takes as long as a memory access */
        load_tiles(&f, s, params, &w);
        f.number = tile_answer(params, taken, f.number);
    }
}

#endif
