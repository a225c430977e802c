/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention-2 forward (Dao, 2023): one block of threads per query tile, so that the sequence is a dimension of
 * parallelism; the warps share the tile by rows ("sliced Q"), each sees all of K and V and none waits for another's
 * partial result; O stays in registers and is normalised once, at the end; masks cost only tiles on the boundary.
 *
 * Wide heads (V2_IS_WIDE): O and S of 16 rows are all that a warp's registers hold, and every fragment of K and V that
 * it reads from shared memory would serve these 16 rows alone, which makes those reads the limit. So P V is divided by
 * columns instead: the weights go through shared memory, and each warp multiplies all rows of P with its columns of V,
 * 32 reads of 512 bytes in place of 64 (head_dim 256). S and the softmax stay divided by rows, so that maxima and sums
 * need no exchange. The next K tile is loaded during P V alone: loading it during the softmax, with one barrier more,
 * was slower. On GPUs without room for the weights they take the place of the K tile (weights_in_keys), and the next
 * one comes after P V.
 *
 * Compiled once per row of variants.def, with
 *   HEAD_DIM  64, 96, 128, 192, 256: columns of the tiles; smaller head dims are padded with zeros on the way in
 *   BF16      1: bfloat16, 0: float16
 *   GENERAL   1: softcap, ALiBi, bias, boolean mask, scales <= 0, rows that are not aligned;
 *             0: none of these, and faster for it
 *   BLOCK_M   rows of a query tile, BLOCK_N keys of a K/V tile, WARPS warps of BLOCK_M / WARPS rows each,
 *             STAGES K/V tiles in flight
 */
#define THREADS (WARPS * 32)
#define STRIPS (BLOCK_M / WARPS / 16) /* strips of 16 rows per warp */
#define KEYS BLOCK_N                  /* every warp sees all keys of a tile */

#include "v2_tiles.h"

#define WIDE V2_IS_WIDE(HEAD_DIM)
#if WIDE /* a warp holds 16 columns of every page of O: they lie at the same place in each */
#    define OUT_STRIPS (BLOCK_M / 16)
#    define OUT_COLUMNS (HEAD_DIM / WARPS)
#    define OUT_FIRST_STEP ((int)warp_index())
#    define OUT_STEP (TILE_PAGE / 16)
#    if STAGES != 1 || HEAD_DIM % 64 != 0 || WARPS != 4 || BLOCK_M % 32 != 0 || BLOCK_N % 64 != 0
#        error \
            "v2: a wide head has one K and one V tile; four warps share the four steps of a page, of which P has whole ones"
#    endif
#elif STAGES != 2
#    error "v2: a head that is not wide has two K and two V tiles"
#endif
#define COPY_TESTS_TILES WIDE

#define FEW_REGISTERS 1

#include "copy.h"
#include "multiply.h"
#include "output.h"
#include "score.h"

#define TILE_BYTES_Q (BLOCK_M * HEAD_DIM * 2)
#define TILE_BYTES_KV (BLOCK_N * HEAD_DIM * 2)
#define FACTORS_BYTES (WIDE ? BLOCK_M * 4 : 0)

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

/*
 * The grid is (row tiles, heads, batch entries), or all of them folded into x where y and z cannot hold them. Row tiles
 * run first, so that neighbours share K and V in L2, and the last rows come first, since under a causal mask they have
 * most to do. Returns 0 if the sequence has no such rows.
 */
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
 * Keys that bias or boolean mask hide from every row of the tile get a value of zero: their weights are 0, but 0 times
 * a NaN or infinity in V would be NaN. seen: BLOCK_N counters in shared memory.
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

/*
 * The thread's two rows of a strip of O times their factors. Maxima settle after a few tiles; then this product with 1
 * is left out, by whole strips.
 */
DEVICE void scale_strip(float o[OUT_COLUMNS / 2], const float factors[2]) {
    UNROLL
    for (int j = 0; j < OUT_COLUMNS / 2; j++) o[j] *= factors[j / 2 % 2];
}

/* The same with 1 / l, which is 0 for a row that is to be 0, whatever O has become: it may be NaN. */
DEVICE void normalise_strip(float o[OUT_COLUMNS / 2], const float factors[2]) {
    UNROLL
    for (int j = 0; j < OUT_COLUMNS / 2; j++) {
        float factor = factors[j / 2 % 2];
        o[j] = factor == 0.0f ? 0.0f : o[j] * factor;
    }
}

