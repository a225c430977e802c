/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention-3 backward for Hopper (Shah et al., 2024, on the algorithm of Dao, 2023). A block of threads keeps a tile of
 * K and V and goes through the query tiles that see some of it, of all query heads that share it:
 *
 *     S^T = K Q^T,  dP^T = V dO^T        both products at once
 *     P^T = exp(S^T - lse)               while dP^T is under way
 *     dS^T = P^T (dP^T - D)
 *     dV += P^T dO,  dK += dS^T Q        in registers until the end: no other block adds to them
 *     dQ_sum += dS K                     float32 additions in global memory
 *
 * A producer warp feeds it by TMA, as in v3_forward.c. Scores are computed transposed, keys down and queries across, so
 * that P^T and dS^T are in the registers in which the products with dO and Q want them. With heads of more than 128
 * columns dK and dV of 64 keys would not fit the registers of a warpgroup; there the two consumer warpgroups share the
 * keys and split the columns, and P^T goes through shared memory as dS^T does everywhere.
 *
 * Compiled once per row of variants.def, with HEAD_DIM, HEAD_DIM_V, BF16, GENERAL, BLOCK_M, BLOCK_N, STAGES and WARPS as
 * in v3_forward.c; WARPS is 12. GENERAL: softcap, ALiBi, bias, boolean mask, scales <= 0.
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
    (STAGES & (STAGES - 1)) != 0
#    error "two consumer warpgroups with 64 keys each, or 64 keys together; see issue_dq() for BLOCK_M"
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
#define BYTES_S (BLOCK_N * BLOCK_M * 2) /* a dS or P tile: [BLOCK_M / 64][BLOCK_N keys][64 queries] */
#define PAGE_BYTES_S (BLOCK_N * 128)

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
#define DQ_COLUMNS V3B_DQ_COLUMNS(HEAD_DIM)
#define DQ_TILE (BLOCK_M * DQ_COLUMNS)

#if TILE_PAGE == 64
#    define PAGE_SWIZZLE SWIZZLE_128B
#else
#    define PAGE_SWIZZLE SWIZZLE_64B
#endif

/* Named barriers: of both consumer warpgroups, and of each. */
#define BARRIER_CONSUMERS 1
#define BARRIER_TURN 2

/* ---- Shared memory ---- */

typedef struct shared_layout {
    uint32_t k, v, q, dout, s; /* tiles; q and dout are rings, s holds dS twice, and P twice behind it */
    uint32_t lse, delta, work; /* per stage: BLOCK_M floats each, and 16 bytes */
    uint32_t kv_full, q_full, q_empty, dout_full, dout_empty; /* mbarriers; one per stage but for the first */
    uint32_t raw;                                             /* a tile that the producer still has to clean */
} shared_layout;

DEVICE shared_layout layout_shared(void) {
    shared_layout s;
    s.k = shared_base();
    s.v = s.k + BYTES_K;
    s.q = s.v + BYTES_V;
    s.dout = s.q + STAGES * BYTES_Q;
    s.s = s.dout + STAGES * BYTES_DO;
    s.lse = s.s + (SPLIT_COLUMNS ? 4 : 2) * BYTES_S;
    s.delta = s.lse + STAGES * BLOCK_M * 4;
    s.work = s.delta + STAGES * BLOCK_M * 4;
    s.kv_full = s.work + STAGES * 16;
    s.q_full = s.kv_full + 8;
    s.q_empty = s.q_full + STAGES * 8;
    s.dout_full = s.q_empty + STAGES * 8;
    s.dout_empty = s.dout_full + STAGES * 8;
    s.raw = s.dout_empty + STAGES * 8;
    return s;
}

DEVICE void init_barriers(const shared_layout *s) {
    mbarrier_init(s->kv_full, 1);
    mbarrier_init(s->raw, 1);
    for (uint32_t i = 0; i < STAGES; i++) {
        mbarrier_init(s->q_full + 8 * i, 1);
        mbarrier_init(s->q_empty + 8 * i, CONSUMERS);
        mbarrier_init(s->dout_full + 8 * i, 1);
        mbarrier_init(s->dout_empty + 8 * i, CONSUMERS);
    }
    fence_mbarrier_init();
}

/* ---- The block's keys ---- */

typedef struct key_work {
    key_tile tile;
    int key;           /* first key */
    fa_key_range seen; /* those that some query sees by position; all others count as zero */
} key_work;

/* Returns 0 if there are no such rows in dk and dv. */
DEVICE int work_locate(key_work *w, const fa_backward_params *params) {
    w->tile = key_tile_locate(params, BLOCK_N);
    w->key = w->tile.number * BLOCK_N;
    const fa_visibility *v = &w->tile.sequence.visibility;
    const fa_key_range seen = tile_keys(v, 0, v->seqlen_q).some;
    w->seen.begin = w->key > seen.begin ? w->key : seen.begin;
    w->seen.end = w->key + BLOCK_N < seen.end ? w->key + BLOCK_N : seen.end;
    if (w->seen.end < w->seen.begin) w->seen.end = w->seen.begin;
    return w->key < w->tile.rows;
}

