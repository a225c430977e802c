/* SPDX-License-Identifier: Apache-2.0 */
/* What fa_forward and fa_plan refuse: the sentence names argument, value and rule, both say the same, and no output is
 * touched. And what they must not refuse: options structs of another version. */
#include "support/judge.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A valid call that has every optional tensor of its kind. Tests spoil one thing in it. */
typedef enum call_kind { DENSE, PACKED, PAGED } call_kind;

typedef enum argument_number {
    Q,
    K,
    V,
    OUT,
    LSE,
    ALIBI,
    SINK,
    BIAS,
    MASK,
    CU_Q,
    CU_K,
    USED_Q,
    USED_K,
    LEFTPAD,
    TABLE,
    ARGUMENTS
} argument_number;

static const char *const names[ARGUMENTS] = {
    "q",         "k",         "v",          "out",          "lse",          "alibi_slopes",
    "sink",      "bias",      "mask",       "cu_seqlens_q", "cu_seqlens_k", "seqused_q",
    "seqused_k", "leftpad_k", "block_table"};

typedef struct arguments {
    attention_call *a;
    fa_options o;
    tensor *t[ARGUMENTS]; /* NULL: passed as NULL */
    tensor *out, *lse;
} arguments;

static arguments arguments_new(call_kind kind) {
    static const int32_t lengths_q[] = {5, 9}, lengths_k[] = {7, 12}, used_q[] = {5, 4}, used_k[] = {6, 10};
    static const int32_t leftpad[] = {1, 0}, paged_used[] = {3, 70};
    const score_shape full = {.given = true, .batch = true, .heads = true, .queries = true, .keys = true};
    attention_case c = case_default("refused");
    c.head_dim_v = 24;
    c.alibi = c.sink = true;
    c.bias = c.mask = full;
    c.varlen_q = c.varlen_k = kind == PACKED;
    c.lengths_q = lengths_q;
    c.lengths_k = lengths_k;
    c.used_q = c.used_k = c.leftpad = kind != DENSE;
    c.seqused_q = used_q;
    c.seqused_k = kind == PAGED ? paged_used : used_k;
    c.leftpad_k = leftpad;
    c.page_size = kind == PAGED ? 16 : 0;
    attention_call *a = call_new(&c);
    arguments g = {.a = a,
                   .o = a->options,
                   .t = {a->q, a->k, a->v, NULL, NULL, a->alibi, a->sink, a->bias, a->mask, a->cu_q, a->cu_k,
                         a->seqused_q, a->seqused_k, a->leftpad_k, a->block_table},
                   .out = call_new_out(a, c.type),
                   .lse = call_new_lse(a, FA_ELEMENT_FLOAT32)};
    g.t[OUT] = g.out;
    g.t[LSE] = g.lse;
    g.o.kernel = FA_KERNEL_CPU;
    return g;
}

static void arguments_free(arguments *g) {
    tensor_free(g->out);
    tensor_free(g->lse);
    call_free(g->a);
}

static const fa_tensor *argument(const tensor *t) { return t == NULL ? NULL : &t->fa; }

static fa_status forward(const arguments *g, const fa_options *o) {
    return fa_forward(argument(g->t[Q]), argument(g->t[K]), argument(g->t[V]), o, argument(g->t[OUT]),
                      argument(g->t[LSE]));
}

static fa_status plan(const arguments *g, const fa_options *o) {
    fa_plan_info info = {.size = sizeof info};
    return fa_plan(argument(g->t[Q]), argument(g->t[K]), argument(g->t[V]), o, argument(g->t[OUT]), argument(g->t[LSE]),
                   &info);
}

/* So that a sentence left from before does not pass for a new one. */
static void set_another_error(void) {
    assert_int_equal(fa_plan(NULL, NULL, NULL, NULL, NULL, NULL, NULL), FA_INVALID_ARGUMENT);
}

/* Whether text begins with `expected`, in which "..." stands for anything. */
static bool begins_like(const char *text, const char *expected) {
    bool anywhere = false;
    for (;;) {
        const char *gap = strstr(expected, "...");
        size_t length = gap == NULL ? strlen(expected) : (size_t)(gap - expected);
        while (anywhere && *text != '\0' && strncmp(text, expected, length) != 0) text++;
        if (strncmp(text, expected, length) != 0) return false;
        if (gap == NULL) return true;
        text += length;
        expected = gap + 3;
        anywhere = true;
    }
}

static void expect_sentence(int line, fa_status status, fa_status expected, const char *sentence) {
    const char *text = fa_last_error();
    if (status != expected)
        fail_msg("line %d: \"%s\", not \"%s\", for: %s", line, fa_status_text(status), fa_status_text(expected),
                 sentence);
    if (!begins_like(text, sentence)) fail_msg("line %d: \"%s\" must begin like \"%s\"", line, text, sentence);
    if (strchr(text, '\n') != NULL || strstr(text, "(null)") != NULL || strlen(text) > 300)
        fail_msg("line %d: \"%s\" must be one sentence", line, text);
}

