/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU micro-kernels: every function of every table that this machine can run, against its definition in
 * kernels.h computed in double precision, at sizes around every vector and panel width, with rows that end at
 * the end of a mapping, numbers at the edges of float32, and canaries around what is written.
 */
#include "cpu/kernels.h"
#include "testing.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CANARY 0x7fb5a17eu /* a NaN that nothing computes */

/* ---- Tables, numbers, memory ---- */

static const fa_cpu_kernels *tables[6];
static int table_count;
static rng source;

static int set_up(void **state) {
    print_seed(state);
    source = rng_named("cpu kernels", 0);
    for (int isa = FA_ISA_PORTABLE; isa <= FA_ISA_AMX; isa++) {
        fa_status status;
        const fa_cpu_kernels *table = fa_cpu_kernels_select((fa_isa)isa, FA_ELEMENT_FLOAT32, &status);
        if (table != NULL) tables[table_count++] = table;
    }
    print_message("tables:");
    for (int i = 0; i < table_count; i++) print_message(" %s", fa_isa_name(tables[i]->isa));
    print_message("\n");
    return table_count > 0 ? 0 : -1;
}

#define FOR_EACH_TABLE(t)                                               \
    for (int table_index = 0; table_index < table_count; table_index++) \
        for (const fa_cpu_kernels *t = tables[table_index]; t != NULL; t = NULL)

static uint32_t random_bits(void) { return (uint32_t)rng_next(&source); }
static float random_float(void) { return (float)(int32_t)random_bits() * 0x1p-30f; } /* -2 .. 2 */

static const fa_element types[] = {FA_ELEMENT_FLOAT32, FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};

static const float nasty[] = {0.0f,     -0.0f,    1.0f,      -1.0f,    INFINITY,  -INFINITY,  NAN,
                              FLT_MAX,  -FLT_MAX, FLT_MIN,   -FLT_MIN, 0x1p-149f, -0x1p-149f, 0x1.fffffcp-127f,
                              65504.0f, 65519.9f, -65520.0f, 0x1p-24f, 0x1p-25f,  0x1.8p-25f, -1e30f};
#define NASTY_COUNT ((int)(sizeof nasty / sizeof *nasty))

/* `bytes` writable bytes, the last of them `gap` bytes before a page that faults. */
typedef struct guarded {
    char *map, *data;
    size_t mapped;
} guarded;

static guarded guarded_alloc(size_t bytes, size_t gap) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (bytes + gap + page - 1) / page * page;
    guarded g = {.mapped = used + page};
    g.map = mmap(NULL, g.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + used, page, PROT_NONE), 0);
    g.data = g.map + used - gap - bytes;
    return g;
}

static void guarded_free(guarded g) { munmap(g.map, g.mapped); }

static float *aligned_floats(int64_t count) {
    float *p = aligned_alloc(64, ((size_t)count * sizeof *p + 63) / 64 * 64);
    assert_non_null(p);
    return p;
}

static void fill_canary(float *p, int64_t count) {
    for (int64_t i = 0; i < count; i++) p[i] = fa_float_from_bits(CANARY);
}

#define assert_bits_equal(a, b) assert_int_equal(fa_float_bits(a), fa_float_bits(b))
#define assert_canary(p) assert_int_equal(fa_float_bits(p), CANARY)

/* |a - b| <= tolerance, false for NaN. */
#define assert_close(a, b, tolerance)                                                                               \
    do {                                                                                                            \
        double got_ = (double)(a), want_ = (double)(b);                                                             \
        if (!(fabs(got_ - want_) <= (tolerance))) {                                                                 \
            print_message("%s: got %.9g (%a), want %.9g, tolerance %.3g\n", fa_isa_name(t->isa), got_, got_, want_, \
                          (double)(tolerance));                                                                     \
            fail();                                                                                                 \
        }                                                                                                           \
    } while (0)

/* Rows of random elements, a few of them nasty, packed without a gap so that the last one ends `gap` bytes
 * before the end of its mapping (gap 1: no element is aligned). */
typedef struct input {
    guarded memory;
    const void *rows[FA_TILE_KEYS];
    int64_t width;
    fa_element type;
} input;