/* ---- Producer ---- */

DEVICE void load_pages(uint32_t tile, uint32_t barrier, const fa_tensor_map *map, int rows, int pages, int row,
                       int head, int entry) {
    UNROLL
    for (int page = 0; page < pages; page++)
        tma_load_4d(tile + (uint32_t)(page * PAGE_BYTES(rows)), map, barrier, page * TILE_PAGE, row, head, entry);
}

/* K and V, once. Rows that no query may see become zero: what they hold must not meet a weight of 0. Returns whether it
 * took the barrier `raw`. */
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
    if (!clean) return 0;
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
    warp_sync();
    if (lane_index() == 0) mbarrier_arrive(s->kv_full);
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
                const uint32_t stage = ring_stage(count, STAGES), empty = ring_parity(count, STAGES) ^ 1u;
                const int64_t tile = first_query_tile(b, &w->tile.sequence, head) + row / BLOCK_M;
                const int idle = global_load_i32(b->idle_rows + tile), dirty = idle & FA_IDLE_ROWS_DIRTY;
                const fa_key_range all = tile_keys(v, row, row + BLOCK_M).all;
                const u32x4 work = {(uint32_t)head, (uint32_t)row,
                                    idle || w->key < all.begin || w->key + BLOCK_N > all.end ? 1u : 0u, 1u};
                const int first = (int)w->tile.sequence.q_begin + row;
                const uint32_t lse = s->lse + stage * BLOCK_M * 4;
                count++;
                mbarrier_wait(s->q_empty + 8 * stage, empty);
                if (lane_index() == 0) shared_store_u32x4(s->work + 16 * stage, work);
                load_queries(s->q + stage * BYTES_Q, lse, s->q_full + 8 * stage, &params->q, PAGES_K, HEAD_DIM,
                             b->lse_log2 + tile * BLOCK_M, first, head, entry, dirty, lse, s->raw, raws & 1u);
                raws += dirty != 0;
                mbarrier_wait(s->dout_empty + 8 * stage, empty);
                load_queries(s->dout + stage * BYTES_DO, s->delta + stage * BLOCK_M * 4, s->dout_full + 8 * stage,
                             &params->dout, PAGES_V, HEAD_DIM_V, b->delta + tile * BLOCK_M, first, head, entry, dirty,
                             lse, s->raw, raws & 1u);
                raws += dirty != 0;
            }
        }
    }
    const uint32_t stage = ring_stage(count, STAGES);
    const u32x4 end = {0, 0, 0, 0};
    mbarrier_wait(s->q_empty + 8 * stage, ring_parity(count, STAGES) ^ 1u);
    if (lane_index() != 0) return;
    shared_store_u32x4(s->work + 16 * stage, end);
    mbarrier_arrive(s->q_full + 8 * stage);
}

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
 * d += W^T X: W^T, keys by queries, from registers, or with split columns from a tile of P or dS; X a tile of dO or Q. A
 * macro, since the number of columns is part of the instruction.
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

/*
 * The warpgroup's part of dS K: 64 queries of 128 and all columns, or all 64 queries and half of the columns, in whole
 * pages: the products of 96 columns are computed as 128.
 */
DEVICE void issue_dq(float *dq, uint32_t ds_tile, uint32_t k_tile) {
    const uint64_t ds = wgmma_descriptor(ds_tile, PAGE_BYTES_S, 1024, SWIZZLE_128B);
    const uint64_t k = wgmma_descriptor(k_tile, PAGE_BYTES(BLOCK_N), 8 * TILE_PAGE * 2, PAGE_SWIZZLE);
    register_fence_f32(dq, COLUMNS_DQ / 2);
    wgmma_fence();
    UNROLL
    for (int step = 0; step < BLOCK_N / 16; step++)
        wgmma_m64k16_ss(COLUMNS_DQ, MMA_TYPE, dq, wgmma_descriptor_advance(ds, (uint32_t)step * 2048),
                        wgmma_descriptor_advance(k, (uint32_t)step * 16 * TILE_PAGE * 2), step > 0, MN_MAJOR, MN_MAJOR);
    wgmma_commit_group();
}

/* ---- Consumer: scores, keys down and queries across; tiles with a mask: score_backward.h ---- */

