/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers of every kind, clusters and the register pool: that they order memory and count as they should, and that
 * misuse is reported. */
#include "test_emulator.h"

#include "instructions/instructions.h"

typedef struct {
    uint32_t *out;
    uint32_t fault;
} barrier_params;

#define EXPECT_BROKEN(launch, text, more) expect_report(*state, launch, FA_EMULATOR_RULE_BROKEN, text, more)
#define EXPECT_DEADLOCK(launch, text, more) expect_report(*state, launch, FA_EMULATOR_DEADLOCK, text, more)

/* ---- Named barriers ---- */

/* Two warpgroups take turns: each barrier completes when one group arrives and the other waits. Each adds to a number
 * in shared memory in its turn. Faults: 1 nobody starts; 2 the turn is passed on before the work is done. */
KERNEL(fa_test_turns, 256, 1, barrier_params, params) {
    const uint32_t base = shared_base(), group = warpgroup_index(), t = thread_index() % 128;
    if (thread_index() == 0) shared_store_u32(base, 1);
    block_sync();
    if (group == 0 && params->fault != 1) named_barrier_arrive(1, 256);
    for (uint32_t i = 0; i < 10; i++) {
        named_barrier_sync(1 + group, 256);
        if (params->fault == 2) named_barrier_arrive(1 + (group ^ 1), 256);
        if (t == 0) shared_store_u32(base, 3 * shared_load_u32(base) + group);
        if (params->fault != 2) named_barrier_arrive(1 + (group ^ 1), 256);
    }
    block_sync();
    if (thread_index() == 0) global_store_u32(params->out, shared_load_u32(base));
}

static void test_turns(void **state) {
    barrier_params params = {fa_emulator_allocate(*state, 4), 0};
    const test_launch launch = {&fa_test_turns, &params, 1, 256, 1, 16};
    uint32_t expected = 1;
    for (uint32_t i = 0; i < 20; i++) expected = 3 * expected + i % 2;
    for (uint64_t seed = 0; seed < 20; seed++) {
        fa_emulator_counters counters = expect_success(*state, &launch, seed);
        assert_int_equal(*params.out, expected);
        assert_int_equal(counters.barriers, 8 * (2 + 20) + 4);
    }
    params.fault = 1;
    EXPECT_DEADLOCK(&launch, "warp 0 lane 0 to warp 3 lane 31 waits at named barrier 1 (128 of 256 threads have come)",
                    "warp 4 lane 0 to warp 7 lane 31 waits at named barrier 2");
    params.fault = 2;
    EXPECT_BROKEN(&launch, "without a barrier between the two", NULL);
    fa_emulator_free(*state, params.out);
}

KERNEL(fa_test_named_faults, 128, 1, barrier_params, params) {
    const uint32_t warp = warp_index();
    switch (params->fault) {
    case 0: named_barrier_sync(0, 128); break;
    case 1: named_barrier_sync(16, 128); break;
    case 2: named_barrier_sync(3, 100); break;
    case 3: named_barrier_sync(3, 160); break;
    case 4: named_barrier_sync(3, warp == 2 ? 96 : 128); break;
    case 5:
        if (warp == 1) named_barrier_arrive(3, 128);
        if (warp == 1) named_barrier_arrive(3, 128);
        break;
    case 6: named_barrier_sync(lane_index() == 9 ? 4 : 3, 128); break;
    case 7:
        if (warp == 3) return;
        block_sync();
        break;
    case 8:
        if (warp != 3) block_sync();
        named_barrier_sync(1, 128);
        break;
    default:
        if (lane_index() == 0) named_barrier_sync(1, 128);
        warp_sync();
        break;
    }
}

