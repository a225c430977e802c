/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention composed of oneDNN's primitives, forward and backward: a peer for the scripts beside this file, which build
 * it against PyPI's onednn-devel-cpu-gomp. Not part of the library.
 *
 * Queries are taken in blocks of rows. A block's scores, at most row_block x seqlen_k, lie in memory; under a causal
 * mask they end at the last key that the block sees, and a plain loop hides the triangle. Matrices are reordered into
 * the layout that a matmul asks for: K and V once per key/value head, or under a causal mask once per block of rows
 * where a reordered matrix cannot be cut. All query heads of a key/value head share them.
 *
 * Backward has its scores transposed, [keys, rows]: what differs from row to row, lse and delta, is then what matmuls
 * take as a post-op without leaving their fast path, as are scale, exp and the product with the weights.
 *
 * Threads take key/value heads, or blocks of rows of a head, in turns; a primitive runs in the thread that calls it.
 * Backward uses at most one thread per key/value head, because dK and dV are sums over rows.
 */
#include <oneapi/dnnl/dnnl.h>

#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The matrices that a block of rows works on. */
typedef enum matrix {
    K_TRANSPOSED, /* [d, keys] of the caller's K */
    V,            /* [keys, d] of the caller's, as the next two */
    DK,
    DV,
    LSE, /* [1, rows] of the caller's, float32 */
    Q,   /* [rows, d]; from here on a thread's own memory */
    OUT,
    DOUT,
    DQ,
    Q_TRANSPOSED, /* [d, rows], the memory of Q */
    DOUT_TRANSPOSED,
    SCORES,             /* [rows, keys] float32 */
    WEIGHTS,            /* [rows, keys] */
    WEIGHTS_TRANSPOSED, /* [keys, rows] */
    DSCORES_TRANSPOSED,
    DSCORES,           /* [rows, keys], the memory of DSCORES_TRANSPOSED */
    DELTA,             /* [1, rows] float32: sums of dO * O */
    K_ROWS,            /* [keys, d], rows next to each other */
    K_ROWS_TRANSPOSED, /* [d, keys], the memory of K_ROWS */
    V_ROWS,
    DK_SUM, /* [keys, d] float32 */
    DV_SUM,
    PACKED, /* the matrices below are in a matmul's own layout */
    K_TRANSPOSED_PACKED = PACKED,
    K_PACKED,
    V_PACKED,
    Q_TRANSPOSED_PACKED,
    DOUT_TRANSPOSED_PACKED,
    Q_PACKED,
    DOUT_PACKED,
    MATRICES,
} matrix;

enum { MAX_STEPS = 10, MAX_ARGUMENTS = 6 };

typedef struct step {
    dnnl_primitive_t primitive;
    dnnl_memory_t scratchpad;
    dnnl_exec_arg_t arguments[MAX_ARGUMENTS];
    int count;
} step;

typedef struct step_list {
    step steps[MAX_STEPS];
    int count;
} step_list;

/* What is done for blocks of `rows` queries that see `keys` keys. */
typedef struct block_kind {
    int64_t rows, keys;
    dnnl_memory_desc_t desc[MATRICES];
    dnnl_memory_t memory[MATRICES]; /* NULL without a desc */
    step_list pack, work, finish;   /* before the blocks of a key/value head; for each block; after them */
    int scores_end;                 /* steps of work after which hidden scores are overwritten */
} block_kind;

/* A thread's own: kinds of blocks, and buffers that serve all of them. */
typedef struct worker {
    dnnl_stream_t stream;
    block_kind *kinds;
    char *buffer[MATRICES], *scratchpad;
} worker;

typedef struct onednn_attention {
    int64_t batch, heads_kv, group, seqlen_q, seqlen_k, head_dim, row_block, blocks, kinds;
    int64_t q_batch, q_row, q_head, k_batch, k_row, k_head; /* strides in elements */
    bool causal, backward, pack;
    dnnl_data_type_t type;
    int64_t element_bytes;
    int threads;
    dnnl_engine_t engine;
    worker *workers;
    int status; /* of a call of oneDNN that failed, or 0 */
} onednn_attention;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static void ok(onednn_attention *a, dnnl_status_t status) {
    if (status == dnnl_success) return;
#pragma omp atomic write
    a->status = (int)status;
}

