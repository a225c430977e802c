/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine_cuda.c against a driver without a GPU: what it asks of the driver, and what it makes of the driver's
 * errors.
 */
#include "support/testing.h"

#include "fake_driver.h"
#include "gpu/machine.h"
#include "kernels/test_params.h"
#include "test_variants.h"

#include <pthread.h>
#include <string.h>

enum { H200, A100, RTX4090, H100, DEVICES };

static const fa_machine *machine(int32_t ordinal) {
    const fa_machine *m = NULL;
    assert_int_equal(fa_machine_open((fa_device){FA_DEVICE_CUDA, ordinal}, &m), FA_OK);
    return m;
}

static void assert_error_holds(const char *part) {
    if (strstr(fa_last_error(), part) == NULL) fail_msg("\"%s\" is not in \"%s\"", part, fa_last_error());
}

static int forget(void **test) {
    (void)test;
    fake_driver *driver = fake_driver_state();
    driver->capturing = false;
    driver->fail_call = NULL;
    atomic_store(&driver->launched, 0);
    fake_driver_set_current(NULL);
    return 0;
}

/* Most of what follows launches: without nvcc there is nothing to launch. */
static void need_gpu_code(void) {
    if (test_add->image == NULL) skip();
}

static const test_add_params some_params = {(const float *)256, (const float *)512, (float *)1024, 1000};

static fa_launch add_launch(void) {
    return (fa_launch){.kernel = test_add,
                       .grid = {8, 3, 2},
                       .threads = 128,
                       .shared_bytes = 70000,
                       .params = &some_params,
                       .params_bytes = sizeof some_params,
                       .stream = (void *)0x5eed};
}

static void properties_come_from_the_driver(void **test) {
    (void)test;
    const fa_machine *m = machine(H200);
    assert_string_equal(m->id, "cuda:0");
    assert_string_equal(m->name, "Fake H200");
    assert_false(m->emulated);
    assert_int_equal(m->arch, 90);
    assert_int_equal(m->processors, 132);
    assert_int_equal(m->shared_bytes, 232448);
    assert_int_equal(m->l2_bytes, 62914560);
    assert_int_equal(machine(RTX4090)->arch, 89);
    assert_ptr_equal(machine(H200), m);

    char text[192];
    assert_int_equal(fa_machine_text((fa_device){FA_DEVICE_CUDA, A100}, text, sizeof text), FA_OK);
    assert_string_equal(text,
                        "cuda:1: Fake A100, sm_80, 108 multiprocessors, 163 KiB shared memory per block, 40 MiB L2");
}

static void devices_that_are_not_there_are_refused(void **test) {
    (void)test;
    const fa_machine *m;
    assert_int_equal(fa_machine_open((fa_device){FA_DEVICE_CUDA, DEVICES}, &m), FA_INVALID_ARGUMENT);
    assert_error_holds("device_id = 4: must be 0 .. 3");
    assert_int_equal(fa_machine_open((fa_device){FA_DEVICE_CUDA, -1}, &m), FA_INVALID_ARGUMENT);
    assert_int_equal(fa_machine_open((fa_device){7, 0}, &m), FA_UNSUPPORTED);
}

static void opening_and_planning_need_no_context(void **test) {
    (void)test;
    int before = atomic_load(&fake_driver_state()->retained);
    machine(RTX4090);
    assert_int_equal(fa_kernel_supported(FA_KERNEL_V2), test_add->image != NULL ? FA_OK : FA_UNSUPPORTED);
    assert_int_equal(atomic_load(&fake_driver_state()->retained), before);
}

static void a_launch_says_what_was_asked(void **test) {
    (void)test;
    need_gpu_code();
    const fake_driver *driver = fake_driver_state();
    fa_launch launch = add_launch();
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_OK);
    assert_string_equal(driver->function, "fa_test_add_bf16_d64");
    assert_int_equal(driver->config.grid_x, 8);
    assert_int_equal(driver->config.grid_y, 3);
    assert_int_equal(driver->config.grid_z, 2);
    assert_int_equal(driver->config.block_x, 128);
    assert_int_equal(driver->config.block_y, 1);
    assert_int_equal(driver->config.shared_bytes, 70000);
    assert_ptr_equal(driver->config.stream, (void *)0x5eed);
    assert_int_equal(driver->config.attribute_count, 0);
    assert_memory_equal(driver->params, &some_params, 16);
    assert_int_equal(driver->max_dynamic_shared_bytes, 232448);
}

