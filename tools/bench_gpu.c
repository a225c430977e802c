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
    fa_kernel kernels[KERNELS_MAX];
    size_t kernel_count;
    gpu_case *cases;
    size_t count;
    double peak;
    char machine[192], rules[256];
} gpu_bench;

/* ---- What is measured ---- */

static int choose_kernels(gpu_bench *b, uint32_t asked) {
    for (int i = 1; kernel_choice(i) != NULL; i++) {
        bool wanted = asked != 0 && asked != OPTION_CHOICES_ALL && (asked >> i & 1) != 0;
        bool gpu = i == FA_KERNEL_STANDARD || i >= FA_KERNEL_V1;
        if (wanted && !gpu) return fail_usage("--kernel %s: runs on the CPU, and --device is cuda", kernel_choice(i));
        if (!gpu || (asked != 0 && asked != OPTION_CHOICES_ALL && !wanted)) continue;
        if (fa_kernel_supported((fa_kernel)i) == FA_OK)
            b->kernels[b->kernel_count++] = (fa_kernel)i;
        else if (wanted)
            return fail_library();
    }
    return EXIT_CODE_OK;
}

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

/* ---- Measuring ---- */

/* Describes the tensors of a case, lying on the GPU. */
static int describe_tensors(const gpu_case *c, const score_settings *scores, attention *a, tensor *out) {
    static const tensor_settings no_tensors = {.bias = NULL};
    int64_t q[4] = {c->batch, c->seqlen, c->heads, c->head_dim}, k[4] = {c->batch, c->seqlen, c->heads_kv, c->head_dim};
    const fa_device cuda = {FA_DEVICE_CUDA, 0};
    fa_tensor t = {.device = cuda, .ndim = 4, .dtype = dtype_of_element(c->dtype), .shape = q};
    tensor_view(&a->q, &t);
    tensor_view(out, &t);
    t.shape = k;
    tensor_view(&a->k, &t);
    tensor_view(&a->v, &t);
    return attention_set_options(a, scores, &no_tensors, NULL);
}

static int fill_tensors(attention *a, tensor *out, const tensor *block) {
    tensor *const all[] = {&a->q, &a->k, &a->v, out};
    for (size_t i = 0; i < 4; i++) {
        size_t bytes = (size_t)tensor_elements(&all[i]->t) * 2;
        int code = gpu_allocate(&all[i]->t.data, bytes);
        if (code == EXIT_CODE_OK) code = gpu_fill(all[i]->t.data, bytes, block->t.data, BLOCK_ELEMENTS * 2);
        if (code != EXIT_CODE_OK) return code;
    }
    return EXIT_CODE_OK;
}

static int compare_doubles(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* `calls` calls one behind another; seconds of one. */
static int time_calls(attention *a, const tensor *out, fa_kernel kernel, int calls, double *seconds) {
    int code = gpu_start();
    a->options.kernel = kernel;
    for (int i = 0; i < calls && code == EXIT_CODE_OK; i++)
        if (fa_forward(&a->q.t, &a->k.t, &a->v.t, &a->options, &out->t, NULL) != FA_OK) code = fail_library();
    if (code == EXIT_CODE_OK) code = gpu_stop(seconds);
    *seconds /= calls;
    return code;
}

/* Kernels take turns, so that a changing clock meets all; the median counts. */
static int measure(gpu_bench *b, gpu_case *c, attention *a, const tensor *out, double budget) {
    static double samples[KERNELS_MAX][SAMPLES_MAX];
    int calls[KERNELS_MAX];
    for (size_t k = 0; k < b->kernel_count; k++) { /* loads the kernel, then tells how long it takes */
        double seconds = 0;
        int code = time_calls(a, out, b->kernels[k], 1, &seconds);
        if (code == EXIT_CODE_OK) code = time_calls(a, out, b->kernels[k], 1, &seconds);
        if (code != EXIT_CODE_OK) return code;
        calls[k] = seconds > 0.002 ? 1 : (int)(0.002 / (seconds > 1e-5 ? seconds : 1e-5)) + 1;
    }
    double begin = now_seconds();
    for (c->samples = 0; c->samples < SAMPLES_MAX; c->samples++) {
        if (c->samples >= 3 && now_seconds() - begin > budget) break;
        for (size_t k = 0; k < b->kernel_count; k++) {
            int code = time_calls(a, out, b->kernels[k], calls[k], &samples[k][c->samples]);
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
    attention a = {.file_ndim = 4};
    tensor out = {.memory = NULL};
    int code = describe_tensors(c, scores, &a, &out);
    if (code == EXIT_CODE_OK) {
        c->flops = attention_flops(&a);
        code = fill_tensors(&a, &out, block);
    }
    if (code == EXIT_CODE_OK) code = measure(b, c, &a, &out, budget);
    gpu_free(a.q.t.data);
    gpu_free(a.k.t.data);
    gpu_free(a.v.t.data);
    gpu_free(out.t.data);
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
    gpu_bench b = {.kernel_count = 0};
    attention a = {.file_ndim = 4};
    static const tensor_settings no_tensors = {.bias = NULL};
    int code = fa_machine_text(cuda, b.machine, sizeof b.machine) == FA_OK ? gpu_open(0) : fail_library();
    if (code == EXIT_CODE_OK) code = choose_kernels(&b, settings->kernels);
    if (code == EXIT_CODE_OK) code = make_cases(&b, settings);
    if (code == EXIT_CODE_OK) code = attention_set_options(&a, scores, &no_tensors, NULL);
    if (code == EXIT_CODE_OK) {
        attention_describe(&a, b.rules, sizeof b.rules);
        b.peak = gpu_peak();
        code = measure_all(&b, settings, scores);
    }
    if (code == EXIT_CODE_OK && !json_on_stdout(settings->json)) print_table(&b);
    if (code == EXIT_CODE_OK && settings->json != NULL) code = json_write(settings->json, bench_json(&b));
    free(b.cases);
    return code;
}
