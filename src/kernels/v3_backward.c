/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention-3 backward for Hopper (Shah et al., 2024, on the algorithm of Dao, 2023). A block of threads keeps a
 * tile of K and V and goes through the query tiles that see some of it, of all query heads that share it:
 *
 *     S^T = K Q^T,  dP^T = V dO^T        both products at once
 *     P^T = exp(S^T - lse)               while dP^T is under way
 *     dS^T = P^T (dP^T - D)
 *     dV += P^T dO,  dK += dS^T Q        in registers until the end: no other block adds to them
 *     dQ_sum += dS K                     float32 additions in global memory, by bulk reductions from shared memory, or
 *                                        at head_dim 256 from the registers
 *
 * A producer warp feeds it by TMA, as in v3_forward.c. Scores are computed transposed, keys down and queries across, so
 * that P^T and dS^T are in the registers in which the products with dO and Q want them. With heads of more than 128
 * columns dK and dV of 64 keys would not fit the registers of a warpgroup; there the two consumer warpgroups share the
 * keys and split the columns, and P^T goes through shared memory as dS^T does everywhere.
 *
 * Compiled once per row of variants.def, with HEAD_DIM, HEAD_DIM_V, BF16, GENERAL, BLOCK_M, BLOCK_N, STAGES and WARPS
 * as in v3_forward.c; WARPS is 12. GENERAL: softcap, ALiBi, bias, boolean mask, scales <= 0.
 */
#include "v3_backward_params.h"

#define TILE_PAGE V3B_PAGE(HEAD_DIM)

#include "backward_tiles.h"
#include "fragment.h"
#include "pipeline.h"
#include "score_backward.h"

#define SPLIT_COLUMNS V3B_SPLIT_COLUMNS(HEAD_DIM)
#define CONSUMERS 2
#define THREADS 384
#if WARPS != 12 || BLOCK_N != (SPLIT_COLUMNS ? 64 : 128) || !(BLOCK_M == 64 || (BLOCK_M == 128 && HEAD_DIM == 64)) || \
    STAGES != 2
#    error \
        "two consumer warpgroups with 64 keys each, or 64 keys together, and named barriers for two stages; see issue_dq() for BLOCK_M"
#endif

#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240

#define PAGE_BYTES(rows) ((rows)*TILE_PAGE * 2)
#define PAGES_K V3B_PAGES(HEAD_DIM, HEAD_DIM)
#define PAGES_V V3B_PAGES(HEAD_DIM, HEAD_DIM_V)
#define BYTES_Q V3B_TILE_BYTES(HEAD_DIM, BLOCK_M, HEAD_DIM)
#define BYTES_DO V3B_TILE_BYTES(HEAD_DIM, BLOCK_M, HEAD_DIM_V)
#define BYTES_K V3B_TILE_BYTES(HEAD_DIM, BLOCK_N, HEAD_DIM)
#define BYTES_V V3B_TILE_BYTES(HEAD_DIM, BLOCK_N, HEAD_DIM_V)
/* A dS tile: [BLOCK_N / 64][BLOCK_M queries][64 keys]; a dS or P tile with split columns: [64 keys][64 queries]. */
#define BYTES_S (BLOCK_N * BLOCK_M * 2)
#define PAGE_BYTES_S (BLOCK_M * 128)

