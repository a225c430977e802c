/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a warp against their definitions: shuffles, votes, elect, ldmatrix, stmatrix, mma. */
#include <math.h>

#include "test_emulator.h"

#include "instructions/instructions.h"

typedef struct {
    uint32_t *out;
    const void *in;
    uint32_t selector, argument;
} warp_params;

/* ---- Shuffles and votes ---- */

KERNEL(fa_test_shuffle, 32, 1, warp_params, params) {
    uint32_t lane = lane_index(), value = lane * 3 + 100;
    float f = (float)value;
    uint32_t argument = params->selector == 4 ? (lane * 7 + 3) % 32 : params->argument;
    uint32_t result = 0;
    float same = 0;
    switch (params->selector) {
    case 0:
        result = shuffle_xor_u32(value, argument);
        same = shuffle_xor_f32(f, argument);
        break;
    case 1:
        result = shuffle_down_u32(value, argument);
        same = shuffle_down_f32(f, argument);
        break;
    case 2:
        result = shuffle_up_u32(value, argument);
        same = shuffle_up_f32(f, argument);
        break;
    default:
        result = shuffle_index_u32(value, argument);
        same = shuffle_index_f32(f, argument);
        break;
    }
    global_store_u32(params->out + lane, result);
    global_store_u32(params->out + 32 + lane, (uint32_t)same);
}

static void test_shuffle(void **state) {
    uint32_t *out = fa_emulator_allocate(*state, 64 * 4);
    for (uint32_t kind = 0; kind < 5; kind++)
        for (uint32_t argument = 0; argument < 32; argument++) {
            const warp_params params = {out, NULL, kind, argument};
            const test_launch launch = {&fa_test_shuffle, &params, 1, 32, 1, 0};
            fa_emulator_counters counters = expect_success(*state, &launch, argument);
            assert_int_equal(counters.shuffles, 2);
            for (uint32_t lane = 0; lane < 32; lane++) {
                uint32_t from = argument;
                if (kind == 0) from = lane ^ argument;
                if (kind == 1) from = lane + argument < 32 ? lane + argument : lane;
                if (kind == 2) from = lane >= argument ? lane - argument : lane;
                if (kind == 4) from = (lane * 7 + 3) % 32;
                assert_int_equal(out[lane], from * 3 + 100);
                assert_int_equal(out[32 + lane], from * 3 + 100);
            }
        }
    fa_emulator_free(*state, out);
}

KERNEL(fa_test_vote, 32, 1, warp_params, params) {
    uint32_t lane = lane_index();
    int predicate = (int)(params->argument >> lane & 1);
    uint32_t *out = params->out + 4 * lane;
    global_store_u32(out, (uint32_t)vote_any(predicate));
    global_store_u32(out + 1, (uint32_t)vote_all(predicate));
    global_store_u32(out + 2, vote_ballot(predicate));
    global_store_u32(out + 3, (uint32_t)elect_one());
}

static void test_vote(void **state) {
    const uint32_t masks[] = {0, 1, 0x80000000u, 0xFFFFFFFFu, 0xFFFFFFFEu, 0x12345678u};
    uint32_t *out = fa_emulator_allocate(*state, 128 * 4);
    for (uint32_t i = 0; i < 6; i++) {
        const warp_params params = {out, NULL, 0, masks[i]};
        const test_launch launch = {&fa_test_vote, &params, 1, 32, 1, 0};
        expect_success(*state, &launch, i);
        uint32_t elected = 0;
        for (uint32_t lane = 0; lane < 32; lane++) {
            assert_int_equal(out[4 * lane], masks[i] != 0);
            assert_int_equal(out[4 * lane + 1], masks[i] == 0xFFFFFFFFu);
            assert_int_equal(out[4 * lane + 2], masks[i]);
            elected += out[4 * lane + 3];
        }
        assert_int_equal(elected, 1);
    }
    fa_emulator_free(*state, out);
}

/* ---- ldmatrix and stmatrix ---- */

#define PITCH 48 /* bytes between rows: any multiple of 16 */

