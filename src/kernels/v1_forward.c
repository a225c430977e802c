/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FlashAttention forward (Dao et al., 2022, algorithm 1), as its first CUDA version divided the work: one block of
 * threads per (batch entry, head). The outer loop takes K/V tiles into shared memory, each once; the inner loop
 * passes all Q tiles by them. O, m and l stay in global memory: every step reads the rows it touches and writes them
 * back, O normalised. The warps share a step by keys ("sliced K"): each has its slice of S and of P V, so row maxima,
 * row sums and the parts of P V go through shared memory.
 *
 * What version 2 does about all of this is the point of having both: see docs/versions.md.
 *
 * Compiled once per row of variants.def, with
 *   HEAD_DIM  64, 96, 128, 192, 256: columns of the tiles; smaller head dims are padded with zeros on the way in
 *   BF16      1: bfloat16, 0: float16
 *   GENERAL   1: softcap, ALiBi, bias, boolean mask, scales <= 0, rows that are not aligned; 0: none of these, and
 *             faster for it
 *   BLOCK_M   rows of a Q tile, BLOCK_N keys of a K/V tile, WARPS warps with BLOCK_N / WARPS keys each;
 *             always two Q tiles in flight, whatever STAGES is
 */
#define THREADS (WARPS * 32)
#define STRIPS (BLOCK_M / 16)
#define KEYS (BLOCK_N / WARPS)

#define FEW_REGISTERS 1

#include "copy.h"
#include "multiply.h"
#include "output.h"
#include "score.h"
#include "v1_tiles.h"

#define TILE_BYTES_Q (BLOCK_M * HEAD_DIM * 2)
#define TILE_BYTES_KV (BLOCK_N * HEAD_DIM * 2)
#define PART_STRIDE V1_PART_STRIDE(HEAD_DIM)
#define PART_BYTES (BLOCK_M * PART_STRIDE) /* of one warp */

/* In the merge a warp has whole rows, and a thread pieces of 4 columns of them. */
#define MERGE_ROWS (BLOCK_M / WARPS)
#define MERGE_PIECES (MERGE_ROWS * HEAD_DIM / 4 / 32)

#if BLOCK_M % 16 || BLOCK_N % (16 * WARPS) || BLOCK_M % WARPS || MERGE_ROWS * HEAD_DIM % 128 || \
    BLOCK_N * 4 > WARPS * PART_STRIDE
#    error "v1: these tiles do not divide"
#endif

/* What a block works on. O, m and l begin with the sequence's first query. */
typedef struct head_task {
    device_sequence sequence;
    int head;
    const char *q, *k, *v;
    char *o, *max, *sum;
} head_task;

DEVICE void task_locate(head_task *t, const fa_v1_params *params) {
    const fa_forward_params *p = &params->forward;
    t->head = (int)(block_index_x() % (uint32_t)p->heads);
    t->sequence = sequence_load(p, (int)(block_index_x() / (uint32_t)p->heads));
    int head_kv = t->head / p->group;
    t->q = row_address(&p->q, &t->sequence, t->sequence.q_begin, t->head);
    t->k = row_address(&p->k, &t->sequence, t->sequence.k_begin, head_kv);
    t->v = row_address(&p->v, &t->sequence, t->sequence.k_begin, head_kv);

    int64_t rows = FA_WORKSPACE_ROWS(p), row = t->head * rows + workspace_row(p, &t->sequence, 0);
    t->o = params->workspace + row * (HEAD_DIM * 4);
    t->max = params->workspace + rows * p->heads * (HEAD_DIM * 4) + row * 4;
    t->sum = t->max + rows * p->heads * 4;
}

typedef struct block_memory {
    uint32_t q; /* two tiles */
    uint32_t k, v;
    uint32_t parts;      /* f32 [WARPS][BLOCK_M][HEAD_DIM + 8] */
    uint32_t maxima;     /* f32 [WARPS][BLOCK_M], raw scores */
    uint32_t sums;       /* f32 [WARPS][BLOCK_M] */
    uint32_t warp_words; /* [WARPS] */
} block_memory;

DEVICE block_memory memory_layout(void) {
    block_memory m;
    m.q = shared_base();
    m.k = m.q + 2 * TILE_BYTES_Q;
    m.v = m.k + TILE_BYTES_KV;
    m.parts = m.v + TILE_BYTES_KV;
    m.maxima = m.parts + WARPS * PART_BYTES;
    m.sums = m.maxima + WARPS * BLOCK_M * 4;
    m.warp_words = m.sums + WARPS * BLOCK_M * 4;
    return m;
}

