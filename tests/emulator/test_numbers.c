/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions and special functions of the vocabulary against slow definitions: the nearest representable number, ties
 * to even, found by trying all of them. */
#include <math.h>

#include "test_emulator.h"

#include "instructions/instructions.h"

typedef struct {
    const float *in;
    uint32_t *out;
    uint32_t count, what;
} number_params;

KERNEL(fa_test_numbers, 32, 1, number_params, params) {
    for (uint32_t i = thread_index(); i < params->count; i += 32) {
        float x = global_load_f32(params->in + i);
        uint32_t bits = 0;
        switch (params->what) {
        case 0: bits = pack_bf16x2(x, 1.0f); break;
        case 1: bits = pack_f16x2(x, 1.0f); break;
        case 2: bits = pack_e4m3x4(x, 0, 0, 0); break;
        case 3: bits = pack_e5m2x4(x, 0, 0, 0); break;
        case 4: bits = round_tf32(x); break;
        case 5: bits = float_bits(exp2_approx(x)); break;
        case 6: bits = float_bits(log2_approx(x)); break;
        case 7: bits = float_bits(rcp_approx(x)); break;
        case 8: bits = float_bits(rsqrt_approx(x)); break;
        default: bits = float_bits(tanh_approx(x)); break;
        }
        global_store_u32(params->out + i, bits);
    }
}

enum { COUNT = 20000 };

static void compute(fa_emulator *device, const float *in, uint32_t *out, uint32_t what) {
    const number_params params = {in, out, COUNT, what};
    const test_launch launch = {&fa_test_numbers, &params, 1, 32, 1, 0};
    expect_success(device, &launch, 1);
}

/* Numbers of every size, and the places where rounding is delicate. */
static void fill_numbers(float *in) {
    static const float special[] = {0,         -0.0f,      INFINITY, -INFINITY, NAN,        448,        449,
                                    464,       465,        480,      -1e9f,     57344,      61440,      61441,
                                    65504,     65519,      65520,    0x1p-24f,  0x1p-25f,   0x1.8p-25f, 0x1p-9f,
                                    0x1p-10f,  0x1.8p-10f, 0x1p-16f, 0x1p-17f,  0x1.004p0f, 0x1.00cp0f, 0x1.01p0f,
                                    0x1.03p0f, 1e-40f,     0x1p-149f};
    const uint32_t specials = sizeof special / sizeof *special;
    uint64_t stream = 5;
    memcpy(in, special, sizeof special);
    for (uint32_t i = specials; i < COUNT; i++) {
        int exponent = (int)(next_random(&stream) % 40) - 24;
        uint32_t fraction =
            next_random(&stream) % 4 ? next_random(&stream) & 0xFFFF : (next_random(&stream) & 0xFF) << 8;
        in[i] = ldexpf(1 + (float)fraction / 65536.0f, exponent) * (next_random(&stream) & 1 ? 1.0f : -1.0f);
    }
}

typedef struct {
    int exponent_bits, mantissa_bits;
    bool infinity; /* the largest exponent is for infinity and NaN */
    double largest;
    bool saturates;
} number_format;

static double decode(const number_format *f, uint32_t bits) {
    int exponent = (int)(bits >> f->mantissa_bits) & ((1 << f->exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << f->mantissa_bits) - 1));
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    return exponent == 0 ? ldexp(mantissa, 1 - bias - f->mantissa_bits)
                         : ldexp(mantissa + ldexp(1, f->mantissa_bits), exponent - bias - f->mantissa_bits);
}

/* The magnitudes grow with their encodings: the neighbours of x are found by bisection. */
static uint32_t nearest(const number_format *f, float x) {
    uint32_t sign = signbit(x) ? 1u << (f->exponent_bits + f->mantissa_bits) : 0;
    double magnitude = fabs((double)x);
    uint32_t low = 0, high = (1u << (f->exponent_bits + f->mantissa_bits)) - 1, largest = 0;
    while (low < high) { /* the encoding of the largest finite number */
        uint32_t middle = (low + high + 1) / 2;
        if (decode(f, middle) <= f->largest)
            low = middle;
        else
            high = middle - 1;
    }
    largest = low;
    low = 0, high = largest;
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (decode(f, middle) <= magnitude)
            low = middle;
        else
            high = middle - 1;
    }
    double below = decode(f, low), above = decode(f, low + 1); /* one past the largest: the next binade */
    bool up = magnitude - below > above - magnitude || (magnitude - below == above - magnitude && (low & 1));
    if (low == largest && f->saturates) up = false;
    return sign | (up ? low + 1 : low);
}

static void check_format(fa_emulator *device, const float *in, uint32_t *out, uint32_t what, const number_format *f,
                         uint32_t nan_bits) {
    const uint32_t mask = (2u << (f->exponent_bits + f->mantissa_bits)) - 1;
    compute(device, in, out, what);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t expected = isnan(in[i]) ? nan_bits : nearest(f, in[i]);
        if ((out[i] & mask) != expected)
            fail_msg("format %u of %a: 0x%x, expected 0x%x", what, (double)in[i], out[i] & mask, expected);
    }
}