/* ---- the steps ---- */

/* Takes over desc. The memory gets its address later. */
static void set_matrix(onednn_attention *a, block_kind *kind, matrix m, dnnl_memory_desc_t desc) {
    kind->desc[m] = desc;
    ok(a, dnnl_memory_create(&kind->memory[m], desc, a->engine, DNNL_MEMORY_NONE));
}

static void describe(onednn_attention *a, block_kind *kind, matrix m, dnnl_data_type_t type, int64_t rows,
                     int64_t columns, int64_t row_stride, int64_t column_stride) {
    const dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
    dnnl_memory_desc_t desc = NULL;
    ok(a, dnnl_memory_desc_create_with_strides(&desc, 2, dims, type, strides));
    set_matrix(a, kind, m, desc);
}

static void describe_matrices(onednn_attention *a, block_kind *kind) {
    const int64_t d = a->head_dim, rows = kind->rows, keys = kind->keys;
    describe(a, kind, K_TRANSPOSED, a->type, d, keys, 1, a->k_row);
    for (matrix m = V; m <= DV; m++) describe(a, kind, m, a->type, keys, d, a->k_row, 1);
    for (matrix m = Q; m <= DQ; m++) describe(a, kind, m, a->type, rows, d, d, 1);
    describe(a, kind, K_ROWS, a->type, keys, d, d, 1);
    describe(a, kind, V_ROWS, a->type, keys, d, d, 1);
    describe(a, kind, K_ROWS_TRANSPOSED, a->type, d, keys, 1, d);
    if (!a->backward) {
        describe(a, kind, SCORES, dnnl_f32, rows, keys, keys, 1);
        describe(a, kind, WEIGHTS, a->type, rows, keys, keys, 1);
        return;
    }
    describe(a, kind, LSE, dnnl_f32, 1, rows, rows, 1);
    describe(a, kind, DELTA, dnnl_f32, 1, rows, rows, 1);
    describe(a, kind, Q_TRANSPOSED, a->type, d, rows, 1, d);
    describe(a, kind, DOUT_TRANSPOSED, a->type, d, rows, 1, d);
    describe(a, kind, WEIGHTS_TRANSPOSED, a->type, keys, rows, rows, 1);
    describe(a, kind, DSCORES_TRANSPOSED, a->type, keys, rows, rows, 1);
    describe(a, kind, DSCORES, a->type, rows, keys, 1, rows);
    describe(a, kind, DK_SUM, dnnl_f32, keys, d, d, 1);
    describe(a, kind, DV_SUM, dnnl_f32, keys, d, d, 1);
}

static dnnl_primitive_attr_t attributes(onednn_attention *a, dnnl_post_ops_t post_ops) {
    dnnl_primitive_attr_t attr = NULL;
    ok(a, dnnl_primitive_attr_create(&attr));
    ok(a, dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (post_ops != NULL) ok(a, dnnl_primitive_attr_set_post_ops(attr, post_ops));
    return attr;
}

/* Takes over desc, which is NULL if oneDNN refused it: then status says so, and nothing will ever run. */
static void append(onednn_attention *a, step_list *list, dnnl_primitive_desc_t desc, const dnnl_exec_arg_t *arguments,
                   int count) {
    if (desc == NULL) return;
    step *s = &list->steps[list->count++];
    const_dnnl_memory_desc_t scratchpad = dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    ok(a, dnnl_memory_create(&s->scratchpad, scratchpad, a->engine, DNNL_MEMORY_NONE));
    ok(a, dnnl_primitive_create(&s->primitive, desc));
    memcpy(s->arguments, arguments, (size_t)count * sizeof *arguments);
    s->arguments[count] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, s->scratchpad};
    s->count = count + 1;
    dnnl_primitive_desc_destroy(desc);
}

static void add_reorder(onednn_attention *a, block_kind *kind, step_list *list, matrix from, matrix to) {
    dnnl_primitive_attr_t attr = attributes(a, NULL);
    dnnl_primitive_desc_t desc = NULL;
    ok(a, dnnl_reorder_primitive_desc_create(&desc, kind->desc[from], a->engine, kind->desc[to], a->engine, attr));
    append(a, list, desc, (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, kind->memory[from]}, {DNNL_ARG_TO, kind->memory[to]}}, 2);
    dnnl_primitive_attr_destroy(attr);
}

