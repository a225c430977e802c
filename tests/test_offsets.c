/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offsets beyond 2^31 and 2^32. The address functions are asked directly; then real calls run on sparse memory: gigabytes
 * of addresses, of which only the pages that hold elements exist.
 */
#include "problem.h"
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POW2(n) ((int64_t)1 << (n))

/* ---- Sparse tensors ---- */

/*
 * They share one region, since to emulators and sanitizers addresses are not free: some 32 bytes a page. The next one
 * begins behind the last; a test frees all that it has before it makes others.
 */
#define REGION_BYTES ((size_t)36 << 30)
static unsigned char *region;
static size_t region_used;

/* Strides in elements. Elements are anything until they are written. */
static tensor *sparse_new(fa_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride) {
    tensor *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->element_bytes = dtype.bits / 8;
    int64_t before = 0, behind = 1;
    for (int i = 0; i < ndim; i++) {
        t->shape[i] = shape[i];
        t->stride[i] = stride[i];
        int64_t span = stride[i] * (shape[i] - 1);
        *(span < 0 ? &before : &behind) += span < 0 ? -span : span;
    }
    if (region == NULL) {
        void *pages =
            mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pages == MAP_FAILED) {
            print_message("no %zu bytes of addresses here\n", REGION_BYTES);
            skip();
        }
        (void)madvise(pages, REGION_BYTES, MADV_NOHUGEPAGE); /* one element must not cost 2 MiB */
        region = pages;
    }
    t->page_bytes = ((size_t)((before + behind) * t->element_bytes) + 4095) / 4096 * 4096;
    assert_true(t->page_bytes <= REGION_BYTES - region_used);
    t->pages = region + region_used;
    region_used += t->page_bytes;
    t->origin = t->pages + before * t->element_bytes;
    t->fa = (fa_tensor){.data = t->origin,
                        .device = {FA_DEVICE_CPU, 0},
                        .ndim = ndim,
                        .dtype = dtype,
                        .shape = t->shape,
                        .strides = t->stride};
    return t;
}

static void sparse_free(tensor *t) {
    (void)madvise(t->pages, t->page_bytes, MADV_DONTNEED); /* gives the memory back, not the addresses */
    if (region_used > (size_t)(t->pages - region)) region_used = (size_t)(t->pages - region);
    free(t);
}

/* Set-up of a test: what one that failed has left is of no use. */
static int empty_region(void **state) {
    (void)state;
    region_used = 0;
    return 0;
}

static void compact_strides(int ndim, const int64_t *shape, int64_t *stride) {
    int64_t span = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = span;
        span *= shape[i];
    }
}

/* The same shape and elements, but this stride in one dimension. */
static tensor *sparse_copy(const tensor *from, int dimension, int64_t stride) {
    int64_t strides[TENSOR_DIMS];
    compact_strides(from->fa.ndim, from->shape, strides);
    strides[dimension] = stride;
    tensor *t = sparse_new(from->fa.dtype, from->fa.ndim, from->shape, strides);
    int64_t count = tensor_count(from);
    for (int64_t i = 0; i < count; i++)
        memcpy(tensor_address(t, i), tensor_address(from, i), (size_t)from->element_bytes);
    return t;
}

static void poison_elements(tensor *t) {
    int64_t count = tensor_count(t);
    for (int64_t i = 0; i < count; i++) memset(tensor_address(t, i), 0xff, (size_t)t->element_bytes);
}

/* ---- The address functions ---- */

#define BASE (POW2(60)) /* of tensors that are never read */

static fa_tensor somewhere(fa_dtype dtype, int ndim, int64_t *shape, int64_t *stride) {
    return (fa_tensor){.data = (void *)(uintptr_t)BASE,
                       .device = {FA_DEVICE_CPU, 0},
                       .ndim = ndim,
                       .dtype = dtype,
                       .shape = shape,
                       .strides = stride};
}

static int64_t offset_of(const void *address) { return (int64_t)((uintptr_t)address - (uintptr_t)BASE); }

