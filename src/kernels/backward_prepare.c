/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before the main backward kernel: of each query what it needs besides q, in the tiles of backward_params.h. One block
 * per query tile; a warp has whole rows.
 *
 * Compiled once per dtype; whatever the head dim. D is summed in float32: each lane its columns, then a tree over the
 * lanes, always in the same order.
 */
#define THREADS (WARPS * 32)
/* Rows per lane, or per warp where rows are not as usual, that are loaded before any is looked at. */
#define ROWS 4
#define SLOW_ROWS 2

#include "backward_tiles.h"
#include "pairs.h"
#include "score.h"

/* Whether bias and boolean mask leave the row a key; warp. */
DEVICE int sees_key(const fa_forward_params *p, const query_tile *t, int row, fa_key_range keys) {
    if (keys.begin >= keys.end) return 0;
    if (!p->bias.data && !p->mask.data) return 1;
    head_scores scores = head_scores_of(p, t->sequence.entry, t->head);
    scores.slope = 0.0f; /* may be infinite, but hides nothing */
    for (int key = keys.begin; key < keys.end; key += 32) {
        int j = key + (int)lane_index();
        int visible = j < keys.end && bias_and_mask(0.0f, p, &scores, &t->sequence.visibility, row, j) != -INFINITY;
        if (vote_any(visible)) return 1;
    }
    return 0;
}

/* Whether one of the row's elements is NaN or infinity; warp. */
DEVICE int row_not_finite(const char *row, int columns, int is_float32) {
    int bad = 0;
    for (int c = 2 * (int)lane_index(); c < columns; c += 64) {
        f32x2 x = load_pair(row, c, columns, is_float32);
        bad |= !(fabsf(x.x) < INFINITY) || !(fabsf(x.y) < INFINITY);
    }
    return vote_any(bad);
}

/* dout in q's dtype, up to the next multiple of 8 columns; 0 in rows that take no part. */
DEVICE void copy_dout(char *copy, const char *given, int columns, int is_float32, int part) {
    for (int c = 2 * (int)lane_index(); c < (columns + 7) / 8 * 8; c += 64) {
        f32x2 x;
        x.x = x.y = 0.0f;
        if (part && c < columns) x = load_pair(given, c, columns, is_float32);
        global_store_u32(copy + 2 * c, pack_16bit(x.x, x.y));
    }
}

/* What a row of the tile is to the others. */
typedef struct query_row {
    int row;       /* in its sequence */
    int in_memory; /* of this sequence or the next */
    float lse;     /* -inf: it takes no part */
    const char *dout, *out;
} query_row;

DEVICE int row_in_memory(const fa_forward_params *p, const query_tile *t, int row) {
    return row < p->rows_q - (int)t->sequence.q_begin;
}

DEVICE query_row query_row_of(const fa_backward_params *params, const query_tile *t, int row) {
    const fa_forward_params *p = &params->forward;
    const device_sequence *s = &t->sequence;
    query_row x;
    x.row = row;
    x.in_memory = row_in_memory(p, t, row);
    x.dout = row_address(&params->dout_given, s, s->q_begin + row, t->head);
    x.out = row_address(&p->out, s, s->q_begin + row, t->head);
    x.lse = -INFINITY;
    if (row < s->visibility.seqlen_q)
        x.lse = global_load_f32(p->lse + s->entry * p->lse_batch_stride + t->head * p->lse_head_stride +
                                (s->q_begin + row) * p->lse_row_stride);
    return x;
}

/* The counters of a block, in shared memory: rows that take no part, and those of them that hold NaN or infinity. */
typedef struct row_counters {
    uint32_t idle, dirty;
} row_counters;

DEVICE float sink_of(const fa_forward_params *p, int head) {
    return p->sink.data ? device_table_float(&p->sink, head, 0) : -INFINITY;
}

/* What the main kernel is told of a row. lse -inf: it takes no part. */
DEVICE void store_row(const fa_backward_params *params, int row_of_tile, float lse, float delta, float sink) {
    const int64_t slot = (int64_t)block_index_x() * params->block_m + row_of_tile;
    const int part = lse != -INFINITY;
    global_store_f32(params->lse_log2 + slot, part ? lse * LOG2_E : INFINITY);
    global_store_f32(params->delta + slot, delta);
    if (params->row_sum)
        global_store_f32(params->row_sum + slot, part ? -exp2_approx((sink - lse) * LOG2_E) * delta : 0.0f);
}

