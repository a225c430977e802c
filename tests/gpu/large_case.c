/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are too large to compute again in full: see large_case.h. */
#include "large_case.h"

#include "device.h"
#include "element.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE = 1 << 16 };

/* A tensor of the call: [batch, seqlen, heads, head_dim], compact on the host, rows apart on the GPU. */
typedef struct large_tensor {
    int64_t shape[4], strides[4];
    uint16_t *host;
    fa_tensor fa;
} large_tensor;

typedef struct large_call {
    const large_case *c;
    large_tensor q, k, v, out;
    int64_t lse_shape[3];
    float *lse_host;
    fa_tensor lse;
    unsigned char *memory; /* the rows of all four tensors, interleaved if there are gaps */
} large_call;

static int64_t row_elements(const large_tensor *t) { return t->shape[2] * t->shape[3]; }
static int64_t rows_of(const large_tensor *t) { return t->shape[0] * t->shape[1]; }

static large_tensor tensor_make(const large_case *c, int64_t seqlen, int64_t heads) {
    large_tensor t = {.shape = {c->batch, seqlen, heads, c->head_dim}};
    int64_t row = heads * c->head_dim + c->row_gap;
    t.strides[0] = seqlen * row;
    t.strides[1] = row;
    t.strides[2] = c->head_dim;
    t.strides[3] = 1;
    t.fa = (fa_tensor){.device = {FA_DEVICE_CUDA, 0}, .ndim = 4, .dtype = c->type};
    t.host = malloc((size_t)(rows_of(&t) * row_elements(&t)) * 2);
    assert_non_null(t.host);
    return t;
}

/* Normal numbers from a table, in an order that no two rows share: drawing 10^9 of them would take minutes. */
static void tensor_fill(large_tensor *t, const uint16_t *table, rng *r) {
    for (int64_t row = 0, width = row_elements(t); row < rows_of(t); row++) {
        uint64_t start = rng_next(r), step = rng_next(r) | 1u;
        for (int64_t i = 0; i < width; i++) t->host[row * width + i] = table[(start + (uint64_t)i * step) % TABLE];
    }
}

static void copy_rows(const large_tensor *t, bool to_gpu) {
    size_t width = (size_t)row_elements(t) * 2;
    bool compact = t->strides[1] == row_elements(t);
    int64_t pieces = compact ? 1 : rows_of(t);
    size_t bytes = compact ? width * (size_t)rows_of(t) : width;
    for (int64_t i = 0; i < pieces; i++) {
        unsigned char *gpu = (unsigned char *)t->fa.data + i * t->strides[1] * 2,
                      *host = (unsigned char *)t->host + (size_t)i * bytes;
        if (to_gpu)
            device_write(gpu, host, bytes);
        else
            device_read(host, gpu, bytes);
    }
}

static int64_t bytes_apart(const large_tensor *t) { return t->shape[0] * t->strides[0] * 2; }

static bool call_make(large_call *l, const large_case *c) {
    *l = (large_call){.c = c};
    l->q = tensor_make(c, c->seqlen_q, c->heads);
    l->k = tensor_make(c, c->seqlen_k, c->heads_kv);
    l->v = tensor_make(c, c->seqlen_k, c->heads_kv);
    l->out = tensor_make(c, c->seqlen_q, c->heads);
    large_tensor *all[] = {&l->q, &l->k, &l->v, &l->out};
    /* Gaps are wide enough for the rows of the other tensors, so that one stretch of memory serves all. */
    int64_t bytes = c->row_gap > 0 ? bytes_apart(&l->q) : 0, begin[4] = {0},
            lse_bytes = c->batch * c->heads * c->seqlen_q * 4;
    for (int i = 0; i < 4; i++) {
        begin[i] = c->row_gap > 0 ? i * row_elements(&l->q) * 2 : bytes;
        if (c->row_gap == 0) bytes += bytes_apart(all[i]);
    }
    l->lse_host = malloc((size_t)lse_bytes);
    assert_non_null(l->lse_host);
    if ((uint64_t)(bytes + lse_bytes) + ((uint64_t)1 << 30) > device_free_bytes()) return false;
    l->memory = device_allocate((size_t)(bytes + lse_bytes));
    device_fill(l->memory, 0xff, (size_t)(bytes + lse_bytes));
    for (int i = 0; i < 4; i++) {
        all[i]->fa.shape = all[i]->shape;
        all[i]->fa.strides = all[i]->strides;
        all[i]->fa.data = l->memory + begin[i];
    }
    l->lse_shape[0] = c->batch;
    l->lse_shape[1] = c->heads;
    l->lse_shape[2] = c->seqlen_q;
    l->lse = (fa_tensor){.device = {FA_DEVICE_CUDA, 0},
                         .ndim = 3,
                         .dtype = FA_FLOAT32,
                         .shape = l->lse_shape,
                         .data = l->memory + bytes};
    return true;
}