/* Line 2 of the algorithm: O = 0, l = 0, m = -inf. */
DEVICE void initialise_rows(const head_task *t, const fa_forward_params *p) {
    const f32x4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    int lane = (int)lane_index();
    NO_UNROLL
    for (int row = (int)warp_index(); row < t->sequence.visibility.seqlen_q; row += WARPS) {
        for (int column = 4 * lane; column < p->head_dim_v; column += 128)
            global_store_f32x4(t->o + (int64_t)row * (HEAD_DIM * 4) + column * 4, zero);
        if (lane == 0) {
            global_store_f32(t->max + (int64_t)row * 4, -INFINITY);
            global_store_f32(t->sum + (int64_t)row * 4, 0.0f);
        }
    }
}

/*
 * Whether the V tile holds a NaN or infinity; the same answer in all threads. The tile must have landed and been
 * waited for by all.
 */
DEVICE int values_not_finite(uint32_t v_tile, uint32_t warp_words) {
    int found = 0;
    NO_UNROLL
    for (uint32_t i = thread_index(); i < TILE_BYTES_KV / 16; i += THREADS) {
        u32x4 x = shared_load_u32x4(v_tile + 16 * i);
        found |= not_finite_16bit(x.x) | not_finite_16bit(x.y) | not_finite_16bit(x.z) | not_finite_16bit(x.w);
    }
    found = vote_any(found);
    if (lane_index() == 0) shared_store_u32(warp_words + 4 * warp_index(), (uint32_t)found);
    block_sync();
    found = 0;
    for (uint32_t w = 0; w < WARPS; w++) found |= shared_load_u32(warp_words + 4 * w) != 0;
    return found;
}

/* ---- softmax of a tile, whose columns are spread over the warps ---- */

/* Largest score of each row among the warp's keys; what is NaN is passed over and shows in the sum. */
DEVICE void store_maxima(uint32_t maxima, const float s[STRIPS][KEYS / 2]) {
    int lane = (int)lane_index();
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        UNROLL
        for (int r = 0; r < 2; r++) {
            float max = -INFINITY;
            UNROLL
            for (int t = 0; t < KEYS / 8; t++) max = fmaxf(max, fmaxf(s[i][4 * t + 2 * r], s[i][4 * t + 2 * r + 1]));
            max = quad_max(max);
            if (lane % 4 == 0)
                shared_store_f32(maxima + ((uint32_t)(16 * i + 8 * r + lane / 4) + warp_index() * BLOCK_M) * 4, max);
        }
    }
}

/* m_ij: the largest score of a row of the tile, of all warps. */
DEVICE float tile_maximum(uint32_t maxima, int row) {
    float max = -INFINITY;
    UNROLL
    for (int w = 0; w < WARPS; w++) max = fmaxf(max, shared_load_f32(maxima + (uint32_t)(w * BLOCK_M + row) * 4));
    return max;
}

/*
 * exp(scale (s - max)); scale_log2 = scale * log2(e). The difference comes first, so that scores near the largest
 * float32 do not overflow. A row that sees nothing has max = -inf and uses 0 for it: it never computes inf - inf.
 */
DEVICE float weight_of(float s, float max, float scale_log2) {
    return exp2_approx((s - (max == -INFINITY ? 0.0f : max)) * scale_log2);
}

#define HIDDEN (-1.0f) /* among weights, which are positive, 0 or NaN */

/*
 * S becomes P~ = exp(S - m_ij), and the warp's row sums go to shared memory. With exact, so does P~ itself, hidden
 * keys marked.
 */
DEVICE void exponentiate(float s[STRIPS][KEYS / 2], const block_memory *m, float scale_log2, int exact) {
    int lane = (int)lane_index(), warp = (int)warp_index();
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        UNROLL
        for (int r = 0; r < 2; r++) {
            int row = 16 * i + 8 * r + lane / 4;
            float max = tile_maximum(m->maxima, row), sum = 0.0f;
            UNROLL
            for (int t = 0; t < KEYS / 8; t++) {
                UNROLL
                for (int e = 0; e < 2; e++) {
                    float *x = &s[i][4 * t + 2 * r + e];
                    float weight = weight_of(*x, max, scale_log2);
                    if (exact)
                        shared_store_f32(m->parts +
                                             (uint32_t)(row * BLOCK_N + warp * KEYS + 8 * t + lane % 4 * 2 + e) * 4,
                                         *x == -INFINITY ? HIDDEN : weight);
                    *x = weight;
                    sum += weight;
                }
            }
            sum = quad_sum(sum);
            if (lane % 4 == 0) shared_store_f32(m->sums + (uint32_t)(warp * BLOCK_M + row) * 4, sum);
        }
    }
}

