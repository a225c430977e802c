/* SPDX-License-Identifier: Apache-2.0 */
/* Caches of keys and values: pages of any size, padding on the left, unused slots, and decoding token by token. */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t page_sizes[] = {1, 16, 17, 64, 256};
enum { PAGE_SIZES = 5 };

static void fill_with(tensor *t, double x) {
    int64_t count = tensor_count(t);
    for (int64_t i = 0; i < count; i++) tensor_put(t, i, x);
}

/* The same call with its keys and values in one dense tensor each. */
static attention_call *contiguous_copy(attention_call *a, const int32_t *used, const int32_t *leftpad) {
    attention_case c = a->c;
    c.page_size = 0;
    c.used_k = true;
    c.seqused_k = used;
    c.leftpad_k = leftpad;
    attention_call *dense = call_new(&c);
    tensor_poison(dense->k);
    tensor_poison(dense->v);
    for (int64_t n = 0; n < c.batch; n++) call_copy_sequence(dense, n, a, n, 0);
    tensor *const to[] = {dense->alibi, dense->sink, dense->bias};
    const tensor *const from[] = {a->alibi, a->sink, a->bias};
    for (int t = 0; t < 3; t++) {
        int64_t count = to[t] == NULL ? 0 : tensor_count(to[t]);
        for (int64_t i = 0; i < count; i++) tensor_put(to[t], i, tensor_get(from[t], i));
    }
    for (int64_t i = 0; dense->mask != NULL && i < tensor_count(dense->mask); i++)
        tensor_put_int(dense->mask, i, tensor_get_int(a->mask, i));
    return dense;
}

/* ---- H1 ---- */

static void expect_bits_of_contiguous(attention_case c, const int32_t *used, const int32_t *leftpad) {
    c.seqused_k = used;
    c.leftpad = leftpad != NULL;
    c.leftpad_k = leftpad;
    attention_call *a = call_new(&c);
    judge_call(a); /* NaN in unused slots and pages, and page ids below 0 where none is needed */
    attention_call *dense = contiguous_copy(a, used, leftpad);
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        outputs x = run_call(a, all[w]), y = run_call(dense, all[w]);
        assert_same_bits(a, &x, &y, "paged and contiguous");
        outputs_free(&x);
        outputs_free(&y);
    }
    call_free(a);
    call_free(dense);
}

static void H1_any_page_size_gives_the_bits_of_contiguous_keys(void **state) {
    (void)state;
    static const int32_t used[] = {300, 0, 1, 257}, leftpad[] = {3, 0, 0, 200};
    for (int i = 0; i < PAGE_SIZES; i++)
        for (int type = FA_ELEMENT_FLOAT32; type <= FA_ELEMENT_BFLOAT16; type++) {
            attention_case c = case_default("H1");
            c.index = (uint64_t)(3 * i + type);
            c.type = (fa_element)type;
            c.batch = 4;
            c.seqlen_q = 5;
            c.seqlen_k = 300;
            c.head_dim_v = 24;
            c.page_size = page_sizes[i];
            expect_bits_of_contiguous(c, used, leftpad);
        }
}

static void H1_pages_with_everything_else(void **state) {
    (void)state;
    static const int32_t used[] = {70, 33}, leftpad[] = {0, 20};
    for (int i = 0; i < PAGE_SIZES; i++)
        for (int features = 0; features < 8; features++) {
            attention_case c = case_default("H1 features");
            c.index = (uint64_t)(8 * i + features);
            c.page_size = page_sizes[i];
            c.seqlen_q = 19;
            c.causal = (fa_causal)(features % 3);
            c.window = features & 1;
            c.window_left = 20;
            c.window_right = 3;
            c.softcap = features & 2 ? 10.0f : 0.0f;
            c.alibi = c.sink = (features & 4) != 0;
            c.bias = (score_shape){features & 2, true, false, true, true};
            c.mask = (score_shape){features & 1, false, true, true, true};
            c.mask_hides = 0.3;
            c.num_splits = features;
            expect_bits_of_contiguous(c, used, features & 4 ? leftpad : NULL);
        }
}

