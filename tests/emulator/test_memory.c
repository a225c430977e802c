/* SPDX-License-Identifier: Apache-2.0 */
/* Loads, stores, atomics and cp.async; their counters; and accesses that must be refused. */
#include "test_emulator.h"

#include "instructions/instructions.h"

typedef struct {
    uint8_t *in, *out;
    uint32_t selector, bytes;
} memory_params;

/* ---- Every width ---- */

/* Copies 256 bytes global -> shared -> global, each width in turn. */
KERNEL(fa_test_widths, 32, 1, memory_params, params) {
    const uint8_t *in = params->in;
    uint8_t *out = params->out;
    uint32_t t = thread_index(), base = shared_base();
#define THROUGH(name, size)                                         \
    for (uint32_t i = t * (size); i < 256; i += 32 * (size)) {      \
        shared_store_##name(base + i, global_load_##name(in + i));  \
        global_store_##name(out + i, shared_load_##name(base + i)); \
    }
    switch (params->selector) {
    case 0: THROUGH(u8, 1) break;
    case 1: THROUGH(u16, 2) break;
    case 2: THROUGH(u32, 4) break;
    case 3: THROUGH(i32, 4) break;
    case 4: THROUGH(f32, 4) break;
    case 5: THROUGH(u64, 8) break;
    case 6: THROUGH(f32x2, 8) break;
    case 7: THROUGH(u32x2, 8) break;
    case 8: THROUGH(f32x4, 16) break;
    default: THROUGH(u32x4, 16) break;
    }
}

static void test_widths(void **state) {
    uint8_t *in = fa_emulator_allocate(*state, 256), *out = fa_emulator_allocate(*state, 256);
    for (uint32_t i = 0; i < 256; i++) in[i] = (uint8_t)(i * 5 + 1);
    for (uint32_t selector = 0; selector < 10; selector++) {
        const memory_params params = {in, out, selector, 0};
        const test_launch launch = {&fa_test_widths, &params, 1, 32, 1, 256};
        memset(out, 0xFF, 256);
        fa_emulator_counters counters = expect_success(*state, &launch, selector);
        assert_memory_equal(in, out, 256);
        assert_int_equal(counters.global_bytes_read, 256);
        assert_int_equal(counters.global_bytes_written, 256);
        assert_int_equal(counters.shared_bytes_read, 256);
        assert_int_equal(counters.shared_bytes_written, 256);
    }
    fa_emulator_free(*state, in);
    fa_emulator_free(*state, out);
}

/* ---- Atomics ---- */

typedef struct {
    float *f32;
    int32_t *i32;
    uint32_t *u32, *max, *cas;
    uint64_t *u64;
    float *vector;
    float *shared_sum;
} atomic_params;

KERNEL(fa_test_atomics, 64, 1, atomic_params, params) {
    uint32_t t = thread_index(), base = shared_base();
    if (t == 0) {
        shared_store_f32(base, 0);
        shared_store_u32(base + 4, 0);
    }
    block_sync();
    global_atomic_add_f32(params->f32, 0.5f);
    global_atomic_add_i32(params->i32, -3);
    global_atomic_add_u32(params->u32, 2);
    global_atomic_add_u64(params->u64, UINT64_C(1) << 33);
    global_atomic_max_u32(params->max, t * 7 % 64 + block_index_x());
    const f32x4 v = {1, 2, 3, 4};
    global_reduce_add_f32x4(params->vector, v);
    uint32_t old = global_load_u32(params->cas), seen;
    while ((seen = global_atomic_cas_u32(params->cas, old, old + 1)) != old) old = seen;
    shared_atomic_add_f32(base, 1);
    shared_atomic_add_u32(base + 4, t);
    block_sync();
    if (t == 0)
        global_store_f32(params->shared_sum + block_index_x(),
                         shared_load_f32(base) + (float)shared_load_u32(base + 4));
}

