/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention-2 backward (Dao, 2023, algorithm 2): one block of threads per key tile. It walks over the query tiles of
 * all heads of its group that see some of its keys, recomputes S and P from Q, K and the saved log-sum-exp, and keeps dK and
 * dV in registers until the end: no atomics, and the sum over the group comes for free. Only dQ, which all key tiles add to,
 * goes to global memory in every step.
 *
 * Scores are computed transposed, S^T = K Q^T and dP^T = V dO^T, and P^T and dS^T lie in shared memory as [key][query], which
 * is what dV += P^T dO and dK += dS^T Q read; dQ = dS K reads it transposed. A warp has 32 keys throughout, and shares them
 * with SPLIT - 1 others: of the scores each computes some of the queries, of dK and dV some of the columns. So a warp
 * multiplies tiles of 32 rows, which halves what it reads from shared memory, the narrowest place of this kernel.
 *
 * Compiled once per row of variants.def, with
 *   HEAD_DIM  64, 96, 128, 192, 256: columns of the tiles; smaller head dims are padded with zeros on the way in
 *   BF16      1: bfloat16, 0: float16
 *   GENERAL   1: softcap, ALiBi, bias, boolean mask, scales <= 0, rows that are not aligned; 0: none of these, and faster for it
 *   BLOCK_M   rows of a query tile, BLOCK_N keys of a key tile, WARPS warps, STAGES query tiles in flight, 1 or 2, in code
 *             for sm_80 (v2_tiles.h)
 */
#define THREADS (WARPS * 32)
#define SPLIT (WARPS * 32 / BLOCK_N) /* warps that share 32 keys */
#define QUERIES (BLOCK_M / SPLIT)    /* whose scores a warp computes */
#define COLUMNS (HEAD_DIM / SPLIT)   /* of dK and dV that it accumulates */
/* Of dQ a warp computes DQ_STRIPS strips of 16 rows, and DQ_COLUMNS columns, which are pieces of 16. */
#define DQ_STRIPS (HEAD_DIM == 96 ? 1 : 2)
#define DQ_ROW_WARPS (BLOCK_M / 16 / DQ_STRIPS)
#define DQ_SPLIT (WARPS / DQ_ROW_WARPS)
#define DQ_COLUMNS (HEAD_DIM / DQ_SPLIT)

#include "backward_tiles.h"
#include "copy.h"
#include "pairs.h"
#include "score_backward.h"
#include "v2_tiles.h"

#if BLOCK_N % 32 || WARPS * 32 % BLOCK_N || QUERIES % 16 || COLUMNS % 16 || WARPS % DQ_ROW_WARPS || DQ_COLUMNS % 16 || \
    (SPLIT != 2 && SPLIT != 4) || DQ_SPLIT > 4
#    error "v2 backward: these tiles do not divide"
#endif

#define TILE_BYTES_Q (BLOCK_M * HEAD_DIM * 2)
#define TILE_BYTES_KV (BLOCK_N * HEAD_DIM * 2)
#define TILE_BYTES_S (BLOCK_M * BLOCK_N * 2)

/* Shared memory: K, V, dS^T, P^T, a ring of Q and dO, lse and D of each of its stages, and what is kept of the work. */
#define RING_STAGES V2_BACKWARD_STAGES(STAGES, has_sm90())
#define AT_K 0
#define AT_V (AT_K + TILE_BYTES_KV)
#define AT_DS (AT_V + TILE_BYTES_KV)
#define AT_P (AT_DS + TILE_BYTES_S)
#define AT_Q(stage) (AT_P + TILE_BYTES_S + (uint32_t)(stage)*2 * TILE_BYTES_Q)
#define AT_DOUT(stage) (AT_Q(stage) + TILE_BYTES_Q)
#define AT_ROWS(stage) (AT_Q(RING_STAGES) + (uint32_t)(stage)*BLOCK_M * 8)
#define AT_KEPT AT_ROWS(RING_STAGES)

/*
 * Weights are computed before dP^T, so that exponentials run beside its products. At head_dim 64, where a warp has twice
 * as many scores and no registers to spare, that is slower.
 */