/* Memory row i (of 32) lies at base + i PITCH; lane l names row 31 - l, so that addresses and rows differ. */
KERNEL(fa_test_ldmatrix, 32, 1, warp_params, params) {
    uint32_t lane = lane_index(), base = shared_base(), r[4] = {0, 0, 0, 0};
    for (uint32_t i = 0; i < 4; i++)
        shared_store_u32(base + lane * PITCH + 4 * i, global_load_u32((const uint32_t *)params->in + lane * 4 + i));
    warp_sync();
    uint32_t address = base + (31 - lane) * PITCH;
    switch (params->selector) {
    case 0: ldmatrix_x1(r, address); break;
    case 1: ldmatrix_x2(r, address); break;
    case 2: ldmatrix_x4(r, address); break;
    case 3: ldmatrix_x1_trans(r, address); break;
    case 4: ldmatrix_x2_trans(r, address); break;
    default: ldmatrix_x4_trans(r, address); break;
    }
    for (uint32_t i = 0; i < 4; i++) global_store_u32(params->out + lane * 4 + i, r[i]);
}

static void test_ldmatrix(void **state) {
    uint16_t *in = fa_emulator_allocate(*state, 32 * 16);
    uint32_t *out = fa_emulator_allocate(*state, 128 * 4);
    for (uint32_t i = 0; i < 256; i++) in[i] = (uint16_t)(i * 257 + 1);
    for (uint32_t form = 0; form < 6; form++) {
        const uint32_t matrices = 1u << (form % 3), trans = form / 3;
        const warp_params params = {out, in, form, 0};
        const test_launch launch = {&fa_test_ldmatrix, &params, 1, 32, 1, 32 * PITCH};
        expect_success(*state, &launch, form);
        for (uint32_t lane = 0; lane < 32; lane++)
            for (uint32_t m = 0; m < 4; m++)
                for (uint32_t e = 0; e < 2; e++) {
                    uint32_t row = trans ? 2 * (lane % 4) + e : lane / 4,
                             column = trans ? lane / 4 : 2 * (lane % 4) + e;
                    uint16_t expected = m < matrices ? in[(31 - (8 * m + row)) * 8 + column] : 0;
                    assert_int_equal((uint16_t)(out[lane * 4 + m] >> (16 * e)), expected);
                }
    }
    fa_emulator_free(*state, in);
    fa_emulator_free(*state, out);
}

KERNEL(fa_test_stmatrix, 32, 1, warp_params, params) {
    uint32_t lane = lane_index(), base = shared_base(), r[4];
    for (uint32_t i = 0; i < 4; i++) {
        r[i] = global_load_u32((const uint32_t *)params->in + lane * 4 + i);
        shared_store_u32(base + lane * PITCH + 4 * i, 0xEEEEEEEEu);
    }
    warp_sync();
    uint32_t address = base + (31 - lane) * PITCH;
    switch (params->selector) {
    case 0: stmatrix_x2(address, r); break;
    case 1: stmatrix_x4(address, r); break;
    case 2: stmatrix_x2_trans(address, r); break;
    default: stmatrix_x4_trans(address, r); break;
    }
    warp_sync();
    for (uint32_t i = 0; i < 4; i++)
        global_store_u32(params->out + lane * 4 + i, shared_load_u32(base + lane * PITCH + 4 * i));
}

static void test_stmatrix(void **state) {
    uint32_t *in = fa_emulator_allocate(*state, 128 * 4);
    uint16_t *out = fa_emulator_allocate(*state, 32 * 16);
    for (uint32_t i = 0; i < 128; i++) in[i] = i * 0x01010101u + 0x00020001u;
    for (uint32_t form = 0; form < 4; form++) {
        const uint32_t matrices = form % 2 ? 4 : 2, trans = form / 2;
        const warp_params params = {(uint32_t *)(void *)out, in, form, 0};
        const test_launch launch = {&fa_test_stmatrix, &params, 1, 32, 1, 32 * PITCH};
        expect_success(*state, &launch, form);
        for (uint32_t m = 0; m < 4; m++)
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t e = 0; e < 2; e++) {
                    uint32_t row = trans ? 2 * (lane % 4) + e : lane / 4,
                             column = trans ? lane / 4 : 2 * (lane % 4) + e;
                    uint16_t expected = (uint16_t)(m < matrices ? in[lane * 4 + m] >> (16 * e) : 0xEEEE);
                    assert_int_equal(out[(31 - (8 * m + row)) * 8 + column], expected);
                }
    }
    fa_emulator_free(*state, in);
    fa_emulator_free(*state, out);
}

/* ---- mma ---- */

