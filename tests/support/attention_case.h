/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a test asks of attention, and the arguments made from it.
 *
 * An attention_case says in fields everything that fa_forward can be asked for; zero means "not used". A test
 * starts from case_default(), sets what it is about, and hands it to judge_case() (judge.h), or builds the
 * attention_call itself to edit its tensors first.
 */
#ifndef FLASHATTN_TEST_ATTENTION_CASE_H
#define FLASHATTN_TEST_ATTENTION_CASE_H

#include "tensors.h"

/* How q and k (and, for the scaled normal ones, v) are filled. */
typedef enum input_kind {
    INPUT_NORMAL,
    INPUT_NORMAL_3,
    INPUT_NORMAL_30,
    INPUT_EQUAL_KEYS,   /* every key the same: ties, uniform weights */
    INPUT_DOMINANT_KEY, /* one key takes nearly all weight */
    INPUT_RISING,       /* logits rise along the keys: the running maximum moves in every tile */
    INPUT_FALLING,      /* ... and never */
    INPUT_NEGATIVE_120, /* q.k about -120 for every key, before scaling */
    INPUT_NEGATIVE_250,
    INPUT_NEGATIVE_245000,
    INPUT_NEAR_LARGEST,    /* q.k exact and near the largest finite number; implies softmax_scale = 1 */
    INPUT_NEAR_LOWEST,     /* the same, all negative */
    INPUT_OUTLIER_CHANNEL, /* one channel of q, k and v fifty times the others */
    INPUT_KINDS
} input_kind;

typedef enum value_kind {
    VALUES_NORMAL,
    VALUES_CONSTANT,     /* every key the same row: the output must be that row */
    VALUES_ONE_HOT,      /* key j is 1 in channel j % head_dim_v, else 0: the output is the weights */
    VALUES_NEAR_LARGEST, /* as large as a sum over the keys allows */
    VALUE_KINDS,
    VALUES_LARGEST /* up to the largest number, so that a sum that is divided only at the end overflows; the CPU kernel's
                      alone, so not among the kinds */
} value_kind;

/* Which dimensions of a bias or mask are full; the others have extent 1. */
typedef struct score_shape {
    bool given;
    bool batch, heads, queries, keys;
} score_shape;

typedef struct attention_case {
    const char *name;
    uint64_t index; /* tells the cases of one test apart; enters the seed */

    fa_element type; /* of q, k, v */
    bool out_float32;
    int64_t batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v;

    bool set_scale;
    float softmax_scale;
    float softcap;
    fa_causal causal;
    bool window;
    int64_t window_left, window_right;
    bool alibi, alibi_per_batch;
    bool sink;
    score_shape bias, mask;
    fa_element bias_type;
    double bias_hides; /* the share of entries that are -inf */
    double mask_hides; /* the share of entries that are 0 */
    bool mask_uint8;

    /* Lengths per sequence, [batch]; NULL with the flag set: random, up to seqlen_q or seqlen_k, and often 0.
     * seqlen_q and seqlen_k are the longest, or for used lengths the capacity. */
    bool varlen_q, varlen_k, used_q, used_k, leftpad;
    const int32_t *lengths_q, *lengths_k, *seqused_q, *seqused_k, *leftpad_k;
    int64_t tail_q, tail_k; /* varlen: rows behind the last sequence */
    int64_t page_size;      /* 0: not paged */
    bool state_maximum;     /* max_seqlen_q and max_seqlen_k are given */

    layout layout_q, layout_k, layout_v, layout_out, layout_lse, layout_scores, layout_tables;
    bool v_in_k; /* V is the first head_dim_v channels of K */
    input_kind inputs;
    value_kind values;
    bool no_poison; /* what must not be read is ordinary data, not NaN */

    int32_t num_threads, num_splits;

    /* Backward (judge_backward.h). */
    bool dout_float32, gradients_float32;
    layout layout_dout, layout_gradients;
} attention_case;

/* float32, batch 2, 4 heads on 2, 33 queries, 70 keys, head dim 40; one thread, since small calls are slower on more
 * and results do not depend on it (test_threads.c, test_sweep.c). */
attention_case case_default(const char *name);

/* The arguments of a call and the storage behind them. */
typedef struct attention_call {
    attention_case c;
    uint64_t seed;
    rng random;
    tensor *q, *k, *v;
    tensor *alibi, *sink, *bias, *mask;
    tensor *cu_q, *cu_k, *seqused_q, *seqused_k, *leftpad_k, *block_table;
    int64_t rows_q; /* of out: seqlen_q, or total_q */
    fa_options options;
} attention_call;

attention_call *call_new(const attention_case *c);
void call_free(attention_call *a);

/* Poisoned outputs for the call, of this dtype. */
tensor *call_new_out(attention_call *a, fa_element type);
tensor *call_new_lse(attention_call *a, fa_element type);

/* One line: what the case is, and how to have it again. Good until the next call. */
const char *call_line(const attention_call *a);
/* Fails the test with a message and that line. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3), noreturn))
#endif
void call_fail(const attention_call *a, const char *format, ...);

/* ---- Where things lie; written from the prose of flashattn.h, not from the library's own functions. ---- */

typedef struct call_sequence {
    int64_t q_first, q_rows; /* rows of q and out, first row counted as in lse's last dimension */
    int64_t q_used;
    int64_t pad, keys; /* keys pad .. keys - 1 are used */
} call_sequence;

call_sequence call_sequence_of(const attention_call *a, int64_t n);
/* Numbers of the first channel of a row in q or out, k, v; and of an element of lse. */
int64_t call_q_number(const attention_call *a, const tensor *q_or_out, int64_t n, int64_t head, int64_t row);
int64_t call_k_number(const attention_call *a, const tensor *k_or_v, int64_t n, int64_t head_kv, int64_t key);
int64_t call_lse_number(const attention_call *a, const tensor *lse, int64_t n, int64_t head, int64_t row);
/* Number of the bias or mask entry of a pair. */
int64_t call_score_number(const tensor *t, int64_t n, int64_t head, int64_t row, int64_t key);

/* By length, padding, causal and window alone. */
bool call_position_visible(const attention_call *a, const call_sequence *s, int64_t row, int64_t key);
/* By everything: also mask, and bias of -inf. */
bool call_visible(const attention_call *a, const call_sequence *s, int64_t n, int64_t head, int64_t row, int64_t key);

/* Fills what no query may see with NaN: keys, values, queries that see nothing or are unused, bias entries of
 * hidden pairs, block table entries beyond the used length. */
void call_poison_hidden(attention_call *a);

/* Sequence n of `to` gets the queries of sequence m of `from`, from row first_row on, and its first keys and
 * values. */
void call_copy_sequence(attention_call *to, int64_t n, const attention_call *from, int64_t m, int64_t first_row);

/* ---- Filling (inputs.c) ---- */
void call_fill(attention_call *a);

#endif
