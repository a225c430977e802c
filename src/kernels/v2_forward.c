/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention-2 forward (Dao, 2023): one block of threads per query tile, so that the sequence is a dimension of parallelism; the warps share
 * the tile by rows ("sliced Q"), each sees all of K and V and none waits for another's partial result; O stays in registers and is
 * normalised once, at the end; masks cost only tiles on the boundary.
 *
 * Compiled once per row of variants.def, with
 *   HEAD_DIM  64, 96, 128, 192, 256: columns of the tiles; smaller head dims are padded with zeros on the way in
 *   BF16      1: bfloat16, 0: float16
 *   GENERAL   1: softcap, ALiBi, bias, boolean mask, scales <= 0, rows that are not aligned; 0: none of these, and faster for it
 *   BLOCK_M   rows of a query tile, BLOCK_N keys of a K/V tile, WARPS warps of BLOCK_M / WARPS rows each, STAGES K/V tiles in flight
 */
#define THREADS (WARPS * 32)
#define STRIPS (BLOCK_M / WARPS / 16) /* strips of 16 rows per warp */
#define KEYS BLOCK_N                  /* every warp sees all keys of a tile */

#define COPY_TESTS_TILES (STAGES == 1)

#define FEW_REGISTERS 1

#include "copy.h"
#include "multiply.h"
#include "output.h"
#include "score.h"
#include "v2_tiles.h"

#define TILE_BYTES_Q (BLOCK_M * HEAD_DIM * 2)
#define TILE_BYTES_KV (BLOCK_N * HEAD_DIM * 2)

/* What a block works on. */
typedef struct query_tile {
    device_sequence sequence;
    int head;
    int row;                  /* first query */
    int tile_begin, tile_end; /* K/V tiles that some row sees */
    fa_key_range keys;        /* keys that some row sees */
    fa_key_range everyone;    /* keys that every used row sees */
    const char *q, *k, *v;
} query_tile;

/* The grid is (row tiles, heads, batch entries), or all of them folded into x where y and z cannot hold them. Row tiles run first, so that
 * neighbours share K and V in L2, and the last rows come first, since under a causal mask they have most to do. Returns 0 if the sequence has
 * no such rows. */
DEVICE int tile_locate(query_tile *t, const fa_forward_params *p) {
    uint32_t row_tile = block_index_x(), head = block_index_y(), entry = block_index_z();
    if (grid_blocks_y() == 1 && grid_blocks_z() == 1) {
        uint32_t pair = row_tile / (uint32_t)p->row_blocks;
        row_tile -= pair * (uint32_t)p->row_blocks;
        entry = pair / (uint32_t)p->heads;
        head = pair - entry * (uint32_t)p->heads;
    }
    row_tile = (uint32_t)p->row_blocks - 1 - row_tile;
    t->head = (int)head;
    t->sequence = tile_sequence(p, (int)entry, &row_tile, BLOCK_M);
    t->row = (int)row_tile * BLOCK_M;
    if (t->row >= t->sequence.q_rows) return 0;

    const fa_visibility *visibility = &t->sequence.visibility;
    device_tile_keys keys = tile_keys(visibility, t->row, t->row + BLOCK_M);
    t->keys = keys.some;
    t->everyone = keys.all;
    int empty = t->keys.begin >= t->keys.end;
    t->tile_begin = t->keys.begin / BLOCK_N;
    t->tile_end = empty ? t->tile_begin : (t->keys.end + BLOCK_N - 1) / BLOCK_N;

    int head_kv = t->head / p->group;
    t->q = row_address(&p->q, &t->sequence, t->sequence.q_begin, t->head);
    t->k = row_address(&p->k, &t->sequence, t->sequence.k_begin, head_kv);
    t->v = row_address(&p->v, &t->sequence, t->sequence.k_begin, head_kv);
    return 1;
}

