/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules on arguments, one function per kind. Each failure names the argument, its value and the rule.
 * Nothing here writes to an output.
 */
#include "problem.h"

#include "cpu/threads.h"
#include "status.h"
#include "tensor.h"

#include <inttypes.h>
#include <math.h>

#define MAX_SPLITS 256
/* ---- tables: lengths, slopes, sinks ---- */

static fa_status table_init(fa_table *table, const char *name, const fa_tensor *t, const fa_tensor *q, uint8_t code,
                            const char *dtype_name) {
    FA_TRY(fa_tensor_check(name, t, true));
    if (!fa_dtype_is(t->dtype, code, 32))
        return fa_fail(FA_INVALID_ARGUMENT, "%s.dtype = %s: must be %s", name, fa_dtype_text(t->dtype).s, dtype_name);
    FA_TRY(fa_tensor_check_device(name, t, q));
    static const char nothing[4] = {0};
    table->data =
        t->data == NULL ? nothing : fa_tensor_data(t); /* NULL means not given, so an empty tensor needs an address */
    for (int32_t i = 0; i < 2; i++) table->stride[i] = i < t->ndim ? 4 * fa_tensor_stride(t, i) : 0;
    return FA_OK;
}

static fa_status int_vector(fa_table *table, const char *name, const fa_tensor *t, const fa_tensor *q, int64_t length,
                            const char *layout) {
    if (t == NULL) return FA_OK;
    FA_TRY(table_init(table, name, t, q, FA_DTYPE_INT, "int32"));
    FA_TRY(fa_tensor_check_ndim(name, t, 1, layout));
    return fa_tensor_check_extent(name, t, 0, length, layout);
}

/* ---- bias and mask ---- */

static fa_status score_tensor_init(fa_score_tensor *s, const char *name, const fa_tensor *t, const fa_tensor *q,
                                   const fa_problem *p) {
    if (t == NULL) return FA_OK;
    FA_TRY(fa_tensor_check(name, t, true));
    FA_TRY(fa_tensor_check_device(name, t, q));
    FA_TRY(fa_tensor_check_ndim(name, t, 4, "[batch or 1, heads or 1, seqlen_q or 1, seqlen_k or 1]"));
    static const char *const meaning[] = {"the batch size", "heads", "seqlen_q", "seqlen_k"};
    bool varlen_q = p->cu_seqlens_q.data != NULL, varlen_k = p->cu_seqlens_k.data != NULL || p->page_size > 0;
    int64_t expected[4] = {p->batch, p->heads, varlen_q ? p->max_seqlen_q : p->rows_q,
                           varlen_k ? p->max_seqlen_k : p->rows_k};
    int64_t stride[4];
    int64_t element = t->dtype.bits / 8;
    for (int32_t i = 0; i < 4; i++) {
        int64_t extent = t->shape[i];
        bool at_least = (i == 2 && varlen_q) || (i == 3 && varlen_k);
        if (extent != 1 && !(at_least ? extent >= expected[i] : extent == expected[i]))
            return fa_fail(FA_INVALID_ARGUMENT, "%s.shape[%" PRId32 "] = %" PRId64 ": must be 1 or %s%s, %" PRId64,
                           name, i, extent, at_least ? "at least the longest " : "", meaning[i], expected[i]);
        stride[i] = extent == 1 ? 0 : element * fa_tensor_stride(t, i);
    }
    static const char nothing[4] = {0};
    s->data = t->data == NULL ? nothing : fa_tensor_data(t);
    s->batch_stride = stride[0];
    s->head_stride = stride[1];
    s->row_stride = stride[2];
    s->key_stride = stride[3];
    return FA_OK;
}

/* ---- q, k, v, out, lse ---- */

fa_status fa_rows_init(fa_rows *rows, const char *name, const fa_tensor *t, const fa_tensor *q, int32_t ndim,
                       const char *layout, bool with_data) {
    FA_TRY(fa_tensor_check(name, t, with_data));
    FA_TRY(fa_tensor_check_ndim(name, t, ndim, layout));
    FA_TRY(fa_tensor_check_device(name, t, q));
    if (!fa_tensor_element(t->dtype, &rows->type))
        return fa_fail(FA_UNSUPPORTED, "%s.dtype = %s: must be float32, float16 or bfloat16", name,
                       fa_dtype_text(t->dtype).s);
    FA_TRY(fa_tensor_check_last_stride(name, t));
    int64_t element = fa_element_size(rows->type);
    rows->data = fa_tensor_data(t);
    rows->batch_stride = ndim == 4 ? element * fa_tensor_stride(t, 0) : 0;
    rows->row_stride = element * fa_tensor_stride(t, ndim - 3);
    rows->head_stride = element * fa_tensor_stride(t, ndim - 2);
    return FA_OK;
}

