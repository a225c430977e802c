/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the tensors of a problem lie in: see memory_ranges.h. */
#include "gpu/memory_ranges.h"

typedef struct range_list {
    fa_memory_range *ranges;
    size_t count;
} range_list;

/* A tensor of up to four dimensions, strides in bytes and of any sign, whose innermost piece has `bytes` bytes. */
static void add(range_list *list, const char *data, int dimensions, const int64_t *extents, const int64_t *strides,
                int64_t bytes, bool writable) {
    int64_t low = 0, high = 0;
    if (data == NULL) return;
    for (int i = 0; i < dimensions; i++) {
        int64_t reach = (extents[i] - 1) * strides[i];
        if (extents[i] == 0) return;
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    list->ranges[list->count++] =
        (fa_memory_range){.begin = data + low, .bytes = (size_t)(high - low + bytes), .writable = writable};
}

static void add_rows(range_list *list, const fa_rows *t, int64_t batch, int64_t rows, int64_t heads, int64_t columns,
                     bool writable) {
    add(list, t->data, 3, (int64_t[]){batch, rows, heads}, (int64_t[]){t->batch_stride, t->row_stride, t->head_stride},
        columns * fa_element_size(t->type), writable);
}

static void add_scores(range_list *list, const fa_score_tensor *t, const fa_problem *p, int64_t element) {
    bool varlen_q = p->cu_seqlens_q.data != NULL, varlen_k = p->cu_seqlens_k.data != NULL;
    add(list, t->data, 4,
        (int64_t[]){p->batch, p->heads, varlen_q ? p->max_seqlen_q : p->rows_q, varlen_k ? p->max_seqlen_k : p->rows_k},
        (int64_t[]){t->batch_stride, t->head_stride, t->row_stride, t->key_stride}, element, false);
}

static void add_table(range_list *list, const fa_table *t, int64_t rows, int64_t columns) {
    add(list, t->data, 2, (int64_t[]){rows, columns}, t->stride, 4, false);
}

size_t fa_memory_ranges(const fa_problem *p, fa_memory_range ranges[FA_MEMORY_RANGES_MAX]) {
    range_list list = {ranges, 0};
    add_rows(&list, &p->q, p->batch, p->rows_q, p->heads, p->head_dim, false);
    add_rows(&list, &p->k, p->batch, p->rows_k, p->heads_kv, p->head_dim, false);
    add_rows(&list, &p->v, p->batch, p->rows_k, p->heads_kv, p->head_dim_v, false);
    add_rows(&list, &p->out, p->batch, p->rows_q, p->heads, p->head_dim_v, true);
    add(&list, p->lse.data, 3, (int64_t[]){p->batch, p->heads, p->rows_q},
        (int64_t[]){p->lse.batch_stride, p->lse.head_stride, p->lse.row_stride}, fa_element_size(p->lse.type), true);
    add_scores(&list, &p->bias, p, fa_element_size(p->bias.type));
    add_scores(&list, &p->mask, p, 1);
    add_table(&list, &p->cu_seqlens_q, p->batch + 1, 1);
    add_table(&list, &p->cu_seqlens_k, p->batch + 1, 1);
    add_table(&list, &p->seqused_q, p->batch, 1);
    add_table(&list, &p->seqused_k, p->batch, 1);
    add_table(&list, &p->leftpad_k, p->batch, 1);
    add_table(&list, &p->alibi_slopes, p->batch, p->heads);
    add_table(&list, &p->sink, p->heads, 1);
    return list.count;
}

size_t fa_gradient_memory_ranges(const fa_gradients *g, fa_memory_range ranges[FA_GRADIENT_MEMORY_RANGES_MAX]) {
    const fa_problem *p = &g->problem;
    range_list list = {ranges, fa_memory_ranges(p, ranges)};
    for (size_t i = 0; i < list.count; i++) ranges[i].writable = false; /* out and lse are inputs */
    add_rows(&list, &g->dout, p->batch, p->rows_q, p->heads, p->head_dim_v, false);
    add_rows(&list, &g->dq, p->batch, p->rows_q, p->heads, p->head_dim, true);
    add_rows(&list, &g->dk, p->batch, p->rows_k, p->heads_kv, p->head_dim, true);
    add_rows(&list, &g->dv, p->batch, p->rows_k, p->heads_kv, p->head_dim_v, true);
    add(&list, g->dbias.data, 4, g->dbias_shape,
        (int64_t[]){g->dbias.batch_stride, g->dbias.head_stride, g->dbias.row_stride, g->dbias.key_stride},
        fa_element_size(g->dbias.type), true);
    add(&list, g->dsink.data, 1, &p->heads, g->dsink.stride, fa_element_size(g->dsink.type), true);
    add(&list, g->dalibi_slopes.data, 2, (int64_t[]){g->dalibi_per_batch ? p->batch : 1, p->heads},
        g->dalibi_slopes.stride, fa_element_size(g->dalibi_slopes.type), true);
    return list.count;
}