/* The sentence as for printf, with "..." for anything. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
static void
expect_refusal(int line, const arguments *g, const fa_options *o, fa_status expected, const char *format, ...) {
    char sentence[512], from_forward[512];
    va_list values;
    va_start(values, format);
    (void)vsnprintf(sentence, sizeof sentence, format, values);
    va_end(values);
    set_another_error();
    expect_sentence(line, forward(g, o), expected, sentence);
    (void)snprintf(from_forward, sizeof from_forward, "%s", fa_last_error());
    set_another_error();
    fa_status status = plan(g, o);
    if (status != expected || strcmp(fa_last_error(), from_forward) != 0)
        fail_msg("line %d: fa_forward says \"%s\", fa_plan \"%s\": \"%s\"", line, from_forward, fa_status_text(status),
                 fa_last_error());
    const tensor *outputs_of_call[] = {g->out, g->lse};
    for (int i = 0; i < 2; i++)
        for (size_t n = 0; n < outputs_of_call[i]->page_bytes; n++)
            if (outputs_of_call[i]->pages[n] != 0xff) fail_msg("line %d: an output was written", line);
}

/* Spoils a valid call of this kind, g, by `edit`, and wants it refused. */
#define REFUSED(kind, edit, status, ...)                         \
    do {                                                         \
        arguments g = arguments_new(kind);                       \
        edit;                                                    \
        expect_refusal(__LINE__, &g, &g.o, status, __VA_ARGS__); \
        arguments_free(&g);                                      \
    } while (0)
#define INVALID(kind, edit, ...) REFUSED(kind, edit, FA_INVALID_ARGUMENT, __VA_ARGS__)
#define UNSUPPORTED(kind, edit, ...) REFUSED(kind, edit, FA_UNSUPPORTED, __VA_ARGS__)

static void set_stride(tensor *t, int dimension, int64_t stride) {
    t->fa.strides = t->stride;
    t->stride[dimension] = stride;
}

static void set_dtype(tensor *t, uint8_t code, uint8_t bits, uint16_t lanes) {
    t->fa.dtype = (fa_dtype){code, bits, lanes};
}

/* ---- The calls are right before they are spoiled ---- */

static void the_unspoiled_calls_succeed(void **state) {
    (void)state;
    for (call_kind kind = DENSE; kind <= PAGED; kind++) {
        arguments g = arguments_new(kind);
        if (plan(&g, &g.o) != FA_OK || forward(&g, &g.o) != FA_OK) call_fail(g.a, "%s", fa_last_error());
        assert_int_equal(tensor_first_poisoned(g.t[OUT]), -1);
        assert_int_equal(tensor_first_poisoned(g.t[LSE]), -1);
        arguments_free(&g);
        attention_case c = case_default("unspoiled");
        c.index = (uint64_t)kind;
        c.varlen_q = c.varlen_k = kind == PACKED;
        c.page_size = kind == PAGED ? 16 : 0;
        judge_case(&c);
    }
}

/* ---- q, k, v, out, lse ---- */

static void K4_any_tensor_of_a_call(void **state) {
    (void)state;
    for (int i = Q; i <= LSE; i++) {
        const char *name = names[i];
        INVALID(DENSE, g.t[i]->fa.ndim = 0, "%s.ndim = 0: no tensor of a call has that many dimensions", name);
        INVALID(DENSE, g.t[i]->fa.ndim = 6, "%s.ndim = 6: no tensor of a call has that many dimensions", name);
        INVALID(DENSE, g.t[i]->fa.ndim = -1, "%s.ndim = -1: no tensor of a call has that many dimensions", name);
        INVALID(DENSE, g.t[i]->fa.ndim = 2, "%s.ndim = 2: must be", name);
        INVALID(PACKED, g.t[i]->fa.ndim = 4, "%s.ndim = 4: must be", name);
        INVALID(PAGED, g.t[i]->fa.ndim = 5, "%s.ndim = 5: must be", name);
        INVALID(DENSE, g.t[i]->fa.shape = NULL, "%s.shape = NULL: must point at", name);
        INVALID(DENSE, g.t[i]->shape[1] = -1, "%s.shape[1] = -1: must be 0 ..", name);
        INVALID(DENSE, g.t[i]->shape[1] = INT64_MAX, "%s.shape[1] = 9223372036854775807: must be 0 .. 2^48", name);
        INVALID(DENSE, g.t[i]->shape[0] = g.t[i]->shape[1] = (int64_t)1 << 40,
                "%s.shape[1] = 1099511627776: the tensor has more than 2^56 elements", name);
        INVALID(DENSE, set_stride(g.t[i], 1, INT64_MAX), "%s.strides[1] = 9223372036854775807: must be within", name);
        INVALID(DENSE, set_stride(g.t[i], 1, INT64_MIN), "%s.strides[1] = -9223372036854775808: must be within", name);
        /* 1023 steps of 2^56 elements end far beyond 2^63 bytes, and so would compact strides, even of nothing. */
        INVALID(DENSE, (g.t[i]->shape[1] = 1024, set_stride(g.t[i], 1, (int64_t)1 << 56)),
                "%s.strides[1] = 72057594037927936: must be within", name);
        INVALID(DENSE, (g.t[i]->shape[1] = 1024, set_stride(g.t[i], 1, -((int64_t)1 << 56))),
                "%s.strides[1] = -72057594037927936: must be within", name);
        INVALID(DENSE, (g.t[i]->shape[0] = 0, g.t[i]->shape[1] = g.t[i]->shape[2] = (int64_t)1 << 48),
                "%s.shape[2] = 281474976710656: the tensor has more than 2^56 elements", name);
        if (i != Q) {
            INVALID(DENSE, g.t[i]->fa.device.device_type = FA_DEVICE_CUDA,
                    "%s.device = (type 2, id 0): must be q's, (type 1, id 0)", name);
            INVALID(DENSE, g.t[i]->fa.device.device_id = 3, "%s.device = (type 1, id 3): must be q's, (type 1, id 0)",
                    name);
        }
        UNSUPPORTED(DENSE, set_dtype(g.t[i], FA_DTYPE_INT, 32, 1), "%s.dtype = int32: must be", name);
        UNSUPPORTED(DENSE, set_dtype(g.t[i], FA_DTYPE_FLOAT, 8, 1), "%s.dtype = float8: must be", name);
        UNSUPPORTED(DENSE, set_dtype(g.t[i], FA_DTYPE_FLOAT, 16, 2), "%s.dtype = code 2, 16 bits, 2 lanes: must be",
                    name);
        UNSUPPORTED(DENSE, set_dtype(g.t[i], 99, 32, 1), "%s.dtype = code 99, 32 bits, 1 lanes: must be", name);
        if (i != LSE) { /* lse's last dimension may have any stride */
            INVALID(DENSE, set_stride(g.t[i], 3, 2), "%s.strides[3] = 2: the last dimension must be contiguous", name);
            INVALID(DENSE, set_stride(g.t[i], 3, 0), "%s.strides[3] = 0: the last dimension must be contiguous", name);
            INVALID(DENSE, set_stride(g.t[i], 3, -1), "%s.strides[3] = -1: the last dimension must be contiguous",
                    name);
            INVALID(PACKED, set_stride(g.t[i], 2, 2), "%s.strides[2] = 2: the last dimension must be contiguous", name);
        }
    }
    INVALID(DENSE, g.t[Q] = NULL, "q = NULL: must be a tensor");
    INVALID(DENSE, g.t[K] = NULL, "k = NULL: must be a tensor");
    INVALID(DENSE, g.t[V] = NULL, "v = NULL: must be a tensor");
    INVALID(DENSE, g.t[OUT] = NULL, "out = NULL: must be a tensor");
    UNSUPPORTED(DENSE, g.t[Q]->fa.device.device_type = 7, "q.device.device_type = 7: must be 1 (CPU) or 2 (CUDA)");
}

