/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backward on a CPU, in three passes.
 *
 * 1. For each query: delta = dot(dout, out), and the share of the sink.
 * 2. A unit of work is one key/value head of one sequence, and one part of its keys if those are split. It takes its
 *    keys in blocks of KEY_BLOCK, whose dK and dV stay in the core's caches, while tiles of queries stream by; each
 *    adds to dK and dV, and to its own rows of dQ in memory. The heads of a GQA group are rows of the same tile, so that
 *    their sum needs no step of its own.
 * 3. For each query: dq is the sum of the parts, in order.
 *
 * Units are independent, what a unit computes does not depend on which thread runs it, and sums over units run in a
 * fixed order: results are the same bits for any number of threads. Working memory is a few float32 numbers and, for
 * each part, one float32 dQ: linear in the number of queries.
 */
#include "cpu/backward.h"

#include "cpu/backward_bias.h"
#include "cpu/backward_tile.h"
#include "cpu/memory.h"
#include "cpu/threads.h"
#include "status.h"

#include <inttypes.h>
#include <stdlib.h>

/*
 * A block of keys packs every tile of queries that sees it, and adds to its dQ in memory: the more keys, the less of
 * that. At head_dim 128 in float32 the keys of a block with their gradients take 1.25 MiB, somewhat more than Zen 4 has
 * of L2, and yet 192 keys are slower, by 1 to 5 %, by 10 % at head_dim 256. 64 to 128 rows differ by no more than 5 %.
 */
#define TILE_ROWS 96
#define KEY_BLOCK 512
#define BLOCK_TILES (KEY_BLOCK / FA_BACKWARD_KEYS)
/* As in forward: fewer units than this leave cores idle on large machines, and then keys are split. */
#define ENOUGH_UNITS 64
#define MIN_SPLIT_KEYS 512

/* ---- Memory ---- */

/* Of the call. Row r of head_kv's group in the sequence: (head_kv * rows_q of all sequences + first row of the
 * sequence) * group + r. */
typedef struct shared {
    float *lse, *delta; /* [heads_kv][all rows] */
    double *dslope;     /* [splits][heads_kv][all rows]; only if dalibi_slopes is wanted */
    float *dq;          /* [splits][heads_kv][all rows][dq_stride]; only if dq is wanted */
    int64_t rows;       /* all rows: of all sequences, times the group */
    int64_t dq_stride;
} shared;

/* Of a thread. */
typedef struct workspace {
    fa_backward_queries queries;
    fa_backward_keys keys[BLOCK_TILES];
    fa_backward_scores scores;
    float *dk, *dv; /* [KEY_BLOCK][dk_stride, dv_stride] */
    int64_t dk_stride, dv_stride;
} workspace;

static int64_t all_rows(const fa_problem *p) {
    return (p->cu_seqlens_q.data == NULL ? p->batch : 1) * p->rows_q * p->group;
}

static int64_t shared_init(shared *m, const fa_gradients *g, int64_t splits, char *base) {
    const fa_problem *p = &g->problem;
    int64_t used = 0;
    m->rows = all_rows(p);
    m->dq_stride = fa_round_up(p->head_dim, FA_PANEL_MAX);
    int64_t count = m->rows * p->heads_kv;
    m->lse = fa_carve(base, &used, count * (int64_t)sizeof(float));
    m->delta = fa_carve(base, &used, count * (int64_t)sizeof(float));
    m->dslope = fa_carve(base, &used, g->dalibi_slopes.data == NULL ? 0 : splits * count * (int64_t)sizeof(double));
    m->dq = fa_carve(base, &used, g->dq.data == NULL ? 0 : splits * count * m->dq_stride * (int64_t)sizeof(float));
    return used;
}