typedef struct {
    const uint32_t *a, *b; /* registers: [lane][4], [lane][2] */
    const float *c;        /* [lane][4] */
    float *out;
    uint32_t type; /* 0 bf16, 1 f16, 2 tf32 */
} mma_params;

KERNEL(fa_test_mma, 32, 1, mma_params, params) {
    uint32_t lane = lane_index(), a[4], b[2];
    float c[4];
    for (uint32_t i = 0; i < 4; i++) a[i] = global_load_u32(params->a + lane * 4 + i);
    for (uint32_t i = 0; i < 2; i++) b[i] = global_load_u32(params->b + lane * 2 + i);
    for (uint32_t i = 0; i < 4; i++) c[i] = global_load_f32(params->c + lane * 4 + i);
    if (params->type == 0) mma_m16n8k16_bf16(c, a, b);
    if (params->type == 1) mma_m16n8k16_f16(c, a, b);
    if (params->type == 2) mma_m16n8k8_tf32(c, a, b);
    for (uint32_t i = 0; i < 4; i++) global_store_f32(params->out + lane * 4 + i, c[i]);
}

/* Bits of an exactly representable small number, scaled to 1/16. */
static uint32_t bits_of(uint32_t type, float exact) {
    uint32_t bits;
    if (type == 1) { /* f16 by hand: |x| is a multiple of 1/16 up to 2 */
        float magnitude = fabsf(exact);
        if (magnitude == 0) return 0;
        int exponent = ilogbf(magnitude);
        uint32_t fraction = (uint32_t)((magnitude / ldexpf(1, exponent) - 1) * 1024);
        return (signbit(exact) ? 0x8000u : 0) | (uint32_t)(exponent + 15) << 10 | fraction;
    }
    memcpy(&bits, &exact, sizeof bits);
    return type == 0 ? bits >> 16 : bits;
}

static void test_mma(void **state) {
    uint32_t *a = fa_emulator_allocate(*state, 128 * 4), *b = fa_emulator_allocate(*state, 64 * 4);
    float *c = fa_emulator_allocate(*state, 128 * 4), *out = fa_emulator_allocate(*state, 128 * 4);
    uint64_t stream = 3;
    for (uint32_t type = 0; type < 3; type++)
        for (uint32_t seed = 0; seed < 4; seed++) {
            float ma[16][16], mb[16][8], mc[16][8]; /* a[m][k], b[k][n] */
            const uint32_t depth = type == 2 ? 8 : 16;
            for (uint32_t i = 0; i < 16; i++)
                for (uint32_t j = 0; j < 16; j++) ma[i][j] = next_small(&stream);
            for (uint32_t i = 0; i < 16; i++)
                for (uint32_t j = 0; j < 8; j++) {
                    mb[i][j] = next_small(&stream);
                    mc[i][j] = next_small(&stream);
                }
            for (uint32_t lane = 0; lane < 32; lane++) {
                uint32_t p = lane / 4, q = lane % 4;
                for (uint32_t j = 0; j < 4; j++) {
                    uint32_t row = p + 8 * (j & 1);
                    a[lane * 4 + j] = type == 2 ? bits_of(2, ma[row][q + 4 * (j >> 1)])
                                                : bits_of(type, ma[row][2 * q + 8 * (j >> 1)]) |
                                                      bits_of(type, ma[row][2 * q + 1 + 8 * (j >> 1)]) << 16;
                    c[lane * 4 + j] = mc[p + 8 * (j >> 1)][2 * q + (j & 1)];
                }
                for (uint32_t j = 0; j < 2; j++)
                    b[lane * 2 + j] =
                        type == 2 ? bits_of(2, mb[q + 4 * j][p])
                                  : bits_of(type, mb[2 * q + 8 * j][p]) | bits_of(type, mb[2 * q + 1 + 8 * j][p]) << 16;
            }
            const mma_params params = {a, b, c, out, type};
            const test_launch launch = {&fa_test_mma, &params, 1, 32, 1, 0};
            fa_emulator_counters counters = expect_success(*state, &launch, seed);
            assert_int_equal(counters.tensor_flops, 2 * 16 * 8 * depth);
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t v = 0; v < 4; v++) {
                    uint32_t row = lane / 4 + 8 * (v >> 1), column = 2 * (lane % 4) + (v & 1);
                    float expected = mc[row][column]; /* multiples of 2^-8: exact in any order */
                    for (uint32_t k = 0; k < depth; k++) expected += ma[row][k] * mb[k][column];
                    assert_true(out[lane * 4 + v] == expected);
                }
        }
    fa_emulator_free(*state, a);
    fa_emulator_free(*state, b);
    fa_emulator_free(*state, c);
    fa_emulator_free(*state, out);
}