/* fa_plan needs no data of these, so only fa_forward refuses. */
static void K4_missing_data(void **state) {
    (void)state;
    for (int i = Q; i <= LSE; i++) {
        arguments g = arguments_new(DENSE);
        g.t[i]->fa.data = NULL;
        g.t[i]->fa.byte_offset = 0;
        set_another_error();
        char sentence[64];
        (void)snprintf(sentence, sizeof sentence, "%s.data = NULL: must point at", names[i]);
        expect_sentence(__LINE__, forward(&g, &g.o), FA_INVALID_ARGUMENT, sentence);
        assert_int_equal(plan(&g, &g.o), FA_OK);
        arguments_free(&g);
    }
    arguments g = arguments_new(PAGED); /* but it reads the tables */
    g.t[TABLE]->fa.data = NULL;
    expect_refusal(__LINE__, &g, &g.o, FA_INVALID_ARGUMENT, "block_table.data = NULL: must point at");
    arguments_free(&g);
}

static void K4_shapes_that_do_not_fit_together(void **state) {
    (void)state;
    INVALID(DENSE, g.t[Q]->shape[3] = 0, "q.shape[3] = 0: head_dim must be 1 .. 256");
    UNSUPPORTED(DENSE, g.t[Q]->shape[3] = 257, "q.shape[3] = 257: head_dim must be 1 .. 256");
    UNSUPPORTED(PACKED, g.t[Q]->shape[2] = 300, "q.shape[2] = 300: head_dim must be 1 .. 256");
    INVALID(DENSE, g.t[K]->shape[3] = 32, "k.shape[3] = 32: must be 40, q's head_dim");
    INVALID(DENSE, g.t[V]->shape[3] = 0, "v.shape[3] = 0: head_dim_v must be 1 .. 256");
    UNSUPPORTED(DENSE, g.t[V]->shape[3] = 512, "v.shape[3] = 512: head_dim_v must be 1 .. 256");
    INVALID(DENSE, g.t[V]->shape[2] = 1, "v.shape[2] = 1: must be 2, k's heads_kv");
    INVALID(DENSE, g.t[K]->shape[2] = g.t[V]->shape[2] = 3,
            "q has 4 heads: must be a multiple of the 3 heads of k and v");
    INVALID(DENSE, g.t[K]->shape[2] = g.t[V]->shape[2] = 8,
            "q has 4 heads: must be a multiple of the 8 heads of k and v");
    INVALID(DENSE, g.t[K]->shape[2] = g.t[V]->shape[2] = 0,
            "q has 4 heads: must be a multiple of the 0 heads of k and v");
    INVALID(DENSE, g.t[K]->shape[0] = g.t[V]->shape[0] = 1, "k.shape[0] = 1: must be 2, q's batch");
    INVALID(DENSE, g.t[V]->shape[0] = 1, "v.shape[0] = 1: must be 2, k's batch");
    INVALID(DENSE, g.t[V]->shape[1] = 69, "v.shape[1] = 69: must be 70, k's seqlen_k");
    INVALID(PACKED, g.t[V]->shape[0] = 18, "v.shape[0] = 18: must be 19, k's total_k");
    INVALID(PAGED, g.t[V]->shape[0] = 12, "v.shape[0] = 12: must be 13, k's pages");
    INVALID(PAGED, g.t[V]->shape[1] = 8, "v.shape[1] = 8: must be 16, k's page_size");
    INVALID(PAGED, g.t[K]->shape[1] = g.t[V]->shape[1] = 0, "k.shape[1] = 0: page_size must be at least 1");

    INVALID(DENSE, g.t[OUT]->shape[0] = 1, "out.shape[0] = 1: must be 2, as in q");
    INVALID(DENSE, g.t[OUT]->shape[1] = 32, "out.shape[1] = 32: must be 33, as in q");
    INVALID(DENSE, g.t[OUT]->shape[2] = 2, "out.shape[2] = 2: must be 4, as in q");
    INVALID(DENSE, g.t[OUT]->shape[3] = 40, "out.shape[3] = 40: must be 24, v's head_dim_v");
    INVALID(PACKED, g.t[OUT]->shape[0] = 13, "out.shape[0] = 13: must be 14, as in q");
    INVALID(DENSE, g.t[LSE]->shape[0] = 1, "lse.shape[0] = 1: must be 2, the batch size");
    INVALID(DENSE, g.t[LSE]->shape[1] = 33, "lse.shape[1] = 33: must be 4, q's heads");
    INVALID(DENSE, g.t[LSE]->shape[2] = 4, "lse.shape[2] = 4: must be 33, seqlen_q");
    INVALID(PACKED, g.t[LSE]->shape[0] = 2, "lse.shape[0] = 2: must be 4, q's heads");
    INVALID(PACKED, g.t[LSE]->shape[1] = 9, "lse.shape[1] = 9: must be 14, total_q");
}