static input make_input(int64_t count, int64_t width, fa_element type, size_t gap, bool with_nasty) {
    size_t size = (size_t)fa_element_size(type);
    input in = {guarded_alloc((size_t)(count * width) * size, gap), {NULL}, width, type};
    for (int64_t i = 0; i < count * width; i++) {
        float x = with_nasty && random_bits() % 8 == 0 ? nasty[random_bits() % (unsigned)NASTY_COUNT] : random_float();
        fa_element_store(in.memory.data + (size_t)i * size, (double)x, type);
    }
    /* Descending, so that nothing relies on rows lying in order. */
    for (int64_t r = 0; r < count; r++) in.rows[r] = in.memory.data + (size_t)((count - 1 - r) * width) * size;
    return in;
}

static float input_at(const input *in, int64_t r, int64_t i) {
    return (float)fa_element_load((const char *)in->rows[r] + i * fa_element_size(in->type), in->type);
}

static bool same_number(float a, float b) { return isnan(a) ? isnan(b) : fa_float_bits(a) == fa_float_bits(b); }

static const int64_t widths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 80, 128, 255};
#define WIDTH_COUNT ((int)(sizeof widths / sizeof *widths))

/* ---- Rows of the input dtype ---- */

static void test_load_rows(void **state) {
    (void)state;
    FOR_EACH_TABLE(t)
    for (int type = 0; type < 3; type++)
        for (int w = 0; w < WIDTH_COUNT; w++)
            for (size_t gap = 0; gap < 2; gap++)
                for (int64_t count = 0; count <= 5; count += count + 1) {
                    int64_t width = widths[w], stride = width + 3;
                    input in = make_input(count, width, types[type], gap, true);
                    float *dst = aligned_floats(count * stride + 4);
                    fill_canary(dst, count * stride + 4);
                    t->load_rows(dst + 1, stride, in.rows, count, width, types[type], 0.75f);
                    assert_canary(dst[0]);
                    for (int64_t r = 0; r < count; r++)
                        for (int64_t i = 0; i < stride; i++) {
                            float got = dst[1 + r * stride + i];
                            if (i < width)
                                assert_true(same_number(got, 0.75f * input_at(&in, r, i)));
                            else
                                assert_canary(got);
                        }
                    free(dst);
                    guarded_free(in.memory);
                }
}

static void test_pack_keys(void **state) {
    (void)state;
    FOR_EACH_TABLE(t) {
        int64_t p = t->panel, counts[] = {0, 1, 3, p / 2 + 1, p - 1, p, p + 1, FA_TILE_KEYS - 1, FA_TILE_KEYS};
        for (int type = 0; type < 3; type++)
            for (int w = 0; w < WIDTH_COUNT; w++)
                for (int c = 0; c < 9; c++) {
                    int64_t width = widths[w], count = counts[c], panels = (count + p - 1) / p;
                    if (count > FA_TILE_KEYS) continue;
                    input in = make_input(count, width, types[type], (size_t)(c % 2), true);
                    float *b = aligned_floats(panels * p * width + 16);
                    fill_canary(b, panels * p * width + 16);
                    t->pack_keys(b, in.rows, count, width, types[type]);
                    for (int64_t n = 0; n < panels * p; n++)
                        for (int64_t k = 0; k < width; k++) {
                            float got = b[n / p * width * p + k * p + n % p];
                            if (n < count)
                                assert_true(same_number(got, input_at(&in, n, k)));
                            else
                                assert_bits_equal(got, 0.0f);
                        }
                    for (int64_t i = 0; i < 16; i++) assert_canary(b[panels * p * width + i]);
                    free(b);
                    guarded_free(in.memory);
                }
    }
}