/* SLOW_ROWS rows of the tile, from `first` on, whatever they are; warp. */
DEVICE void prepare_rows(const fa_backward_params *params, const query_tile *t, int first, row_counters counters) {
    const fa_forward_params *p = &params->forward;
    const device_sequence *s = &t->sequence;
    const int lane = (int)lane_index(), columns = p->head_dim_v;
    const float sink = sink_of(p, t->head);
    query_row rows[SLOW_ROWS];
    float delta[SLOW_ROWS];
    UNROLL
    for (int r = 0; r < SLOW_ROWS; r++) {
        rows[r] = query_row_of(params, t, t->row + first + r);
        delta[r] = 0.0f;
    }
    UNROLL
    for (int r = 0; r < SLOW_ROWS; r++)
        if (rows[r].lse != -INFINITY && !sees_key(p, t, rows[r].row, fa_visible_keys(&s->visibility, rows[r].row)))
            rows[r].lse = -INFINITY;
    for (int c = 2 * lane; c < columns; c += 64) { /* loads of all rows first: they take their time */
        f32x2 x[SLOW_ROWS], y[SLOW_ROWS];
        UNROLL
        for (int r = 0; r < SLOW_ROWS; r++) {
            x[r].x = x[r].y = 0.0f;
            y[r] = x[r];
            if (rows[r].lse == -INFINITY) continue;
            x[r] = load_pair(rows[r].dout, c, columns, params->dout_float32);
            /* As the products have it: D cancels against dout V, with the errors of either. */
            if (params->dout_float32) x[r] = unpack_16bit(pack_16bit(x[r].x, x[r].y));
            y[r] = load_pair(rows[r].out, c, columns, p->out_float32);
        }
        UNROLL
        for (int r = 0; r < SLOW_ROWS; r++)
            if (rows[r].lse != -INFINITY) delta[r] = fmaf(x[r].y, y[r].y, fmaf(x[r].x, y[r].x, delta[r]));
    }
    UNROLL
    for (int r = 0; r < SLOW_ROWS; r++) {
        const int row = rows[r].row, part = rows[r].lse != -INFINITY;
        const char *dout = rows[r].dout;
        if (!part && rows[r].in_memory) {
            const char *q = row_address(&p->q, s, s->q_begin + row, t->head);
            int bad = row_not_finite(q, p->head_dim, 0) || row_not_finite(dout, columns, params->dout_float32);
            if (lane == 0 && row < s->visibility.seqlen_q) (void)shared_atomic_add_u32(counters.idle, 1);
            if (lane == 0 && bad) (void)shared_atomic_add_u32(counters.dirty, 1);
        }
        if (params->dout_copied && row < s->q_rows)
            copy_dout(row_address(&params->dout, s, s->q_begin + row, t->head), dout, columns, params->dout_float32,
                      part);
        delta[r] = warp_sum(delta[r]);
        if (lane == 0) store_row(params, first + r, rows[r].lse, delta[r], sink);
    }
}

DEVICE float dot_pair(uint32_t x, uint32_t y, float sum) {
    const f32x2 a = unpack_16bit(x), b = unpack_16bit(y);
    return fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
}

/*
 * The usual case: rows of 16-byte pieces, of which a lane loads one each of several rows, before it looks at any.
 * lanes: that share a row, a power of two. Returns 0, and has done nothing, if one of the rows takes no part.
 */
DEVICE int prepare_whole_rows(const fa_backward_params *params, const query_tile *t, int first, int lanes) {
    const fa_forward_params *p = &params->forward;
    const int lane = (int)lane_index(), piece = lane % lanes, own = lane / lanes;
    float lse[ROWS];
    u32x4 x[ROWS], y[ROWS];
    int idle = 0;
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        const query_row row = query_row_of(params, t, t->row + first + r * (32 / lanes) + own);
        lse[r] = row.lse;
        x[r].x = x[r].y = x[r].z = x[r].w = 0;
        y[r] = x[r];
        if (!row.in_memory || piece * 8 >= p->head_dim_v) continue;
        x[r] = global_load_u32x4(row.dout + 16 * piece);
        y[r] = global_load_u32x4(row.out + 16 * piece);
    }
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        const int row = t->row + first + r * (32 / lanes) + own;
        const fa_key_range keys = fa_visible_keys(&t->sequence.visibility, row);
        idle |= row_in_memory(p, t, row) && (lse[r] == -INFINITY || keys.begin >= keys.end);
    }
    if (vote_any(idle)) return 0;
    const float sink = sink_of(p, t->head);
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        float delta = dot_pair(x[r].w, y[r].w,
                               dot_pair(x[r].z, y[r].z, dot_pair(x[r].y, y[r].y, dot_pair(x[r].x, y[r].x, 0.0f))));
        for (int distance = lanes / 2; distance > 0; distance /= 2) delta += shuffle_xor_f32(delta, (uint32_t)distance);
        if (piece == 0) store_row(params, first + r * (32 / lanes) + own, lse[r], delta, sink);
    }
    return 1;
}

/* Nothing has been added to dQ of the tile, by nobody. */
DEVICE void clear_sums(const fa_backward_params *params) {
    const int tile = (int)block_index_x(), floats = params->block_m * params->tile_columns;
    const u32x4 zero = {0, 0, 0, 0};
    if (thread_index() == 0) global_store_u64(params->turns + 2 * (int64_t)tile, 0);
    if (!params->dq.data) return;
    for (int i = 4 * (int)thread_index(); i < floats; i += 4 * THREADS)
        global_store_u32x4(params->dq_sum + (int64_t)tile * floats + i, zero);
}

KERNEL(KERNEL_NAME, THREADS, 3, fa_backward_params, params) {
    const query_tile t = query_tile_of(params, block_index_x());
    const int columns = params->forward.head_dim_v, lanes = columns <= 64 ? 8 : columns <= 128 ? 16 : 32;
    const int step = params->whole_rows ? ROWS * 32 / lanes : SLOW_ROWS; /* divides block_m */
    const row_counters counters = {shared_base(), shared_base() + 4};
    clear_sums(params);
    if (thread_index() < 2) shared_store_u32(shared_base() + 4 * thread_index(), 0);
    block_sync();
    for (int first = (int)warp_index() * step; first < params->block_m; first += WARPS * step) {
        if (params->whole_rows && prepare_whole_rows(params, &t, first, lanes)) continue;
        for (int r = 0; r < step; r += SLOW_ROWS) prepare_rows(params, &t, first + r, counters);
    }
    block_sync();
    if (thread_index() == 0)
        global_store_i32(params->idle_rows + block_index_x(),
                         (shared_load_u32(counters.idle) ? FA_IDLE_ROWS : 0) |
                             (shared_load_u32(counters.dirty) ? FA_IDLE_ROWS_DIRTY : 0));
}
