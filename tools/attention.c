/* SPDX-License-Identifier: Apache-2.0 */
/* From settings to tensors and fa_options: see attention.h. */
#include "attention.h"

#include "message.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Options ---- */

static int set_scores(attention *a, const score_settings *s) {
    fa_options *o = &a->options;
    o->size = sizeof *o;
    if (s->causal && s->causal_top_left)
        return fail_usage("--causal and --causal-top-left are two alignments of the same mask; give one");
    if (s->causal) o->causal = FA_CAUSAL_BOTTOM_RIGHT;
    if (s->causal_top_left) o->causal = FA_CAUSAL_TOP_LEFT;
    if (s->window_left.given || s->window_right.given) {
        o->set |= FA_SET_WINDOW;
        o->window_left = s->window_left.given ? s->window_left.value : FA_WINDOW_OPEN;
        o->window_right = s->window_right.given ? s->window_right.value : FA_WINDOW_OPEN;
    }
    if (s->softmax_scale.given) {
        o->set |= FA_SET_SOFTMAX_SCALE;
        o->softmax_scale = (float)s->softmax_scale.value;
    }
    if (s->softcap.given) o->softcap = (float)s->softcap.value;
    return EXIT_CODE_OK;
}

/* ---- Option tensors ---- */

/* NumPy's integers are int64 unless told otherwise; the library takes int32. */
static int narrow_integers(tensor *t, const char *role) {
    static const fa_dtype int32_dtype = FA_INT32;
    if (t->t.dtype.code != FA_DTYPE_INT || t->t.dtype.bits != 64) return EXIT_CODE_OK;
    if (t->t.ndim > 2) return EXIT_CODE_OK; /* the library refuses it with a reason */
    tensor narrow;
    if (!tensor_allocate(&narrow, int32_dtype, t->t.ndim, t->shape)) return fail_memory(role);
    int64_t columns = t->t.ndim > 1 ? t->shape[1] : 1, rows = t->t.ndim > 0 ? t->shape[0] : 1;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int64_t index[2] = {i, j}, x;
            memcpy(&x, tensor_address(&t->t, index), sizeof x);
            int32_t y = (int32_t)x;
            if (y != x) {
                tensor_free(&narrow);
                return fail_file("%s: holds %" PRId64 "; lengths and pages must fit 32 bits", role, x);
            }
            memcpy(tensor_address(&narrow.t, index), &y, sizeof y);
        }
    }
    tensor_view(t, &narrow.t);
    t->memory = narrow.memory;
    return EXIT_CODE_OK;
}

static int set_tensor(attention *a, const char *role, const char *reference, tensor *t, const fa_tensor **field) {
    if (reference == NULL) return EXIT_CODE_OK;
    int code = inputs_find(&a->files, role, reference, t);
    if (code != EXIT_CODE_OK) return code;
    *field = &t->t;
    return narrow_integers(t, role);
}

static int set_tensors(attention *a, const tensor_settings *s) {
    fa_options *o = &a->options;
    const struct {
        const char *role, *reference;
        tensor *t;
        const fa_tensor **field;
        bool scores; /* [seqlen_q, seqlen_k] with optional leading dimensions */
    } tensors[] = {
        {"--alibi-slopes", s->alibi_slopes, &a->alibi_slopes, &o->alibi_slopes, false},
        {"--sink", s->sink, &a->sink, &o->sink, false},
        {"--bias", s->bias, &a->bias, &o->bias, true},
        {"--mask", s->mask, &a->mask, &o->mask, true},
        {"--cu-seqlens-q", s->cu_seqlens_q, &a->cu_seqlens_q, &o->cu_seqlens_q, false},
        {"--cu-seqlens-k", s->cu_seqlens_k, &a->cu_seqlens_k, &o->cu_seqlens_k, false},
        {"--seqused-q", s->seqused_q, &a->seqused_q, &o->seqused_q, false},
        {"--seqused-k", s->seqused_k, &a->seqused_k, &o->seqused_k, false},
        {"--leftpad-k", s->leftpad_k, &a->leftpad_k, &o->leftpad_k, false},
        {"--block-table", s->block_table, &a->block_table, &o->block_table, false},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        int code = set_tensor(a, tensors[i].role, tensors[i].reference, tensors[i].t, tensors[i].field);
        if (code != EXIT_CODE_OK) return code;
        if (tensors[i].scores && tensors[i].reference != NULL && tensors[i].t->t.ndim >= 2)
            while (tensors[i].t->t.ndim < 4) tensor_insert(tensors[i].t, 0);
    }
    return EXIT_CODE_OK;
}

int attention_set_options(attention *a, const score_settings *scores, const tensor_settings *tensors,
                          const char *home) {
    a->files.home = home;
    int code = set_scores(a, scores);
    return code == EXIT_CODE_OK ? set_tensors(a, tensors) : code;
}

/* ---- q, k and v ---- */

/*
 * Dense: adds the batch and head dimensions that the file leaves out. variable_length: rows are [total, heads,
 * head_dim], only the head dimension may be missing.
 */