/* What one warpgroup has of a query tile and of the gradients; numbers, since they become part of instructions. */
#if HEAD_DIM == 64
#    define QUERIES 128
#    define COLUMNS_K 64
#    define COLUMNS_V 64
#    define COLUMNS_DQ 64
#elif HEAD_DIM == 96
#    define QUERIES 64
#    define COLUMNS_K 96
#    define COLUMNS_V 96
#    define COLUMNS_DQ 64
#elif HEAD_DIM == 128
#    define QUERIES 64
#    define COLUMNS_K 128
#    define COLUMNS_V 128
#    define COLUMNS_DQ 64
#elif HEAD_DIM == 192
#    define QUERIES 32
#    define COLUMNS_K 96
#    if HEAD_DIM_V == 128
#        define COLUMNS_V 64
#    else
#        define COLUMNS_V 96
#    endif
#    define COLUMNS_DQ 96
#elif HEAD_DIM == 256
#    define QUERIES 32
#    define COLUMNS_K 128
#    define COLUMNS_V 128
#    define COLUMNS_DQ 128
#endif
#if COLUMNS_DQ != V3B_DQ_PART_COLUMNS(HEAD_DIM)
#    error "a warpgroup adds to one part of dq_sum"
#endif
/*
 * Scores of a query tile are computed at the end of the round of the tile before, so that the tensor cores have work
 * while a round begins. With 128 queries at a time exponentials take longer than the product beside which they would be
 * computed then; there the products of a round's beginning, S^T and dP^T, are both under way.
 */
#define SCORES_AHEAD (QUERIES < 128)
#define DQ_COLUMNS V3B_DQ_COLUMNS(HEAD_DIM)
#define DQ_PLACES V3B_DQ_PLACES(HEAD_DIM, GENERAL)
#define DQ_FROM_REGISTERS (DQ_PLACES == 0)
#define DQ_TILE (BLOCK_M * DQ_COLUMNS)

#if TILE_PAGE == 64
#    define PAGE_SWIZZLE SWIZZLE_128B
#else
#    define PAGE_SWIZZLE SWIZZLE_64B
#endif

/* Named barriers: of both consumer warpgroups, at the end and when dS (and P) of a tile lie there; for each stage of Q and
 * of dO, that everybody has left it; between each warpgroup and the warp that adds its dQ. */
#define BARRIER_CONSUMERS 1
#define BARRIER_Q_LEFT(stage) (2 + (stage))
#define BARRIER_STORED 4
#define BARRIER_DOUT_LEFT(stage) (5 + (stage))
#define STAGE_THREADS 288 /* the consumers and the producer */
#define BARRIER_DQ_FULL(consumer, count) ((uint32_t)(8 + (consumer)) + 2 * ((count)&1u))
#define BARRIER_DQ_EMPTY(consumer, count) ((uint32_t)(12 + (consumer)) + 2 * dq_place(count))
#define DQ_THREADS 160 /* a consumer warpgroup and the warp that adds */

#include "v3_backward_dq.h"
#include "v3_backward_producer.h"

/* ---- Consumer: products ---- */

/* S^T = K Q^T or dP^T = V dO^T of the warpgroup's keys and queries, issued and committed. columns: a constant. */
DEVICE void issue_transposed(float *s, uint32_t key_rows, uint32_t query_rows, int columns) {
    register_fence_f32(s, QUERIES / 2);
    wgmma_fence();
    const uint64_t keys = wgmma_descriptor(key_rows, 16, 8 * TILE_PAGE * 2, PAGE_SWIZZLE);
    const uint64_t queries = wgmma_descriptor(query_rows, 16, 8 * TILE_PAGE * 2, PAGE_SWIZZLE);
    UNROLL
    for (int step = 0; step < columns / 16; step++) {
        const uint32_t in_page = (uint32_t)(step % (TILE_PAGE / 16) * 32), page = (uint32_t)(step / (TILE_PAGE / 16));
        wgmma_m64k16_ss(QUERIES, MMA_TYPE, s, wgmma_descriptor_advance(keys, page * PAGE_BYTES(BLOCK_N) + in_page),
                        wgmma_descriptor_advance(queries, page * PAGE_BYTES(BLOCK_M) + in_page), step > 0, K_MAJOR,
                        K_MAJOR);
    }
    wgmma_commit_group();
}

/*
 * d += W^T X: W^T, keys by queries, from registers, or with split columns from a tile of P or dS; X a tile of dO or Q.
 * A macro, since the number of columns is part of the instruction.
 */