static fa_problem problem_of(const fa_tensor *q, const fa_tensor *k, const fa_tensor *v, const fa_options *o,
                             const fa_tensor *out) {
    fa_problem p;
    if (fa_problem_init(&p, q, k, v, o, out, NULL, false) != FA_OK) fail_msg("%s", fa_last_error());
    return p;
}

/* Numbers of the reports, in compact tensors. */
static void D1_D2_D3_addresses_of_rows(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t shape[4], stride[4], index[3], offset; /* offset in elements */
    } rows[] = {{"D1", {1, 221000, 1, 128}, {0, 9728, 128, 1}, {0, 220753, 0}, 2147485184},
                {"D1", {1, 450000, 1, 128}, {0, 9728, 128, 1}, {0, 441506, 0}, 4294970368},
                {"D2", {15000, 12, 12, 128}, {0}, {14999, 11, 11}, 276479872},
                {"D2", {15000, 2048, 12, 128}, {0}, {14999, 2047, 11}, 47185919872},
                {"D3", {5, 4096, 8, 128}, {POW2(30), 1024, 128, 1}, {4, 0, 0}, 4294967296},
                {"D3", {5, 4096, 8, 128}, {POW2(30), 1024, 128, 1}, {3, 4095, 7}, 3225419648},
                {"negative", {5, 4096, 8, 128}, {-POW2(40), 1024, 128, 1}, {4, 4095, 7}, -4398042316928},
                {"negative", {2, 3, 4, 128}, {POW2(50), -POW2(48), POW2(46), 1}, {1, 2, 3}, 774056185954304}};
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++)
        for (int type = FA_ELEMENT_FLOAT32; type <= FA_ELEMENT_BFLOAT16; type++) {
            int64_t shape[4], stride[4], out_stride[4];
            memcpy(shape, rows[n].shape, sizeof shape);
            memcpy(stride, rows[n].stride, sizeof stride);
            compact_strides(4, shape, out_stride);
            if (stride[3] == 0) memcpy(stride, out_stride, sizeof stride);
            fa_tensor t = somewhere(dtype_of_element((fa_element)type), 4, shape, stride);
            fa_tensor out = somewhere(dtype_of_element((fa_element)type), 4, shape, out_stride);
            out.data = NULL; /* anywhere else */
            fa_problem p = problem_of(&t, &t, &t, NULL, &out);
            fa_sequence s = fa_problem_sequence(&p, rows[n].index[0]);
            int64_t bytes = fa_element_size((fa_element)type), row = rows[n].index[1], head = rows[n].index[2];
            int64_t q = offset_of(fa_query_address(&p.q, &s, row, head));
            int64_t v = offset_of(fa_key_address(&p, &p.v, &s, row, head));
            if (q != rows[n].offset * bytes || v != rows[n].offset * bytes)
                fail_msg("%s, %" PRId64 " bytes an element: %" PRId64 " and %" PRId64 ", not %" PRId64, rows[n].name,
                         bytes, q, v, rows[n].offset * bytes);
        }
}

static void D4_addresses_of_pages(void **state) {
    (void)state;
    int32_t pages[] = {5, 1000000, 1048575, 131072};
    int64_t table_shape[] = {1, 4}, one = 1, k_shape[] = {1048576, 32, 4, 128}, q_shape[] = {1, 1, 4, 128};
    int32_t used = 128;
    fa_tensor table = {pages, {FA_DEVICE_CPU, 0}, 2, FA_INT32, table_shape, NULL, 0};
    fa_tensor lengths = {&used, {FA_DEVICE_CPU, 0}, 1, FA_INT32, &one, NULL, 0};
    fa_tensor q = somewhere((fa_dtype)FA_BFLOAT16, 4, q_shape, NULL), out = q;
    fa_tensor k = somewhere((fa_dtype)FA_BFLOAT16, 4, k_shape, NULL);
    out.data = NULL;
    fa_options o = {.size = sizeof o, .seqused_k = &lengths, .block_table = &table};
    fa_problem p = problem_of(&q, &k, &k, &o, &out);
    fa_sequence s = fa_problem_sequence(&p, 0);
    for (int64_t key = 0; key < 128; key++)
        for (int64_t head = 0; head < 4; head++) {
            int64_t expected = 2 * (((int64_t)pages[key / 32] * 32 + key % 32) * 512 + head * 128);
            assert_int_equal(offset_of(fa_key_address(&p, &p.k, &s, key, head)), expected);
        }
}

