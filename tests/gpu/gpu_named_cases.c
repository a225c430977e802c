/* SPDX-License-Identifier: Apache-2.0 */
/* Named cases: see gpu_named_cases.h. */
#include "gpu_named_cases.h"

#include "support/testing.h"

#include <inttypes.h>
#include <math.h>

static const fa_element types[] = {FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};

/* ---- forward ---- */

/* The bias of a row, for all its keys or for every second one. */
static void fill_bias_row(attention_call *a, int64_t row, double bias, bool all) {
    for (int64_t key = 0; key < a->c.seqlen_k; key += all ? 1 : 2)
        tensor_put(a->bias, call_score_number(a->bias, 0, 0, row, key), bias);
}

/* Only -inf masks: rows of a finite bias, however low or high, have an ordinary softmax, which is uniform where it swallows the
 * scores. Of what bfloat16 can hold, for the standard kernel rounds scores to the inputs' type. */
void A9_B1_bias_near_the_largest_number_is_a_value(void **test) {
    (void)test;
    static const double largest[] = {0x1.fep127, 65504, 0x1.fep127}; /* by fa_element */
    static const double shares[] = {-1, -0.7, -0x1p-60, 0x1p-60, 0.7, 1};
    for (uint64_t i = 0; i < 6; i++) {
        attention_case c = gpu_named_case("A9 B1", i);
        c.type = FA_ELEMENT_BFLOAT16;
        c.bias = (score_shape){true, false, false, true, true};
        c.bias_type = (fa_element)(i % 3);
        c.head_dim = c.head_dim_v = i < 3 ? 64 : 128;
        attention_call *a = call_new(&c);
        for (int64_t row = 0; row < c.seqlen_q; row++)
            if (row % 7 < 6) fill_bias_row(a, row, shares[row % 7] * largest[c.bias_type], row % 2 == 0);
        for (int k = 0; k < GPU_KERNELS; k++) {
            if (!gpu_runs(gpu_kernels[k])) continue;
            gpu_choose_machine(c.name, c.index, gpu_kernels[k]);
            gpu_judge_call(a, gpu_kernels[k]);
        }
        call_free(a);
    }
}

/* ---- gradients ---- */

attention_case gpu_named_case(const char *name, uint64_t index) {
    attention_case c = gpu_plain_case(name, types[index % 2], 64);
    c.index = index;
    c.seqlen_q = 70;
    c.seqlen_k = 140; /* more than one key tile of every kernel */
    return c;
}

/* By v2 on any part, and by what Hopper takes for it: v3, but where TMA cannot read the tensors. */
static void judge_named(const attention_case *c) {
    gpu_choose_machine(c->name, c->index, FA_KERNEL_V2);
    gpu_judge_backward_case(c, FA_KERNEL_V2);
    gpu_choose_machine(c->name, c->index, FA_KERNEL_V3);
    gpu_judge_backward_case(c, FA_KERNEL_AUTO);
}

void G2_structured_inputs_wide_heads_and_a_batch(void **test) {
    (void)test;
    static const input_kind kinds[] = {INPUT_OUTLIER_CHANNEL, INPUT_DOMINANT_KEY, INPUT_RISING, INPUT_NORMAL_3};
    for (uint64_t i = 0; i < 4; i++) {
        attention_case c = gpu_named_case("G2", i);
        c.batch = 2;
        c.heads = 4;
        c.heads_kv = 2;
        c.head_dim = c.head_dim_v = 256;
        c.seqlen_q = 40;
        c.seqlen_k = 75;
        c.inputs = kinds[i];
        judge_named(&c);
    }
}

void G4_groups_of_any_size_and_unequal_head_dims(void **test) {
    (void)test;
    static const int64_t heads[][2] = {{2, 2}, {4, 2}, {6, 2}, {8, 2}, {7, 1}, {8, 1}, {16, 1}};
    for (uint64_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        attention_case c = gpu_named_case("G4", i);
        c.heads = heads[i][0];
        c.heads_kv = heads[i][1];
        c.head_dim_v = i % 2 == 0 ? 40 : 96;
        judge_named(&c);
    }
}

void G6_softcap(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 4; i++) {
        attention_case c = gpu_named_case("G6", i);
        c.softcap = i < 2 ? 10 : 0.7f;
        c.inputs = INPUT_NORMAL_3;
        c.causal = i % 2 == 0 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_NONE;
        judge_named(&c);
    }
}

void G8_K12_K13_gradients_of_sink_bias_and_slopes(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 16; i++) {
        attention_case c = gpu_named_case("G8 K12 K13", i);
        c.batch = 2;
        c.seqlen_q = 20;
        c.sink = i % 2 == 0;
        c.alibi = i % 3 != 0;
        c.alibi_per_batch = i % 4 < 2;
        c.bias = (score_shape){true, (i & 1) != 0, (i & 2) != 0, (i & 4) != 0, (i & 8) != 0};
        c.bias_type = (fa_element)(i % 3);
        c.causal = (fa_causal)(i % 3);
        judge_named(&c);
    }
}

void G11_groups_causal_and_variable_length(void **test) {
    (void)test;
    static const int64_t heads[][2] = {{1, 1}, {4, 1}, {6, 2}, {9, 3}};
    for (uint64_t i = 0; i < 12; i++) {
        attention_case c = gpu_named_case("G11", i);
        c.batch = 3;
        c.heads = heads[i % 4][0];
        c.heads_kv = heads[i % 4][1];
        c.causal = (fa_causal)(i % 3);
        c.varlen_q = i >= 4;
        c.varlen_k = i >= 8 || i % 2 == 1;
        c.tail_q = c.tail_k = (int64_t)i % 5;
        judge_named(&c);
    }
}