static fa_status check_head_dim(const char *name, const fa_tensor *t, const char *meaning) {
    int64_t size = t->shape[t->ndim - 1];
    if (size >= 1 && size <= FA_HEAD_DIM_MAX) return FA_OK;
    return fa_fail(size < 1 ? FA_INVALID_ARGUMENT : FA_UNSUPPORTED,
                   "%s.shape[%" PRId32 "] = %" PRId64 ": %s must be 1 .. %d", name, t->ndim - 1, size, meaning,
                   FA_HEAD_DIM_MAX);
}

static fa_status inputs_init(fa_problem *p, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                             const fa_options *o, bool with_data) {
    static const char *const dense = "[batch, seqlen, heads, head_dim]", *const packed = "[total, heads, head_dim]",
                             *const paged = "[pages, page_size, heads_kv, head_dim]";
    bool varlen_q = o->cu_seqlens_q != NULL, varlen_k = o->cu_seqlens_k != NULL, is_paged = o->block_table != NULL;
    if (is_paged && varlen_k)
        return fa_fail(FA_INVALID_ARGUMENT,
                       "cu_seqlens_k is given together with block_table: paged lengths come from seqused_k");
    if (is_paged && o->seqused_k == NULL)
        return fa_fail(FA_INVALID_ARGUMENT,
                       "seqused_k = NULL with block_table: paged K/V needs the used length of each sequence");
    if (q == NULL) return fa_fail(FA_INVALID_ARGUMENT, "q = NULL: must be a tensor");
    if (q->device.device_type != FA_DEVICE_CPU && q->device.device_type != FA_DEVICE_CUDA)
        return fa_fail(FA_UNSUPPORTED, "q.device.device_type = %" PRId32 ": must be %d (CPU) or %d (CUDA)",
                       q->device.device_type, FA_DEVICE_CPU, FA_DEVICE_CUDA);
    p->device_type = q->device.device_type;
    p->device_id = q->device.device_id;
    FA_TRY(fa_rows_init(&p->q, "q", q, q, varlen_q ? 3 : 4, varlen_q ? packed : dense, with_data));
    FA_TRY(fa_rows_init(&p->k, "k", k, q, varlen_k ? 3 : 4, varlen_k ? packed : is_paged ? paged : dense, with_data));
    FA_TRY(fa_rows_init(&p->v, "v", v, q, varlen_k ? 3 : 4, varlen_k ? packed : is_paged ? paged : dense, with_data));
    if (p->k.type != p->q.type)
        return fa_fail(FA_UNSUPPORTED, "k.dtype = %s: must be q's, %s", fa_dtype_text(k->dtype).s,
                       fa_dtype_text(q->dtype).s);
    if (p->v.type != p->q.type)
        return fa_fail(FA_UNSUPPORTED, "v.dtype = %s: must be q's, %s", fa_dtype_text(v->dtype).s,
                       fa_dtype_text(q->dtype).s);

    p->heads = q->shape[q->ndim - 2];
    p->heads_kv = k->shape[k->ndim - 2];
    FA_TRY(check_head_dim("q", q, "head_dim"));
    p->head_dim = q->shape[q->ndim - 1];
    FA_TRY(fa_tensor_check_extent("k", k, k->ndim - 1, p->head_dim, "q's head_dim"));
    FA_TRY(check_head_dim("v", v, "head_dim_v"));
    p->head_dim_v = v->shape[v->ndim - 1];
    FA_TRY(fa_tensor_check_extent("v", v, v->ndim - 2, p->heads_kv, "k's heads_kv"));
    if (p->heads_kv == 0 ? p->heads != 0 : p->heads % p->heads_kv != 0)
        return fa_fail(FA_INVALID_ARGUMENT,
                       "q has %" PRId64 " heads: must be a multiple of the %" PRId64 " heads of k and v", p->heads,
                       p->heads_kv);
    p->group = p->heads_kv == 0 ? 0 : p->heads / p->heads_kv;
    FA_TRY(fa_tensor_check_extent("v", v, 0, k->shape[0],
                                  varlen_k   ? "k's total_k"
                                  : is_paged ? "k's pages"
                                             : "k's batch"));
    if (!varlen_k) FA_TRY(fa_tensor_check_extent("v", v, 1, k->shape[1], is_paged ? "k's page_size" : "k's seqlen_k"));

    /* The batch size: of dense q, else of cu_seqlens_q; k's side must agree. */
    if (!varlen_q) {
        p->batch = q->shape[0];
    } else {
        FA_TRY(fa_tensor_check("cu_seqlens_q", o->cu_seqlens_q, true));
        if (o->cu_seqlens_q->ndim != 1 || o->cu_seqlens_q->shape[0] < 1)
            return fa_fail(FA_INVALID_ARGUMENT,
                           "cu_seqlens_q has %" PRId32 " dimensions and %" PRId64 " entries: must be [batch + 1]",
                           o->cu_seqlens_q->ndim, o->cu_seqlens_q->shape[0]);
        p->batch = o->cu_seqlens_q->shape[0] - 1;
    }
    p->rows_q = q->shape[q->ndim - 3];
    if (is_paged) {
        p->page_size = k->shape[1];
        if (p->page_size < 1) return fa_fail(FA_INVALID_ARGUMENT, "k.shape[1] = 0: page_size must be at least 1");
        FA_TRY(table_init(&p->block_table, "block_table", o->block_table, q, FA_DTYPE_INT, "int32"));
        FA_TRY(fa_tensor_check_ndim("block_table", o->block_table, 2, "[batch, max_pages]"));
        FA_TRY(fa_tensor_check_extent("block_table", o->block_table, 0, p->batch, "the batch size"));
        if (o->block_table->shape[1] > FA_MAX_EXTENT / p->page_size)
            return fa_fail(FA_INVALID_ARGUMENT, "block_table.shape[1] = %" PRId64 ": more than 2^48 keys",
                           o->block_table->shape[1]);
        p->rows_k = o->block_table->shape[1] * p->page_size;
    } else {
        p->rows_k = k->shape[k->ndim - 3];
        if (!varlen_k)
            FA_TRY(
                fa_tensor_check_extent("k", k, 0, p->batch, varlen_q ? "the batch size of cu_seqlens_q" : "q's batch"));
    }
    return FA_OK;
}