static int64_t workspace_init(workspace *w, const fa_backward_context *c, char *base) {
    const fa_problem *p = &c->g->problem;
    const int64_t f = (int64_t)sizeof(float);
    int64_t used = fa_backward_queries_init(&w->queries, c, TILE_ROWS, base);
    for (int t = 0; t < BLOCK_TILES; t++)
        used += fa_backward_keys_init(&w->keys[t], c, base == NULL ? NULL : base + used);
    used += fa_backward_scores_init(&w->scores, c, TILE_ROWS, base == NULL ? NULL : base + used);
    w->dk_stride = fa_round_up(p->head_dim, FA_PANEL_MAX);
    w->dv_stride = fa_round_up(p->head_dim_v, FA_PANEL_MAX);
    w->dk = fa_carve(base, &used, KEY_BLOCK * w->dk_stride * f);
    w->dv = fa_carve(base, &used, KEY_BLOCK * w->dv_stride * f);
    return used;
}

/* Number of row 0 of a sequence and key/value head. */
static int64_t first_row(const fa_problem *p, const shared *m, const fa_sequence *s, int64_t head_kv) {
    int64_t begin = p->cu_seqlens_q.data == NULL ? s->batch * p->rows_q : s->q_begin;
    return head_kv * m->rows + begin * p->group;
}

/* ---- The first pass ---- */

/* In 16 interleaved sums, so that the compiler may use vectors. */
static float dot(const float *a, const float *b, int64_t size) {
    float lane[16] = {0.0f}, sum = 0.0f;
    int64_t i = 0;
    for (; i + 16 <= size; i += 16)
        for (int n = 0; n < 16; n++) lane[n] += a[i + n] * b[i + n];
    for (; i < size; i++) sum += a[i] * b[i];
    for (int half = 8; half > 0; half /= 2)
        for (int n = 0; n < half; n++) lane[n] += lane[n + half];
    return sum + lane[0];
}

static void prepare_row(const fa_gradients *g, const fa_cpu_backward_kernels *kernels, const fa_sequence *s,
                        int64_t query, int64_t head, float *lse, float *delta) {
    const fa_problem *p = &g->problem;
    float dout[256], out[256]; /* the largest head_dim_v */
    *lse = (float)fa_problem_load_lse(p, s, query, head);
    if (*lse == -INFINITY) *lse = INFINITY;
    const void *row = fa_query_address(&g->dout, s, query, head);
    kernels->load_rows(dout, p->head_dim_v, &row, 1, p->head_dim_v, g->dout.type, 1.0f);
    row = fa_query_address(&p->out, s, query, head);
    kernels->load_rows(out, p->head_dim_v, &row, 1, p->head_dim_v, p->out.type, 1.0f);
    *delta = dot(dout, out, p->head_dim_v);
}

/* Whether a query sees any key. Only asked where the answer matters: it may look at all of them. */
static bool sees_key(const fa_problem *p, const fa_sequence *s, int64_t query, int64_t head) {
    fa_key_range keys = fa_visible_keys(&s->visibility, query);
    for (int64_t j = keys.begin; j < keys.end; j++)
        if (!fa_masked_out(p, s->batch, head, query, j)) return true;
    return false;
}

/* The sink has weight exp(sink - lse) and no value, so that its dS is -weight * delta. */
static double sink_gradient(const fa_gradients *g, const shared *m, int64_t head) {
    const fa_problem *p = &g->problem;
    double sink = (double)fa_table_float(&p->sink, head, 0), sum = 0;
    for (int64_t n = 0; n < p->batch; n++) {
        fa_sequence s = fa_problem_sequence(p, n);
        int64_t first = first_row(p, m, &s, head / p->group) + head % p->group;
        for (int64_t i = 0; i < s.visibility.seqlen_q; i++) {
            float lse = m->lse[first + i * p->group], delta = m->delta[first + i * p->group];
            double term = -exp(sink - (double)lse) * (double)delta;
            fa_key_range keys = fa_visible_keys(&s.visibility, i);
            if (lse == INFINITY || keys.begin >= keys.end) continue;
            /* A query that sees no key has out = 0 and so term = 0, unless its dout, out or lse is no number. */
            if (!isfinite(term) && !sees_key(p, &s, i, head)) continue;
            sum += term;
        }
    }
    return sum;
}