static void call_drop(large_call *l) {
    if (l->memory != NULL) device_free(l->memory);
    free(l->q.host);
    free(l->k.host);
    free(l->v.host);
    free(l->out.host);
    free(l->lse_host);
}

/* ---- Judging a row ---- */

typedef struct error_sums {
    double largest, squares;
} error_sums;

static void add_error(error_sums *e, double error) {
    e->squares += error * error;
    if (!(fabs(error) <= e->largest)) e->largest = fabs(error); /* NaN stays */
}

typedef struct row_answer {
    double out[256], lse;
} row_answer;

/* The row as a call of its own on the CPU, over exactly the keys that it sees. */
static void compute_row(const large_call *l, int64_t b, int64_t head, int64_t row, fa_kernel kernel,
                        row_answer *answer) {
    const large_case *c = l->c;
    int64_t keys = c->causal == FA_CAUSAL_NONE ? c->seqlen_k : row + c->seqlen_k - c->seqlen_q + 1;
    int64_t head_kv = head / (c->heads / c->heads_kv), width_kv = c->heads_kv * c->head_dim;
    int64_t q_shape[4] = {1, 1, 1, c->head_dim}, k_shape[4] = {1, keys < 0 ? 0 : keys, 1, c->head_dim};
    int64_t k_strides[4] = {0, width_kv, c->head_dim, 1}, lse_shape[3] = {1, 1, 1};
    int64_t k_first = b * c->seqlen_k * width_kv + head_kv * c->head_dim;
    uint16_t out16[256];
    float lse32;
    bool reference = kernel == FA_KERNEL_REFERENCE;
    fa_tensor q = {.data = l->q.host + ((b * c->seqlen_q + row) * c->heads + head) * c->head_dim,
                   .device = {FA_DEVICE_CPU, 0},
                   .ndim = 4,
                   .dtype = c->type,
                   .shape = q_shape};
    fa_tensor k = q, v = q, out = q, lse = {.device = {FA_DEVICE_CPU, 0}, .ndim = 3, .shape = lse_shape};
    k.shape = v.shape = k_shape;
    k.strides = v.strides = k_strides;
    k.data = l->k.host + k_first;
    v.data = l->v.host + k_first;
    out.dtype = reference ? (fa_dtype)FA_FLOAT64 : c->type;
    out.data = reference ? (void *)answer->out : (void *)out16;
    lse.dtype = reference ? (fa_dtype)FA_FLOAT64 : (fa_dtype)FA_FLOAT32;
    lse.data = reference ? (void *)&answer->lse : (void *)&lse32;
    fa_options options = {.size = sizeof options, .kernel = kernel};
    if (fa_forward(&q, &k, &v, &options, &out, &lse) != FA_OK) fail_msg("%s: %s", c->name, fa_last_error());
    if (reference) return;
    fa_element type = c->type.code == FA_DTYPE_BFLOAT ? FA_ELEMENT_BFLOAT16 : FA_ELEMENT_FLOAT16;
    for (int64_t i = 0; i < c->head_dim; i++) answer->out[i] = fa_element_load(&out16[i], type);
    answer->lse = (double)lse32;
}

/* Rows that are looked at. The reference takes some 10 ns for each element of K and V: a second or two in all. */
static int sample_count(const large_case *c) {
    int64_t count = (INT64_C(1) << 27) / (c->seqlen_k * c->head_dim + 1);
    return count < 4 ? 4 : count > 48 ? 48 : (int)count;
}

static int64_t sample_of(rng *r, int64_t count, int sample) {
    return sample == 0 ? 0 : sample == 1 ? count - 1 : rng_range(r, 0, count - 1);
}

