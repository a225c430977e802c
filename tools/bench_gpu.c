/* SPDX-License-Identifier: Apache-2.0 */
/* Measures GPU kernels: see bench_gpu.h. */
#include "bench_gpu.h"

#include "clock.h"
#include "gpu_device.h"
#include "json_output.h"
#include "message.h"
#include "terminal.h"
#include "text_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS_MAX = 8, SAMPLES_MAX = 199, BLOCK_ELEMENTS = 4194301 }; /* a prime: rows differ */
static const int64_t default_tokens = 16384, default_columns = 2048;

typedef struct gpu_case {
    fa_element dtype;
    int64_t batch, heads, heads_kv, seqlen, head_dim;
    double flops;
    double seconds[KERNELS_MAX]; /* median, in the order of the kernels */
    int samples;
} gpu_case;

typedef struct gpu_bench {
    bool backward;
    fa_kernel kernels[KERNELS_MAX];
    size_t kernel_count;
    gpu_case *cases;
    size_t count;
    double peak;
    char machine[192], rules[256];
} gpu_bench;

/* ---- What is measured ---- */

static bool add_case(gpu_bench *b, gpu_case c) {
    gpu_case *cases = realloc(b->cases, (b->count + 1) * sizeof *cases);
    if (cases == NULL) return false;
    b->cases = cases;
    b->cases[b->count++] = c;
    return true;
}

static int64_t value_or(const option_integer_list *list, size_t at, int64_t otherwise) {
    return list->count > 0 ? list->values[at] : otherwise > 0 ? otherwise : 1;
}

/* Every combination; seqlen varies fastest. */
static int make_cases(gpu_bench *b, const bench_gpu_settings *s) {
    static const int64_t lengths[] = {512, 1024, 2048, 4096, 8192, 16384};
    option_integer_list seqlen = s->seqlen, head_dim = s->head_dim;
    uint32_t dtypes = s->dtypes != 0 ? s->dtypes : UINT32_C(1) << FA_ELEMENT_BFLOAT16;
    if (seqlen.count == 0) {
        memcpy(seqlen.values, lengths, sizeof lengths);
        seqlen.count = sizeof lengths / sizeof lengths[0];
    }
    if (head_dim.count == 0) head_dim = (option_integer_list){.values = {64, 128, 256}, .count = 3};
    for (int dtype = FA_ELEMENT_FLOAT16; dtype <= FA_ELEMENT_BFLOAT16; dtype++)
        for (size_t d = 0; d < head_dim.count; d++)
            for (size_t h = 0; h < s->heads.count + (s->heads.count == 0); h++)
                for (size_t k = 0; k < s->heads_kv.count + (s->heads_kv.count == 0); k++)
                    for (size_t n = 0; n < s->batch.count + (s->batch.count == 0); n++)
                        for (size_t l = 0; l < seqlen.count; l++) {
                            if ((dtypes >> dtype & 1) == 0) continue;
                            gpu_case c = {
                                .dtype = (fa_element)dtype, .seqlen = seqlen.values[l], .head_dim = head_dim.values[d]};
                            c.batch = value_or(&s->batch, n, default_tokens / c.seqlen);
                            c.heads = value_or(&s->heads, h, default_columns / c.head_dim);
                            c.heads_kv = value_or(&s->heads_kv, k, c.heads);
                            if (!add_case(b, c)) return fail_memory("the list of cases");
                        }
    return b->count > 0 ? EXIT_CODE_OK : fail_usage("--dtype: GPU kernels take float16 and bfloat16");
}

/* The tensors of a case, lying on the GPU; forward has out alone besides q, k and v. */
typedef struct gpu_call {
    bool backward;
    attention a;
    tensor out, dout, dq, dk, dv, lse;
} gpu_call;

enum { TENSORS_FORWARD = 4, TENSORS = 9 };

