/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests that need a GPU: kernels on CUDA tensors, judged as in the emulator, and large calls. Ends with 77 where
 * there is no GPU.
 */
#include "device.h"
#include "flashattn.h"
#include "gpu/machine.h"
#include "gpu_backward_cases.h"
#include "gpu_named_cases.h"
#include "kernels/test_params.h"
#include "large_case.h"
#include "support/sweep.h"
#include "support/testing.h"
#include "test_variants.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const fa_element types[] = {FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};

static const fa_machine *machine(void) {
    const fa_machine *m = NULL;
    if (fa_machine_open((fa_device){FA_DEVICE_CUDA, 0}, &m) != FA_OK) fail_msg("%s", fa_last_error());
    return m;
}

/* ---- the machine ---- */

/* First of all, so that the kernel is loaded while the stream is being captured. */
static void first_use_under_capture_becomes_a_graph(void **test) {
    (void)test;
    enum { COUNT = 1000 };
    float host[COUNT];
    void *stream = device_stream_new();
    float *a = device_allocate(sizeof host), *sum = device_allocate(sizeof host);
    for (int i = 0; i < COUNT; i++) host[i] = (float)i;
    device_write(a, host, sizeof host);
    device_fill(sum, 0, sizeof host);
    test_add_params params = {a, sum, sum, COUNT};
    fa_launch launch = {.kernel = test_add,
                        .grid = {(COUNT + 127) / 128, 1, 1},
                        .threads = 128,
                        .params = &params,
                        .params_bytes = sizeof params,
                        .stream = stream};
    device_capture_begin(stream);
    fa_status status = machine()->launch(machine(), &launch);
    void *workspace = NULL;
    if (status == FA_OK) status = machine()->allocate(machine(), 1 << 20, stream, &workspace);
    if (status == FA_OK) status = machine()->fill(machine(), workspace, 0, 1 << 20, stream);
    if (status == FA_OK) status = machine()->release(machine(), workspace, stream);
    void *graph = device_capture_end(stream);
    if (status != FA_OK) fail_msg("%s", fa_last_error());
    for (int i = 0; i < 3; i++) device_graph_launch(graph, stream);
    device_stream_synchronize(stream);
    device_read(host, sum, sizeof host);
    for (int i = 0; i < COUNT; i++) assert_true(host[i] == (float)(3 * i));
    device_graph_free(graph);
    device_stream_free(stream);
    device_free(a);
    device_free(sum);
}

static void tiles_come_through_a_tensor_map(void **test) {
    (void)test;
    enum { ROWS = 24, SEEN = 20, ELEMENTS = ROWS * TEST_TILE_COLUMNS };
    if (machine()->arch != 90) skip();
    float host[ELEMENTS];
    float *source = device_allocate(sizeof host), *destination = device_allocate(sizeof host);
    for (int i = 0; i < ELEMENTS; i++) host[i] = (float)i;
    device_write(source, host, sizeof host);
    test_tile_params params = {.destination = destination, .rows = ROWS};
    fa_tensor_map_layout matrix = {.type = FA_TENSOR_MAP_FLOAT32,
                                   .rank = 2,
                                   .data = source,
                                   .extents = {TEST_TILE_COLUMNS, SEEN},
                                   .strides = {TEST_TILE_COLUMNS * sizeof(float)},
                                   .box = {TEST_TILE_COLUMNS, TEST_TILE_ROWS}};
    if (machine()->encode_tensor_map(machine(), &matrix, &params.source) != FA_OK) fail_msg("%s", fa_last_error());
    fa_launch launch = {.kernel = test_tile,
                        .grid = {4, 1, 1},
                        .threads = 128,
                        .cluster = 2,
                        .shared_bytes = TEST_TILE_ROWS * TEST_TILE_COLUMNS * sizeof(float) + 8,
                        .params = &params,
                        .params_bytes = sizeof params};
    if (machine()->launch(machine(), &launch) != FA_OK) fail_msg("%s", fa_last_error());
    device_synchronize();
    device_read(host, destination, sizeof host);
    for (int i = 0; i < ELEMENTS; i++) {
        int row = i / TEST_TILE_COLUMNS, rank = row / TEST_TILE_ROWS % 2;
        assert_true(host[i] == (row < SEEN ? (float)(i + rank) : (float)rank));
    }
    device_free(source);
    device_free(destination);
}