static void test_atomics(void **state) {
    for (uint32_t host_threads = 1; host_threads <= 2; host_threads++) {
        uint32_t *memory = fa_emulator_allocate(*state, 256);
        memset(memory, 0, 256);
        const atomic_params params = {(float *)memory,     (int32_t *)memory + 1,
                                      memory + 2,          memory + 3,
                                      memory + 4,          (uint64_t *)(void *)(memory + 6),
                                      (float *)memory + 8, (float *)memory + 16};
        const fa_emulator_launch launch = {
            .grid = {8, 1, 1}, .threads = 64, .shared_bytes = 8, .seed = host_threads, .host_threads = host_threads};
        fa_emulator_report report;
        fa_emulator_run(*state, &fa_test_atomics, &params, &launch, &report);
        assert_string_equal(report.text, "");
        assert_true(*params.f32 == 256.0f);
        assert_int_equal(*params.i32, -3 * 512);
        assert_int_equal(*params.u32, 2 * 512);
        assert_true(*params.u64 == UINT64_C(512) << 33);
        assert_int_equal(*params.max, 63 + 7);
        assert_int_equal(*params.cas, 512);
        for (uint32_t i = 0; i < 4; i++) assert_true(params.vector[i] == 512.0f * (float)(i + 1));
        for (uint32_t i = 0; i < 8; i++) assert_true(params.shared_sum[i] == 64.0f + 64 * 63 / 2);
        fa_emulator_free(*state, memory);
    }
}

/* ---- Flags between blocks ---- */

typedef struct {
    uint32_t *flag;
    uint32_t reverse, delay; /* loads before the flag is set */
} flag_params;

KERNEL(fa_test_flags, 32, 1, flag_params, params) {
    uint32_t turn = params->reverse ? grid_blocks_x() - 1 - block_index_x() : block_index_x();
    if (thread_index() == 0) {
        while (global_load_acquire_u32(params->flag) != turn) {}
        for (uint32_t i = 0; i < params->delay; i++) (void)global_load_u32(params->flag + 1);
        fence_gpu();
        global_store_release_u32(params->flag, turn + 1);
    }
    block_sync();
}

static void test_flags(void **state) {
    flag_params params = {fa_emulator_allocate(*state, 4), 0, 0};
    for (uint32_t host_threads = 1; host_threads <= 2; host_threads++) {
        const fa_emulator_launch launch = {.grid = {6, 1, 1}, .threads = 32, .host_threads = host_threads};
        fa_emulator_report report;
        *params.flag = 0;
        fa_emulator_run(*state, &fa_test_flags, &params, &launch, &report);
        assert_string_equal(report.text, "");
        assert_int_equal(*params.flag, 6);
    }
    const test_launch launch = {&fa_test_flags, &params, 3, 32, 1, 0};
    params.reverse = 1;
    *params.flag = 0;
    expect_report(*state, &launch, FA_EMULATOR_DEADLOCK, "lane 0 polls", "block_sync");
    fa_emulator_free(*state, params.flag);
}

/* To set the flag is the last thing that a block does: the next, on another host thread, may find that the first has ended
 * before it has looked at the flag again. With more threads than cores, so that they are interrupted there as well. */
static void test_flags_of_blocks_that_end(void **state) {
    flag_params params = {fa_emulator_allocate(*state, 8), 0, 0};
    for (uint32_t i = 0; i < 200; i++) {
        const fa_emulator_launch launch = {.grid = {16, 1, 1}, .threads = 32, .seed = i, .host_threads = 16};
        fa_emulator_report report;
        params.delay = i * 25;
        memset(params.flag, 0, 8);
        fa_emulator_run(*state, &fa_test_flags, &params, &launch, &report);
        assert_string_equal(report.text, "");
        assert_int_equal(*params.flag, 16);
    }
    fa_emulator_free(*state, params.flag);
}

/* ---- cp.async ---- */

typedef enum {
    CP_GOOD,
    CP_NO_WAIT,
    CP_NO_SYNC,
    CP_WRONG_GROUP,
    CP_NOT_COMMITTED,
    CP_OVERWRITTEN,
    CP_MISALIGNED
} cp_fault;

