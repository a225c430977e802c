/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the roles of the v3 backward kernel share: the layout of shared memory, and the block's keys. Included by
 * v3_backward.c behind its macros.
 */
#ifndef FA_KERNELS_V3_BACKWARD_MEMORY_H
#define FA_KERNELS_V3_BACKWARD_MEMORY_H

#include "backward_tiles.h"
#include "fragment.h"
#include "pipeline.h"
#include "score_backward.h"
#include "v3_backward_params.h"

/* ---- Shared memory ---- */

typedef struct shared_layout {
    uint32_t k, v, q, dout, s;           /* tiles; q and dout are rings, s holds dS twice, and P twice behind it */
    uint32_t dq;                         /* float32, 16 rows of a query tile per warp */
    uint32_t lse, delta, work;           /* per stage: BLOCK_M floats each, and 16 bytes */
    uint32_t order;                      /* 16 bytes: see dq_turn() */
    uint32_t kv_full, q_full, dout_full; /* mbarriers; one per stage but for the first */
    uint32_t raw;                        /* a tile that the producer still has to clean */
} shared_layout;

DEVICE shared_layout layout_shared(void) {
    shared_layout s;
    s.k = shared_base();
    s.v = s.k + BYTES_K;
    s.q = s.v + BYTES_V;
    s.dout = s.q + STAGES * BYTES_Q;
    s.s = s.dout + STAGES * BYTES_DO;
    s.dq = s.s + (SPLIT_COLUMNS ? 4 : 2) * BYTES_S;
    s.lse = s.dq + DQ_PLACES * V3B_DQ_BYTES(HEAD_DIM, BLOCK_M);
    s.delta = s.lse + STAGES * BLOCK_M * 4;
    s.work = s.delta + STAGES * BLOCK_M * 4;
    s.order = s.work + STAGES * 16;
    s.kv_full = s.order + 16;
    s.q_full = s.kv_full + 8;
    s.dout_full = s.q_full + STAGES * 8;
    s.raw = s.dout_full + STAGES * 8;
    return s;
}

DEVICE void init_barriers(const shared_layout *s) {
    mbarrier_init(s->kv_full, 32);
    mbarrier_init(s->raw, 1);
    for (uint32_t i = 0; i < STAGES; i++) {
        mbarrier_init(s->q_full + 8 * i, 1);
        mbarrier_init(s->dout_full + 8 * i, 1);
    }
    fence_mbarrier_init();
}

/* What consumers are told of a query tile: head, first row, one of these, and its number in the workspace. */
#define WORK_END 0u    /* there is no more */
#define WORK_PLAIN 1u  /* all queries see all keys */
#define WORK_MASKED 2u /* not all do */

/* ---- The block's keys ---- */

typedef struct key_work {
    key_tile tile;
    int key;           /* first key */
    fa_key_range seen; /* those that some query sees by position; all others count as zero */
} key_work;

/* Returns 0 if there are no such rows in dk and dv. */
DEVICE int work_locate(key_work *w, const fa_backward_params *params) {
    w->tile = key_tile_locate(params, BLOCK_N);
    w->key = key_tile_number(params, &w->tile, BLOCK_N) * BLOCK_N;
    const fa_visibility *v = &w->tile.sequence.visibility;
    const fa_key_range seen = tile_keys(v, 0, v->seqlen_q).some;
    w->seen.begin = w->key > seen.begin ? w->key : seen.begin;
    w->seen.end = w->key + BLOCK_N < seen.end ? w->key + BLOCK_N : seen.end;
    if (w->seen.end < w->seen.begin) w->seen.end = w->seen.begin;
    return w->key < w->tile.rows;
}

#endif
