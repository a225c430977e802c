/* SPDX-License-Identifier: Apache-2.0 */
/* The machine: emulated parts in full, and what is said where there is no CUDA driver. */
#include "support/testing.h"

#include "flashattn.h"
#include "gpu/machine.h"
#include "kernels/test_params.h"
#include "test_variants.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000 };

static const char *const parts[] = {"emulated-a100", "emulated-rtx3090", "emulated-h100", "emulated-h200",
                                    "emulated-b200"};

static const fa_machine *machine(const char *specification) {
    const fa_machine *m = NULL;
    if (fa_machine_open_emulated(specification, &m) != FA_OK) fail_msg("%s", fa_last_error());
    return m;
}

static void assert_error_holds(const char *part) {
    if (strstr(fa_last_error(), part) == NULL) fail_msg("\"%s\" is not in \"%s\"", part, fa_last_error());
}

static int forget_environment(void **test) {
    (void)test;
    return unsetenv("FLASHATTN_MACHINE");
}

/* ---- a sum, with all that a launch needs ---- */

typedef struct sum_of_two {
    float a[COUNT], b[COUNT], sum[COUNT];
    test_add_params params;
    fa_memory_range memory[3];
    fa_launch launch;
} sum_of_two;

static void sum_begin(sum_of_two *s) {
    for (int i = 0; i < COUNT; i++) {
        s->a[i] = (float)i;
        s->b[i] = (float)(3 * i);
        s->sum[i] = -1;
    }
    s->params = (test_add_params){s->a, s->b, s->sum, COUNT};
    s->memory[0] = (fa_memory_range){s->a, sizeof s->a, false};
    s->memory[1] = (fa_memory_range){s->b, sizeof s->b, false};
    s->memory[2] = (fa_memory_range){s->sum, sizeof s->sum, true};
    s->launch = (fa_launch){.kernel = test_add,
                            .grid = {(COUNT + 127) / 128, 1, 1},
                            .threads = 128,
                            .params = &s->params,
                            .params_bytes = sizeof s->params,
                            .memory = s->memory,
                            .memory_count = 3};
}

static int sum_is_right(const sum_of_two *s) {
    for (int i = 0; i < COUNT; i++)
        if (s->sum[i] != (float)(4 * i)) return 0;
    return 1;
}

static void every_part_runs_a_kernel(void **test) {
    (void)test;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        sum_of_two s;
        sum_begin(&s);
        const fa_machine *m = machine(parts[i]);
        assert_int_equal(m->launch(m, &s.launch), FA_OK);
        assert_true(sum_is_right(&s));
    }
}

static void parts_have_their_properties(void **test) {
    (void)test;
    assert_int_equal(machine("emulated-a100")->arch, 80);
    assert_int_equal(machine("emulated-rtx3090")->arch, 86);
    assert_int_equal(machine("emulated-rtx3090")->shared_bytes, 99 * 1024);
    assert_int_equal(machine("emulated-h100")->arch, 90);
    assert_int_equal(machine("emulated-h200")->arch, 90);
    assert_int_equal(machine("emulated-b200")->arch, 100);
    assert_int_equal(machine("emulated-h100")->shared_bytes, 227 * 1024);
    assert_true(machine("emulated-h100")->emulated);
    assert_int_equal(machine("emulated-h100")->processors, 132);
    assert_ptr_equal(machine("emulated-h100"), machine("emulated-h100"));
    assert_ptr_not_equal(machine("emulated-h100:1"), machine("emulated-h100:2"));
    assert_string_equal(machine("emulated-h100:1")->id, "emulated-h100");
}

/* ---- choosing it ---- */