static void test_pack_values(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 1, 2, 17, FA_TILE_KEYS - 1, FA_TILE_KEYS};
    FOR_EACH_TABLE(t)
    for (int type = 0; type < 3; type++)
        for (int w = 0; w < WIDTH_COUNT; w++)
            for (int c = 0; c < 6; c++) {
                int64_t p = t->panel, width = widths[w], count = counts[c], panels = (width + p - 1) / p;
                input in = make_input(count, width, types[type], (size_t)(w % 2), c % 2 == 1);
                float *b = aligned_floats(panels * p * count + 16);
                fill_canary(b, panels * p * count + 16);
                bool nonfinite = t->pack_values(b, in.rows, count, width, types[type]), expected = false;
                for (int64_t k = 0; k < count; k++)
                    for (int64_t n = 0; n < panels * p; n++) {
                        float got = b[n / p * count * p + k * p + n % p];
                        if (n < width) {
                            assert_true(same_number(got, input_at(&in, k, n)));
                            expected = expected || !isfinite(got);
                        } else {
                            assert_bits_equal(got, 0.0f);
                        }
                    }
                assert_int_equal(nonfinite, expected);
                for (int64_t i = 0; i < 16; i++) assert_canary(b[panels * p * count + i]);
                free(b);
                guarded_free(in.memory);
            }
}

/* One infinity or NaN anywhere is found; the largest finite number is none. */
static void test_pack_values_finds_nonfinite(void **state) {
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN, -NAN};
    FOR_EACH_TABLE(t)
    for (int type = 0; type < 3; type++)
        for (int64_t width = 1; width <= 70; width += 23) {
            const int64_t count = 3;
            input in = make_input(count, width, types[type], 1, false);
            float *b = aligned_floats((width + t->panel) * count);
            int64_t size = fa_element_size(types[type]);
            double largest = types[type] == FA_ELEMENT_FLOAT16 ? 65504.0 : 0x1.fep127;
            for (int64_t i = 0; i < count * width; i++) {
                char *p = in.memory.data + i * size;
                fa_element_store(p, i % 2 ? largest : -largest, types[type]);
            }
            assert_false(t->pack_values(b, in.rows, count, width, types[type]));
            for (int64_t i = 0; i < count * width; i++) {
                char *p = in.memory.data + i * size;
                fa_element_store(p, (double)odd[i % 4], types[type]);
                assert_true(t->pack_values(b, in.rows, count, width, types[type]));
                fa_element_store(p, 1.0, types[type]);
            }
            free(b);
            guarded_free(in.memory);
        }
}

/* All 65536 patterns of both 16-bit formats, on every way in, against element.h. */
static void test_16_bit_loads(void **state) {
    (void)state;
    uint16_t h[256];
    const void *row = h;
    float *dst = aligned_floats(256 * FA_PANEL_MAX);
    FOR_EACH_TABLE(t)
    for (int type = 1; type < 3; type++)
        for (uint32_t upper = 0; upper < 65536; upper += 256) {
            for (uint32_t i = 0; i < 256; i++) h[i] = (uint16_t)(upper + i);
            for (int way = 0; way < 3; way++) {
                if (way == 0) t->load_rows(dst, 256, &row, 1, 256, types[type], 1.0f);
                if (way == 1) t->pack_keys(dst, &row, 1, 256, types[type]);
                if (way == 2) t->pack_values(dst, &row, 1, 256, types[type]);
                for (int i = 0; i < 256; i++) {
                    float got = dst[way == 1 ? i * t->panel : i];
                    float want = type == 1 ? fa_float_from_float16(h[i]) : fa_float_from_bfloat16(h[i]);
                    if (isnan(want))
                        assert_true(isnan(got));
                    else
                        assert_bits_equal(got, want);
                }
            }
        }
    free(dst);
}

/* element.h's float16 itself: values from the definition, and rounding to the nearest of the neighbours. */
static double float16_value(unsigned h) { /* finite; magnitude only, 0x7c00 counting as 65536 */
    unsigned exponent = h >> 10, fraction = h & 0x3ffu;
    return exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + (int)fraction, (int)exponent - 25);
}

static void test_float16_definition(void **state) {
    (void)state;
    for (unsigned h = 0; h < 0x7c00; h++) {
        assert_true((double)fa_float_from_float16((uint16_t)h) == float16_value(h));
        assert_true((double)fa_float_from_float16((uint16_t)(h | 0x8000u)) == -float16_value(h));
    }
    assert_true(isinf(fa_float_from_float16(0x7c00)) && isnan(fa_float_from_float16(0x7c01)));
    for (uint64_t u = 0; u <= 0x7f800000u; u += 1 + random_bits() % 4096) {
        double x = (double)fa_float_from_bits((uint32_t)u);
        unsigned h = fa_float16_from_float((float)x);
        assert_in_range(h, 0, 0x7c00);
        assert_int_equal(fa_float16_from_float((float)-x), h | 0x8000u);
        if (h > 0) { /* not nearer to the one below; half way only if that one is odd */
            double middle = (float16_value(h - 1) + float16_value(h)) / 2;
            assert_true(x > middle || (x == middle && h % 2 == 0));
        }
        if (h < 0x7c00) {
            double middle = (float16_value(h) + float16_value(h + 1)) / 2;
            assert_true(x < middle || (x == middle && h % 2 == 0));
        }
    }
}

