/* SPDX-License-Identifier: Apache-2.0 */
/* Backward as a call: layouts, which gradients are wanted, refusals, plans, repeatability, parts of the keys. */
#include "support/judge_backward.h"
#include "support/sweep.h"
#include "support/testing.h"

#include "gradients.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Layouts ---- */

static void L1_dout_has_strides_of_its_own(void **state) {
    (void)state;
    for (int kind = 0; kind < LAYOUTS; kind++)
        for (int gradient_kind = 0; gradient_kind <= LAYOUT_UNALIGNED; gradient_kind++) {
            attention_case c = case_default("L1");
            c.index = (uint64_t)(kind * 10 + gradient_kind);
            c.heads = 4;
            c.heads_kv = 1;
            c.seqlen_q = 9;
            c.seqlen_k = 20;
            c.head_dim = 24;
            c.layout_dout = (layout)kind;
            c.layout_out = c.layout_lse = c.layout_gradients = (layout)gradient_kind;
            c.dout_float32 = kind % 2 == 0;
            c.type = (fa_element)(kind % 3);
            judge_backward(&c);
        }
}

/* dout as the gradient of a sum is: one number for every query. */
static void L3_dout_with_strides_of_zero(void **state) {
    (void)state;
    attention_case c = case_default("L3");
    c.batch = c.heads_kv = 1;
    c.heads = 2;
    c.seqlen_q = 16;
    c.seqlen_k = 8192;
    c.head_dim = c.head_dim_v = 64;
    backward_call *b = backward_call_new(&c);
    for (int64_t i = 0; i < tensor_count(b->dout); i++) tensor_put(b->dout, i, (double)(i % c.head_dim_v));
    int count;
    const contender *all = backward_contenders(&count);
    for (int w = 0; w < count; w++) {
        gradients expected = run_backward(b, all[w]);
        int64_t strides[4] = {0, 0, 0, 1}, *own = b->dout->fa.strides;
        b->dout->fa.strides = strides;
        gradients g = run_backward(b, all[w]);
        b->dout->fa.strides = own;
        assert_same_gradients(b, &expected, &g, "dout repeated, and with strides of 0");
        gradients_free(&g);
        gradients_free(&expected);
    }
    backward_call_free(b);
}

/* Offsets beyond 2^31 and 2^32, by address alone. */
static void D1_offsets_are_64_bit(void **state) {
    (void)state;
    int64_t rows = 500000, cu[1] = {2};
    int32_t lengths[2] = {0, (int32_t)rows};
    int64_t q_shape[3] = {rows, 2, 8}, lse_shape[2] = {2, rows}, wide[3] = {9728, 8, 1};
    const fa_device cpu = {FA_DEVICE_CPU, 0};
    char somewhere[8]; /* for addresses to count from; nothing is read */
    fa_tensor q = {.data = somewhere, .device = cpu, .ndim = 3, .dtype = FA_FLOAT32, .shape = q_shape};
    fa_tensor dout = q, lse = q, cu_q = q, dq = q, dk = q, dv = q;
    dq.data = dk.data = dv.data = NULL;
    dout.strides = wide;
    lse.ndim = 2;
    lse.shape = lse_shape;
    cu_q = (fa_tensor){.data = lengths, .device = cpu, .ndim = 1, .dtype = FA_INT32, .shape = cu};
    fa_options o = {.size = sizeof o, .cu_seqlens_q = &cu_q, .cu_seqlens_k = &cu_q};
    fa_gradients g;
    const fa_backward_arguments arguments = {&dout, &q, &q, &q, &q, &lse, &o, &dq, &dk, &dv};
    assert_int_equal(fa_gradients_init(&g, &arguments, false), FA_OK);
    fa_sequence s = fa_problem_sequence(&g.problem, 0);
    assert_int_equal(fa_query_address(&g.dout, &s, rows - 1, 1) - fa_query_address(&g.dout, &s, 0, 0),
                     4 * ((rows - 1) * 9728 + 8));
}

static void D2_many_short_sequences(void **state) {
    (void)state;
    attention_case c = case_default("D2");
    c.batch = 12288;
    c.heads = c.heads_kv = 1;
    c.seqlen_q = c.seqlen_k = 3;
    c.head_dim = c.head_dim_v = 4;
    c.varlen_q = c.varlen_k = true;
    judge_backward(&c);
}

/* ---- Which gradients ---- */

