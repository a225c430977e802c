/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention-3 forward for Hopper (Shah et al., 2024). A block has a producer warpgroup, which only issues TMA
 * loads into a ring of K and V tiles, and CONSUMERS consumer warpgroups of 64 query rows each. The consumers' two
 * products run asynchronously on the tensor cores: while softmax works on the scores of tile j, the product P V of tile
 * j + 1 is under way (overlap inside a warpgroup), and the warpgroups take turns in issuing products, so that one's
 * softmax runs under the other's products (ping-pong). Blocks are persistent: the loads of the next query tile start
 * while the current one is finished.
 *
 * Compiled once per row of variants.def, with
 *   HEAD_DIM, HEAD_DIM_V  columns of Q, K and of V, O; smaller ones are padded with zeros by TMA
 *   BF16      1: bfloat16, 0: float16
 *   GENERAL   1: softcap, ALiBi, bias, boolean mask, scales <= 0; 0: none of these, and faster for it
 *   BLOCK_M   rows of a query tile, 64 per consumer warpgroup: 128 or 192
 *   WARPS     4 per warpgroup, the producer's included
 *   BLOCK_N   keys of a K/V tile
 *   STAGES    K/V tiles in flight, a power of two
 *
 * To measure what a technique is worth, the compiler can be told to leave it out:
 *   WARP_SPECIALISATION  0: no producer. The first warp of the consumers issues its loads, in program order between their
 *                        products, and only for the query tile at hand; all warpgroups have the same number of registers
 *   PING_PONG            0: consumer warpgroups issue products whenever they are ready
 *   OVERLAP              0: a warpgroup waits for each product before it goes on
 */
#ifndef WARP_SPECIALISATION
#    define WARP_SPECIALISATION 1
#endif
#ifndef PING_PONG
#    define PING_PONG 1
#endif
#ifndef OVERLAP
#    define OVERLAP 1
#endif
#define STRIPS 1 /* of 16 rows per warp */
#define OUT_COLUMNS HEAD_DIM_V
#define TILE_PAGE 64 /* as TMA lays tiles out, for every HEAD_DIM */

#include "output.h"
#include "pipeline.h"
#include "score.h"
#include "v3_params.h"

#define CONSUMERS (BLOCK_M / 64)
#define THREADS (128 * (CONSUMERS + WARP_SPECIALISATION))
#if WARPS != 4 * (CONSUMERS + 1) || (STAGES & (STAGES - 1)) != 0
#    error "WARPS: a warpgroup for the producer and one for every 64 rows; STAGES: a power of two, see ring_stage()"
#endif
/* The output tile takes the place of the Q tile where shared memory is short. */
#define OUT_IN_Q V3_OUT_IN_Q(HEAD_DIM, HEAD_DIM_V, BLOCK_M, BLOCK_N, STAGES)
/* Q fragments are kept in registers where there are enough: a product reads less shared memory for it. */
#define Q_REGISTERS (!GENERAL && !OUT_IN_Q && CONSUMERS == 2 && HEAD_DIM <= 128 && HEAD_DIM_V <= 128)

#define STEPS (HEAD_DIM / 16)
#define PAGES V3_PAGES(HEAD_DIM)
#define PAGES_V V3_PAGES(HEAD_DIM_V)
#define BYTES_Q V3_TILE_BYTES(BLOCK_M, HEAD_DIM)
#define BYTES_O V3_TILE_BYTES(BLOCK_M, HEAD_DIM_V)
#define BYTES_K V3_TILE_BYTES(BLOCK_N, HEAD_DIM)
#define BYTES_V V3_TILE_BYTES(BLOCK_N, HEAD_DIM_V)
#define PAGE_BYTES(rows) ((rows)*V3_PAGE * 2)

/* What the producer gives up of a multiprocessor's 65536 registers the consumers take; multiples of 8. */
#if CONSUMERS == 3
#    define PRODUCER_REGISTERS 32
#    define CONSUMER_REGISTERS 160
#else
#    define PRODUCER_REGISTERS 24
#    define CONSUMER_REGISTERS 240
#endif

/* Named barriers: the turn of each consumer warpgroup, and its own 128 threads in the epilogue. */
#define BARRIER_TURN 1
#define BARRIER_EPILOGUE 4

#include "v3_feeder.h"
#include "v3_loads.h"

/* ---- Producer ----------------------------------------------------------------------------------------------------------- */