static void D5_D6_addresses_of_bias_and_mask(void **state) {
    (void)state;
    static const struct {
        int64_t shape[4], index[4], offset;
    } scores[] = {{{1, 1, 8192, 524288}, {0, 0, 8191, 524287}, 4294967295},
                  {{1, 1, 65536, 524288}, {0, 0, 65535, 524287}, 34359738367},
                  {{2, 16, 12180, 12180}, {1, 15, 12179, 12179}, 4747276799},
                  {{64, 128, 32768, 32768}, {63, 127, 32767, 32767}, 8796093022207}};
    for (size_t n = 0; n < sizeof scores / sizeof scores[0]; n++) {
        int64_t shape[4], q_shape[4], k_shape[4];
        memcpy(shape, scores[n].shape, sizeof shape);
        memcpy(q_shape, (int64_t[]){shape[0], shape[2], shape[1], 1}, sizeof q_shape);
        memcpy(k_shape, (int64_t[]){shape[0], shape[3], 1, 1}, sizeof k_shape);
        fa_tensor q = somewhere((fa_dtype)FA_FLOAT32, 4, q_shape, NULL), out = q;
        fa_tensor k = somewhere((fa_dtype)FA_FLOAT32, 4, k_shape, NULL);
        fa_tensor mask = somewhere((fa_dtype)FA_BOOL, 4, shape, NULL);
        fa_tensor bias = somewhere((fa_dtype)FA_FLOAT16, 4, shape, NULL);
        out.data = NULL;
        fa_options o = {.size = sizeof o, .bias = &bias, .mask = &mask};
        fa_problem p = problem_of(&q, &k, &k, &o, &out);
        const int64_t *i = scores[n].index;
        assert_int_equal(offset_of(fa_score_address(&p.mask, i[0], i[1], i[2], i[3])), scores[n].offset);
        assert_int_equal(offset_of(fa_score_address(&p.bias, i[0], i[1], i[2], i[3])), 2 * scores[n].offset);
    }
}

/* ---- Every stride of every tensor beyond 2^31 and 2^32 elements ---- */

typedef enum place { IN_Q, IN_K, IN_V, IN_OUT, IN_LSE, IN_BIAS, IN_MASK, PLACES } place;

static const char *const place_names[PLACES] = {"q", "k", "v", "out", "lse", "bias", "mask"};

/* One call with the tensor at `where` replaced; the outputs must be those of the compact call. */
static void expect_same_with(attention_call *a, const outputs *expected, contender who, place where, tensor *sparse,
                             int dimension) {
    outputs o = {call_new_out(a, a->c.type), call_new_lse(a, FA_ELEMENT_FLOAT32)};
    tensor *t[PLACES] = {a->q, a->k, a->v, o.out, o.lse, a->bias, a->mask};
    t[where] = sparse;
    fa_options options = a->options;
    options.kernel = who.kernel;
    options.isa = who.isa;
    options.bias = &t[IN_BIAS]->fa;
    options.mask = &t[IN_MASK]->fa;
    if (fa_forward(&t[IN_Q]->fa, &t[IN_K]->fa, &t[IN_V]->fa, &options, &t[IN_OUT]->fa, &t[IN_LSE]->fa) != FA_OK)
        call_fail(a, "%s.strides[%d] = %" PRId64 ": %s", place_names[where], dimension, sparse->stride[dimension],
                  fa_last_error());
    char what[64];
    (void)snprintf(what, sizeof what, "%s.strides[%d] = %" PRId64, place_names[where], dimension,
                   sparse->stride[dimension]);
    outputs result = {t[IN_OUT], t[IN_LSE]};
    assert_same_bits(a, expected, &result, what);
    outputs_free(&o);
}