/* ---- The second pass ---- */

/* One part of the keys of a sequence and key/value head. */
typedef struct unit {
    fa_sequence sequence; /* without queries and keys behind the last one */
    fa_key_segment segment;
    int64_t head_kv;
    int64_t split;
    int64_t first_row; /* number of row 0 */
} unit;

/* Where an operand holds NaN or infinity only pairs that see each other are added, since 0 * NaN is NaN: sum +=
 * factor * row, element by element of the tensor. */
static void add_row(float *sum, float factor, const char *row, fa_element type, int64_t width) {
    for (int64_t i = 0; i < width; i++)
        sum[i] += factor * (float)fa_element_load(row + i * fa_element_size(type), type);
}

/* x: P or dS. To keys: sum[j] += x[r][j] * row r of `rows`, which is q or dout. */
static void add_seen_queries(const workspace *w, const fa_backward_keys *keys, const fa_sequence *s, const float *x,
                             const fa_rows *rows, int64_t width, float *sum, int64_t stride) {
    for (int64_t r = w->scores.first; r < w->scores.end; r++)
        for (int64_t j = 0; j < keys->count; j++)
            if (w->scores.seen[r * FA_BACKWARD_KEYS + j])
                add_row(sum + j * stride, x[r * FA_BACKWARD_KEYS + j],
                        fa_query_address(rows, s, w->queries.row[r].query, w->queries.row[r].head), rows->type, width);
}

/* dQ[r] += dS[r][j] * key j. */
static void add_seen_keys(const fa_problem *p, const workspace *w, const fa_backward_keys *keys, const fa_sequence *s,
                          float *dq, int64_t stride) {
    for (int64_t r = w->scores.first; r < w->scores.end; r++)
        for (int64_t j = 0; j < keys->count; j++)
            if (w->scores.seen[r * FA_BACKWARD_KEYS + j])
                add_row(dq + r * stride, w->scores.ds[r * FA_BACKWARD_KEYS + j],
                        fa_key_address(p, &p->k, s, keys->begin + j, keys->head_kv), p->k.type, p->head_dim);
}

/* dslope -= dS * distance, row by row. */
static void add_slopes(const workspace *w, const fa_backward_keys *keys, const fa_sequence *s, double *dslope) {
    for (int64_t r = w->scores.first; r < w->scores.end; r++)
        for (int64_t j = 0; j < keys->count; j++)
            dslope[r] -= (double)w->scores.ds[r * FA_BACKWARD_KEYS + j] *
                         (double)fa_alibi_distance(&s->visibility, w->queries.row[r].query, keys->begin + j);
}

/* dV += P^T dout, dK += dT^T Q, dQ += dT K for one tile of a block of keys, the last two without softmax_scale; first:
 * number of the tile's first row. */