/* The warp's part of P~ V. */
DEVICE void store_part(uint32_t parts, const float o[STRIPS][HEAD_DIM / 2]) {
    int lane = (int)lane_index();
    uint32_t part = parts + warp_index() * PART_BYTES + (uint32_t)(lane / 4 * PART_STRIDE + lane % 4 * 8);
    UNROLL
    for (int i = 0; i < STRIPS; i++) {
        UNROLL
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            UNROLL
            for (int r = 0; r < 2; r++) {
                f32x2 x = {o[i][4 * n + 2 * r], o[i][4 * n + 2 * r + 1]};
                shared_store_f32x2(part + (uint32_t)((16 * i + 8 * r) * PART_STRIDE + n * 32), x);
            }
        }
    }
}

/* ---- merging a tile into O, m and l ---- */

/* Four columns of P~ V: the sum of the warps' parts. */
DEVICE f32x4 sum_of_parts(uint32_t parts, int row, int column) {
    f32x4 sum = shared_load_f32x4(parts + (uint32_t)(row * PART_STRIDE + column * 4));
    UNROLL
    for (int w = 1; w < WARPS; w++) {
        f32x4 x = shared_load_f32x4(parts + (uint32_t)(w * PART_BYTES + row * PART_STRIDE + column * 4));
        sum.x += x.x;
        sum.y += x.y;
        sum.z += x.z;
        sum.w += x.w;
    }
    return sum;
}

/*
 * The same for a V tile that holds a NaN or infinity: key by key, without those that the row does not see, since
 * 0 * NaN is NaN, and what a query does not see must not reach it. exponentiate() has left P~ in place of the parts.
 */
DEVICE f32x4 sum_of_visible(const block_memory *m, int row, int column) {
    f32x4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    NO_UNROLL
    for (int key = 0; key < BLOCK_N; key++) {
        float weight = shared_load_f32(m->parts + (uint32_t)(row * BLOCK_N + key) * 4);
        if (weight == HIDDEN) continue;
        u32x2 v = shared_load_u32x2(tile_address(m->v, BLOCK_N, key, column / 8) + (uint32_t)(column % 8 * 2));
        f32x2 low = unpack_16bit(v.x), high = unpack_16bit(v.y);
        sum.x = fmaf(weight, low.x, sum.x);
        sum.y = fmaf(weight, low.y, sum.y);
        sum.z = fmaf(weight, high.x, sum.z);
        sum.w = fmaf(weight, high.y, sum.w);
    }
    return sum;
}

/* What a thread holds of the tile's rows between reading and writing them. */
typedef struct running_rows {
    float max, sum; /* of row `lane` of the warp's MERGE_ROWS; max as in maxima */
    f32x4 o[MERGE_PIECES];
} running_rows;

/* The row of a piece, counted from the warp's first one, and its first column. */
DEVICE int piece_row(int piece) { return (32 * piece + (int)lane_index()) / (HEAD_DIM / 4); }
DEVICE int piece_column(int piece) { return (32 * piece + (int)lane_index()) % (HEAD_DIM / 4) * 4; }

/* Issued before the products, so that they hide the way to memory and back. */
DEVICE void load_running(running_rows *rows, const head_task *t, int tile_row, int head_dim_v) {
    int first = tile_row + (int)warp_index() * MERGE_ROWS, lane = (int)lane_index(),
        end = t->sequence.visibility.seqlen_q;
    rows->max = -INFINITY;
    rows->sum = 0.0f;
    if (lane < MERGE_ROWS && first + lane < end) {
        rows->max = global_load_f32(t->max + (int64_t)(first + lane) * 4);
        rows->sum = global_load_f32(t->sum + (int64_t)(first + lane) * 4);
    }
    UNROLL
    for (int i = 0; i < MERGE_PIECES; i++) {
        int row = first + piece_row(i), column = piece_column(i);
        rows->o[i].x = rows->o[i].y = rows->o[i].z = rows->o[i].w = 0.0f;
        if (row < end && column < head_dim_v)
            rows->o[i] = global_load_f32x4(t->o + (int64_t)row * (HEAD_DIM * 4) + column * 4);
    }
}