#if GENERAL
/*
 * Keys that bias or boolean mask hide from every row of the tile get a value of zero: their weights are 0, but 0 times a NaN or infinity
 * in V would be NaN. seen: BLOCK_N counters in shared memory.
 */
DEVICE void clear_unseen_values(uint32_t v_tile, uint32_t seen, const float s[STRIPS][BLOCK_N / 2]) {
    for (int j = (int)thread_index(); j < BLOCK_N; j += THREADS) shared_store_u32(seen + 4 * (uint32_t)j, 0);
    block_sync();
    UNROLL
    for (int t = 0; t < BLOCK_N / 8; t++) {
        UNROLL
        for (int e = 0; e < 2; e++) {
            int any = 0;
            UNROLL
            for (int i = 0; i < STRIPS; i++) any |= s[i][4 * t + e] != -INFINITY || s[i][4 * t + 2 + e] != -INFINITY;
            uint32_t column = 8 * (uint32_t)t + lane_index() % 4 * 2 + (uint32_t)e;
            if (any) (void)shared_atomic_add_u32(seen + 4 * column, 1);
        }
    }
    block_sync();
    u32x4 zero = {0, 0, 0, 0};
    for (int i = (int)thread_index(); i < BLOCK_N * (HEAD_DIM / 8); i += THREADS) {
        int key = i / (HEAD_DIM / 8);
        if (shared_load_u32(seen + 4 * (uint32_t)key) == 0)
            shared_store_u32x4(tile_address(v_tile, BLOCK_N, key, i % (HEAD_DIM / 8)), zero);
    }
    block_sync();
}
#endif

DEVICE void load_keys(uint32_t k_tile, const query_tile *t, int tile, const fa_forward_params *p) {
    load_tile(k_tile, BLOCK_N, t->k, &p->k, tile * BLOCK_N, t->keys.begin, t->keys.end, p->head_dim, p, THREADS);
}

DEVICE void load_values(uint32_t v_tile, const query_tile *t, int tile, const fa_forward_params *p) {
    load_tile(v_tile, BLOCK_N, t->v, &p->v, tile * BLOCK_N, t->keys.begin, t->keys.end, p->head_dim_v, p, THREADS);
}