static void add_softmax(onednn_attention *a, block_kind *kind) {
    dnnl_primitive_attr_t attr = attributes(a, NULL);
    dnnl_primitive_desc_t desc = NULL;
    ok(a, dnnl_softmax_forward_primitive_desc_create(&desc, a->engine, dnnl_forward_inference, dnnl_softmax_accurate,
                                                     kind->desc[SCORES], kind->desc[WEIGHTS], 1, attr));
    append(a, &kind->work, desc,
           (dnnl_exec_arg_t[]){{DNNL_ARG_SRC, kind->memory[SCORES]}, {DNNL_ARG_DST, kind->memory[WEIGHTS]}}, 2);
    dnnl_primitive_attr_destroy(attr);
}

static dnnl_primitive_desc_t product_desc(onednn_attention *a, const block_kind *kind, matrix x,
                                          const_dnnl_memory_desc_t y, matrix z, dnnl_primitive_attr_t attr) {
    dnnl_primitive_desc_t desc = NULL;
    ok(a, dnnl_matmul_primitive_desc_create(&desc, a->engine, kind->desc[x], y, NULL, kind->desc[z], attr));
    return desc;
}

/*
 * z = post_ops(x y), appended to the work of a block. list: where y is reordered into `packed`, or NULL to take it as it
 * lies. operands: the arguments of binary post-ops.
 */
static void add_product(onednn_attention *a, block_kind *kind, matrix x, matrix y, step_list *list, matrix packed,
                        matrix z, dnnl_post_ops_t post_ops, const dnnl_exec_arg_t *operands, int count) {
    dnnl_primitive_attr_t attr = attributes(a, post_ops);
    if (list != NULL) {
        dnnl_dims_t *dims = NULL;
        dnnl_memory_desc_t any = NULL;
        ok(a, dnnl_memory_desc_query(kind->desc[y], dnnl_query_dims, &dims));
        ok(a, dnnl_memory_desc_create_with_tag(&any, 2, *dims, a->type, dnnl_format_tag_any));
        dnnl_primitive_desc_t desc = product_desc(a, kind, x, any, z, attr);
        dnnl_memory_desc_destroy(any);
        if (desc != NULL) {
            const_dnnl_memory_desc_t wanted = dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
            ok(a, dnnl_memory_desc_clone(&any, wanted));
            set_matrix(a, kind, packed, any);
            dnnl_primitive_desc_destroy(desc);
            add_reorder(a, kind, list, y, packed);
        }
        y = packed;
    }
    dnnl_exec_arg_t arguments[MAX_ARGUMENTS] = {
        {DNNL_ARG_SRC, kind->memory[x]}, {DNNL_ARG_WEIGHTS, kind->memory[y]}, {DNNL_ARG_DST, kind->memory[z]}};
    for (int i = 0; i < count; i++) arguments[3 + i] = operands[i];
    if (kind->desc[y] != NULL)
        append(a, &kind->work, product_desc(a, kind, x, kind->desc[y], z, attr), arguments, 3 + count);
    dnnl_primitive_attr_destroy(attr);
}

static void add_forward(onednn_attention *a, block_kind *kind) {
    dnnl_post_ops_t scale = NULL;
    ok(a, dnnl_post_ops_create(&scale));
    ok(a, dnnl_post_ops_append_eltwise(scale, dnnl_eltwise_linear, 1 / sqrtf((float)a->head_dim), 0));
    step_list *pack = a->pack ? &kind->pack : NULL;
    add_product(a, kind, Q, pack ? K_ROWS_TRANSPOSED : K_TRANSPOSED, pack, K_TRANSPOSED_PACKED, SCORES, scale, NULL, 0);
    kind->scores_end = kind->work.count;
    add_softmax(a, kind);
    add_product(a, kind, WEIGHTS, pack ? V_ROWS : V, pack, V_PACKED, OUT, NULL, NULL, 0);
    dnnl_post_ops_destroy(scale);
}

