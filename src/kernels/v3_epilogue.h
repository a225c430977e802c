/* SPDX-License-Identifier: Apache-2.0 */
/* How a consumer warpgroup of the v3 forward kernel ends a query tile. Included by v3_forward.c behind its macros. */
#ifndef FA_KERNELS_V3_EPILOGUE_H
#define FA_KERNELS_V3_EPILOGUE_H

#include "output.h"
#include "v3_loads.h"

/* ---- Stages that hold the output (OUT_IN_RING) ---- */

/*
 * They are kept until the output has left them. Nobody waits for that: they are given back when the first products of
 * the next query tile have been issued. kept: such a stage, or STAGES.
 */
DEVICE void give_back(uint32_t *kept, const shared_layout *s, int thread) {
    if (!OUT_IN_RING || *kept == STAGES) return;
    if (thread == 0) bulk_wait_group_read(0);
    release(s->k_empty + 8 * *kept, thread);
    release(s->v_empty + 8 * *kept, thread);
    *kept = STAGES;
}

/*
 * Warpgroup 0 takes the place of K, and warpgroup 1 that of V: each says when it has left the other one's. last: of the
 * query tile. parity: of the query tile.
 */
DEVICE void leave_keys(const shared_layout *s, uint32_t stage, int consumer, int last, uint32_t parity, int thread) {
    if (!OUT_IN_RING || !last)
        release(s->k_empty + 8 * stage, thread);
    else if (consumer == 1)
        named_barrier_arrive(BARRIER_KEYS_LEFT(parity), 256);
}

DEVICE void leave_last_values(const shared_layout *s, uint32_t stage, int consumer, uint32_t parity, int thread) {
    if (!OUT_IN_RING)
        release(s->v_empty + 8 * stage, thread);
    else if (consumer == 0)
        named_barrier_arrive(BARRIER_VALUES_LEFT(parity), 256);
}

/*
 * Where the warpgroup's rows of the output lie, when nobody reads there any more. stage: of the query tile's last K and
 * V.
 */
DEVICE uint32_t out_tile(const shared_layout *s, uint32_t stage, int consumer, uint32_t parity) {
    if (!OUT_IN_RING) return s->out + (uint32_t)consumer * 64 * 128;
    named_barrier_sync(consumer == 0 ? BARRIER_KEYS_LEFT(parity) : BARRIER_VALUES_LEFT(parity), 256);
    return consumer == 0 ? s->k + stage * BYTES_K : s->v + stage * BYTES_V;
}

/* ---- Output and lse ---- */

DEVICE void store_row_lse(const fa_forward_params *p, const device_sequence *s, int head, int row, float lse) {
    if (!p->lse || row >= s->q_rows) return;
    global_store_f32(p->lse + s->entry * p->lse_batch_stride + head * p->lse_head_stride +
                         (s->q_begin + row) * p->lse_row_stride,
                     lse);
}

/* Of a warp's 16 rows. Behind the fence for the output, which would wait for these stores. */
DEVICE void store_lse(const fa_forward_params *p, const device_sequence *s, int head, int row,
                      const softmax_result result[2]) {
    const int lane = (int)lane_index();
    if (lane % 4 != 0) return;
    UNROLL
    for (int r = 0; r < 2; r++) store_row_lse(p, s, head, row + lane / 4 + 8 * r, result[r].lse);
}

