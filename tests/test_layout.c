/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as they lie in callers' memory: strides, slices, views, odd addresses, every head dim, every GQA ratio. */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bias and mask, full and per head. */
static void with_scores(attention_case *c) {
    c->bias = (score_shape){.given = true, .batch = true, .heads = true, .queries = true, .keys = true};
    c->mask = (score_shape){.given = true, .heads = true, .queries = true, .keys = true};
    c->mask_hides = 0.2;
    c->bias_hides = 0.1;
}

static void set_layouts(attention_case *c, layout kind) {
    c->layout_q = c->layout_k = c->layout_v = c->layout_scores = kind;
    /* Outputs must not be broadcast, and lengths that are all the same are another test. */
    c->layout_out = c->layout_lse = c->layout_tables = kind == LAYOUT_BROADCAST ? LAYOUT_COMPACT : kind;
}

/* A layout changes addresses and nothing else: the same bits as with compact tensors. */
static void expect_bits_of_compact(attention_case c) {
    attention_case compact_case = c;
    set_layouts(&compact_case, LAYOUT_COMPACT);
    attention_call *a = call_new(&c), *compact = call_new(&compact_case);
    const tensor *from[] = {a->q, a->k, a->v, a->bias, a->mask, a->alibi, a->sink};
    tensor *to[] = {compact->q, compact->k, compact->v, compact->bias, compact->mask, compact->alibi, compact->sink};
    for (size_t t = 0; t < sizeof to / sizeof to[0]; t++) {
        int64_t count = to[t] == NULL ? 0 : tensor_count(to[t]);
        for (int64_t i = 0; i < count; i++)
            memcpy(tensor_address(to[t], i), tensor_address(from[t], i), (size_t)to[t]->element_bytes);
    }
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        outputs x = run_call(a, all[w]), y = run_call(compact, all[w]);
        assert_same_bits(a, &x, &y, "as compact tensors");
        outputs_free(&x);
        outputs_free(&y);
    }
    call_free(a);
    call_free(compact);
}

/* ---- Strides (L1, L3) ---- */

/* One tensor after the other in each layout, then all of them. */
static void L1_L3_each_tensor_in_each_layout(void **state) {
    (void)state;
    for (layout kind = LAYOUT_PADDED; kind <= LAYOUT_ANY; kind++) {
        attention_case base = case_default("L1");
        base.index = (uint64_t)kind;
        base.seqlen_q = 17;
        base.head_dim = 24;
        base.alibi = base.sink = true;
        with_scores(&base);
        for (int t = 0; t < 7; t++) {
            attention_case c = base;
            layout *all[] = {&c.layout_q,   &c.layout_k,   &c.layout_v,     &c.layout_scores,
                             &c.layout_out, &c.layout_lse, &c.layout_tables};
            if (kind == LAYOUT_BROADCAST && t >= 4) continue;
            *all[t] = kind;
            expect_bits_of_compact(c);
        }
        set_layouts(&base, kind);
        judge_case_all_types(base);
    }
}

static void L1_out_as_a_transposed_view(void **state) {
    (void)state;
    attention_case c = case_default("L1 transposed");
    c.seqlen_q = c.seqlen_k = 32;
    c.head_dim = c.head_dim_v = 128;
    c.heads_kv = 1;
    c.layout_out = c.layout_q = LAYOUT_PERMUTED;
    for (uint64_t i = 0; i < 6; i++) { /* [b, h, s, d], [s, b, h, d], ... */
        c.index = i;
        expect_bits_of_compact(c);
    }
    judge_case_all_types(c);
}