static fa_status results_init(fa_problem *p, const fa_tensor *q, const fa_options *o, const fa_tensor *out,
                              const fa_tensor *lse, bool with_data) {
    bool varlen_q = o->cu_seqlens_q != NULL;
    bool reference = o->kernel == FA_KERNEL_REFERENCE;
    FA_TRY(fa_rows_init(&p->out, "out", out, q, varlen_q ? 3 : 4,
                        varlen_q ? "[total_q, heads, head_dim_v]" : "[batch, seqlen_q, heads, head_dim_v]", with_data));
    for (int32_t i = 0; i < q->ndim - 1; i++) FA_TRY(fa_tensor_check_extent("out", out, i, q->shape[i], "as in q"));
    FA_TRY(fa_tensor_check_extent("out", out, out->ndim - 1, p->head_dim_v, "v's head_dim_v"));
    if (p->out.type != p->q.type && p->out.type != FA_ELEMENT_FLOAT32 &&
        !(reference && p->out.type == FA_ELEMENT_FLOAT64))
        return fa_fail(FA_UNSUPPORTED, "out.dtype = %s: must be q's, %s, or float32", fa_dtype_text(out->dtype).s,
                       fa_dtype_text(q->dtype).s);
    if (lse != NULL) {
        FA_TRY(fa_tensor_check("lse", lse, with_data));
        FA_TRY(fa_tensor_check_device("lse", lse, q));
        FA_TRY(fa_tensor_check_ndim("lse", lse, varlen_q ? 2 : 3,
                                    varlen_q ? "[heads, total_q]" : "[batch, heads, seqlen_q]"));
        if (!varlen_q) FA_TRY(fa_tensor_check_extent("lse", lse, 0, p->batch, "the batch size"));
        FA_TRY(fa_tensor_check_extent("lse", lse, lse->ndim - 2, p->heads, "q's heads"));
        FA_TRY(fa_tensor_check_extent("lse", lse, lse->ndim - 1, p->rows_q, varlen_q ? "total_q" : "seqlen_q"));
        if (!fa_tensor_element(lse->dtype, &p->lse.type) ||
            !(p->lse.type == FA_ELEMENT_FLOAT32 || (reference && p->lse.type == FA_ELEMENT_FLOAT64)))
            return fa_fail(FA_UNSUPPORTED, "lse.dtype = %s: must be float32", fa_dtype_text(lse->dtype).s);
        int64_t element = fa_element_size(p->lse.type);
        p->lse.data = fa_tensor_data(lse);
        p->lse.batch_stride = varlen_q ? 0 : element * fa_tensor_stride(lse, 0);
        p->lse.head_stride = element * fa_tensor_stride(lse, lse->ndim - 2);
        p->lse.row_stride = element * fa_tensor_stride(lse, lse->ndim - 1);
    }
    return FA_OK;
}