#if SPLIT_COLUMNS
#    define MULTIPLY_WEIGHTS(n, d, w, w_tile, x_tile, accumulate)                                                 \
        do {                                                                                                      \
            const uint64_t x_at = wgmma_descriptor(x_tile, PAGE_BYTES(BLOCK_M), 8 * TILE_PAGE * 2, PAGE_SWIZZLE); \
            const uint64_t w_at = wgmma_descriptor(w_tile, 16, 1024, SWIZZLE_128B);                               \
            (void)(w);                                                                                            \
            UNROLL                                                                                                \
            for (int step = 0; step < BLOCK_M / 16; step++)                                                       \
                wgmma_m64k16_ss(n, MMA_TYPE, d, wgmma_descriptor_advance(w_at, (uint32_t)step * 32),              \
                                wgmma_descriptor_advance(x_at, (uint32_t)step * 16 * TILE_PAGE * 2),              \
                                (accumulate) || step > 0, K_MAJOR, MN_MAJOR);                                     \
        } while (0)
#else
#    define MULTIPLY_WEIGHTS(n, d, w, w_tile, x_tile, accumulate)                                                 \
        do {                                                                                                      \
            const uint64_t x_at = wgmma_descriptor(x_tile, PAGE_BYTES(BLOCK_M), 8 * TILE_PAGE * 2, PAGE_SWIZZLE); \
            UNROLL                                                                                                \
            for (int step = 0; step < BLOCK_M / 16; step++)                                                       \
                wgmma_m64k16_rs(n, MMA_TYPE, d, &(w)[4 * step],                                                   \
                                wgmma_descriptor_advance(x_at, (uint32_t)step * 16 * TILE_PAGE * 2),              \
                                (accumulate) || step > 0, MN_MAJOR);                                              \
        } while (0)
#endif

DEVICE void issue_dv(float *dv, const uint32_t *p, uint32_t p_tile, uint32_t dout_tile, int accumulate) {
    (void)p_tile;
    register_fence_f32(dv, COLUMNS_V / 2);
    wgmma_fence();
    MULTIPLY_WEIGHTS(COLUMNS_V, dv, p, p_tile, dout_tile, accumulate);
    wgmma_commit_group();
}

DEVICE void issue_dk(float *dk, const uint32_t *ds, uint32_t ds_tile, uint32_t q_tile, int accumulate) {
    (void)ds_tile;
    register_fence_f32(dk, COLUMNS_K / 2);
    wgmma_fence();
    MULTIPLY_WEIGHTS(COLUMNS_K, dk, ds, ds_tile, q_tile, accumulate);
    wgmma_commit_group();
}

/* A dS tile as an operand, and how far it is to the next 16 keys. */
#if SPLIT_COLUMNS
#    define DS_MAJOR MN_MAJOR
#    define DS_LEADING PAGE_BYTES_S
#    define DS_STEP(step) ((step)*2048)
#else
#    define DS_MAJOR K_MAJOR
#    define DS_LEADING 16
#    define DS_STEP(step) ((step) / 4 * PAGE_BYTES_S + (step) % 4 * 32)
#endif

/*
 * The warpgroup's part of dS K: 64 queries of 128 and all columns, or all 64 queries and half of the columns, in whole
 * pages: the products of 96 columns are computed as 128.
 */
DEVICE void issue_dq(float *dq, uint32_t ds_tile, uint32_t k_tile) {
    const uint64_t ds = wgmma_descriptor(ds_tile, DS_LEADING, 1024, SWIZZLE_128B);
    const uint64_t k = wgmma_descriptor(k_tile, PAGE_BYTES(BLOCK_N), 8 * TILE_PAGE * 2, PAGE_SWIZZLE);
    register_fence_f32(dq, COLUMNS_DQ / 2);
    wgmma_fence();
    UNROLL
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma_m64k16_ss(COLUMNS_DQ, MMA_TYPE, dq, wgmma_descriptor_advance(ds, DS_STEP((uint32_t)step)),
                        wgmma_descriptor_advance(k, (uint32_t)step * 16 * TILE_PAGE * 2), step > 0, DS_MAJOR, MN_MAJOR);
    wgmma_commit_group();
}