static void H1_packed_queries_on_pages(void **state) {
    (void)state;
    static const int32_t lengths[] = {5, 0, 1, 33}, used[] = {64, 30, 1, 70};
    for (int i = 0; i < PAGE_SIZES; i++) {
        attention_case c = case_default("H1 packed");
        c.index = (uint64_t)i;
        c.batch = 4;
        c.varlen_q = true;
        c.lengths_q = lengths;
        c.tail_q = 3;
        c.seqused_k = used;
        c.page_size = page_sizes[i];
        c.causal = FA_CAUSAL_BOTTOM_RIGHT;
        judge_case_all_types(c);
    }
}

static void H1_decode_on_pages_with_split_keys(void **state) {
    (void)state;
    static const int32_t used[] = {2100, 1025};
    for (int i = 0; i < PAGE_SIZES; i++)
        for (int splits = 0; splits <= 7; splits += 7) {
            attention_case c = case_default("H1 decode");
            c.index = (uint64_t)i;
            c.seqlen_q = 1;
            c.seqlen_k = 2100;
            c.head_dim = c.head_dim_v = 16;
            c.page_size = page_sizes[i];
            c.num_splits = splits;
            expect_bits_of_contiguous(c, used, NULL);
        }
}

/* ---- The block table ---- */

/* A page may stand in several rows of the table, and several times in one: a shared prompt is stored once. */
static void pages_shared_between_sequences(void **state) {
    (void)state;
    static const int32_t used[] = {70, 60, 48};
    attention_case c = case_default("shared");
    c.batch = 3;
    c.page_size = 16;
    c.seqused_k = used;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    attention_call *a = call_new(&c);
    int64_t columns = a->block_table->shape[1];
    for (int64_t n = 1; n < 3; n++)
        for (int64_t i = 0; i < 2; i++)
            tensor_put_int(a->block_table, n * columns + i, tensor_get_int(a->block_table, i));
    tensor_put_int(a->block_table, 2 * columns + 2, tensor_get_int(a->block_table, 0));
    judge_call(a);
    attention_call *dense = contiguous_copy(a, used, NULL);
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        outputs x = run_call(a, all[w]), y = run_call(dense, all[w]);
        assert_same_bits(a, &x, &y, "pages shared and copied");
        outputs_free(&x);
        outputs_free(&y);
    }
    call_free(a);
    call_free(dense);
}

/* Entries behind the used length, and of pages that are padding throughout, may hold anything; all others are checked,
 * one by one, before anything is written. */
static void entries_that_are_read_are_checked(void **state) {
    (void)state;
    static const int32_t used[] = {33, 0, 70}, leftpad[] = {0, 0, 32};
    static const int32_t wrong[] = {-1, 18, INT32_MAX, INT32_MIN};
    attention_case c = case_default("checked");
    c.batch = 3;
    c.page_size = 16;
    c.seqused_k = used;
    c.leftpad = true;
    c.leftpad_k = leftpad;
    attention_call *a = call_new(&c);
    assert_int_equal(a->k->shape[0], 18);
    outputs expected = run_call(a, (contender){FA_KERNEL_CPU, FA_ISA_AUTO});
    int64_t columns = a->block_table->shape[1];
    for (int64_t n = 0; n < 3; n++)
        for (int64_t i = 0; i < columns; i++)
            for (int x = 0; x < 4; x++) {
                bool is_read = i * 16 < used[n] && (i + 1) * 16 > leftpad[n];
                int64_t before = tensor_get_int(a->block_table, n * columns + i);
                tensor_put_int(a->block_table, n * columns + i, wrong[x]);
                outputs o = {call_new_out(a, c.type), call_new_lse(a, c.type)};
                uint64_t out = tensor_checksum(o.out), lse = tensor_checksum(o.lse);
                fa_status status = fa_forward(&a->q->fa, &a->k->fa, &a->v->fa, &a->options, &o.out->fa, &o.lse->fa);
                if (is_read) {
                    char text[64];
                    (void)snprintf(text, sizeof text, "block_table[%" PRId64 "][%" PRId64 "] = %" PRId32 ": must be", n,
                                   i, wrong[x]);
                    if (status != FA_INVALID_ARGUMENT || strstr(fa_last_error(), text) == NULL)
                        call_fail(a, "%s ... not \"%s\"", text, fa_last_error());
                    assert_true(tensor_checksum(o.out) == out && tensor_checksum(o.lse) == lse);
                } else {
                    if (status != FA_OK) call_fail(a, "%s", fa_last_error());
                    assert_same_bits(a, &expected, &o, "with another entry that is not read");
                }
                outputs_free(&o);
                tensor_put_int(a->block_table, n * columns + i, before);
            }
    outputs_free(&expected);
    call_free(a);
}