static int complete_dimensions(tensor *t, const char *role, const char *reference, bool variable_length,
                               bool heads_first) {
    int32_t ndim = t->t.ndim, most = variable_length ? 3 : 4;
    if (ndim < 2 || ndim > most) {
        char shape[128];
        shape_text(&t->t, shape, sizeof shape);
        return fail_file("%s (%s): has shape %s; must have 2 .. %d dimensions", role, reference, shape, (int)most);
    }
    if (ndim == 2) tensor_insert(t, heads_first ? 0 : 1);
    if (heads_first) tensor_swap(t, t->t.ndim - 3, t->t.ndim - 2);
    if (!variable_length && t->t.ndim == 3) tensor_insert(t, 0);
    return EXIT_CODE_OK;
}

int attention_open(attention *a, const char *const *arguments, size_t count, const layout_settings *settings) {
    static const char *const roles[3] = {"q", "k", "v"};
    const char *const names[3] = {settings->q, settings->k, settings->v};
    tensor *const tensors[3] = {&a->q, &a->k, &a->v};
    if (count != 1 && count != 3)
        return fail_usage("%zu input files: must be one .safetensors file with q, k and v, or three files", count);
    if (count == 3 && (settings->q != NULL || settings->k != NULL || settings->v != NULL))
        return fail_usage("--q, --k and --v name tensors of one input file, but three are given; write FILE:NAME");
    a->heads_first = settings->layout == 1;
    bool varlen[3] = {a->options.cu_seqlens_q != NULL, a->options.cu_seqlens_k != NULL,
                      a->options.cu_seqlens_k != NULL};
    for (int i = 0; i < 3; i++) {
        char in_home[512];
        (void)snprintf(in_home, sizeof in_home, ":%s", names[i] ? names[i] : roles[i]);
        const char *reference = count == 1 ? in_home : arguments[i];
        int code = inputs_find(&a->files, roles[i], reference, tensors[i]);
        if (code != EXIT_CODE_OK) return code;
        if (i == 0) a->file_ndim = a->q.t.ndim;
        bool paged = i > 0 && a->options.block_table != NULL;
        if (paged && tensors[i]->t.ndim != 4)
            return fail_file("%s (%s): has %" PRId32 " dimensions; with --block-table it must have 4, [pages, "
                             "page_size, heads_kv, head_dim]",
                             roles[i], reference, tensors[i]->t.ndim);
        code = complete_dimensions(tensors[i], roles[i], reference, varlen[i], a->heads_first);
        if (code != EXIT_CODE_OK) return code;
    }
    return EXIT_CODE_OK;
}

/* ---- Outputs ---- */

int attention_allocate(const attention *a, fa_dtype out_dtype, fa_dtype lse_dtype, tensor *out, tensor *lse) {
    int32_t n = a->q.t.ndim; /* 3: variable length */
    int64_t out_shape[4], lse_shape[3];
    for (int32_t i = 0; i < n; i++) out_shape[i] = a->q.shape[i];
    out_shape[n - 1] = a->v.shape[a->v.t.ndim - 1];
    lse_shape[0] = a->q.shape[0];
    lse_shape[n - 3] = a->q.shape[n - 2];
    lse_shape[n - 2] = a->q.shape[n - 3];
    if (a->heads_first) {
        out_shape[n - 3] = a->q.shape[n - 2];
        out_shape[n - 2] = a->q.shape[n - 3];
    }
    memset(lse, 0, sizeof *lse);
    if (!tensor_allocate(out, out_dtype, n, out_shape)) return fail_memory("the output");
    if (a->heads_first) tensor_swap(out, n - 3, n - 2);
    if (!tensor_allocate(lse, lse_dtype, n - 1, lse_shape)) {
        tensor_free(out);
        return fail_memory("the log-sum-exp");
    }
    return EXIT_CODE_OK;
}

void attention_file_view(const attention *a, const tensor *out, const tensor *lse, tensor *out_view, tensor *lse_view) {
    tensor_view(out_view, &out->t);
    tensor_view(lse_view, &lse->t);
    if (a->file_ndim < 4 && out_view->t.ndim == 4) { /* batch */
        tensor_select(out_view, 0, 0);
        tensor_select(lse_view, 0, 0);
    }
    if (a->file_ndim == 2) { /* heads */
        tensor_select(out_view, 1, 0);
        tensor_select(lse_view, 0, 0);
    }
    if (a->file_ndim > 2 && a->heads_first) tensor_swap(out_view, out_view->t.ndim - 3, out_view->t.ndim - 2);
}

void attention_close(attention *a) {
    tensor *const tensors[] = {&a->q,
                               &a->k,
                               &a->v,
                               &a->alibi_slopes,
                               &a->sink,
                               &a->bias,
                               &a->mask,
                               &a->cu_seqlens_q,
                               &a->cu_seqlens_k,
                               &a->seqused_q,
                               &a->seqused_k,
                               &a->leftpad_k,
                               &a->block_table};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) tensor_free(tensors[i]);
    inputs_close(&a->files);
}