static void add_backward(onednn_attention *a, block_kind *kind) {
    const float softmax_scale = 1 / sqrtf((float)a->head_dim);
    dnnl_post_ops_t weight = NULL, gradient = NULL, sum = NULL;
    ok(a, dnnl_post_ops_create(&weight));
    ok(a, dnnl_post_ops_append_eltwise(weight, dnnl_eltwise_linear, softmax_scale, 0));
    ok(a, dnnl_post_ops_append_binary(weight, dnnl_binary_sub, kind->desc[LSE]));
    ok(a, dnnl_post_ops_append_eltwise(weight, dnnl_eltwise_exp, 0, 0));
    const dnnl_exec_arg_t lse[] = {{DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1, kind->memory[LSE]}};
    ok(a, dnnl_post_ops_create(&gradient));
    ok(a, dnnl_post_ops_append_binary(gradient, dnnl_binary_sub, kind->desc[DELTA]));
    ok(a, dnnl_post_ops_append_binary(gradient, dnnl_binary_mul, kind->desc[WEIGHTS_TRANSPOSED]));
    ok(a, dnnl_post_ops_append_eltwise(gradient, dnnl_eltwise_linear, softmax_scale, 0));
    const dnnl_exec_arg_t delta_weights[] = {
        {DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, kind->memory[DELTA]},
        {DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1, kind->memory[WEIGHTS_TRANSPOSED]}};
    ok(a, dnnl_post_ops_create(&sum));
    ok(a, dnnl_post_ops_append_sum(sum, 1, 0, dnnl_f32));
    step_list *work = &kind->work;
    add_product(a, kind, K_ROWS, Q_TRANSPOSED, work, Q_TRANSPOSED_PACKED, WEIGHTS_TRANSPOSED, weight, lse, 1);
    kind->scores_end = work->count;
    add_product(a, kind, V_ROWS, DOUT_TRANSPOSED, work, DOUT_TRANSPOSED_PACKED, DSCORES_TRANSPOSED, gradient,
                delta_weights, 2);
    add_product(a, kind, WEIGHTS_TRANSPOSED, DOUT, work, DOUT_PACKED, DV_SUM, sum, NULL, 0);
    add_product(a, kind, DSCORES_TRANSPOSED, Q, work, Q_PACKED, DK_SUM, sum, NULL, 0);
    add_product(a, kind, DSCORES, K_ROWS, &kind->pack, K_PACKED, DQ, NULL, NULL, 0);
    add_reorder(a, kind, &kind->finish, DK_SUM, DK);
    add_reorder(a, kind, &kind->finish, DV_SUM, DV);
    dnnl_post_ops_destroy(weight);
    dnnl_post_ops_destroy(gradient);
    dnnl_post_ops_destroy(sum);
}

/* ---- memory ---- */

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static void *buffer_new(size_t bytes) { return aligned_alloc(64, (bytes + 64) / 64 * 64); }

static size_t memory_bytes(dnnl_memory_t memory) {
    const_dnnl_memory_desc_t desc = NULL;
    return dnnl_memory_get_memory_desc(memory, &desc) == dnnl_success ? dnnl_memory_desc_get_size(desc) : 0;
}

static step_list *list_of(block_kind *kind, int i) {
    return (step_list *[]){&kind->pack, &kind->work, &kind->finish}[i];
}

/* One buffer serves all kinds of blocks. */
static void allocate(onednn_attention *a, worker *w) {
    size_t bytes[MATRICES] = {0}, scratchpad = 0;
    for (block_kind *kind = w->kinds; kind < w->kinds + a->kinds; kind++) {
        for (matrix m = Q; m < MATRICES; m++)
            if (kind->memory[m] != NULL) bytes[m] = larger(bytes[m], memory_bytes(kind->memory[m]));
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < list_of(kind, i)->count; j++)
                scratchpad = larger(scratchpad, memory_bytes(list_of(kind, i)->steps[j].scratchpad));
    }
    w->scratchpad = buffer_new(scratchpad);
    for (matrix m = Q; m < MATRICES; m++)
        if (m != Q_TRANSPOSED && m != DOUT_TRANSPOSED && m != DSCORES && m != K_ROWS_TRANSPOSED)
            w->buffer[m] = buffer_new(bytes[m]);
    w->buffer[Q_TRANSPOSED] = w->buffer[Q];
    w->buffer[DOUT_TRANSPOSED] = w->buffer[DOUT];
    w->buffer[DSCORES] = w->buffer[DSCORES_TRANSPOSED];
    w->buffer[K_ROWS_TRANSPOSED] = w->buffer[K_ROWS];
    for (block_kind *kind = w->kinds; kind < w->kinds + a->kinds; kind++) {
        for (matrix m = Q; m < MATRICES; m++)
            if (kind->memory[m] != NULL) ok(a, dnnl_memory_set_data_handle(kind->memory[m], w->buffer[m]));
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < list_of(kind, i)->count; j++)
                ok(a, dnnl_memory_set_data_handle(list_of(kind, i)->steps[j].scratchpad, w->scratchpad));
    }
}