/* ---- Unused slots (B5, A2) ---- */

/* Used lengths 32, 64, 96 and 48 of 128 slots: NaN and infinity behind them change no bit. */
static void B5_unused_slots_do_not_leak(void **state) {
    (void)state;
    static const int32_t used[] = {32, 64, 96, 48};
    static const double junk[] = {(double)NAN, (double)INFINITY, 3e38};
    for (int i = -1; i < PAGE_SIZES; i++) { /* -1: dense */
        attention_case c = case_default("B5");
        c.index = (uint64_t)(i + 1);
        c.batch = 4;
        c.seqlen_q = 1;
        c.seqlen_k = 128;
        c.page_size = i < 0 ? 0 : page_sizes[i];
        c.used_k = true;
        c.seqused_k = used;
        c.no_poison = true;
        attention_call *source = call_new(&c), *clean = call_new(&c), *dirty = call_new(&c);
        fill_with(clean->k, 0);
        fill_with(clean->v, 0);
        for (int64_t n = 0; n < c.batch; n++) call_copy_sequence(clean, n, source, n, 0);
        for (int x = 0; x < 3; x++) {
            fill_with(dirty->k, junk[x]);
            fill_with(dirty->v, junk[x]);
            for (int64_t n = 0; n < c.batch; n++) call_copy_sequence(dirty, n, clean, n, 0);
            int count;
            const contender *all = contenders(&count);
            for (int w = 0; w < count; w++) {
                outputs p = run_call(clean, all[w]), q = run_call(dirty, all[w]);
                assert_same_bits(clean, &p, &q, "junk in unused slots");
                outputs_free(&p);
                outputs_free(&q);
            }
        }
        call_free(source);
        call_free(clean);
        call_free(dirty);
    }
}

static void A2_paged_rows_without_keys(void **state) {
    (void)state;
    static const int32_t used[] = {3, 0};
    for (int i = 0; i < PAGE_SIZES; i++) {
        attention_case c = case_default("A2");
        c.index = (uint64_t)i;
        c.seqlen_q = 8;
        c.page_size = page_sizes[i];
        c.seqused_k = used;
        c.causal = FA_CAUSAL_BOTTOM_RIGHT;
        judge_case_all_types(c);
        attention_call *a = call_new(&c);
        int count;
        const contender *all = contenders(&count);
        for (int w = 0; w < count; w++) {
            outputs o = run_call(a, all[w]);
            for (int64_t n = 0; n < 2; n++)
                for (int64_t h = 0; h < c.heads; h++)
                    for (int64_t row = 0; row < 8; row++) {
                        bool empty = n == 1 || row < 5;
                        double lse = tensor_get(o.lse, call_lse_number(a, o.lse, n, h, row));
                        if (empty != (lse == -(double)INFINITY)) call_fail(a, "row %" PRId64 ": lse %g", row, lse);
                    }
            outputs_free(&o);
        }
        call_free(a);
    }
}

/* ---- Left padding (H3) ---- */