/*
 * Lines 11 to 13 of the algorithm:
 *   m_new = max(m, m_ij),  l_new = e^(m - m_new) l + e^(m_ij - m_new) l_ij
 *   O = (l e^(m - m_new) O + e^(m_ij - m_new) P~ V) / l_new
 * Where l_new is not 0 it is at least about 1: the largest score counts with weight 1.
 */
DEVICE void merge_tile(const running_rows *rows, const head_task *t, const block_memory *m, int tile_row,
                       int head_dim_v, float scale_log2, int exact) {
    int first = (int)warp_index() * MERGE_ROWS, lane = (int)lane_index(), end = t->sequence.visibility.seqlen_q;
    float old_factor = 0.0f, tile_factor = 0.0f; /* of row `lane` */
    if (lane < MERGE_ROWS) {
        float tile_max = tile_maximum(m->maxima, first + lane), tile_sum = 0.0f;
        UNROLL
        for (int w = 0; w < WARPS; w++)
            tile_sum += shared_load_f32(m->sums + (uint32_t)(w * BLOCK_M + first + lane) * 4);
        float max = fmaxf(rows->max, tile_max);
        float old_weight = rows->sum * weight_of(rows->max, max, scale_log2),
              tile_weight = weight_of(tile_max, max, scale_log2);
        float sum = old_weight + tile_weight * tile_sum;
        if (sum != 0.0f) {
            old_factor = old_weight / sum;
            tile_factor = tile_weight / sum;
        }
        if (tile_row + first + lane < end) {
            global_store_f32(t->max + (int64_t)(tile_row + first + lane) * 4, max);
            global_store_f32(t->sum + (int64_t)(tile_row + first + lane) * 4, sum);
        }
    }
    UNROLL
    for (int i = 0; i < MERGE_PIECES; i++) {
        int row = first + piece_row(i), column = piece_column(i);
        float a = shuffle_index_f32(old_factor, (uint32_t)piece_row(i)),
              b = shuffle_index_f32(tile_factor, (uint32_t)piece_row(i));
        f32x4 x = exact ? sum_of_visible(m, row, column) : sum_of_parts(m->parts, row, column), o = rows->o[i];
        o.x = a * o.x + b * x.x;
        o.y = a * o.y + b * x.y;
        o.z = a * o.z + b * x.z;
        o.w = a * o.w + b * x.w;
        if (tile_row + row < end && column < head_dim_v)
            global_store_f32x4(t->o + (int64_t)(tile_row + row) * (HEAD_DIM * 4) + column * 4, o);
    }
}

/* From the workspace to the outputs, with the sink, which takes part once as a key without a value. */
DEVICE void finish_rows(const head_task *t, const fa_forward_params *p, float scale) {
    const device_sequence *sequence = &t->sequence;
    float sink = p->sink.data ? device_table_float(&p->sink, t->head, 0) : -INFINITY;
    int lane = (int)lane_index();
    NO_UNROLL
    for (int row = (int)warp_index(); row < sequence->q_rows; row += WARPS) {
        float max = -INFINITY, sum = 0.0f; /* of an unused query */
        if (lane == 0 && row < sequence->visibility.seqlen_q) {
            max = global_load_f32(t->max + (int64_t)row * 4);
            sum = global_load_f32(t->sum + (int64_t)row * 4);
        }
        max = shuffle_index_f32(max, 0);
        sum = shuffle_index_f32(sum, 0);
        softmax_result result = softmax_finish_row(max * scale, sum, sink);
        float factor = sink == -INFINITY ? 1.0f : sum * result.factor; /* O is normalised without the sink */
        char *out = row_address(&p->out, sequence, sequence->q_begin + row, t->head);
        for (int column = lane; column < p->head_dim_v; column += 32) {
            float o = 0.0f;
            if (sum != 0.0f) o = factor * global_load_f32(t->o + (int64_t)row * (HEAD_DIM * 4) + column * 4);
            store_element(out, column, o, p);
        }
        if (p->lse && lane == 0)
            global_store_f32(p->lse + sequence->entry * p->lse_batch_stride + t->head * p->lse_head_stride +
                                 (sequence->q_begin + row) * p->lse_row_stride,
                             result.lse);
    }
}