/* Normalises the warpgroup's rows, writes them and their lse. */
DEVICE void finish(float *o, const softmax_rows *rows, const shared_layout *shared, const fa_v3_params *params,
                   const work_item *w, int consumer, float scale_log2, uint32_t q_parity, uint32_t stage) {
    const fa_forward_params *p = &params->forward;
    const device_sequence sequence = sequence_load(p, w->entry);
    const int thread = (int)thread_index() & 127, lane = thread % 32, warp_row = thread / 32 * 16;
    const int first_row = w->row + 64 * consumer;
    const uint32_t barrier = (uint32_t)(BARRIER_EPILOGUE + consumer);
    const uint32_t tile = out_tile(shared, stage, consumer, q_parity);
    float sink = p->sink.data ? device_table_float(&p->sink, w->head, 0) : -INFINITY;
    softmax_result result[2];
    UNROLL
    for (int r = 0; r < 2; r++) {
        result[r] = softmax_finish(rows, r, scale_log2, sink);
        if (first_row + warp_row + lane / 4 + 8 * r >= sequence.visibility.seqlen_q) {
            result[r].factor = 0.0f; /* an unused query: whatever was computed for it is not a result */
            result[r].lse = sink;
        }
        UNROLL
        for (int i = 0; i < HEAD_DIM_V / 2; i++)
            if (i / 2 % 2 == r) o[i] *= result[r].factor;
        if (!vote_any(result[r].factor == 0.0f)) continue;
        UNROLL
        for (int i = 0; i < HEAD_DIM_V / 2; i++) /* O may be NaN */
            if (i / 2 % 2 == r && result[r].factor == 0.0f) o[i] = 0.0f;
    }

    if (p->out_float32) {
        store_rows_elements((float(*)[HEAD_DIM_V / 2]) o, warp_row, &sequence, first_row, w->head, p);
        store_lse(p, &sequence, w->head, first_row + warp_row, result);
        return;
    }

    if (!OUT_IN_RING) { /* the last store has left the tile */
        if (thread == 0) bulk_wait_group_read(0);
        named_barrier_sync(barrier, 128);
    }
    store_rounded(a_fragment_address(tile, OUT_ROWS, warp_row), OUT_ROWS, o, HEAD_DIM_V);
    if (params->store_by_tma) {
        fence_proxy_async_shared();
        named_barrier_sync(barrier, 128);
        if (thread == 0) {
            UNROLL
            for (int page = 0; page < PAGES_V; page++)
                tma_store_4d(&params->out, tile + (uint32_t)(page * PAGE_BYTES(OUT_ROWS)), page * V3_PAGE, first_row,
                             w->head, sequence.entry);
            bulk_commit_group();
        }
        store_lse(p, &sequence, w->head, first_row + warp_row, result);
        return;
    }
    store_lse(p, &sequence, w->head, first_row + warp_row, result);
    warp_sync(); /* a warp stores the rows it wrote */
    UNROLL
    for (int i = 0; i < 16 * HEAD_DIM_V / 8 / 32; i++) {
        int index = i * 32 + lane, r = index / (HEAD_DIM_V / 8), chunk = index % (HEAD_DIM_V / 8),
            row = first_row + warp_row + r;
        if (row < sequence.q_rows && chunk * 8 < p->head_dim_v)
            global_store_u32x4(row_address(&p->out, &sequence, sequence.q_begin + row, w->head) + chunk * 16,
                               shared_load_u32x4(tile_address(tile, OUT_ROWS, warp_row + r, chunk)));
    }
    if (OUT_IN_RING) fence_proxy_async_shared(); /* TMA fills the tile next */
}

/* Rows that see no key: O = 0, lse = -inf or the sink. Nothing of it is in a hurry. */
DEVICE void store_empty(const fa_v3_params *params, const work_item *w, int consumer) {
    const fa_forward_params *p = &params->forward;
    const device_sequence sequence = sequence_load(p, w->entry);
    const int thread = (int)thread_index() & 127;
    const float sink = p->sink.data ? device_table_float(&p->sink, w->head, 0) : -INFINITY;
    NO_UNROLL
    for (int row = w->row + 64 * consumer; row < w->row + 64 * (consumer + 1) && row < sequence.q_rows; row++) {
        char *out = row_address(&p->out, &sequence, sequence.q_begin + row, w->head);
        for (int i = thread; i < p->head_dim_v; i += 128) store_element(out, i, 0.0f, p);
        if (thread == 0) store_row_lse(p, &sequence, w->head, row, sink);
    }
}

#endif
