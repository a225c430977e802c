/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma against its definition: for every element type, operand source, major and swizzle the tiles are laid out in
 * shared memory by formulas written here, and the register layouts are checked element by element. */
#include <math.h>

#include "test_emulator.h"

#include "instructions/instructions.h"

#define MAX_N 256
#define TILE_BYTES (MAX_N * 128)

typedef struct {
    const uint8_t *a_image, *b_image; /* of shared memory, TILE_BYTES each */
    const uint32_t *a_registers;      /* [thread][4], NULL: a from shared memory */
    const float *c;                   /* [thread][n / 2] */
    float *d;
    uint32_t n, type; /* type: 0 bf16, 1 f16, 2 e4m3 e4m3, 3 e5m2 e5m2, 4 e4m3 e5m2, 5 e5m2 e4m3 */
    uint32_t a_major, b_major, a_swizzle, b_swizzle;
    uint32_t a_leading, a_stride, b_leading, b_stride, accumulate;
} wgmma_params;

/* One of the instructions for a given n; the majors are immediates of the instruction. */
#define SS16(n, type, ta, tb) wgmma_m64k16_ss(n, type, d, a, b, accumulate, ta, tb)
#define ISSUE_SS(n)                                                          \
    if (p->type < 2) {                                                       \
        switch (p->type << 2 | p->a_major << 1 | p->b_major) {               \
        case 0: SS16(n, bf16, K_MAJOR, K_MAJOR); break;                      \
        case 1: SS16(n, bf16, K_MAJOR, MN_MAJOR); break;                     \
        case 2: SS16(n, bf16, MN_MAJOR, K_MAJOR); break;                     \
        case 3: SS16(n, bf16, MN_MAJOR, MN_MAJOR); break;                    \
        case 4: SS16(n, f16, K_MAJOR, K_MAJOR); break;                       \
        case 5: SS16(n, f16, K_MAJOR, MN_MAJOR); break;                      \
        case 6: SS16(n, f16, MN_MAJOR, K_MAJOR); break;                      \
        default: SS16(n, f16, MN_MAJOR, MN_MAJOR); break;                    \
        }                                                                    \
    } else {                                                                 \
        switch (p->type) {                                                   \
        case 2: wgmma_m64k32_ss(n, e4m3, e4m3, d, a, b, accumulate); break;  \
        case 3: wgmma_m64k32_ss(n, e5m2, e5m2, d, a, b, accumulate); break;  \
        case 4: wgmma_m64k32_ss(n, e4m3, e5m2, d, a, b, accumulate); break;  \
        default: wgmma_m64k32_ss(n, e5m2, e4m3, d, a, b, accumulate); break; \
        }                                                                    \
    }
#define ISSUE_RS(n)                                                         \
    switch (p->type << 1 | p->b_major) {                                    \
    case 0: wgmma_m64k16_rs(n, bf16, d, r, b, accumulate, K_MAJOR); break;  \
    case 1: wgmma_m64k16_rs(n, bf16, d, r, b, accumulate, MN_MAJOR); break; \
    case 2: wgmma_m64k16_rs(n, f16, d, r, b, accumulate, K_MAJOR); break;   \
    case 3: wgmma_m64k16_rs(n, f16, d, r, b, accumulate, MN_MAJOR); break;  \
    case 4: wgmma_m64k32_rs(n, e4m3, e4m3, d, r, b, accumulate); break;     \
    case 6: wgmma_m64k32_rs(n, e5m2, e5m2, d, r, b, accumulate); break;     \
    case 8: wgmma_m64k32_rs(n, e4m3, e5m2, d, r, b, accumulate); break;     \
    default: wgmma_m64k32_rs(n, e5m2, e4m3, d, r, b, accumulate); break;    \
    }
#define ISSUE(n)          \
    if (p->a_registers) { \
        ISSUE_RS(n)       \
    } else {              \
        ISSUE_SS(n)       \
    }                     \
    break;