/* One warp feeds the whole block: K and V from the last tile to the first, as the consumers go through them. */
DEVICE void produce(const shared_layout *s, const fa_v3_params *params) {
    const fa_forward_params *p = &params->forward;
    uint32_t published = 0, kv = 0, cleaned = 0, q_parity = 0, number = block_index_x(), blocks = grid_blocks_x();
    work_item w;
    while (number < (uint32_t)params->tiles) {
        device_sequence sequence;
        fa_key_range seen;
        uint32_t next = tile_after(params, number, blocks);
        int found = work_locate(&w, &sequence, &seen, params, number);
        number = next;
        if (!found) continue;
        publish(s, published++, &w);
        if (w.tile_begin == w.tile_end) continue;
        const int head_kv = w.head / p->group;
        const int entry_q = p->cu_seqlens_q.data ? 0 : w.entry, entry_k = p->cu_seqlens_k.data ? 0 : w.entry;
        mbarrier_wait(s->q_empty, q_parity ^ 1u);
        q_parity ^= 1u;
        load_pages(s->q, s->q_full, &params->q, BLOCK_M, PAGES, (int)sequence.q_begin + w.row, w.head, entry_q);
        NO_UNROLL
        for (int tile = w.tile_end - 1; tile >= w.tile_begin; tile--) {
            const int row = (int)sequence.k_begin + tile * BLOCK_N;
            const kv_stage stage = stage_of(s, kv);
            kv++;
            load_keys(s, params, &stage, row, head_kv, entry_k);
            mbarrier_wait(s->v_empty + 8 * stage.number, stage.empty);
            if (!values_need_cleaning(p, seen, tile * BLOCK_N))
                load_pages(stage.v, s->v_full + 8 * stage.number, &params->v, BLOCK_N, PAGES_V, row, head_kv, entry_k);
            else
                load_cleaned_values(s, params, &stage, row, head_kv, entry_k, &sequence, seen, &w, tile * BLOCK_N,
                                    cleaned++ & 1u);
        }
    }
    const work_item end = {0, 0, -1, 0, 0, 0, 0};
    publish(s, published, &end);
}

/* ---- Consumer: products --------------------------------------------------------------------------------------------------- */

/* S = Q K^T, issued and committed. */
DEVICE void issue_scores(float *s, uint32_t q_tile, const uint32_t *q, uint32_t k_tile) {
    const uint64_t k = wgmma_descriptor(k_tile, 16, 1024, SWIZZLE_128B);
#if Q_REGISTERS
    (void)q_tile;
#else
    (void)q;
    const uint64_t q_rows = wgmma_descriptor(q_tile, 16, 1024, SWIZZLE_128B);
#endif
    register_fence_f32(s, BLOCK_N / 2);
    wgmma_fence();
    UNROLL
    for (int step = 0; step < STEPS; step++) {
        const uint32_t offset_k = (uint32_t)(step / 4 * PAGE_BYTES(BLOCK_N) + step % 4 * 32);
#if Q_REGISTERS
        wgmma_m64k16_rs(BLOCK_N, MMA_TYPE, s, &q[4 * step], wgmma_descriptor_advance(k, offset_k), step > 0, K_MAJOR);
#else
        const uint32_t offset_q = (uint32_t)(step / 4 * PAGE_BYTES(BLOCK_M) + step % 4 * 32);
        wgmma_m64k16_ss(BLOCK_N, MMA_TYPE, s, wgmma_descriptor_advance(q_rows, offset_q),
                        wgmma_descriptor_advance(k, offset_k), step > 0, K_MAJOR, K_MAJOR);
#endif
    }
    wgmma_commit_group();
}

/* O += P V, or O = P V, issued and committed. */
DEVICE void issue_values(float *o, const uint32_t *p, uint32_t v_tile, int accumulate) {
    const uint64_t v = wgmma_descriptor(v_tile, PAGE_BYTES(BLOCK_N), 1024, SWIZZLE_128B);
    register_fence_f32(o, HEAD_DIM_V / 2);
    wgmma_fence();
    UNROLL
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma_m64k16_rs(HEAD_DIM_V, MMA_TYPE, o, &p[4 * step], wgmma_descriptor_advance(v, (uint32_t)step * 2048),
                        accumulate || step > 0, MN_MAJOR);
    wgmma_commit_group();
}

/* The weights as A operand: accumulators of 16 keys, packed, are the fragment over these keys. */
DEVICE void pack_weights(uint32_t *p, const float *s) {
    UNROLL
    for (int i = 0; i < BLOCK_N / 4; i++) p[i] = pack_16bit(s[2 * i], s[2 * i + 1]);
}

