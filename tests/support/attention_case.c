/* SPDX-License-Identifier: Apache-2.0 */
/* From an attention_case to the arguments of a call: see attention_case.h. */
#include "attention_case.h"

#include "testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

attention_case case_default(const char *name) {
    return (attention_case){.name = name,
                            .batch = 2,
                            .heads = 4,
                            .heads_kv = 2,
                            .seqlen_q = 33,
                            .seqlen_k = 70,
                            .head_dim = 40,
                            .head_dim_v = 40,
                            .num_threads = 1};
}

/* ---- Lengths ---- */

static tensor *int_tensor(attention_call *a, int ndim, const int64_t *shape) {
    return tensor_new((fa_dtype)FA_INT32, ndim, shape, a->c.layout_tables, false, &a->random);
}

/* One int32 for each sequence: the given ones, or random in 0 .. limit(n), 0 and the limit being likely. */
static tensor *lengths_tensor(attention_call *a, const int32_t *given, const int64_t *limits) {
    tensor *t = int_tensor(a, 1, &a->c.batch);
    for (int64_t n = 0; n < a->c.batch; n++) {
        int64_t length = rng_range(&a->random, 0, limits[n]);
        if (rng_chance(&a->random, 0.15)) length = 0;
        if (rng_chance(&a->random, 0.25)) length = limits[n];
        tensor_put_int(t, n, given != NULL ? given[n] : length);
    }
    return t;
}

/* cu_seqlens from lengths; lengths receives them. Returns the total. */
static int64_t make_cu_seqlens(attention_call *a, tensor **cu, const int32_t *given, int64_t *lengths) {
    int64_t entries = a->c.batch + 1, total = 0;
    tensor *each = lengths_tensor(a, given, lengths);
    *cu = int_tensor(a, 1, &entries);
    tensor_put_int(*cu, 0, 0);
    for (int64_t n = 0; n < a->c.batch; n++) {
        lengths[n] = tensor_get_int(each, n);
        total += lengths[n];
        tensor_put_int(*cu, n + 1, total);
    }
    tensor_free(each);
    return total;
}

static int64_t *filled(int64_t count, int64_t value) {
    int64_t *x = calloc((size_t)count + 1, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) x[i] = value;
    return x;
}