static void gradients_that_are_not_wanted(void **state) {
    (void)state;
    attention_case c = case_default("not wanted");
    c.sink = c.alibi = true;
    c.softcap = 4;
    c.bias = (score_shape){true, false, true, true, true};
    backward_call *b = backward_call_new(&c);
    int count;
    const contender *all = contenders_of_type(c.type, &count);
    for (int w = -2; w < count; w++) {
        contender who = w >= 0 ? all[w] : (contender){w == -1 ? FA_KERNEL_REFERENCE : FA_KERNEL_STANDARD, FA_ISA_AUTO};
        gradients expected = run_backward(b, who), g = run_backward(b, who);
        fa_options options = b->a->options;
        options.kernel = who.kernel;
        options.isa = who.isa;
        for (unsigned wanted = 0; wanted < 1u << GRADIENTS; wanted += 1 + wanted % 5) {
            gradients some = {{NULL}};
            for (int i = 0; i < GRADIENTS; i++) {
                tensor_poison(g.of[i]);
                if (wanted & 1u << i) some.of[i] = g.of[i];
            }
            if (call_backward(b, &options, &some) != FA_OK) call_fail(b->a, "wanted %x: %s", wanted, fa_last_error());
            assert_same_gradients(b, &expected, &some, "all gradients, and some");
        }
        gradients_free(&g);
        gradients_free(&expected);
    }
    backward_call_free(b);
}

/* ---- Refusals ---- */

/* The sentence begins with this, and nothing was written. */
static void expect_refusal(const backward_call *b, const fa_options *o, const gradients *g, fa_status expected,
                           const char *sentence) {
    fa_status status = call_backward(b, o, g);
    if (status != expected || strncmp(fa_last_error(), sentence, strlen(sentence)) != 0)
        call_fail(b->a, "status %d, \"%s\": expected %d, \"%s...\"", (int)status, fa_last_error(), (int)expected,
                  sentence);
    for (int i = 0; i < GRADIENTS; i++)
        if (g->of[i] != NULL && g->of[i]->owner) assert_int_equal(tensor_first_poisoned(g->of[i]), 0);
}