static void L1_every_layout_of_packed_and_paged_tensors(void **state) {
    (void)state;
    for (layout kind = LAYOUT_PADDED; kind <= LAYOUT_ANY; kind++)
        for (int paged = 0; paged < 2; paged++) {
            attention_case c = case_default(paged ? "L1 paged" : "L1 packed");
            c.index = (uint64_t)kind;
            c.batch = 3;
            c.varlen_q = true;
            c.varlen_k = !paged;
            c.page_size = paged ? 16 : 0;
            c.tail_q = c.tail_k = 3;
            c.leftpad = c.alibi = c.sink = true;
            c.causal = FA_CAUSAL_BOTTOM_RIGHT;
            c.type = kind % 2 == 0 ? FA_ELEMENT_FLOAT32 : FA_ELEMENT_FLOAT16;
            set_layouts(&c, kind);
            judge_case(&c);
        }
}

/* Every key and value the same row, by strides of 0: with 65,536 keys, the output is that row. */
static void L3_all_outer_strides_zero(void **state) {
    (void)state;
    enum { KEYS = 65536, HEADS = 16, DIM = 64 };
    rng r = rng_named("L3", 0);
    static float row_q[DIM], row_k[DIM], row_v[DIM], out[HEADS * DIM], lse[HEADS];
    double score = 0;
    for (int i = 0; i < DIM; i++) {
        row_q[i] = (float)rng_normal(&r);
        row_k[i] = (float)rng_normal(&r);
        row_v[i] = (float)(1 + rng_uniform(&r));
        score += (double)row_q[i] * (double)row_k[i] / 8;
    }
    int64_t q_shape[] = {1, 1, HEADS, DIM}, k_shape[] = {1, KEYS, HEADS, DIM}, lse_shape[] = {1, HEADS, 1};
    int64_t stride[] = {0, 0, 0, 1};
    fa_tensor q = {row_q, {FA_DEVICE_CPU, 0}, 4, FA_FLOAT32, q_shape, stride, 0};
    fa_tensor k = {row_k, {FA_DEVICE_CPU, 0}, 4, FA_FLOAT32, k_shape, stride, 0};
    fa_tensor v = {row_v, {FA_DEVICE_CPU, 0}, 4, FA_FLOAT32, k_shape, stride, 0};
    fa_tensor o = {out, {FA_DEVICE_CPU, 0}, 4, FA_FLOAT32, q_shape, NULL, 0};
    fa_tensor l = {lse, {FA_DEVICE_CPU, 0}, 3, FA_FLOAT32, lse_shape, NULL, 0};
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++)
        for (int splits = 0; splits <= 1; splits++) {
            fa_options options = {.size = sizeof options, .kernel = all[w].kernel, .isa = all[w].isa};
            options.num_splits = splits;
            memset(out, 0xff, sizeof out);
            memset(lse, 0xff, sizeof lse);
            if (fa_forward(&q, &k, &v, &options, &o, &l) != FA_OK) fail_msg("%s", fa_last_error());
            for (int i = 0; i < HEADS * DIM; i++) /* each of the sums' roundings is at most 2^-24 */
                if (!(fabs((double)out[i] - (double)row_v[i % DIM]) <= KEYS * 0x1p-24))
                    fail_msg("out[%d] = %.9g, not %.9g", i, (double)out[i], (double)row_v[i % DIM]);
            for (int h = 0; h < HEADS; h++)
                if (!(fabs((double)lse[h] - score - log(KEYS)) <= 1e-4))
                    fail_msg("lse[%d] = %.9g, not %.9g", h, (double)lse[h], score + log(KEYS));
        }
}

/* ---- The last dimension (L2) ---- */

static void L2_only_a_contiguous_last_dimension(void **state) {
    (void)state;
    static const char *const names[] = {"q", "k", "v", "out"};
    static const int64_t wrong[] = {2, 0, -1};
    for (int t = 0; t < 4; t++)
        for (int n = 0; n < 3; n++) {
            attention_case c = case_default("L2");
            attention_call *a = call_new(&c);
            outputs o = {call_new_out(a, c.type), call_new_lse(a, c.type)};
            tensor *all[] = {a->q, a->k, a->v, o.out};
            all[t]->fa.strides = all[t]->stride;
            all[t]->stride[3] = wrong[n];
            char expected[64];
            (void)snprintf(expected, sizeof expected, "%s.strides[3] = %" PRId64 ": the last dimension", names[t],
                           wrong[n]);
            assert_int_equal(fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &a->options, &o.out->fa, &o.lse->fa),
                             FA_INVALID_ARGUMENT);
            if (strstr(fa_last_error(), expected) == NULL) call_fail(a, "\"%s\"", fa_last_error());
            outputs_free(&o);
            call_free(a);
        }
}