KERNEL(fa_test_wgmma, 128, 1, wgmma_params, p) {
    const uint32_t base = shared_base(), t = thread_index();
    const int accumulate = (int)p->accumulate;
    float d[MAX_N / 2];
    uint32_t r[4];
    for (uint32_t i = 16 * t; i < TILE_BYTES; i += 16 * 128) {
        shared_store_u32x4(base + i, global_load_u32x4(p->a_image + i));
        shared_store_u32x4(base + TILE_BYTES + i, global_load_u32x4(p->b_image + i));
    }
    for (uint32_t i = 0; i < 4; i++) r[i] = p->a_registers ? global_load_u32(p->a_registers + 4 * t + i) : 0;
    for (uint32_t i = 0; i < p->n / 2; i++) d[i] = global_load_f32(p->c + t * (p->n / 2) + i);
    fence_proxy_async_shared();
    block_sync();
    uint64_t a = wgmma_descriptor(base, p->a_leading, p->a_stride, p->a_swizzle);
    uint64_t b = wgmma_descriptor(base + TILE_BYTES, p->b_leading, p->b_stride, p->b_swizzle);
    wgmma_fence();
    switch (p->n) {
    case 8: ISSUE(8)
    case 16: ISSUE(16)
    case 24: ISSUE(24)
    case 64: ISSUE(64)
    case 80: ISSUE(80)
    case 96: ISSUE(96)
    case 128: ISSUE(128)
    case 176: ISSUE(176)
    default: ISSUE(256)
    }
    wgmma_commit_group();
    wgmma_wait_group(0);
    for (uint32_t i = 0; i < p->n / 2; i++) global_store_f32(p->d + t * (p->n / 2) + i, d[i]);
}

/* ---- Layouts by definition ---- */

/* swizzle code of the descriptor: 0 none, 1 128B, 2 64B, 3 32B. Tiles begin at a multiple of 1024 bytes. */
static uint32_t row_bytes(uint32_t swizzle) { return swizzle == 0 ? 16 : 256u >> swizzle; }

static uint32_t permuted(uint32_t swizzle, uint32_t offset) {
    const uint32_t row = offset / row_bytes(swizzle);
    uint32_t chunk = offset % row_bytes(swizzle) / 16;
    if (swizzle == 1) chunk ^= row % 8;
    if (swizzle == 2) chunk ^= row / 2 % 4;
    if (swizzle == 3) chunk ^= row / 4 % 2;
    return row * row_bytes(swizzle) + chunk * 16 + offset % 16;
}

typedef struct {
    uint32_t leading, stride; /* bytes */
} tile_strides;

static tile_strides strides_of(uint32_t major, uint32_t swizzle, uint32_t extent) {
    const uint32_t group = 8 * row_bytes(swizzle); /* eight rows */
    if (major == K_MAJOR) return swizzle ? (tile_strides){16, group} : (tile_strides){extent * 16, 128};
    if (swizzle == 0) return (tile_strides){extent / 8 * 128, 128}; /* leading: next 8 of k, stride: next 8 of mn */
    return (tile_strides){2 * group, group};                        /* leading: next columns, stride: next 8 of k */
}

/* Byte offset of element (mn, k) in the tile; `bytes` per element. */
static uint32_t element_offset(uint32_t major, uint32_t swizzle, tile_strides s, uint32_t mn, uint32_t k,
                               uint32_t bytes) {
    const uint32_t row = row_bytes(swizzle), per16 = 16 / bytes, per_row = row / bytes;
    if (major == K_MAJOR && swizzle) return permuted(swizzle, mn / 8 * s.stride + mn % 8 * row + k * bytes);
    if (major == K_MAJOR) return mn / 8 * s.stride + mn % 8 * 16 + k / per16 * s.leading + k % per16 * bytes;
    if (swizzle)
        return permuted(swizzle, mn / per_row * s.leading + mn % per_row * bytes + k / 8 * s.stride + k % 8 * row);
    return mn / per16 * s.stride + mn % per16 * bytes + k / 8 * s.leading + k % 8 * 16;
}

/* ---- Element formats by definition: small multiples of 1/8, exact in all of them ---- */