static void list_tensors(gpu_call *call, tensor *all[TENSORS]) {
    tensor *const list[TENSORS] = {&call->a.q, &call->a.k, &call->a.v, &call->out, &call->dout,
                                   &call->dq,  &call->dk,  &call->dv,  &call->lse};
    memcpy(all, list, sizeof list);
}

/* Shapes and types, without memory. */
static int describe_call(const gpu_bench *b, const gpu_case *c, const score_settings *scores, gpu_call *call) {
    static const tensor_settings no_tensors = {.bias = NULL};
    int64_t q[4] = {c->batch, c->seqlen, c->heads, c->head_dim}, k[4] = {c->batch, c->seqlen, c->heads_kv, c->head_dim};
    int64_t lse[3] = {c->batch, c->heads, c->seqlen};
    const fa_device cuda = {FA_DEVICE_CUDA, 0};
    const fa_tensor like_q = {.device = cuda, .ndim = 4, .dtype = dtype_of_element(c->dtype), .shape = q},
                    like_k = {.device = cuda, .ndim = 4, .dtype = dtype_of_element(c->dtype), .shape = k},
                    like_lse = {.device = cuda, .ndim = 3, .dtype = FA_FLOAT32, .shape = lse};
    tensor *const of_q[] = {&call->a.q, &call->out, &call->dout, &call->dq}, *const of_k[] = {&call->a.k, &call->a.v,
                                                                                              &call->dk, &call->dv};
    *call = (gpu_call){.backward = b->backward, .a = {.file_ndim = 4}};
    for (size_t i = 0; i < 4; i++) {
        tensor_view(of_q[i], &like_q);
        tensor_view(of_k[i], &like_k);
    }
    tensor_view(&call->lse, &like_lse);
    return attention_set_options(&call->a, scores, &no_tensors, NULL);
}

static fa_status plan_call(const gpu_call *call) {
    const attention *a = &call->a;
    fa_plan_info info = {.size = sizeof info};
    if (!call->backward) return fa_plan(&a->q.t, &a->k.t, &a->v.t, &a->options, &call->out.t, NULL, &info);
    return fa_plan_backward(&call->dout.t, &a->q.t, &a->k.t, &a->v.t, &call->out.t, &call->lse.t, &a->options,
                            &call->dq.t, &call->dk.t, &call->dv.t, &info);
}

/* The call that is measured. */
static fa_status make_call(const gpu_call *call) {
    const attention *a = &call->a;
    if (!call->backward) return fa_forward(&a->q.t, &a->k.t, &a->v.t, &a->options, &call->out.t, NULL);
    return fa_backward(&call->dout.t, &a->q.t, &a->k.t, &a->v.t, &call->out.t, &call->lse.t, &a->options, &call->dq.t,
                       &call->dk.t, &call->dv.t);
}

/* Whether the kernel takes every case; if not, the library's sentence says why. */
static int plan_all(const gpu_bench *b, const score_settings *scores, fa_kernel kernel, bool *takes_all) {
    gpu_call call;
    *takes_all = true;
    for (size_t i = 0; i < b->count && *takes_all; i++) {
        int code = describe_call(b, &b->cases[i], scores, &call);
        if (code != EXIT_CODE_OK) return code;
        call.a.options.kernel = kernel;
        *takes_all = plan_call(&call) == FA_OK;
    }
    return EXIT_CODE_OK;
}

/* Kernels that are asked for must take every case; of the others those are measured that do. */
static int choose_kernels(gpu_bench *b, const score_settings *scores, uint32_t asked) {
    bool all = asked == 0 || asked == OPTION_CHOICES_ALL;
    for (int i = 1; kernel_choice(i) != NULL; i++) {
        bool gpu = i == FA_KERNEL_STANDARD || i >= FA_KERNEL_V1, takes_all;
        if (!all && (asked >> i & 1) == 0) continue;
        if (!all && !gpu) return fail_usage("--kernel %s: runs on the CPU, and --device is cuda", kernel_choice(i));
        if (!gpu) continue;
        int code = plan_all(b, scores, (fa_kernel)i, &takes_all);
        if (code != EXIT_CODE_OK) return code;
        if (takes_all)
            b->kernels[b->kernel_count++] = (fa_kernel)i;
        else if (!all)
            return fail_library();
    }
    if (b->kernel_count > 0) return EXIT_CODE_OK;
    bool takes_all; /* the library's own choice has the reason that tells most */
    int code = plan_all(b, scores, FA_KERNEL_AUTO, &takes_all);
    return code == EXIT_CODE_OK ? fail_library() : code;
}