static void judge_sample(const large_call *l, fa_kernel kernel, rng *r) {
    const large_case *c = l->c;
    fa_element type = c->type.code == FA_DTYPE_BFLOAT ? FA_ELEMENT_BFLOAT16 : FA_ELEMENT_FLOAT16;
    error_sums out = {0, 0}, out_standard = {0, 0}, lse = {0, 0}, lse_standard = {0, 0};
    double lse_largest = 0;
    const int samples = sample_count(c);
    for (int i = 0; i < samples; i++) {
        row_answer truth, standard;
        int64_t b = sample_of(r, c->batch, i), head = sample_of(r, c->heads, i), row = sample_of(r, c->seqlen_q, i);
        compute_row(l, b, head, row, FA_KERNEL_REFERENCE, &truth);
        compute_row(l, b, head, row, FA_KERNEL_STANDARD, &standard);
        const uint16_t *o = l->out.host + ((b * c->seqlen_q + row) * c->heads + head) * c->head_dim;
        double x = (double)l->lse_host[(b * c->heads + head) * c->seqlen_q + row];
        if (isinf(truth.lse)) {
            if (!(x == truth.lse)) fail_msg("%s: lse of a row that sees nothing is %g", c->name, x);
        } else {
            add_error(&lse, x - truth.lse);
            add_error(&lse_standard, standard.lse - truth.lse);
            if (fabs(truth.lse) > lse_largest) lse_largest = fabs(truth.lse);
        }
        for (int64_t column = 0; column < c->head_dim; column++) {
            add_error(&out, fa_element_load(&o[column], type) - truth.out[column]);
            add_error(&out_standard, standard.out[column] - truth.out[column]);
        }
    }
    /* The standard kernel's lse may be right by luck: a few roundings of the largest are granted in any case. */
    double floor = 4 * lse_largest * 0x1p-24;
    (void)printf("%s, %s: largest error %.3g, the standard kernel's %.3g\n", c->name, fa_kernel_name(kernel),
                 out.largest, out_standard.largest);
    if (!(out.largest <= 2 * out_standard.largest) || !(out.squares <= 4 * out_standard.squares))
        fail_msg("%s: the error of out, %g and %g, is more than twice the standard kernel's, %g and %g", c->name,
                 out.largest, sqrt(out.squares), out_standard.largest, sqrt(out_standard.squares));
    if (!(lse.largest <= 2 * lse_standard.largest + floor))
        fail_msg("%s: the error of lse, %g, is more than twice the standard kernel's, %g", c->name, lse.largest,
                 lse_standard.largest);
}

/* Every element of out and lse was written with something that is no NaN. */
static void check_written(const large_call *l) {
    int64_t count = rows_of(&l->out) * row_elements(&l->out), rows = l->c->batch * l->c->heads * l->c->seqlen_q;
    for (int64_t i = 0; i < count; i++)
        if (l->out.host[i] == 0xffff) fail_msg("%s: out: element %" PRId64 " was not written", l->c->name, i);
    for (int64_t i = 0; i < rows; i++)
        if (isnan(l->lse_host[i])) fail_msg("%s: lse: element %" PRId64 " was not written", l->c->name, i);
}

void judge_large_case(const large_case *c, fa_kernel kernel) {
    static uint16_t table[TABLE];
    rng random = rng_named(c->name, 0);
    fa_element type = c->type.code == FA_DTYPE_BFLOAT ? FA_ELEMENT_BFLOAT16 : FA_ELEMENT_FLOAT16;
    for (int i = 0; i < TABLE; i++) fa_element_store(&table[i], rng_normal(&random), type);
    large_call l;
    if (!call_make(&l, c)) {
        (void)printf("%s: skipped, the GPU has too little memory\n", c->name);
        call_drop(&l);
        return;
    }
    large_tensor *inputs[] = {&l.q, &l.k, &l.v};
    for (int i = 0; i < 3; i++) {
        tensor_fill(inputs[i], table, &random);
        copy_rows(inputs[i], true);
    }
    fa_options options = {.size = sizeof options, .kernel = kernel, .causal = c->causal};
    if (fa_forward(&l.q.fa, &l.k.fa, &l.v.fa, &options, &l.out.fa, &l.lse) != FA_OK)
        fail_msg("%s: %s", c->name, fa_last_error());
    device_synchronize();
    copy_rows(&l.out, false);
    device_read(l.lse_host, l.lse.data, (size_t)(c->batch * c->heads * c->seqlen_q) * 4);
    check_written(&l);
    judge_sample(&l, kernel, &random);
    call_drop(&l);
}