static uint32_t encode_element(uint32_t exponent_bits, uint32_t mantissa_bits, float exact) {
    if (exact == 0) return 0;
    float magnitude = fabsf(exact);
    int exponent = ilogbf(magnitude), bias = (1 << (exponent_bits - 1)) - 1;
    uint32_t fraction = (uint32_t)ldexpf(magnitude, (int)mantissa_bits - exponent) - (1u << mantissa_bits);
    return (exact < 0 ? 1u : 0u) << (exponent_bits + mantissa_bits) | (uint32_t)(exponent + bias) << mantissa_bits |
           fraction;
}

static uint32_t encode_as(uint32_t format, float exact) { /* 0 bf16, 1 f16, 2 e4m3, 3 e5m2 */
    static const uint32_t exponents[] = {8, 5, 4, 5}, mantissas[] = {7, 10, 3, 2};
    return encode_element(exponents[format], mantissas[format], exact);
}

/* ---- The comparison ---- */

typedef struct {
    uint32_t n, type, a_major, b_major, a_swizzle, b_swizzle;
    bool registers, accumulate;
} wgmma_case;

static void fill_image(uint8_t *image, const float *matrix, uint32_t extent, uint32_t k_count, uint32_t format,
                       uint32_t major, uint32_t swizzle) {
    const uint32_t bytes = format < 2 ? 2 : 1;
    memset(image, 0x55, TILE_BYTES);
    for (uint32_t mn = 0; mn < extent; mn++)
        for (uint32_t k = 0; k < k_count; k++) {
            uint32_t bits = encode_as(format, matrix[mn * k_count + k]);
            memcpy(image + element_offset(major, swizzle, strides_of(major, swizzle, extent), mn, k, bytes), &bits,
                   bytes);
        }
}

static void try_wgmma(fa_emulator *device, const wgmma_case *c, uint64_t seed) {
    static const uint32_t a_formats[] = {0, 1, 2, 3, 2, 3}, b_formats[] = {0, 1, 2, 3, 3, 2};
    const uint32_t k_count = c->type < 2 ? 16 : 32, per_register = k_count / 8, n = c->n;
    uint64_t stream = seed;
    float a[64 * 32], b[MAX_N * 32];
    for (uint32_t i = 0; i < 64 * k_count; i++) a[i] = (float)((int)(next_random(&stream) % 9) - 4) / 4;
    for (uint32_t i = 0; i < n * k_count; i++) b[i] = (float)((int)(next_random(&stream) % 9) - 4) / 4;
    uint8_t *a_image = fa_emulator_allocate(device, TILE_BYTES), *b_image = fa_emulator_allocate(device, TILE_BYTES);
    uint32_t *registers = fa_emulator_allocate(device, 128 * 16);
    float *accumulators = fa_emulator_allocate(device, 64 * n * 4), *d = fa_emulator_allocate(device, 64 * n * 4);
    fill_image(a_image, a, 64, k_count, a_formats[c->type], c->a_major, c->a_swizzle);
    fill_image(b_image, b, n, k_count, b_formats[c->type], c->b_major, c->b_swizzle);
    for (uint32_t t = 0; t < 128; t++)
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t row = 16 * (t / 32) + t % 32 / 4 + 8 * (j % 2), word = 0;
            for (uint32_t e = 0; e < per_register; e++) {
                uint32_t k = per_register * (t % 4) + e + k_count / 2 * (j / 2);
                word |= encode_as(a_formats[c->type], a[row * k_count + k]) << (32 / per_register * e);
            }
            registers[4 * t + j] = word;
        }
    for (uint32_t i = 0; i < 64 * n; i++) accumulators[i] = (float)(next_random(&stream) % 64);

    const tile_strides sa = strides_of(c->a_major, c->a_swizzle, 64), sb = strides_of(c->b_major, c->b_swizzle, n);
    const wgmma_params params = {a_image,
                                 b_image,
                                 c->registers ? registers : NULL,
                                 accumulators,
                                 d,
                                 n,
                                 c->type,
                                 c->a_major,
                                 c->b_major,
                                 c->a_swizzle,
                                 c->b_swizzle,
                                 sa.leading,
                                 sa.stride,
                                 sb.leading,
                                 sb.stride,
                                 c->accumulate};
    const test_launch launch = {&fa_test_wgmma, &params, 1, 128, 1, 2 * TILE_BYTES};
    fa_emulator_counters counters = expect_success(device, &launch, seed);
    assert_int_equal(counters.tensor_flops, 2ull * 64 * n * k_count);
    for (uint32_t t = 0; t < 128; t++)
        for (uint32_t r = 0; r < n / 2; r++) {
            uint32_t row = 16 * (t / 32) + t % 32 / 4 + 8 * (r / 2 % 2), column = 8 * (r / 4) + 2 * (t % 4) + r % 2;
            float expected = c->accumulate ? accumulators[t * (n / 2) + r] : 0; /* exact in any order */
            for (uint32_t k = 0; k < k_count; k++) expected += a[row * k_count + k] * b[column * k_count + k];
            if (!(d[t * (n / 2) + r] == expected))
                fail_msg("n %u type %u majors %u %u swizzles %u %u registers %d: d[%u][%u] = %g, expected %g", n,
                         c->type, c->a_major, c->b_major, c->a_swizzle, c->b_swizzle, c->registers, row, column,
                         (double)d[t * (n / 2) + r], (double)expected);
        }
    fa_emulator_free(device, a_image);
    fa_emulator_free(device, b_image);
    fa_emulator_free(device, registers);
    fa_emulator_free(device, accumulators);
    fa_emulator_free(device, d);
}