/* ---- Consumer: scores, keys down and queries across; tiles with a mask: score_backward.h ---- */

/*
 * The log-sum-exps, or D, of a tile's queries, of which a thread has two in each group of 8. Where there are registers
 * for them they are loaded before they are needed, since reading takes its time; in tiles with a mask, and so in
 * GENERAL, they are not needed here.
 */
#define NUMBERS_AHEAD (!GENERAL && QUERIES < 128)

typedef struct query_numbers {
    uint32_t address; /* in shared memory, of the thread's first */
    f32x2 ahead[NUMBERS_AHEAD ? QUERIES / 8 : 1];
} query_numbers;

/* numbers: shared memory address of the first query's. */
DEVICE query_numbers load_numbers(uint32_t numbers) {
    query_numbers q;
    q.address = numbers + lane_index() % 4 * 8;
#if NUMBERS_AHEAD
    UNROLL
    for (int n = 0; n < QUERIES / 8; n++) q.ahead[n] = shared_load_f32x2(q.address + 32 * (uint32_t)n);
#endif
    return q;
}

DEVICE f32x2 numbers_of_group(const query_numbers *q, int n) {
#if NUMBERS_AHEAD
    return q->ahead[n];
#else
    return shared_load_f32x2(q->address + 32 * (uint32_t)n);
#endif
}

/* P^T in the place of S^T. */
DEVICE void weigh(float *s, const query_numbers *lse, float scale_log2) {
    UNROLL
    for (int n = 0; n < QUERIES / 8; n++) {
        const f32x2 l = numbers_of_group(lse, n);
        UNROLL
        for (int v = 0; v < 4; v++) s[4 * n + v] = exp2_approx(fmaf(s[4 * n + v], scale_log2, v % 2 ? -l.y : -l.x));
    }
}

/* dS^T = P^T (dP^T - D) in the place of dP^T. */
DEVICE void differentiate(float *dp, const float *p, const query_numbers *delta) {
    UNROLL
    for (int n = 0; n < QUERIES / 8; n++) {
        const f32x2 d = numbers_of_group(delta, n);
        UNROLL
        for (int v = 0; v < 4; v++) dp[4 * n + v] = p[4 * n + v] * (dp[4 * n + v] - (v % 2 ? d.y : d.x));
    }
}

DEVICE void pack_fragments(uint32_t *packed, const float *x) {
    UNROLL
    for (int i = 0; i < QUERIES / 4; i++) packed[i] = pack_16bit(x[2 * i], x[2 * i + 1]);
}

/*
 * The warpgroup's part of a dS tile goes to shared memory by stmatrix; with split columns that of P too, and both keys
 * down, as dV and dK want them; else queries down, as dQ does, whose products from the other order are slower. This is
 * the address of the 16-byte chunk that stmatrix wants from this lane, for its warp's keys and the first 16 queries.
 */
DEVICE uint32_t fragment_address(uint32_t tile, int consumer, int warp) {
    const int lane = (int)lane_index();
#if SPLIT_COLUMNS
    const int row = 16 * warp + lane % 16, chunk = QUERIES / 8 * consumer + lane / 16;
    return swizzle_128b(tile + (uint32_t)(row * 128 + chunk * 16));
#else
    const int row = lane % 8 + lane / 16 * 8, chunk = 2 * warp + lane / 8 % 2;
    return swizzle_128b(tile + (uint32_t)(consumer * PAGE_BYTES_S + row * 128 + chunk * 16));
#endif
}

DEVICE void store_fragments(uint32_t address, const uint32_t *packed) {
    UNROLL
    for (int n = 0; n < QUERIES / 16; n++)
#if SPLIT_COLUMNS
        stmatrix_x4(address ^ (uint32_t)(n * 32), &packed[4 * n]);
#else
        stmatrix_x4_trans(address + (uint32_t)n * 2048, &packed[4 * n]);
#endif
}