static void expect_any_stride(const attention_case *c) {
    static const int64_t strides[] = {POW2(31) + 3, POW2(32) + 5, -POW2(32) - 5};
    attention_call *a = call_new(c);
    judge_call(a);
    int count;
    const contender *all = contenders(&count);
    outputs expected[CONTENDERS];
    for (int w = 0; w < count; w++) expected[w] = run_call(a, all[w]);
    const tensor *t[PLACES] = {a->q, a->k, a->v, expected[0].out, expected[0].lse, a->bias, a->mask};
    for (place where = IN_Q; where < PLACES; where++) {
        int dimensions = t[where]->fa.ndim - (where <= IN_OUT ? 1 : 0); /* the last of these must be contiguous */
        for (int i = 0; i < dimensions; i++)
            for (size_t n = 0; n < sizeof strides / sizeof strides[0]; n++) {
                tensor *sparse = sparse_copy(t[where], i, strides[n]);
                for (int w = 0; w < count; w++) {
                    if (where == IN_OUT || where == IN_LSE) poison_elements(sparse);
                    expect_same_with(a, &expected[w], all[w], where, sparse, i);
                }
                sparse_free(sparse);
            }
    }
    for (int w = 0; w < count; w++) outputs_free(&expected[w]);
    call_free(a);
}

static attention_case small_case(const char *name) {
    attention_case c = case_default(name);
    c.type = c.bias_type = FA_ELEMENT_BFLOAT16;
    c.heads = c.heads_kv = 2;
    c.seqlen_q = c.seqlen_k = 3;
    c.head_dim = 8;
    c.head_dim_v = 6;
    c.bias = c.mask = (score_shape){.given = true, .batch = true, .heads = true, .queries = true, .keys = true};
    c.mask_hides = 0.2;
    return c;
}

static void D1_D5_D6_every_stride_of_dense_tensors(void **state) {
    (void)state;
    attention_case c = small_case("dense");
    expect_any_stride(&c);
}

static void D1_every_stride_of_packed_tensors(void **state) {
    (void)state;
    attention_case c = small_case("packed");
    static const int32_t lengths_q[] = {1, 2}, lengths_k[] = {2, 1};
    c.varlen_q = c.varlen_k = true;
    c.lengths_q = lengths_q;
    c.lengths_k = lengths_k;
    expect_any_stride(&c);
}

static void D4_every_stride_of_pages(void **state) {
    (void)state;
    attention_case c = small_case("paged");
    c.page_size = 3; /* one page for each sequence, and three that are not used */
    expect_any_stride(&c);
}

/* ---- The reports' own sizes ---- */

/* Outputs of the call with other k and v; fails the test unless they are the expected bits. */
static void expect_same_with_keys(attention_call *a, contender who, const outputs *expected, const tensor *k,
                                  const tensor *v, const char *what) {
    outputs o = {call_new_out(a, a->c.type), call_new_lse(a, FA_ELEMENT_FLOAT32)};
    fa_options options = a->options;
    options.kernel = who.kernel;
    options.isa = who.isa;
    if (fa_forward(&a->q->fa, &k->fa, &v->fa, &options, &o.out->fa, &o.lse->fa) != FA_OK)
        call_fail(a, "%s: %s", what, fa_last_error());
    assert_same_bits(a, expected, &o, what);
    outputs_free(&o);
}

/* Copies the last rows of a result into outputs of the call `a`, and judges them there. */
static void judge_copy(attention_call *a, const yardstick *y, contender who, const tensor *out, const tensor *lse) {
    outputs o = {call_new_out(a, a->c.type), call_new_lse(a, FA_ELEMENT_FLOAT32)};
    int64_t count = tensor_count(o.out), first = tensor_count(out) - count;
    for (int64_t i = 0; i < count; i++) tensor_put(o.out, i, tensor_get(out, first + i));
    count = tensor_count(o.lse);
    first = tensor_count(lse) - count;
    for (int64_t i = 0; i < count; i++) tensor_put(o.lse, i, tensor_get(lse, first + i));
    judge_outputs(a, y, who, &o);
    outputs_free(&o);
}