/* ---- Consumer: turns ------------------------------------------------------------------------------------------------------- */

DEVICE void turn_wait(int consumer) {
#if PING_PONG
    named_barrier_sync((uint32_t)(BARRIER_TURN + consumer), 256);
#else
    (void)consumer;
#endif
}

DEVICE void turn_pass(int consumer) {
#if PING_PONG
    named_barrier_arrive((uint32_t)(BARRIER_TURN + (consumer + 1 == CONSUMERS ? 0 : consumer + 1)), 256);
#else
    (void)consumer;
#endif
}

/* ---- Consumer: one query tile ------------------------------------------------------------------------------------------------ */

/* Raw scores of a tile become what softmax takes. */
DEVICE void prepare_scores(float *s, const fa_v3_params *params, const work_item *w, int consumer, int tile) {
    const int key = tile * BLOCK_N;
    if (!GENERAL && key >= w->everyone_begin && key + BLOCK_N <= w->everyone_end) return;
    /* Loaded where it is needed: the main loop has no registers to spare for it. */
    const device_sequence sequence = sequence_load(&params->forward, w->entry);
    const int thread = (int)thread_index() & 127, row = w->row + 64 * consumer + thread / 32 * 16 + thread % 32 / 4;
#if GENERAL
    modify_scores(s, BLOCK_N / 2, &params->forward, &sequence, w->head, row, key);
#else
    mask_positions(s, BLOCK_N / 2, &sequence.visibility, row, key);
#endif
}