/* P^T in the place of S^T. lse: shared memory address of the first query's. */
DEVICE void weigh(float *s, uint32_t lse, float scale_log2) {
    const uint32_t pair = lane_index() % 4 * 8;
    UNROLL
    for (int n = 0; n < QUERIES / 8; n++) {
        const f32x2 l = shared_load_f32x2(lse + pair + 32 * (uint32_t)n);
        UNROLL
        for (int v = 0; v < 4; v++) s[4 * n + v] = exp2_approx(fmaf(s[4 * n + v], scale_log2, v % 2 ? -l.y : -l.x));
    }
}

/* dS^T = P^T (dP^T - D) in the place of dP^T. */
DEVICE void differentiate(float *dp, const float *p, uint32_t delta) {
    const uint32_t pair = lane_index() % 4 * 8;
    UNROLL
    for (int n = 0; n < QUERIES / 8; n++) {
        const f32x2 d = shared_load_f32x2(delta + pair + 32 * (uint32_t)n);
        UNROLL
        for (int v = 0; v < 4; v++) dp[4 * n + v] = p[4 * n + v] * (dp[4 * n + v] - (v % 2 ? d.y : d.x));
    }
}

DEVICE void pack_fragments(uint32_t *packed, const float *x) {
    UNROLL
    for (int i = 0; i < QUERIES / 4; i++) packed[i] = pack_16bit(x[2 * i], x[2 * i + 1]);
}

/* The warpgroup's part of a dS or P tile. address: of the thread's chunk for the first 16 queries. */
DEVICE void store_fragments(uint32_t address, const uint32_t *packed) {
    UNROLL
    for (int n = 0; n < QUERIES / 16; n++)
        stmatrix_x4((address ^ (uint32_t)(n % 4 * 32)) + (uint32_t)(n / 4) * PAGE_BYTES_S, &packed[4 * n]);
}

/* ---- Consumer: dQ ---- */

/*
 * Adds the warpgroup's part to dq_sum; deterministic: when all key tiles before this one have. Blocks of lower keys have lower
 * indices and start first, so that nobody waits for a block that waits to start.
 */
