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
 *   STAGES    K/V tiles in flight
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

#include "pipeline.h"
#include "score.h"
#include "v3_params.h"

#define CONSUMERS (BLOCK_M / 64)
#define THREADS (128 * (CONSUMERS + WARP_SPECIALISATION))
#if WARPS != 4 * (CONSUMERS + 1)
#    error "WARPS: a warpgroup for the producer and one for every 64 rows"
#endif
/* Q fragments are kept in registers where there are enough: a product reads less shared memory for it. */
#define Q_REGISTERS (!GENERAL && !OUT_IN_Q && CONSUMERS == 2 && HEAD_DIM <= 128 && HEAD_DIM_V <= 128)

/*
 * Where shared memory is short, the output has no place of its own. Two warpgroups then take the stages of their last K
 * and their last V tile, which come round again no sooner than the second K/V tile of the next query tile; if these are
 * too small, they take the place of their Q tiles, which keeps the next ones waiting.
 */
#define NO_PLACE_FOR_OUT V3_TOO_LARGE(HEAD_DIM, HEAD_DIM_V, BLOCK_M, BLOCK_N, STAGES)
#define OUT_IN_RING (NO_PLACE_FOR_OUT && CONSUMERS == 2 && BYTES_O / 2 <= BYTES_K && BYTES_O / 2 <= BYTES_V)
#define OUT_IN_Q (NO_PLACE_FOR_OUT && !OUT_IN_RING)
#define OUT_ROWS (OUT_IN_RING ? 64 : BLOCK_M) /* of the tile in shared memory that a warpgroup's output is a part of */

/*
 * A warpgroup whose rows see no more of a tile than its first NARROW keys, half of it, computes the products of these
 * alone. A number, since it becomes part of instructions; a multiple of 16.
 */
#if BLOCK_N == 128
#    define NARROW 64
#elif BLOCK_N == 96 || BLOCK_N == 80
#    define NARROW 48
#else
#    define NARROW 32
#endif

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
#elif GENERAL /* the producer looks up bias and mask, too */
#    define PRODUCER_REGISTERS 56
#    define CONSUMER_REGISTERS 224
#else
#    define PRODUCER_REGISTERS 40
#    define CONSUMER_REGISTERS 232
#endif

/* How far, in powers of two, a maximum may rise before O is rescaled: see softmax_step(). */
#define SLACK 8.0f

/* Named barriers: the turn of each consumer warpgroup, and its own 128 threads in the epilogue. */
#define BARRIER_TURN 1
#define BARRIER_EPILOGUE 4
/*
 * The output in the ring: one warpgroup has left the stage that the other one takes. It may be a query tile ahead:
 * parity.
 */
#define BARRIER_KEYS_LEFT(parity) (6 + (parity))
#define BARRIER_VALUES_LEFT(parity) (8 + (parity))
/* A slot of work has been read: the consumers and the warp that writes there, which may be one of theirs. */
#define BARRIER_WORK_READ(slot) (10 + (slot))
#define WORK_THREADS (128 * CONSUMERS + (WARP_SPECIALISATION ? 32 : 0))
#if WORK_THREADS > THREADS
#    error "a barrier of more threads than there are"
#endif

#include "v3_epilogue.h"
#include "v3_feeder.h"
#include "v3_producer.h"

/* ---- Consumer: products ------------------------------------------------------------------------------------------ */

/*
 * S = Q K^T with the first n keys of a tile, issued and committed. A macro, since n is part of the instruction. q:
 * fragments, or not used.
 */
#if Q_REGISTERS
#    define MULTIPLY_QUERIES(n, s, q_rows, q, step, k) \
        wgmma_m64k16_rs(n, MMA_TYPE, s, &(q)[4 * (step)], k, (step) > 0, K_MAJOR)
#else
#    define MULTIPLY_QUERIES(n, s, q_rows, q, step, k)                                                           \
        wgmma_m64k16_ss(                                                                                         \
            n, MMA_TYPE, s,                                                                                      \
            wgmma_descriptor_advance(q_rows, (uint32_t)((step) / 4 * PAGE_BYTES(BLOCK_M) + (step) % 4 * 32)), k, \
            (step) > 0, K_MAJOR, K_MAJOR)