static void clusters_become_an_attribute(void **test) {
    (void)test;
    need_gpu_code();
    const fake_driver *driver = fake_driver_state();
    fa_launch launch = add_launch();
    launch.cluster = 4;
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_OK);
    assert_int_equal(driver->config.attribute_count, 1);
    assert_int_equal(driver->attribute.id, FA_CU_LAUNCH_CLUSTER_DIMENSION);
    assert_int_equal(driver->attribute.value.cluster.x, 4);
    assert_int_equal(driver->attribute.value.cluster.y, 1);
    assert_int_equal(driver->attribute.value.cluster.z, 1);
}

static void the_callers_context_stays_current(void **test) {
    (void)test;
    need_gpu_code();
    fa_cu_context callers = (fa_cu_context)0x1234;
    fa_launch launch = add_launch();
    void *memory;
    fake_driver_set_current(callers);
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_OK);
    assert_ptr_equal(fake_driver_current(), callers);
    assert_int_equal(machine(A100)->allocate(machine(A100), 64, NULL, &memory), FA_OK);
    assert_int_equal(machine(A100)->fill(machine(A100), memory, 0, 64, NULL), FA_OK);
    assert_int_equal(machine(A100)->release(machine(A100), memory, NULL), FA_OK);
    assert_ptr_equal(fake_driver_current(), callers);
    fake_driver_state()->fail_call = "cuLaunchKernelEx";
    fake_driver_state()->fail_result = 1;
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_DEVICE_ERROR);
    assert_ptr_equal(fake_driver_current(), callers);
}

/*
 * The first use of a device and of a kernel while a stream is being captured: loading must get by, and the mode come
 * back.
 */
static void first_use_under_capture_works(void **test) {
    (void)test;
    need_gpu_code();
    fa_launch launch = add_launch();
    void *memory;
    fake_driver_state()->capturing = true;
    assert_int_equal(machine(RTX4090)->launch(machine(RTX4090), &launch), FA_OK);
    assert_int_equal(machine(RTX4090)->allocate(machine(RTX4090), 64, NULL, &memory), FA_OK);
    assert_int_equal(machine(RTX4090)->release(machine(RTX4090), memory, NULL), FA_OK);
    assert_int_equal(fake_driver_capture_mode(), 0);
}

static void errors_name_call_error_and_purpose(void **test) {
    (void)test;
    need_gpu_code();
    fake_driver *driver = fake_driver_state();
    fa_launch launch = add_launch();
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_OK);
    driver->fail_call = "cuLaunchKernelEx";
    driver->fail_result = 1;
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_DEVICE_ERROR);
    assert_string_equal(
        fa_last_error(),
        "cuLaunchKernelEx failed with CUDA_ERROR_INVALID_VALUE (text of the error) while launching "
        "test_add_bf16_d64 on cuda:0 with a grid of 8 x 3 x 2, 128 threads and 70000 bytes of shared memory");
    driver->fail_result = 12345;
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_DEVICE_ERROR);
    assert_error_holds("unknown error");

    void *memory;
    driver->fail_call = "cuMemAllocFromPoolAsync";
    driver->fail_result = FA_CU_ERROR_OUT_OF_MEMORY;
    assert_int_equal(machine(H200)->allocate(machine(H200), 4096, NULL, &memory), FA_OUT_OF_MEMORY);
    assert_error_holds("CUDA_ERROR_OUT_OF_MEMORY");
    assert_error_holds("allocating 4096 bytes of workspace on cuda:0");

    driver->fail_call = "cuCtxPushCurrent";
    driver->fail_result = 1;
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_DEVICE_ERROR);
    assert_error_holds("entering the context of cuda:0");
    driver->fail_call = "cuCtxPopCurrent";
    assert_int_equal(machine(H200)->launch(machine(H200), &launch), FA_DEVICE_ERROR);
    assert_error_holds("leaving the context of cuda:0");
}

/* A kernel that could not be loaded is tried again by the next call. */
static void a_failed_load_is_not_remembered(void **test) {
    (void)test;
    need_gpu_code();
    fake_driver *driver = fake_driver_state();
    fa_launch launch = add_launch();
    launch.kernel = test_tile;
    driver->fail_call = "cuModuleLoadData";
    driver->fail_result = FA_CU_ERROR_NO_BINARY_FOR_GPU;
    assert_int_equal(machine(H100)->launch(machine(H100), &launch), FA_UNSUPPORTED);
    assert_error_holds("cuModuleLoadData failed with CUDA_ERROR_NO_BINARY_FOR_GPU");
    assert_error_holds("loading test_tile_bf16_d64 on cuda:3 (Fake H100, sm_90, driver for CUDA 13.0)");
    assert_int_equal(fake_driver_capture_mode(), 0);
    driver->fail_call = NULL;
    assert_int_equal(machine(H100)->launch(machine(H100), &launch), FA_OK);
}