static void test_named_faults(void **state) {
    barrier_params params = {NULL, 0};
    const test_launch launch = {&fa_test_named_faults, &params, 1, 128, 1, 0};
    EXPECT_BROKEN(&launch, "barrier 0: must be 1 to 15", NULL);
    params.fault = 1;
    EXPECT_BROKEN(&launch, "barrier 16: must be 1 to 15", NULL);
    params.fault = 2;
    EXPECT_BROKEN(&launch, "100 threads: must be a multiple of 32", NULL);
    params.fault = 3;
    EXPECT_BROKEN(&launch, "at most the 128 of the block", NULL);
    params.fault = 4;
    EXPECT_BROKEN(&launch, "barrier 3 is used with", "threads here");
    params.fault = 5;
    EXPECT_BROKEN(&launch, "over-arrival: warp 1", "named_barrier_arrive");
    params.fault = 6;
    EXPECT_BROKEN(&launch, "names barrier", "named_barrier_sync");
    params.fault = 7;
    EXPECT_BROKEN(&launch, "block_sync", "all");
    params.fault = 8;
    EXPECT_DEADLOCK(&launch, "warp 0 lane 0 to warp 2 lane 31 waits in block_sync (96 of 128 threads have come)",
                    "warp 3 lane 0 to warp 3 lane 31 waits at named barrier 1");
    params.fault = 9;
    EXPECT_BROKEN(&launch, "all 32 lanes must take part", "named_barrier_sync");
}

/* ---- mbarriers ---- */

/* A ring of one slot: warp 0 writes numbers, warp 1 reads them. Faults: 1 the reader's parity never flips; 2 one
 * arrival per lane where one per warp is expected; 3 the writer does not wait. */
KERNEL(fa_test_slot, 64, 1, barrier_params, params) {
    const uint32_t full = shared_base(), empty = full + 8, slot = full + 16, lane = lane_index();
    if (thread_index() == 0) {
        mbarrier_init(full, 32);
        mbarrier_init(empty, 1);
    }
    block_sync();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 12; i++) {
        if (warp_index() == 0) {
            if (params->fault != 3) mbarrier_wait(empty, (i & 1) ^ 1);
            shared_store_u32(slot + 4 * lane, i * i + lane);
            mbarrier_arrive(full);
        } else {
            uint32_t parity = params->fault == 1 ? 0 : i & 1;
            if (i % 3 == 0) {
                mbarrier_wait(full, parity);
            } else {
                while (!(i % 3 == 1 ? mbarrier_try_wait(full, parity) : mbarrier_test_wait(full, parity))) {}
            }
            sum += shared_load_u32(slot + 4 * (31 - lane));
            warp_sync();
            if (lane == 0 || params->fault == 2) mbarrier_arrive(empty);
        }
    }
    if (warp_index() == 1) global_store_u32(params->out + lane, sum);
}

static void test_slot(void **state) {
    barrier_params params = {fa_emulator_allocate(*state, 128), 0};
    const test_launch launch = {&fa_test_slot, &params, 1, 64, 1, 256};
    for (uint64_t seed = 0; seed < 20; seed++) {
        expect_success(*state, &launch, seed);
        for (uint32_t lane = 0; lane < 32; lane++) assert_int_equal(params.out[lane], 506 + 12 * (31 - lane));
    }
    for (params.fault = 1; params.fault <= 3; params.fault++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            fa_emulator_report report = run_kernel(*state, &launch, seed);
            if (report.status == FA_EMULATOR_OK) fail_msg("fault %u passed with seed %u", params.fault, (unsigned)seed);
        }
    fa_emulator_free(*state, params.out);
}

KERNEL(fa_test_mbarrier_faults, 64, 1, barrier_params, params) {
    const uint32_t bar = shared_base(), t = thread_index();
    if (t == 0 && params->fault != 4) {
        mbarrier_init(params->fault == 0 ? bar + 4 : bar, params->fault == 1 ? 0 : 2);
        if (params->fault == 2) mbarrier_init(bar, 2);
        if (params->fault == 10) mbarrier_invalidate(bar);
    }
    block_sync();
    switch (params->fault) {
    case 3: mbarrier_wait(bar, 2); break;
    case 5:
        if (t == 1) mbarrier_arrive_count(bar, 3);
        break;
    case 6:
        if (t == 1) mbarrier_expect_tx(bar, 1 << 20);
        break;
    case 7:
        if (t < 2) mbarrier_arrive_expect_tx(bar, 64);
        mbarrier_wait(bar, 0);
        break;
    case 8: shared_load_u32(bar); break;
    case 9:
        if (t == 33) mbarrier_wait(bar, 0);
        break;
    default: mbarrier_arrive(bar); break;
    }
}