#define WEIGHTS_FIRST (HEAD_DIM > 64)
/* The next query tile is asked for behind S^T; where that holds wide heads up, with their many addresses, behind dS^T. */
#define NEXT_BEHIND_SCORES (HEAD_DIM <= 128)

/* What a block works on. */
typedef struct key_work {
    key_tile tile;
    int key;                /* first key */
    fa_key_range keys;      /* those that some query sees; all others count as zero */
    int row_begin, row_end; /* query tiles that see some of them */
} key_work;

/* Returns 0 if there are no such rows in dk and dv. */
DEVICE int work_locate(key_work *w, const fa_backward_params *params) {
    w->tile = key_tile_locate(params, BLOCK_N);
    w->key = key_tile_number(params, &w->tile, BLOCK_N) * BLOCK_N;
    const fa_visibility *v = &w->tile.sequence.visibility;
    device_tile_keys seen = tile_keys(v, 0, v->seqlen_q);
    w->keys.begin = w->key > seen.some.begin ? w->key : seen.some.begin;
    w->keys.end = w->key + BLOCK_N < seen.some.end ? w->key + BLOCK_N : seen.some.end;
    w->row_begin = w->row_end = 0;
    if (w->keys.begin < w->keys.end) {
        device_row_range rows = rows_that_see(v, w->keys.begin, w->keys.end);
        w->row_begin = rows.begin / BLOCK_M;
        w->row_end = (rows.end + BLOCK_M - 1) / BLOCK_M;
    } else {
        w->keys.begin = w->keys.end = w->key;
    }
    return w->key < w->tile.rows;
}

/*
 * What of it every step needs is kept in shared memory: with dK and dV there, registers are scarce. q and dout: of the sequence's
 * first query and head 0; tile: number of their first query tile in the workspace.
 */
#define KEPT_VISIBILITY 0
#define KEPT_ENTRY 24
#define KEPT_TILE 28
#define KEPT_ROW_BEGIN 32
#define KEPT_ROW_END 36
#define KEPT_Q 40
#define KEPT_DOUT 48
#define KEPT_HEAD_END 56
#define KEPT_KEY 60
#define KEPT_TURN 64 /* the query tile where a turn was taken last, or -1 */

DEVICE uint32_t kept(uint32_t what) { return shared_base() + AT_KEPT + what; }

DEVICE void keep_work(const key_work *w, const fa_backward_params *params) {
    const device_sequence *s = &w->tile.sequence;
    const fa_visibility *v = &s->visibility;
    if (thread_index() == 0) {
        const int words[10] = {v->seqlen_q,  v->key_begin, v->key_end, v->diagonal,
                               v->left,      v->right,     s->entry,   first_query_tile(params, s, 0),
                               w->row_begin, w->row_end};
        UNROLL
        for (int i = 0; i < 10; i++) shared_store_i32(kept(4 * (uint32_t)i), words[i]);
        if (w->row_begin < w->row_end) {
            shared_store_u64(kept(KEPT_Q), (uint64_t)row_address(&params->forward.q, s, s->q_begin, 0));
            shared_store_u64(kept(KEPT_DOUT), (uint64_t)row_address(&params->dout, s, s->q_begin, 0));
        }
        shared_store_i32(kept(KEPT_HEAD_END), (w->tile.head_kv + 1) * params->forward.group);
        shared_store_i32(kept(KEPT_KEY), w->key);
        shared_store_i32(kept(KEPT_TURN), -1);
    }
    block_sync();
}

DEVICE fa_visibility kept_visibility(void) {
    fa_visibility v;
    v.seqlen_q = shared_load_i32(kept(KEPT_VISIBILITY));
    v.key_begin = shared_load_i32(kept(KEPT_VISIBILITY + 4));
    v.key_end = shared_load_i32(kept(KEPT_VISIBILITY + 8));
    v.diagonal = shared_load_i32(kept(KEPT_VISIBILITY + 12));
    v.left = shared_load_i32(kept(KEPT_VISIBILITY + 16));
    v.right = shared_load_i32(kept(KEPT_VISIBILITY + 20));
    return v;
}