static void the_environment_chooses_the_part(void **test) {
    (void)test;
    const fa_machine *m;
    const fa_device cpu = {FA_DEVICE_CPU, 0};
    char text[192];
    assert_false(fa_machine_emulation_asked());
    assert_int_equal(fa_machine_open(cpu, &m), FA_UNSUPPORTED);
    assert_error_holds("FLASHATTN_MACHINE is not set");
    assert_int_equal(setenv("FLASHATTN_MACHINE", "", 1), 0);
    assert_false(fa_machine_emulation_asked());
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-b200", 1), 0);
    assert_true(fa_machine_emulation_asked());
    assert_int_equal(fa_machine_open(cpu, &m), FA_OK);
    assert_string_equal(m->id, "emulated-b200");
    assert_int_equal(fa_machine_text(cpu, text, sizeof text), FA_OK);
    assert_non_null(strstr(text, "emulated-b200: emulator on the CPU, sm_100, "));
    assert_int_equal(fa_machine_text(cpu, text, 9), FA_OK);
    assert_string_equal(text, "emulated");
    assert_int_equal(fa_machine_text(cpu, NULL, 9), FA_INVALID_ARGUMENT);
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-h100:18446744073709551615", 1), 0);
    assert_int_equal(fa_machine_open(cpu, &m), FA_OK);
    assert_string_equal(m->id, "emulated-h100");
}

static void names_that_are_none_are_refused(void **test) {
    (void)test;
    static const char *const wrong[] = {
        "h100",           "emulated-h1000",  "emulated-h10",     "emulated-H100",    "emulated",
        "emulated-h100:", "emulated-h100:x", "emulated-h100:7x", "emulated-h100:-1", ":7",
        "emulated-h100 "};
    const fa_machine *m;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (fa_machine_open_emulated(wrong[i], &m) != FA_INVALID_ARGUMENT) fail_msg("accepted \"%s\"", wrong[i]);
        assert_error_holds(wrong[i]);
    }
    assert_int_equal(fa_machine_open_emulated("cuda", &m), FA_INVALID_ARGUMENT);
    assert_string_equal(fa_last_error(),
                        "FLASHATTN_MACHINE = cuda: must be emulated-a100, emulated-rtx3090, emulated-h100, "
                        "emulated-h200 or emulated-b200");
}

/* Where this test runs on a machine with a GPU, there is nothing to see. */
static void without_a_driver_there_is_a_reason(void **test) {
    (void)test;
    const fa_machine *m;
    if (dlopen("libcuda.so.1", RTLD_LAZY) != NULL) skip();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fa_machine_open((fa_device){FA_DEVICE_CUDA, 0}, &m), FA_UNSUPPORTED);
        assert_error_holds("no CUDA driver: libcuda.so.1");
    }
    assert_int_equal(fa_machine_cuda_devices(), 0);
    assert_int_equal(fa_kernel_supported(FA_KERNEL_V2), FA_UNSUPPORTED);
    assert_error_holds("no CUDA driver");
    assert_int_equal(setenv("FLASHATTN_MACHINE", "emulated-a100", 1), 0);
    assert_int_equal(fa_kernel_supported(FA_KERNEL_V2), FA_OK);
}

/* ---- launches that go wrong ---- */

static void broken_rules_come_back_as_text(void **test) {
    (void)test;
    sum_of_two s;
    const fa_machine *m = machine("emulated-h100");
    sum_begin(&s);
    s.launch.memory_count = 2; /* the sum was not named */
    assert_int_equal(m->launch(m, &s.launch), FA_DEVICE_ERROR);
    assert_error_holds("test_add_bf16_d64 on emulated-h100: ");
    sum_begin(&s);
    s.memory[2].writable = false;
    assert_int_equal(m->launch(m, &s.launch), FA_DEVICE_ERROR);
    sum_begin(&s);
    s.memory[0].bytes -= 4; /* one element too few */
    assert_int_equal(m->launch(m, &s.launch), FA_DEVICE_ERROR);
    sum_begin(&s);
    s.launch.threads = 100;
    assert_int_equal(m->launch(m, &s.launch), FA_DEVICE_ERROR);
    sum_begin(&s);
    s.launch.shared_bytes = 228 * 1024;
    assert_int_equal(m->launch(m, &s.launch), FA_DEVICE_ERROR);
    sum_begin(&s);
    s.launch.params_bytes -= 8;
    assert_int_equal(m->launch(m, &s.launch), FA_DEVICE_ERROR);
    assert_error_holds("the launch gives 24 bytes of parameters, the kernel takes 32");
    sum_begin(&s); /* and none of it lasts */
    assert_int_equal(m->launch(m, &s.launch), FA_OK);
    assert_true(sum_is_right(&s));
}

