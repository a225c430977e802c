/* SPDX-License-Identifier: Apache-2.0 */
/* exp, the step of the online softmax, and softcap of every table that this machine can run, against their definition in
 * kernels.h computed in double precision, with the error bounds of docs/numerics.md. */
#include "support/kernel_tables.h"

/* The bounds that kernels_exp.h states, in units in the last place of the true result: of weights 2^(scale * log2 e * d),
 * where the rounding of the factor counts |scale * d| times. */
#define EXP_ULPS_FUSED(x) (0.95 + 0.25 * fabs(x))
#define EXP_ULPS_PLAIN(x) (1.10 + 1.30 * fabs(x))
#define SOFTCAP_RELATIVE_ERROR 2.8e-7

static double ulp(double x) {
    int exponent;
    (void)frexp(x, &exponent);
    return ldexp(1.0, exponent - 24);
}

/* got = 2^-shift exp(scale * d), or 0 where that is below 2^-126. */
static void check_exp(const fa_cpu_kernels *t, float d, float scale, int shift, float got) {
    double x = (double)scale * (double)d, want = ldexp(exp(x), -shift);
    if (isnan(d)) {
        assert_true(isnan(got));
    } else if (x / log(2) - shift < -126.51) {
        assert_bits_equal(got, 0.0f);
    } else if (x / log(2) - shift >= -126.49 || got != 0.0f) {
        /* The product scale * log2 e is rounded again where scale is not 1. */
        double more = scale == 1.0f ? 0.0 : fabs(x);
        assert_close(got, want,
                     ((t->isa == FA_ISA_PORTABLE ? EXP_ULPS_PLAIN(x) : EXP_ULPS_FUSED(x)) + more) * ulp(want));
    }
}

/* With m = 0 and scores <= 0, softmax_step is exp. */
static void test_exp(void **state) {
    (void)state;
    FOR_EACH_TABLE(t) {
        float s[FA_TILE_KEYS], x[FA_TILE_KEYS];
        int n = 0;
        for (uint64_t u = 0x80000000u; u <= 0xff800000u; u += 1 + random_bits() % 2048) {
            if (u > 0xc3000000u) u += random_bits() % 1048576; /* below -128 all is 0: in larger steps */
            x[n++] = fa_float_from_bits((uint32_t)u);
            if (n < FA_TILE_KEYS) continue;
            n = 0;
            x[0] = nasty[random_bits() % 2]; /* one score is 0, so that m' = 0 whatever the others are */
            float m = -0.0f, l = 0.0f, rescale = -1.0f;
            memcpy(s, x, sizeof s);
            t->softmax_step(s, FA_TILE_KEYS, 1, FA_TILE_KEYS, 1.0f, 0, &m, &l, &rescale);
            assert_true(m == 0.0f && rescale == 1.0f && s[0] == 1.0f);
            for (int i = 0; i < FA_TILE_KEYS; i++) check_exp(t, x[i], 1.0f, 0, s[i]);
        }
    }
}

/* Rows of one kind each, by number: from all masked over ties, far below or above the running maximum, to NaN
 * and infinity in one place. */
static void fill_scores(float *row, int64_t keys, int64_t kind) {
    int64_t chosen = random_bits() % (unsigned)keys;
    for (int64_t j = 0; j < keys; j++) {
        float x = random_float();
        switch (kind % 16) {
        case 0: x = -INFINITY; break;
        case 1: x = j == chosen ? -3.0f : -INFINITY; break;
        case 2: x = random_bits() % 2 ? x : -INFINITY; break;
        case 3: x = 7.25f; break;
        case 4: x = (float)j * 0.75f; break;
        case 5: x = (float)j * -0.75f; break;
        case 6: x = x * 100.0f; break;
        case 7: x = -1e30f; break;
        case 8: x = -FLT_MAX; break;
        case 9: x = j == chosen ? FLT_MAX : -FLT_MAX; break;
        case 10: x = j == chosen ? NAN : x; break;
        case 11: x = j == chosen ? NAN : -INFINITY; break;
        case 12: x = j == chosen ? INFINITY : x; break;
        case 13: x = -1000.0f + x; break;
        case 14: x = x * 0x1p-140f; break;
        default: break;
        }
        row[j] = x;
    }
}