KERNEL(KERNEL_NAME, THREADS, 1, fa_v1_params, params) {
    const fa_forward_params *p = &params->forward;
    head_task t;
    task_locate(&t, params);
    const fa_visibility *visibility = &t.sequence.visibility;
    const block_memory m = memory_layout();
    const int warp_key = (int)warp_index() * KEYS;
    const uint32_t k_address = fragment_at(key_fragment_address(m.k, BLOCK_N), BLOCK_N, warp_key, 0);
    const uint32_t v_address = fragment_at(value_fragment_address(m.v, BLOCK_N), BLOCK_N, warp_key, 0);
#if GENERAL
    const float scale = 1.0f; /* modify_scores leaves natural units */
#else
    const float scale = p->softmax_scale;
#endif
    const float scale_log2 = scale * LOG2_E;

    initialise_rows(&t, p);
    const fa_key_range keys = tile_keys(visibility, 0, visibility->seqlen_q).some;
    NO_UNROLL
    for (int key = keys.begin / BLOCK_N * BLOCK_N; key < keys.end; key += BLOCK_N) {
        const device_row_range rows = rows_that_see(visibility, key > keys.begin ? key : keys.begin,
                                                    key + BLOCK_N < keys.end ? key + BLOCK_N : keys.end);
        int row = rows.begin / BLOCK_M * BLOCK_M;
        uint32_t q_tile = m.q;

        block_sync(); /* everybody has left the last K/V tile */
        load_tile(m.k, BLOCK_N, t.k, &p->k, key, keys.begin, keys.end, p->head_dim, p, THREADS);
        load_tile(m.v, BLOCK_N, t.v, &p->v, key, keys.begin, keys.end, p->head_dim_v, p, THREADS);
        load_tile(q_tile, BLOCK_M, t.q, &p->q, row, 0, visibility->seqlen_q, p->head_dim, p, THREADS);
        cp_async_commit_group();
        cp_async_wait_group(0);
        block_sync();
        const int exact = values_not_finite(m.v, m.warp_words);

        NO_UNROLL
        for (; row < rows.end; row += BLOCK_M) {
            cp_async_wait_group(0);
            block_sync(); /* this Q tile has landed; everybody has left the other one, the parts, maxima and sums */
            const uint32_t next_q_tile = m.q + (q_tile == m.q ? TILE_BYTES_Q : 0u);
            if (row + BLOCK_M < rows.end)
                load_tile(next_q_tile, BLOCK_M, t.q, &p->q, row + BLOCK_M, 0, visibility->seqlen_q, p->head_dim, p,
                          THREADS);
            cp_async_commit_group();
            running_rows running;
            load_running(&running, &t, row, p->head_dim_v);

            float s[STRIPS][KEYS / 2];
            multiply_scores(s, a_fragment_address(q_tile, BLOCK_M, 0), k_address);
            const int thread_row = row + (int)lane_index() / 4;
#if GENERAL
            UNROLL
            for (int i = 0; i < STRIPS; i++)
                modify_scores(s[i], KEYS / 2, p, &t.sequence, t.head, thread_row + 16 * i, key + warp_key);
#else
            const fa_key_range everyone = tile_keys(visibility, row, row + BLOCK_M).all;
            if (key < everyone.begin || key + BLOCK_N > everyone.end) {
                UNROLL
                for (int i = 0; i < STRIPS; i++)
                    mask_positions(s[i], KEYS / 2, visibility, thread_row + 16 * i, key + warp_key);
            }
#endif
            store_maxima(m.maxima, s);
            block_sync(); /* the row maxima of all warps */
            exponentiate(s, &m, scale_log2, exact);
            if (!exact) {
                float o[STRIPS][HEAD_DIM / 2];
                UNROLL
                for (int i = 0; i < STRIPS; i++) {
                    UNROLL
                    for (int j = 0; j < HEAD_DIM / 2; j++) o[i][j] = 0.0f;
                }
                multiply_values(o, s, v_address);
                store_part(m.parts, o);
            }
            block_sync(); /* the sums and parts of all warps */
            merge_tile(&running, &t, &m, row, p->head_dim_v, scale_log2, exact);
            q_tile = next_q_tile;
        }
    }
    block_sync(); /* O, m and l of all warps */
    finish_rows(&t, p, scale);
}
