/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention as it was written before FlashAttention: S = mask(scale Q K^T) goes to global memory, P = softmax(S)
 * comes from there and goes back, O = P V reads it once more. The baseline of both papers, with the same tensor cores
 * and tiles as version 2, so that what differs is the traffic. As there, S and P are held in the inputs' 16-bit type:
 * scores beyond the range of float16 become infinite, as they do in any attention that keeps S in it. All tiles are
 * computed, those that a mask hides too.
 *
 * Takes what version 2 takes, up to the longest row of S that fits into shared memory (about 81,000 keys on an A100,
 * 113,000 on an H200).
 *
 * Compiled once per row of variants.def, with
 *   HEAD_DIM  64, 96, 128, 192, 256: columns of the tiles; smaller head dims are padded with zeros on the way in
 *   BF16      1: bfloat16, 0: float16
 *   GENERAL   1: softcap, ALiBi, bias, boolean mask, rows that are not aligned; 0: none of these
 *   BLOCK_M   rows of a tile of S, BLOCK_N its keys, WARPS warps of BLOCK_M / WARPS rows each, STAGES tiles of P and
 *             V in flight
 */
#define THREADS (WARPS * 32)
#define STRIPS (BLOCK_M / WARPS / 16)
#define KEYS BLOCK_N

#define FEW_REGISTERS 1

#include "copy.h"
#include "multiply.h"
#include "output.h"
#include "score.h"
#include "standard_tiles.h"

#define TILE_BYTES_Q (BLOCK_M * HEAD_DIM * 2)
#define TILE_BYTES_P (BLOCK_M * BLOCK_N * 2)
#define TILE_BYTES_V (BLOCK_N * HEAD_DIM * 2)

#if BLOCK_N % TILE_PAGE || BLOCK_N > HEAD_DIM || STAGES * (TILE_BYTES_P + TILE_BYTES_V) < TILE_BYTES_Q
#    error "standard: these tiles do not fit together"
#endif

/*
 * A weight of exactly zero, because the query does not see the key: told from one that is too small for the format by
 * its sign.
 */
#define HIDDEN_WEIGHT 0x8000u

/* Rows row .. row + BLOCK_M - 1 of a head, and the tiles of keys of its sequence. */
typedef struct row_tile {
    device_sequence sequence;
    int head;
    int row;
    int key_tiles;
    char *scores; /* of the sequence's first query */
    int64_t scores_stride;
} row_tile;

/* Returns 0 if the sequence has no such rows. */
DEVICE int tile_locate(row_tile *t, const fa_standard_params *params, uint32_t index) {
    const fa_forward_params *p = &params->forward;
    uint32_t tile = index % (uint32_t)p->row_blocks;
    index /= (uint32_t)p->row_blocks;
    t->head = (int)(index % (uint32_t)p->heads);
    t->sequence = tile_sequence(p, (int)(index / (uint32_t)p->heads), &tile, BLOCK_M);
    t->row = (int)tile * BLOCK_M;
    t->key_tiles = (t->sequence.visibility.key_end + BLOCK_N - 1) / BLOCK_N;
    if (t->key_tiles > params->key_blocks) t->key_tiles = params->key_blocks;
    t->scores_stride = (int64_t)params->key_blocks * (BLOCK_N * 2);
    t->scores =
        params->scores + (t->head * FA_WORKSPACE_ROWS(p) + workspace_row(p, &t->sequence, 0)) * t->scores_stride;
    return t->row < t->sequence.q_rows;
}

DEVICE char *scores_row(const row_tile *t, int row) { return t->scores + row * t->scores_stride; }

/* ---- S = mask(scale Q K^T) ---- */