/* ---- Measuring ---- */

/* Numbers from one block, for each tensor from another place on; out and lse are those of the forward pass. */
static int fill_call(gpu_call *call, const tensor *block) {
    const size_t shift = 65538; /* even: what is left of the block stays odd, so that rows differ */
    tensor *all[TENSORS];
    list_tensors(call, all);
    for (size_t i = 0; i < (call->backward ? TENSORS : TENSORS_FORWARD); i++) {
        size_t bytes = (size_t)tensor_elements(&all[i]->t) * (all[i]->t.dtype.bits / 8u);
        int code = gpu_allocate(&all[i]->t.data, bytes);
        if (code == EXIT_CODE_OK)
            code = gpu_fill(all[i]->t.data, bytes, (const uint16_t *)block->t.data + i * shift,
                            (BLOCK_ELEMENTS - i * shift) * 2);
        if (code != EXIT_CODE_OK) return code;
    }
    const attention *a = &call->a;
    if (call->backward && fa_forward(&a->q.t, &a->k.t, &a->v.t, &a->options, &call->out.t, &call->lse.t) != FA_OK)
        return fail_library();
    return EXIT_CODE_OK;
}

static void free_call(gpu_call *call) {
    tensor *all[TENSORS];
    list_tensors(call, all);
    for (size_t i = 0; i < TENSORS; i++) gpu_free(all[i]->t.data);
}