static fa_tensor int_vector(int32_t *data, int64_t *length) {
    return (fa_tensor){data, {FA_DEVICE_CPU, 0}, 1, FA_INT32, length, NULL, 0};
}

/* A long packed q, k, v of row stride 9728, of which only the second sequence, beyond 2^31 elements, holds data. */
static void D1_packed_rows_beyond_2_to_the_31(void **state) {
    (void)state;
    enum { FIRST = 220760, ROWS = 16 };
    attention_case c = case_default("D1");
    c.batch = c.heads = c.heads_kv = 1;
    c.seqlen_q = c.seqlen_k = ROWS;
    c.head_dim = c.head_dim_v = 8;
    c.causal = FA_CAUSAL_BOTTOM_RIGHT;
    attention_call *a = call_new(&c);
    yardstick *y = yardstick_new(a);

    int64_t shape[] = {FIRST + ROWS, 1, 8}, stride[] = {9728, 8, 1};
    tensor *long_ones[3];
    const tensor *short_ones[] = {a->q, a->k, a->v};
    for (int t = 0; t < 3; t++) {
        long_ones[t] = sparse_new((fa_dtype)FA_FLOAT32, 3, shape, stride);
        for (int64_t i = 0; i < ROWS * 8; i++)
            tensor_put(long_ones[t], (int64_t)FIRST * 8 + i, tensor_get(short_ones[t], i));
    }
    int32_t starts[] = {0, FIRST, FIRST + ROWS}, used[] = {0, ROWS};
    int64_t three = 3, two = 2, lse_shape[] = {1, FIRST + ROWS};
    fa_tensor cu = int_vector(starts, &three), seqused = int_vector(used, &two);
    tensor *out = tensor_new((fa_dtype)FA_FLOAT32, 3, shape, LAYOUT_COMPACT, true, &a->random);
    tensor *lse = tensor_new((fa_dtype)FA_FLOAT32, 2, lse_shape, LAYOUT_COMPACT, false, &a->random);
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        fa_options o = {.size = sizeof o, .isa = all[w].isa, .kernel = all[w].kernel, .causal = c.causal};
        o.cu_seqlens_q = o.cu_seqlens_k = &cu;
        o.seqused_k = &seqused;
        tensor_poison(out);
        tensor_poison(lse);
        if (fa_forward(&long_ones[0]->fa, &long_ones[1]->fa, &long_ones[2]->fa, &o, &out->fa, &lse->fa) != FA_OK)
            fail_msg("%s", fa_last_error());
        judge_copy(a, y, all[w], out, lse);
        for (int64_t i = 0; i < FIRST; i++) {
            assert_true(tensor_get(lse, i) == -(double)INFINITY);
            for (int64_t j = 0; j < 8; j++) assert_true(tensor_get(out, i * 8 + j) == 0);
        }
    }
    for (int t = 0; t < 3; t++) sparse_free(long_ones[t]);
    tensor_free(out);
    tensor_free(lse);
    yardstick_free(y);
    call_free(a);
}

/* A cache of batch stride 2^30: slot 4 lies 2^32 elements behind slot 0, which is full of NaN and not used. */
static void D3_slots_of_a_cache_with_batch_stride_2_to_the_30(void **state) {
    (void)state;
    static const int32_t used[] = {0, 7, 1, 9, 9};
    attention_case c = case_default("D3");
    c.batch = 5;
    c.seqlen_q = 2;
    c.seqlen_k = 9;
    c.used_k = true;
    c.seqused_k = used;
    attention_call *a = call_new(&c);
    judge_call(a); /* also fills what is not used with NaN */
    tensor *k = sparse_copy(a->k, 0, POW2(30)), *v = sparse_copy(a->v, 0, POW2(30));
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        outputs expected = run_call(a, all[w]);
        expect_same_with_keys(a, all[w], &expected, k, v, "batch stride 2^30");
        outputs_free(&expected);
    }
    sparse_free(k);
    sparse_free(v);
    call_free(a);
}