/* One step: a query tile of a head. */
typedef struct step {
    int head;
    int tile; /* within the sequence */
} step;

DEVICE step step_next(step s) {
    if (++s.tile == shared_load_i32(kept(KEPT_ROW_END))) {
        s.head++;
        s.tile = shared_load_i32(kept(KEPT_ROW_BEGIN));
    }
    return s;
}

DEVICE int step_exists(step s) { return s.head < shared_load_i32(kept(KEPT_HEAD_END)); }

/* Its number in the workspace. */
DEVICE int step_number(step s, const fa_backward_params *params) {
    return shared_load_i32(kept(KEPT_TILE)) + s.head * params->forward.row_blocks + s.tile;
}

/* ---- loads ---- */

DEVICE void load_queries(uint32_t stage, step s, const fa_backward_params *params) {
    const fa_forward_params *p = &params->forward;
    const char *q = (const char *)shared_load_u64(kept(KEPT_Q)) + s.head * p->q.head_stride;
    load_tile(shared_base() + AT_Q(stage), BLOCK_M, q, &p->q, s.tile * BLOCK_M, 0,
              shared_load_i32(kept(KEPT_VISIBILITY)), p->head_dim, p, THREADS);
    /* lse and D, 4 rows per thread */
    int i = (int)thread_index();
    if (i < BLOCK_M / 2) {
        const float *from =
            (i < BLOCK_M / 4 ? params->lse_log2 : params->delta) + (int64_t)step_number(s, params) * BLOCK_M;
        cp_async_16(shared_base() + AT_ROWS(stage) + 16 * (uint32_t)i, from + 4 * (i % (BLOCK_M / 4)), 16);
    }
}

DEVICE void load_dout(uint32_t stage, step s, const fa_backward_params *params) {
    const char *dout = (const char *)shared_load_u64(kept(KEPT_DOUT)) + s.head * params->dout.head_stride;
    copy_pages_async(shared_base() + AT_DOUT(stage), BLOCK_M, HEAD_DIM / TILE_PAGE, dout, params->dout.row_stride,
                     s.tile * BLOCK_M, 0, shared_load_i32(kept(KEPT_VISIBILITY)),
                     (params->forward.head_dim_v + 7) / 8 * 8, THREADS);
}

/* The step to come. */
typedef struct next_step {
    step at;
    int exists;
    int idle; /* its idle_rows */
} next_step;

/*
 * Looks up the step after `now` and, where there are two stages, asks for its Q and dO. Not at the end of a step: loads from
 * shared memory would wait behind the additions to dQ.
 */
DEVICE next_step look_ahead(step now, uint32_t stage, const fa_backward_params *params) {
    next_step next;
    next.at = step_next(now);
    next.exists = step_exists(next.at);
    next.idle = next.exists ? global_load_i32(params->idle_rows + step_number(next.at, params)) : 0;
    if (RING_STAGES > 1) {
        if (next.exists) load_queries(stage ^ 1u, next.at, params);
        if (next.exists) load_dout(stage ^ 1u, next.at, params);
        cp_async_commit_group();
    }
    return next;
}

/* Zero for the rows of Q and dO that take no part: their P and dS are 0, but 0 times NaN or infinity would be NaN. */
DEVICE void clear_idle_rows(uint32_t stage) {
    u32x4 zero = {0, 0, 0, 0};
    NO_UNROLL
    for (int i = (int)thread_index(); i < BLOCK_M * (HEAD_DIM / 8); i += THREADS) {
        int row = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8);
        if (shared_load_f32(shared_base() + AT_ROWS(stage) + 4 * (uint32_t)row) != INFINITY) continue;
        shared_store_u32x4(tile_address(shared_base() + AT_Q(stage), BLOCK_M, row, chunk), zero);
        shared_store_u32x4(tile_address(shared_base() + AT_DOUT(stage), BLOCK_M, row, chunk), zero);
    }
    block_sync();
}

#if GENERAL
/* Zero for keys that no query sees and that hold NaN or infinity: their dS is 0, but its product with K would be NaN. A thread per key; few
 * keys are looked up. */