static gradients poisoned(backward_call *b) {
    gradients g = run_backward(b, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    for (int i = 0; i < GRADIENTS; i++)
        if (g.of[i] != NULL) tensor_poison(g.of[i]);
    return g;
}

static void K4_K5_refusals_name_what_is_wrong(void **state) {
    (void)state;
    attention_case c = case_default("refusals");
    c.sink = c.alibi = true;
    c.bias = (score_shape){true, false, true, true, true};
    backward_call *b = backward_call_new(&c);
    gradients g = poisoned(b);
    fa_options o = b->a->options;

    o.deterministic = 2;
    expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, "deterministic = 2: must be 0 or 1");
    o.deterministic = 0;
    o.reserved = 1;
    expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, "options.reserved = 1: must be 0");
    o.reserved = 0;
    static const fa_kernel kernels[] = {FA_KERNEL_V1, FA_KERNEL_V2, FA_KERNEL_V3, FA_KERNEL_V4};
    for (int i = 0; i < 4; i++) {
        char sentence[64];
        bool there =
            kernels[i] == FA_KERNEL_V2 || kernels[i] == FA_KERNEL_V3; /* on a GPU, and none is to be emulated */
        (void)snprintf(sentence, sizeof sentence, "kernel = %s: %s", fa_kernel_name(kernels[i]),
                       there ? "runs on a GPU" : "has no backward pass on a GPU");
        o.kernel = kernels[i];
        expect_refusal(b, &o, &g, FA_UNSUPPORTED, sentence);
    }
    o.kernel = FA_KERNEL_REFERENCE;
    o.num_splits = 2;
    expect_refusal(b, &o, &g, FA_UNSUPPORTED, "num_splits = 2: the reference kernel");
    o = b->a->options;

    /* Without a counterpart. */
    o.bias = NULL;
    expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, "dbias is given, but bias is not");
    o = b->a->options;
    o.sink = NULL;
    expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, "dsink is given, but sink is not");
    o = b->a->options;
    o.alibi_slopes = NULL;
    expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, "dalibi_slopes is given, but alibi_slopes is not");
    o = b->a->options;

    /* Shapes, dtypes, strides. */
    static const char *const names[] = {"dq", "dk", "dv", "dbias", "dsink", "dalibi_slopes"};
    char sentence[96];
    for (int i = 0; i < GRADIENTS; i++) {
        tensor *t = g.of[i];
        int last = t->fa.ndim - 1;
        t->fa.shape[last]++;
        (void)snprintf(sentence, sizeof sentence, "%s.shape[%d] = %" PRId64 ": must be %" PRId64, names[i], last,
                       t->fa.shape[last], t->fa.shape[last] - 1);
        expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, sentence);
        t->fa.shape[last]--;
        fa_dtype own = t->fa.dtype;
        t->fa.dtype = (fa_dtype)FA_INT32;
        (void)snprintf(sentence, sizeof sentence, "%s.dtype = int32: ", names[i]);
        expect_refusal(b, &o, &g, FA_UNSUPPORTED, sentence);
        t->fa.dtype = own;
        int64_t zero[4] = {0, 0, 0, 0}, *strides = t->fa.strides;
        zero[last] = 1;
        if (t->fa.ndim > 1) {
            t->fa.strides = zero;
            (void)snprintf(sentence, sizeof sentence, "%s.strides[", names[i]);
            expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, sentence);
            t->fa.strides = strides;
        }
        void *data = t->fa.data;
        t->fa.data = b->a->q->fa.data;
        if (i < GRADIENT_BIAS) {
            (void)snprintf(sentence, sizeof sentence, "%s.data = %p: overlaps ", names[i], t->fa.data);
            expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, sentence);
        }
        t->fa.data = data;
    }
    void *data = g.of[GRADIENT_V]->fa.data;
    g.of[GRADIENT_V]->fa.data = g.of[GRADIENT_K]->fa.data;
    expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, "dv.data = ");
    g.of[GRADIENT_V]->fa.data = data;
    int64_t two[4] = {0, 0, 0, 2}, *strides = b->dout->fa.strides;
    b->dout->fa.strides = two;
    expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, "dout.strides[3] = 2: the last dimension must be contiguous");
    b->dout->fa.strides = strides;
    b->dout->fa.shape[0]++;
    expect_refusal(b, &o, &g, FA_INVALID_ARGUMENT, "dout.shape[0] = 3: must be 2, as in out");
    b->dout->fa.shape[0]--;
    b->lse->fa.dtype = (fa_dtype)FA_FLOAT16;
    expect_refusal(b, &o, &g, FA_UNSUPPORTED, "lse.dtype = float16: must be float32");
    b->lse->fa.dtype = (fa_dtype)FA_FLOAT32;

    const attention_call *a = b->a;
    assert_int_equal(
        fa_backward(&b->dout->fa, &a->q->fa, &a->k->fa, &a->v->fa, &b->out->fa, NULL, &o, NULL, NULL, NULL),
        FA_INVALID_ARGUMENT);
    assert_string_equal(fa_last_error(), "lse = NULL: must be what fa_forward wrote");
    assert_int_equal(fa_backward(NULL, &a->q->fa, &a->k->fa, &a->v->fa, &b->out->fa, &b->lse->fa, &o, NULL, NULL, NULL),
                     FA_INVALID_ARGUMENT);
    assert_string_equal(fa_last_error(), "dout = NULL: must be a tensor");
    o.dsink = &g.of[GRADIENT_SINK]->fa; /* forward writes no gradients */
    assert_int_equal(fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &o, &b->out->fa, &b->lse->fa), FA_INVALID_ARGUMENT);
    assert_string_equal(fa_last_error(), "dsink is given: only fa_backward writes it, so it must be NULL here");
    gradients_free(&g);
    backward_call_free(b);

    c = case_default("paged");
    c.page_size = 16;
    attention_call *paged = call_new(&c);
    tensor *out = call_new_out(paged, FA_ELEMENT_FLOAT32), *lse = call_new_lse(paged, FA_ELEMENT_FLOAT32);
    assert_int_equal(fa_backward(&out->fa, &paged->q->fa, &paged->k->fa, &paged->v->fa, &out->fa, &lse->fa,
                                 &paged->options, NULL, NULL, NULL),
                     FA_UNSUPPORTED);
    assert_string_equal(fa_last_error(), "block_table is given: fa_backward does not take paged k and v");
    tensor_free(out);
    tensor_free(lse);
    call_free(paged);
}

/* A caller compiled before the gradients were added knows a shorter fa_options. */
static void older_options_are_understood(void **state) {
    (void)state;
    attention_case c = case_default("older options");
    backward_call *b = backward_call_new(&c);
    gradients g = poisoned(b);
    fa_options o = b->a->options;
    memset((char *)&o + offsetof(fa_options, dbias), 0xff, sizeof o - offsetof(fa_options, dbias));
    o.size = offsetof(fa_options, dbias);
    const attention_call *a = b->a;
    assert_int_equal(fa_backward(&b->dout->fa, &a->q->fa, &a->k->fa, &a->v->fa, &b->out->fa, &b->lse->fa, &o,
                                 &g.of[GRADIENT_Q]->fa, &g.of[GRADIENT_K]->fa, &g.of[GRADIENT_V]->fa),
                     FA_OK);
    gradients_free(&g);
    backward_call_free(b);
}