DEVICE void store_scores(float s[STRIPS][KEYS / 2], uint32_t tile, int tile_row, const row_tile *t, int key) {
    const int chunks = BLOCK_N / 8; /* of 16 bytes in a row of the tile */
    warp_sync();                    /* the last ldmatrix from there */
    UNROLL
    for (int i = 0; i < STRIPS; i++) round_into_tile(tile, tile_row + 16 * i, 0, s[i], KEYS / 2);
    warp_sync();
    NO_UNROLL
    for (int i = (int)lane_index(); i < 16 * STRIPS * chunks; i += 32) {
        int row = tile_row + i / chunks, chunk = i % chunks;
        if (t->row + row < t->sequence.q_rows)
            global_store_u32x4(scores_row(t, t->row + row) + key * 2 + chunk * 16,
                               shared_load_u32x4(tile_address(tile, BLOCK_M, row, chunk)));
    }
}

DEVICE void compute_scores(const fa_standard_params *params) {
    const fa_forward_params *p = &params->forward;
    row_tile t;
    const int key_tile = (int)(block_index_x() % (uint32_t)params->key_blocks), key = key_tile * BLOCK_N;
    if (!tile_locate(&t, params, block_index_x() / (uint32_t)params->key_blocks) || key_tile >= t.key_tiles) return;
    const fa_visibility *visibility = &t.sequence.visibility;
    const uint32_t q_tile = shared_base(), k_tile = q_tile + TILE_BYTES_Q;
    const int tile_row = (int)warp_index() * 16 * STRIPS, thread_row = t.row + tile_row + (int)lane_index() / 4;

    load_tile(q_tile, BLOCK_M, row_address(&p->q, &t.sequence, t.sequence.q_begin, t.head), &p->q, t.row, 0,
              visibility->seqlen_q, p->head_dim, p, THREADS);
    load_tile(k_tile, BLOCK_N, row_address(&p->k, &t.sequence, t.sequence.k_begin, t.head / p->group), &p->k, key,
              visibility->key_begin, visibility->key_end, p->head_dim, p, THREADS);
    cp_async_commit_group();
    cp_async_wait_group(0);
    block_sync();

    float s[STRIPS][KEYS / 2];
    multiply_scores(s, a_fragment_address(q_tile, BLOCK_M, tile_row), key_fragment_address(k_tile, BLOCK_N));
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
#if GENERAL
        modify_scores(s[i], KEYS / 2, p, &t.sequence, t.head, thread_row + 16 * i, key);
#else
        UNROLL
        for (int j = 0; j < KEYS / 2; j++) s[i][j] *= p->softmax_scale;
        mask_positions(s[i], KEYS / 2, visibility, thread_row + 16 * i, key);
#endif
    }
    store_scores(s, q_tile, tile_row, &t, key); /* the warp's rows of Q, which only it has read */
}

/* ---- P = softmax(S) ---- */

/* The same in all threads of the block; warp_floats: a float of shared memory for each warp. */
DEVICE float block_reduce(float x, int max, uint32_t warp_floats) {
    UNROLL
    for (uint32_t distance = 16; distance > 0; distance /= 2) {
        float other = shuffle_xor_f32(x, distance);
        x = max ? fmaxf(x, other) : x + other;
    }
    block_sync(); /* everybody has left the last reduction */
    if (lane_index() == 0) shared_store_f32(warp_floats + 4 * warp_index(), x);
    block_sync();
    x = shared_load_f32(warp_floats);
    for (uint32_t w = 1; w < WARPS; w++) {
        float other = shared_load_f32(warp_floats + 4 * w);
        x = max ? fmaxf(x, other) : x + other;
    }
    return x;
}

/* Eight neighbouring scores of a row. */
DEVICE void unpack_scores(float *s, u32x4 packed) {
    f32x2 a = unpack_16bit(packed.x), b = unpack_16bit(packed.y), c = unpack_16bit(packed.z),
          d = unpack_16bit(packed.w);
    s[0] = a.x, s[1] = a.y, s[2] = b.x, s[3] = b.y, s[4] = c.x, s[5] = c.y, s[6] = d.x, s[7] = d.y;
}

DEVICE uint32_t pack_weights(float low, float high, float low_score, float high_score) {
    uint32_t weights = pack_16bit(low, high);
    if (low_score == -INFINITY) weights = (weights & 0xFFFF0000u) | HIDDEN_WEIGHT;
    if (high_score == -INFINITY) weights = (weights & 0xFFFFu) | HIDDEN_WEIGHT << 16;
    return weights;
}