/* The answer is that of the same sequences without the padding, whatever else is asked for. */
static void H3_left_padding_is_as_if_it_were_not_there(void **state) {
    (void)state;
    static const int32_t leftpad[] = {0, 3}, used[] = {70, 70}, shorter[] = {70, 67};
    for (int i = -1; i < PAGE_SIZES; i++)
        for (int features = 0; features < 4; features++) {
            attention_case c = case_default("H3");
            c.index = (uint64_t)(4 * (i + 1) + features);
            c.page_size = i < 0 ? 0 : page_sizes[i];
            c.used_k = true;
            c.seqused_k = used;
            c.leftpad = true;
            c.leftpad_k = leftpad;
            c.causal = features & 1 ? FA_CAUSAL_BOTTOM_RIGHT : FA_CAUSAL_TOP_LEFT;
            c.alibi = features & 1;
            c.window = (features & 2) != 0;
            c.window_left = 9;
            c.window_right = FA_WINDOW_OPEN;
            attention_call *padded = call_new(&c);
            call_poison_hidden(padded); /* NaN in the padding */
            c.leftpad = false;
            c.page_size = 0;
            c.seqused_k = shorter;
            attention_call *plain = call_new(&c);
            for (int64_t n = 0; n < c.batch; n++) call_copy_sequence(plain, n, padded, n, 0);
            for (int64_t h = 0; c.alibi && h < c.heads; h++) tensor_put(plain->alibi, h, tensor_get(padded->alibi, h));
            yardstick *y = yardstick_new(plain);
            int count;
            const contender *all = contenders(&count);
            for (int w = 0; w < count; w++) {
                outputs o = run_call(padded, all[w]);
                judge_outputs(plain, y, all[w], &o);
                outputs_free(&o);
            }
            yardstick_free(y);
            call_free(padded);
            call_free(plain);
        }
}

/* ---- Token by token, and heads of one rank (H4) ---- */

/* Runs the queries of a `chunk` at a time on the cache as far as it is filled then, and judges all of them together as
 * the one call that they make up. */
static void expect_chunks_equal_one_call(attention_case c, int64_t chunk) {
    attention_call *whole = call_new(&c);
    yardstick *y = yardstick_new(whole);
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        outputs o = {call_new_out(whole, c.type), call_new_lse(whole, c.type)};
        for (int64_t first = 0; first < c.seqlen_q; first += chunk) {
            int64_t rows = c.seqlen_q - first < chunk ? c.seqlen_q - first : chunk;
            const int32_t filled[] = {(int32_t)(first + rows), (int32_t)(first + rows)};
            attention_case part_case = c;
            part_case.seqlen_q = rows;
            part_case.used_k = true;
            part_case.seqused_k = filled;
            attention_call *part = call_new(&part_case);
            tensor_poison(part->k);
            tensor_poison(part->v);
            for (int64_t n = 0; n < c.batch; n++) call_copy_sequence(part, n, whole, n, first);
            for (int64_t h = 0; c.alibi && h < c.heads; h++) tensor_put(part->alibi, h, tensor_get(whole->alibi, h));
            outputs p = run_call(part, all[w]);
            for (int64_t n = 0; n < c.batch; n++)
                for (int64_t h = 0; h < c.heads; h++)
                    for (int64_t i = 0; i < rows; i++) {
                        int64_t to = call_q_number(whole, o.out, n, h, first + i);
                        int64_t from = call_q_number(part, p.out, n, h, i);
                        for (int64_t d = 0; d < c.head_dim_v; d++)
                            tensor_put(o.out, to + d, tensor_get(p.out, from + d));
                        tensor_put(o.lse, call_lse_number(whole, o.lse, n, h, first + i),
                                   tensor_get(p.lse, call_lse_number(part, p.lse, n, h, i)));
                    }
            outputs_free(&p);
            call_free(part);
        }
        judge_outputs(whole, y, all[w], &o);
        outputs_free(&o);
    }
    yardstick_free(y);
    call_free(whole);
}

