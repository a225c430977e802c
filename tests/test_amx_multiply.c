/* SPDX-License-Identifier: Apache-2.0 */
/* The multiply of the AMX kernels in a model of the tile instructions, on any machine, against double precision. */
#define FA_AMX_MODEL "support/amx_model.h"
#include "cpu/kernels_amx_multiply.h"

#include "support/random.h"
#include "support/testing.h"

static rng source;

static int set_up(void **state) {
    print_seed(state);
    source = rng_named("amx multiply", 0);
    return 0;
}

static uint16_t random_bfloat16(void) {
    return fa_bfloat16_from_float((float)(int32_t)(uint32_t)rng_next(&source) * 0x1p-30f);
}

/* Rows, columns and depths of any size, with canaries between and behind the rows of C; B deeper than what is used. */
static void check(int64_t rows, int64_t columns, int64_t depth, int64_t b_depth, int scaled) {
    int64_t a_stride = depth + 32, c_stride = columns + 16;
    uint16_t *a = calloc((size_t)(rows * a_stride + 1), sizeof *a);
    uint16_t *b = calloc((size_t)(columns * b_depth + 1), sizeof *b);
    float *c = calloc((size_t)(rows * c_stride + 16), sizeof *c),
          *before = calloc((size_t)(rows * c_stride + 16), sizeof *c);
    float *row_scale = calloc((size_t)rows + 1, sizeof *row_scale);
    assert_true(a != NULL && b != NULL && c != NULL && before != NULL && row_scale != NULL);
    for (int64_t i = 0; i < rows * a_stride; i++) a[i] = i % a_stride < depth ? random_bfloat16() : 0x7fc0;
    for (int64_t i = 0; i < columns * b_depth; i++) b[i] = random_bfloat16();
    for (int64_t i = 0; i < rows * c_stride + 16; i++) c[i] = before[i] = fa_float_from_bfloat16(random_bfloat16());
    for (int64_t r = 0; r < rows; r++) row_scale[r] = fa_float_from_bfloat16(random_bfloat16());

    for (int64_t i = 0; i < rows * c_stride && scaled; i++)
        if (i % c_stride < columns) c[i] *= row_scale[i / c_stride];
    multiply_blocks(c, c_stride, a, a_stride, b, b_depth, rows, columns, depth, scaled);

    for (int64_t i = 0; i < rows * c_stride + 16; i++) {
        int64_t r = i / c_stride, n = i % c_stride;
        if (r >= rows || n >= columns) {
            assert_true(c[i] == before[i]);
            continue;
        }
        double sum = scaled ? (double)row_scale[r] * (double)before[i] : 0, magnitude = fabs(sum);
        for (int64_t k = 0; k < depth; k++) {
            double x = (double)fa_float_from_bfloat16(a[r * a_stride + k]);
            double y = (double)fa_float_from_bfloat16(b[n / 32 * b_depth * 32 + k / 2 * 64 + n % 32 * 2 + k % 2]);
            sum += x * y;
            magnitude += fabs(x * y);
        }
        if (!(fabs((double)c[i] - sum) <= (double)(depth / 2 + 4) * 0x1p-24 * magnitude + 1e-37))
            fail_msg("%lld rows, %lld columns, depth %lld: c[%lld][%lld] = %.9g, must be %.9g", (long long)rows,
                     (long long)columns, (long long)depth, (long long)r, (long long)n, (double)c[i], sum);
    }
    leave();
    for (int t = 0; t < MODEL_TILES; t++) assert_int_equal(model_tiles[t].rows, 0);
    free(a), free(b), free(c), free(before), free(row_scale);
}

static void every_height(void **state) {
    (void)state;
    for (int64_t rows = 0; rows <= 70; rows++) check(rows, 64, 64, rows % 2 ? 64 : 128, rows % 3 == 0);
}

static void widths_and_depths(void **state) {
    (void)state;
    for (int64_t columns = 0; columns <= 128; columns += 32)
        for (int64_t depth = 0; depth <= 256; depth += 32)
            check(20, columns, depth, depth, (int)((columns + depth) / 32 % 2));
    for (int64_t depth = 2; depth < 100; depth += depth < 40 ? 2 : 14) /* shallow tiles, alone and behind others */
        check(depth % 3 == 0 ? 7 : 37, 64, depth, depth + 2 * (depth % 3), (int)(depth / 2 % 2));
}

/* A row's bits do not depend on its neighbours. */
static void rows_alone(void **state) {
    (void)state;
    enum { ROWS = 45, DEPTH = 96, COLUMNS = 64 };
    static uint16_t a[ROWS * DEPTH], b[COLUMNS * DEPTH];
    static float c[ROWS * COLUMNS], alone[COLUMNS];
    for (int i = 0; i < ROWS * DEPTH; i++) a[i] = random_bfloat16();
    for (int i = 0; i < COLUMNS * DEPTH; i++) b[i] = random_bfloat16();
    multiply_blocks(c, COLUMNS, a, DEPTH, b, DEPTH, ROWS, COLUMNS, DEPTH, 0);
    for (int r = 0; r < ROWS; r++) {
        multiply_blocks(alone, COLUMNS, a + r * DEPTH, DEPTH, b, DEPTH, 1, COLUMNS, DEPTH, 0);
        assert_memory_equal(alone, c + r * COLUMNS, sizeof alone);
    }
    leave();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_height), cmocka_unit_test(widths_and_depths),
                                       cmocka_unit_test(rows_alone)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