static void check_softmax_step(const fa_cpu_kernels *t, int64_t rows, int64_t keys, float factor, int shift) {
    int64_t stride = keys + 3;
    float *s = aligned_floats(rows * stride + 1), *before = aligned_floats(rows * stride + 1);
    float m[42], l[42], rescale[42], m0[42], l0[42];
    static const float maxima[] = {-INFINITY, -INFINITY, 0.5f, -120.0f, 300.0f, -FLT_MAX, INFINITY};
    fill_canary(s, rows * stride + 1);
    fill_canary(m, 42), fill_canary(l, 42), fill_canary(rescale, 42);
    for (int64_t r = 0; r < rows; r++) {
        fill_scores(s + 1 + r * stride, keys, random_bits());
        m[r] = maxima[random_bits() % 7];
        l[r] = m[r] == -INFINITY ? 0.0f : 1.0f + 10.0f * fabsf(random_float());
    }
    memcpy(before, s, (size_t)(rows * stride + 1) * sizeof *s);
    memcpy(m0, m, sizeof m);
    memcpy(l0, l, sizeof l);

    t->softmax_step(s + 1, stride, rows, keys, factor, shift, m, l, rescale);

    assert_canary(s[0]);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = before + 1 + r * stride, *p = s + 1 + r * stride;
        float new_max = m0[r];
        for (int64_t j = 0; j < keys; j++) new_max = fmaxf(new_max, x[j]); /* fmaxf passes over NaN */
        float base = new_max == -INFINITY ? 0.0f : new_max;
        assert_bits_equal(m[r], new_max);
        check_exp(t, m0[r] - base, factor, 0, rescale[r]);
        double sum = (double)l0[r] * (double)rescale[r];
        for (int64_t j = 0; j < keys; j++) {
            check_exp(t, x[j] - base, factor, shift, p[j]);
            sum += (double)p[j];
        }
        if (isnan(sum))
            assert_true(isnan(l[r]));
        else
            assert_close(l[r], sum, (double)keys * 0x1p-24 * sum);
        for (int64_t j = keys; j < stride; j++) assert_canary(p[j]);
    }
    for (int64_t r = rows; r < 42; r++) {
        assert_canary(m[r]);
        assert_canary(l[r]);
        assert_canary(rescale[r]);
    }
    /* Each row alone gives the same bits. */
    for (int64_t r = 0; r < rows; r++) {
        float scale = NAN;
        t->softmax_step(before + 1 + r * stride, stride, 1, keys, factor, shift, &m0[r], &l0[r], &scale);
        assert_true(same_number(m0[r], m[r]) && same_number(l0[r], l[r]) && same_number(scale, rescale[r]));
        for (int64_t j = 0; j < keys; j++) assert_true(same_number(before[1 + r * stride + j], s[1 + r * stride + j]));
    }
    free(s), free(before);
}

static void test_softmax_step(void **state) {
    (void)state;
    FOR_EACH_TABLE(t)
    for (int64_t rows = 0; rows <= 40; rows++)
        for (int repeat = 0; repeat < 4; repeat++) {
            check_softmax_step(t, rows, FA_TILE_KEYS, 1.0f, 0);
            check_softmax_step(t, rows, t->panel, 0.088388f, 0);
            check_softmax_step(t, rows, t->panel / 2, 0.088388f, 24);
            check_softmax_step(t, rows, 5 * (t->panel / 2), 1.0f, 0);
            check_softmax_step(t, rows, 5 * t->panel, 1.0f, 24);
            check_softmax_step(t, rows, 3 * t->panel, 3.0f, 24);
        }
}