static void wrong_launches_come_back_as_text(void **test) {
    (void)test;
    test_add_params params = {NULL, NULL, NULL, 0};
    fa_launch launch = {
        .kernel = test_add, .grid = {1, 1, 1}, .threads = 128, .params = &params, .params_bytes = sizeof params};
    launch.shared_bytes = 512 * 1024;
    assert_int_equal(machine()->launch(machine(), &launch), FA_DEVICE_ERROR);
    (void)printf("%s\n", fa_last_error());
    assert_non_null(strstr(fa_last_error(), "cuLaunchKernelEx failed with CUDA_ERROR_INVALID_VALUE"));
    launch.shared_bytes = 0;
    assert_int_equal(machine()->launch(machine(), &launch), FA_OK);
    device_synchronize();
}

/* ---- kernels ---- */

static void every_width_and_dtype(void **test) {
    (void)test;
    static const int64_t widths[] = {8, 40, 64, 80, 96, 128, 160, 192, 224, 256};
    for (int k = 0; k < GPU_KERNELS && gpu_runs(gpu_kernels[k]); k++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (int t = 0; t < 2; t++)
                for (int causal = FA_CAUSAL_NONE; causal <= FA_CAUSAL_TOP_LEFT; causal++) {
                    attention_case c = gpu_plain_case("widths", types[t], widths[w]);
                    c.causal = (fa_causal)causal;
                    gpu_judge_case(&c, gpu_kernels[k]);
                }
}

static void random_cases_keep_the_error_budget(void **test) {
    (void)test;
    int64_t first = test_setting("FLASHATTN_TEST_FIRST", 0), cases = test_setting("FLASHATTN_TEST_CASES", 500);
    for (int k = 0; k < GPU_KERNELS && gpu_runs(gpu_kernels[k]); k++)
        for (int64_t i = first; i < first + cases; i++) {
            attention_case c = gpu_random_case("gpu sweep", (uint64_t)i, gpu_kernels[k]);
            gpu_judge_case(&c, gpu_kernels[k]);
        }
}

/* What would take hours under compute-sanitizer is left out there, or smaller. */
static bool large(void) { return test_setting("FLASHATTN_TEST_LARGE", 1) != 0; }

static void answers_are_the_same_bits_each_time(void **test) {
    (void)test;
    static const int64_t widths[] = {64, 96, 128, 192, 256};
    int runs = (int)test_setting("FLASHATTN_TEST_RUNS", 30);
    for (int k = 0; k < GPU_KERNELS && gpu_runs(gpu_kernels[k]); k++)
        for (uint64_t i = 0; i < 10; i++) {
            attention_case c = gpu_plain_case("repeat", types[i % 2], widths[i % 5]);
            c.index = i;
            c.batch = large() ? 4 : 8;
            c.heads = 8;
            c.heads_kv = i % 4 == 0 ? 8 : 2;
            c.seqlen_q = c.seqlen_k = large() ? 1000 : 400; /* more tiles than multiprocessors */
            c.causal = (fa_causal)(i % 3);
            c.varlen_q = c.varlen_k = i % 5 == 4;
            c.softcap = i >= 5 ? 15 : 0; /* the general variants too */
            gpu_assert_repeatable(&c, gpu_kernels[k], runs);
        }
}

/*
 * The emulator runs the same source: exponentials, logarithms and tanh are a unit or two apart, sums of products are
 * in another order.
 */
static void the_emulator_agrees(void **test) {
    (void)test;
    for (int k = 0; k < GPU_KERNELS && gpu_runs(gpu_kernels[k]); k++)
        for (int t = 0; t < 2; t++) {
            attention_case c = gpu_plain_case("emulator", types[t], 64);
            gpu_judge_case(&c, gpu_kernels[k]);
            gpu_use_machine("emulated-h100");
            gpu_judge_case(&c, gpu_kernels[k]);
            gpu_use_machine(NULL);
        }
}

static void *judge_some(void *number) {
    device_make_current();
    for (uint64_t i = 0; i < 10; i++) {
        attention_case c = gpu_plain_case("threads", types[i % 2], 64);
        c.index = *(const uint64_t *)number * 100 + i;
        fa_kernel kernel = gpu_kernels[i % GPU_KERNELS];
        gpu_assert_repeatable(&c, gpu_runs(kernel) ? kernel : FA_KERNEL_V2, 2);
    }
    return NULL;
}

static void threads_share_the_gpu(void **test) {
    (void)test;
    pthread_t threads[4];
    static const uint64_t numbers[4] = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, judge_some, (void *)&numbers[i]), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
}