/* V is K here, which saves addresses. */
static void D4_page_ids_around_a_million(void **state) {
    (void)state;
    enum { PAGES = 1000100 };
    static const int32_t used[] = {70, 33};
    attention_case c = case_default("D4");
    c.type = FA_ELEMENT_BFLOAT16;
    c.heads = c.heads_kv = 4;
    c.head_dim = c.head_dim_v = 128;
    c.v_in_k = true;
    c.seqlen_q = 2;
    c.page_size = 32;
    c.seqused_k = used;
    attention_call *a = call_new(&c);
    judge_call(a);

    int64_t shape[] = {PAGES, 32, 4, 128}, stride[4], page_elements = 32 * 4 * 128;
    compact_strides(4, shape, stride);
    tensor *k = sparse_new((fa_dtype)FA_BFLOAT16, 4, shape, stride);
    int count;
    const contender *all = contenders(&count);
    outputs expected[CONTENDERS];
    for (int w = 0; w < count; w++) expected[w] = run_call(a, all[w]);
    for (int64_t n = 0; n < tensor_count(a->block_table); n++) {
        int64_t page = tensor_get_int(a->block_table, n);
        if (page < 0) continue; /* not used */
        int64_t far = n % 3 == 0 ? 131072 + page : PAGES - 1 - 7 * page;
        for (int64_t i = 0; i < page_elements; i++)
            tensor_put(k, far * page_elements + i, tensor_get(a->k, page * page_elements + i));
        tensor_put_int(a->block_table, n, far);
    }
    for (int w = 0; w < count; w++) {
        expect_same_with_keys(a, all[w], &expected[w], k, k, "pages around number 1,000,000");
        outputs_free(&expected[w]);
    }
    sparse_free(k);
    call_free(a);
}

/* 8192 queries at the end of 524,288 keys, each of which sees only its own key, and that if the mask lets it. */
static void D5_mask_of_8192_by_524288(void **state) {
    (void)state;
    enum { QUERIES = 8192, KEYS = 524288 };
    int64_t q_shape[] = {1, QUERIES, 1, 1}, k_shape[] = {1, KEYS, 1, 1}, lse_shape[] = {1, 1, QUERIES};
    int64_t mask_shape[] = {1, 1, QUERIES, KEYS}, stride[4], broadcast[] = {0, 0, 0, 1};
    compact_strides(4, mask_shape, stride);
    rng r = rng_named("D5", 0);
    tensor *q = sparse_new((fa_dtype)FA_FLOAT32, 4, q_shape, broadcast);
    tensor_put(q, 0, 0);
    tensor *v = tensor_new((fa_dtype)FA_FLOAT32, 4, k_shape, LAYOUT_COMPACT, true, &r);
    tensor *out = tensor_new((fa_dtype)FA_FLOAT32, 4, q_shape, LAYOUT_COMPACT, true, &r);
    tensor *lse = tensor_new((fa_dtype)FA_FLOAT32, 3, lse_shape, LAYOUT_COMPACT, true, &r);
    tensor *mask = sparse_new((fa_dtype)FA_BOOL, 4, mask_shape, stride);
    bool *visible = calloc(QUERIES, sizeof *visible);
    assert_non_null(visible);
    for (int64_t j = 0; j < KEYS; j++) tensor_put(v, j, (double)j);
    for (int64_t i = 0; i < QUERIES; i++) {
        visible[i] = rng_chance(&r, 0.5) || i == QUERIES - 1;
        tensor_put_int(mask, i * KEYS + i + KEYS - QUERIES, visible[i]);
    }
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        fa_options o = {.size = sizeof o, .set = FA_SET_WINDOW, .isa = all[w].isa, .mask = &mask->fa};
        tensor_poison(out);
        tensor_poison(lse);
        fa_tensor k = v->fa; /* q is 0 */
        if (fa_forward(&q->fa, &k, &v->fa, &o, &out->fa, &lse->fa) != FA_OK) fail_msg("%s", fa_last_error());
        for (int64_t i = 0; i < QUERIES; i++) {
            double expected = visible[i] ? (double)(i + KEYS - QUERIES) : 0, x = tensor_get(out, i);
            if (!(x == expected)) fail_msg("query %" PRId64 ": %g, not %g", i, x, expected);
            assert_true(tensor_get(lse, i) == (visible[i] ? 0 : -(double)INFINITY));
        }
    }
    free(visible);
    sparse_free(q);
    sparse_free(mask);
    tensor_free(v);
    tensor_free(out);
    tensor_free(lse);
}