/* Tile by tile, in several orders of size, the state arrives at the softmax of the whole row. */
static void test_softmax_over_tiles(void **state) {
    (void)state;
    enum { TILES = 5 };
    FOR_EACH_TABLE(t)
    for (int64_t kind = 1; kind < 16; kind++) {
        if (kind >= 9 && kind <= 12) continue; /* sums of NaN, or of what float32 differences round away */
        float s[TILES][FA_TILE_KEYS], m = -INFINITY, l = 0.0f, rescale;
        double largest = -HUGE_VAL, sum = 0;
        for (int i = 0; i < TILES; i++) {
            fill_scores(s[i], FA_TILE_KEYS, i == 0 ? 0 : kind);
            for (int j = 0; j < FA_TILE_KEYS; j++)
                if ((double)s[i][j] > largest) largest = (double)s[i][j];
        }
        for (int i = 0; i < TILES; i++)
            for (int j = 0; j < FA_TILE_KEYS; j++) sum += exp((double)s[i][j] - largest);
        for (int i = 0; i < TILES; i++) t->softmax_step(s[i], FA_TILE_KEYS, 1, FA_TILE_KEYS, 1.0f, 0, &m, &l, &rescale);
        assert_close(m, largest, 0.0);
        /* A difference of scores is off by half a unit in the last place of numbers up to 256. */
        assert_close(l, sum, sum * 3e-5);
    }
}

static void check_softcap(const fa_cpu_kernels *t, float x, float cap, float got) {
    if (isnan(x)) {
        assert_true(isnan(got));
        return;
    }
    double want = (double)cap * tanh((double)x / (double)cap);
    /* Where x / cap or the result is subnormal, float32 has fewer digits. */
    assert_close(got, want, SOFTCAP_RELATIVE_ERROR * fabs(want) + ((double)cap + 1) * 0x1p-149);
    if (got != 0.0f) assert_int_equal(signbit(got) != 0, signbit(x) != 0);
    if (isinf(x)) assert_true(fabsf(got) == cap);
    assert_true(fabsf(got) <= cap);
}

static void test_softcap(void **state) {
    (void)state;
    static const float caps[] = {1.0f, 30.0f, 50.0f, 0.1f, 1e-30f, 1e30f, 0x1p-149f, 0x1p-140f, FLT_MIN, FLT_MAX};
    FOR_EACH_TABLE(t) {
        float s[66], x[64];
        /* Every count around the width of a vector, nasty numbers included. */
        for (int64_t count = 0; count <= 64; count++)
            for (int c = 0; c < 10; c++) {
                fill_canary(s, 66);
                for (int64_t i = 0; i < count; i++) {
                    x[i] = i % 3 == 0 ? nasty[random_bits() % (unsigned)NASTY_COUNT] : caps[c] * random_float();
                    s[1 + i] = x[i];
                }
                t->softcap(s + 1, count, caps[c]);
                for (int64_t i = 0; i < count; i++) check_softcap(t, x[i], caps[c], s[1 + i]);
                assert_canary(s[0]);
                for (int64_t i = count + 1; i < 66; i++) assert_canary(s[i]);
            }
        /* All exponents; most finely where tanh bends. */
        for (int c = 0; c < 4; c++) {
            int64_t n = 0;
            for (uint64_t u = random_bits() % 4096; u < 0x7f800000u;
                 u += 1 + random_bits() % (u > 0x3d000000u && u < 0x44000000u ? 2048 : 1048576)) {
                x[n] = fa_float_from_bits((uint32_t)u | random_bits() << 31);
                s[n] = x[n];
                n++;
                if (n < 64) continue;
                n = 0;
                t->softcap(s, 64, caps[c]);
                for (int i = 0; i < 64; i++) check_softcap(t, x[i], caps[c], s[i]);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_softmax_step),
        cmocka_unit_test(test_softmax_over_tiles),
        cmocka_unit_test(test_softcap),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