/* ---- lengths ---- */

static fa_status check_cu_seqlens(const char *name, const fa_table *cu, int64_t batch, int64_t total,
                                  const char *total_name) {
    int32_t previous = fa_table_int(cu, 0, 0);
    if (previous != 0) return fa_fail(FA_INVALID_ARGUMENT, "%s[0] = %" PRId32 ": must be 0", name, previous);
    for (int64_t i = 1; i <= batch; i++) {
        int32_t next = fa_table_int(cu, i, 0);
        if (next < previous)
            return fa_fail(FA_INVALID_ARGUMENT,
                           "%s[%" PRId64 "] = %" PRId32 ": must not be below %s[%" PRId64 "] = %" PRId32, name, i, next,
                           name, i - 1, previous);
        previous = next;
    }
    if (previous > total)
        return fa_fail(FA_INVALID_ARGUMENT, "%s[%" PRId64 "] = %" PRId32 ": must not exceed %s, %" PRId64, name, batch,
                       previous, total_name, total);
    return FA_OK;
}

static fa_status check_used(const char *name, const fa_table *used, int64_t n, int64_t length, const char *limit) {
    if (used->data == NULL) return FA_OK;
    int32_t value = fa_table_int(used, n, 0);
    if (value >= 0 && value <= length) return FA_OK;
    return fa_fail(FA_INVALID_ARGUMENT, "%s[%" PRId64 "] = %" PRId32 ": must be 0 .. %s, %" PRId64, name, n, value,
                   limit, length);
}

static int64_t segment(const fa_table *cu, int64_t n, int64_t dense) {
    return cu->data == NULL ? dense : fa_table_int(cu, n + 1, 0) - fa_table_int(cu, n, 0);
}

static fa_status check_pages(const fa_problem *p, int64_t n, int64_t key_begin, int64_t key_end, int64_t pages) {
    for (int64_t i = key_begin / p->page_size; i * p->page_size < key_end; i++) {
        int32_t page = fa_table_int(&p->block_table, n, i);
        if (page < 0 || page >= pages)
            return fa_fail(FA_INVALID_ARGUMENT,
                           "block_table[%" PRId64 "][%" PRId64 "] = %" PRId32 ": must be 0 .. %" PRId64
                           ", k has %" PRId64 " pages",
                           n, i, page, pages - 1, pages);
    }
    return FA_OK;
}