#endif
#define ISSUE_SCORES(n, s, q_tile, q, k_tile)                                                                  \
    do {                                                                                                       \
        const uint64_t k_rows = wgmma_descriptor(k_tile, 16, 1024, SWIZZLE_128B);                              \
        const uint64_t q_rows = wgmma_descriptor(q_tile, 16, 1024, SWIZZLE_128B);                              \
        (void)q_rows;                                                                                          \
        (void)(q);                                                                                             \
        register_fence_f32(s, (n) / 2);                                                                        \
        wgmma_fence();                                                                                         \
        UNROLL                                                                                                 \
        for (int step = 0; step < STEPS; step++)                                                               \
            MULTIPLY_QUERIES(                                                                                  \
                n, s, q_rows, q, step,                                                                         \
                wgmma_descriptor_advance(k_rows, (uint32_t)(step / 4 * PAGE_BYTES(BLOCK_N) + step % 4 * 32))); \
        wgmma_commit_group();                                                                                  \
    } while (0)

/* O += P V, or O = P V, over the tile's first `keys`, a constant; issued and committed. */
DEVICE void issue_values_of(float *o, const uint32_t *p, uint32_t v_tile, int accumulate, int keys) {
    const uint64_t v = wgmma_descriptor(v_tile, PAGE_BYTES(BLOCK_N), 1024, SWIZZLE_128B);
    register_fence_f32(o, HEAD_DIM_V / 2);
    wgmma_fence();
    UNROLL
    for (int step = 0; step < keys / 16; step++)
        wgmma_m64k16_rs(HEAD_DIM_V, MMA_TYPE, o, &p[4 * step], wgmma_descriptor_advance(v, (uint32_t)step * 2048),
                        accumulate || step > 0, MN_MAJOR);
    wgmma_commit_group();
}

/* Two whole copies: with a branch in between, the compiler would let one product wait for the other. */
DEVICE void issue_values(float *o, const uint32_t *p, uint32_t v_tile, int accumulate, int narrow) {
    if (narrow)
        issue_values_of(o, p, v_tile, accumulate, NARROW);
    else
        issue_values_of(o, p, v_tile, accumulate, BLOCK_N);
}

/*
 * The weights of the tile's first `keys` as A operand: accumulators of 16 keys, packed, are the fragment over these
 * keys.
 */
DEVICE void pack_weights(uint32_t *p, const float *s, int keys) {
    UNROLL
    for (int i = 0; i < BLOCK_N / 4; i++) p[i] = i < keys / 4 ? pack_16bit(s[2 * i], s[2 * i + 1]) : 0;
}

/* ---- Consumer: turns --------------------------------------------------------------------------------------------- */

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

/* ---- Consumer: one query tile ------------------------------------------------------------------------------------ */

/* Raw scores of a tile's first `keys` become what softmax takes. */
DEVICE void prepare_scores(float *s, int keys, const fa_v3_params *params, const work_item *w, int consumer, int tile) {
    const int key = tile * BLOCK_N;
    if (!GENERAL && key >= w->everyone_begin && key + BLOCK_N <= w->everyone_end) return;
    /* Loaded where it is needed: the main loop has no registers to spare for it. */
    const device_sequence sequence = sequence_load(&params->forward, w->entry);
    const int thread = (int)thread_index() & 127, row = w->row + 64 * consumer + thread / 32 * 16 + thread % 32 / 4;
#if GENERAL
    modify_scores(s, keys / 2, &params->forward, &sequence, w->head, row, key);
#else
    mask_positions(s, keys / 2, &sequence.visibility, row, key);
#endif
}

/* Maxima settle after a few tiles; then the product with 1 is left out. */
DEVICE int rescale_needed(const float *rescale) { return vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f); }

DEVICE void scale_output(float *o, const float *rescale) {
    UNROLL
    for (int i = 0; i < HEAD_DIM_V / 2; i++) o[i] *= rescale[i / 2 % 2];
}

DEVICE void wait_for_values(float *o) {
    wgmma_wait_group(0);
    register_fence_f32(o, HEAD_DIM_V / 2);
}

/*
 * The compiler would move the wait for P V above the softmax that is to run beside it; past a branch it does not. This
 * one is never taken: without tiles there is no launch. (The wait itself must not stand in a branch that only some
 * warps take.)
 */
DEVICE void keep_before(float *s, const shared_layout *shared, const fa_v3_params *params) {
    register_fence_f32(s, BLOCK_N / 2);
    if (params->tiles == 0) mbarrier_wait(shared->q_empty, 0);
}