/* One row, read once and written once; between that a thread's pieces of it lie in shared memory. Returns the lse. */
DEVICE float softmax_row(char *scores, int pieces, float sink, uint32_t row, uint32_t warp_floats) {
    float s[8], max = -INFINITY, sum = 0.0f;
    NO_UNROLL
    for (int i = (int)thread_index(); i < pieces; i += THREADS) {
        u32x4 packed = global_load_u32x4(scores + i * 16);
        shared_store_u32x4(row + (uint32_t)i * 16, packed);
        unpack_scores(s, packed);
        UNROLL
        for (int e = 0; e < 8; e++) max = fmaxf(max, s[e]); /* passes over NaN, which shows in the sum */
    }
    max = fmaxf(block_reduce(max, 1, warp_floats), sink);
    const float shift = max == -INFINITY ? 0.0f : max; /* a row that sees nothing: never inf - inf */
    NO_UNROLL
    for (int i = (int)thread_index(); i < pieces; i += THREADS) {
        unpack_scores(s, shared_load_u32x4(row + (uint32_t)i * 16));
        UNROLL
        for (int e = 0; e < 8; e++) sum += exp2_approx((s[e] - shift) * LOG2_E);
    }
    sum = block_reduce(sum, 0, warp_floats);
    if (sink != -INFINITY) sum += exp2_approx((sink - shift) * LOG2_E);
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    NO_UNROLL
    for (int i = (int)thread_index(); i < pieces; i += THREADS) {
        unpack_scores(s, shared_load_u32x4(row + (uint32_t)i * 16));
        float w[8];
        UNROLL
        for (int e = 0; e < 8; e++) w[e] = factor * exp2_approx((s[e] - shift) * LOG2_E);
        u32x4 packed = {pack_weights(w[0], w[1], s[0], s[1]), pack_weights(w[2], w[3], s[2], s[3]),
                        pack_weights(w[4], w[5], s[4], s[5]), pack_weights(w[6], w[7], s[6], s[7])};
        global_store_u32x4(scores + i * 16, packed);
    }
    return sum == 0.0f ? -INFINITY : max + logf(sum);
}

DEVICE void compute_softmax(const fa_standard_params *params) {
    const fa_forward_params *p = &params->forward;
    row_tile t;
    if (!tile_locate(&t, params, block_index_x())) return;
    const uint32_t row_in_shared = shared_base(),
                   warp_floats = row_in_shared + (uint32_t)params->key_blocks * (BLOCK_N * 2);
    const float sink = p->sink.data ? device_table_float(&p->sink, t.head, 0) : -INFINITY;
    const int end = t.row + BLOCK_M < t.sequence.q_rows ? t.row + BLOCK_M : t.sequence.q_rows;
    NO_UNROLL
    for (int row = t.row; row < end; row++) {
        float lse = softmax_row(scores_row(&t, row), t.key_tiles * (BLOCK_N / 8), sink, row_in_shared, warp_floats);
        if (p->lse && thread_index() == 0)
            global_store_f32(p->lse + t.sequence.entry * p->lse_batch_stride + t.head * p->lse_head_stride +
                                 (t.sequence.q_begin + row) * p->lse_row_stride,
                             lse);
    }
}

/* ---- O = P V ---- */

/*
 * The warp's rows of O once more, element by element and without the keys that a query does not see: where V holds a
 * NaN or infinity, the product has let it through to all rows of the tile, since 0 * NaN is NaN.
 */