static fa_status lengths_init(fa_problem *p, const fa_tensor *q, const fa_tensor *k, const fa_options *o) {
    FA_TRY(int_vector(&p->cu_seqlens_q, "cu_seqlens_q", o->cu_seqlens_q, q, p->batch + 1, "[batch + 1]"));
    FA_TRY(int_vector(&p->cu_seqlens_k, "cu_seqlens_k", o->cu_seqlens_k, q, p->batch + 1, "[batch + 1]"));
    FA_TRY(int_vector(&p->seqused_q, "seqused_q", o->seqused_q, q, p->batch, "[batch]"));
    FA_TRY(int_vector(&p->seqused_k, "seqused_k", o->seqused_k, q, p->batch, "[batch]"));
    FA_TRY(int_vector(&p->leftpad_k, "leftpad_k", o->leftpad_k, q, p->batch, "[batch]"));
    if (o->max_seqlen_q < 0)
        return fa_fail(FA_INVALID_ARGUMENT, "max_seqlen_q = %" PRId64 ": must be 0 (not stated) or positive",
                       o->max_seqlen_q);
    if (o->max_seqlen_k < 0)
        return fa_fail(FA_INVALID_ARGUMENT, "max_seqlen_k = %" PRId64 ": must be 0 (not stated) or positive",
                       o->max_seqlen_k);
    if (p->device_type != FA_DEVICE_CPU) { /* the lengths lie on the device: only the kernel reads them */
        p->max_seqlen_q = o->max_seqlen_q != 0 ? o->max_seqlen_q : p->rows_q;
        p->max_seqlen_k = o->max_seqlen_k != 0 ? o->max_seqlen_k : p->rows_k;
        return FA_OK;
    }
    if (p->cu_seqlens_q.data != NULL)
        FA_TRY(check_cu_seqlens("cu_seqlens_q", &p->cu_seqlens_q, p->batch, p->rows_q, "total_q"));
    if (p->cu_seqlens_k.data != NULL)
        FA_TRY(check_cu_seqlens("cu_seqlens_k", &p->cu_seqlens_k, p->batch, p->rows_k, "total_k"));
    for (int64_t n = 0; n < p->batch; n++) {
        int64_t rows_q = segment(&p->cu_seqlens_q, n, p->rows_q), rows_k = segment(&p->cu_seqlens_k, n, p->rows_k);
        FA_TRY(check_used("seqused_q", &p->seqused_q, n, rows_q, "the sequence's length"));
        FA_TRY(check_used("seqused_k", &p->seqused_k, n, rows_k,
                          p->page_size > 0 ? "max_pages * page_size" : "the sequence's length"));
        int64_t used_k = p->seqused_k.data == NULL ? rows_k : fa_table_int(&p->seqused_k, n, 0);
        FA_TRY(check_used("leftpad_k", &p->leftpad_k, n, used_k, "the used length"));
        fa_sequence s = fa_problem_sequence(p, n);
        if (p->page_size > 0) FA_TRY(check_pages(p, n, s.visibility.key_begin, s.visibility.key_end, k->shape[0]));
        if (s.visibility.seqlen_q > p->max_seqlen_q) p->max_seqlen_q = s.visibility.seqlen_q;
        if (s.visibility.key_end > p->max_seqlen_k) p->max_seqlen_k = s.visibility.key_end;
    }
    if (o->max_seqlen_q != 0 && p->max_seqlen_q > o->max_seqlen_q)
        return fa_fail(FA_INVALID_ARGUMENT, "max_seqlen_q = %" PRId64 ": the longest sequence has %" PRId64 " queries",
                       o->max_seqlen_q, p->max_seqlen_q);
    if (o->max_seqlen_k != 0 && p->max_seqlen_k > o->max_seqlen_k)
        return fa_fail(FA_INVALID_ARGUMENT, "max_seqlen_k = %" PRId64 ": the longest sequence has %" PRId64 " keys",
                       o->max_seqlen_k, p->max_seqlen_k);
    return FA_OK;
}

fa_key_segment fa_problem_key_segment(const fa_problem *p, int64_t n) {
    fa_key_segment s = {0, p->rows_k};
    if (p->cu_seqlens_k.data == NULL) return s;
    s.begin = fa_table_int(&p->cu_seqlens_k, n, 0);
    s.rows = n == p->batch ? p->rows_k - s.begin : segment(&p->cu_seqlens_k, n, 0);
    return s;
}

