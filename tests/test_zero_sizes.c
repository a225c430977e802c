/* SPDX-License-Identifier: Apache-2.0 */
/* Dimensions of size zero (A11, K6): the call succeeds, and what is left of out and lse is written. */
#include "flashattn.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef enum call_kind { DENSE, PACKED, PAGED } call_kind;

/* Compact; without data if it has no elements. */
static fa_tensor plain(void *data, fa_dtype dtype, int ndim, int64_t *shape) {
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= shape[i];
    return (fa_tensor){
        .data = count == 0 ? NULL : data, .device = {FA_DEVICE_CPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape};
}

static void expect_zeros(call_kind kind, fa_isa isa, int64_t b, int64_t h, int64_t sq, int64_t sk) {
    static float zeros[320], result[320], sums[64];
    const fa_dtype float32 = FA_FLOAT32, int32 = FA_INT32;
    int32_t cu_q[] = {0, (int32_t)sq, (int32_t)(2 * sq)}, cu_k[] = {0, (int32_t)sk, (int32_t)(2 * sk)};
    int32_t used[] = {(int32_t)sk, (int32_t)sk}, pages[] = {1, 0};
    int64_t entries = b + 1, table_shape[] = {b, sk == 0 ? 0 : 1};
    int64_t q_shape[] = {b, sq, h, 8}, k_shape[] = {b, sk, h, 8}, lse_shape[] = {b, h, sq};
    int packed = kind == PACKED;
    if (packed) q_shape[1] = lse_shape[2] = b * sq, k_shape[1] = b * sk;
    if (kind == PAGED) k_shape[1] = 5;
    fa_tensor q = plain(zeros, float32, 4 - packed, q_shape + packed);
    fa_tensor k = plain(zeros, float32, 4 - packed, k_shape + packed);
    fa_tensor out = plain(result, float32, 4 - packed, q_shape + packed);
    fa_tensor lse = plain(sums, float32, 3 - packed, lse_shape + packed);
    fa_tensor starts_q = plain(cu_q, int32, 1, &entries), starts_k = plain(cu_k, int32, 1, &entries);
    fa_tensor lengths = plain(used, int32, 1, table_shape), table = plain(pages, int32, 2, table_shape);
    fa_options o = {.size = sizeof o, .isa = isa, .kernel = FA_KERNEL_CPU};
    if (packed) o.cu_seqlens_q = &starts_q, o.cu_seqlens_k = &starts_k;
    if (kind == PAGED) o.seqused_k = &lengths, o.block_table = &table;
    memset(result, 0xff, sizeof result);
    memset(sums, 0xff, sizeof sums);
    fa_plan_info info = {.size = sizeof info};
    if (fa_plan(&q, &k, &k, &o, &out, &lse, &info) != FA_OK || fa_forward(&q, &k, &k, &o, &out, &lse) != FA_OK)
        fail_msg("b=%" PRId64 " h=%" PRId64 " Sq=%" PRId64 " Sk=%" PRId64 " kind %d: %s", b, h, sq, sk, (int)kind,
                 fa_last_error());
    int64_t rows = b * sq * h;
    for (int64_t i = 0; i < rows * 8; i++) assert_true(result[i] == 0);
    double expected = sk == 0 ? -(double)INFINITY : log((double)sk);
    for (int64_t i = 0; i < rows; i++)
        assert_true((double)sums[i] == expected || fabs((double)sums[i] - expected) < 1e-6);
    assert_true(isnan(result[rows * 8]) && isnan(sums[rows]));
}

/* Each of b, heads, seqlen_q, seqlen_k 0 or not, with no memory at all behind tensors without elements. */
static void K6_sizes_of_zero_need_no_memory(void **state) {
    (void)state;
    for (int zero = 0; zero < 16; zero++)
        for (call_kind kind = DENSE; kind <= PAGED; kind++)
            for (fa_isa isa = FA_ISA_AUTO; isa <= FA_ISA_NEON_BF16; isa++)
                if (fa_isa_supported(isa) == FA_OK)
                    expect_zeros(kind, isa, zero & 1 ? 0 : 2, zero & 2 ? 0 : 4, zero & 4 ? 0 : 3, zero & 8 ? 0 : 5);
}

RUN_TESTS(cmocka_unit_test(K6_sizes_of_zero_need_no_memory))