static void K4_dtypes(void **state) {
    (void)state;
    UNSUPPORTED(DENSE, set_dtype(g.t[K], FA_DTYPE_FLOAT, 16, 1), "k.dtype = float16: must be q's, float32");
    UNSUPPORTED(DENSE, set_dtype(g.t[V], FA_DTYPE_BFLOAT, 16, 1), "v.dtype = bfloat16: must be q's, float32");
    UNSUPPORTED(DENSE, set_dtype(g.t[OUT], FA_DTYPE_FLOAT, 16, 1), "out.dtype = float16: must be q's, float32");
    UNSUPPORTED(DENSE, set_dtype(g.t[OUT], FA_DTYPE_FLOAT, 64, 1), "out.dtype = float64: must be q's, float32");
    UNSUPPORTED(DENSE, set_dtype(g.t[LSE], FA_DTYPE_FLOAT, 16, 1), "lse.dtype = float16: must be float32");
    UNSUPPORTED(DENSE, set_dtype(g.t[LSE], FA_DTYPE_FLOAT, 64, 1), "lse.dtype = float64: must be float32");
    for (int kernel = FA_KERNEL_AUTO; kernel <= FA_KERNEL_CPU; kernel++) /* the kernels for study take it */
        UNSUPPORTED(
            DENSE,
            {
                for (int i = Q; i <= V; i++) set_dtype(g.t[i], FA_DTYPE_FLOAT, 64, 1);
                g.o.kernel = (fa_kernel)kernel;
            },
            "q.dtype = float64: must be float32, float16 or bfloat16");
}

static void K4_outputs_that_overlap(void **state) {
    (void)state;
    INVALID(DENSE, set_stride(g.t[OUT], 0, 0), "out.strides[0] = 0: elements of an output must not overlap");
    INVALID(DENSE, set_stride(g.t[OUT], 1, 23), "out.strides[1] = 23: elements of an output must not overlap");
    INVALID(DENSE, set_stride(g.t[OUT], 2, -23), "out.strides[2] = -23: elements of an output must not overlap");
    INVALID(DENSE, set_stride(g.t[LSE], 2, 0), "lse.strides[2] = 0: elements of an output must not overlap");
    INVALID(DENSE, set_stride(g.t[LSE], 1, 32), "lse.strides[1] = 32: elements of an output must not overlap");
    for (int i = Q; i <= V; i++)
        INVALID(DENSE, g.t[OUT]->fa.data = g.t[i]->fa.data, "out.data = %p: overlaps %s", g.t[OUT]->fa.data, names[i]);
    INVALID(DENSE, g.t[LSE]->fa.data = g.t[BIAS]->fa.data, "lse.data = %p: overlaps bias", g.t[LSE]->fa.data);
    INVALID(DENSE, g.t[LSE]->fa.data = g.t[OUT]->fa.data, "lse.data = %p: overlaps out", g.t[LSE]->fa.data);
    /* By one element; next to each other is fine. */
    INVALID(DENSE, g.t[SINK]->fa.data = g.t[OUT]->origin + 4 * (tensor_count(g.t[OUT]) - 1),
            "out.data = %p: overlaps sink", g.t[OUT]->fa.data);
    arguments g = arguments_new(DENSE);
    float *both = calloc((size_t)(tensor_count(g.out) + tensor_count(g.lse)), sizeof *both);
    assert_non_null(both);
    g.out->fa.data = both;
    g.lse->fa.data = both + tensor_count(g.out);
    assert_int_equal(forward(&g, &g.o), FA_OK);
    g.lse->fa.data = both;
    g.out->fa.data = both + tensor_count(g.lse);
    assert_int_equal(forward(&g, &g.o), FA_OK);
    free(both);
    arguments_free(&g);
}

/* ---- Lengths and tables (K5) ---- */

