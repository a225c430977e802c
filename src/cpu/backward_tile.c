/* SPDX-License-Identifier: Apache-2.0 */
/* One tile of backward: see backward_tile.h. */
#include "cpu/backward_tile.h"

void *fa_carve(char *base, int64_t *used, int64_t bytes) {
    void *piece = base == NULL ? NULL : base + *used;
    *used += fa_round_up(bytes, 64);
    return piece;
}

static const int64_t f = (int64_t)sizeof(float);

int64_t fa_backward_queries_init(fa_backward_queries *b, const fa_problem *p, int64_t tile_rows, char *base) {
    int64_t used = 0;
    b->row = fa_carve(base, &used, tile_rows * (int64_t)sizeof *b->row);
    b->lse = fa_carve(base, &used, tile_rows * f);
    b->delta = fa_carve(base, &used, tile_rows * f);
    b->q = fa_carve(base, &used, tile_rows * p->head_dim * f);
    b->q_panels = fa_carve(base, &used, tile_rows * fa_round_up(p->head_dim, FA_PANEL_MAX) * f);
    b->dout = fa_carve(base, &used, tile_rows * p->head_dim_v * f);
    b->dout_panels = fa_carve(base, &used, tile_rows * fa_round_up(p->head_dim_v, FA_PANEL_MAX) * f);
    return used;
}

int64_t fa_backward_keys_init(fa_backward_keys *b, const fa_problem *p, char *base) {
    int64_t used = 0;
    b->k_columns = fa_carve(base, &used, FA_TILE_KEYS * p->head_dim * f);
    b->k_panels = fa_carve(base, &used, FA_TILE_KEYS * fa_round_up(p->head_dim, FA_PANEL_MAX) * f);
    b->v_columns = fa_carve(base, &used, FA_TILE_KEYS * p->head_dim_v * f);
    return used;
}

int64_t fa_backward_scores_init(fa_backward_scores *b, const fa_problem *p, int64_t tile_rows, char *base) {
    int64_t used = 0, pairs = tile_rows * FA_TILE_KEYS;
    b->p = fa_carve(base, &used, pairs * f);
    b->ds = fa_carve(base, &used, pairs * f);
    b->slope = fa_carve(base, &used, p->softcap > 0 ? pairs * f : 0);
    b->bias = fa_carve(base, &used, FA_TILE_KEYS * f);
    b->seen = fa_carve(base, &used, pairs);
    b->rows = fa_carve(base, &used, fa_max(tile_rows, FA_TILE_KEYS) * (int64_t)sizeof(void *));
    return used;
}

/* ---- Loading ---- */

/* Rows of a float32 matrix as right operand; returns whether any element is infinite or NaN. */
static bool pack_panels(const fa_cpu_kernels *kernels, float *panels, const float *rows, int64_t count, int64_t width,
                        const void **addresses) {
    for (int64_t r = 0; r < count; r++) addresses[r] = rows + r * width;
    return kernels->pack_values(panels, addresses, count, width, FA_ELEMENT_FLOAT32);
}

void fa_backward_load_queries(const fa_gradients *g, const fa_cpu_kernels *kernels, const fa_sequence *s,
                              fa_backward_queries *b, fa_backward_scores *scores) {
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
    kernels->load_rows(b->q, p->head_dim, scores->rows, b->count, p->head_dim, p->q.type, p->softmax_scale);
    b->q_nonfinite = pack_panels(kernels, b->q_panels, b->q, b->count, p->head_dim, scores->rows);
    for (int64_t r = 0; r < b->count; r++)
        scores->rows[r] = fa_query_address(&g->dout, s, b->row[r].query, b->row[r].head);
    kernels->load_rows(b->dout, p->head_dim_v, scores->rows, b->count, p->head_dim_v, g->dout.type, 1.0f);
    b->dout_nonfinite = pack_panels(kernels, b->dout_panels, b->dout, b->count, p->head_dim_v, scores->rows);
}

void fa_backward_load_keys(const fa_gradients *g, const fa_cpu_kernels *kernels, const fa_sequence *s, int64_t head_kv,
                           int64_t begin, int64_t count, fa_backward_keys *b, fa_backward_scores *scores) {
    const fa_problem *p = &g->problem;
    b->begin = begin;
    b->count = count;
    for (int64_t j = 0; j < count; j++) scores->rows[j] = fa_key_address(p, &p->k, s, begin + j, head_kv);
    kernels->pack_keys(b->k_columns, scores->rows, count, p->head_dim, p->k.type);
    b->k_nonfinite = kernels->pack_values(b->k_panels, scores->rows, count, p->head_dim, p->k.type);
    for (int64_t j = 0; j < count; j++) scores->rows[j] = fa_key_address(p, &p->v, s, begin + j, head_kv);
    kernels->pack_keys(b->v_columns, scores->rows, count, p->head_dim_v, p->v.type);
}