static void kind_free(block_kind *kind) {
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < list_of(kind, i)->count; j++) {
            dnnl_primitive_destroy(list_of(kind, i)->steps[j].primitive);
            dnnl_memory_destroy(list_of(kind, i)->steps[j].scratchpad);
        }
    for (matrix m = 0; m < MATRICES; m++)
        if (kind->desc[m] != NULL) {
            dnnl_memory_destroy(kind->memory[m]);
            dnnl_memory_desc_destroy(kind->desc[m]);
        }
}

void onednn_attention_free(onednn_attention *a) {
    for (worker *w = a->workers; w < a->workers + a->threads; w++) {
        for (int64_t i = 0; i < a->blocks; i++) kind_free(&w->kinds[i]);
        w->buffer[Q_TRANSPOSED] = w->buffer[DOUT_TRANSPOSED] = w->buffer[DSCORES] = w->buffer[K_ROWS_TRANSPOSED] = NULL;
        for (matrix m = 0; m < MATRICES; m++) free(w->buffer[m]);
        free(w->scratchpad);
        free(w->kinds);
        if (w->stream != NULL) dnnl_stream_destroy(w->stream);
    }
    free(a->workers);
    if (a->engine != NULL) dnnl_engine_destroy(a->engine);
    free(a);
}

static void worker_init(onednn_attention *a, worker *w) {
    ok(a, dnnl_stream_create(&w->stream, a->engine, dnnl_stream_default_flags));
    w->kinds = calloc((size_t)a->blocks, sizeof *w->kinds);
    a->kinds = 0;
    for (int64_t i = 0; i < a->blocks && a->status == 0; i++) {
        const int64_t first = i * a->row_block, rows = min64(a->row_block, a->seqlen_q - first);
        if (!a->causal && i > 0 && rows == a->row_block) continue; /* as the block before */
        block_kind *kind = &w->kinds[a->kinds++];
        kind->rows = rows;
        kind->keys = a->causal ? first + rows + a->seqlen_k - a->seqlen_q : a->seqlen_k;
        describe_matrices(a, kind);
        if (a->backward)
            add_backward(a, kind);
        else
            add_forward(a, kind);
    }
    if (a->status == 0) allocate(a, w);
}

/*
 * q, out and their gradients have the strides q_batch, q_row (from query to query) and q_head, all in elements; k, v and
 * theirs the other three. head_dim is contiguous. type: 0 float32, 1 bfloat16, 2 float16, which backward has not. causal
 * needs seqlen_q <= seqlen_k and is bottom-right. pack: reorder K and V, which pays off where many rows use them;
 * backward always does. NULL if oneDNN has no such matmul on this processor.
 */