/* Pages in random order, with a few that no sequence uses. Returns their number. */
static int64_t make_block_table(attention_call *a) {
    int64_t per_sequence = (a->c.seqlen_k + a->c.page_size - 1) / a->c.page_size;
    int64_t shape[2] = {a->c.batch, per_sequence}, used = a->c.batch * per_sequence, pages = used + 3;
    a->block_table = int_tensor(a, 2, shape);
    int64_t *order = filled(pages, 0);
    for (int64_t i = 0; i < pages; i++) {
        int64_t j = rng_range(&a->random, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    for (int64_t i = 0; i < used; i++) tensor_put_int(a->block_table, i, order[i]);
    free(order);
    return pages;
}

static void make_lengths(attention_call *a, int64_t *total_k, int64_t *pages) {
    const attention_case *c = &a->c;
    int64_t *rows_q = filled(c->batch, c->seqlen_q), *rows_k = filled(c->batch, c->seqlen_k);
    a->rows_q = c->seqlen_q;
    if (c->varlen_q) a->rows_q = make_cu_seqlens(a, &a->cu_q, c->lengths_q, rows_q) + c->tail_q;
    if (c->varlen_k) *total_k = make_cu_seqlens(a, &a->cu_k, c->lengths_k, rows_k) + c->tail_k;
    if (c->page_size > 0) {
        *pages = make_block_table(a);
        for (int64_t n = 0; n < c->batch; n++) rows_k[n] = a->block_table->shape[1] * c->page_size;
        if (c->seqused_k == NULL)
            for (int64_t n = 0; n < c->batch; n++) rows_k[n] = c->seqlen_k;
    }
    if (c->used_q) a->seqused_q = lengths_tensor(a, c->seqused_q, rows_q);
    if (c->used_k || c->page_size > 0) {
        a->seqused_k = lengths_tensor(a, c->seqused_k, rows_k);
        for (int64_t n = 0; n < c->batch; n++) rows_k[n] = tensor_get_int(a->seqused_k, n);
    }
    if (c->leftpad) a->leftpad_k = lengths_tensor(a, c->leftpad_k, rows_k);
    free(rows_q);
    free(rows_k);
}

/* ---- The tensors ---- */

static tensor *score_tensor(attention_call *a, const score_shape *s, fa_dtype dtype) {
    if (!s->given) return NULL;
    const attention_case *c = &a->c;
    /* Paged keys: columns for the capacity would do; the longest used length is what is asked for. */
    int64_t shape[4] = {s->batch ? c->batch : 1, s->heads ? c->heads : 1, s->queries ? c->seqlen_q : 1,
                        s->keys ? c->seqlen_k : 1};
    return tensor_new(dtype, 4, shape, c->layout_scores, false, &a->random);
}

static void make_options(attention_call *a) {
    const attention_case *c = &a->c;
    fa_options *o = &a->options;
    o->size = sizeof *o;
    if (c->set_scale) o->set |= FA_SET_SOFTMAX_SCALE;
    o->softmax_scale = c->set_scale ? c->softmax_scale : 0.0f;
    o->softcap = c->softcap;
    o->causal = c->causal;
    if (c->window) {
        o->set |= FA_SET_WINDOW;
        o->window_left = c->window_left;
        o->window_right = c->window_right;
    }
    const struct {
        const fa_tensor **option;
        const tensor *t;
    } tensors[] = {{&o->alibi_slopes, a->alibi},  {&o->sink, a->sink},
                   {&o->bias, a->bias},           {&o->mask, a->mask},
                   {&o->cu_seqlens_q, a->cu_q},   {&o->cu_seqlens_k, a->cu_k},
                   {&o->seqused_q, a->seqused_q}, {&o->seqused_k, a->seqused_k},
                   {&o->leftpad_k, a->leftpad_k}, {&o->block_table, a->block_table}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        *tensors[i].option = tensors[i].t == NULL ? NULL : &tensors[i].t->fa;
    if (c->state_maximum) {
        o->max_seqlen_q = c->seqlen_q;
        o->max_seqlen_k = c->seqlen_k;
    }
    o->num_threads = c->num_threads;
    o->num_splits = c->num_splits;
}

attention_call *call_new(const attention_case *c) {
    attention_call *a = calloc(1, sizeof *a);
    assert_non_null(a);
    a->c = *c;
    a->random = rng_named(c->name, c->index);
    a->seed = a->random.state;
    int64_t total_k = 0, pages = 0;
    make_lengths(a, &total_k, &pages);

    fa_dtype dtype = dtype_of_element(c->type);
    int64_t q[4] = {c->batch, c->seqlen_q, c->heads, c->head_dim};
    int64_t k[4] = {c->batch, c->seqlen_k, c->heads_kv, c->head_dim};
    if (c->page_size > 0) k[0] = pages, k[1] = c->page_size;
    int64_t packed_q[3] = {a->rows_q, c->heads, c->head_dim}, packed_k[3] = {total_k, c->heads_kv, c->head_dim};
    a->q = tensor_new(dtype, c->varlen_q ? 3 : 4, c->varlen_q ? packed_q : q, c->layout_q, true, &a->random);
    a->k = tensor_new(dtype, c->varlen_k ? 3 : 4, c->varlen_k ? packed_k : k, c->layout_k, true, &a->random);
    k[3] = packed_k[2] = c->head_dim_v;
    a->v = c->v_in_k
               ? tensor_view(a->k, c->head_dim_v)
               : tensor_new(dtype, c->varlen_k ? 3 : 4, c->varlen_k ? packed_k : k, c->layout_v, true, &a->random);

    int64_t slopes[2] = {c->batch, c->heads};
    if (c->alibi)
        a->alibi = tensor_new((fa_dtype)FA_FLOAT32, c->alibi_per_batch ? 2 : 1,
                              c->alibi_per_batch ? slopes : slopes + 1, c->layout_tables, false, &a->random);
    if (c->sink) a->sink = tensor_new((fa_dtype)FA_FLOAT32, 1, &c->heads, c->layout_tables, false, &a->random);
    a->bias = score_tensor(a, &c->bias, dtype_of_element(c->bias_type));
    a->mask = score_tensor(a, &c->mask, c->mask_uint8 ? (fa_dtype){FA_DTYPE_UINT, 8, 1} : (fa_dtype)FA_BOOL);
    make_options(a);
    call_fill(a);
    return a;
}

void call_free(attention_call *a) {
    tensor *all[] = {a->q,    a->k,    a->v,         a->alibi,     a->sink,      a->bias,       a->mask,
                     a->cu_q, a->cu_k, a->seqused_q, a->seqused_k, a->leftpad_k, a->block_table};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) tensor_free(all[i]);
    free(a);
}

tensor *call_new_out(attention_call *a, fa_element type) {
    int64_t dense[4] = {a->c.batch, a->rows_q, a->c.heads, a->c.head_dim_v};
    bool varlen = a->c.varlen_q;
    return tensor_new(dtype_of_element(type), varlen ? 3 : 4, varlen ? dense + 1 : dense, a->c.layout_out, true,
                      &a->random);
}

tensor *call_new_lse(attention_call *a, fa_element type) {
    int64_t dense[3] = {a->c.batch, a->c.heads, a->rows_q};
    bool varlen = a->c.varlen_q;
    return tensor_new(dtype_of_element(type), varlen ? 2 : 3, varlen ? dense + 1 : dense, a->c.layout_lse, false,
                      &a->random);
}

static void copy_row(tensor *to, int64_t to_first, const tensor *from, int64_t from_first) {
    int64_t width = to->shape[to->fa.ndim - 1];
    for (int64_t i = 0; i < width; i++) tensor_put(to, to_first + i, tensor_get(from, from_first + i));
}

void call_copy_sequence(attention_call *to, int64_t n, const attention_call *from, int64_t m, int64_t first_row) {
    call_sequence t = call_sequence_of(to, n), f = call_sequence_of(from, m);
    for (int64_t h = 0; h < to->c.heads; h++)
        for (int64_t i = 0; i < t.q_rows; i++)
            copy_row(to->q, call_q_number(to, to->q, n, h, i), from->q,
                     call_q_number(from, from->q, m, h, first_row + i));
    for (int64_t h = 0; h < to->c.heads_kv; h++)
        for (int64_t j = t.pad; j < t.keys; j++) {
            int64_t key = j - t.pad + f.pad;
            copy_row(to->k, call_k_number(to, to->k, n, h, j), from->k, call_k_number(from, from->k, m, h, key));
            copy_row(to->v, call_k_number(to, to->v, n, h, j), from->v, call_k_number(from, from->v, m, h, key));
        }
}

/* ---- In words ---- */

static void append(char *line, size_t size, const char *format, ...) {
    size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line + used, size - used, format, arguments);
    va_end(arguments);
}

static void append_lengths(char *line, size_t size, const char *name, const tensor *t) {
    if (t == NULL) return;
    int64_t count = tensor_count(t);
    append(line, size, " %s=[", name);
    for (int64_t i = 0; i < count && i < 8; i++)
        append(line, size, "%s%" PRId64, i == 0 ? "" : ",", tensor_get_int(t, i));
    append(line, size, count > 8 ? ",...]" : "]");
}

static void append_score(char *line, size_t size, const char *name, const tensor *t, const char *dtype) {
    if (t != NULL)
        append(line, size, " %s=%s[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", name, dtype, t->shape[0],
               t->shape[1], t->shape[2], t->shape[3]);
}

const char *call_line(const attention_call *a) {
    static const char *const causal[] = {"", " causal=bottom_right", " causal=top_left"};
    static const char *const inputs[] = {
        "normal",       "normal*3",     "normal*30",       "equal_keys",   "dominant_key", "rising",         "falling",
        "negative_120", "negative_250", "negative_2.45e5", "near_largest", "near_lowest",  "outlier_channel"};
    static const char *const values[] = {"normal", "constant", "one_hot", "near_largest"};
    static char line[2048];
    const attention_case *c = &a->c;
    (void)snprintf(line, sizeof line,
                   "%s #%" PRIu64 ": %s%s b=%" PRId64 " h=%" PRId64 ":%" PRId64 " Sq=%" PRId64 " Sk=%" PRId64
                   " d=%" PRId64 " dv=%" PRId64,
                   c->name, c->index, element_name(c->type), c->out_float32 ? " out=float32" : "", c->batch, c->heads,
                   c->heads_kv, c->seqlen_q, c->seqlen_k, c->head_dim, c->head_dim_v);
    if (c->set_scale) append(line, sizeof line, " scale=%g", (double)c->softmax_scale);
    if (c->softcap > 0) append(line, sizeof line, " softcap=%g", (double)c->softcap);
    append(line, sizeof line, "%s", causal[c->causal]);
    if (c->window) append(line, sizeof line, " window=(%" PRId64 ",%" PRId64 ")", c->window_left, c->window_right);
    if (c->alibi) append(line, sizeof line, c->alibi_per_batch ? " alibi[b,h]" : " alibi[h]");
    if (c->sink) append(line, sizeof line, " sink");
    append_score(line, sizeof line, "bias", a->bias, element_name(c->bias_type));
    append_score(line, sizeof line, "mask", a->mask, c->mask_uint8 ? "uint8" : "bool");
    append_lengths(line, sizeof line, "cu_q", a->cu_q);
    append_lengths(line, sizeof line, "cu_k", a->cu_k);
    append_lengths(line, sizeof line, "seqused_q", a->seqused_q);
    append_lengths(line, sizeof line, "seqused_k", a->seqused_k);
    append_lengths(line, sizeof line, "leftpad_k", a->leftpad_k);
    if (c->page_size > 0) append(line, sizeof line, " page_size=%" PRId64, c->page_size);
    append(line, sizeof line, " layouts q=%s k=%s v=%s out=%s lse=%s", layout_name(c->layout_q),
           layout_name(c->layout_k), c->v_in_k ? "in k" : layout_name(c->layout_v), layout_name(c->layout_out),
           layout_name(c->layout_lse));
    append(line, sizeof line, " inputs=%s values=%s threads=%d splits=%d FLASHATTN_TEST_SEED=%" PRIu64,
           inputs[c->inputs], values[c->values], c->num_threads, c->num_splits, test_seed());
    return line;
}

void call_fail(const attention_call *a, const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fail_msg("%s\n  in %s", message, call_line(a));
    abort(); /* not reached: fail_msg leaves the test */
}