/* ---- Consumer: dK and dV ---- */

DEVICE void store_gradient(float *d, int columns, int half_pages, uint32_t tile, const fa_device_rows *rows,
                           int float32, int aligned, int real_columns, const key_work *w, int consumer, float scale) {
    const int thread = (int)thread_index() & 127, lane = thread % 32, warp_row = thread / 32 * 16;
    const int first = SPLIT_COLUMNS ? 0 : 64 * consumer, first_column = SPLIT_COLUMNS ? columns * consumer : 0;
    if (!rows->data) return;
    UNROLL
    for (int r = 0; r < 2; r++) {
        const int key = w->key + first + warp_row + lane / 4 + 8 * r;
        const int unseen = key < w->seen.begin || key >= w->seen.end;
        UNROLL
        for (int i = 0; i < columns / 2; i++)
            if (i / 2 % 2 == r) d[i] = unseen ? 0.0f : d[i] * scale;
    }
    if (float32 || !aligned) {
        UNROLL
        for (int r = 0; r < 2; r++) {
            const int key = w->key + first + warp_row + lane / 4 + 8 * r;
            if (key >= w->tile.rows) continue;
            char *to = row_address(rows, &w->tile.sequence, w->tile.sequence.k_begin + key, w->tile.head_kv);
            UNROLL
            for (int i = 0; i < columns / 2; i++) {
                const int column = first_column + 8 * (i / 4) + lane % 4 * 2 + i % 2;
                if (i / 2 % 2 != r || column >= real_columns) continue;
                if (float32)
                    global_store_f32(to + 4 * column, d[i]);
                else
                    global_store_u16(to + 2 * column, low_half(pack_16bit(d[i], 0.0f)));
            }
        }
        return;
    }
    const uint32_t part = tile + (uint32_t)(SPLIT_COLUMNS ? half_pages * consumer * PAGE_BYTES(BLOCK_N) : 0);
    store_rounded(a_fragment_address(part, BLOCK_N, first + warp_row), BLOCK_N, d, columns);
    warp_sync(); /* a warp stores the rows it wrote */
    NO_UNROLL
    for (int i = lane; i < 16 * (columns / 8); i += 32) {
        const int row = first + warp_row + i / (columns / 8), chunk = i % (columns / 8);
        const int column = first_column + chunk * 8;
        if (w->key + row < w->tile.rows && column < real_columns)
            global_store_u32x4(
                row_address(rows, &w->tile.sequence, w->tile.sequence.k_begin + w->key + row, w->tile.head_kv) +
                    column * 2,
                shared_load_u32x4(tile_address(part, BLOCK_N, row, chunk)));
    }
}

/* ---- Consumer ---- */

/* Waits for a query tile and returns what the producer tells of it. count: of query tiles before it. */
DEVICE u32x4 next_queries(const shared_layout *shared, uint32_t count) {
    const uint32_t stage = ring_stage(count, STAGES);
    mbarrier_wait(shared->q_full + 8 * stage, ring_parity(count, STAGES));
    return shared_load_u32x4(shared->work + 16 * stage);
}

/*
 * S^T of the next query tile; behind the last one too, with K for Q and for nothing, since the compiler serialises
 * products under a condition. next: of the tile, whose number is count.
 */
DEVICE void issue_next_scores(float *s, uint32_t k_rows, uint32_t q_rows, const u32x4 *next,
                              const shared_layout *shared, uint32_t count) {
    issue_transposed(s, k_rows, next->z == WORK_END ? shared->k : q_rows + ring_stage(count, STAGES) * BYTES_Q,
                     HEAD_DIM);
}