static void add_tile(const fa_backward_context *c, const unit *u, const shared *m, workspace *w, int tile,
                     int64_t block_begin, int64_t first) {
    const fa_gradients *g = c->g;
    const fa_problem *p = &g->problem;
    const fa_cpu_products *products = c->products;
    const fa_backward_queries *queries = &w->queries;
    const fa_backward_keys *keys = &w->keys[tile];
    const fa_sequence *s = &u->sequence;
    fa_backward_scores *scores = &w->scores;
    int64_t key = keys->begin - block_begin, part = u->split * m->rows * p->heads_kv + first;
    float *dk = w->dk + key * w->dk_stride, *dv = w->dv + key * w->dv_stride;

    fa_backward_tile(c, s, queries, keys, scores);
    if (scores->first >= scores->end) return;
    int64_t top = scores->first, rows = scores->end - top, depth = fa_words(products, queries->count);
    /* The first row in words of two rows, and in words of two columns. */
    int64_t top_word = top / products->step, by_rows = top_word * FA_BACKWARD_KEYS;
    int64_t by_columns = top * fa_words(products, FA_BACKWARD_KEYS);
    if (g->dalibi_slopes.data != NULL) add_slopes(w, keys, s, m->dslope + part);
    fa_backward_softcap(p, fa_round_up(keys->count, products->panel), scores);
    if (products->pack_weights != NULL) {
        products->pack_weights(scores->p_by_rows + by_rows, NULL, scores->p + top * FA_BACKWARD_KEYS, rows);
        products->pack_weights(scores->ds_by_rows + by_rows, scores->ds_by_columns + by_columns,
                               scores->ds + top * FA_BACKWARD_KEYS, rows);
    }
    if (g->dv.data != NULL) {
        if (queries->dout_nonfinite)
            add_seen_queries(w, keys, s, scores->p, &g->dout, p->head_dim_v, dv, w->dv_stride);
        else
            products->multiply_transposed(dv, w->dv_stride, scores->p_by_rows + by_rows, FA_BACKWARD_KEYS,
                                          queries->dout_panels + top_word * products->panel, depth, keys->count,
                                          fa_round_up(p->head_dim_v, products->panel), fa_words(products, rows));
    }
    if (g->dk.data != NULL) {
        if (queries->q_nonfinite)
            add_seen_queries(w, keys, s, scores->ds, &p->q, p->head_dim, dk, w->dk_stride);
        else
            products->multiply_transposed(dk, w->dk_stride, scores->ds_by_rows + by_rows, FA_BACKWARD_KEYS,
                                          queries->q_panels + top_word * products->panel, depth, keys->count,
                                          fa_round_up(p->head_dim, products->panel), fa_words(products, rows));
    }
    if (g->dq.data != NULL) {
        float *dq = m->dq + part * m->dq_stride;
        if (keys->k_nonfinite)
            add_seen_keys(p, w, keys, s, dq, m->dq_stride);
        else
            products->multiply(dq + top * m->dq_stride, m->dq_stride, scores->ds_by_columns + by_columns,
                               fa_words(products, FA_BACKWARD_KEYS), keys->k_panels, rows,
                               fa_round_up(p->head_dim, products->panel), fa_words(products, keys->count), 1.0f, true);
    }
}

/* Fills queries->row with the rows [begin, end) of the group that see keys of [key_begin, key_end), cutting off those
 * before the first and after the last that do. Returns the first of them; count is 0 if there are none. */
static int64_t find_rows(const fa_problem *p, const unit *u, const shared *m, workspace *w, int64_t begin, int64_t end,
                         int64_t key_begin, int64_t key_end) {
    int64_t first = end, last = begin;
    w->queries.count = 0;
    /* Both ends never fall as the query grows (mask.h), so that most tiles of a window are passed over here. */
    if (fa_visible_keys(&u->sequence.visibility, (end - 1) / p->group).end <= key_begin ||
        fa_visible_keys(&u->sequence.visibility, begin / p->group).begin >= key_end)
        return end;
    for (int64_t r = begin; r < end; r++) {
        fa_key_range keys = fa_visible_keys(&u->sequence.visibility, r / p->group);
        if (fa_max(keys.begin, key_begin) >= fa_min(keys.end, key_end)) continue;
        if (first == end) first = r;
        last = r + 1;
    }
    w->queries.count = fa_max(last - first, 0);
    for (int64_t r = first; r < last; r++) {
        fa_backward_row *row = &w->queries.row[r - first];
        row->query = r / p->group;
        row->head = u->head_kv * p->group + r % p->group;
        row->keys = fa_visible_keys(&u->sequence.visibility, row->query);
        row->lse = m->lse[u->first_row + r];
        row->delta = m->delta[u->first_row + r];
    }
    return first;
}

static void store_rows(const fa_cpu_backward_kernels *kernels, const fa_rows *rows, const unit *u, int64_t begin,
                       int64_t end, int64_t width, const float *source, int64_t stride, float factor) {
    if (rows->data == NULL) return;
    for (int64_t j = begin; j < end; j++)
        kernels->store_row(fa_rows_address(rows, u->sequence.batch, u->segment.begin + j, u->head_kv),
                           source + (j - begin) * stride, width, factor, rows->type);
}