static void check_store(const fa_cpu_kernels *t, const float *src, int64_t width, float factor, fa_element type) {
    unsigned char dst[4 * 256 + 9], want[8];
    int64_t size = fa_element_size(type);
    volatile float by = factor; /* a compiler that knows it to be 1 would not make NaN quiet */
    memset(dst, 0xa5, sizeof dst);
    t->store_row(dst + 1, src, width, factor, type);
    for (int64_t i = 0; i < width; i++) {
        fa_element_store(want, (double)(by * src[i]), type);
        assert_memory_equal(dst + 1 + i * size, want, (size_t)size);
    }
    assert_int_equal(dst[0], 0xa5);
    for (int64_t i = 0; i < 8; i++) assert_int_equal(dst[1 + width * size + i], 0xa5);
}

static void test_store_row(void **state) {
    (void)state;
    FOR_EACH_TABLE(t)
    for (int type = 0; type < 3; type++) {
        for (int w = 0; w < WIDTH_COUNT; w++) {
            guarded src = guarded_alloc((size_t)widths[w] * 4, 0);
            for (int64_t i = 0; i < widths[w]; i++) {
                float x = i % 5 == 0 ? nasty[random_bits() % (unsigned)NASTY_COUNT] : random_float();
                memcpy(src.data + i * 4, &x, 4);
            }
            check_store(t, (const float *)(const void *)src.data, widths[w], 1.0f / 3.0f, types[type]);
            guarded_free(src);
        }
        /* All exponents and signs, subnormals, infinities and NaNs, with a random spread of fractions. */
        float x[256];
        int n = 0;
        for (uint64_t u = random_bits() % 1000; u <= 0xffffffffu; u += 1 + random_bits() % 4096) {
            x[n++] = fa_float_from_bits((uint32_t)u);
            if (n == 256) {
                check_store(t, x, 256, 1.0f, types[type]);
                n = 0;
            }
        }
        /* Around every point where float16 or bfloat16 rounds to even or to odd. */
        for (uint32_t h = 0; h < 65536; h += 32) {
            for (uint32_t i = 0; i < 32; i++) {
                uint32_t tie = types[type] == FA_ELEMENT_FLOAT16
                                   ? fa_float_bits(fa_float_from_float16((uint16_t)(h + i))) + 0x1000u
                                   : ((h + i) << 16) + 0x8000u;
                for (uint32_t j = 0; j < 3; j++) x[3 * i + j] = fa_float_from_bits(tie - 1 + j);
            }
            check_store(t, x, 96, 1.0f, types[type]);
        }
    }
}

/* ---- Matrix multiply ---- */