/* bias (2, 16, 12180, 12180). Only the last two queries of batch entry 1 see keys, two of them. */
static void D6_bias_of_2_16_12180_12180(void **state) {
    (void)state;
    enum { LENGTH = 12180, HEADS = 16 };
    int64_t q_shape[] = {2, LENGTH, HEADS, 1}, k_shape[] = {2, LENGTH, 1, 1}, lse_shape[] = {2, HEADS, LENGTH};
    int64_t bias_shape[] = {2, HEADS, LENGTH, LENGTH}, stride[4], broadcast[] = {0, 0, 0, 1}, two = 2;
    compact_strides(4, bias_shape, stride);
    rng r = rng_named("D6", 0);
    tensor *q = sparse_new((fa_dtype)FA_FLOAT32, 4, q_shape, broadcast);
    tensor_put(q, 0, 0);
    tensor *v = tensor_new((fa_dtype)FA_FLOAT32, 4, k_shape, LAYOUT_COMPACT, true, &r);
    tensor *out = tensor_new((fa_dtype)FA_FLOAT32, 4, q_shape, LAYOUT_COMPACT, true, &r);
    tensor *lse = tensor_new((fa_dtype)FA_FLOAT32, 3, lse_shape, LAYOUT_COMPACT, true, &r);
    tensor *bias = sparse_new((fa_dtype)FA_FLOAT16, 4, bias_shape, stride);
    int64_t first_v = LENGTH; /* of batch entry 1 */
    tensor_put(v, first_v, 1);
    tensor_put(v, first_v + 1, 0);
    double b[HEADS][3]; /* row LENGTH - 2 sees key 0, row LENGTH - 1 keys 0 and 1 */
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t n = 0; n < 3; n++) {
            int64_t row = n == 0 ? LENGTH - 2 : LENGTH - 1, key = n == 2 ? 1 : 0;
            int64_t number = ((HEADS + h) * LENGTH + row) * LENGTH + key;
            tensor_put(bias, number, rng_normal(&r));
            b[h][n] = tensor_get(bias, number);
        }
    int32_t lengths[] = {0, 2};
    fa_tensor used = int_vector(lengths, &two);
    int count;
    const contender *all = contenders(&count);
    for (int w = 0; w < count; w++) {
        fa_options o = {.size = sizeof o,
                        .isa = all[w].isa,
                        .causal = FA_CAUSAL_BOTTOM_RIGHT,
                        .bias = &bias->fa,
                        .seqused_k = &used};
        tensor_poison(out);
        tensor_poison(lse);
        fa_tensor k = q->fa; /* 0 as well */
        k.shape = k_shape;
        if (fa_forward(&q->fa, &k, &v->fa, &o, &out->fa, &lse->fa) != FA_OK) fail_msg("%s", fa_last_error());
        for (int64_t n = 0; n < 2; n++)
            for (int64_t i = 0; i < LENGTH; i++)
                for (int64_t h = 0; h < HEADS; h++) {
                    double expected = 0, sum = -(double)INFINITY;
                    if (n == 1 && i == LENGTH - 2) expected = 1, sum = b[h][0];
                    if (n == 1 && i == LENGTH - 1) {
                        expected = 1 / (1 + exp(b[h][2] - b[h][1]));
                        sum = log(exp(b[h][1]) + exp(b[h][2]));
                    }
                    double x = tensor_get(out, (n * LENGTH + i) * HEADS + h);
                    double l = tensor_get(lse, (n * HEADS + h) * LENGTH + i);
                    if (!(fabs(x - expected) <= 1e-6) || !(l == sum || fabs(l - sum) <= 1e-6))
                        fail_msg("batch %" PRId64 ", row %" PRId64 ", head %" PRId64 ": %g and %g, not %g and %g", n, i,
                                 h, x, l, expected, sum);
                }
    }
    sparse_free(q);
    sparse_free(bias);
    tensor_free(v);
    tensor_free(out);
    tensor_free(lse);
}