KERNEL(KERNEL_NAME, THREADS, V2_BLOCKS_PER_SM, fa_forward_params, p) {
    query_tile t;
    if (!tile_locate(&t, p)) return;

    const uint32_t q_tile = shared_base(), k_tiles = q_tile + TILE_BYTES_Q, v_tiles = k_tiles + STAGES * TILE_BYTES_KV;
    const int warp_row = (int)warp_index() * 16 * STRIPS;
    const uint32_t q_address = a_fragment_address(q_tile, BLOCK_M, warp_row);
#if GENERAL
    const uint32_t seen = v_tiles + STAGES * TILE_BYTES_KV;
    const float scale_log2 = LOG2_E; /* modify_scores leaves natural units */
#else
    const float scale_log2 = p->softmax_scale * LOG2_E;
#endif

    float o[STRIPS][HEAD_DIM / 2];
    softmax_rows rows[STRIPS];
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        softmax_begin(&rows[i]);
        UNROLL
        for (int j = 0; j < HEAD_DIM / 2; j++) o[i][j] = 0.0f;
    }

    /* Tiles are taken from the last to the first. */
    if (t.tile_begin < t.tile_end) {
        load_tile(q_tile, BLOCK_M, t.q, &p->q, t.row, 0, t.sequence.visibility.seqlen_q, p->head_dim, p, THREADS);
        load_keys(k_tiles, &t, t.tile_end - 1, p);
        if (STAGES > 1) load_values(v_tiles, &t, t.tile_end - 1, p);
    }
    cp_async_commit_group();

    uint32_t stage = 0;
    NO_UNROLL
    for (int tile = t.tile_end - 1; tile >= t.tile_begin; tile--) {
        const uint32_t k_tile = k_tiles + stage * TILE_BYTES_KV, v_tile = v_tiles + stage * TILE_BYTES_KV;
        const int key = tile * BLOCK_N;
        cp_async_wait_group(0);
        block_sync(); /* K (and V) of this tile have landed, and everybody has left the buffers that are filled next */
#if STAGES > 1
        stage ^= 1u;
        if (tile > t.tile_begin) {
            load_keys(k_tiles + stage * TILE_BYTES_KV, &t, tile - 1, p);
            load_values(v_tiles + stage * TILE_BYTES_KV, &t, tile - 1, p);
        }
#else
        load_values(v_tile, &t, tile, p);
#endif
        cp_async_commit_group();

        float s[STRIPS][BLOCK_N / 2];
        multiply_scores(s, q_address, key_fragment_address(k_tile, BLOCK_N));
#if STAGES == 1
        cp_async_wait_group(0);
        block_sync(); /* V has landed, and everybody has left K */
        if (tile > t.tile_begin) load_keys(k_tile, &t, tile - 1, p);
        cp_async_commit_group();
#endif
#if GENERAL
        const int first_row = t.row + warp_row + (int)lane_index() / 4; /* of strip 0 */
        UNROLL
        for (int i = 0; i < STRIPS; i++)
            modify_scores(s[i], BLOCK_N / 2, p, &t.sequence, t.head, first_row + 16 * i, key);
        if (p->bias.data || p->mask.data) clear_unseen_values(v_tile, seen, s);
#else
        if (key < t.everyone.begin || key + BLOCK_N > t.everyone.end) {
            query_tile here; /* computed anew rather than kept: the main loop has no registers to spare */
            (void)tile_locate(&here, p);
            const int first_row = here.row + (int)warp_index() * 16 * STRIPS + (int)lane_index() / 4;
            UNROLL
            for (int i = 0; i < STRIPS; i++)
                mask_positions(s[i], BLOCK_N / 2, &here.sequence.visibility, first_row + 16 * i, key);
        }
#endif
        UNROLL
        for (int i = 0; i < STRIPS; i++) {
            float rescale[2];
            softmax_step(s[i], BLOCK_N / 2, &rows[i], scale_log2, 0.0f, rescale);
            /* Maxima settle after a few tiles; then the product with 1 is left out. */
            if (vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f)) {
                UNROLL
                for (int j = 0; j < HEAD_DIM / 2; j++) o[i][j] *= rescale[j / 2 % 2];
            }
        }
        multiply_values(o, s, value_fragment_address(v_tile, BLOCK_N));
    }
    cp_async_wait_group(0);
    (void)tile_locate(&t, p); /* again */

    float sink = p->sink.data ? device_table_float(&p->sink, t.head, 0) : -INFINITY;
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        UNROLL
        for (int r = 0; r < 2; r++) {
            int row = t.row + warp_row + (int)lane_index() / 4 + 16 * i + 8 * r;
            softmax_result result = softmax_finish(&rows[i], r, scale_log2, sink);
            if (row >=
                t.sequence.visibility.seqlen_q) { /* an unused query: whatever was computed for it is not a result */
                result.factor = 0.0f;
                result.lse = sink;
            }
            UNROLL
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                UNROLL
                for (int e = 0; e < 2; e++) {
                    float x = o[i][4 * n + 2 * r + e] * result.factor;
                    o[i][4 * n + 2 * r + e] = result.factor == 0.0f ? 0.0f : x;
                }
            }
            if (p->lse && row < t.sequence.q_rows && lane_index() % 4 == 0)
                global_store_f32(p->lse + t.sequence.entry * p->lse_batch_stride + t.head * p->lse_head_stride +
                                     (t.sequence.q_begin + row) * p->lse_row_stride,
                                 result.lse);
        }
    }
    if (p->rows_aligned && !p->out_float32)
        store_rows_aligned(o, q_tile, warp_row, &t.sequence, t.row, t.head, p);
    else
        store_rows_elements(o, warp_row, &t.sequence, t.row, t.head, p);
}