#if WIDE
/*
 * Factors of rows, f32 [BLOCK_M] in shared memory: from the warp that knows a row to all that hold some of its columns.
 * They are those of the thread's two rows of a strip, the same in all lanes of a quad.
 */
DEVICE uint32_t factor_address(uint32_t factors, int strip_row, int r) {
    return factors + 4 * ((uint32_t)(strip_row + 8 * r) + lane_index() / 4);
}

DEVICE void share_factors(uint32_t factors, int strip_row, const float x[2]) {
    UNROLL
    for (int r = 0; r < 2; r++)
        if (lane_index() % 4 == 0) shared_store_f32(factor_address(factors, strip_row, r), x[r]);
}

DEVICE void load_factors(float x[2], uint32_t factors, int strip_row) {
    UNROLL
    for (int r = 0; r < 2; r++) x[r] = shared_load_f32(factor_address(factors, strip_row, r));
}

/* All strips that have a factor other than 1. */
DEVICE void rescale_output(float o[OUT_STRIPS][OUT_COLUMNS / 2], uint32_t factors) {
    UNROLL
    for (int i = 0; i < OUT_STRIPS; i += 2) { /* two at once: one row per lane */
        const uint32_t moved = vote_ballot(shared_load_f32(factors + 4 * ((uint32_t)(16 * i) + lane_index())) != 1.0f);
        UNROLL
        for (int j = 0; j < 2; j++) {
            if (moved >> 16 * j & 0xFFFFu) {
                float rescale[2];
                load_factors(rescale, factors, 16 * (i + j));
                scale_strip(o[i + j], rescale);
            }
        }
    }
}
#endif