void L1_L3_strides_of_dout_are_its_own(void **test) {
    (void)test;
    for (int layout_dout = LAYOUT_COMPACT; layout_dout <= LAYOUT_REVERSED; layout_dout++)
        for (int wide = 0; wide < 2; wide++) {
            attention_case c = gpu_named_case("L1 L3", (uint64_t)(layout_dout * 2 + wide));
            c.layout_dout = (layout)layout_dout;
            c.layout_out = LAYOUT_PERMUTED;
            c.dout_float32 = wide == 1;
            judge_named(&c);
        }
    attention_case c = gpu_named_case("L1 L3", 100);
    c.layout_dout = LAYOUT_BROADCAST;
    judge_named(&c);
}

/* ---- queries that take no part ---- */

/* lse = -inf says so of a query that sees keys: then NaN in all that belongs to it must not be seen anywhere. */
void queries_whose_lse_is_minus_infinity_contribute_nothing(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 8; i++) {
        attention_case c = gpu_named_case("idle", i);
        c.head_dim = c.head_dim_v = i < 4 ? 64 : 128;
        c.softcap = i % 4 >= 2 ? 20 : 0; /* the general variants too */
        c.dout_float32 = i % 4 == 1;
        backward_call *b = backward_call_new(&c);
        attention_call *a = b->a;
        a->options.deterministic = i % 2 == 0;
        for (int64_t row = 0; row < c.seqlen_q; row++) {
            if (row % 3 != 0 && row > 10) continue;
            for (int64_t h = 0; h < c.heads; h++) {
                tensor_put(b->lse, call_lse_number(a, b->lse, 0, h, row), -(double)INFINITY);
                for (int64_t j = 0; j < c.head_dim; j++) {
                    tensor_put(a->q, call_q_number(a, a->q, 0, h, row) + j, (double)NAN);
                    tensor_put(b->dout, call_q_number(a, b->dout, 0, h, row) + j, (double)NAN);
                    tensor_put(b->out, call_q_number(a, b->out, 0, h, row) + j, (double)INFINITY);
                }
            }
        }
        for (int k = 0; k < GPU_BACKWARD_KERNELS; k++) {
            if (!gpu_runs(gpu_backward_kernels[k])) continue;
            gpu_choose_machine(c.name, c.index, gpu_backward_kernels[k]);
            gpu_judge_backward_call(b, gpu_backward_kernels[k]);
        }
        backward_call_free(b);
    }
}

/* Keys that bias or boolean mask hide from every query hold NaN, as all that is hidden does in these tests. */
void keys_that_are_hidden_from_all_reach_nothing(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 6; i++) {
        attention_case c = gpu_named_case("hidden keys", i);
        score_shape per_key = {true, false, i % 3 == 1, false, true};
        if (i % 2 == 0) {
            c.mask = per_key;
            c.mask_hides = 0.5;
        } else {
            c.bias = per_key;
            c.bias_hides = 0.5;
        }
        c.causal = (fa_causal)(i % 3);
        judge_named(&c);
    }
}

/* No query takes part: not even NaN in all of k and v is seen then. */
void without_a_query_that_takes_part_everything_is_zero(void **test) {
    (void)test;
    attention_case c = gpu_named_case("all idle", 0);
    c.sink = c.alibi = true;
    c.bias = (score_shape){true, false, true, true, true};
    for (int general = 0; general < 2; general++) {
        if (general == 0) {
            c.sink = c.alibi = false;
            c.bias.given = false;
        }
        backward_call *b = backward_call_new(&c);
        for (int64_t i = 0; i < tensor_count(b->lse); i++) tensor_put(b->lse, i, -(double)INFINITY);
        tensor *poisoned[] = {b->a->q, b->a->k, b->a->v, b->dout, b->out};
        for (int t = 0; t < 5; t++)
            for (int64_t i = 0; i < tensor_count(poisoned[t]); i++) tensor_put(poisoned[t], i, (double)NAN);
        for (int k = 0; k < GPU_BACKWARD_KERNELS; k++) {
            if (!gpu_runs(gpu_backward_kernels[k])) continue;
            gpu_choose_machine(c.name, c.index, gpu_backward_kernels[k]);
            gradients g = gpu_run_backward(b, gpu_backward_kernels[k]);
            for (int i = 0; i < GRADIENTS; i++)
                for (int64_t n = 0; g.of[i] != NULL && n < tensor_count(g.of[i]); n++)
                    if (!(tensor_get(g.of[i], n) == 0))
                        call_fail(b->a, "%s[%" PRId64 "] = %g: must be 0", gradient_name((gradient)i), n,
                                  tensor_get(g.of[i], n));
            gradients_free(&g);
        }
        backward_call_free(b);
    }
}

/* A dimension of size zero: what is left of the gradients is written, and is zero. */
void zero_sizes_give_zeros(void **test) {
    (void)test;
    for (uint64_t i = 0; i < 6; i++) {
        attention_case c = gpu_named_case("zero", i);
        c.sink = true;
        c.alibi = i % 2 == 0;
        c.bias = (score_shape){true, false, true, false, false};
        if (i % 3 == 0) c.seqlen_q = 0;
        if (i % 3 == 1) c.seqlen_k = 0;
        if (i % 3 == 2) c.batch = 0;
        judge_named(&c);
    }
}