static void test_mbarrier_faults(void **state) {
    barrier_params params = {NULL, 0};
    const test_launch launch = {&fa_test_mbarrier_faults, &params, 1, 64, 1, 256};
    EXPECT_BROKEN(&launch, "is not a multiple of 8", "mbarrier_init");
    params.fault = 1;
    EXPECT_BROKEN(&launch, "0 arrivals: must be 1 to 1048575", NULL);
    params.fault = 2;
    EXPECT_BROKEN(&launch, "holds an mbarrier already", NULL);
    params.fault = 3;
    EXPECT_BROKEN(&launch, "parity 2: must be 0 or 1", NULL);
    params.fault = 4;
    EXPECT_BROKEN(&launch, "no initialised mbarrier at 0x400", NULL);
    params.fault = 5;
    EXPECT_BROKEN(&launch, "over-arrival: 3 arrivals", "misses only 2 of 2 in phase 0");
    params.fault = 6;
    EXPECT_BROKEN(&launch, "range is +-1048575", "mbarrier_expect_tx");
    params.fault = 7;
    EXPECT_DEADLOCK(&launch, "warp 0 lane 0 to warp 1 lane 31 waits for parity 0 of mbarrier 0x400",
                    "0 of 2 arrivals missing, 128 bytes missing");
    params.fault = 8;
    EXPECT_BROKEN(&launch, "belongs to an mbarrier", "shared_load");
    params.fault = 9;
    EXPECT_DEADLOCK(&launch, "warp 1 lane 1 waits for parity 0 of mbarrier 0x400 (in phase 0: 2 of 2 arrivals missing",
                    NULL);
    params.fault = 10;
    EXPECT_BROKEN(&launch, "no initialised mbarrier", NULL);
}

/* cp.async that announces itself at an mbarrier: 32 copying lanes, 32 waiting ones. */
KERNEL(fa_test_cp_async_arrive, 64, 1, barrier_params, params) {
    const uint32_t bar = shared_base(), data = bar + 16, lane = lane_index();
    if (thread_index() == 0) mbarrier_init(bar, 32);
    block_sync();
    if (warp_index() == 0) {
        cp_async_16(data + 16 * lane, params->out + 4 * lane, 16);
        if (params->fault == 0) cp_async_mbarrier_arrive_noinc(bar);
        if (params->fault == 1) mbarrier_arrive(bar);
    } else {
        mbarrier_wait(bar, 0);
        uint32_t v = shared_load_u32(data + 16 * (31 - lane));
        global_store_u32(params->out + 128 + lane, v);
    }
}

static void test_cp_async_arrive(void **state) {
    barrier_params params = {fa_emulator_allocate(*state, 1024), 0};
    for (uint32_t i = 0; i < 128; i++) params.out[i] = i * 11;
    const test_launch launch = {&fa_test_cp_async_arrive, &params, 1, 64, 1, 1024};
    for (uint64_t seed = 0; seed < 10; seed++) {
        expect_success(*state, &launch, seed);
        for (uint32_t i = 0; i < 32; i++) assert_int_equal(params.out[128 + i], 4 * (31 - i) * 11);
    }
    params.fault = 1;
    EXPECT_BROKEN(&launch, "shared_load: reads shared memory", "cp_async");
    fa_emulator_free(*state, params.out);
}

/* ---- Clusters ---- */

/* Every block writes its rank into the shared memory of the next block, and counts arrivals from all blocks. Faults: 1
 * no barrier before the neighbour is touched; 2 no barrier after; 3 the blocks end while others still arrive. */
KERNEL(fa_test_cluster, 64, 1, barrier_params, params) {
    const uint32_t base = shared_base(), bar = base + 64, t = thread_index(), size = cluster_size();
    if (t == 0) {
        mbarrier_init(bar, size);
        fence_mbarrier_init();
        shared_store_f32(base + 16, 1.5f);
    }
    if (params->fault != 1) {
        cluster_arrive();
        cluster_wait();
    }
    const uint32_t next = cluster_map(base, (cluster_rank() + 1) % size);
    if (t == 0) {
        cluster_store_u32(next, cluster_rank() + 100);
        cluster_store_f32(next + 4, cluster_load_f32(next + 16) + (float)cluster_rank());
    }
    if (params->fault != 2) {
        cluster_arrive();
        cluster_wait();
    }
    uint32_t *out = params->out + 4 * block_index_x();
    if (t == 32) {
        global_store_u32(out, shared_load_u32(base));
        global_store_f32(out + 1, shared_load_f32(base + 4));
        global_store_u32(out + 2, cluster_load_u32(next));
    }
    if (t < size) mbarrier_arrive_cluster(cluster_map(bar, t));
    mbarrier_wait_cluster(bar, 0);
    if (params->fault == 3) {
        if (cluster_rank() == 0) return;
        cluster_store_u32(cluster_map(base + 32, 0), 1);
    }
    cluster_arrive_relaxed();
    cluster_wait();
}