onednn_attention *onednn_attention_new(int64_t batch, int64_t heads, int64_t heads_kv, int64_t seqlen_q,
                                       int64_t seqlen_k, int64_t head_dim, int64_t q_batch, int64_t q_row,
                                       int64_t q_head, int64_t k_batch, int64_t k_row, int64_t k_head, int type,
                                       int causal, int backward, int pack, int64_t row_block, int threads) {
    if ((causal && seqlen_q > seqlen_k) || (backward && type == 2)) return NULL;
    onednn_attention *a = calloc(1, sizeof *a);
    a->batch = batch;
    a->heads_kv = heads_kv;
    a->group = heads / heads_kv;
    a->seqlen_q = seqlen_q;
    a->seqlen_k = seqlen_k;
    a->head_dim = head_dim;
    a->q_batch = q_batch;
    a->q_row = q_row;
    a->q_head = q_head;
    a->k_batch = k_batch;
    a->k_row = k_row;
    a->k_head = k_head;
    a->causal = causal;
    a->backward = backward;
    a->pack = pack || backward;
    a->type = (dnnl_data_type_t[]){dnnl_f32, dnnl_bf16, dnnl_f16}[type];
    a->element_bytes = type == 0 ? 4 : 2;
    a->threads = threads;
    if (seqlen_q == 1 && !backward) { /* the query heads of a group are the rows of one block */
        a->seqlen_q = a->group;
        a->q_row = q_head;
        a->q_head = a->group * q_head;
        a->group = 1;
        a->causal = false; /* a last query sees every key */
    }
    a->row_block = min64(row_block, a->seqlen_q);
    a->blocks = (a->seqlen_q + a->row_block - 1) / a->row_block;
    a->workers = calloc((size_t)threads, sizeof *a->workers);
    ok(a, dnnl_engine_create(&a->engine, dnnl_cpu, 0));
    const int before = omp_get_max_threads();
    omp_set_num_threads(1); /* a primitive divides its work when it is made */
    for (worker *w = a->workers; w < a->workers + threads; w++) worker_init(a, w);
    omp_set_num_threads(before);
    if (a->status == 0) return a;
    onednn_attention_free(a);
    return NULL;
}

/* ---- running ---- */

static void run_steps(onednn_attention *a, worker *w, const step_list *list, int first, int end) {
    for (const step *s = list->steps + first; s < list->steps + end; s++)
        ok(a, dnnl_primitive_execute(s->primitive, w->stream, s->count, s->arguments));
}

/* Row r of a causal block sees all keys but the last rows - 1 - r. */
static void hide_scores(const block_kind *kind, float *scores) {
    for (int64_t r = 0; r < kind->rows; r++)
        for (int64_t j = kind->keys - kind->rows + r + 1; j < kind->keys; j++) scores[r * kind->keys + j] = -INFINITY;
}

/* The same, transposed. */
static void hide_weights(const block_kind *kind, char *weights, int64_t element_bytes) {
    for (int64_t j = kind->keys - kind->rows + 1; j < kind->keys; j++)
        memset(weights + j * kind->rows * element_bytes, 0, (size_t)((j - (kind->keys - kind->rows)) * element_bytes));
}

static float element(const char *x, int64_t i, dnnl_data_type_t type) {
    float value;
    if (type == dnnl_f32) return ((const float *)x)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void set_delta(const onednn_attention *a, const worker *w, int64_t rows) {
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t i = r * a->head_dim; i < (r + 1) * a->head_dim; i++)
            sum += element(w->buffer[DOUT], i, a->type) * element(w->buffer[OUT], i, a->type);
        ((float *)w->buffer[DELTA])[r] = sum;
    }
}

/* Of the caller; NULL where they are not part of the call. */
typedef struct tensors {
    char *q, *k, *v, *out, *dout, *dq, *dk, *dv;
    float *lse;
} tensors;

/* To or from rows that lie next to each other: on others matmuls leave their fast path. */
static void gather(const onednn_attention *a, char *dense, const char *rows, int64_t count, int64_t stride) {
    const int64_t bytes = a->head_dim * a->element_bytes;
    for (int64_t r = 0; r < count; r++) memcpy(dense + r * bytes, rows + r * stride * a->element_bytes, (size_t)bytes);
}

static void scatter(const onednn_attention *a, const char *dense, char *rows, int64_t count, int64_t stride) {
    const int64_t bytes = a->head_dim * a->element_bytes;
    for (int64_t r = 0; r < count; r++) memcpy(rows + r * stride * a->element_bytes, dense + r * bytes, (size_t)bytes);
}