DEVICE void clear_unseen_keys(const key_work *w, const fa_backward_params *params) {
    const uint32_t k_tile = shared_base() + AT_K;
    const int i = (int)thread_index();
    if (i < BLOCK_N && tile_row_not_finite(k_tile, BLOCK_N, i, HEAD_DIM) &&
        !some_query_sees(params, &w->tile, w->key + i))
        clear_tile_row(k_tile, BLOCK_N, i, HEAD_DIM);
    block_sync();
}
#endif

/* ---- products ---- */

/* S^T or dP^T: 32 rows of K or V times QUERIES rows of Q or dO. Addresses of a_fragment_address and key_fragment_address. */
DEVICE void multiply_transposed(float s[2][QUERIES / 2], uint32_t k_address, uint32_t q_address) {
    UNROLL
    for (int i = 0; i < QUERIES; i++) s[i / (QUERIES / 2)][i % (QUERIES / 2)] = 0.0f;
    UNROLL
    for (int depth = 0; depth < HEAD_DIM / 16; depth++) {
        uint32_t a[2][4];
        UNROLL
        for (int i = 0; i < 2; i++) ldmatrix_x4(a[i], fragment_at(k_address, BLOCK_N, 16 * i, depth));
        UNROLL
        for (int n = 0; n < QUERIES / 16; n++) {
            uint32_t b[4];
            ldmatrix_x4(b, fragment_at(q_address, BLOCK_M, 16 * n, depth));
            UNROLL
            for (int i = 0; i < 2; i++) {
                mma_16bit(&s[i][8 * n], a[i], b);
                mma_16bit(&s[i][8 * n + 4], a[i], b + 2);
            }
        }
    }
}

/*
 * dV += P^T dO or dK += dS^T Q, of 32 keys. Of the warps that share keys, each has every SPLIT-th piece of 16 columns, so that the pieces
 * lie at constant distances; columns: address of its first one, of value_fragment_address.
 */
DEVICE void accumulate(float sum[2][COLUMNS / 2], uint32_t p_address, uint32_t columns) {
    UNROLL
    for (int depth = 0; depth < BLOCK_M / 16; depth++) {
        uint32_t a[2][4];
        UNROLL
        for (int i = 0; i < 2; i++) ldmatrix_x4(a[i], fragment_at(p_address, BLOCK_N, 16 * i, depth));
        UNROLL
        for (int n = 0; n < COLUMNS / 16; n++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, fragment_at(columns, BLOCK_M, 16 * depth, n * SPLIT));
            UNROLL
            for (int i = 0; i < 2; i++) {
                mma_16bit(&sum[i][8 * n], a[i], b);
                mma_16bit(&sum[i][8 * n + 4], a[i], b + 2);
            }
        }
    }
}

/* dQ = dS K, the warp's rows and columns. dS lies as [key][query], so its fragments are read transposed. */
DEVICE void multiply_dq(float dq[DQ_STRIPS][DQ_COLUMNS / 2], uint32_t ds_address, uint32_t columns) {
    UNROLL
    for (int i = 0; i < DQ_STRIPS; i++) {
        UNROLL
        for (int j = 0; j < DQ_COLUMNS / 2; j++) dq[i][j] = 0.0f;
    }
    UNROLL
    for (int depth = 0; depth < BLOCK_N / 16; depth++) {
        uint32_t a[DQ_STRIPS][4];
        UNROLL
        for (int i = 0; i < DQ_STRIPS; i++)
            ldmatrix_x4_trans(a[i], fragment_at(ds_address, BLOCK_N, 16 * depth, i * DQ_ROW_WARPS));
        UNROLL
        for (int n = 0; n < DQ_COLUMNS / 16; n++) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, fragment_at(columns, BLOCK_N, 16 * depth, n * DQ_SPLIT));
            UNROLL
            for (int i = 0; i < DQ_STRIPS; i++) {
                mma_16bit(&dq[i][8 * n], a[i], b);
                mma_16bit(&dq[i][8 * n + 4], a[i], b + 2);
            }
        }
    }
}