static void kernels_for_other_architectures_are_refused(void **test) {
    (void)test;
    assert_int_equal(fa_machine_runs(machine("emulated-h200"), test_tile), FA_OK);
    assert_int_equal(fa_machine_runs(machine("emulated-b200"), test_add), FA_OK);
    assert_int_equal(fa_machine_runs(machine("emulated-a100"), test_tile), FA_UNSUPPORTED);
    assert_string_equal(fa_last_error(),
                        "test_tile_bf16_d64 needs sm_90, and emulated-a100 (emulator on the CPU) is sm_80");
    assert_int_equal(fa_machine_runs(machine("emulated-b200"), test_tile), FA_UNSUPPORTED);
}

/* ---- workspace, tensor maps, clusters ---- */

/* 20 rows in tiles of 8: the last tile hangs over, and the third cluster of two blocks has one. */
static void tiles_come_through_a_tensor_map(void **test) {
    (void)test;
    enum { ROWS = 24, SEEN = 20, BLOCKS = 4 };
    const fa_machine *m = machine("emulated-h100");
    const size_t bytes = ROWS * TEST_TILE_COLUMNS * sizeof(float);
    float *source, *destination;
    assert_int_equal(m->allocate(m, bytes, NULL, (void **)&source), FA_OK);
    assert_int_equal(m->allocate(m, bytes, NULL, (void **)&destination), FA_OK);
    for (int i = 0; i < ROWS * TEST_TILE_COLUMNS; i++) source[i] = (float)i;
    assert_int_equal(m->fill(m, destination, 0xff, bytes, NULL), FA_OK);

    test_tile_params params = {.destination = destination, .rows = ROWS};
    fa_tensor_map_layout layout = {.type = FA_TENSOR_MAP_FLOAT32,
                                   .rank = 2,
                                   .data = source,
                                   .extents = {TEST_TILE_COLUMNS, SEEN},
                                   .strides = {TEST_TILE_COLUMNS * sizeof(float)},
                                   .box = {TEST_TILE_COLUMNS, TEST_TILE_ROWS}};
    assert_int_equal(m->encode_tensor_map(m, &layout, &params.source), FA_OK);
    fa_launch launch = {.kernel = test_tile,
                        .grid = {BLOCKS, 1, 1},
                        .threads = 128,
                        .cluster = 2,
                        .shared_bytes = TEST_TILE_ROWS * TEST_TILE_COLUMNS * sizeof(float) + 8,
                        .params = &params,
                        .params_bytes = sizeof params};
    if (m->launch(m, &launch) != FA_OK) fail_msg("%s", fa_last_error());
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < TEST_TILE_COLUMNS; column++) {
            int i = row * TEST_TILE_COLUMNS + column, rank = row / TEST_TILE_ROWS % 2;
            assert_true(destination[i] == (row < SEEN ? (float)(i + rank) : (float)rank));
        }

    layout.data = source + 1;
    assert_int_equal(m->encode_tensor_map(m, &layout, &params.source), FA_DEVICE_ERROR);
    assert_error_holds("tensor map on emulated-h100: ");
    assert_int_equal(m->release(m, source, NULL), FA_OK);
    assert_int_equal(m->release(m, destination, NULL), FA_OK);
}

/* ---- threads, and what was counted ---- */