/* Rows [begin, end) of the key segment: dk, dv, and what they add to dq. */
static void backward_block(const fa_backward_context *c, const unit *u, const shared *m, workspace *w, int64_t begin,
                           int64_t end) {
    const fa_gradients *g = c->g;
    const fa_problem *p = &g->problem;
    const fa_visibility *v = &u->sequence.visibility;
    memset(w->dk, 0, (size_t)(KEY_BLOCK * w->dk_stride) * sizeof(float));
    memset(w->dv, 0, (size_t)(KEY_BLOCK * w->dv_stride) * sizeof(float));
    int64_t used_begin = fa_max(begin, v->key_begin), used_end = fa_min(end, v->key_end);
    int64_t rows = v->seqlen_q * p->group;
    bool loaded = false;
    for (int64_t r = 0; r < rows && used_begin < used_end; r += TILE_ROWS) {
        int64_t row_end = fa_min(r + TILE_ROWS, rows);
        int64_t first = find_rows(p, u, m, w, r, row_end, used_begin, used_end);
        if (w->queries.count == 0) continue;
        if (!loaded) /* only now, since keys that no query sees are not read */
            for (int t = 0; t < BLOCK_TILES; t++) {
                int64_t key = fa_max(begin + t * FA_BACKWARD_KEYS, used_begin);
                int64_t key_end = fa_min(begin + (t + 1) * FA_BACKWARD_KEYS, used_end);
                w->keys[t].count = 0;
                if (key < key_end)
                    fa_backward_load_keys(c, &u->sequence, u->head_kv, key, key_end - key, &w->keys[t], &w->scores);
            }
        loaded = true;
        fa_backward_load_queries(c, &u->sequence, &w->queries, &w->scores);
        for (int t = 0; t < BLOCK_TILES; t++) {
            const fa_backward_keys *keys = &w->keys[t];
            if (keys->count > 0 && w->queries.all.begin < keys->begin + keys->count && w->queries.all.end > keys->begin)
                add_tile(c, u, m, w, t, begin, u->first_row + first);
        }
    }
    store_rows(c->kernels, &g->dk, u, begin, end, p->head_dim, w->dk, w->dk_stride, p->softmax_scale);
    store_rows(c->kernels, &g->dv, u, begin, end, p->head_dim_v, w->dv, w->dv_stride, 1.0f);
}

/* ---- The third pass ---- */

static void finish_query(const fa_gradients *g, const fa_cpu_backward_kernels *kernels, const shared *m, int64_t splits,
                         const fa_sequence *s, int64_t query, int64_t head) {
    const fa_problem *p = &g->problem;
    int64_t row = first_row(p, m, s, head / p->group) + query * p->group + head % p->group;
    float sum[256]; /* the largest head_dim */
    memcpy(sum, m->dq + row * m->dq_stride, (size_t)p->head_dim * sizeof(float));
    for (int64_t split = 1; split < splits; split++) {
        const float *part = m->dq + (split * m->rows * p->heads_kv + row) * m->dq_stride;
        for (int64_t i = 0; i < p->head_dim; i++) sum[i] += part[i];
    }
    kernels->store_row(fa_query_address(&g->dq, s, query, head), sum, p->head_dim, p->softmax_scale, g->dq.type);
}

/* Of one head: over the batch, or for each of its entries. */
static void finish_slopes(const fa_gradients *g, const shared *m, int64_t splits, int64_t head) {
    const fa_problem *p = &g->problem;
    double all = 0;
    for (int64_t n = 0; n < p->batch; n++) {
        fa_sequence s = fa_problem_sequence(p, n);
        double sum = 0;
        for (int64_t split = 0; split < splits; split++)
            for (int64_t i = 0; i < s.q_rows; i++)
                sum += m->dslope[split * m->rows * p->heads_kv + first_row(p, m, &s, head / p->group) + i * p->group +
                                 head % p->group];
        if (g->dalibi_per_batch) fa_gradient_vector_store(&g->dalibi_slopes, n, head, sum);
        all += sum;
    }
    if (!g->dalibi_per_batch) fa_gradient_vector_store(&g->dalibi_slopes, 0, head, all);
}