/* ---- Scores ---- */

/* s += bias and ALiBi, for one row. */
static void add_offsets(const fa_problem *p, const fa_cpu_kernels *kernels, const fa_sequence *s,
                        const fa_backward_row *row, const fa_backward_keys *keys, float *score, float *bias) {
    if (p->bias.data != NULL) {
        const void *source = fa_score_address(&p->bias, s->batch, row->head, row->query, keys->begin);
        if (p->bias.key_stride == fa_element_size(p->bias.type)) {
            kernels->load_rows(bias, FA_TILE_KEYS, &source, 1, keys->count, p->bias.type, 1.0f);
        } else {
            for (int64_t j = 0; j < keys->count; j++)
                bias[j] = (float)fa_element_load((const char *)source + j * p->bias.key_stride, p->bias.type);
        }
        /* Not a sum where it masks: a hidden key's score may be NaN or +inf. */
        for (int64_t j = 0; j < keys->count; j++) score[j] = bias[j] == -INFINITY ? -INFINITY : score[j] + bias[j];
    }
    if (p->alibi_slopes.data != NULL) {
        float slope = fa_alibi_slope(p, s->batch, row->head);
        for (int64_t j = 0; j < keys->count; j++)
            score[j] -= slope * (float)fa_alibi_distance(&s->visibility, row->query, keys->begin + j);
    }
}

/* -inf where a row does not see a key, and behind the last one up to the panel's edge. */
static void hide(const fa_problem *p, const fa_sequence *s, const fa_backward_row *row, const fa_backward_keys *keys,
                 int64_t columns, float *score) {
    int64_t begin = row->keys.begin - keys->begin, end = row->keys.end - keys->begin;
    if (row->lse == INFINITY) end = begin;
    for (int64_t j = 0; j < fa_min(begin, keys->count); j++) score[j] = -INFINITY;
    for (int64_t j = fa_max(fa_min(end, keys->count), 0); j < columns; j++) score[j] = -INFINITY;
    if (p->mask.data == NULL) return;
    const char *mask = fa_score_address(&p->mask, s->batch, row->head, row->query, keys->begin);
    for (int64_t j = 0; j < keys->count; j++)
        if (mask[j * p->mask.key_stride] == 0) score[j] = -INFINITY;
}

void fa_backward_tile(const fa_gradients *g, const fa_cpu_kernels *kernels, const fa_cpu_backward_kernels *backward,
                      const fa_sequence *s, const fa_backward_queries *queries, const fa_backward_keys *keys,
                      fa_backward_scores *scores) {
    const fa_problem *p = &g->problem;
    int64_t rows = queries->count, columns = fa_round_up(keys->count, kernels->panel);
    kernels->multiply(scores->p, FA_TILE_KEYS, queries->q, p->head_dim, keys->k_columns, rows, columns, p->head_dim,
                      NULL);
    bool offsets = p->bias.data != NULL || p->alibi_slopes.data != NULL;
    scores->nonfinite = queries->q_nonfinite || queries->dout_nonfinite || keys->k_nonfinite;
    for (int64_t r = 0; r < rows; r++) {
        const fa_backward_row *row = &queries->row[r];
        float *score = scores->p + r * FA_TILE_KEYS;
        if (p->softcap > 0) {
            kernels->softcap(score, columns, p->softcap);
            float *slope = scores->slope + r * FA_TILE_KEYS;
            for (int64_t j = 0; j < columns; j++) {
                float t = score[j] / p->softcap;
                slope[j] = 1.0f - t * t;
            }
        }
        if (offsets) add_offsets(p, kernels, s, row, keys, score, scores->bias);
        if (row->keys.begin > keys->begin || row->keys.end < keys->begin + columns || keys->count < columns ||
            row->lse == INFINITY || p->mask.data != NULL)
            hide(p, s, row, keys, columns, score);
        for (int64_t j = 0; j < keys->count && scores->nonfinite; j++)
            scores->seen[r * FA_TILE_KEYS + j] = score[j] != -INFINITY ? 1u : 0u;
    }
    kernels->multiply(scores->ds, FA_TILE_KEYS, queries->dout, p->head_dim_v, keys->v_columns, rows, columns,
                      p->head_dim_v, NULL);
    backward->softmax_backward(scores->p, scores->ds, FA_TILE_KEYS, rows, columns, queries->lse, queries->delta);
}

void fa_backward_softcap(const fa_problem *p, int64_t rows, int64_t columns, fa_backward_scores *scores) {
    if (p->softcap == 0) return;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = r * FA_TILE_KEYS; j < r * FA_TILE_KEYS + columns; j++) /* A hidden pair's slope may be NaN. */
            scores->ds[j] = scores->ds[j] == 0.0f ? 0.0f : scores->ds[j] * scores->slope[j];
}