static void check_multiply(const fa_cpu_kernels *t, int64_t rows, int64_t columns, int64_t depth, bool scaled) {
    int64_t p = t->panel, a_stride = depth + 5, c_stride = columns + 7;
    float *a = aligned_floats(rows * a_stride + 1), *b = aligned_floats(columns * depth + 1);
    float *c = aligned_floats(rows * c_stride + 2), *before = aligned_floats(rows * c_stride + 2);
    float *row_scale = aligned_floats(rows);
    fill_canary(c, rows * c_stride + 2);
    fill_canary(a, rows * a_stride + 1); /* NaN between the rows of A must not be read into a sum */
    for (int64_t r = 0; r < rows; r++) {
        row_scale[r] = random_float();
        for (int64_t k = 0; k < depth; k++) a[1 + r * a_stride + k] = random_float();
        for (int64_t n = 0; scaled && n < columns; n++) c[1 + r * c_stride + n] = random_float();
    }
    for (int64_t i = 0; i < columns * depth; i++) b[i] = random_float();
    memcpy(before, c, (size_t)(rows * c_stride + 2) * sizeof *c);

    t->multiply(c + 1, c_stride, a + 1, a_stride, b, depth, rows, columns, depth, scaled ? row_scale : NULL);

    assert_canary(c[0]);
    assert_canary(c[rows * c_stride + 1]);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t n = 0; n < columns; n++) {
            double sum = 0, magnitude = 0, scale = (double)row_scale[r];
            for (int64_t k = 0; k < depth; k++) {
                double product = (double)a[1 + r * a_stride + k] * (double)b[n / p * depth * p + k * p + n % p];
                sum += product;
                magnitude += fabs(product);
            }
            if (scaled) {
                sum += scale * (double)before[1 + r * c_stride + n];
                magnitude += fabs(scale * (double)before[1 + r * c_stride + n]);
            }
            assert_close(c[1 + r * c_stride + n], sum, (double)(depth + 2) * 0x1p-24 * magnitude);
        }
        for (int64_t n = columns; n < c_stride; n++) assert_canary(c[1 + r * c_stride + n]);
    }
    /* Each row alone gives the same bits. */
    for (int64_t r = 0; r < rows; r++) {
        float *row = before + 1 + r * c_stride;
        t->multiply(row, c_stride, a + 1 + r * a_stride, a_stride, b, depth, 1, columns, depth,
                    scaled ? row_scale + r : NULL);
        for (int64_t n = 0; n < columns; n++) assert_bits_equal(row[n], c[1 + r * c_stride + n]);
    }
    free(a), free(b), free(c), free(before), free(row_scale);
}

static void test_multiply(void **state) {
    (void)state;
    static const int64_t depths[] = {0, 1, 2, 3, 4, 5, 64, 67};
    FOR_EACH_TABLE(t) {
        for (int64_t rows = 0; rows <= 40; rows++)
            for (int d = 0; d < 8; d++)
                for (int scaled = 0; scaled < 2; scaled++) check_multiply(t, rows, FA_TILE_KEYS, depths[d], scaled);
        for (int64_t columns = 0; columns <= 256; columns += t->panel)
            for (int64_t rows = 1; rows <= 13; rows += 2) check_multiply(t, rows, columns, 33, true);
        check_multiply(t, 128, FA_TILE_KEYS, 128, false);
        check_multiply(t, 128, 128, FA_TILE_KEYS, true);
    }
}

/* NaN and infinity stay in their row of A and their column of B. */
static void test_multiply_contains_nan(void **state) {
    (void)state;
    enum { ROWS = 29, DEPTH = 20 };
    FOR_EACH_TABLE(t)
    for (int64_t rows = 1; rows <= ROWS; rows++) {
        int64_t p = t->panel, bad_row = random_bits() % (unsigned)rows, bad_column = random_bits() % FA_TILE_KEYS;
        float *a = aligned_floats(ROWS * DEPTH), *b = aligned_floats(DEPTH * FA_TILE_KEYS);
        float *c = aligned_floats(ROWS * FA_TILE_KEYS);
        for (int64_t i = 0; i < ROWS * DEPTH; i++) a[i] = random_float();
        for (int64_t i = 0; i < DEPTH * FA_TILE_KEYS; i++) b[i] = random_float();
        a[bad_row * DEPTH + random_bits() % DEPTH] = NAN;
        b[bad_column / p * p * DEPTH + random_bits() % DEPTH * p + bad_column % p] = rows % 2 ? NAN : INFINITY;
        t->multiply(c, FA_TILE_KEYS, a, DEPTH, b, DEPTH, rows, FA_TILE_KEYS, DEPTH, NULL);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t n = 0; n < FA_TILE_KEYS; n++) {
                bool finite = isfinite(c[r * FA_TILE_KEYS + n]);
                assert_int_equal(finite, r != bad_row && n != bad_column);
            }
        free(a), free(b), free(c);
    }
}

/* ---- exp, softmax, softcap ---- */

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

/* ---- Which table runs ---- */