static void test_cluster(void **state) {
    barrier_params params = {fa_emulator_allocate(*state, 1024), 0};
    for (uint32_t size = 2; size <= 8; size += 3)
        for (uint64_t seed = 0; seed < 5; seed++) {
            const test_launch launch = {&fa_test_cluster, &params, 2 * size, 64, size, 128};
            expect_success(*state, &launch, seed);
            for (uint32_t block = 0; block < 2 * size; block++) {
                uint32_t rank = block % size;
                float sum = 1.5f + (float)((rank + size - 1) % size), got;
                memcpy(&got, params.out + 4 * block + 1, sizeof got);
                assert_int_equal(params.out[4 * block], (rank + size - 1) % size + 100);
                assert_true(got == sum);
                assert_int_equal(params.out[4 * block + 2], rank + 100);
            }
        }
    const test_launch launch = {&fa_test_cluster, &params, 4, 64, 4, 128};
    for (params.fault = 1; params.fault <= 3; params.fault++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            fa_emulator_report report = run_kernel(*state, &launch, seed);
            if (report.status == FA_EMULATOR_OK) fail_msg("fault %u passed with seed %u", params.fault, (unsigned)seed);
        }
    params.fault = 2;
    for (uint64_t seed = 0; seed < 8; seed++) {
        fa_emulator_report report = run_kernel(*state, &launch, seed);
        if (!strstr(report.text, "cluster block") && !strstr(report.text, "that nobody has written"))
            fail_msg("%s", report.text);
    }
    fa_emulator_free(*state, params.out);
}

/* ---- Registers ---- */

KERNEL(fa_test_registers, 384, 1, barrier_params, params) {
    const uint32_t group = warpgroup_index(), fault = params->fault;
    if (fault == 3) set_max_registers_decrease(20);
    if (fault == 4) set_max_registers_decrease(240);
    if (group == 0) {
        if (fault != 1) set_max_registers_decrease(24);
    } else {
        if (fault == 2)
            set_max_registers_increase(248);
        else
            set_max_registers_increase(240);
    }
}

static void test_registers(void **state) {
    barrier_params params = {NULL, 0};
    const test_launch launch = {&fa_test_registers, &params, 1, 384, 1, 0};
    for (uint64_t seed = 0; seed < 10; seed++) expect_success(*state, &launch, seed);
    params.fault = 1;
    EXPECT_DEADLOCK(&launch, "waits in set_max_registers_increase", NULL);
    params.fault = 2; /* 24 + 2 x 248 > 3 x 168 */
    EXPECT_DEADLOCK(&launch, "waits in set_max_registers_increase", NULL);
    params.fault = 3;
    EXPECT_BROKEN(&launch, "20 registers: must be 24 to 256", NULL);
    params.fault = 4;
    EXPECT_BROKEN(&launch, "240 registers: the warp has 168", "set_max_registers_decrease");
}

/* ---- The limits of older parts ---- */

static void test_a100(void **state) {
    (void)state;
    fa_emulator *device = fa_emulator_create(FA_EMULATOR_A100);
    barrier_params params = {NULL, 5};
    const test_launch mbarriers = {&fa_test_mbarrier_faults, &params, 1, 64, 1, 256};
    expect_report(device, &mbarriers, FA_EMULATOR_RULE_BROKEN, "mbarrier_init: needs sm_90, but emulated-a100 is sm_80",
                  NULL);
    const test_launch registers = {&fa_test_registers, &params, 1, 384, 1, 0};
    expect_report(device, &registers, FA_EMULATOR_RULE_BROKEN, "needs sm_90", "set_max_registers");
    fa_emulator_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_named_faults),
        cmocka_unit_test(test_slot),
        cmocka_unit_test(test_mbarrier_faults),
        cmocka_unit_test(test_cp_async_arrive),
        cmocka_unit_test(test_cluster),
        cmocka_unit_test(test_registers),
        cmocka_unit_test(test_a100),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