static void H4_token_by_token_equals_one_call(void **state) {
    (void)state;
    static const int64_t chunks[] = {1, 7, 40};
    for (int paged = 0; paged < 2; paged++)
        for (int features = 0; features < 4; features++)
            for (int n = 0; n < 3; n++) {
                attention_case c = case_default("H4");
                c.index = (uint64_t)(features * 2 + paged);
                c.seqlen_q = c.seqlen_k = 70;
                c.head_dim = c.head_dim_v = 16;
                c.causal = FA_CAUSAL_BOTTOM_RIGHT;
                c.page_size = paged ? 16 : 0;
                static const int32_t full[] = {70, 70};
                c.seqused_k = full;
                c.alibi = (features & 1) != 0;
                c.window = (features & 2) != 0;
                c.window_left = 20;
                expect_chunks_equal_one_call(c, chunks[n]);
            }
}

/* Heads 4..7 of 8 with their own slopes: the same bits as within all 8. */
static void H4_heads_of_one_rank(void **state) {
    (void)state;
    for (int heads_kv = 8; heads_kv >= 2; heads_kv /= 2) {
        attention_case c = case_default("H4 rank");
        c.index = (uint64_t)heads_kv;
        c.heads = 8;
        c.heads_kv = heads_kv;
        c.seqlen_q = c.seqlen_k = 70;
        c.causal = FA_CAUSAL_BOTTOM_RIGHT;
        c.alibi = c.sink = true;
        c.num_splits = 1;
        attention_call *whole = call_new(&c);
        judge_call(whole);
        c.heads = 4;
        c.heads_kv = heads_kv / 2;
        attention_call *rank = call_new(&c);
        tensor *const to[] = {rank->q, rank->k, rank->v};
        const tensor *const from[] = {whole->q, whole->k, whole->v};
        for (int t = 0; t < 3; t++) {
            int64_t width = to[t]->shape[2] * to[t]->shape[3], rows = tensor_count(to[t]) / width;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < width; i++)
                    tensor_put(to[t], r * width + i, tensor_get(from[t], (2 * r + 1) * width + i));
        }
        for (int64_t h = 0; h < 4; h++) {
            tensor_put(rank->alibi, h, tensor_get(whole->alibi, 4 + h));
            tensor_put(rank->sink, h, tensor_get(whole->sink, 4 + h));
        }
        int count;
        const contender *all = contenders(&count);
        for (int w = 0; w < count; w++) {
            outputs x = run_call(whole, all[w]), y = run_call(rank, all[w]);
            for (int64_t n = 0; n < c.batch; n++)
                for (int64_t h = 0; h < 4; h++)
                    for (int64_t i = 0; i < c.seqlen_q; i++) {
                        int64_t a = call_q_number(whole, x.out, n, 4 + h, i), b = call_q_number(rank, y.out, n, h, i);
                        for (int64_t d = 0; d < c.head_dim_v; d++)
                            assert_memory_equal(tensor_address(x.out, a + d), tensor_address(y.out, b + d), 4);
                        assert_memory_equal(tensor_address(x.lse, call_lse_number(whole, x.lse, n, 4 + h, i)),
                                            tensor_address(y.lse, call_lse_number(rank, y.lse, n, h, i)), 4);
                    }
            outputs_free(&x);
            outputs_free(&y);
        }
        call_free(whole);
        call_free(rank);
    }
}

RUN_TESTS(cmocka_unit_test(H1_any_page_size_gives_the_bits_of_contiguous_keys),
          cmocka_unit_test(H1_pages_with_everything_else), cmocka_unit_test(H1_packed_queries_on_pages),
          cmocka_unit_test(H1_decode_on_pages_with_split_keys), cmocka_unit_test(pages_shared_between_sequences),
          cmocka_unit_test(entries_that_are_read_are_checked), cmocka_unit_test(B5_unused_slots_do_not_leak),
          cmocka_unit_test(A2_paged_rows_without_keys), cmocka_unit_test(H3_left_padding_is_as_if_it_were_not_there),
          cmocka_unit_test(H4_token_by_token_equals_one_call), cmocka_unit_test(H4_heads_of_one_rank))