static void test_types_and_layouts(void **state) {
    for (uint32_t type = 0; type < 6; type++)
        for (uint32_t majors = 0; majors < (type < 2 ? 4u : 1u); majors++)
            for (uint32_t swizzles = 0; swizzles < 16; swizzles++)
                for (uint32_t registers = 0; registers < 2; registers++) {
                    if (registers && (majors / 2 || swizzles / 4)) continue;
                    const wgmma_case c = {.n = 64,
                                          .type = type,
                                          .a_major = majors / 2,
                                          .b_major = majors % 2,
                                          .a_swizzle = swizzles / 4,
                                          .b_swizzle = swizzles % 4,
                                          .registers = registers,
                                          .accumulate = swizzles % 2};
                    /* 32 bytes of k do not fit in a 16 byte row, and a row of 32 bytes is one instruction wide */
                    try_wgmma(*state, &c, type * 1000 + majors * 100 + swizzles);
                }
}

static void test_widths(void **state) {
    static const uint32_t widths[] = {8, 16, 24, 80, 96, 128, 176, 256};
    for (uint32_t i = 0; i < 8; i++) {
        const wgmma_case k_major = {.n = widths[i], .type = 0, .a_swizzle = 1, .b_swizzle = 1, .accumulate = true};
        try_wgmma(*state, &k_major, i);
        wgmma_case fp8 = k_major;
        fp8.type = 2;
        fp8.registers = true;
        try_wgmma(*state, &fp8, i);
        if (widths[i] % 32) continue;
        wgmma_case mn_major = k_major; /* columns of 32: rows of 64 bytes */
        mn_major.b_major = MN_MAJOR;
        mn_major.b_swizzle = 2;
        try_wgmma(*state, &mn_major, i);
    }
}

/* ---- Mistakes ---- */

typedef struct {
    float *out;
    uint32_t fault;
} fault_params;