/* Two groups: thread t copies `bytes` of chunk t, then 16 bytes of chunk 32 + t; lane 31 - t reads them. */
KERNEL(fa_test_cp_async, 32, 1, memory_params, params) {
    const uint32_t t = thread_index(), base = shared_base(), fault = params->selector;
    cp_async_16(base + 16 * t + (fault == CP_MISALIGNED ? 8 : 0), params->bytes ? params->in + 16 * t : NULL,
                params->bytes);
    cp_async_commit_group();
    cp_async_16(base + 512 + 16 * t, params->in + 512 + 16 * t, 16);
    if (fault != CP_NOT_COMMITTED) cp_async_commit_group();
    if (fault == CP_OVERWRITTEN) shared_store_u32(base + 16 * t, 0);
    if (fault != CP_NO_WAIT) cp_async_wait_group(1);
    if (fault != CP_NO_SYNC) warp_sync();
    uint32_t other = 31 - t;
    global_store_u32x4(params->out + 16 * other, shared_load_u32x4(base + 16 * other));
    if (fault != CP_WRONG_GROUP) cp_async_wait_group(0);
    warp_sync();
    global_store_u32x4(params->out + 512 + 16 * other, shared_load_u32x4(base + 512 + 16 * other));
}

static void test_cp_async(void **state) {
    uint8_t *in = fa_emulator_allocate(*state, 1024), *out = fa_emulator_allocate(*state, 1024);
    for (uint32_t i = 0; i < 1024; i++) in[i] = (uint8_t)(i % 251 + 1);
    memory_params params = {in, out, CP_GOOD, 0};
    const test_launch launch = {&fa_test_cp_async, &params, 1, 32, 1, 1024};
    for (params.bytes = 0; params.bytes <= 16; params.bytes++) {
        memset(out, 0xFF, 1024);
        fa_emulator_counters counters = expect_success(*state, &launch, params.bytes);
        for (uint32_t i = 0; i < 512; i++) assert_int_equal(out[i], i % 16 < params.bytes ? in[i] : 0);
        assert_memory_equal(in + 512, out + 512, 512);
        assert_int_equal(counters.async_copy_bytes, 32 * (params.bytes + 16));
        assert_int_equal(counters.shared_bytes_written, 1024);
    }
    const fa_emulator_status broken = FA_EMULATOR_RULE_BROKEN;
    params.bytes = 16;
    params.selector = CP_NO_WAIT;
    expect_report(*state, &launch, broken, "while a cp_async of", "no cp_async_wait_group yet");
    params.selector = CP_NO_SYNC;
    expect_report(*state, &launch, broken, "shared_load: reads shared memory", "cp_async");
    params.selector = CP_WRONG_GROUP;
    expect_report(*state, &launch, broken, "while a cp_async of", "no cp_async_wait_group yet");
    params.selector = CP_NOT_COMMITTED;
    expect_report(*state, &launch, broken, "while a cp_async of", "no cp_async_wait_group yet");
    params.selector = CP_OVERWRITTEN;
    expect_report(*state, &launch, broken, "overwrites shared memory", "while a cp_async of");
    params.selector = CP_MISALIGNED;
    expect_report(*state, &launch, broken, "cp_async_16", "is not a multiple of 16");
    params.selector = CP_GOOD;
    params.bytes = 17;
    expect_report(*state, &launch, broken, "source_bytes 17", NULL);
    fa_emulator_free(*state, in);
    fa_emulator_free(*state, out);
}

/* ---- Races between warps ---- */

typedef enum { RACE_NONE, RACE_READ, RACE_WRITE, RACE_OVERWRITE, RACE_ATOMIC } race_kind;

KERNEL(fa_test_race, 128, 1, memory_params, params) {
    const uint32_t t = thread_index(), base = shared_base(), kind = params->selector;
    shared_store_u32(base + 4 * t, t);
    if (kind != RACE_READ) block_sync();
    uint32_t value = shared_load_u32(base + 4 * ((t + 32) % 128));
    if (kind != RACE_OVERWRITE) block_sync();
    if (kind == RACE_WRITE) shared_store_u32(base + 4 * (t % 64), value);
    if (kind == RACE_ATOMIC && t == 3) shared_store_u32(base + 4, value);
    if (kind == RACE_ATOMIC && t == 99) shared_atomic_add_u32(base + 4, value);
    if (kind != RACE_ATOMIC && kind != RACE_WRITE) shared_store_u32(base + 4 * t, value);
}

