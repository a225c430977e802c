/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dbias, tile by tile of the tensor. Each tile is the sum, in float64 and in a fixed order, of dS over all sequences,
 * heads, queries and keys that share its elements: where bias has extent 1, over all of that dimension. Scores and dS
 * are computed once more, which costs two of the five products of backward, and keeps memory linear and the order
 * fixed.
 */
#include "cpu/backward_bias.h"

#define TILE_QUERIES 64

typedef struct workspace {
    fa_backward_queries queries;
    fa_backward_keys keys;
    fa_backward_scores scores;
    double *sum; /* [TILE_QUERIES][FA_BACKWARD_KEYS] */
} workspace;

static int64_t workspace_init(workspace *w, const fa_backward_context *c, char *base) {
    int64_t used = fa_backward_queries_init(&w->queries, c, TILE_QUERIES, base);
    used += fa_backward_keys_init(&w->keys, c, base == NULL ? NULL : base + used);
    used += fa_backward_scores_init(&w->scores, c, TILE_QUERIES, base == NULL ? NULL : base + used);
    w->sum = fa_carve(base, &used, TILE_QUERIES * FA_BACKWARD_KEYS * (int64_t)sizeof(double));
    return used;
}

int64_t fa_backward_bias_workspace(const fa_backward_context *c) {
    workspace w;
    return c->g->dbias.data == NULL ? 0 : workspace_init(&w, c, NULL);
}

int64_t fa_backward_bias_units(const fa_gradients *g) {
    if (g->dbias.data == NULL) return 0;
    const int64_t *shape = g->dbias_shape;
    return shape[0] * shape[1] * fa_divide_up(shape[2], TILE_QUERIES) * fa_divide_up(shape[3], FA_BACKWARD_KEYS);
}

/* Adds dS of the loaded queries and keys; (row, key) is the tile's corner in dbias. */
static void add_scores(const fa_gradients *g, workspace *w, int64_t row, int64_t key) {
    for (int64_t r = w->scores.first; r < w->scores.end; r++) {
        int64_t i = g->dbias_shape[2] == 1 ? 0 : w->queries.row[r].query - row;
        for (int64_t j = 0; j < w->keys.count; j++)
            w->sum[i * FA_BACKWARD_KEYS + (g->dbias_shape[3] == 1 ? 0 : w->keys.begin + j - key)] +=
                (double)w->scores.ds[r * FA_BACKWARD_KEYS + j];
    }
}

void fa_backward_bias_unit(const fa_backward_context *c, int64_t unit, const float *lse, const float *delta,
                           int64_t all_rows, char *memory) {
    const fa_gradients *g = c->g;
    const fa_problem *p = &g->problem;
    const int64_t *shape = g->dbias_shape;
    workspace w;
    (void)workspace_init(&w, c, memory);
    int64_t key_tiles = fa_divide_up(shape[3], FA_BACKWARD_KEYS), row_tiles = fa_divide_up(shape[2], TILE_QUERIES);
    int64_t key = unit % key_tiles * FA_BACKWARD_KEYS, row = unit / key_tiles % row_tiles * TILE_QUERIES;
    int64_t head = unit / key_tiles / row_tiles % shape[1], batch = unit / key_tiles / row_tiles / shape[1];
    int64_t key_end = shape[3] == 1 ? INT64_MAX : fa_min(key + FA_BACKWARD_KEYS, shape[3]);
    int64_t row_end = shape[2] == 1 ? INT64_MAX : fa_min(row + TILE_QUERIES, shape[2]);
    int64_t head_end = shape[1] == 1 ? p->heads : head + 1, batch_end = shape[0] == 1 ? p->batch : batch + 1;
    memset(w.sum, 0, TILE_QUERIES * FA_BACKWARD_KEYS * sizeof *w.sum);

    for (int64_t n = batch; n < batch_end; n++) {
        fa_sequence s = fa_problem_sequence(p, n);
        int64_t first = (p->cu_seqlens_q.data == NULL ? n * p->rows_q : s.q_begin) * p->group;
        int64_t used_end = fa_min(key_end, s.visibility.key_end), queries_end = fa_min(row_end, s.visibility.seqlen_q);
        for (int64_t h = head; h < head_end; h++)
            for (int64_t query = row; query < queries_end; query += TILE_QUERIES) {
                w.queries.count = fa_min(TILE_QUERIES, queries_end - query);
                for (int64_t r = 0; r < w.queries.count; r++) {
                    int64_t number = h / p->group * all_rows + first + (query + r) * p->group + h % p->group;
                    w.queries.row[r] = (fa_backward_row){query + r, h, fa_visible_keys(&s.visibility, query + r),
                                                         lse[number], delta[number]};
                }
                fa_backward_load_queries(c, &s, &w.queries, &w.scores);
                int64_t begin = fa_max(w.queries.all.begin, key), end = fa_min(w.queries.all.end, used_end);
                for (int64_t j = begin; j < end; j += FA_BACKWARD_KEYS) {
                    fa_backward_load_keys(c, &s, h / p->group, j, fa_min(FA_BACKWARD_KEYS, end - j), &w.keys,
                                          &w.scores);
                    fa_backward_tile(c, &s, &w.queries, &w.keys, &w.scores);
                    add_scores(g, &w, row, key);
                }
            }
    }
    for (int64_t i = row; i < fa_min(row_end, shape[2]); i++)
        for (int64_t j = key; j < fa_min(key_end, shape[3]); j++)
            fa_element_store(fa_dbias_address(g, batch, head, i, j), w.sum[(i - row) * FA_BACKWARD_KEYS + j - key],
                             g->dbias.type);
}