KERNEL(KERNEL_NAME, THREADS, V2_BLOCKS_PER_SM, fa_forward_params, p) {
    query_tile t;
    if (!tile_locate(&t, p)) return;

    const uint32_t q_tile = shared_base(), k_tiles = q_tile + TILE_BYTES_Q, v_tiles = k_tiles + STAGES * TILE_BYTES_KV;
    const int warp_row = (int)warp_index() * 16 * STRIPS;
    const uint32_t q_address = a_fragment_address(q_tile, BLOCK_M, warp_row);
#if WIDE
    const uint32_t behind_tiles = v_tiles + TILE_BYTES_KV;
    const uint32_t p_tile = p->weights_in_keys ? k_tiles : behind_tiles; /* a multiple of 1024 */
    const uint32_t rescale_factors =
                       behind_tiles + (p->weights_in_keys ? 0 : V2_WEIGHTS_BYTES(HEAD_DIM, BLOCK_M, BLOCK_N)),
                   last_factors = rescale_factors + FACTORS_BYTES, behind_factors = last_factors + FACTORS_BYTES;
#else
    const uint32_t behind_factors = v_tiles + STAGES * TILE_BYTES_KV;
#endif
    (void)behind_factors;
#if GENERAL
    const uint32_t seen = behind_factors;
    const float scale_log2 = LOG2_E; /* modify_scores leaves natural units */
#else
    const float scale_log2 = p->softmax_scale * LOG2_E;
#endif

    softmax_rows rows[STRIPS];
    UNROLL
    for (int i = 0; i < STRIPS; i++) softmax_begin(&rows[i]);
    float o[OUT_STRIPS][OUT_COLUMNS / 2];
    UNROLL
    for (int i = 0; i < OUT_STRIPS; i++) {
        UNROLL
        for (int j = 0; j < OUT_COLUMNS / 2; j++) o[i][j] = 0.0f;
    }

    /* Tiles are taken from the last to the first. */
    if (t.tile_begin < t.tile_end) {
        load_tile(q_tile, BLOCK_M, t.q, &p->q, t.row, 0, t.sequence.visibility.seqlen_q, p->head_dim, p, THREADS);
        load_keys(k_tiles, &t, t.tile_end - 1, p);
        if (!WIDE) load_values(v_tiles, &t, t.tile_end - 1, p);
    }
    cp_async_commit_group();

    uint32_t stage = 0;
    NO_UNROLL
    for (int tile = t.tile_end - 1; tile >= t.tile_begin; tile--) {
        const uint32_t k_tile = k_tiles + stage * TILE_BYTES_KV, v_tile = v_tiles + stage * TILE_BYTES_KV;
        const int key = tile * BLOCK_N;
        cp_async_wait_group(0);
        block_sync(); /* K (and V) of this tile have landed, and everybody has left the buffers that are filled next */
#if !WIDE
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
#if GENERAL
        const int first_row = t.row + warp_row + (int)lane_index() / 4; /* of strip 0 */
        UNROLL
        for (int i = 0; i < STRIPS; i++)
            modify_scores(s[i], BLOCK_N / 2, p, &t.sequence, t.head, first_row + 16 * i, key);
        if (p->bias.data || p->mask.data) {
#    if WIDE
            cp_async_wait_group(0); /* V */
#    endif
            clear_unseen_values(v_tile, seen, s);
        }
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
        if (WIDE && p->weights_in_keys) block_sync(); /* everybody has left K */
        UNROLL
        for (int i = 0; i < STRIPS; i++) {
            float rescale[2];
            softmax_step(s[i], BLOCK_N / 2, &rows[i], scale_log2, 0.0f, rescale);
#if WIDE
            round_into_tile(p_tile, warp_row + 16 * i, 0, s[i], BLOCK_N / 2);
            share_factors(rescale_factors, warp_row + 16 * i, rescale);
#else
            if (vote_any(rescale[0] != 1.0f || rescale[1] != 1.0f)) scale_strip(o[i], rescale);
#endif
        }
#if WIDE
        cp_async_wait_group(0);
        block_sync(); /* V has landed, and so have the weights and factors of all warps; everybody has left K */
        if (tile > t.tile_begin && !p->weights_in_keys) load_keys(k_tile, &t, tile - 1, p);
        cp_async_commit_group();
        rescale_output(o, rescale_factors);
        multiply_weights(o, a_fragment_address(p_tile, BLOCK_M, 0),
                         fragment_at(value_fragment_address(v_tile, BLOCK_N), BLOCK_N, 0, OUT_FIRST_STEP));
        if (tile > t.tile_begin && p->weights_in_keys) {
            block_sync(); /* everybody has left the weights */
            load_keys(k_tile, &t, tile - 1, p);
            cp_async_commit_group();
        }
#else
        multiply_values(o, s, value_fragment_address(v_tile, BLOCK_N));
#endif
    }
    cp_async_wait_group(0);
    (void)tile_locate(&t, p); /* again */

    float sink = p->sink.data ? device_table_float(&p->sink, t.head, 0) : -INFINITY;
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        float factors[2];
        UNROLL
        for (int r = 0; r < 2; r++) {
            int row = t.row + warp_row + (int)lane_index() / 4 + 16 * i + 8 * r;
            softmax_result result = softmax_finish(&rows[i], r, scale_log2, sink);
            if (row >=
                t.sequence.visibility.seqlen_q) { /* an unused query: whatever was computed for it is not a result */
                result.factor = 0.0f;
                result.lse = sink;
            }
            factors[r] = result.factor;
            if (p->lse && row < t.sequence.q_rows && lane_index() % 4 == 0)
                global_store_f32(p->lse + t.sequence.entry * p->lse_batch_stride + t.head * p->lse_head_stride +
                                     (t.sequence.q_begin + row) * p->lse_row_stride,
                                 result.lse);
        }
#if WIDE
        share_factors(last_factors, warp_row + 16 * i, factors);
#else
        normalise_strip(o[i], factors);
#endif
    }
#if WIDE
    block_sync(); /* the factors of all warps */
    UNROLL
    for (int i = 0; i < OUT_STRIPS; i++) {
        float factors[2];
        load_factors(factors, last_factors, 16 * i);
        normalise_strip(o[i], factors);
    }
#endif

    if (!p->rows_aligned || p->out_float32) {
        store_rows_elements(o, WIDE ? 0 : warp_row, &t.sequence, t.row, t.head, p);
        return;
    }
#if WIDE
    round_output_into_tile(o, q_tile, 0); /* everybody has left Q */
    block_sync();
    store_tile_rows(q_tile, warp_row, &t.sequence, t.row, t.head, p);
#else
    store_rows_aligned(o, q_tile, warp_row, &t.sequence, t.row, t.head, p);
#endif
}