/* P^T or dS^T of a strip, rounded, into its tile [key][query]. */
DEVICE void store_transposed(uint32_t tile, const float x[QUERIES / 2], int key, int query) {
    const int lane = (int)lane_index();
    UNROLL
    for (int n = 0; n < QUERIES / 16; n++) {
        uint32_t packed[4]; /* of two n8 tiles: keys lane / 4 and 8 on, each */
        UNROLL
        for (int j = 0; j < 4; j++) packed[j] = pack_16bit(x[8 * n + 2 * j], x[8 * n + 2 * j + 1]);
        if (has_sm90()) {
            stmatrix_x4(tile_address(tile, BLOCK_N, key + lane % 16, query / 8 + 2 * n + lane / 16), packed);
            continue;
        }
        UNROLL
        for (int j = 0; j < 4; j++)
            shared_store_u32(tile_address(tile, BLOCK_N, key + 8 * (j % 2) + lane / 4, query / 8 + 2 * n + j / 2) +
                                 (uint32_t)(lane % 4 * 4),
                             packed[j]);
    }
}

/* ---- results ---- */

/*
 * deterministic: the key tiles that see a query tile add to its dq_sum one after another, in their order. One thread of a
 * block waits for its turn, before a barrier that everybody's additions follow, and passes it on after one that they
 * precede; by then most of them have arrived, and the fence is cheap. Blocks wait only for those of a smaller number.
 */
DEVICE int takes_turns(const fa_backward_params *params) {
    return params->deterministic && params->dq.data && thread_index() == 0;
}

/* Whose turn it is at a step, looked up ahead; the fence of pass_turn() has to follow. */
DEVICE uint32_t turn_ahead(step s, const fa_backward_params *params) {
    return takes_turns(params) ? global_load_relaxed_u32(params->turns + 2 * step_number(s, params)) : 0;
}

DEVICE void take_turn(step s, uint32_t ahead, const fa_backward_params *params) {
    if (!takes_turns(params)) return;
    const fa_visibility v = kept_visibility();
    const device_tile_keys seen = tile_keys(&v, s.tile * BLOCK_M, (s.tile + 1) * BLOCK_M);
    const uint32_t turn = dq_turn(seen.some.end, shared_load_i32(kept(KEPT_KEY)) / BLOCK_N, BLOCK_N);
    const int number = step_number(s, params);
    shared_store_i32(kept(KEPT_TURN), number);
    if (ahead == turn) return;
    while (global_load_acquire_u32(params->turns + 2 * number) != turn) {}
}

/* Passes on the turn that was taken last. */
DEVICE void pass_turn(const fa_backward_params *params) {
    if (!takes_turns(params)) return;
    const int number = shared_load_i32(kept(KEPT_TURN));
    fence_gpu();
    if (number >= 0) (void)global_atomic_add_u32(params->turns + 2 * number, 1);
}

DEVICE void add_dq(const float dq[DQ_STRIPS][DQ_COLUMNS / 2], step s, const fa_backward_params *params) {
    const int strip = (int)warp_index() % DQ_ROW_WARPS, part = (int)warp_index() / DQ_ROW_WARPS;
    float *sum = params->dq_sum + (int64_t)step_number(s, params) * (BLOCK_M * HEAD_DIM) +
                 dq_sum_index(16 * strip, 16 * part, BLOCK_M, HEAD_DIM) + (has_sm90() ? 4 : 1) * lane_index();
    UNROLL
    for (int i = 0; i < DQ_STRIPS; i++) {
        UNROLL
        for (int n = 0; n < DQ_COLUMNS / 8; n++) {
            const int piece = dq_sum_index(16 * DQ_ROW_WARPS * i, n / 2 * 16 * DQ_SPLIT + n % 2 * 8, BLOCK_M, HEAD_DIM);
            const f32x4 x = {dq[i][4 * n], dq[i][4 * n + 1], dq[i][4 * n + 2], dq[i][4 * n + 3]};
            if (has_sm90()) {
                global_reduce_add_f32x4(sum + piece, x);
                continue;
            }
            UNROLL
            for (int v = 0; v < 4; v++) (void)global_atomic_add_f32(sum + piece + 32 * v, dq[i][4 * n + v]);
        }
    }
}