/* ---- All of it ---- */

static int64_t longest_segment(const fa_problem *p) {
    int64_t longest = 0;
    for (int64_t n = 0; n < fa_problem_key_segments(p); n++)
        longest = fa_max(longest, fa_problem_key_segment(p, n).rows);
    return longest;
}

/* Of an instruction set that works in float32. */
static const fa_cpu_backward_kernels *kernels_of(fa_isa isa) {
    switch (isa) {
    case FA_ISA_NEON: return fa_cpu_backward_kernels_neon();
    case FA_ISA_AVX2: return fa_cpu_backward_kernels_avx2();
    case FA_ISA_AVX512: return fa_cpu_backward_kernels_avx512();
    default: return fa_cpu_backward_kernels_portable();
    }
}

/* Of bfloat16 operands; NULL: the instruction set has none. */
static const fa_cpu_products *bfloat16_products_of(fa_isa isa) {
    switch (isa) {
    case FA_ISA_AVX512_BF16: return fa_cpu_products_avx512_bf16();
    case FA_ISA_AMX: return fa_cpu_products_amx();
    case FA_ISA_NEON_BF16: return fa_cpu_products_neon_bf16();
    default: return NULL;
    }
}

fa_status fa_cpu_backward_plan_make(const fa_gradients *g, fa_cpu_backward_plan *plan) {
    const fa_problem *p = &g->problem;
    fa_status status = FA_OK;
    memset(plan, 0, sizeof *plan);
    fa_isa isa = fa_cpu_isa_select(p->isa, p->q.type, &status);
    if (status != FA_OK) return status;
    plan->isa = fa_cpu_kernels_float32(isa)->isa;
    plan->kernels = kernels_of(plan->isa);
    plan->products = &plan->kernels->products;
    /* Bfloat16 operands need no conversion, and no other dtype may be rounded to them. */
    const fa_cpu_products *bfloat16 = bfloat16_products_of(isa);
    if (bfloat16 != NULL && p->q.type == FA_ELEMENT_BFLOAT16 && g->dout.type == FA_ELEMENT_BFLOAT16) {
        plan->isa = isa;
        plan->products = bfloat16;
    }
    plan->tile_rows = TILE_ROWS;
    plan->tile_keys = FA_BACKWARD_KEYS;

    int64_t units = (p->batch + 1) * p->heads_kv, longest = longest_segment(p);
    plan->splits = p->num_splits;
    if (plan->splits == 0 && p->batch * p->heads_kv < ENOUGH_UNITS)
        plan->splits = fa_min(fa_divide_up(ENOUGH_UNITS, fa_max(p->batch * p->heads_kv, 1)), longest / MIN_SPLIT_KEYS);
    plan->splits = fa_max(1, fa_min(plan->splits, fa_divide_up(longest, KEY_BLOCK)));
    plan->threads = p->num_threads == 0 ? fa_default_num_threads() : p->num_threads;
    plan->threads = fa_max(1, fa_min(plan->threads, units * plan->splits));

    shared m;
    workspace w;
    plan->shared_bytes = shared_init(&m, g, plan->splits, NULL);
    const fa_backward_context c = {g, plan->kernels, plan->products};
    plan->thread_bytes = fa_max(workspace_init(&w, &c, NULL), fa_backward_bias_workspace(&c));
    return FA_OK;
}

static unit find_unit(const fa_problem *p, const shared *m, int64_t index, int64_t splits) {
    unit u = {.split = index % splits, .head_kv = index / splits % p->heads_kv};
    int64_t n = index / splits / p->heads_kv;
    if (n < fa_problem_sequences(p)) u.sequence = fa_problem_sequence(p, n);
    if (n < fa_problem_key_segments(p)) u.segment = fa_problem_key_segment(p, n);
    u.sequence.batch = n;
    u.first_row = first_row(p, m, &u.sequence, u.head_kv);
    return u;
}