/* ---- Plans ---- */

static fa_plan_info plan_of(int64_t seqlen_q, int64_t seqlen_k, int64_t heads, fa_options o) {
    int64_t q_shape[4] = {1, seqlen_q, heads, 64}, k_shape[4] = {1, seqlen_k, heads, 64},
            lse_shape[3] = {1, heads, seqlen_q};
    fa_tensor q = {.device = {FA_DEVICE_CPU, 0}, .ndim = 4, .dtype = FA_BFLOAT16, .shape = q_shape}, k = q;
    fa_tensor lse = {.device = {FA_DEVICE_CPU, 0}, .ndim = 3, .dtype = FA_FLOAT32, .shape = lse_shape};
    k.shape = k_shape;
    o.size = sizeof o;
    fa_plan_info info = {.size = sizeof info};
    if (fa_plan_backward(&q, &q, &k, &k, &q, &lse, &o, &q, &k, &k, &info) != FA_OK) fail_msg("%s", fa_last_error());
    return info;
}

static void memory_is_linear(void **state) {
    (void)state;
    fa_options one = {.num_threads = 1};
    int64_t small = plan_of(1 << 14, 1 << 14, 64, one).workspace_bytes;
    int64_t large = plan_of(1 << 16, 1 << 16, 64, one).workspace_bytes;
    int64_t more_keys = plan_of(1 << 14, 1 << 20, 64, one).workspace_bytes;
    assert_true(large < 4 * small);
    assert_true(more_keys == small);
    /* dq in float32, and little else */
    assert_true(small < (int64_t)(1.1 * 4 * 64) * 64 * (1 << 14));
    fa_plan_info info = plan_of(4096, 4096, 2, (fa_options){.num_threads = 3});
    assert_int_equal(info.kernel, FA_KERNEL_CPU);
    assert_int_equal(info.num_threads, 3);
    assert_true(info.num_splits > 1);
    assert_non_null(strstr(info.name, "cpu_backward "));
    assert_int_equal(plan_of(4096, 4096, 2, (fa_options){.num_splits = 1}).num_splits, 1);
    assert_int_equal(plan_of(4096, 4096, 2, (fa_options){.kernel = FA_KERNEL_STANDARD}).kernel, FA_KERNEL_STANDARD);
}

/* ---- The same bits ---- */

static void same_bits_for_any_number_of_threads(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 9; i++) {
        attention_case c = i < 6 ? random_backward_case("threads, backward", i) : case_default("threads, backward");
        if (i >= 6) {
            c.index = i;
            c.batch = c.heads_kv = 1;
            c.heads = 2;
            c.seqlen_q = 130;
            c.seqlen_k = 1100; /* split by the rule on shapes */
            c.causal = (fa_causal)(i % 2);
            c.sink = c.alibi = true;
            c.bias = (score_shape){true, false, true, false, true};
            c.type = (fa_element)(i % 3);
        }
        int count;
        const contender *all = contenders_of_type(c.type, &count);
        backward_call *b = backward_call_new(&c);
        for (int w = 0; w < count; w++) {
            b->a->options.num_threads = 1;
            gradients expected = run_backward(b, all[w]);
            for (int32_t threads = 2; threads <= 17; threads += 1 + threads) {
                b->a->options.num_threads = threads;
                gradients g = run_backward(b, all[w]);
                assert_same_gradients(b, &expected, &g, "one thread, and several");
                gradients_free(&g);
            }
            gradients_free(&expected);
        }
        backward_call_free(b);
    }
}

static void G7_same_bits_in_every_run(void **state) {
    (void)state;
    int count;
    const contender *all = backward_contenders(&count);
    attention_case c = case_default("G7");
    c.seqlen_q = c.seqlen_k = 300;
    c.head_dim = c.head_dim_v = 64;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.type = FA_ELEMENT_BFLOAT16;
    c.num_threads = 3;
    backward_call *b = backward_call_new(&c);
    gradients expected = run_backward(b, all[count - 1]);
    for (int64_t run = 1, runs = test_setting("FLASHATTN_TEST_RUNS", 30); run < runs; run++) {
        b->a->options.deterministic = (int32_t)(run % 2);
        gradients g = run_backward(b, all[count - 1]);
        assert_same_gradients(b, &expected, &g, "two runs");
        gradients_free(&g);
    }
    gradients_free(&expected);
    backward_call_free(b);
}