KERNEL(fa_test_wgmma_faults, 160, 1, fault_params, params) {
    const uint32_t base = shared_base(), t = thread_index(), fault = params->fault;
    float d[64];
    uint32_t a[4] = {0, 0, 0, 0};
    for (uint32_t i = 0; i < 64; i++) d[i] = 0;
    if (t < 128)
        for (uint32_t i = 0; i < 16384; i += 2048)
            shared_store_u32x4(base + i + 16 * t, global_load_u32x4(params->out));
    if (fault != 0) fence_proxy_async_shared();
    if (fault != 1) block_sync();
    if (t >= 128) return;
    uint64_t k_major = wgmma_descriptor(base, 16, 1024, SWIZZLE_128B);
    wgmma_fence();
    switch (fault) {
    case 2: wgmma_m64k16_ss(60, bf16, d, k_major, k_major, 0, K_MAJOR, K_MAJOR); break;
    case 3: /* register operand rewritten */
        wgmma_m64k16_rs(64, bf16, d, a, k_major, 0, K_MAJOR);
        a[2] = 1;
        break;
    case 4: wgmma_m64k16_ss(64, bf16, d, k_major | UINT64_C(1) << 49, k_major, 0, K_MAJOR, K_MAJOR); break;
    case 5: wgmma_m64k16_ss(64, bf16, d, k_major | UINT64_C(1) << 55, k_major, 0, K_MAJOR, K_MAJOR); break;
    case 6: /* two shapes on the same accumulators */
        wgmma_m64k16_ss(64, bf16, d, k_major, k_major, 0, K_MAJOR, K_MAJOR);
        wgmma_m64k16_ss(32, bf16, d, k_major, k_major, 0, K_MAJOR, K_MAJOR);
        break;
    case 7: /* operand overwritten while it is being read */
        wgmma_m64k16_ss(64, bf16, d, k_major, k_major, 0, K_MAJOR, K_MAJOR);
        wgmma_commit_group();
        if (t == 0) shared_store_u32(base, 0);
        break;
    case 8: /* the last warp is missing */
        if (warp_index() == 3) return;
        wgmma_m64k16_ss(64, bf16, d, k_major, k_major, 0, K_MAJOR, K_MAJOR);
        break;
    case 9:
        wgmma_m64k16_ss(64, bf16, d, wgmma_descriptor(base + 15 * 1024, 16, 1024, SWIZZLE_128B), k_major, 0, K_MAJOR,
                        K_MAJOR);
        break;
    default: wgmma_m64k16_ss(64, bf16, d, k_major, k_major, 0, K_MAJOR, K_MAJOR); break;
    }
    wgmma_commit_group();
    if (fault != 10) wgmma_wait_group(0);
    global_store_f32(params->out + 4 + t, fault == 10 ? 0 : d[0]);
}

static void test_mistakes(void **state) {
    static const char *const texts[][2] = {{"wgmma operand", "has not executed fence_proxy_async_shared"},
                                           {"wgmma operand", NULL},
                                           {"n = 60", "wgmma"},
                                           {"register operand a", "was written while the wgmma was in flight"},
                                           {"base offset 1", "descriptor"},
                                           {"reserved bits are set", "descriptor"},
                                           {"overlap those of a wgmma in flight", "wgmma"},
                                           {"shared_store: overwrites shared memory", "wgmma_wait_group"},
                                           {"all four warps of the warpgroup", NULL},
                                           {"lie outside the block's shared memory", "wgmma operand a"},
                                           {"the block ends while 1 wgmma", "in flight"}};
    float *out = fa_emulator_allocate(*state, 1024);
    memset(out, 0, 1024);
    fault_params params = {out, 0};
    for (params.fault = 0; params.fault < 11; params.fault++) {
        const test_launch launch = {&fa_test_wgmma_faults, &params, 1, params.fault == 1 ? 128 : 160, 1, 16384};
        if (params.fault == 8) {
            for (uint64_t seed = 0; seed < 8; seed++) {
                fa_emulator_report report = run_kernel(*state, &launch, seed);
                assert_int_not_equal(report.status, FA_EMULATOR_OK);
                if (!strstr(report.text, "warpgroup") || !strstr(report.text, "returned")) fail_msg("%s", report.text);
            }
            continue;
        }
        expect_report(*state, &launch, FA_EMULATOR_RULE_BROKEN, texts[params.fault][0], texts[params.fault][1]);
    }
    fa_emulator_free(*state, out);
}

static void test_wrong_part(void **state) {
    (void)state;
    static const fa_emulator_part parts[] = {FA_EMULATOR_A100, FA_EMULATOR_B200};
    static const char *const texts[] = {"needs sm_90, but emulated-a100 is sm_80", "exists on sm_90a only"};
    for (int i = 0; i < 2; i++) {
        fa_emulator *device = fa_emulator_create(parts[i]);
        float *out = fa_emulator_allocate(device, 1024);
        memset(out, 0, 1024);
        const fault_params params = {out, 99};
        const test_launch launch = {&fa_test_wgmma_faults, &params, 1, 128, 1, 16384};
        expect_report(device, &launch, FA_EMULATOR_RULE_BROKEN, texts[i], NULL);
        fa_emulator_destroy(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_and_layouts),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_wrong_part),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
