/* SPDX-License-Identifier: Apache-2.0 */
/* One tile of backward: see backward_tile.h. */
#include "cpu/backward_tile.h"

#include "cpu/score_row.h"

static const int64_t f = (int64_t)sizeof(float);

/* Bytes of operands: [rows] rows of `depth`; a panel-packed matrix of `depth` rows and `columns`. */
static int64_t rows_bytes(const fa_cpu_products *products, int64_t rows, int64_t depth) {
    return rows * fa_words(products, depth) * f;
}

static int64_t panels_bytes(const fa_cpu_products *products, int64_t depth, int64_t columns) {
    return fa_words(products, depth) * fa_round_up(columns, products->panel) * f;
}

int64_t fa_backward_queries_init(fa_backward_queries *b, const fa_backward_context *c, int64_t tile_rows, char *base) {
    int64_t used = 0, head_dim = c->g->problem.head_dim, head_dim_v = c->g->problem.head_dim_v;
    b->row = fa_carve(base, &used, tile_rows * (int64_t)sizeof *b->row);
    b->lse = fa_carve(base, &used, tile_rows * f);
    b->delta = fa_carve(base, &used, tile_rows * f);
    b->q = fa_carve(base, &used, rows_bytes(c->products, tile_rows, head_dim));
    b->q_panels = fa_carve(base, &used, panels_bytes(c->products, tile_rows, head_dim));
    b->dout = fa_carve(base, &used, rows_bytes(c->products, tile_rows, head_dim_v));
    b->dout_panels = fa_carve(base, &used, panels_bytes(c->products, tile_rows, head_dim_v));
    return used;
}

int64_t fa_backward_keys_init(fa_backward_keys *b, const fa_backward_context *c, char *base) {
    int64_t used = 0, head_dim = c->g->problem.head_dim, head_dim_v = c->g->problem.head_dim_v;
    b->k_columns = fa_carve(base, &used, panels_bytes(c->products, head_dim, FA_BACKWARD_KEYS));
    b->k_panels = fa_carve(base, &used, panels_bytes(c->products, FA_BACKWARD_KEYS, head_dim));
    b->v_columns = fa_carve(base, &used, panels_bytes(c->products, head_dim_v, FA_BACKWARD_KEYS));
    return used;
}

int64_t fa_backward_scores_init(fa_backward_scores *b, const fa_backward_context *c, int64_t tile_rows, char *base) {
    int64_t used = 0, pairs = tile_rows * FA_BACKWARD_KEYS;
    b->p = fa_carve(base, &used, pairs * f);
    b->ds = fa_carve(base, &used, pairs * f);
    b->slope = fa_carve(base, &used, c->g->problem.softcap > 0 ? pairs * f : 0);
    b->p_by_rows = b->p;
    b->ds_by_rows = b->ds_by_columns = b->ds;
    if (c->products->pack_weights != NULL) {
        b->p_by_rows = fa_carve(base, &used, rows_bytes(c->products, FA_BACKWARD_KEYS, tile_rows));
        b->ds_by_rows = fa_carve(base, &used, rows_bytes(c->products, FA_BACKWARD_KEYS, tile_rows));
        b->ds_by_columns = fa_carve(base, &used, rows_bytes(c->products, tile_rows, FA_BACKWARD_KEYS));
    }
    b->bias = fa_carve(base, &used, FA_BACKWARD_KEYS * f);
    b->seen = fa_carve(base, &used, pairs);
    b->rows = fa_carve(base, &used, fa_max(tile_rows, FA_BACKWARD_KEYS) * (int64_t)sizeof(void *));
    return used;
}

/* ---- Loading ---- */

void fa_backward_load_queries(const fa_backward_context *c, const fa_sequence *s, fa_backward_queries *b,
                              fa_backward_scores *scores) {
    const fa_gradients *g = c->g;
    const fa_problem *p = &g->problem;
    b->all = (fa_key_range){INT64_MAX, 0};
    for (int64_t r = 0; r < b->count; r++) {
        const fa_backward_row *row = &b->row[r];
        b->lse[r] = row->lse;
        b->delta[r] = row->delta;
        scores->rows[r] = fa_query_address(&p->q, s, row->query, row->head);
        if (row->keys.begin >= row->keys.end) continue;
        b->all.begin = fa_min(b->all.begin, row->keys.begin);
        b->all.end = fa_max(b->all.end, row->keys.end);
    }
    c->products->pack_rows(b->q, fa_words(c->products, p->head_dim), scores->rows, b->count, p->head_dim, p->q.type);
    b->q_nonfinite = c->products->pack_panels(b->q_panels, scores->rows, b->count, p->head_dim, p->q.type);
    for (int64_t r = 0; r < b->count; r++)
        scores->rows[r] = fa_query_address(&g->dout, s, b->row[r].query, b->row[r].head);
    c->products->pack_rows(b->dout, fa_words(c->products, p->head_dim_v), scores->rows, b->count, p->head_dim_v,
                           g->dout.type);
    b->dout_nonfinite = c->products->pack_panels(b->dout_panels, scores->rows, b->count, p->head_dim_v, g->dout.type);
}

