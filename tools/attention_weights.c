/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights P of O = P V are the output for V = identity. So the kernel itself is asked for them, 256 columns
 * of P at a time (the largest head_dim_v), and every mask, bias and length rule holds here without being
 * written a second time.
 *
 * Which keys are hidden is asked in the same way, with every score 0: then a weight is 0 only where a mask is.
 */
#include "attention_weights.h"

#include "message.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_COLUMNS 256

/* One head of one sequence as a dense call with batch 1 and one head. */
typedef struct head_call {
    tensor q, k, v, out;
    tensor alibi_slopes, sink, bias, mask, leftpad_k;
    int32_t leftpad;
    int64_t one; /* the shape of leftpad_k */
    bool has_bias;
    fa_options options;
} head_call;

/* bias and mask: the batch, head, rows and keys of the call. */
static void set_scores(tensor *t, const tensor *from, int64_t batch, int64_t head, const attention_sequence *s,
                       const fa_tensor **field) {
    tensor_view(t, &from->t);
    tensor_narrow(t, 0, t->shape[0] > 1 ? batch : 0, 1);
    tensor_narrow(t, 1, t->shape[1] > 1 ? head : 0, 1);
    if (t->shape[2] > 1) tensor_narrow(t, 2, 0, s->visibility.seqlen_q);
    if (t->shape[3] > 1) tensor_narrow(t, 3, 0, s->visibility.key_end);
    *field = &t->t;
}

/* Rows of k of one sequence and head, copied from their pages. */
static bool gather_pages(const attention *a, int64_t batch, int64_t head_kv, int64_t keys, tensor *k) {
    int64_t page_size = a->k.shape[1], shape[4] = {1, keys, 1, a->k.shape[3]};
    if (!tensor_allocate(k, a->k.t.dtype, 4, shape)) return false;
    size_t row_bytes = (size_t)shape[3] * (size_t)(a->k.t.dtype.bits / 8);
    for (int64_t j = 0; j < keys; j++) {
        int64_t page = table_entry(&a->block_table, batch, j / page_size);
        int64_t from[4] = {page, j % page_size, head_kv, 0}, to[4] = {0, j, 0, 0};
        if (page < 0 || page >= a->k.shape[0]) continue; /* left padding, whose pages nobody reads */
        memcpy(tensor_address(&k->t, to), tensor_address(&a->k.t, from), row_bytes);
    }
    return true;
}

/* [seqlen, heads, head_dim] or [batch, seqlen, heads, head_dim] to [1, count, 1, head_dim]. */
static void select_head(tensor *t, const tensor *from, int64_t batch, int64_t begin, int64_t count, int64_t head) {
    tensor_view(t, &from->t);
    if (t->t.ndim == 4)
        tensor_narrow(t, 0, batch, 1);
    else
        tensor_insert(t, 0);
    tensor_narrow(t, 1, begin, count);
    tensor_narrow(t, 2, head, 1);
}

