/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the rows of a call lie and which pairs see each other, pair by pair and in the words of flashattn.h:
 * an opinion independent of the library's mask.h and problem.h, which are under test.
 */
#include "attention_case.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>

call_sequence call_sequence_of(const attention_call *a, int64_t n) {
    call_sequence s = {.q_first = 0, .q_rows = a->c.seqlen_q, .pad = 0, .keys = a->c.seqlen_k};
    if (a->cu_q != NULL) {
        s.q_first = tensor_get_int(a->cu_q, n);
        s.q_rows = tensor_get_int(a->cu_q, n + 1) - s.q_first;
    }
    if (a->cu_k != NULL) s.keys = tensor_get_int(a->cu_k, n + 1) - tensor_get_int(a->cu_k, n);
    s.q_used = a->seqused_q != NULL ? tensor_get_int(a->seqused_q, n) : s.q_rows;
    if (a->seqused_k != NULL) s.keys = tensor_get_int(a->seqused_k, n);
    if (a->leftpad_k != NULL) s.pad = tensor_get_int(a->leftpad_k, n);
    return s;
}

int64_t call_q_number(const attention_call *a, const tensor *t, int64_t n, int64_t head, int64_t row) {
    int64_t physical = a->cu_q != NULL ? tensor_get_int(a->cu_q, n) + row : n * a->c.seqlen_q + row;
    return (physical * a->c.heads + head) * t->shape[t->fa.ndim - 1];
}

int64_t call_k_number(const attention_call *a, const tensor *t, int64_t n, int64_t head_kv, int64_t key) {
    int64_t physical = n * a->c.seqlen_k + key, size = a->c.page_size;
    if (a->cu_k != NULL) physical = tensor_get_int(a->cu_k, n) + key;
    if (size > 0)
        physical = tensor_get_int(a->block_table, n * a->block_table->shape[1] + key / size) * size + key % size;
    return (physical * a->c.heads_kv + head_kv) * t->shape[t->fa.ndim - 1];
}

int64_t call_lse_number(const attention_call *a, const tensor *lse, int64_t n, int64_t head, int64_t row) {
    int64_t length = lse->shape[lse->fa.ndim - 1];
    if (a->cu_q != NULL) return head * length + tensor_get_int(a->cu_q, n) + row;
    return (n * a->c.heads + head) * length + row;
}

int64_t call_score_number(const tensor *t, int64_t n, int64_t head, int64_t row, int64_t key) {
    int64_t index[4] = {n, head, row, key}, number = 0;
    for (int i = 0; i < 4; i++) number = number * t->shape[i] + (t->shape[i] == 1 ? 0 : index[i]);
    return number;
}

bool call_position_visible(const attention_call *a, const call_sequence *s, int64_t row, int64_t key) {
    const attention_case *c = &a->c;
    if (row >= s->q_used || key < s->pad || key >= s->keys) return false;
    int64_t j = key - s->pad, seqlen_k = s->keys - s->pad; /* as if the padding were not there */
    int64_t bottom_right = row + seqlen_k - s->q_used;
    if (c->causal == FA_CAUSAL_BOTTOM_RIGHT && j > bottom_right) return false;
    if (c->causal == FA_CAUSAL_TOP_LEFT && j > row) return false;
    if (!c->window) return true;
    int64_t p = c->causal == FA_CAUSAL_TOP_LEFT ? row : bottom_right;
    if (c->window_left != FA_WINDOW_OPEN && j < p && p - j > c->window_left) return false;
    if (c->window_right != FA_WINDOW_OPEN && j > p && j - p > c->window_right) return false;
    return true;
}

bool call_visible(const attention_call *a, const call_sequence *s, int64_t n, int64_t head, int64_t row, int64_t key) {
    if (!call_position_visible(a, s, row, key)) return false;
    if (a->mask != NULL && tensor_get_int(a->mask, call_score_number(a->mask, n, head, row, key)) == 0) return false;
    return a->bias == NULL || tensor_get(a->bias, call_score_number(a->bias, n, head, row, key)) != -(double)INFINITY;
}

/* ---- Poison in what must not be read ---- */

static unsigned char *marks_for(const tensor *t, int64_t row_length) {
    unsigned char *marks = calloc((size_t)(tensor_count(t) / row_length) + 1, 1);
    assert_non_null(marks);
    return marks;
}

/* Rows of t (row_length elements each) without a mark become NaN. */
static void poison_unmarked(tensor *t, int64_t row_length, const unsigned char *marks) {
    if (t->broadcast) return; /* an unmarked row may share storage with a marked one */
    int64_t rows = tensor_count(t) / row_length;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < row_length && !marks[r]; i++) tensor_put(t, r * row_length + i, (double)NAN);
}

static void poison_block_table(attention_call *a) {
    if (a->block_table == NULL) return;
    for (int64_t n = 0; n < a->c.batch; n++) {
        call_sequence s = call_sequence_of(a, n);
        for (int64_t i = 0; i < a->block_table->shape[1]; i++)
            if (i * a->c.page_size >= s.keys || (i + 1) * a->c.page_size <= s.pad)
                tensor_put_int(a->block_table, n * a->block_table->shape[1] + i, -1 - i);
    }
}

void call_poison_hidden(attention_call *a) {
    if (a->c.no_poison) return;
    const attention_case *c = &a->c;
    unsigned char *q_seen = marks_for(a->q, c->head_dim), *k_seen = marks_for(a->k, c->head_dim);
    unsigned char *bias_seen = a->bias == NULL ? NULL : marks_for(a->bias, 1);
    int64_t group = c->heads_kv == 0 ? 0 : c->heads / c->heads_kv;
    for (int64_t n = 0; n < c->batch; n++) {
        call_sequence s = call_sequence_of(a, n);
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t i = 0; i < s.q_used; i++)
                for (int64_t j = s.pad; j < s.keys; j++) {
                    bool visible = call_visible(a, &s, n, h, i, j);
                    if (bias_seen != NULL) {
                        int64_t number = call_score_number(a->bias, n, h, i, j);
                        /* -inf is what hides, so it stays. */
                        if (visible || tensor_get(a->bias, number) == -(double)INFINITY) bias_seen[number] = 1;
                    }
                    if (!visible) continue;
                    q_seen[call_q_number(a, a->q, n, h, i) / c->head_dim] = 1;
                    k_seen[call_k_number(a, a->k, n, h / group, j) / c->head_dim] = 1;
                }
    }
    poison_unmarked(a->q, c->head_dim, q_seen);
    poison_unmarked(a->k, c->head_dim, k_seen);
    poison_unmarked(a->v, c->head_dim_v, k_seen);
    if (bias_seen != NULL) poison_unmarked(a->bias, 1, bias_seen);
    poison_block_table(a);
    free(q_seen);
    free(k_seen);
    free(bias_seen);
}
