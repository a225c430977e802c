/* SPDX-License-Identifier: Apache-2.0 */
/* What a call works on, in words and in numbers: see attention.h. */
#include "attention.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t size, const char *format, ...) {
    va_list arguments;
    size_t used = strlen(text);
    if (used > 0 && used + 2 < size) {
        memcpy(text + used, ", ", 3);
        used += 2;
    }
    va_start(arguments, format);
    (void)vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

void attention_describe(const attention *a, char *text, size_t size) {
    const fa_options *o = &a->options;
    text[0] = '\0';
    if (o->causal == FA_CAUSAL_BOTTOM_RIGHT) append(text, size, "causal");
    if (o->causal == FA_CAUSAL_TOP_LEFT) append(text, size, "causal (top-left)");
    if ((o->set & FA_SET_WINDOW) != 0 && o->window_left >= 0)
        append(text, size, "window %" PRId64 " left", o->window_left);
    if ((o->set & FA_SET_WINDOW) != 0 && o->window_right >= 0)
        append(text, size, "window %" PRId64 " right", o->window_right);
    if ((o->set & FA_SET_SOFTMAX_SCALE) != 0) append(text, size, "softmax_scale %g", (double)o->softmax_scale);
    if (o->softcap > 0.0f) append(text, size, "softcap %g", (double)o->softcap);
    if (o->alibi_slopes != NULL) append(text, size, "ALiBi");
    if (o->sink != NULL) append(text, size, "sink");
    if (o->bias != NULL) append(text, size, "bias");
    if (o->mask != NULL) append(text, size, "mask");
    if (o->cu_seqlens_q != NULL || o->cu_seqlens_k != NULL) append(text, size, "variable length");
    if (o->seqused_q != NULL || o->seqused_k != NULL) append(text, size, "used lengths");
    if (o->leftpad_k != NULL) append(text, size, "left padding");
    if (o->block_table != NULL) append(text, size, "paged");
    if (text[0] == '\0') append(text, size, "no mask");
}

int32_t table_entry(const tensor *t, int64_t i, int64_t j) {
    int64_t index[2] = {i, j};
    int32_t x;
    memcpy(&x, tensor_address(&t->t, index), sizeof x);
    return x;
}

int64_t attention_batch(const attention *a) {
    return a->options.cu_seqlens_q != NULL ? a->cu_seqlens_q.shape[0] - 1 : a->q.shape[0];
}

attention_sequence attention_sequence_at(const attention *a, int64_t n) {
    const fa_options *o = &a->options;
    attention_sequence s = {.q_begin = 0, .k_begin = 0};
    s.q_rows = a->q.shape[a->q.t.ndim - 3];
    s.k_rows = a->k.shape[a->k.t.ndim - 3];
    if (o->cu_seqlens_q != NULL) {
        s.q_begin = table_entry(&a->cu_seqlens_q, n, 0);
        s.q_rows = table_entry(&a->cu_seqlens_q, n + 1, 0) - s.q_begin;
    }
    if (o->cu_seqlens_k != NULL) {
        s.k_begin = table_entry(&a->cu_seqlens_k, n, 0);
        s.k_rows = table_entry(&a->cu_seqlens_k, n + 1, 0) - s.k_begin;
    }
    if (o->block_table != NULL) s.k_rows = a->block_table.shape[1] * a->k.shape[1];
    int64_t seqlen_q = o->seqused_q != NULL ? table_entry(&a->seqused_q, n, 0) : s.q_rows;
    int64_t key_end = o->seqused_k != NULL ? table_entry(&a->seqused_k, n, 0) : s.k_rows;
    int64_t key_begin = o->leftpad_k != NULL ? table_entry(&a->leftpad_k, n, 0) : 0;
    bool window = (o->set & FA_SET_WINDOW) != 0;
    s.visibility =
        fa_visibility_make(seqlen_q, key_begin, key_end, o->causal != FA_CAUSAL_NONE, o->causal == FA_CAUSAL_TOP_LEFT,
                           window ? o->window_left : FA_WINDOW_OPEN, window ? o->window_right : FA_WINDOW_OPEN);
    return s;
}

double attention_flops(const attention *a) {
    double pairs = 0;
    for (int64_t n = 0; n < attention_batch(a); n++) {
        attention_sequence s = attention_sequence_at(a, n);
        for (int64_t row = 0; row < s.visibility.seqlen_q; row++) {
            fa_key_range keys = fa_visible_keys(&s.visibility, row);
            pairs += (double)(keys.end - keys.begin);
        }
    }
    int64_t heads = a->q.shape[a->q.t.ndim - 2], dims = a->q.shape[a->q.t.ndim - 1] + a->v.shape[a->v.t.ndim - 1];
    return 2 * pairs * (double)heads * (double)dims;
}