/* Of all sequences, and of the rows behind the last one. */
static void prepare_head(const fa_gradients *g, const fa_cpu_backward_kernels *kernels, const shared *m, int64_t splits,
                         int64_t n, int64_t head) {
    const fa_problem *p = &g->problem;
    fa_sequence s = fa_problem_sequence(p, n);
    int64_t first = first_row(p, m, &s, head / p->group) + head % p->group;
    for (int64_t i = 0; i < s.q_rows; i++) {
        int64_t row = first + i * p->group;
        prepare_row(g, kernels, &s, i, head, &m->lse[row], &m->delta[row]);
        for (int64_t split = 0; split < splits; split++) {
            int64_t part = split * m->rows * p->heads_kv + row;
            if (g->dalibi_slopes.data != NULL) m->dslope[part] = 0;
            if (g->dq.data != NULL) memset(m->dq + part * m->dq_stride, 0, (size_t)m->dq_stride * sizeof(float));
        }
    }
}

fa_status fa_cpu_backward(const fa_gradients *g, const fa_cpu_backward_plan *plan) {
    const fa_problem *p = &g->problem;
    int64_t bytes = plan->shared_bytes + plan->threads * plan->thread_bytes, splits = plan->splits;
    char *memory = fa_cpu_allocate(bytes);
    if (memory == NULL)
        return fa_fail(FA_OUT_OF_MEMORY, "no memory for a workspace of %" PRId64 " bytes (%" PRId64 " threads)", bytes,
                       plan->threads);
    const fa_cpu_backward_kernels *kernels = plan->kernels;
    const fa_backward_context c = {g, kernels, plan->products};
    shared m;
    (void)shared_init(&m, g, splits, memory);
    int64_t sequence_heads = fa_problem_sequences(p) * p->heads;
    bool pairs = g->dq.data != NULL || g->dk.data != NULL || g->dv.data != NULL || g->dalibi_slopes.data != NULL;
    int64_t units = pairs ? (p->batch + 1) * p->heads_kv * splits : 0;

#pragma omp parallel num_threads((int)plan->threads)
    {
        char *own = memory + plan->shared_bytes + fa_thread_number() * plan->thread_bytes;
        workspace w;
        (void)workspace_init(&w, &c, own);

#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < sequence_heads; i++) prepare_head(g, kernels, &m, splits, i / p->heads, i % p->heads);

#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < units; i++) {
            unit u = find_unit(p, &m, i, splits);
            int64_t blocks = fa_divide_up(u.segment.rows, KEY_BLOCK);
            for (int64_t b = blocks * u.split / splits; b < blocks * (u.split + 1) / splits; b++)
                backward_block(&c, &u, &m, &w, b * KEY_BLOCK, fa_min((b + 1) * KEY_BLOCK, u.segment.rows));
        }

        if (g->dq.data != NULL) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < sequence_heads; i++) {
                fa_sequence s = fa_problem_sequence(p, i / p->heads);
                for (int64_t row = 0; row < s.q_rows; row++)
                    finish_query(g, kernels, &m, splits, &s, row, i % p->heads);
            }
        }
        if (g->dalibi_slopes.data != NULL) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t head = 0; head < p->heads; head++) finish_slopes(g, &m, splits, head);
        }
        if (g->dsink.data != NULL) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t head = 0; head < p->heads; head++)
                fa_gradient_vector_store(&g->dsink, head, 0, sink_gradient(g, &m, head));
        }
        if (g->dbias.data != NULL) {
            int64_t bias_units = fa_backward_bias_units(g);
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < bias_units; i++) fa_backward_bias_unit(&c, i, m.lse, m.delta, m.rows, own);
        }
        if (c.products->leave != NULL) c.products->leave();
    }
    free(memory);
    return FA_OK;
}