/* A K/V tile of which the warpgroup sees nothing: it takes its turn, and leaves the stages, unless it keeps them. */
DEVICE void pass_over(const shared_layout *shared, int consumer, uint32_t kv, int keep) {
    const int thread = (int)thread_index() & 127;
    const uint32_t stage = ring_stage(kv, STAGES), parity = ring_parity(kv, STAGES);
    turn_wait(consumer);
    turn_pass(consumer);
    mbarrier_wait(shared->k_full + 8 * stage, parity);
    mbarrier_wait(shared->v_full + 8 * stage, parity);
    if (keep) return;
    release(shared->k_empty + 8 * stage, thread);
    release(shared->v_empty + 8 * stage, thread);
}

/* The first tile of a warpgroup, from scores to weights: n, a constant, is BLOCK_N or NARROW. */
#define ATTEND_FIRST(n)                                                               \
    do {                                                                              \
        ISSUE_SCORES(n, s, q_tile, q, shared->k + stage * BYTES_K);                   \
        turn_pass(consumer);                                                          \
        give_back(kept, shared, thread);                                              \
        feed_next(f, shared, params, w, consumer, tile, kv);                          \
        wgmma_wait_group(0);                                                          \
        register_fence_f32(s, (n) / 2);                                               \
        leave_keys(shared, stage, consumer, tile == w->tile_begin, q_parity, thread); \
        prepare_scores(s, n, params, w, consumer, tile);                              \
        softmax_step(s, (n) / 2, rows, scale_log2, SLACK, rescale);                   \
        pack_weights(p, s, n);                                                        \
    } while (0)

/* O = softmax(Q K^T) V, not normalised, for the 64 rows of this warpgroup; takes part in the rings of K and V. */
DEVICE void attend(float *o, softmax_rows *rows, feeder *f, const shared_layout *shared, const fa_v3_params *params,
                   const work_item *w, int consumer, uint32_t kv, uint32_t q_parity, float scale_log2, uint32_t *kept) {
    const int thread = (int)thread_index() & 127;
    const uint32_t q_tile = shared->q + (uint32_t)consumer * 64 * 128;
    /* Tiles at the end of which this warpgroup sees nothing. */
    const int own_end = (w->key_end + BLOCK_N - 1) / BLOCK_N,
              unseen = w->tile_end - (own_end > w->tile_begin ? own_end : w->tile_begin);
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
    uint32_t q[1]; /* not used */
#endif

    NO_UNROLL
    for (int i = 0; i < unseen; i++) {
        pass_over(shared, consumer, kv + (uint32_t)i, OUT_IN_RING && w->tile_end - 1 - i == w->tile_begin);
        give_back(kept, shared, thread);
        feed_next(f, shared, params, w, consumer, w->tile_end - 1 - i, kv + (uint32_t)i);
    }
    int tile = from_lane_0(w->tile_end - 1 - unseen);
    kv = (uint32_t)from_lane_0((int)kv + unseen);
    if (tile < w->tile_begin) { /* none left */
#if !Q_REGISTERS && !OUT_IN_Q
        release(shared->q_empty, thread);
#endif
        if (OUT_IN_RING)
            named_barrier_arrive(consumer == 1 ? BARRIER_KEYS_LEFT(q_parity) : BARRIER_VALUES_LEFT(q_parity), 256);
        return;
    }

    uint32_t stage = ring_stage(kv, STAGES);
    mbarrier_wait(shared->k_full + 8 * stage, ring_parity(kv, STAGES));
    turn_wait(consumer);
    int narrow = w->key_end <= tile * BLOCK_N + NARROW, accumulate = 0;
    if (narrow) {
        ATTEND_FIRST(NARROW);
    } else {
        ATTEND_FIRST(BLOCK_N);
    }

#if OVERLAP
    NO_UNROLL
    for (tile--; tile >= w->tile_begin; tile--) {
        const uint32_t v_stage = stage, v_parity = ring_parity(kv, STAGES); /* V lags behind K by one tile */
        kv++;
        stage = ring_stage(kv, STAGES);
        mbarrier_wait(shared->k_full + 8 * stage, ring_parity(kv, STAGES));
        turn_wait(consumer);
        ISSUE_SCORES(BLOCK_N, s, q_tile, q, shared->k + stage * BYTES_K);
        mbarrier_wait(shared->v_full + 8 * v_stage, v_parity);
        issue_values(o, p, shared->v + v_stage * BYTES_V, accumulate, narrow);
        narrow = 0;
        accumulate = 1;
        turn_pass(consumer);
        feed_next(f, shared, params, w, consumer, tile, kv);
        wgmma_wait_group(1); /* the scores; the values go on */
        register_fence_f32(s, BLOCK_N / 2);
        leave_keys(shared, stage, consumer, tile == w->tile_begin, q_parity, thread);
        prepare_scores(s, BLOCK_N, params, w, consumer, tile);
        softmax_step(s, BLOCK_N / 2, rows, scale_log2, SLACK, rescale);
        keep_before(s, shared, params);
        wait_for_values(o);
        if (rescale_needed(rescale)) scale_output(o, rescale);
        release(shared->v_empty + 8 * v_stage, thread);
        pack_weights(p, s, BLOCK_N);
    }
#else
    NO_UNROLL
    for (tile--; tile >= w->tile_begin; tile--) { /* the same, one thing after another */
        mbarrier_wait(shared->v_full + 8 * stage, ring_parity(kv, STAGES));
        turn_wait(consumer);
        issue_values(o, p, shared->v + stage * BYTES_V, accumulate, narrow);
        narrow = 0;
        accumulate = 1;
        wait_for_values(o);
        release(shared->v_empty + 8 * stage, thread);
        kv++;
        stage = ring_stage(kv, STAGES);
        mbarrier_wait(shared->k_full + 8 * stage, ring_parity(kv, STAGES));
        ISSUE_SCORES(BLOCK_N, s, q_tile, q, shared->k + stage * BYTES_K);
        turn_pass(consumer);
        feed_next(f, shared, params, w, consumer, tile, kv);
        wgmma_wait_group(0);
        register_fence_f32(s, BLOCK_N / 2);
        leave_keys(shared, stage, consumer, tile == w->tile_begin, q_parity, thread);
        prepare_scores(s, BLOCK_N, params, w, consumer, tile);
        softmax_step(s, BLOCK_N / 2, rows, scale_log2, SLACK, rescale);
        pack_weights(p, s, BLOCK_N);
        if (rescale_needed(rescale)) scale_output(o, rescale);
    }
#endif

#if !Q_REGISTERS && !OUT_IN_Q
    release(shared->q_empty, thread);
#endif
    mbarrier_wait(shared->v_full + 8 * stage, ring_parity(kv, STAGES));
    issue_values(o, p, shared->v + stage * BYTES_V, accumulate, narrow);
    wait_for_values(o);
    leave_last_values(shared, stage, consumer, q_parity, thread);
}