DEVICE void rescale_output(float *o, const float *rescale) {
    /* Maxima settle after a few tiles; then the product with 1 is left out. */
    if (!vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
    UNROLL
    for (int i = 0; i < HEAD_DIM_V / 2; i++) o[i] *= rescale[i / 2 % 2];
}

/* O = softmax(Q K^T) V, not normalised, for the 64 rows of this warpgroup; takes part in the rings of K and V. */
DEVICE void attend(float *o, softmax_rows *rows, feeder *f, const shared_layout *shared, const fa_v3_params *params,
                   const work_item *w, int consumer, uint32_t kv, uint32_t q_parity, float scale_log2) {
    const int thread = (int)thread_index() & 127;
    const uint32_t q_tile = shared->q + (uint32_t)consumer * 64 * 128;
    float s[BLOCK_N / 2], rescale[2];
    uint32_t p[BLOCK_N / 4];
    feed_first(f, shared, params, w, consumer, kv, q_parity);
    mbarrier_wait(shared->q_full, q_parity);
#if Q_REGISTERS
    uint32_t q[4 * STEPS];
    const uint32_t q_address = a_fragment_address(q_tile, BLOCK_M, thread / 32 * 16);
    UNROLL
    for (int step = 0; step < STEPS; step++) ldmatrix_x4(&q[4 * step], fragment_at(q_address, BLOCK_M, 0, step));
    named_barrier_sync((uint32_t)(BARRIER_EPILOGUE + consumer), 128);
    release(shared->q_empty, thread);
#else
    const uint32_t *q = 0;
#endif

    uint32_t stage = ring_stage(kv, STAGES);
    mbarrier_wait(shared->k_full + 8 * stage, ring_parity(kv, STAGES));
    turn_wait(consumer);
    issue_scores(s, q_tile, q, shared->k + stage * BYTES_K);
    turn_pass(consumer);
    feed_next(f, shared, params, w, consumer, w->tile_end - 1, kv);
    wgmma_wait_group(0);
    register_fence_f32(s, BLOCK_N / 2);
    release(shared->k_empty + 8 * stage, thread);
    prepare_scores(s, params, w, consumer, w->tile_end - 1);
    softmax_step(s, BLOCK_N / 2, rows, scale_log2, rescale);
    pack_weights(p, s);

#if OVERLAP
    NO_UNROLL
    for (int tile = w->tile_end - 2; tile >= w->tile_begin; tile--) {
        const uint32_t v_stage = stage, v_parity = ring_parity(kv, STAGES); /* V lags behind K by one tile */
        kv++;
        stage = ring_stage(kv, STAGES);
        mbarrier_wait(shared->k_full + 8 * stage, ring_parity(kv, STAGES));
        turn_wait(consumer);
        issue_scores(s, q_tile, q, shared->k + stage * BYTES_K);
        mbarrier_wait(shared->v_full + 8 * v_stage, v_parity);
        issue_values(o, p, shared->v + v_stage * BYTES_V, tile < w->tile_end - 2);
        turn_pass(consumer);
        feed_next(f, shared, params, w, consumer, tile, kv);
        wgmma_wait_group(1); /* the scores; the values go on */
        register_fence_f32(s, BLOCK_N / 2);
        release(shared->k_empty + 8 * stage, thread);
        prepare_scores(s, params, w, consumer, tile);
        softmax_step(s, BLOCK_N / 2, rows, scale_log2, rescale);
        wgmma_wait_group(0);
        register_fence_f32(o, HEAD_DIM_V / 2);
        release(shared->v_empty + 8 * v_stage, thread);
        pack_weights(p, s);
        rescale_output(o, rescale);
    }
#else
    NO_UNROLL
    for (int tile = w->tile_end - 2; tile >= w->tile_begin; tile--) { /* the same, one thing after another */
        mbarrier_wait(shared->v_full + 8 * stage, ring_parity(kv, STAGES));
        turn_wait(consumer);
        issue_values(o, p, shared->v + stage * BYTES_V, tile < w->tile_end - 2);
        wgmma_wait_group(0);
        register_fence_f32(o, HEAD_DIM_V / 2);
        release(shared->v_empty + 8 * stage, thread);
        kv++;
        stage = ring_stage(kv, STAGES);
        mbarrier_wait(shared->k_full + 8 * stage, ring_parity(kv, STAGES));
        issue_scores(s, q_tile, q, shared->k + stage * BYTES_K);
        turn_pass(consumer);
        feed_next(f, shared, params, w, consumer, tile, kv);
        wgmma_wait_group(0);
        register_fence_f32(s, BLOCK_N / 2);
        release(shared->k_empty + 8 * stage, thread);
        prepare_scores(s, params, w, consumer, tile);
        softmax_step(s, BLOCK_N / 2, rows, scale_log2, rescale);
        pack_weights(p, s);
        rescale_output(o, rescale);
    }
#endif

#if !Q_REGISTERS && !OUT_IN_Q
    release(shared->q_empty, thread);
#endif
    mbarrier_wait(shared->v_full + 8 * stage, ring_parity(kv, STAGES));
    issue_values(o, p, shared->v + stage * BYTES_V, w->tile_end - w->tile_begin > 1);
    wgmma_wait_group(0);
    register_fence_f32(o, HEAD_DIM_V / 2);
    release(shared->v_empty + 8 * stage, thread);
}

/* ---- Consumer: epilogue ------------------------------------------------------------------------------------------------------ */

DEVICE void store_lse(const fa_forward_params *p, const device_sequence *s, int head, int row, float lse) {
    if (!p->lse || row >= s->q_rows) return;
    global_store_f32(p->lse + s->entry * p->lse_batch_stride + head * p->lse_head_stride +
                         (s->q_begin + row) * p->lse_row_stride,
                     lse);
}

/* Normalises the warpgroup's rows, writes them and their lse. */
DEVICE void finish(float *o, const softmax_rows *rows, const shared_layout *shared, const fa_v3_params *params,
                   const work_item *w, int consumer, float scale_log2) {
    const fa_forward_params *p = &params->forward;
    const device_sequence sequence = sequence_load(p, w->entry);
    const int thread = (int)thread_index() & 127, lane = thread % 32, warp_row = thread / 32 * 16;
    const int first_row = w->row + 64 * consumer;
    const uint32_t barrier = (uint32_t)(BARRIER_EPILOGUE + consumer),
                   tile = shared->out + (uint32_t)consumer * 64 * 128;
    float sink = p->sink.data ? device_table_float(&p->sink, w->head, 0) : -INFINITY;
    UNROLL
    for (int r = 0; r < 2; r++) {
        int row = first_row + warp_row + lane / 4 + 8 * r;
        softmax_result result = softmax_finish(rows, r, scale_log2, sink);
        if (row >= sequence.visibility.seqlen_q) { /* an unused query: whatever was computed for it is not a result */
            result.factor = 0.0f;
            result.lse = sink;
        }
        UNROLL
        for (int i = 0; i < HEAD_DIM_V / 2; i++)
            if (i / 2 % 2 == r) o[i] = result.factor == 0.0f ? 0.0f : o[i] * result.factor; /* O may be NaN */
        if (lane % 4 == 0) store_lse(p, &sequence, w->head, row, result.lse);
    }

    if (p->out_float32) {
        store_rows_elements((float(*)[HEAD_DIM_V / 2]) o, warp_row, &sequence, first_row, w->head, p);
        return;
    }

    if (thread == 0) bulk_wait_group_read(0); /* the last store has left the tile */
    named_barrier_sync(barrier, 128);
    const uint32_t address = a_fragment_address(tile, BLOCK_M, warp_row);
    UNROLL
    for (int n = 0; n < HEAD_DIM_V / 16; n++) {
        uint32_t pairs[4];
        UNROLL
        for (int i = 0; i < 4; i++) pairs[i] = pack_16bit(o[8 * n + 2 * i], o[8 * n + 2 * i + 1]);
        stmatrix_x4(fragment_at(address, BLOCK_M, 0, n), pairs);
    }
    if (params->store_by_tma) {
        fence_proxy_async_shared();
        named_barrier_sync(barrier, 128);
        if (thread == 0) {
            UNROLL
            for (int page = 0; page < PAGES_V; page++)
                tma_store_4d(&params->out, tile + (uint32_t)(page * PAGE_BYTES(BLOCK_M)), page * V3_PAGE, first_row,
                             w->head, sequence.entry);
            bulk_commit_group();
        }
        return;
    }
    warp_sync(); /* a warp stores the rows it wrote */
    UNROLL
    for (int i = 0; i < 16 * HEAD_DIM_V / 8 / 32; i++) {
        int index = i * 32 + lane, r = index / (HEAD_DIM_V / 8), chunk = index % (HEAD_DIM_V / 8),
            row = first_row + warp_row + r;
        if (row < sequence.q_rows && chunk * 8 < p->head_dim_v)
            global_store_u32x4(row_address(&p->out, &sequence, sequence.q_begin + row, w->head) + chunk * 16,
                               shared_load_u32x4(tile_address(tile, BLOCK_M, warp_row + r, chunk)));
    }
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
        if (thread == 0) store_lse(p, &sequence, w->head, row, sink);
    }
}