static void *sum_often(void *specification) {
    for (int i = 0; i < 20; i++) {
        const fa_machine *m;
        sum_of_two s;
        sum_begin(&s);
        s.launch.host_threads = 1 + i % 2;
        if (fa_machine_open_emulated(specification, &m) != FA_OK || m->launch(m, &s.launch) != FA_OK) return "launch";
        if (!sum_is_right(&s)) return "sum";
    }
    return NULL;
}

static void threads_share_a_machine(void **test) {
    (void)test;
    pthread_t threads[4];
    fa_emulator_counters before, after;
    fa_machine_emulated_counters(machine("emulated-a100"), &before);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sum_often, i % 2 == 0 ? "emulated-a100" : "emulated-h100:3"),
                         0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        if (failed != NULL) fail_msg("thread %d: %s", i, (const char *)failed);
    }
    fa_machine_emulated_counters(machine("emulated-a100"), &after);
    assert_int_equal(after.global_bytes_read - before.global_bytes_read, 2 * 20 * COUNT * 8);
    assert_int_equal(after.global_bytes_written - before.global_bytes_written, 2 * 20 * COUNT * 4);
}

/* ---- variants ---- */

static void the_narrowest_kernel_that_is_enough_is_found(void **test) {
    (void)test;
    static const int widths[] = {64, 96, 128, 192, 256};
    for (int head_dim = 1; head_dim <= 256; head_dim++) {
        int expected = 0;
        while (widths[expected] < head_dim) expected++;
        const fa_variant *v =
            fa_variant_find("v2_forward", FA_ELEMENT_FLOAT16, head_dim, head_dim / 2 + 1, head_dim % 2 == 0);
        assert_non_null(v);
        assert_int_equal(v->head_dim, widths[expected]);
        assert_int_equal(v->type, FA_ELEMENT_FLOAT16);
        assert_int_equal(v->general, head_dim % 2 == 0);
        assert_string_equal(v->symbol, v->emulated->name);
    }
    assert_string_equal(fa_variant_name(fa_variant_find("v2_forward", FA_ELEMENT_BFLOAT16, 1, 100, true)),
                        "v2_forward_bf16_d128_general");
    assert_string_equal(fa_variant_name(fa_variant_find("v3_forward", FA_ELEMENT_BFLOAT16, 192, 128, false)),
                        "v3_forward_bf16_d192_128");
    assert_string_equal(fa_variant_name(fa_variant_find("v3_forward", FA_ELEMENT_BFLOAT16, 192, 129, false)),
                        "v3_forward_bf16_d192");
    assert_string_equal(fa_variant_name(fa_variant_find("v3_forward", FA_ELEMENT_BFLOAT16, 64, 129, false)),
                        "v3_forward_bf16_d192");
    assert_null(fa_variant_find("v2_forward", FA_ELEMENT_BFLOAT16, 257, 1, true));
    assert_null(fa_variant_find("v2_forward", FA_ELEMENT_BFLOAT16, 1, 257, true));
    assert_null(fa_variant_find("v2_forward", FA_ELEMENT_FLOAT32, 64, 64, true));
    assert_null(fa_variant_find("v2", FA_ELEMENT_BFLOAT16, 64, 64, true));
}

RUN_TESTS(cmocka_unit_test(every_part_runs_a_kernel), cmocka_unit_test(parts_have_their_properties),
          cmocka_unit_test_setup_teardown(the_environment_chooses_the_part, forget_environment, forget_environment),
          cmocka_unit_test(names_that_are_none_are_refused),
          cmocka_unit_test_setup_teardown(without_a_driver_there_is_a_reason, forget_environment, forget_environment),
          cmocka_unit_test(broken_rules_come_back_as_text),
          cmocka_unit_test(kernels_for_other_architectures_are_refused),
          cmocka_unit_test(tiles_come_through_a_tensor_map), cmocka_unit_test(threads_share_a_machine),
          cmocka_unit_test(the_narrowest_kernel_that_is_enough_is_found))