static void K5_shape_and_dtype_of_each_small_tensor(void **state) {
    (void)state;
    static const struct {
        argument_number i;
        call_kind kind;
        int entries;
    } tables[] = {{CU_K, PACKED, 3},    {USED_Q, PACKED, 2}, {USED_K, PACKED, 2}, {USED_K, PAGED, 2},
                  {LEFTPAD, PACKED, 2}, {TABLE, PAGED, 2},   {ALIBI, DENSE, 4},   {SINK, DENSE, 4},
                  {BIAS, DENSE, 2},     {MASK, DENSE, 2},    {CU_Q, PACKED, 3}};
    for (size_t n = 0; n < sizeof tables / sizeof tables[0]; n++) {
        argument_number i = tables[n].i;
        call_kind kind = tables[n].kind;
        const char *name = names[i];
        bool is_score = i == BIAS || i == MASK;
        fa_status status = is_score ? FA_UNSUPPORTED : FA_INVALID_ARGUMENT;
        INVALID(kind, g.t[i]->fa.ndim = 0, "%s.ndim = 0: no tensor of a call has that many dimensions", name);
        INVALID(kind, g.t[i]->fa.ndim = 1000, "%s.ndim = 1000: no tensor of a call has that many dimensions", name);
        INVALID(kind, g.t[i]->fa.shape = NULL, "%s.shape = NULL: must point at", name);
        INVALID(kind, g.t[i]->fa.data = NULL, "%s.data = NULL: must point at", name);
        INVALID(kind, g.t[i]->shape[0] = -2, "%s.shape[0] = -2: must be 0 ..", name);
        REFUSED(kind, set_dtype(g.t[i], FA_DTYPE_INT, 64, 1), status, "%s.dtype = int64: must be", name);
        INVALID(kind, g.t[i]->fa.device.device_type = FA_DEVICE_CUDA,
                "%s.device = (type 2, id 0): must be q's, (type 1, id 0)", name);
        if (i == CU_Q) continue; /* it makes the batch size; below */
        INVALID(kind, g.t[i]->fa.ndim = 3, "%s.ndim = 3: must be", name);
        INVALID(kind, g.t[i]->shape[0]++, "%s.shape[0] = %d: must be %s%d", name, tables[n].entries + 1,
                is_score ? "1 or the batch size, " : "", tables[n].entries);
    }
    INVALID(PACKED, (g.t[CU_Q]->fa.ndim = 2, g.t[CU_Q]->shape[1] = 1),
            "cu_seqlens_q has 2 dimensions and 3 entries: must be [batch + 1]");
    INVALID(PACKED, g.t[CU_Q]->shape[0] = 0, "cu_seqlens_q has 1 dimensions and 0 entries: must be [batch + 1]");
    INVALID(PACKED, g.t[CU_Q]->shape[0] = 2, "cu_seqlens_k.shape[0] = 3: must be 2, [batch + 1]");
    INVALID(PAGED, g.t[TABLE]->shape[1] = (int64_t)1 << 47,
            "block_table.shape[1] = 140737488355328: more than 2^48 keys");
    INVALID(DENSE, (g.t[ALIBI]->fa.ndim = 2, g.t[ALIBI]->shape[0] = 3, g.t[ALIBI]->shape[1] = 1),
            "alibi_slopes.shape[0] = 3: must be 2, the batch size");
    INVALID(DENSE, (g.t[ALIBI]->fa.ndim = 2, g.t[ALIBI]->shape[0] = 2, g.t[ALIBI]->shape[1] = 3),
            "alibi_slopes.shape[1] = 3: must be 4, q's heads");
    UNSUPPORTED(DENSE, set_dtype(g.t[BIAS], FA_DTYPE_FLOAT, 64, 1),
                "bias.dtype = float64: must be float32, float16 or bfloat16");
    UNSUPPORTED(DENSE, set_dtype(g.t[MASK], FA_DTYPE_INT, 8, 1), "mask.dtype = int8: must be bool or uint8");
}

static void K5_extents_of_bias_and_mask(void **state) {
    (void)state;
    static const char *const rules[] = {"the batch size, 2", "heads, 4", "seqlen_q, 33", "seqlen_k, 70"};
    for (int i = BIAS; i <= MASK; i++)
        for (int d = 0; d < 4; d++)
            INVALID(DENSE, g.t[i]->shape[d] = 5, "%s.shape[%d] = 5: must be 1 or %s", names[i], d, rules[d]);
    /* Variable length: they must reach the longest sequence. */
    INVALID(PACKED, g.t[BIAS]->shape[2] = 4, "bias.shape[2] = 4: must be 1 or at least the longest seqlen_q, 5");
    INVALID(PACKED, g.t[MASK]->shape[3] = 9, "mask.shape[3] = 9: must be 1 or at least the longest seqlen_k, 10");
    INVALID(PAGED, g.t[BIAS]->shape[3] = 69, "bias.shape[3] = 69: must be 1 or at least the longest seqlen_k, 70");
}