static void kernels_for_other_architectures_are_refused(void **test) {
    (void)test;
    assert_int_equal(fa_machine_runs(machine(A100), test_tile), FA_UNSUPPORTED);
    assert_string_equal(fa_last_error(), "test_tile_bf16_d64 needs sm_90, and cuda:1 (Fake A100) is sm_80");
    if (test_add->image != NULL) {
        assert_int_equal(fa_machine_runs(machine(A100), test_add), FA_OK);
        assert_int_equal(fa_machine_runs(machine(H200), test_add), FA_OK);
        assert_int_equal(fa_machine_runs(machine(H200), test_tile), FA_OK);
    } else {
        assert_int_equal(fa_machine_runs(machine(H200), test_add), FA_UNSUPPORTED);
        assert_error_holds("this build has no GPU code");
    }
}

static void workspace_comes_from_a_pool_of_its_own(void **test) {
    (void)test;
    const fake_driver *driver = fake_driver_state();
    const fa_machine *m = machine(H200);
    unsigned char *memory;
    assert_int_equal(m->allocate(m, 100, (void *)1, (void **)&memory), FA_OK);
    assert_int_equal(atomic_load(&driver->allocated), 1);
    assert_true(driver->pool_keeps > 0);
    assert_int_equal(m->fill(m, memory, 7, 100, (void *)1), FA_OK);
    assert_int_equal(memory[99], 7);
    assert_int_equal(m->release(m, memory, (void *)1), FA_OK);
    assert_int_equal(atomic_load(&driver->allocated), 0);
}

static void tensor_maps_are_encoded_by_the_driver(void **test) {
    (void)test;
    fa_tensor_map map;
    fa_tensor_map_layout layout = {.type = FA_TENSOR_MAP_BFLOAT16,
                                   .swizzle = FA_TENSOR_MAP_SWIZZLE_128B,
                                   .rank = 2,
                                   .data = (void *)4096,
                                   .extents = {64, 100},
                                   .strides = {128},
                                   .box = {64, 8}};
    assert_int_equal(machine(H200)->encode_tensor_map(machine(H200), &layout, &map), FA_OK);
    const int *numbers = (const int *)&map;
    assert_int_equal(numbers[0], 9);
    assert_int_equal(numbers[1], 3);
    layout.data = (void *)4097;
    assert_int_equal(machine(H200)->encode_tensor_map(machine(H200), &layout, &map), FA_DEVICE_ERROR);
    assert_error_holds("cuTensorMapEncodeTiled failed");
    assert_error_holds("rank 2");
}

static void *launch_often(void *ordinal) {
    fa_launch launch = add_launch();
    const fa_machine *m;
    for (int i = 0; i < 100; i++) {
        if (fa_machine_open((fa_device){FA_DEVICE_CUDA, *(const int32_t *)ordinal}, &m) != FA_OK) return "open";
        launch.kernel = m->arch == 90 && i % 2 == 0 ? test_tile : test_add;
        if (m->launch(m, &launch) != FA_OK) return "launch";
        if (fake_driver_current() != NULL) return "context";
    }
    return NULL;
}

/* First, so that nothing is loaded yet. */
static void threads_load_each_kernel_once(void **test) {
    (void)test;
    need_gpu_code();
    static const int32_t ordinals[8] = {H200, A100, H200, A100, H200, A100, H200, A100};
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, launch_often, (void *)&ordinals[i]), 0);
    for (int i = 0; i < 8; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        if (failed != NULL) fail_msg("thread %d: %s", i, (const char *)failed);
    }
    assert_int_equal(atomic_load(&fake_driver_state()->launched), 800);
    assert_int_equal(atomic_load(&fake_driver_state()->loaded), 3);
    assert_int_equal(atomic_load(&fake_driver_state()->retained), 2);
}

RUN_TESTS(cmocka_unit_test_setup(threads_load_each_kernel_once, forget),
          cmocka_unit_test_setup(properties_come_from_the_driver, forget),
          cmocka_unit_test_setup(devices_that_are_not_there_are_refused, forget),
          cmocka_unit_test_setup(opening_and_planning_need_no_context, forget),
          cmocka_unit_test_setup(a_launch_says_what_was_asked, forget),
          cmocka_unit_test_setup(clusters_become_an_attribute, forget),
          cmocka_unit_test_setup(the_callers_context_stays_current, forget),
          cmocka_unit_test_setup(first_use_under_capture_works, forget),
          cmocka_unit_test_setup(errors_name_call_error_and_purpose, forget),
          cmocka_unit_test_setup(a_failed_load_is_not_remembered, forget),
          cmocka_unit_test_setup(kernels_for_other_architectures_are_refused, forget),
          cmocka_unit_test_setup(workspace_comes_from_a_pool_of_its_own, forget),
          cmocka_unit_test_setup(tensor_maps_are_encoded_by_the_driver, forget))