static bool head_call_init(head_call *c, const attention *a, int64_t batch, int64_t head) {
    const fa_options *o = &a->options;
    attention_sequence s = attention_sequence_at(a, batch);
    int64_t group = a->q.shape[a->q.t.ndim - 2] / a->k.shape[a->k.t.ndim - 2], head_kv = head / group;
    int64_t queries = s.visibility.seqlen_q, keys = s.visibility.key_end;
    const fa_dtype float32 = FA_FLOAT32;
    memset(c, 0, sizeof *c);
    c->one = 1;
    c->options = *o;
    const fa_dtype float64 = FA_FLOAT64;
    c->options.kernel = memcmp(&a->q.t.dtype, &float64, sizeof float64) == 0 ? FA_KERNEL_REFERENCE : FA_KERNEL_CPU;
    c->has_bias = o->bias != NULL;
    c->options.cu_seqlens_q = c->options.cu_seqlens_k = c->options.block_table = NULL;
    c->options.seqused_q = c->options.seqused_k = NULL;
    select_head(&c->q, &a->q, batch, s.q_begin, queries, head);
    if (o->block_table != NULL) {
        if (!gather_pages(a, batch, head_kv, keys, &c->k)) return false;
    } else {
        select_head(&c->k, &a->k, batch, s.k_begin, keys, head_kv);
    }
    if (o->leftpad_k != NULL) {
        c->leftpad = (int32_t)s.visibility.key_begin;
        const fa_tensor one = {
            .data = &c->leftpad, .device = {FA_DEVICE_CPU, 0}, .ndim = 1, .dtype = FA_INT32, .shape = &c->one};
        tensor_view(&c->leftpad_k, &one);
        c->options.leftpad_k = &c->leftpad_k.t;
    }
    if (o->bias != NULL) set_scores(&c->bias, &a->bias, batch, head, &s, &c->options.bias);
    if (o->mask != NULL) set_scores(&c->mask, &a->mask, batch, head, &s, &c->options.mask);
    if (o->sink != NULL) {
        tensor_view(&c->sink, &a->sink.t);
        tensor_narrow(&c->sink, 0, head, 1);
        c->options.sink = &c->sink.t;
    }
    if (o->alibi_slopes != NULL) {
        tensor_view(&c->alibi_slopes, &a->alibi_slopes.t);
        if (c->alibi_slopes.t.ndim == 2) tensor_select(&c->alibi_slopes, 0, batch);
        tensor_narrow(&c->alibi_slopes, 0, head, 1);
        c->options.alibi_slopes = &c->alibi_slopes.t;
    }
    int64_t v_shape[4] = {1, keys, 1, BLOCK_COLUMNS}, out_shape[4] = {1, queries, 1, BLOCK_COLUMNS};
    return tensor_allocate(&c->v, c->q.t.dtype, 4, v_shape) && tensor_allocate(&c->out, float32, 4, out_shape);
}

static void head_call_free(head_call *c) {
    tensor_free(&c->q);
    tensor_free(&c->k);
    tensor_free(&c->v);
    tensor_free(&c->out);
}

/* Columns [begin, begin + BLOCK_COLUMNS) of P, in c->out. */
static int compute_block(head_call *c, int64_t begin) {
    fa_element element = FA_ELEMENT_FLOAT32;
    (void)element_of_dtype(c->v.t.dtype, &element);
    memset(c->v.memory, 0, (size_t)tensor_elements(&c->v.t) * (size_t)fa_element_size(element));
    for (int64_t i = 0; i < BLOCK_COLUMNS && begin + i < c->v.shape[1]; i++) {
        int64_t index[4] = {0, begin + i, 0, i};
        fa_element_store(tensor_address(&c->v.t, index), 1.0, element);
    }
    return fa_forward(&c->q.t, &c->k.t, &c->v.t, &c->options, &c->out.t, NULL) == FA_OK ? EXIT_CODE_OK : fail_library();
}

static bool bias_hides(const head_call *c, int64_t row, int64_t key) {
    if (!c->has_bias) return false;
    fa_element element = FA_ELEMENT_FLOAT32;
    (void)element_of_dtype(c->bias.t.dtype, &element);
    int64_t index[4] = {0, 0, c->bias.shape[2] > 1 ? row : 0, c->bias.shape[3] > 1 ? key : 0};
    return fa_element_load(tensor_address(&c->bias.t, index), element) == -HUGE_VAL;
}

/* Enters the block's columns into the cells: weights, or what is visible. */
static void enter_block(const head_call *c, attention_weights *w, int64_t begin, bool visible) {
    const float *block = c->out.memory;
    for (int64_t row = 0; row < w->queries; row++) {
        for (int64_t i = 0; i < BLOCK_COLUMNS && begin + i < w->keys; i++) {
            int64_t cell = row / w->row_step * w->columns + (begin + i) / w->column_step;
            float x = block[row * BLOCK_COLUMNS + i];
            if (!visible && !(x <= w->weight[cell])) w->weight[cell] = x; /* NaN too, and it stays */
            if (visible && x > 0 && !bias_hides(c, row, begin + i)) w->visible[cell] = 1;
        }
    }
}