/* ---- Roles ------------------------------------------------------------------------------------------------------- */

DEVICE void consume(const shared_layout *shared, const fa_v3_params *params, int consumer) {
    const int thread = (int)thread_index() & 127;
#if GENERAL
    const float scale_log2 = LOG2_E; /* modify_scores leaves natural units */
#else
    const float scale_log2 = params->forward.softmax_scale * LOG2_E;
#endif
    uint32_t kv = 0, taken = 0, q_parity = 0;
    feeder f = {block_index_x(), 0};
    uint32_t kept = STAGES;
#if PING_PONG
    if (consumer == CONSUMERS - 1) turn_pass(consumer); /* the first turn is warpgroup 0's */
#endif
    for (;;) {
        const uint32_t slot = ring_stage(taken, 2);
        feed_work(&f, shared, params, consumer, taken);
        mbarrier_wait(shared->work_full + 8 * slot, ring_parity(taken, 2));
        taken++;
        const work_item w = work_from_lane_0(work_load(shared->work + WORK_BYTES * slot, consumer));
        if (!is_feeder(consumer)) named_barrier_arrive(BARRIER_WORK_READ(slot), WORK_THREADS); /* publish() does */
        if (w.row < 0) break;
        if (w.tile_begin == w.tile_end) {
            store_empty(params, &w, consumer);
            continue;
        }
        float o[HEAD_DIM_V / 2];
        softmax_rows rows;
        softmax_begin(&rows);
        attend(o, &rows, &f, shared, params, &w, consumer, kv, q_parity, scale_log2, &kept);
        kv += (uint32_t)(w.tile_end - w.tile_begin);
        if (OUT_IN_RING) kept = ring_stage(kv - 1, STAGES);
        finish(o, &rows, shared, params, &w, consumer, scale_log2, q_parity, ring_stage(kv - 1, STAGES));
        q_parity ^= 1u;
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