static int compare_doubles(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* `calls` calls one behind another; seconds of one. */
static int time_calls(gpu_call *call, fa_kernel kernel, int calls, double *seconds) {
    int code = gpu_start();
    call->a.options.kernel = kernel;
    for (int i = 0; i < calls && code == EXIT_CODE_OK; i++)
        if (make_call(call) != FA_OK) code = fail_library();
    if (code == EXIT_CODE_OK) code = gpu_stop(seconds);
    *seconds /= calls;
    return code;
}

/* Kernels take turns, so that a changing clock meets all; the median counts. */
static int measure(gpu_bench *b, gpu_case *c, gpu_call *call, double budget) {
    static double samples[KERNELS_MAX][SAMPLES_MAX];
    int calls[KERNELS_MAX];
    for (size_t k = 0; k < b->kernel_count; k++) { /* loads the kernel, then tells how long it takes */
        double seconds = 0;
        int code = time_calls(call, b->kernels[k], 1, &seconds);
        if (code == EXIT_CODE_OK) code = time_calls(call, b->kernels[k], 1, &seconds);
        if (code != EXIT_CODE_OK) return code;
        calls[k] = seconds > 0.002 ? 1 : (int)(0.002 / (seconds > 1e-5 ? seconds : 1e-5)) + 1;
    }
    double begin = now_seconds();
    for (c->samples = 0; c->samples < SAMPLES_MAX; c->samples++) {
        if (c->samples >= 3 && now_seconds() - begin > budget) break;
        for (size_t k = 0; k < b->kernel_count; k++) {
            int code = time_calls(call, b->kernels[k], calls[k], &samples[k][c->samples]);
            if (code != EXIT_CODE_OK) return code;
        }
    }
    for (size_t k = 0; k < b->kernel_count; k++) {
        qsort(samples[k], (size_t)c->samples, sizeof samples[k][0], compare_doubles);
        c->seconds[k] = samples[k][c->samples / 2];
    }
    return EXIT_CODE_OK;
}

static int measure_case(gpu_bench *b, gpu_case *c, const score_settings *scores, const tensor *block, double budget) {
    gpu_call call;
    int code = describe_call(b, c, scores, &call);
    if (code == EXIT_CODE_OK) {
        /* Backward has five products of that size in place of two. */
        c->flops = attention_flops(&call.a) * (b->backward ? 2.5 : 1);
        code = fill_call(&call, block);
    }
    if (code == EXIT_CODE_OK) code = measure(b, c, &call, budget);
    free_call(&call);
    return code;
}

static int measure_all(gpu_bench *b, const bench_gpu_settings *s, const score_settings *scores) {
    static const int64_t block_shape[1] = {BLOCK_ELEMENTS};
    progress bar;
    double begin = now_seconds();
    tensor block;
    fa_element filled = FA_ELEMENT_FLOAT32;
    int code = EXIT_CODE_OK;
    memset(&block, 0, sizeof block);
    progress_begin(&bar, (double)b->count);
    for (size_t i = 0; i < b->count && code == EXIT_CODE_OK; i++) {
        gpu_case *c = &b->cases[i];
        char label[96];
        (void)snprintf(label, sizeof label, "head_dim %" PRId64 "  seqlen %" PRId64, c->head_dim, c->seqlen);
        progress_update(&bar, (double)i, label);
        if (filled != c->dtype) {
            tensor_free(&block);
            if (!tensor_allocate(&block, dtype_of_element(c->dtype), 1, block_shape))
                return fail_memory("random numbers");
            tensor_fill_normal(&block, 1);
            filled = c->dtype;
        }
        code = measure_case(b, c, scores, &block, (s->seconds - (now_seconds() - begin)) / (double)(b->count - i));
    }
    progress_end(&bar);
    tensor_free(&block);
    return code;
}

/* ---- Reports ---- */

static double tflops(const gpu_case *c, size_t kernel) {
    return c->seconds[kernel] > 0 ? c->flops / c->seconds[kernel] * 1e-12 : 0;
}

static size_t fastest(const gpu_bench *b, const gpu_case *c) {
    size_t best = 0;
    for (size_t k = 1; k < b->kernel_count; k++)
        if (c->seconds[k] < c->seconds[best]) best = k;
    return best;
}

/* TFLOP/s of each kernel, ratios to the first one, and what the fastest has of the tensor cores' peak. */
static void print_table(const gpu_bench *b) {
    text_table table;
    char alignment[TEXT_TABLE_COLUMNS] = "lrrrr";
    (void)printf("%s\n%s; TFLOP/s, medians; peak of the tensor cores at the highest clock: %.0f TFLOP/s\n\n",
                 b->machine, b->rules, b->peak * 1e-12);
    for (size_t k = 0; k < 2 * b->kernel_count; k++) strcat(alignment, "r");
    text_table_begin(&table, alignment);
    text_table_row *row = text_table_add(&table);
    size_t column = 0;
    static const char *const heading[] = {"dtype", "head_dim", "batch", "heads", "seqlen"};
    for (size_t i = 0; i < sizeof heading / sizeof heading[0]; i++) text_table_cell(row, &column, "%s", heading[i]);
    for (size_t k = 0; k < b->kernel_count; k++) text_table_cell(row, &column, "%s", fa_kernel_name(b->kernels[k]));
    for (size_t k = 1; k < b->kernel_count; k++)
        text_table_cell(row, &column, "%s/%s", fa_kernel_name(b->kernels[k]), fa_kernel_name(b->kernels[0]));
    text_table_cell(row, &column, "of peak");
    for (size_t i = 0; i < b->count; i++) {
        const gpu_case *c = &b->cases[i];
        row = text_table_add(&table);
        column = 0;
        text_table_cell(row, &column, "%s", dtype_choice((int)c->dtype));
        text_table_cell(row, &column, "%" PRId64, c->head_dim);
        text_table_cell(row, &column, "%" PRId64, c->batch);
        if (c->heads_kv == c->heads)
            text_table_cell(row, &column, "%" PRId64, c->heads);
        else
            text_table_cell(row, &column, "%" PRId64 ":%" PRId64, c->heads, c->heads_kv);
        text_table_cell(row, &column, "%" PRId64, c->seqlen);
        for (size_t k = 0; k < b->kernel_count; k++) text_table_cell(row, &column, "%.1f", tflops(c, k));
        for (size_t k = 1; k < b->kernel_count; k++)
            text_table_cell(row, &column, "%.2f", c->seconds[k] > 0 ? c->seconds[0] / c->seconds[k] : 0);
        text_table_cell(row, &column, "%.1f %%", b->peak > 0 ? tflops(c, fastest(b, c)) * 1e14 / b->peak : 0);
    }
    text_table_print(&table, stdout);
    text_table_end(&table);
}

static json_t *bench_json(const gpu_bench *b) {
    json_t *root = json_object(), *results = json_array();
    for (size_t i = 0; i < b->count; i++)
        for (size_t k = 0; k < b->kernel_count; k++) {
            const gpu_case *c = &b->cases[i];
            json_t *entry = json_object();
            (void)json_object_set_new(entry, "kernel", json_string(fa_kernel_name(b->kernels[k])));
            (void)json_object_set_new(entry, "dtype", json_string(dtype_choice((int)c->dtype)));
            (void)json_object_set_new(entry, "batch", json_integer(c->batch));
            (void)json_object_set_new(entry, "heads", json_integer(c->heads));
            (void)json_object_set_new(entry, "heads_kv", json_integer(c->heads_kv));
            (void)json_object_set_new(entry, "seqlen", json_integer(c->seqlen));
            (void)json_object_set_new(entry, "head_dim", json_integer(c->head_dim));
            (void)json_object_set_new(entry, "samples", json_integer(c->samples));
            (void)json_object_set_new(entry, "median_seconds", json_rounded(c->seconds[k]));
            (void)json_object_set_new(entry, "tflops", json_rounded(tflops(c, k)));
            (void)json_array_append_new(results, entry);
        }
    (void)json_object_set_new(root, "version", json_string(fa_version_text()));
    (void)json_object_set_new(root, "machine", json_string(b->machine));
    (void)json_object_set_new(root, "rules", json_string(b->rules));
    (void)json_object_set_new(root, "peak_tflops", json_rounded(b->peak * 1e-12));
    (void)json_object_set_new(root, "results", results);
    return root;
}

int bench_gpu(const bench_gpu_settings *settings, const score_settings *scores) {
    const fa_device cuda = {FA_DEVICE_CUDA, 0};
    gpu_bench b = {.backward = settings->backward};
    attention a = {.file_ndim = 4};
    static const tensor_settings no_tensors = {.bias = NULL};
    int code = fa_machine_text(cuda, b.machine, sizeof b.machine) == FA_OK ? gpu_open(0) : fail_library();
    if (code == EXIT_CODE_OK) code = make_cases(&b, settings);
    if (code == EXIT_CODE_OK) code = choose_kernels(&b, scores, settings->kernels);
    if (code == EXIT_CODE_OK) code = attention_set_options(&a, scores, &no_tensors, NULL);
    if (code == EXIT_CODE_OK) {
        char rules[sizeof b.rules - 16];
        attention_describe(&a, rules, sizeof rules);
        (void)snprintf(b.rules, sizeof b.rules, "%s%s", b.backward ? "backward, " : "", rules);
        b.peak = gpu_peak();
        code = measure_all(&b, settings, scores);
    }
    if (code == EXIT_CODE_OK && !json_on_stdout(settings->json)) print_table(&b);
    if (code == EXIT_CODE_OK && settings->json != NULL) code = json_write(settings->json, bench_json(&b));
    free(b.cases);
    return code;
}