static void any_number_of_splits_keeps_the_budget(void **state) {
    (void)state;
    static const int32_t splits[] = {1, 2, 3, 7, 256};
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        attention_case c = case_default("splits, backward");
        c.index = i;
        c.batch = c.heads_kv = 1;
        c.heads = 2;
        c.seqlen_q = 20;
        c.seqlen_k = 700;
        c.head_dim = c.head_dim_v = 16;
        c.num_splits = splits[i];
        c.causal = (fa_causal)(i % 2);
        c.alibi = true;
        judge_backward(&c);
    }
}

/* ---- Context parallelism: each half of the keys with the whole's out and lse ---- */

static void parts_of_the_keys_add_up(void **state) {
    (void)state;
    attention_case c = case_default("parts of the keys");
    c.batch = 1;
    c.type = FA_ELEMENT_FLOAT64;
    attention_call *a = call_new(&c);
    backward_call b = {a, call_new_out(a, c.type), call_new_out(a, c.type), call_new_lse(a, c.type)};
    fa_options o = a->options;
    o.kernel = FA_KERNEL_REFERENCE;
    for (int64_t i = 0; i < tensor_count(b.dout); i++) tensor_put(b.dout, i, rng_normal(&a->random));
    assert_int_equal(fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &o, &b.out->fa, &b.lse->fa), FA_OK);
    contender reference = {FA_KERNEL_REFERENCE, FA_ISA_AUTO};
    gradients whole = run_backward_to(&b, reference, c.type);
    int64_t begin[] = {0, 31, c.seqlen_k}, row = c.heads_kv * c.head_dim;
    double *dq = calloc((size_t)tensor_count(a->q), sizeof *dq);
    assert_non_null(dq);
    for (int part = 0; part < 2; part++) {
        int64_t first = begin[part], keys = begin[part + 1] - first;
        attention_call some = *a;
        tensor k = *a->k, v = *a->v;
        k.shape[1] = v.shape[1] = keys;
        k.fa.shape = k.shape, v.fa.shape = v.shape;
        k.fa.byte_offset += (uint64_t)(first * row * 8), v.fa.byte_offset += (uint64_t)(first * row * 8);
        k.owner = v.owner = false;
        some.k = &k, some.v = &v;
        backward_call share = {&some, b.dout, b.out, b.lse};
        gradients g = run_backward_to(&share, reference, c.type);
        for (int64_t i = 0; i < tensor_count(a->q); i++) dq[i] += tensor_get(g.of[GRADIENT_Q], i);
        for (int which = GRADIENT_K; which <= GRADIENT_V; which++)
            for (int64_t i = 0; i < keys * row; i++)
                if (tensor_get(g.of[which], i) != tensor_get(whole.of[which], first * row + i))
                    call_fail(a, "part %d, %s[%" PRId64 "] is not the whole's", part, gradient_name((gradient)which),
                              i);
        gradients_free(&g);
    }
    for (int64_t i = 0; i < tensor_count(a->q); i++)
        if (!(fabs(dq[i] - tensor_get(whole.of[GRADIENT_Q], i)) <= 1e-13 * (1 + fabs(dq[i]))))
            call_fail(a, "dq[%" PRId64 "] is not the sum of the parts", i);
    free(dq);
    gradients_free(&whole);
    tensor_free(b.dout);
    tensor_free(b.out);
    tensor_free(b.lse);
    call_free(a);
}

RUN_TESTS(cmocka_unit_test(L1_dout_has_strides_of_its_own), cmocka_unit_test(L3_dout_with_strides_of_zero),
          cmocka_unit_test(D1_offsets_are_64_bit), cmocka_unit_test(D2_many_short_sequences),
          cmocka_unit_test(gradients_that_are_not_wanted), cmocka_unit_test(K4_K5_refusals_name_what_is_wrong),
          cmocka_unit_test(older_options_are_understood), cmocka_unit_test(memory_is_linear),
          cmocka_unit_test(same_bits_for_any_number_of_threads), cmocka_unit_test(G7_same_bits_in_every_run),
          cmocka_unit_test(any_number_of_splits_keeps_the_budget), cmocka_unit_test(parts_of_the_keys_add_up))