/* tf32 operands lose their low 13 bits, without rounding. */
static void test_mma_tf32_truncates(void **state) {
    uint32_t *a = fa_emulator_allocate(*state, 128 * 4), *b = fa_emulator_allocate(*state, 64 * 4);
    float *c = fa_emulator_allocate(*state, 128 * 4), *out = fa_emulator_allocate(*state, 128 * 4);
    for (uint32_t i = 0; i < 128; i++) a[i] = 0x3F801FFFu; /* 1 + almost 2^-10 */
    for (uint32_t i = 0; i < 64; i++) b[i] = 0x3F800000u;
    for (uint32_t i = 0; i < 128; i++) c[i] = 0;
    const mma_params params = {a, b, c, out, 2};
    const test_launch launch = {&fa_test_mma, &params, 1, 32, 1, 0};
    expect_success(*state, &launch, 1);
    for (uint32_t i = 0; i < 128; i++) assert_true(out[i] == 8.0f);
    fa_emulator_free(*state, a);
    fa_emulator_free(*state, b);
    fa_emulator_free(*state, c);
    fa_emulator_free(*state, out);
}

/* ---- Mistakes ---- */

KERNEL(fa_test_divergent, 64, 1, warp_params, params) {
    uint32_t lane = lane_index(), base = shared_base(), r[4];
    switch (params->selector) {
    case 0: /* half of the lanes shuffle, the others vote */
        if (lane < 16)
            global_store_u32(params->out, shuffle_xor_u32(lane, 1));
        else
            global_store_u32(params->out + 1, vote_ballot(1));
        break;
    case 1: /* a lane has returned */
        if (lane == 5) return;
        global_store_u32(params->out, shuffle_xor_u32(lane, 1));
        break;
    case 2: /* the missing lane waits elsewhere for ever */
        if (lane == 7 && warp_index() == 0) {
            mbarrier_init(base, 1);
            mbarrier_wait(base, 0);
        }
        warp_sync();
        break;
    case 3: ldmatrix_x4(r, base + lane * 16 + 8); break;
    case 4: ldmatrix_x4(r, base + lane * 16); break; /* nobody wrote it */
    default:                                         /* stored by one lane and read by the others without warp_sync */
        shared_store_u32(base + lane * 16, lane);
        shared_store_u32(base + lane * 16 + 4, lane);
        shared_store_u32(base + lane * 16 + 8, lane);
        shared_store_u32(base + lane * 16 + 12, lane);
        ldmatrix_x4(r, base + (31 - lane) * 16);
        break;
    }
}

static void test_mistakes(void **state) {
    uint32_t *out = fa_emulator_allocate(*state, 8);
    warp_params params = {out, NULL, 0, 0};
    const test_launch launch = {&fa_test_divergent, &params, 1, 64, 1, 1024};
    const test_launch small = {&fa_test_divergent, &params, 1, 32, 1, 1024};
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "all 32 lanes must take part", "waits in");
    params.selector = 1;
    expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, "all 32 lanes", "return");
    params.selector = 2;
    expect_report(*state, &launch, FA_EMULATOR_DEADLOCK, "waits in warp_sync for the other lanes",
                  "warp 0 lane 7 waits for parity 0 of mbarrier 0x400");
    params.selector = 3;
    expect_report(*state, &small, FA_EMULATOR_RULE_BROKEN, "not a multiple of 16", "ldmatrix_x4");
    params.selector = 4;
    expect_report(*state, &small, FA_EMULATOR_RULE_BROKEN, "that nobody has written", "ldmatrix_x4");
    params.selector = 5;
    expect_report(*state, &small, FA_EMULATOR_RULE_BROKEN, "without a barrier between the two", "ldmatrix_x4");
    fa_emulator_free(*state, out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffle),  cmocka_unit_test(test_vote), cmocka_unit_test(test_ldmatrix),
        cmocka_unit_test(test_stmatrix), cmocka_unit_test(test_mma),  cmocka_unit_test(test_mma_tf32_truncates),
        cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