static void test_races(void **state) {
    memory_params params = {NULL, NULL, RACE_NONE, 0};
    const test_launch launch = {&fa_test_race, &params, 1, 128, 1, 512};
    for (uint64_t seed = 0; seed < 20; seed++) expect_success(*state, &launch, seed);
    params.selector = RACE_READ;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        fa_emulator_report report = run_kernel(*state, &launch, seed);
        assert_int_equal(report.status, FA_EMULATOR_RULE_BROKEN);
        if (!strstr(report.text, "without a barrier between the two") &&
            !strstr(report.text, "that nobody has written"))
            fail_msg("%s", report.text);
    }
    params.selector = RACE_WRITE;
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "shared_store: overwrites shared memory",
                  "written by warp");
    params.selector = RACE_OVERWRITE;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        fa_emulator_report report = run_kernel(*state, &launch, seed);
        assert_int_equal(report.status, FA_EMULATOR_RULE_BROKEN);
        if (!strstr(report.text, "without a barrier between the two")) fail_msg("%s", report.text);
    }
    params.selector = RACE_ATOMIC;
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "without a barrier between the two", NULL);
}

/* ---- Addresses ---- */

typedef enum {
    GLOBAL_PAST_END,
    GLOBAL_UNKNOWN,
    GLOBAL_READ_ONLY,
    GLOBAL_MISALIGNED,
    GLOBAL_STRADDLING,
    SHARED_PAST_END,
    SHARED_BELOW,
    SHARED_MISALIGNED,
    SHARED_UNWRITTEN,
    ATOMIC_PAST_END,
} address_fault;

KERNEL(fa_test_addresses, 32, 1, memory_params, params) {
    const uint32_t base = shared_base();
    float *out = (float *)(void *)params->out;
    if (thread_index() != 13) return;
    switch (params->selector) {
    case GLOBAL_PAST_END: global_store_f32(out + 64, 1); break;
    case GLOBAL_UNKNOWN: global_load_u32(&params->bytes); break;
    case GLOBAL_READ_ONLY: global_store_u32(params->in, 1); break;
    case GLOBAL_MISALIGNED: global_load_u32x4(out + 1); break;
    case GLOBAL_STRADDLING: global_load_u32x4(params->in + 48); break;
    case SHARED_PAST_END: shared_store_u32(base + 256, 1); break;
    case SHARED_BELOW: shared_store_u32(base - 4, 1); break;
    case SHARED_MISALIGNED: shared_store_u32x2(base + 4, global_load_u32x2(out)); break;
    case SHARED_UNWRITTEN: shared_load_u16(base + 2); break;
    default: global_atomic_add_f32(out - 1, 1); break;
    }
}

static void test_addresses(void **state) {
    static uint8_t constant[64] __attribute__((aligned(16)));
    float *out = fa_emulator_allocate(*state, 256);
    assert_true(fa_emulator_register(*state, constant, 56, false));
    memory_params params = {constant, (uint8_t *)out, 0, 0};
    const test_launch launch = {&fa_test_addresses, &params, 1, 32, 1, 256};
    static const char *const texts[][2] = {
        [GLOBAL_PAST_END] = {"global_store", "in no known allocation"},
        [GLOBAL_UNKNOWN] = {"global_load", "in no known allocation"},
        [GLOBAL_READ_ONLY] = {"global_store", "read-only"},
        [GLOBAL_MISALIGNED] = {"global_load", "not a multiple of 16"},
        [GLOBAL_STRADDLING] = {"16 bytes", "run past the end of the allocation"},
        [SHARED_PAST_END] = {"shared_store", "lie outside the block's shared memory [0x400, 0x500)"},
        [SHARED_BELOW] = {"shared_store", "lie outside the block's shared memory"},
        [SHARED_MISALIGNED] = {"shared_store", "not a multiple of 8"},
        [SHARED_UNWRITTEN] = {"shared_load", "that nobody has written"},
        [ATOMIC_PAST_END] = {"global_atomic_add_f32", "in no known allocation"},
    };
    for (params.selector = 0; params.selector <= ATOMIC_PAST_END; params.selector++)
        expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, texts[params.selector][0], texts[params.selector][1]);
    params.selector = GLOBAL_PAST_END;
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "block (0,0,0), warp 0 lane 13", NULL);
    fa_emulator_unregister(*state, constant, 56, false);
    params.selector = GLOBAL_READ_ONLY;
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "in no known allocation", NULL);
    fa_emulator_free(*state, out);
}

