/* SPDX-License-Identifier: Apache-2.0 */
/* More sequences, heads or keys than 16 bits count (D7 to D9). */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static void D7_65537_keys_with_a_boolean_mask(void **state) {
    (void)state;
    attention_case c = case_default("D7");
    c.batch = c.heads = c.heads_kv = 1;
    c.seqlen_q = 3;
    c.seqlen_k = 65537;
    c.head_dim = c.head_dim_v = 4;
    c.mask = (score_shape){.given = true, .queries = true, .keys = true};
    c.mask_hides = 0.5;
    judge_case(&c);
    c.type = FA_ELEMENT_BFLOAT16;
    judge_case(&c);
    /* Only the keys around 65,536 are visible. */
    c.type = FA_ELEMENT_FLOAT32;
    c.values = VALUES_ONE_HOT;
    attention_call *a = call_new(&c);
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < c.seqlen_k; j++) tensor_put_int(a->mask, i * c.seqlen_k + j, j >= 65535 - i);
    judge_call(a);
    call_free(a);
}

static void D8_batch_beyond_65535(void **state) {
    (void)state;
    attention_case c = case_default("D8 batch");
    c.batch = 65537;
    c.heads = c.heads_kv = 1;
    c.seqlen_q = 1;
    c.seqlen_k = 2;
    c.head_dim = c.head_dim_v = 2;
    judge_case(&c);
}

static void D8_heads_beyond_65535(void **state) {
    (void)state;
    attention_case c = case_default("D8 heads");
    c.batch = 1;
    c.heads = 71280;
    c.seqlen_q = c.seqlen_k = 3;
    c.head_dim = c.head_dim_v = 2;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    c.heads_kv = 71280;
    judge_case(&c);
    c.heads_kv = 1;
    judge_case(&c);
}

/* 80,000 packed sequences of 16. Channel 0 of all values of sequence n is n, so that the outputs must be n too; some
 * sequences are compared in full with a call of their own. D9: all outputs are poisoned before. */
static void D8_D9_80000_packed_sequences(void **state) {
    (void)state;
    enum { SEQUENCES = 80000, LENGTH = 16, DIM = 2 };
    static const int64_t samples[] = {0, 1, 255, 256, 32767, 32768, 65534, 65535, 65536, 65537, 79998, 79999};
    int32_t *lengths = calloc(SEQUENCES, sizeof *lengths);
    assert_non_null(lengths);
    for (int n = 0; n < SEQUENCES; n++) lengths[n] = LENGTH;
    attention_case c = case_default("D8 packed");
    c.batch = SEQUENCES;
    c.heads = c.heads_kv = 1;
    c.seqlen_q = c.seqlen_k = LENGTH;
    c.head_dim = c.head_dim_v = DIM;
    c.varlen_q = c.varlen_k = true;
    c.lengths_q = c.lengths_k = lengths;
    attention_call *many = call_new(&c);
    for (int64_t row = 0; row < (int64_t)SEQUENCES * LENGTH; row++)
        tensor_put(many->v, row * DIM, (double)(row / LENGTH));
    c.batch = 1;
    c.num_splits = 1;
    attention_call *alone = call_new(&c);
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        outputs o = run_call(many, all[w]);
        for (int64_t row = 0; row < (int64_t)SEQUENCES * LENGTH; row++) {
            double n = (double)(row / LENGTH), x = tensor_get(o.out, row * DIM);
            if (!(fabs(x - n) <= 2e-6 * n)) call_fail(many, "row %" PRId64 ": %.9g, not %g", row, x, n);
        }
        for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
            int64_t n = samples[i];
            call_copy_sequence(alone, 0, many, n, 0);
            outputs one = run_call(alone, all[w]);
            assert_same_sequence(alone, &one, 0, many, &o, n, 0, "alone and among 80,000");
            outputs_free(&one);
        }
        outputs_free(&o);
    }
    call_free(alone);
    call_free(many);
    free(lengths);
}

RUN_TESTS(cmocka_unit_test(D7_65537_keys_with_a_boolean_mask), cmocka_unit_test(D8_batch_beyond_65535),
          cmocka_unit_test(D8_heads_beyond_65535), cmocka_unit_test(D8_D9_80000_packed_sequences))