static void test_conversions(void **state) {
    static const number_format bf16 = {8, 7, true, 0x1.FEp127, false}, f16 = {5, 10, true, 65504, false},
                               e4m3 = {4, 3, false, 448, true}, e5m2 = {5, 2, true, 57344, true};
    float *in = fa_emulator_allocate(*state, COUNT * 4);
    uint32_t *out = fa_emulator_allocate(*state, COUNT * 4);
    fill_numbers(in);
    check_format(*state, in, out, 0, &bf16, 0x7FFF);
    for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(out[i] >> 16, 0x3F80);
    check_format(*state, in, out, 1, &f16, 0x7FFF);
    for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(out[i] >> 16, 0x3C00);
    check_format(*state, in, out, 2, &e4m3, 0x7F);
    check_format(*state, in, out, 3, &e5m2, 0x7F);
    fa_emulator_free(*state, in);
    fa_emulator_free(*state, out);
}

static void test_tf32(void **state) {
    float *in = fa_emulator_allocate(*state, COUNT * 4);
    uint32_t *out = fa_emulator_allocate(*state, COUNT * 4);
    fill_numbers(in);
    in[COUNT - 1] = 0x1.001p0f; /* halfway between 1 and 1 + 2^-10 .. : 0x1.002p0 is the next after 0x1.0p0 + 2^-11 */
    in[COUNT - 2] = -0x1.001p0f;
    compute(*state, in, out, 4);
    for (uint32_t i = 0; i < COUNT; i++) {
        float got;
        memcpy(&got, &out[i], sizeof got);
        if (isnan(in[i])) {
            assert_true(isnan(got));
            continue;
        }
        if (isinf(in[i]) || in[i] == 0) {
            assert_true(got == in[i]);
            continue;
        }
        assert_int_equal(out[i] & 0x1FFF, 0);
        double unit = ldexp(1, (ilogbf(in[i]) < -126 ? -126 : ilogbf(in[i])) - 10), steps = fabs((double)in[i]) / unit;
        double rounded = floor(steps + 0.5) * unit; /* ties away from zero */
        assert_true(fabs((double)got) == rounded && signbit(got) == signbit(in[i]));
    }
    fa_emulator_free(*state, in);
    fa_emulator_free(*state, out);
}

static double special_function(uint32_t what, double x) {
    switch (what) {
    case 5: return exp2(x);
    case 6: return log2(x);
    case 7: return 1 / x;
    case 8: return 1 / sqrt(x);
    default: return tanh(x);
    }
}

static void test_special_functions(void **state) {
    /* The hardware's bounds, relative; log2 absolute near 1. */
    static const double bounds[] = {0x1p-22, 0x1p-22, 0x1p-22, 0x1p-22, 0x1p-10};
    float *in = fa_emulator_allocate(*state, COUNT * 4);
    float *out = fa_emulator_allocate(*state, COUNT * 4);
    fill_numbers(in);
    for (uint32_t what = 5; what <= 9; what++) {
        compute(*state, in, (uint32_t *)(void *)out, what);
        for (uint32_t i = 0; i < COUNT; i++) {
            double x = fabs((double)in[i]) < 0x1p-126 && what < 9 ? copysign(0, (double)in[i]) : (double)in[i];
            double expected = special_function(what, x);
            if (fabs(expected) < 0x1p-126 && what < 9) expected = 0;
            if (isnan(expected)) {
                assert_true(isnan(out[i]));
            } else if (isinf(expected) || fabs(expected) > 0x1.FFFFFEp127) {
                assert_true(isinf(out[i]) && (out[i] > 0) == (expected > 0));
            } else {
                double bound = bounds[what - 5] * fmax(fabs(expected), what == 6 ? 1 : 0);
                if (!(fabs((double)out[i] - expected) <= bound))
                    fail_msg("function %u of %a: %a, expected %a", what, (double)in[i], (double)out[i], expected);
            }
        }
    }
    fa_emulator_free(*state, in);
    fa_emulator_free(*state, out);
}

/* Unpacking, permuting and the layout of packed values. */
KERNEL(fa_test_unpack, 32, 1, number_params, params) {
    if (thread_index() != 0) return;
    f32x2 b = unpack_bf16x2(pack_bf16x2(1.5f, -3.0f)), h = unpack_f16x2(pack_f16x2(0.25f, -1024.0f));
    global_store_u32(params->out, float_bits(b.x));
    global_store_u32(params->out + 1, float_bits(b.y));
    global_store_u32(params->out + 2, float_bits(h.x));
    global_store_u32(params->out + 3, float_bits(h.y));
    global_store_u32(params->out + 4, pack_e4m3x4(1, 2, -1, 0));
    global_store_u32(params->out + 5, pack_e5m2x4(1, 2, -1, 0));
    global_store_u32(params->out + 6, byte_permute(0x33221100u, 0x77665544u, 0x5410u));
    global_store_u32(params->out + 7, byte_permute(0x33221100u, 0x77665544u, 0x7632u));
    global_store_f32(params->out + 8, bits_float(0x40490FDBu));
}

static void test_unpack(void **state) {
    uint32_t *out = fa_emulator_allocate(*state, 36);
    const number_params params = {NULL, out, 0, 0};
    const test_launch launch = {&fa_test_unpack, &params, 1, 32, 1, 0};
    static const uint32_t expected[] = {0x3FC00000, 0xC0400000, 0x3E800000, 0xC4800000, 0x00B84038,
                                        0x00BC403C, 0x55441100, 0x77663322, 0x40490FDB};
    expect_success(*state, &launch, 1);
    assert_memory_equal(out, expected, sizeof expected);
    fa_emulator_free(*state, out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_tf32),
        cmocka_unit_test(test_special_functions),
        cmocka_unit_test(test_unpack),
    };
    return cmocka_run_group_tests(tests, create_device, destroy_device);
}