/* With one element there is nothing to step over: any stride will do. */
static void L2_any_last_stride_of_one_channel(void **state) {
    (void)state;
    attention_case c = case_default("L2 one channel");
    c.head_dim = c.head_dim_v = 1;
    attention_call *a = call_new(&c);
    tensor *all[] = {a->q, a->k, a->v};
    for (int t = 0; t < 3; t++) {
        all[t]->fa.strides = all[t]->stride;
        all[t]->stride[3] = t == 0 ? 7 : t == 1 ? 0 : -5;
    }
    judge_call(a);
    call_free(a);
}

/* ---- Bias and mask (L5) ---- */

static void L5_bias_rows_of_any_length(void **state) {
    (void)state;
    static const int64_t lengths[][2] = {{77, 43}, {43, 77}, {77, 77}, {1, 43}, {43, 1}, {65, 129}};
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
        for (int type = FA_ELEMENT_FLOAT32; type <= FA_ELEMENT_BFLOAT16; type++) {
            attention_case c = case_default("L5");
            c.index = n * 3 + (uint64_t)type;
            c.seqlen_q = lengths[n][0];
            c.seqlen_k = lengths[n][1];
            c.batch = 1;
            c.heads = c.heads_kv = 2;
            c.head_dim = c.head_dim_v = 16;
            with_scores(&c);
            c.bias_type = (fa_element)type;
            c.type = (fa_element)type;
            /* Unaligned rows; then keys that do not lie next to each other; then anything. */
            static const layout kinds[] = {LAYOUT_COMPACT, LAYOUT_UNALIGNED, LAYOUT_PERMUTED, LAYOUT_REVERSED};
            for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
                c.layout_scores = kinds[k];
                if (k > 0) expect_bits_of_compact(c);
            }
            c.layout_scores = LAYOUT_ANY;
            judge_case(&c);
        }
}

static void L5_bias_and_mask_broadcast_over_any_dimension(void **state) {
    (void)state;
    for (int full = 0; full < 16; full++) {
        attention_case c = case_default("L5 broadcast");
        c.index = (uint64_t)full;
        c.seqlen_q = 20;
        c.bias = (score_shape){true, full & 1, full & 2, full & 4, full & 8};
        c.mask = (score_shape){true, full & 8, full & 4, full & 2, full & 1};
        c.mask_hides = 0.3;
        c.mask_uint8 = full % 2 == 0;
        c.layout_scores = LAYOUT_ANY;
        judge_case(&c);
        c.type = c.bias_type = FA_ELEMENT_BFLOAT16;
        c.varlen_q = c.varlen_k = true;
        judge_case(&c);
    }
}

/* ---- Head dims (L6) ---- */

static void L6_head_dims(void **state) {
    (void)state;
    static const int64_t dims[] = {1, 3, 40, 46, 80, 160, 224, 256};
    for (int i = 0; i < 8; i++) {
        attention_case c = case_default("L6");
        c.index = (uint64_t)i;
        c.seqlen_q = 5;
        c.heads = 2;
        c.head_dim = c.head_dim_v = dims[i];
        c.causal = FA_CAUSAL_BOTTOM_RIGHT;
        judge_case_all_types(c);
        c.head_dim_v = dims[(i + 3) % 8]; /* and unequal ones */
        judge_case_all_types(c);
        c.out_float32 = true;
        c.type = FA_ELEMENT_FLOAT16;
        judge_case(&c);
    }
}