fa_sequence fa_problem_sequence(const fa_problem *p, int64_t n) {
    fa_sequence s;
    s.batch = n;
    if (n == p->batch) { /* the rows behind the last sequence */
        s.q_begin = fa_table_int(&p->cu_seqlens_q, n, 0);
        s.q_rows = p->rows_q - s.q_begin;
        s.k_begin = 0;
        s.visibility = fa_visibility_make(0, 0, 0, 0, 0, 0, 0);
        return s;
    }
    s.q_begin = p->cu_seqlens_q.data == NULL ? 0 : fa_table_int(&p->cu_seqlens_q, n, 0);
    s.q_rows = segment(&p->cu_seqlens_q, n, p->rows_q);
    s.k_begin = p->cu_seqlens_k.data == NULL ? 0 : fa_table_int(&p->cu_seqlens_k, n, 0);
    int64_t seqlen_q = p->seqused_q.data == NULL ? s.q_rows : fa_table_int(&p->seqused_q, n, 0);
    int64_t key_begin = p->leftpad_k.data == NULL ? 0 : fa_table_int(&p->leftpad_k, n, 0);
    int64_t key_end =
        p->seqused_k.data == NULL ? segment(&p->cu_seqlens_k, n, p->rows_k) : fa_table_int(&p->seqused_k, n, 0);
    s.visibility = fa_visibility_make(seqlen_q, key_begin, key_end, p->causal != FA_CAUSAL_NONE,
                                      p->causal == FA_CAUSAL_TOP_LEFT, p->window_left, p->window_right);
    return s;
}

/* ---- the other options ---- */

static fa_status check_window_bound(const char *name, int64_t bound) {
    if (bound >= FA_WINDOW_OPEN) return FA_OK;
    return fa_fail(FA_INVALID_ARGUMENT, "%s = %" PRId64 ": must be >= 0, or FA_WINDOW_OPEN (-1)", name, bound);
}

static fa_status score_options_init(fa_problem *p, const fa_options *o) {
    if ((o->set & ~(FA_SET_SOFTMAX_SCALE | FA_SET_WINDOW)) != 0)
        return fa_fail(FA_INVALID_ARGUMENT, "options.set = 0x%" PRIx32 ": holds bits that this version does not know",
                       o->set);
    if ((o->set & FA_SET_SOFTMAX_SCALE) == 0 && o->softmax_scale != 0.0f)
        return fa_fail(FA_INVALID_ARGUMENT, "softmax_scale = %g: is read only with FA_SET_SOFTMAX_SCALE in options.set",
                       (double)o->softmax_scale);
    if (!isfinite(o->softmax_scale))
        return fa_fail(FA_INVALID_ARGUMENT, "softmax_scale = %g: must be finite", (double)o->softmax_scale);
    p->softmax_scale = o->softmax_scale;
    if ((o->set & FA_SET_SOFTMAX_SCALE) == 0) p->softmax_scale = (float)(1.0 / sqrt((double)p->head_dim));
    if (!(o->softcap >= 0.0f) || !isfinite(o->softcap))
        return fa_fail(FA_INVALID_ARGUMENT, "softcap = %g: must be 0 (none) or positive and finite",
                       (double)o->softcap);
    p->softcap = o->softcap;
    if (o->causal != FA_CAUSAL_NONE && o->causal != FA_CAUSAL_BOTTOM_RIGHT && o->causal != FA_CAUSAL_TOP_LEFT)
        return fa_fail(FA_INVALID_ARGUMENT,
                       "causal = %d: must be FA_CAUSAL_NONE, FA_CAUSAL_BOTTOM_RIGHT or FA_CAUSAL_TOP_LEFT",
                       (int)o->causal);
    p->causal = o->causal;
    if ((o->set & FA_SET_WINDOW) == 0 && (o->window_left != 0 || o->window_right != 0))
        return fa_fail(FA_INVALID_ARGUMENT,
                       "window_left = %" PRId64 ", window_right = %" PRId64
                       ": are read only with FA_SET_WINDOW in options.set",
                       o->window_left, o->window_right);
    p->window_left = p->window_right = FA_WINDOW_OPEN;
    if ((o->set & FA_SET_WINDOW) != 0) {
        FA_TRY(check_window_bound("window_left", o->window_left));
        FA_TRY(check_window_bound("window_right", o->window_right));
        p->window_left = o->window_left;
        p->window_right = o->window_right;
    }
    return FA_OK;
}