static void test_tables(void **state) {
    (void)state;
    FOR_EACH_TABLE(t) {
        assert_true(t->panel > 0 && t->panel <= FA_PANEL_MAX && FA_TILE_KEYS % t->panel == 0);
        assert_int_equal(fa_isa_supported(t->isa), FA_OK);
    }
    assert_string_equal(fa_isa_name(FA_ISA_AUTO), "auto");
    assert_string_equal(fa_isa_name(FA_ISA_AVX512), "avx512");
    assert_string_equal(fa_isa_name((fa_isa)99), "unknown");
}

static void test_select(void **state) {
    (void)state;
    const char *kept = getenv("FLASHATTN_ISA");
    char wish[16] = "";
    if (kept != NULL) strncpy(wish, kept, sizeof wish - 1);
    fa_status status;

    unsetenv("FLASHATTN_ISA");
    assert_ptr_equal(fa_cpu_kernels_select(FA_ISA_AUTO, FA_ELEMENT_FLOAT32, &status), tables[table_count - 1]);
    assert_int_equal(status, FA_OK);
    setenv("FLASHATTN_ISA", "", 1);
    assert_ptr_equal(fa_cpu_kernels_select(FA_ISA_AUTO, FA_ELEMENT_FLOAT32, &status), tables[table_count - 1]);
    setenv("FLASHATTN_ISA", "portable", 1);
    assert_ptr_equal(fa_cpu_kernels_select(FA_ISA_AUTO, FA_ELEMENT_FLOAT32, &status), fa_cpu_kernels_portable());
    assert_int_equal(status, FA_OK);
    /* The options come before the environment. */
    assert_ptr_equal(fa_cpu_kernels_select(tables[table_count - 1]->isa, FA_ELEMENT_FLOAT32, &status),
                     tables[table_count - 1]);

    setenv("FLASHATTN_ISA", "sse9", 1);
    assert_null(fa_cpu_kernels_select(FA_ISA_AUTO, FA_ELEMENT_FLOAT32, &status));
    assert_int_equal(status, FA_INVALID_ARGUMENT);
    assert_string_equal(fa_last_error(),
                        "FLASHATTN_ISA = \"sse9\": must be portable, neon, avx2, avx512, avx512_bf16 or amx");
    assert_int_equal(fa_isa_supported(FA_ISA_AUTO), FA_INVALID_ARGUMENT);
    assert_int_equal(fa_isa_supported(FA_ISA_PORTABLE), FA_OK);

    const char *other = fa_cpu_kernels_neon() == NULL ? "neon" : "avx2"; /* of another architecture */
    fa_isa other_isa = fa_cpu_kernels_neon() == NULL ? FA_ISA_NEON : FA_ISA_AVX2;
    setenv("FLASHATTN_ISA", other, 1);
    assert_null(fa_cpu_kernels_select(FA_ISA_AUTO, FA_ELEMENT_FLOAT32, &status));
    assert_int_equal(status, FA_UNSUPPORTED);
    assert_memory_equal(fa_last_error(), "FLASHATTN_ISA = ", 16);
    assert_null(fa_cpu_kernels_select(other_isa, FA_ELEMENT_FLOAT32, &status));
    assert_int_equal(status, FA_UNSUPPORTED);
    assert_memory_equal(fa_last_error(), "isa = ", 6);

    assert_null(fa_cpu_kernels_select((fa_isa)99, FA_ELEMENT_FLOAT32, &status));
    assert_int_equal(status, FA_INVALID_ARGUMENT);
    assert_string_equal(fa_last_error(), "isa = 99: must be 0 (auto) to 6 (amx)");

    if (kept != NULL)
        setenv("FLASHATTN_ISA", wish, 1);
    else
        unsetenv("FLASHATTN_ISA");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_select),
        cmocka_unit_test(test_load_rows),
        cmocka_unit_test(test_pack_keys),
        cmocka_unit_test(test_pack_values),
        cmocka_unit_test(test_pack_values_finds_nonfinite),
        cmocka_unit_test(test_16_bit_loads),
        cmocka_unit_test(test_float16_definition),
        cmocka_unit_test(test_store_row),
        cmocka_unit_test(test_multiply),
        cmocka_unit_test(test_multiply_contains_nan),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_softmax_step),
        cmocka_unit_test(test_softmax_over_tiles),
        cmocka_unit_test(test_softcap),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