/* Views of one buffer overlap; what is registered twice stays known until it was undone twice. */
static void test_registrations(void **state) {
    static uint8_t buffer[512] __attribute__((aligned(16)));
    fa_emulator *device = *state;
    memory_params params = {buffer, buffer + 256, 2, 0};
    const test_launch launch = {&fa_test_widths, &params, 1, 32, 1, 256};
    assert_true(fa_emulator_register(device, buffer, 300, true));
    assert_true(fa_emulator_register(device, buffer + 200, 312, true));
    assert_true(fa_emulator_register(device, buffer + 200, 312, true));
    expect_success(device, &launch, 1);
    fa_emulator_unregister(device, buffer + 200, 312, true);
    expect_success(device, &launch, 1);
    fa_emulator_unregister(device, buffer + 200, 312, true);
    expect_report(device, &launch, FA_EMULATOR_RULE_BROKEN, "allocation", NULL);
    fa_emulator_unregister(device, buffer, 300, true);
}

/* ---- Launches ---- */

static void expect_refusal(fa_emulator *device, fa_emulator_launch launch, const char *text) {
    memory_params params = {NULL, NULL, 0, 0};
    fa_emulator_report report;
    assert_int_equal(fa_emulator_run(device, &fa_test_widths, &params, &launch, &report), FA_EMULATOR_REFUSED);
    if (!strstr(report.text, text)) fail_msg("expected \"%s\", got: %s", text, report.text);
}

static void test_launch_refusals(void **state) {
    expect_refusal(*state, (fa_emulator_launch){.grid = {0, 1, 1}, .threads = 32}, "grid[0] = 0");
    expect_refusal(*state, (fa_emulator_launch){.grid = {1, 65536, 1}, .threads = 32}, "grid[1] = 65536");
    expect_refusal(*state, (fa_emulator_launch){.grid = {1, 1, 1}, .threads = 48}, "48 threads");
    expect_refusal(*state, (fa_emulator_launch){.grid = {1, 1, 1}, .threads = 64}, "compiled for at most 32");
    expect_refusal(*state, (fa_emulator_launch){.grid = {1, 1, 1}, .threads = 32, .shared_bytes = 232449},
                   "emulated-h100 has 232448");
    expect_refusal(*state, (fa_emulator_launch){.grid = {3, 1, 1}, .threads = 32, .cluster = 2}, "not a multiple");
    expect_refusal(*state, (fa_emulator_launch){.grid = {32, 1, 1}, .threads = 32, .cluster = 32}, "clusters of 32");
    fa_emulator *a100 = fa_emulator_create(FA_EMULATOR_A100);
    expect_refusal(a100, (fa_emulator_launch){.grid = {2, 1, 1}, .threads = 32, .cluster = 2},
                   "emulated-a100 allows 1");
    expect_refusal(a100, (fa_emulator_launch){.grid = {1, 1, 1}, .threads = 32, .shared_bytes = 166913},
                   "emulated-a100 has 166912");
    fa_emulator_destroy(a100);
}

/* The same seed gives the same run. */
static void test_repeatable(void **state) {
    uint32_t *memory = fa_emulator_allocate(*state, 256);
    const memory_params params = {(uint8_t *)memory, (uint8_t *)memory, 2, 0};
    const test_launch launch = {&fa_test_widths, &params, 1, 32, 1, 256};
    fa_emulator_counters a = expect_success(*state, &launch, 9), b = expect_success(*state, &launch, 9);
    assert_memory_equal(&a, &b, sizeof a);
    fa_emulator_free(*state, memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths),          cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_flags),           cmocka_unit_test(test_flags_of_blocks_that_end),
        cmocka_unit_test(test_cp_async),        cmocka_unit_test(test_races),
        cmocka_unit_test(test_addresses),       cmocka_unit_test(test_registrations),
        cmocka_unit_test(test_launch_refusals), cmocka_unit_test(test_repeatable),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