/* All of 1 .. 256, for what vector widths and panels leave over. */
static void L6_every_head_dim(void **state) {
    (void)state;
    for (int64_t dim = 1; dim <= 256; dim++) {
        attention_case c = case_default("L6 every");
        c.index = (uint64_t)dim;
        c.batch = 1;
        c.heads = c.heads_kv = 1;
        c.seqlen_q = 3;
        c.seqlen_k = 5;
        c.head_dim = dim;
        c.head_dim_v = 257 - dim;
        c.type = (fa_element)(dim % 3);
        judge_case(&c);
    }
}

/* ---- Slices and views (L7, L8) ---- */

static void L7_slices_of_a_larger_cache(void **state) {
    (void)state;
    /* NaN lies between and around the slices, and in the cache's unused rows. */
    attention_case c = case_default("L7");
    c.batch = 3;
    c.layout_q = c.layout_k = c.layout_v = c.layout_out = LAYOUT_PADDED;
    c.used_k = true;
    for (uint64_t i = 0; i < 4; i++) {
        c.index = i;
        c.causal = (fa_causal)(i % 3);
        judge_case_all_types(c);
    }
}

static void L7_values_as_a_view_of_the_keys(void **state) {
    (void)state;
    for (layout kind = LAYOUT_COMPACT; kind <= LAYOUT_ANY; kind++) {
        attention_case c = case_default("L7 view");
        c.index = (uint64_t)kind;
        c.head_dim = 72;
        c.head_dim_v = kind % 2 == 0 ? 64 : 72;
        c.v_in_k = true;
        c.seqlen_q = 9;
        c.layout_k = kind;
        c.heads_kv = 1;
        judge_case_all_types(c);
        c.page_size = 16;
        judge_case(&c);
    }
}

/* A batch stride of one row, so that batch entries are windows that slide over the same rows. */
static void L8_batch_entries_that_share_rows(void **state) {
    (void)state;
    attention_case c = case_default("L8");
    c.batch = 4;
    attention_call *a = call_new(&c);
    tensor *all[] = {a->q, a->k, a->v};
    for (int t = 0; t < 3; t++) {
        all[t]->fa.strides = all[t]->stride;
        all[t]->stride[0] = all[t]->stride[1];
        all[t]->broadcast = true; /* rows have several numbers: what one hides another may show */
    }
    judge_call(a); /* every batch entry, not the first alone */
    /* Each reads other rows, so the results differ. */
    outputs o = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    for (int64_t n = 1; n < c.batch; n++)
        assert_true(tensor_get(o.lse, call_lse_number(a, o.lse, n, 0, 0)) !=
                    tensor_get(o.lse, call_lse_number(a, o.lse, n - 1, 0, 0)));
    outputs_free(&o);
    call_free(a);
}

/* ---- Addresses ---- */

/* Every tensor at odd byte addresses; each element size at each offset from alignment. */
static void odd_byte_addresses(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 8; i++) {
        attention_case c = case_default("odd");
        c.index = i;
        with_scores(&c);
        c.alibi = c.sink = true;
        c.varlen_q = c.varlen_k = i % 2 == 1;
        c.used_q = c.used_k = c.leftpad = true;
        c.bias_type = (fa_element)(i % 3);
        set_layouts(&c, LAYOUT_UNALIGNED);
        judge_case_all_types(c);
    }
}

/* ---- Groups of heads (G4) ---- */

