/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU micro-kernels: every function of every table that this machine can run, against its definition in
 * kernels.h computed in double precision, at sizes around every vector and panel width, with rows that end at
 * the end of a mapping, numbers at the edges of float32, and canaries around what is written. Exponentials, softmax and
 * softcap: test_softmax_kernels.c.
 */
#include "support/kernel_tables.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- Numbers, memory ---- */

static const fa_element types[] = {FA_ELEMENT_FLOAT32, FA_ELEMENT_FLOAT16, FA_ELEMENT_BFLOAT16};

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
    assert_string_equal(
        fa_last_error(),
        "FLASHATTN_ISA = \"sse9\": must be portable, neon, avx2, avx512, avx512_bf16, amx or neon_bf16");
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
    assert_string_equal(fa_last_error(), "isa = 99: must be 0 (auto) to 7 (neon_bf16)");

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
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