void fa_backward_load_keys(const fa_backward_context *c, const fa_sequence *s, int64_t head_kv, int64_t begin,
                           int64_t count, fa_backward_keys *b, fa_backward_scores *scores) {
    const fa_problem *p = &c->g->problem;
    b->begin = begin;
    b->count = count;
    b->head_kv = head_kv;
    for (int64_t j = 0; j < count; j++) scores->rows[j] = fa_key_address(p, &p->k, s, begin + j, head_kv);
    c->products->pack_columns(b->k_columns, scores->rows, count, p->head_dim, p->k.type);
    b->k_nonfinite = c->products->pack_panels(b->k_panels, scores->rows, count, p->head_dim, p->k.type);
    for (int64_t j = 0; j < count; j++) scores->rows[j] = fa_key_address(p, &p->v, s, begin + j, head_kv);
    c->products->pack_columns(b->v_columns, scores->rows, count, p->head_dim_v, p->v.type);
}

/* ---- Scores ---- */

/* Under a causal mask half of a tile on the diagonal sees nothing. */
static void find_rows(const fa_backward_queries *queries, const fa_backward_keys *keys, int64_t step,
                      fa_backward_scores *scores) {
    int64_t first = queries->count, end = 0;
    for (int64_t r = 0; r < queries->count; r++) {
        const fa_key_range *range = &queries->row[r].keys;
        if (fa_max(range->begin, keys->begin) >= fa_min(range->end, keys->begin + keys->count)) continue;
        first = fa_min(first, r);
        end = r + 1;
    }
    scores->first = fa_min(first, end) / step * step;
    scores->end = end;
}

void fa_backward_tile(const fa_backward_context *c, const fa_sequence *s, const fa_backward_queries *queries,
                      const fa_backward_keys *keys, fa_backward_scores *scores) {
    const fa_problem *p = &c->g->problem;
    const fa_cpu_backward_kernels *kernels = c->kernels;
    const fa_cpu_products *products = c->products;
    int64_t columns = fa_round_up(keys->count, products->panel), words = fa_words(products, p->head_dim);
    find_rows(queries, keys, products->step, scores);
    int64_t first = scores->first, rows = scores->end - first;
    float *weights = scores->p + first * FA_BACKWARD_KEYS, *ds = scores->ds + first * FA_BACKWARD_KEYS;
    products->multiply(weights, FA_BACKWARD_KEYS, queries->q + first * words, words, keys->k_columns, rows, columns,
                       words, p->softmax_scale, false);
    bool offsets = p->bias.data != NULL || p->alibi_slopes.data != NULL;
    scores->nonfinite = queries->q_nonfinite || queries->dout_nonfinite || keys->k_nonfinite;
    for (int64_t r = first; r < scores->end; r++) {
        const fa_backward_row *row = &queries->row[r];
        fa_score_row at = {s, row->query, row->head, keys->begin, keys->count};
        float *score = scores->p + r * FA_BACKWARD_KEYS;
        if (p->softcap > 0) {
            kernels->softcap(score, columns, p->softcap);
            float *slope = scores->slope + r * FA_BACKWARD_KEYS;
            for (int64_t j = 0; j < columns; j++) {
                float t = score[j] / p->softcap;
                slope[j] = 1.0f - t * t;
            }
        }
        if (offsets) fa_score_row_offset(p, kernels->load_rows, &at, score, scores->bias);
        if (row->keys.begin > keys->begin || row->keys.end < keys->begin + columns || keys->count < columns ||
            row->lse == INFINITY || p->mask.data != NULL) {
            fa_key_range seen = row->keys;
            if (row->lse == INFINITY) seen.end = seen.begin;
            fa_score_row_hide(p, &at, seen, columns, score);
        }
        for (int64_t j = 0; j < keys->count && scores->nonfinite; j++)
            scores->seen[r * FA_BACKWARD_KEYS + j] = score[j] != -INFINITY ? 1u : 0u;
    }
    words = fa_words(products, p->head_dim_v);
    products->multiply(ds, FA_BACKWARD_KEYS, queries->dout + first * words, words, keys->v_columns, rows, columns,
                       words, 1.0f, false);
    kernels->softmax_backward(weights, ds, FA_BACKWARD_KEYS, rows, columns, queries->lse + first,
                              queries->delta + first);
}

void fa_backward_softcap(const fa_problem *p, int64_t columns, fa_backward_scores *scores) {
    if (p->softcap == 0) return;
    for (int64_t r = scores->first; r < scores->end; r++)
        for (int64_t j = r * FA_BACKWARD_KEYS; j < r * FA_BACKWARD_KEYS + columns;
             j++) /* A hidden pair's slope may be NaN. */
            scores->ds[j] = scores->ds[j] == 0.0f ? 0.0f : scores->ds[j] * scores->slope[j];
}