DEVICE void consume(const shared_layout *shared, const fa_v3_backward_params *params, const key_work *w, int consumer) {
    const fa_backward_params *b = &params->backward;
    const int thread = (int)thread_index() & 127, lane = thread % 32, warp = thread / 32;
    const uint32_t key_offset = SPLIT_COLUMNS ? 0u : (uint32_t)(64 * consumer);        /* of the warpgroup's keys */
    const uint32_t query_offset = SPLIT_COLUMNS ? (uint32_t)(QUERIES * consumer) : 0u; /* and queries */
    const uint32_t k_rows = shared->k + key_offset * TILE_PAGE * 2, v_rows = shared->v + key_offset * TILE_PAGE * 2;
    const uint32_t q_rows = shared->q + query_offset * TILE_PAGE * 2,
                   dout_rows = shared->dout + query_offset * TILE_PAGE * 2;
    const uint32_t half_k = (uint32_t)consumer * (PAGES_K / 2) * PAGE_BYTES(BLOCK_N);
    const uint32_t fragment = fragment_address(shared->s, consumer, warp);

    float dk[COLUMNS_K / 2], dv[COLUMNS_V / 2], s[QUERIES / 2];
    uint32_t count = 0;
    u32x4 work = next_queries(shared, 0);
    if (work.z != WORK_END) mbarrier_wait(shared->kv_full, 0);
#if SCORES_AHEAD
    if (work.z != WORK_END) {
        issue_transposed(s, k_rows, q_rows, HEAD_DIM);
        wgmma_wait_group(0);
        register_fence_f32(s, QUERIES / 2);
    }
#endif
    for (; work.z != WORK_END; count++) {
        const uint32_t stage = ring_stage(count, STAGES), parity = ring_parity(count, STAGES);
        const uint32_t q_tile = shared->q + stage * BYTES_Q, dout_tile = shared->dout + stage * BYTES_DO;
        const uint32_t numbers = (stage * BLOCK_M + query_offset) * 4;
        const uint32_t ds_tile = shared->s + (count & 1u) * BYTES_S;
        float dp[QUERIES / 2], dq[COLUMNS_DQ / 2];
        uint32_t p16[QUERIES / 4], ds16[QUERIES / 4];
        const query_numbers lse = load_numbers(shared->lse + numbers);
#if !SCORES_AHEAD
        issue_transposed(s, k_rows, q_rows + stage * BYTES_Q, HEAD_DIM);
#endif
        mbarrier_wait(shared->dout_full + 8 * stage, parity);
        issue_transposed(dp, v_rows, dout_rows + stage * BYTES_DO, HEAD_DIM_V);
#if !SCORES_AHEAD
        wgmma_wait_group(1);
        register_fence_f32(s, QUERIES / 2);
#endif
        const int masked = GENERAL || work.z == WORK_MASKED;
        if (masked) {
            const score_place at = {w->tile.sequence.entry, (int)work.x, (int)(work.y + query_offset) + lane % 4 * 2,
                                    w->key + (int)key_offset + 16 * warp + lane / 4};
            wgmma_wait_group(0);
            register_fence_f32(dp, QUERIES / 2);
            scores_to_gradients_masked(s, dp, QUERIES / 2, shared->lse + numbers, shared->delta + numbers,
                                       &w->tile.sequence.visibility, at, &b->forward);
        } else {
            weigh(s, &lse, b->forward.softmax_scale * LOG2_E);
        }
        const query_numbers delta = load_numbers(shared->delta + numbers);
        wgmma_wait_group(0);
        register_fence_f32(dp, QUERIES / 2);
        if (!masked) differentiate(dp, s, &delta);
        pack_fragments(ds16, dp);
        pack_fragments(p16, s);
#if SPLIT_COLUMNS
        const uint32_t p_tile = ds_tile + 2 * BYTES_S;
        store_fragments(fragment + (count & 1u) * BYTES_S + 2 * BYTES_S, p16);
#else
        issue_dv(dv, p16, 0, dout_tile, count > 0);
#endif
        store_fragments(fragment + (count & 1u) * BYTES_S, ds16);
        fence_proxy_async_shared();
        named_barrier_sync(BARRIER_STORED, 256);

#if SPLIT_COLUMNS
        issue_dv(dv, p16, p_tile, dout_tile + (uint32_t)consumer * (PAGES_V / 2) * PAGE_BYTES(BLOCK_M), count > 0);
        issue_dk(dk, ds16, ds_tile, q_tile + (uint32_t)consumer * (PAGES_K / 2) * PAGE_BYTES(BLOCK_M), count > 0);
        issue_dq(dq, ds_tile, shared->k + half_k);
        const u32x4 done = work;
        work = next_queries(shared, count + 1);
        issue_next_scores(s, k_rows, q_rows, &work, shared, count + 1);
        wgmma_wait_group(1);
        register_fence_f32(dv, COLUMNS_V / 2);
        register_fence_f32(dk, COLUMNS_K / 2);
        hand_over_dq(dq, shared, b, &done, consumer, count);
        wgmma_wait_group(0);
        register_fence_f32(s, QUERIES / 2);
        named_barrier_arrive(BARRIER_DOUT_LEFT(stage), STAGE_THREADS);
        named_barrier_arrive(BARRIER_Q_LEFT(stage), STAGE_THREADS);
#else
        if (BLOCK_M == 128)
            issue_dq(dq, ds_tile + (uint32_t)consumer * 64 * 128, shared->k);
        else
            issue_dq(dq, ds_tile, shared->k + half_k);
        wgmma_wait_group(1);
        register_fence_f32(dv, COLUMNS_V / 2);
        named_barrier_arrive(BARRIER_DOUT_LEFT(stage), STAGE_THREADS);
        issue_dk(dk, ds16, 0, q_tile, count > 0);
        wgmma_wait_group(1);
        hand_over_dq(dq, shared, b, &work, consumer, count);
        work = next_queries(shared, count + 1);
#    if SCORES_AHEAD
        issue_next_scores(s, k_rows, q_rows, &work, shared, count + 1);
        wgmma_wait_group(1);
#    else
        wgmma_wait_group(0);
#    endif
        register_fence_f32(dk, COLUMNS_K / 2);
        named_barrier_arrive(BARRIER_Q_LEFT(stage), STAGE_THREADS);
#    if SCORES_AHEAD
        wgmma_wait_group(0);
        register_fence_f32(s, QUERIES / 2);
#    endif
#endif
    }

    if (count == 0) { /* nobody sees these keys */
        UNROLL
        for (int i = 0; i < COLUMNS_K / 2; i++) dk[i] = 0.0f;
        UNROLL
        for (int i = 0; i < COLUMNS_V / 2; i++) dv[i] = 0.0f;
    }
    named_barrier_sync(BARRIER_CONSUMERS, 256); /* everybody has left K and V */
    store_gradient(dk, COLUMNS_K, PAGES_K / 2, shared->k, &b->dk, b->dk_float32, params->dk_aligned,
                   b->forward.head_dim, w, consumer, b->forward.softmax_scale);
    store_gradient(dv, COLUMNS_V, PAGES_V / 2, shared->v, &b->dv, b->dv_float32, params->dv_aligned,
                   b->forward.head_dim_v, w, consumer, 1.0f);
}

KERNEL(KERNEL_NAME, THREADS, 1, fa_v3_backward_params, params) {
    key_work w;
    if (!work_locate(&w, &params->backward)) return;
    shared_layout shared = layout_shared();
    uint32_t warpgroup = warpgroup_index();
    if (thread_index() == 0) {
        init_barriers(&shared);
        store_dq_order(&shared, &params->backward, &w);
    }
    block_sync();
    if (warpgroup == 0) {
        set_max_registers_decrease(PRODUCER_REGISTERS);
        /* From lane 0, so that the compiler knows that each warp takes one way, and uses uniform registers there. */
        const uint32_t warp = shuffle_index_u32(warp_index(), 0);
        if (warp == 0)
            produce(&shared, params, &w);
        else if (warp < 3)
            add_dq(&shared, &params->backward, &w, (int)warp - 1);
    } else {
        set_max_registers_increase(CONSUMER_REGISTERS);
        consume(&shared, params, &w, (int)warpgroup - 1);
    }
}