static fa_status score_tensors_init(fa_problem *p, const fa_tensor *q, const fa_options *o) {
    if (o->alibi_slopes != NULL) {
        const fa_tensor *t = o->alibi_slopes;
        FA_TRY(table_init(&p->alibi_slopes, "alibi_slopes", t, q, FA_DTYPE_FLOAT, "float32"));
        if (t->ndim != 2) FA_TRY(fa_tensor_check_ndim("alibi_slopes", t, 1, "[heads], or 2, [batch, heads]"));
        if (t->ndim == 2) FA_TRY(fa_tensor_check_extent("alibi_slopes", t, 0, p->batch, "the batch size"));
        FA_TRY(fa_tensor_check_extent("alibi_slopes", t, t->ndim - 1, p->heads, "q's heads"));
        if (t->ndim == 1) { /* the same for every sequence */
            p->alibi_slopes.stride[1] = p->alibi_slopes.stride[0];
            p->alibi_slopes.stride[0] = 0;
        }
    }
    if (o->sink != NULL) {
        FA_TRY(table_init(&p->sink, "sink", o->sink, q, FA_DTYPE_FLOAT, "float32"));
        FA_TRY(fa_tensor_check_ndim("sink", o->sink, 1, "[heads]"));
        FA_TRY(fa_tensor_check_extent("sink", o->sink, 0, p->heads, "q's heads"));
    }
    FA_TRY(score_tensor_init(&p->bias, "bias", o->bias, q, p));
    if (o->bias != NULL && (!fa_tensor_element(o->bias->dtype, &p->bias.type) || p->bias.type == FA_ELEMENT_FLOAT64))
        return fa_fail(FA_UNSUPPORTED, "bias.dtype = %s: must be float32, float16 or bfloat16",
                       fa_dtype_text(o->bias->dtype).s);
    FA_TRY(score_tensor_init(&p->mask, "mask", o->mask, q, p));
    if (o->mask != NULL && !fa_dtype_is(o->mask->dtype, FA_DTYPE_BOOL, 8) &&
        !fa_dtype_is(o->mask->dtype, FA_DTYPE_UINT, 8))
        return fa_fail(FA_UNSUPPORTED, "mask.dtype = %s: must be bool or uint8", fa_dtype_text(o->mask->dtype).s);
    return FA_OK;
}

static fa_status execution_options_init(fa_problem *p, const fa_options *o) {
    if ((int)o->kernel < 0 || o->kernel > FA_KERNEL_V4)
        return fa_fail(FA_INVALID_ARGUMENT, "kernel = %d: is not a value of fa_kernel", (int)o->kernel);
    if ((int)o->isa < 0 || o->isa > FA_ISA_NEON_BF16)
        return fa_fail(FA_INVALID_ARGUMENT, "isa = %d: is not a value of fa_isa", (int)o->isa);
    if (o->num_threads < 0 || o->num_threads > FA_MAX_THREADS)
        return fa_fail(FA_INVALID_ARGUMENT, "num_threads = %" PRId32 ": must be 0 (automatic) .. %d", o->num_threads,
                       FA_MAX_THREADS);
    if (o->num_splits < 0 || o->num_splits > MAX_SPLITS)
        return fa_fail(FA_INVALID_ARGUMENT, "num_splits = %" PRId32 ": must be 0 (automatic) .. %d", o->num_splits,
                       MAX_SPLITS);
    if (o->deterministic != 0 && o->deterministic != 1)
        return fa_fail(FA_INVALID_ARGUMENT, "deterministic = %" PRId32 ": must be 0 or 1", o->deterministic);
    if (o->reserved != 0) return fa_fail(FA_INVALID_ARGUMENT, "options.reserved = %" PRId32 ": must be 0", o->reserved);
    if (p->device_type == FA_DEVICE_CPU && o->stream != NULL)
        return fa_fail(FA_INVALID_ARGUMENT, "stream = %p: must be NULL for tensors on the CPU", o->stream);
    bool float64 = p->q.type == FA_ELEMENT_FLOAT64;
    if (float64 && o->kernel != FA_KERNEL_REFERENCE && o->kernel != FA_KERNEL_STANDARD)
        return fa_fail(FA_UNSUPPORTED, "q.dtype = float64: must be float32, float16 or bfloat16 (the "
                                       "reference and standard kernels take float64)");
    p->kernel = o->kernel;
    p->isa = o->isa;
    p->num_threads = fa_process_is_fork() ? 1 : o->num_threads;
    p->num_splits = o->num_splits;
    p->stream = o->stream;
    return FA_OK;
}