static void G4_ratios_of_query_to_key_heads(void **state) {
    (void)state;
    static const int64_t heads[][2] = {{4, 4},  {8, 4}, {6, 2},  {9, 3},  {8, 2},  {16, 4}, {7, 1},
                                       {14, 2}, {8, 1}, {16, 2}, {32, 2}, {16, 1}, {12, 1}, {31, 1}};
    for (size_t n = 0; n < sizeof heads / sizeof heads[0]; n++) {
        attention_case c = case_default("G4");
        c.index = n;
        c.heads = heads[n][0];
        c.heads_kv = heads[n][1];
        c.seqlen_q = n % 2 == 0 ? 1 : 19; /* rows of a tile are queries times the heads of a group */
        c.seqlen_k = 35;
        c.head_dim_v = n % 3 == 0 ? 24 : 56; /* not head_dim, 40 */
        c.causal = n % 2 == 0 ? FA_CAUSAL_NONE : FA_CAUSAL_BOTTOM_RIGHT;
        c.alibi = c.sink = true;
        c.bias = (score_shape){.given = true, .heads = true, .queries = true, .keys = true};
        judge_case_all_types(c);
    }
}

/* Query head i is computed with key head i / (heads / heads_kv): the same bits as with the key heads written out. */
static void G4_groups_equal_expanded_heads(void **state) {
    (void)state;
    static const int64_t heads[][2] = {{8, 2}, {6, 3}, {16, 1}};
    for (size_t n = 0; n < sizeof heads / sizeof heads[0]; n++) {
        attention_case c = case_default("G4 expanded");
        c.index = n;
        c.heads = heads[n][0];
        c.heads_kv = heads[n][1];
        c.head_dim_v = 56;
        c.num_splits = 1;
        attention_call *a = call_new(&c);
        c.heads_kv = c.heads;
        attention_call *expanded = call_new(&c);
        int64_t group = a->c.heads / a->c.heads_kv;
        for (int64_t i = 0; i < tensor_count(a->q); i++) tensor_put(expanded->q, i, tensor_get(a->q, i));
        for (int64_t b = 0; b < c.batch; b++)
            for (int64_t h = 0; h < c.heads; h++)
                for (int64_t j = 0; j < c.seqlen_k; j++) {
                    int64_t to = call_k_number(expanded, expanded->k, b, h, j);
                    int64_t from = call_k_number(a, a->k, b, h / group, j);
                    for (int64_t i = 0; i < c.head_dim; i++)
                        tensor_put(expanded->k, to + i, tensor_get(a->k, from + i));
                    to = call_k_number(expanded, expanded->v, b, h, j);
                    from = call_k_number(a, a->v, b, h / group, j);
                    for (int64_t i = 0; i < c.head_dim_v; i++)
                        tensor_put(expanded->v, to + i, tensor_get(a->v, from + i));
                }
        int count;
        const contender *all = contenders(&count);
        for (int w = 0; w < count; w++) {
            outputs x = run_call(a, all[w]), y = run_call(expanded, all[w]);
            assert_same_bits(a, &x, &y, "with key heads written out");
            outputs_free(&x);
            outputs_free(&y);
        }
        call_free(a);
        call_free(expanded);
    }
}

RUN_TESTS(cmocka_unit_test(L1_L3_each_tensor_in_each_layout), cmocka_unit_test(L1_out_as_a_transposed_view),
          cmocka_unit_test(L1_every_layout_of_packed_and_paged_tensors), cmocka_unit_test(L3_all_outer_strides_zero),
          cmocka_unit_test(L2_only_a_contiguous_last_dimension), cmocka_unit_test(L2_any_last_stride_of_one_channel),
          cmocka_unit_test(L5_bias_rows_of_any_length), cmocka_unit_test(L5_bias_and_mask_broadcast_over_any_dimension),
          cmocka_unit_test(L6_head_dims), cmocka_unit_test(L6_every_head_dim),
          cmocka_unit_test(L7_slices_of_a_larger_cache), cmocka_unit_test(L7_values_as_a_view_of_the_keys),
          cmocka_unit_test(L8_batch_entries_that_share_rows), cmocka_unit_test(odd_byte_addresses),
          cmocka_unit_test(G4_ratios_of_query_to_key_heads), cmocka_unit_test(G4_groups_equal_expanded_heads))