static void K5_lengths_that_contradict(void **state) {
    (void)state;
    INVALID(PACKED, tensor_put_int(g.t[CU_Q], 0, 1), "cu_seqlens_q[0] = 1: must be 0");
    INVALID(PACKED, tensor_put_int(g.t[CU_K], 0, -1), "cu_seqlens_k[0] = -1: must be 0");
    INVALID(PACKED, tensor_put_int(g.t[CU_Q], 1, 15), "cu_seqlens_q[2] = 14: must not be below cu_seqlens_q[1] = 15");
    INVALID(PACKED, tensor_put_int(g.t[CU_K], 1, -4), "cu_seqlens_k[1] = -4: must not be below cu_seqlens_k[0] = 0");
    INVALID(PACKED, tensor_put_int(g.t[CU_Q], 2, 15), "cu_seqlens_q[2] = 15: must not exceed total_q, 14");
    INVALID(PACKED, tensor_put_int(g.t[CU_K], 2, INT32_MAX),
            "cu_seqlens_k[2] = 2147483647: must not exceed total_k, 19");
    INVALID(PACKED, tensor_put_int(g.t[USED_Q], 1, 10), "seqused_q[1] = 10: must be 0 .. the sequence's length, 9");
    INVALID(PACKED, tensor_put_int(g.t[USED_Q], 0, -1), "seqused_q[0] = -1: must be 0 .. the sequence's length, 5");
    INVALID(PACKED, tensor_put_int(g.t[USED_K], 1, 13), "seqused_k[1] = 13: must be 0 .. the sequence's length, 12");
    INVALID(PACKED, tensor_put_int(g.t[USED_K], 0, INT32_MIN),
            "seqused_k[0] = -2147483648: must be 0 .. the sequence's length, 7");
    INVALID(PACKED, tensor_put_int(g.t[LEFTPAD], 0, 7), "leftpad_k[0] = 7: must be 0 .. the used length, 6");
    INVALID(PACKED, tensor_put_int(g.t[LEFTPAD], 1, -1), "leftpad_k[1] = -1: must be 0 .. the used length, 10");
    INVALID(PAGED, tensor_put_int(g.t[USED_K], 1, 81), "seqused_k[1] = 81: must be 0 .. max_pages * page_size, 80");
    INVALID(PAGED, tensor_put_int(g.t[TABLE], 5, -1), "block_table[1][0] = -1: must be 0 .. 12, k has 13 pages");
    INVALID(PAGED, tensor_put_int(g.t[TABLE], 9, 13), "block_table[1][4] = 13: must be 0 .. 12, k has 13 pages");
    INVALID(PAGED, g.o.seqused_k = NULL, "seqused_k = NULL with block_table: paged K/V needs the used length");
    INVALID(PAGED, g.o.cu_seqlens_k = g.o.seqused_k, "cu_seqlens_k is given together with block_table: ...seqused_k");
    /* E8: a stated maximum below a real length. */
    INVALID(DENSE, g.o.max_seqlen_q = 32, "max_seqlen_q = 32: the longest sequence has 33 queries");
    INVALID(DENSE, g.o.max_seqlen_k = 69, "max_seqlen_k = 69: the longest sequence has 70 keys");
    INVALID(PACKED, g.o.max_seqlen_q = 4, "max_seqlen_q = 4: the longest sequence has 5 queries");
    INVALID(PACKED, g.o.max_seqlen_k = 9, "max_seqlen_k = 9: the longest sequence has 10 keys");
    INVALID(PAGED, g.o.max_seqlen_k = 69, "max_seqlen_k = 69: the longest sequence has 70 keys");
    INVALID(DENSE, g.o.max_seqlen_q = -1, "max_seqlen_q = -1: must be 0 (not stated) or positive");
    INVALID(DENSE, g.o.max_seqlen_k = -1, "max_seqlen_k = -1: must be 0 (not stated) or positive");
}

/* ---- Numbers in the options ---- */

static void K4_numbers_that_change_what_is_computed(void **state) {
    (void)state;
    const float nan = (float)NAN, infinity = (float)INFINITY;
    INVALID(DENSE, g.o.set = 4, "options.set = 0x4: holds bits that this version does not know");
    INVALID(DENSE, g.o.set = 0x80000003u, "options.set = 0x80000003: holds bits that this version does not know");
    INVALID(DENSE, g.o.softmax_scale = 0.5f, "softmax_scale = 0.5: is read only with FA_SET_SOFTMAX_SCALE");
    INVALID(DENSE, (g.o.set = FA_SET_SOFTMAX_SCALE, g.o.softmax_scale = nan), "softmax_scale = nan: must be finite");
    INVALID(DENSE, (g.o.set = FA_SET_SOFTMAX_SCALE, g.o.softmax_scale = infinity),
            "softmax_scale = inf: must be finite");
    INVALID(DENSE, (g.o.set = FA_SET_SOFTMAX_SCALE, g.o.softmax_scale = -infinity),
            "softmax_scale = -inf: must be finite");
    INVALID(DENSE, g.o.softcap = -1, "softcap = -1: must be 0 (none) or positive and finite");
    INVALID(DENSE, g.o.softcap = infinity, "softcap = inf: must be 0 (none) or positive and finite");
    INVALID(DENSE, g.o.softcap = nan, "softcap = nan: must be 0 (none) or positive and finite");
    INVALID(DENSE, g.o.causal = (fa_causal)3, "causal = 3: must be FA_CAUSAL_NONE");
    INVALID(DENSE, g.o.causal = (fa_causal)-1, "causal = -1: must be FA_CAUSAL_NONE");
    INVALID(DENSE, g.o.window_left = 4, "window_left = 4, window_right = 0: are read only with FA_SET_WINDOW");
    INVALID(DENSE, g.o.window_right = -1, "window_left = 0, window_right = -1: are read only with FA_SET_WINDOW");
    INVALID(DENSE, (g.o.set = FA_SET_WINDOW, g.o.window_left = -2),
            "window_left = -2: must be >= 0, or FA_WINDOW_OPEN (-1)");
    INVALID(DENSE, (g.o.set = FA_SET_WINDOW, g.o.window_right = INT64_MIN),
            "window_right = -9223372036854775808: must be >= 0, or FA_WINDOW_OPEN (-1)");
}