DEVICE void add_dq(const float *dq, const fa_backward_params *b, const key_work *w, int head, int row, int consumer) {
    const int lane = (int)thread_index() % 32, warp = (int)thread_index() / 32 % 4;
    const int64_t tile = first_query_tile(b, &w->tile.sequence, head) + row / BLOCK_M;
    const int first_row = BLOCK_M == 128 ? 64 * consumer : 0, first_column = BLOCK_M == 128 ? 0 : COLUMNS_DQ * consumer;
    float *sum =
        b->dq_sum + tile * DQ_TILE + dq_sum_index(first_row + 16 * warp, first_column, DQ_COLUMNS, 1) + 4 * lane;
    uint32_t *turns = b->turns + 2 * tile + consumer;
    const uint32_t barrier = (uint32_t)(BARRIER_TURN + consumer);
    const uint32_t turn =
        (uint32_t)(w->tile.number - tile_keys(&w->tile.sequence.visibility, row, row + BLOCK_M).some.begin / BLOCK_N);
    if (b->deterministic) {
        if (thread_index() % 128 == 0)
            while (global_load_acquire_u32(turns) != turn) {}
        named_barrier_sync(barrier, 128);
    }
    UNROLL
    for (int i = 0; i < COLUMNS_DQ / 8; i++) {
        const f32x4 x = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
        global_reduce_add_f32x4(sum + 128 * i, x);
    }
    if (b->deterministic) {
        named_barrier_sync(barrier, 128);
        if (thread_index() % 128 == 0) {
            fence_gpu(); /* the warpgroup's additions, before the flag */
            global_store_release_u32(turns, turn + 1);
        }
    }
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
    const uint32_t address = a_fragment_address(part, BLOCK_N, first + warp_row);
    UNROLL
    for (int n = 0; n < columns / 16; n++) {
        uint32_t pairs[4];
        UNROLL
        for (int i = 0; i < 4; i++) pairs[i] = pack_16bit(d[8 * n + 2 * i], d[8 * n + 2 * i + 1]);
        stmatrix_x4(fragment_at(address, BLOCK_N, 0, n), pairs);
    }
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

DEVICE void consume(const shared_layout *shared, const fa_v3_backward_params *params, const key_work *w, int consumer) {
    const fa_backward_params *b = &params->backward;
    const int thread = (int)thread_index() & 127, lane = thread % 32, warp = thread / 32;
    const uint32_t key_offset = SPLIT_COLUMNS ? 0u : (uint32_t)(64 * consumer);        /* of the warpgroup's keys */
    const uint32_t query_offset = SPLIT_COLUMNS ? (uint32_t)(QUERIES * consumer) : 0u; /* and queries */
    const uint32_t k_rows = shared->k + key_offset * TILE_PAGE * 2, v_rows = shared->v + key_offset * TILE_PAGE * 2;
    const uint32_t half_k = (uint32_t)consumer * (PAGES_K / 2) * PAGE_BYTES(BLOCK_N);
    /* The 16-byte chunk of a dS tile that stmatrix wants from this lane, for its warp's keys and first 16 queries. */
    const uint32_t row = key_offset + (uint32_t)(16 * warp + lane % 16),
                   chunk = query_offset / 8 + (uint32_t)(lane / 16);
    const uint32_t fragment = swizzle_128b(shared->s + row * 128 + chunk * 16);

    float dk[COLUMNS_K / 2], dv[COLUMNS_V / 2];
    uint32_t count = 0, loaded = 0;
    for (;; count++) {
        const uint32_t stage = ring_stage(count, STAGES), parity = ring_parity(count, STAGES);
        const uint32_t q_tile = shared->q + stage * BYTES_Q, dout_tile = shared->dout + stage * BYTES_DO;
        const uint32_t numbers = (stage * BLOCK_M + query_offset) * 4;
        const uint32_t ds_tile = shared->s + (count & 1u) * BYTES_S, p_tile = ds_tile + 2 * BYTES_S;
        float s[QUERIES / 2], dp[QUERIES / 2];
        uint32_t p16[QUERIES / 4], ds16[QUERIES / 4];
        mbarrier_wait(shared->q_full + 8 * stage, parity);
        const u32x4 work = shared_load_u32x4(shared->work + 16 * stage);
        if (work.w == 0) break;
        if (!loaded) mbarrier_wait(shared->kv_full, 0);
        loaded = 1;
        issue_transposed(s, k_rows, q_tile + query_offset * TILE_PAGE * 2, HEAD_DIM);
        mbarrier_wait(shared->dout_full + 8 * stage, parity);
        issue_transposed(dp, v_rows, dout_tile + query_offset * TILE_PAGE * 2, HEAD_DIM_V);
        wgmma_wait_group(1);
        register_fence_f32(s, QUERIES / 2);
        const int masked = GENERAL || work.z;
        if (!masked) weigh(s, shared->lse + numbers, b->forward.softmax_scale * LOG2_E);
        wgmma_wait_group(0);
        register_fence_f32(dp, QUERIES / 2);
        if (masked) {
            const score_place at = {w->tile.sequence.entry, (int)work.x, (int)(work.y + query_offset) + lane % 4 * 2,
                                    w->key + (int)key_offset + 16 * warp + lane / 4};
            scores_to_gradients_masked(s, dp, QUERIES / 2, shared->lse + numbers, shared->delta + numbers,
                                       &w->tile.sequence.visibility, at, &b->forward);
        } else {
            differentiate(dp, s, shared->delta + numbers);
        }
        pack_fragments(p16, s);
        pack_fragments(ds16, dp);
#if !SPLIT_COLUMNS
        issue_dv(dv, p16, 0, dout_tile, count > 0);
#else
        store_fragments(fragment + (count & 1u) * BYTES_S + 2 * BYTES_S, p16);
#endif
        store_fragments(fragment + (count & 1u) * BYTES_S, ds16);
        fence_proxy_async_shared();
        named_barrier_sync(BARRIER_CONSUMERS, 256); /* dS of all keys is there; the tile before it is free */
#if SPLIT_COLUMNS
        issue_dv(dv, p16, p_tile, dout_tile + (uint32_t)consumer * (PAGES_V / 2) * PAGE_BYTES(BLOCK_M), count > 0);
        issue_dk(dk, ds16, ds_tile, q_tile + (uint32_t)consumer * (PAGES_K / 2) * PAGE_BYTES(BLOCK_M), count > 0);
#else
        (void)p_tile;
        issue_dk(dk, ds16, 0, q_tile, count > 0);
#endif
        float dq[COLUMNS_DQ / 2];
#if BLOCK_M == 128
        issue_dq(dq, ds_tile + (uint32_t)consumer * PAGE_BYTES_S, shared->k);
        (void)half_k;
#else
        issue_dq(dq, ds_tile, shared->k + half_k);
#endif
        wgmma_wait_group(1);
        register_fence_f32(dv, COLUMNS_V / 2);
        register_fence_f32(dk, COLUMNS_K / 2);
        release(shared->dout_empty + 8 * stage, thread);
        release(shared->q_empty + 8 * stage, thread);
        wgmma_wait_group(0);
        register_fence_f32(dq, COLUMNS_DQ / 2);
        if (b->dq.data) add_dq(dq, b, w, (int)work.x, (int)work.y, consumer);
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
    if (thread_index() == 0) init_barriers(&shared);
    block_sync();
    if (warpgroup == 0) {
        set_max_registers_decrease(PRODUCER_REGISTERS);
        if (thread_index() < 32) produce(&shared, params, &w);
    } else {
        set_max_registers_increase(CONSUMER_REGISTERS);
        consume(&shared, params, &w, (int)warpgroup - 1);
    }
}