static void run_block(onednn_attention *a, worker *w, block_kind *kind, const tensors *t, int64_t n, int64_t head,
                      int64_t first) {
    const int64_t at = (n * a->q_batch + head * a->q_head + first * a->q_row) * a->element_bytes;
    gather(a, w->buffer[Q], t->q + at, kind->rows, a->q_row);
    if (a->backward) {
        gather(a, w->buffer[OUT], t->out + at, kind->rows, a->q_row);
        gather(a, w->buffer[DOUT], t->dout + at, kind->rows, a->q_row);
        set_delta(a, w, kind->rows);
        float *lse = t->lse + (n * a->heads_kv * a->group + head) * a->seqlen_q + first;
        ok(a, dnnl_memory_set_data_handle(kind->memory[LSE], lse));
    }
    run_steps(a, w, &kind->work, 0, kind->scores_end);
    if (a->causal && a->backward) hide_weights(kind, w->buffer[WEIGHTS_TRANSPOSED], a->element_bytes);
    if (a->causal && !a->backward) hide_scores(kind, (float *)w->buffer[SCORES]);
    run_steps(a, w, &kind->work, kind->scores_end, kind->work.count);
    scatter(a, w->buffer[a->backward ? DQ : OUT], (a->backward ? t->dq : t->out) + at, kind->rows, a->q_row);
}

static block_kind *kind_of(const onednn_attention *a, const worker *w, int64_t block) {
    return &w->kinds[a->causal ? block : block + 1 == a->blocks ? a->kinds - 1 : 0];
}

/* Blocks first to end - 1 of all query heads of a key/value head. */
static void run_blocks(onednn_attention *a, worker *w, const tensors *t, int64_t n, int64_t head_kv, int64_t first,
                       int64_t end) {
    const int64_t at = (n * a->k_batch + head_kv * a->k_head) * a->element_bytes;
    if (a->pack) {
        const int64_t keys = kind_of(a, w, end - 1)->keys;
        gather(a, w->buffer[K_ROWS], t->k + at, keys, a->k_row);
        gather(a, w->buffer[V_ROWS], t->v + at, keys, a->k_row);
    }
    if (a->backward) {
        memset(w->buffer[DK_SUM], 0, (size_t)(a->seqlen_k * a->head_dim) * sizeof(float));
        memset(w->buffer[DV_SUM], 0, (size_t)(a->seqlen_k * a->head_dim) * sizeof(float));
    }
    block_kind *kind = NULL;
    for (int64_t i = first; i < end; i++) {
        if (kind != kind_of(a, w, i)) {
            kind = kind_of(a, w, i);
            ok(a, dnnl_memory_set_data_handle(kind->memory[K_TRANSPOSED], t->k + at));
            ok(a, dnnl_memory_set_data_handle(kind->memory[V], t->v + at));
            if (a->backward) {
                ok(a, dnnl_memory_set_data_handle(kind->memory[DK], t->dk + at));
                ok(a, dnnl_memory_set_data_handle(kind->memory[DV], t->dv + at));
            }
            run_steps(a, w, &kind->pack, 0, kind->pack.count);
        }
        for (int64_t g = 0; g < a->group; g++) run_block(a, w, kind, t, n, head_kv * a->group + g, i * a->row_block);
    }
    run_steps(a, w, &kind->finish, 0, kind->finish.count); /* the last block sees all keys */
}

static int run(onednn_attention *a, const tensors *t) {
    const int64_t heads = a->batch * a->heads_kv;
    int64_t parts = a->causal ? a->blocks : min64(a->blocks, (a->threads + heads - 1) / heads);
    if (a->backward || heads % a->threads == 0) parts = 1;
#pragma omp parallel for num_threads(a->threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < parts * heads; i++) {
        const int64_t part = parts - 1 - i / heads, head = i % heads; /* long blocks first */
        run_blocks(a, &a->workers[omp_get_thread_num()], t, head / a->heads_kv, head % a->heads_kv,
                   part * a->blocks / parts, (part + 1) * a->blocks / parts);
    }
    return a->status;
}

int onednn_attention_forward(onednn_attention *a, void *q, void *k, void *v, void *out) {
    return run(a, &(tensors){.q = q, .k = k, .v = v, .out = out});
}

int onednn_attention_backward(onednn_attention *a, void *dout, void *q, void *k, void *v, void *out, float *lse,
                              void *dq, void *dk, void *dv) {
    return run(a, &(tensors){q, k, v, out, dout, dq, dk, dv, lse});
}