DEVICE void consume(const shared_layout *shared, const fa_v3_params *params, int consumer) {
    const int thread = (int)thread_index() & 127;
#if GENERAL
    const float scale_log2 = LOG2_E; /* modify_scores leaves natural units */
#else
    const float scale_log2 = params->forward.softmax_scale * LOG2_E;
#endif
    uint32_t kv = 0, taken = 0, q_parity = 0;
    feeder f = {block_index_x(), 0};
#if PING_PONG
    if (consumer == CONSUMERS - 1) turn_pass(consumer); /* the first turn is warpgroup 0's */
#endif
    for (;;) {
        const uint32_t slot = ring_stage(taken, 2);
        feed_work(&f, shared, params, consumer, taken);
        mbarrier_wait(shared->work_full + 8 * slot, ring_parity(taken, 2));
        taken++;
        const work_item w = work_load(shared->work + WORK_BYTES * slot);
        named_barrier_sync((uint32_t)(BARRIER_EPILOGUE + consumer), 128);
        release(shared->work_empty + 8 * slot, thread);
        if (w.row < 0) break;
        if (w.tile_begin == w.tile_end) {
            store_empty(params, &w, consumer);
            continue;
        }
        float o[HEAD_DIM_V / 2];
        softmax_rows rows;
        softmax_begin(&rows);
        attend(o, &rows, &f, shared, params, &w, consumer, kv, q_parity, scale_log2);
        q_parity ^= 1u;
        kv += (uint32_t)(w.tile_end - w.tile_begin);
        finish(o, &rows, shared, params, &w, consumer, scale_log2);
#if OUT_IN_Q
        fence_proxy_async_shared(); /* the output tile was read or written by this thread, and TMA fills it next */
        if (thread == 0) bulk_wait_group_read(0);
        named_barrier_sync((uint32_t)(BARRIER_EPILOGUE + consumer), 128);
        release(shared->q_empty, thread);
#endif
    }
    if (thread == 0) bulk_wait_group(0);
}

KERNEL(KERNEL_NAME, THREADS, 1, fa_v3_params, params) {
    shared_layout shared = layout_shared();
    uint32_t warpgroup = warpgroup_index();
    if (thread_index() == 0) init_barriers(&shared);
    block_sync();
    if (WARP_SPECIALISATION && warpgroup == 0) {
        set_max_registers_decrease(PRODUCER_REGISTERS);
        if (thread_index() < 32) produce(&shared, params);
    } else {
        if (WARP_SPECIALISATION) set_max_registers_increase(CONSUMER_REGISTERS);
        consume(&shared, params, (int)warpgroup - WARP_SPECIALISATION);
    }
}