/* dK or dV of the warp. Keys that no query sees get exactly 0. */
DEVICE void store_gradient(const float sum[2][COLUMNS / 2], float factor, const fa_device_rows *rows, int is_float32,
                           int columns, const key_work *w) {
    const int lane = (int)lane_index(), first = (int)warp_index() / SPLIT * 32, part = (int)warp_index() % SPLIT;
    if (!rows->data) return;
    UNROLL
    for (int i = 0; i < 4; i++) { /* strip i / 2, half i % 2 */
        const int key = w->key + first + 8 * i + lane / 4;
        const int seen = key >= w->keys.begin && key < w->keys.end;
        const float *x = sum[i / 2] + i % 2 * 2;
        if (key >= w->tile.rows) continue;
        char *row = row_address(rows, &w->tile.sequence, w->tile.sequence.k_begin + key, w->tile.head_kv);
        UNROLL
        for (int n = 0; n < COLUMNS / 8; n++)
            store_pair(row, 16 * (n / 2 * SPLIT + part) + n % 2 * 8 + lane % 4 * 2, columns, is_float32,
                       seen ? x[4 * n] * factor : 0.0f, seen ? x[4 * n + 1] * factor : 0.0f);
    }
}

KERNEL(KERNEL_NAME, THREADS, 1, fa_backward_params, params) {
    const fa_forward_params *p = &params->forward;
    key_work w;
    if (!work_locate(&w, params)) return;

    const uint32_t base = shared_base();
    const int first = (int)warp_index() / SPLIT * 32,
              part = (int)warp_index() % SPLIT; /* the warp's keys; its share of them */
    const int query = QUERIES * part;
    /* Tiles with as many rows have fragments at the same places. */
    const uint32_t k_address = a_fragment_address(base + AT_K, BLOCK_N, first);
    const uint32_t dq_ds_address =
        fragment_at(key_fragment_address(base + AT_DS, BLOCK_N), BLOCK_N, 0, (int)warp_index() % DQ_ROW_WARPS);
    const uint32_t dq_k_address =
        fragment_at(value_fragment_address(base + AT_K, BLOCK_N), BLOCK_N, 0, (int)warp_index() / DQ_ROW_WARPS);
    const uint32_t q_rows = fragment_at(key_fragment_address(base, BLOCK_M), BLOCK_M, query, 0);
    const uint32_t q_columns = fragment_at(value_fragment_address(base, BLOCK_M), BLOCK_M, 0, part);

    float dk[2][COLUMNS / 2], dv[2][COLUMNS / 2];
    UNROLL
    for (int i = 0; i < COLUMNS; i++)
        dk[i / (COLUMNS / 2)][i % (COLUMNS / 2)] = dv[i / (COLUMNS / 2)][i % (COLUMNS / 2)] = 0.0f;

    step now;
    now.head = (w.tile.head_kv + (w.row_begin < w.row_end ? 0 : 1)) * p->group;
    now.tile = w.row_begin;
    int idle = 0;
    keep_work(&w, params);
    if (step_exists(now)) {
        load_tile(base + AT_K, BLOCK_N, row_address(&p->k, &w.tile.sequence, w.tile.sequence.k_begin, w.tile.head_kv),
                  &p->k, w.key, w.keys.begin, w.keys.end, p->head_dim, p, THREADS);
        load_tile(base + AT_V, BLOCK_N, row_address(&p->v, &w.tile.sequence, w.tile.sequence.k_begin, w.tile.head_kv),
                  &p->v, w.key, w.keys.begin, w.keys.end, p->head_dim_v, p, THREADS);
        load_queries(0, now, params);
        load_dout(0, now, params);
        idle = global_load_i32(params->idle_rows + step_number(now, params));
    }
    cp_async_commit_group();
#if GENERAL
    if ((p->bias.data || p->mask.data) && step_exists(now)) {
        cp_async_wait_group(0);
        block_sync();
        clear_unseen_keys(&w, params);
    }
#endif

    uint32_t stage = 0;
    int exists = step_exists(now);
    NO_UNROLL
    while (exists) {
        const uint32_t at_q = AT_Q(stage), at_dout = AT_DOUT(stage), rows = base + AT_ROWS(stage);
        cp_async_wait_group(0);
        block_sync(); /* Q and dO of this step have landed, and everybody has left what is filled next, P and dS too */
        if (idle & FA_IDLE_ROWS_DIRTY) clear_idle_rows(stage);

        float s[2][QUERIES / 2], ds[2][QUERIES / 2];
        multiply_transposed(s, k_address, q_rows + at_q);
        next_step next;
        if (NEXT_BEHIND_SCORES) next = look_ahead(now, stage, params);
        if (!WEIGHTS_FIRST) multiply_transposed(ds, k_address + (AT_V - AT_K), q_rows + at_dout);

        const int row = now.tile * BLOCK_M, key = shared_load_i32(kept(KEPT_KEY));
        const fa_visibility visibility = kept_visibility();
        const device_tile_keys seen = tile_keys(&visibility, row, row + BLOCK_M);
        const int masked = GENERAL || idle || key < seen.all.begin || key + BLOCK_N > seen.all.end;
        const uint32_t lse = rows + 4 * (uint32_t)query, delta = lse + BLOCK_M * 4;
        const float scale_log2 = p->softmax_scale * LOG2_E;
        if (WEIGHTS_FIRST &&
            !masked) { /* products in both branches: the compiler mixes them with what stands beside them */
            scores_to_weights(s[0], QUERIES / 2, lse, scale_log2);
            multiply_transposed(ds, k_address + (AT_V - AT_K), q_rows + at_dout);
        } else if (WEIGHTS_FIRST) {
            multiply_transposed(ds, k_address + (AT_V - AT_K), q_rows + at_dout);
        }
        if (!masked) {
            if (!WEIGHTS_FIRST) scores_to_weights(s[0], QUERIES / 2, lse, scale_log2);
            weights_to_gradients(s[0], ds[0], QUERIES / 2, delta);
        }
        UNROLL
        for (int i = 0; i < 2; i++) {
            if (masked) {
                score_place at;
                at.entry = shared_load_i32(kept(KEPT_ENTRY));
                at.head = now.head;
                at.query = row + query + (int)lane_index() % 4 * 2;
                at.key = key + first + 16 * i + (int)lane_index() / 4;
                scores_to_gradients_masked(s[i], ds[i], QUERIES / 2, lse, delta, &visibility, at, p);
            }
            store_transposed(base + AT_P, s[i], first + 16 * i, query);
            store_transposed(base + AT_DS, ds[i], first + 16 * i, query);
        }
        block_sync(); /* P and dS are there, and dQ of the step before has been added */
        const uint32_t ahead = turn_ahead(now, params);
        pass_turn(params);
        if (!NEXT_BEHIND_SCORES) next = look_ahead(now, stage, params);
        accumulate(dv, k_address + (AT_P - AT_K), q_columns + at_dout);
        accumulate(dk, k_address + (AT_DS - AT_K), q_columns + at_q);
        take_turn(now, ahead, params);
        if (RING_STAGES == 1 || params->deterministic)
            block_sync(); /* everybody has left Q and dO; it is the block's turn */
        if (RING_STAGES == 1) {
            if (next.exists) load_queries(0, next.at, params);
            if (next.exists) load_dout(0, next.at, params);
            cp_async_commit_group();
        }
        if (params->dq.data) {
            float dq[DQ_STRIPS][DQ_COLUMNS / 2];
            multiply_dq(dq, dq_ds_address, dq_k_address);
            add_dq(dq, now, params);
        }
        now = next.at;
        exists = next.exists;
        idle = next.idle;
        if (RING_STAGES > 1) stage ^= 1u;
    }
    cp_async_wait_group(0);
    block_sync();
    pass_turn(params);
    (void)work_locate(&w, params); /* again, rather than kept */
    store_gradient(dk, p->softmax_scale, &params->dk, params->dk_float32, p->head_dim, &w);
    store_gradient(dv, 1.0f, &params->dv, params->dv_float32, p->head_dim_v, &w);
}