/* ---- More working memory than there are addresses ---- */

#ifdef __has_feature
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#        define SANITIZED
#    endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define SANITIZED
#endif

static void workspace_beyond_all_addresses_is_out_of_memory(void **state) {
    (void)state;
#ifdef SANITIZED
    skip(); /* the allocators of sanitizers stop the program */
#endif
    int64_t rows = POW2(32), q_shape[] = {1, rows, 1, 1}, k_shape[] = {1, 256, 1, 1}, broadcast[] = {0, 0, 0, 1};
    int64_t stride[4];
    compact_strides(4, q_shape, stride);
    tensor *q = sparse_new((fa_dtype)FA_FLOAT16, 4, q_shape, broadcast);
    tensor *k = sparse_new((fa_dtype)FA_FLOAT16, 4, k_shape, broadcast);
    tensor *out = sparse_new((fa_dtype)FA_FLOAT16, 4, q_shape, stride);
    tensor_put(out, 0, 42);
    tensor_put(out, tensor_count(out) - 1, 43);
    fa_options o = {.size = sizeof o, .num_splits = 256};
    fa_plan_info info = {.size = sizeof info};
    assert_int_equal(fa_plan(&q->fa, &k->fa, &k->fa, &o, &out->fa, NULL, &info), FA_OK);
    assert_true(info.workspace_bytes > POW2(47));
    assert_int_equal(fa_forward(&q->fa, &k->fa, &k->fa, &o, &out->fa, NULL), FA_OUT_OF_MEMORY);
    char bytes[32];
    (void)snprintf(bytes, sizeof bytes, "%" PRId64 " bytes", info.workspace_bytes);
    if (strstr(fa_last_error(), bytes) == NULL) fail_msg("\"%s\" does not tell %s", fa_last_error(), bytes);
    assert_true(tensor_get(out, 0) == 42 && tensor_get(out, tensor_count(out) - 1) == 43);
    sparse_free(q);
    sparse_free(k);
    sparse_free(out);
}

RUN_TESTS(cmocka_unit_test(D1_D2_D3_addresses_of_rows), cmocka_unit_test(D4_addresses_of_pages),
          cmocka_unit_test(D5_D6_addresses_of_bias_and_mask),
          cmocka_unit_test_setup(D1_D5_D6_every_stride_of_dense_tensors, empty_region),
          cmocka_unit_test_setup(D1_every_stride_of_packed_tensors, empty_region),
          cmocka_unit_test_setup(D4_every_stride_of_pages, empty_region),
          cmocka_unit_test_setup(D1_packed_rows_beyond_2_to_the_31, empty_region),
          cmocka_unit_test_setup(D3_slots_of_a_cache_with_batch_stride_2_to_the_30, empty_region),
          cmocka_unit_test_setup(D4_page_ids_around_a_million, empty_region),
          cmocka_unit_test_setup(D5_mask_of_8192_by_524288, empty_region),
          cmocka_unit_test_setup(D6_bias_of_2_16_12180_12180, empty_region),
          cmocka_unit_test_setup(workspace_beyond_all_addresses_is_out_of_memory, empty_region))