/* Zeros take the place of q and k, where NaN may be. */
static bool make_scores_zero(head_call *c) {
    int64_t q_shape[4] = {1, c->q.shape[1], 1, 1}, k_shape[4] = {1, c->k.shape[1], 1, 1};
    fa_dtype dtype = c->q.t.dtype;
    tensor_free(&c->k);
    if (!tensor_allocate(&c->q, dtype, 4, q_shape) || !tensor_allocate(&c->k, dtype, 4, k_shape)) return false;
    memset(c->q.memory, 0, (size_t)q_shape[1] * (size_t)(dtype.bits / 8));
    memset(c->k.memory, 0, (size_t)k_shape[1] * (size_t)(dtype.bits / 8));
    c->options.softcap = 0;
    c->options.alibi_slopes = c->options.sink = c->options.bias = NULL;
    return true;
}

static int compute_cells(head_call *c, attention_weights *w) {
    for (int pass = 0; pass < 2; pass++) {
        bool visible = pass == 1;
        if (visible && !make_scores_zero(c)) return fail_memory("the picture's weights");
        for (int64_t begin = 0; begin < w->keys; begin += BLOCK_COLUMNS) {
            int code = compute_block(c, begin);
            if (code != EXIT_CODE_OK) return code;
            enter_block(c, w, begin, visible);
        }
    }
    return EXIT_CODE_OK;
}

int attention_weights_compute(const attention *a, int64_t batch, int64_t head, attention_weights *w) {
    memset(w, 0, sizeof *w);
    int64_t heads = a->q.shape[a->q.t.ndim - 2];
    if (batch >= attention_batch(a))
        return fail_usage("--batch = %" PRId64 ": the input has batch entries 0 .. %" PRId64, batch,
                          attention_batch(a) - 1);
    if (head >= heads) return fail_usage("--head = %" PRId64 ": q has heads 0 .. %" PRId64, head, heads - 1);
    attention_sequence s = attention_sequence_at(a, batch);
    w->queries = s.visibility.seqlen_q;
    w->keys = s.visibility.key_end;
    if (w->queries > WEIGHTS_MAX_SEQLEN || w->keys > WEIGHTS_MAX_SEQLEN)
        return fail_usage("--picture: the sequence has %" PRId64 " queries and %" PRId64
                          " keys; at most %d of each can be drawn",
                          w->queries, w->keys, WEIGHTS_MAX_SEQLEN);
    if (w->queries == 0 || w->keys == 0)
        return fail_usage("--picture: the sequence has %" PRId64 " queries and %" PRId64
                          " keys, so there is nothing to draw",
                          w->queries, w->keys);
    w->row_step = (w->queries + WEIGHTS_MAX_CELLS - 1) / WEIGHTS_MAX_CELLS;
    w->column_step = (w->keys + WEIGHTS_MAX_CELLS - 1) / WEIGHTS_MAX_CELLS;
    w->rows = (w->queries + w->row_step - 1) / w->row_step;
    w->columns = (w->keys + w->column_step - 1) / w->column_step;
    w->weight = calloc((size_t)(w->rows * w->columns), sizeof *w->weight);
    w->visible = calloc((size_t)(w->rows * w->columns), sizeof *w->visible);
    head_call c;
    int code = EXIT_CODE_OK;
    if (!head_call_init(&c, a, batch, head) || w->weight == NULL || w->visible == NULL)
        code = fail_memory("the picture's weights");
    else
        code = compute_cells(&c, w);
    head_call_free(&c);
    if (code != EXIT_CODE_OK) attention_weights_free(w);
    return code;
}

void attention_weights_free(attention_weights *w) {
    free(w->weight);
    free(w->visible);
    w->weight = NULL;
    w->visible = NULL;
}