static void K4_who_computes(void **state) {
    (void)state;
    INVALID(DENSE, g.o.kernel = (fa_kernel)8, "kernel = 8: is not a value of fa_kernel");
    INVALID(DENSE, g.o.kernel = (fa_kernel)-1, "kernel = -1: is not a value of fa_kernel");
    INVALID(DENSE, g.o.isa = (fa_isa)8, "isa = 8: is not a value of fa_isa");
    INVALID(DENSE, g.o.isa = (fa_isa)-1, "isa = -1: is not a value of fa_isa");
    INVALID(DENSE, g.o.num_threads = -1, "num_threads = -1: must be 0 (automatic) .. 4096");
    /* A run-time library that cannot start its threads ends the process. */
    INVALID(DENSE, g.o.num_threads = 4097, "num_threads = 4097: must be 0 (automatic) .. 4096");
    INVALID(DENSE, g.o.num_splits = -1, "num_splits = -1: must be 0 (automatic) .. 256");
    INVALID(DENSE, g.o.num_splits = 257, "num_splits = 257: must be 0 (automatic) .. 256");
    INVALID(DENSE, g.o.stream = &g, "stream = 0x...: must be NULL for tensors on the CPU");
    for (int isa = FA_ISA_PORTABLE; isa <= FA_ISA_NEON_BF16; isa++) {
        const char *name = fa_isa_name((fa_isa)isa);
        if (fa_isa_supported((fa_isa)isa) != FA_OK)
            UNSUPPORTED(DENSE, g.o.isa = (fa_isa)isa, "isa = %s: ...this", name);
        for (int kernel = FA_KERNEL_REFERENCE; kernel <= FA_KERNEL_STANDARD; kernel++)
            UNSUPPORTED(DENSE, (g.o.isa = (fa_isa)isa, g.o.kernel = (fa_kernel)kernel), "isa = %s: ...%s", name,
                        fa_kernel_name((fa_kernel)kernel));
    }
    UNSUPPORTED(DENSE, (g.o.num_splits = 2, g.o.kernel = FA_KERNEL_REFERENCE), "num_splits = 2: ...reference");
    UNSUPPORTED(DENSE, (g.o.num_splits = 2, g.o.kernel = FA_KERNEL_STANDARD), "num_splits = 2: ...standard");
    assert_int_equal(setenv("FLASHATTN_ISA", "sse9", 1), 0);
    INVALID(DENSE, g.o.isa = FA_ISA_AUTO,
            "FLASHATTN_ISA = \"sse9\": must be portable, neon, avx2, avx512, avx512_bf16, amx or neon_bf16");
    assert_int_equal(unsetenv("FLASHATTN_ISA"), 0);
    /* A GPU kernel without a GPU says what is missing. */
    for (int kernel = FA_KERNEL_V1; kernel <= FA_KERNEL_V4; kernel++) {
        arguments g = arguments_new(DENSE);
        g.o.kernel = (fa_kernel)kernel;
        set_another_error();
        assert_int_equal(forward(&g, &g.o), FA_UNSUPPORTED);
        if (strstr(fa_last_error(), "GPU") == NULL) fail_msg("kernel %d: \"%s\"", kernel, fa_last_error());
        arguments_free(&g);
    }
}

static void K4_plan_itself(void **state) {
    (void)state;
    arguments g = arguments_new(DENSE);
    fa_plan_info info;
    memset(&info, 0x5a, sizeof info);
    info.size = sizeof info - 1;
    fa_status status = fa_plan(&g.t[Q]->fa, &g.t[K]->fa, &g.t[V]->fa, NULL, &g.t[OUT]->fa, NULL, &info);
    char sentence[64];
    (void)snprintf(sentence, sizeof sentence, "plan.size = %zu: must be sizeof(fa_plan_info)", sizeof info - 1);
    expect_sentence(__LINE__, status, FA_INVALID_ARGUMENT, sentence);
    status = fa_plan(&g.t[Q]->fa, &g.t[K]->fa, &g.t[V]->fa, NULL, &g.t[OUT]->fa, NULL, NULL);
    expect_sentence(__LINE__, status, FA_INVALID_ARGUMENT, "plan = NULL: must point at");
    /* A refused plan is not filled either. */
    info.size = sizeof info;
    fa_plan_info before = info;
    assert_int_equal(fa_plan(NULL, &g.t[K]->fa, &g.t[V]->fa, NULL, &g.t[OUT]->fa, NULL, &info), FA_INVALID_ARGUMENT);
    assert_memory_equal(&info, &before, sizeof info);

    for (int isa = FA_ISA_AUTO; isa <= FA_ISA_NEON_BF16; isa++) {
        g.o.isa = (fa_isa)isa;
        if (fa_isa_supported(g.o.isa) != FA_OK) continue;
        assert_int_equal(fa_plan(&g.t[Q]->fa, &g.t[K]->fa, &g.t[V]->fa, &g.o, &g.t[OUT]->fa, NULL, &info), FA_OK);
        assert_int_equal(info.kernel, FA_KERNEL_CPU);
        if (isa != FA_ISA_AUTO) assert_int_equal(info.isa, runs_as((fa_isa)isa, FA_ELEMENT_FLOAT32));
        assert_int_not_equal(info.isa, FA_ISA_AUTO);
        assert_non_null(strstr(info.name, fa_isa_name(info.isa)));
        assert_true(info.num_threads >= 1 && info.num_splits >= 1 && info.workspace_bytes > 0);
        assert_true(info.tile_rows >= 1 && info.tile_keys >= 1);
    }
    arguments_free(&g);
}

/* ---- The struct of an older or newer caller ---- */