/* ---- gradients ---- */

static void gradients_of_every_width_and_dtype(void **test) {
    (void)test;
    static const int64_t widths[] = {8, 40, 64, 80, 96, 128, 160, 192, 224, 256};
    for (int k = 0; k < GPU_BACKWARD_KERNELS && gpu_runs(gpu_backward_kernels[k]); k++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (int t = 0; t < 2; t++)
                for (int causal = FA_CAUSAL_NONE; causal <= FA_CAUSAL_TOP_LEFT; causal++) {
                    attention_case c = gpu_plain_case("backward widths", types[t], widths[w]);
                    c.causal = (fa_causal)causal;
                    gpu_judge_backward_case(&c, gpu_backward_kernels[k]);
                }
}

static void random_gradients_keep_the_error_budget(void **test) {
    (void)test;
    int64_t first = test_setting("FLASHATTN_TEST_FIRST", 0), cases = test_setting("FLASHATTN_TEST_CASES", 500);
    for (int k = 0; k < GPU_BACKWARD_KERNELS && gpu_runs(gpu_backward_kernels[k]); k++)
        for (int64_t i = first; i < first + cases; i++) {
            attention_case c = gpu_random_backward_case("gpu backward sweep", (uint64_t)i, gpu_backward_kernels[k]);
            gpu_judge_backward_case(&c, gpu_backward_kernels[k]);
        }
}

/* Many blocks per query tile, and more of them than the GPU has multiprocessors, for each way in which their turns can lie. */
static void deterministic_gradients_are_the_same_bits_each_time(void **test) {
    (void)test;
    static const int64_t widths[] = {64, 96, 128, 192, 256};
    int runs = (int)test_setting("FLASHATTN_TEST_RUNS", 30);
    for (int k = 0; k < GPU_BACKWARD_KERNELS && gpu_runs(gpu_backward_kernels[k]); k++)
        for (uint64_t i = 0; i < 20; i++) {
            attention_case c = gpu_plain_case("backward repeat", types[i % 2], widths[i % 5]);
            c.index = i;
            c.seqlen_q = large() ? 3000 : 700;
            c.gradients_float32 = true; /* in 16 bits another order of sums would hardly show */
            c.seqlen_k = c.seqlen_q + (i % 3 == 0 ? 1000 : 0);
            c.heads = 8;
            c.heads_kv = i % 4 == 0 ? 8 : 2;
            c.causal = (fa_causal)(i % 3);
            c.window = i >= 12;
            c.window_left = i < 16 ? c.seqlen_q / 6 : FA_WINDOW_OPEN;
            c.window_right = i % 2 == 0 ? 50 : FA_WINDOW_OPEN;
            c.varlen_q = c.varlen_k = i % 5 == 4;
            c.batch = i % 5 == 4 ? 4 : 1;
            c.softcap = i % 7 == 6 ? 15 : 0;
            gpu_assert_backward_repeatable(&c, gpu_backward_kernels[k], runs, NULL);
        }
}

/* More than one tile of everything, and long sums. */
static void gradients_of_longer_sequences(void **test) {
    (void)test;
    if (!large()) skip();
    for (int k = 0; k < GPU_BACKWARD_KERNELS && gpu_runs(gpu_backward_kernels[k]); k++)
        for (uint64_t i = 0; i < 6; i++) {
            attention_case c = gpu_plain_case("backward long", types[i % 2], i < 3 ? 64 : 128);
            c.index = i;
            c.seqlen_q = 1000;
            c.seqlen_k = 1500;
            c.causal = (fa_causal)(i % 3);
            gpu_judge_backward_case(&c, gpu_backward_kernels[k]);
        }
}

/* ---- large ---- */

static void large_calls(void **test) {
    (void)test;
    if (!large()) skip();
    static const large_case cases[] = {
        {"seqlen 131072, causal", FA_BFLOAT16, 1, 2, 1, 131072, 131072, 128, FA_CAUSAL_BOTTOM_RIGHT, 0},
        {"seqlen 1100000, causal", FA_BFLOAT16, 1, 1, 1, 1100000, 1100000, 64, FA_CAUSAL_BOTTOM_RIGHT, 0},
        {"seqlen 131072 on 4096 queries", FA_FLOAT16, 1, 1, 1, 4096, 131072, 256, FA_CAUSAL_BOTTOM_RIGHT, 0},
        {"more queries than keys", FA_FLOAT16, 1, 2, 2, 20000, 5000, 64, FA_CAUSAL_BOTTOM_RIGHT, 0},
        {"70400 heads times batch", FA_FLOAT16, 1100, 64, 64, 16, 48, 64, FA_CAUSAL_NONE, 0},
        {"offsets beyond 2^31 elements", FA_BFLOAT16, 1, 1, 1, 1024, 1024, 128, FA_CAUSAL_NONE, 2200000},
    };
    for (int k = 0; k < GPU_KERNELS && gpu_runs(gpu_kernels[k]); k++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            /* The standard kernel's rows of scores have to fit shared memory, and all of them the GPU's; v1 has one
             * block of threads per head, which would take minutes. */
            bool square = cases[i].seqlen_q == cases[i].seqlen_k, long_keys = cases[i].seqlen_k > 65536;
            if (long_keys && (gpu_kernels[k] == FA_KERNEL_STANDARD || (gpu_kernels[k] == FA_KERNEL_V1 && square)))
                continue;
            judge_large_case(&cases[i], gpu_kernels[k]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(first_use_under_capture_becomes_a_graph),
                                       cmocka_unit_test(tiles_come_through_a_tensor_map),
                                       cmocka_unit_test(wrong_launches_come_back_as_text),
                                       cmocka_unit_test(every_width_and_dtype),
                                       cmocka_unit_test(random_cases_keep_the_error_budget),
                                       cmocka_unit_test(answers_are_the_same_bits_each_time),
                                       cmocka_unit_test(the_emulator_agrees),
                                       cmocka_unit_test(threads_share_the_gpu),
                                       cmocka_unit_test(gradients_of_every_width_and_dtype),
                                       cmocka_unit_test(random_gradients_keep_the_error_budget),
                                       cmocka_unit_test(deterministic_gradients_are_the_same_bits_each_time),
                                       cmocka_unit_test(gradients_of_longer_sequences),
                                       GPU_NAMED_FORWARD_CASES,
                                       GPU_NAMED_BACKWARD_CASES,
                                       cmocka_unit_test(large_calls)};
    if (!device_open()) return 77;
    gpu_choose_gpu_0();
    cmocka_set_test_filter(getenv("FLASHATTN_TEST_FILTER"));
    return cmocka_run_group_tests(tests, print_seed, NULL);
}