DEVICE void store_rows_of_visible(const row_tile *t, const char *v, int tile_row, const fa_forward_params *p) {
    NO_UNROLL
    for (int i = (int)lane_index(); i < 16 * STRIPS * p->head_dim_v; i += 32) {
        int row = t->row + tile_row + i / p->head_dim_v, column = i % p->head_dim_v;
        if (row >= t->sequence.q_rows) break;
        float sum = 0.0f;
        NO_UNROLL
        for (int key = t->sequence.visibility.key_begin;
             key < t->sequence.visibility.key_end && key < t->key_tiles * BLOCK_N; key++) {
            uint32_t weight = global_load_u16(scores_row(t, row) + key * 2);
            if (weight != HIDDEN_WEIGHT)
                sum = fmaf(unpack_16bit(weight).x,
                           unpack_16bit(global_load_u16(v + key * p->v.row_stride + column * 2)).x, sum);
        }
        store_element(row_address(&p->out, &t->sequence, t->sequence.q_begin + row, t->head), column, sum, p);
    }
}

DEVICE void load_weights_and_values(const row_tile *t, const char *v, uint32_t p_tile, uint32_t v_tile, int key,
                                    const fa_forward_params *p) {
    copy_pages_async(p_tile, BLOCK_M, BLOCK_N / TILE_PAGE, t->scores + key * 2, t->scores_stride, t->row, 0,
                     t->sequence.q_rows, BLOCK_N, THREADS);
    load_tile(v_tile, BLOCK_N, v, &p->v, key, t->sequence.visibility.key_begin, t->sequence.visibility.key_end,
              p->head_dim_v, p, THREADS);
}

DEVICE void compute_values(const fa_standard_params *params) {
    const fa_forward_params *p = &params->forward;
    row_tile t;
    if (!tile_locate(&t, params, block_index_x())) return;
    const char *v = row_address(&p->v, &t.sequence, t.sequence.k_begin, t.head / p->group);
    const uint32_t p_tiles = shared_base(), v_tiles = p_tiles + STAGES * TILE_BYTES_P;
    const int tile_row = (int)warp_index() * 16 * STRIPS;

    float o[STRIPS][HEAD_DIM / 2];
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        UNROLL
        for (int j = 0; j < HEAD_DIM / 2; j++) o[i][j] = 0.0f;
    }
    UNROLL
    for (int tile = 0; tile < STAGES - 1; tile++) {
        if (tile < t.key_tiles)
            load_weights_and_values(&t, v, p_tiles + (uint32_t)tile * TILE_BYTES_P,
                                    v_tiles + (uint32_t)tile * TILE_BYTES_V, tile * BLOCK_N, p);
        cp_async_commit_group();
    }
    uint32_t stage = 0;
    NO_UNROLL
    for (int tile = 0; tile < t.key_tiles; tile++) {
        cp_async_wait_group(STAGES - 2);
        block_sync(); /* this stage has landed, and everybody has left the one that is filled next */
        const int next = tile + STAGES - 1;
        const uint32_t next_stage = stage == 0 ? STAGES - 1 : stage - 1;
        if (next < t.key_tiles)
            load_weights_and_values(&t, v, p_tiles + next_stage * TILE_BYTES_P, v_tiles + next_stage * TILE_BYTES_V,
                                    next * BLOCK_N, p);
        cp_async_commit_group();
        multiply_weights(o, a_fragment_address(p_tiles + stage * TILE_BYTES_P, BLOCK_M, tile_row),
                         value_fragment_address(v_tiles + stage * TILE_BYTES_V, BLOCK_N));
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    cp_async_wait_group(0);
    block_sync(); /* everybody has left the tiles, where O goes next */

    int finite = 1;
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        UNROLL
        for (int j = 0; j < HEAD_DIM / 2; j++) finite &= fabsf(o[i][j]) < INFINITY;
    }
    if (!vote_all(finite))
        store_rows_of_visible(&t, v, tile_row, p);
    else if (p->rows_aligned && !p->out_float32)
        store_rows_aligned(o, shared_base(), tile_row, &t.sequence, t.row, t.head, p);
    else
        store_rows_elements(o, tile_row, &t.sequence, t.row, t.head, p);
}

KERNEL(KERNEL_NAME, THREADS, STANDARD_BLOCKS_PER_SM, fa_standard_params, params) {
    if (params->step == STANDARD_SCORES)
        compute_scores(params);
    else if (params->step == STANDARD_SOFTMAX)
        compute_softmax(params);
    else
        compute_values(params);
}