static void options_of_another_version(void **state) {
    (void)state;
    arguments g = arguments_new(DENSE);
    struct {
        fa_options options;
        unsigned char later[40];
    } newer = {.options = g.o};
    assert_int_equal(forward(&g, &g.o), FA_OK);
    tensor *expected = g.out;

    /* Newer: fields that we do not know are refused unless they are zero. */
    newer.options.size = sizeof newer;
    g.t[OUT] = g.out = call_new_out(g.a, FA_ELEMENT_FLOAT32);
    assert_int_equal(forward(&g, &newer.options), FA_OK);
    assert_int_equal(tensor_first_difference(expected, g.t[OUT]), -1);
    tensor_poison(g.out);
    tensor_poison(g.lse);
    for (size_t i = 0; i < sizeof newer.later; i += sizeof newer.later - 1) {
        memset(newer.later, 0, sizeof newer.later);
        newer.later[i] = 1;
        expect_refusal(__LINE__, &g, &newer.options, FA_INVALID_ARGUMENT,
                       "options.size = %zu: sets a field that this version (%s) does not know", sizeof newer,
                       fa_version_text());
    }

    /* Older: what lies behind its size is not looked at. */
    const size_t ends[] = {offsetof(fa_options, num_splits), offsetof(fa_options, kernel),
                           offsetof(fa_options, max_seqlen_q), offsetof(fa_options, cu_seqlens_q)};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        fa_options older = g.o;
        memset((char *)&older + ends[i], 0xee, sizeof older - ends[i]);
        older.size = ends[i];
        if (forward(&g, &older) != FA_OK) fail_msg("size %zu: %s", ends[i], fa_last_error());
        assert_int_equal(tensor_first_difference(expected, g.t[OUT]), -1);
        tensor_poison(g.t[OUT]);
    }
    fa_options oldest;
    memset(&oldest, 0xee, sizeof oldest);
    oldest.size = sizeof oldest.size; /* all defaults, and so is NULL */
    assert_int_equal(forward(&g, &oldest), FA_OK);
    tensor *defaults = g.out;
    g.t[OUT] = g.out = call_new_out(g.a, FA_ELEMENT_FLOAT32);
    assert_int_equal(forward(&g, NULL), FA_OK);
    assert_int_equal(tensor_first_difference(defaults, g.t[OUT]), -1);
    assert_int_not_equal(tensor_first_difference(defaults, expected), -1);

    tensor_poison(g.out);
    tensor_poison(g.lse);
    for (size_t bytes = 0; bytes < sizeof oldest.size; bytes += 7) {
        fa_options unset = g.o;
        unset.size = bytes;
        expect_refusal(__LINE__, &g, &unset, FA_INVALID_ARGUMENT, "options.size = %zu: must be sizeof(fa_options)",
                       bytes);
    }
    tensor_free(expected);
    tensor_free(defaults);
    arguments_free(&g);
}

/* ---- Status and sentence ---- */

static void *fail_in_another_thread(void *unused) {
    (void)unused;
    if (strcmp(fa_last_error(), "") != 0) return "a new thread has a sentence already";
    if (fa_forward(NULL, NULL, NULL, NULL, NULL, NULL) != FA_INVALID_ARGUMENT) return "not refused";
    return strstr(fa_last_error(), "q = NULL") == NULL ? "not its own sentence" : NULL;
}

static void each_thread_has_its_own_last_error(void **state) {
    (void)state;
    set_another_error();
    char before[512];
    (void)snprintf(before, sizeof before, "%s", fa_last_error());
    pthread_t thread;
    void *wrong = NULL;
    assert_int_equal(pthread_create(&thread, NULL, fail_in_another_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    if (wrong != NULL) fail_msg("%s", (const char *)wrong);
    assert_string_equal(fa_last_error(), before);
    arguments g = arguments_new(DENSE); /* success does not change it */
    assert_int_equal(forward(&g, &g.o), FA_OK);
    assert_string_equal(fa_last_error(), before);
    arguments_free(&g);
}

static void texts_are_never_null(void **state) {
    (void)state;
    for (int i = FA_OK; i <= FA_DEVICE_ERROR; i++) {
        assert_string_not_equal(fa_status_text((fa_status)i), "unknown status");
        for (int j = FA_OK; j < i; j++)
            assert_string_not_equal(fa_status_text((fa_status)i), fa_status_text((fa_status)j));
    }
    const int none[] = {-1, 5, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(fa_status_text((fa_status)none[i]), "unknown status");
        assert_string_equal(fa_isa_name((fa_isa)(none[i] == 5 ? 8 : none[i])), "unknown");
        assert_string_equal(fa_kernel_name((fa_kernel)(none[i] == 5 ? 8 : none[i])), "unknown");
        assert_int_equal(fa_isa_supported((fa_isa)(none[i] == 5 ? 8 : none[i])), FA_INVALID_ARGUMENT);
        assert_int_equal(fa_kernel_supported((fa_kernel)(none[i] == 5 ? 8 : none[i])), FA_INVALID_ARGUMENT);
    }
    assert_int_equal(fa_kernel_supported(FA_KERNEL_CPU), FA_OK);
    assert_int_equal(fa_version(), FA_VERSION);
    char version[32];
    (void)snprintf(version, sizeof version, "%d.%d.%d", FA_VERSION_MAJOR, FA_VERSION_MINOR, FA_VERSION_PATCH);
    assert_string_equal(fa_version_text(), version);
}

/* No GPU, no emulated one, and the CPU's own choice, whatever the caller's environment says. */
static int set_up(void **state) {
    (void)unsetenv("FLASHATTN_MACHINE");
    (void)unsetenv("FLASHATTN_ISA");
    return print_seed(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_unspoiled_calls_succeed),
                                       cmocka_unit_test(K4_any_tensor_of_a_call),
                                       cmocka_unit_test(K4_missing_data),
                                       cmocka_unit_test(K4_shapes_that_do_not_fit_together),
                                       cmocka_unit_test(K4_dtypes),
                                       cmocka_unit_test(K4_outputs_that_overlap),
                                       cmocka_unit_test(K4_numbers_that_change_what_is_computed),
                                       cmocka_unit_test(K4_who_computes),
                                       cmocka_unit_test(K4_plan_itself),
                                       cmocka_unit_test(K5_shape_and_dtype_of_each_small_tensor),
                                       cmocka_unit_test(K5_extents_of_bias_and_mask),
                                       cmocka_unit_test(K5_lengths_that_contradict),
                                       cmocka_unit_test(options_of_another_version),
                                       cmocka_unit_test(each_thread_has_its_own_last_error),
                                       cmocka_unit_test(texts_are_never_null)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