void fa_option_inputs(const fa_options *o, fa_named_tensor inputs[FA_OPTION_INPUTS]) {
    const fa_named_tensor all[FA_OPTION_INPUTS] = {
        {"bias", o->bias},
        {"mask", o->mask},
        {"sink", o->sink},
        {"alibi_slopes", o->alibi_slopes},
        {"cu_seqlens_q", o->cu_seqlens_q},
        {"cu_seqlens_k", o->cu_seqlens_k},
        {"seqused_q", o->seqused_q},
        {"seqused_k", o->seqused_k},
        {"leftpad_k", o->leftpad_k},
        {"block_table", o->block_table},
    };
    memcpy(inputs, all, sizeof all);
}

/* Comes last: only now every tensor is known to be well formed. */
static fa_status check_outputs(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *o,
                               const fa_tensor *out, const fa_tensor *lse) {
    fa_named_tensor inputs[3 + FA_OPTION_INPUTS] = {{"q", q}, {"k", k}, {"v", v}};
    fa_option_inputs(o, inputs + 3);
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        FA_TRY(fa_tensor_check_apart("out", out, inputs[i].name, inputs[i].tensor));
        if (lse != NULL) FA_TRY(fa_tensor_check_apart("lse", lse, inputs[i].name, inputs[i].tensor));
    }
    return lse == NULL ? FA_OK : fa_tensor_check_apart("lse", lse, "out", out);
}

/* What fa_backward alone writes. */
static fa_status refuse_gradients(const fa_options *o) {
    const fa_named_tensor gradients[] = {{"dbias", o->dbias}, {"dsink", o->dsink}, {"dalibi_slopes", o->dalibi_slopes}};
    for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++)
        if (gradients[i].tensor != NULL)
            return fa_fail(FA_INVALID_ARGUMENT, "%s is given: only fa_backward writes it, so it must be NULL here",
                           gradients[i].name);
    return FA_OK;
}

/* The caller's struct may be older (shorter) or newer (longer) than ours; what we do not know must be zero.
 */
fa_status fa_options_read(fa_options *o, const fa_options *options) {
    memset(o, 0, sizeof *o);
    if (options == NULL) return FA_OK;
    if (options->size < sizeof options->size)
        return fa_fail(FA_INVALID_ARGUMENT, "options.size = %zu: must be sizeof(fa_options)", options->size);
    for (size_t i = sizeof *o; i < options->size; i++)
        if (((const char *)options)[i] != 0)
            return fa_fail(FA_INVALID_ARGUMENT, "options.size = %zu: sets a field that this version (%s) does not know",
                           options->size, fa_version_text());
    memcpy(o, options, options->size < sizeof *o ? options->size : sizeof *o);
    return FA_OK;
}

static fa_status problem_init(fa_problem *p, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                              const fa_options *o, const fa_tensor *out, const fa_tensor *lse, bool backward,
                              bool with_data) {
    memset(p, 0, sizeof *p);
    FA_TRY(inputs_init(p, q, k, v, o, with_data));
    FA_TRY(results_init(p, q, o, out, lse, with_data));
    if (!backward) {
        FA_TRY(fa_tensor_check_output("out", out));
        if (lse != NULL) FA_TRY(fa_tensor_check_output("lse", lse));
        FA_TRY(refuse_gradients(o));
    }
    FA_TRY(score_options_init(p, o));
    FA_TRY(execution_options_init(p, o));
    FA_TRY(lengths_init(p, q, k, o));
    return score_tensors_init(p, q, o);
}

fa_status fa_problem_init(fa_problem *p, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                          const fa_options *options, const fa_tensor *out, const fa_tensor *lse, bool with_data) {
    fa_options o;
    FA_TRY(fa_options_read(&o, options));
    FA_TRY(problem_init(p, q, k, v, &o, out, lse, false, with_data));
    return check_outputs(q, k, v, &o, out, lse);
}

fa_status fa_problem_init_backward(fa_problem *p, const fa_tensor *q, const fa_tensor *k, const fa_tensor *v,
                                   const fa_options *o, const fa_tensor *out, const fa_tensor *lse, bool with_data) {
    if (o->block_table != NULL)
        return fa_fail(FA_UNSUPPORTED, "block_table is given: fa_backward does not take paged k and v");
    if (lse == NULL) return fa_fail(FA_INVALID_ARGUMENT, "lse = NULL: must be what fa_forward wrote");
    return problem_init(p, q, k, v, o, out, lse, true, with_data);
}
