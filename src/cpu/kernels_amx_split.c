/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The micro-kernels in AMX for float32 and float16 inputs: a number is the sum of three bfloat16 numbers, its parts, or of
 * two if it comes from float16, and tiles multiply the parts. What is left out, and the order of the sums, keep the error
 * within that of float32 multiply-adds (docs/numerics.md, "Products of parts"). Everything but the products is that of
 * kernels_avx512.c.
 *
 * A is float32. multiply() splits 32 rows of it at a time, into tiles that lie one after another:
 *
 *     a_parts[(k / 32 * 3 + part) * 1024 + row * 32 + k % 32]
 *
 * B is split when it is packed. Where kernels.h has one element (k, n), in steps of two, there are now the parts of 32
 * elements of depth one after another:
 *
 *     b[n / 32 * 32 * K * parts + (k / 32 * parts + part) * 1024 + k % 32 / 2 * 64 + n % 32 * 2 + k % 2]
 *
 * A block of 32 x 32 sums takes, for each 32 of depth, 24 tile products and 16 loads (float32: six products of parts), or 20
 * and 14 (float16: five), of 16 and some 8 cycles. The products alone bound it: 1024 / 6 and 1024 / 5 operations per cycle,
 * 2.7 and 3.2 times those of two float32 multiply-adds of 16 lanes; docs/performance.md has what is reached.
 */
#include "kernels.h"

/* As in kernels_amx.c. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512BF16__) && (defined(__AMX_BF16__) || defined(__AMXBF16__) || defined(FA_AMX_MODEL))

#    include "kernels_avx512.h"

#    define OPERAND_PARTS

#    include "kernels_simd.h"

#    include "kernels_amx_tiles.h"
#    include "problem.h"

#    define DEPTH AMX_DEPTH
#    define A_PARTS 3
#    define PART (AMX_ROWS * AMX_DEPTH) /* numbers of one part in a step of A, or of a panel of B */
#    define MOST_DEPTH (FA_HEAD_DIM_MAX > FA_TILE_KEYS ? FA_HEAD_DIM_MAX : FA_TILE_KEYS)

_Static_assert(PANEL == AMX_PANEL && AMX_ROWS == AMX_PANEL, "panels are pairs of tiles");
_Static_assert(MOST_DEPTH % DEPTH == 0 && FA_DEPTH_MAX >= DEPTH, "depths are whole tiles");

/* ---- Parts ---- */

/* The bits that bfloat16 keeps. */
#    define UPPER _mm512_set1_epi32((int)0xffff0000)

#    pragma GCC diagnostic push
#    pragma GCC diagnostic ignored "-Wsign-conversion" /* in GCC's macro for _mm512_range_ps in debug builds */

/* x to bfloat16, to the nearest and ties away from zero; but what would become infinite, infinity and NaN too, to the
 * largest finite number. So each part but the last is finite, and the last, which takes what is left, is infinite or NaN if
 * x is. */
ALWAYS_INLINE vector leading_part(vector x) {
    enum { SMALLER_MAGNITUDE_SIGN_OF_FIRST = 2 };
    vector largest = _mm512_castsi512_ps(_mm512_set1_epi32(0x7f7f7fff)); /* the last before the tie with 2^128 */
    __m512i bits = _mm512_castps_si512(_mm512_range_ps(x, largest, SMALLER_MAGNITUDE_SIGN_OF_FIRST));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), UPPER));
}

#    pragma GCC diagnostic pop

/* The parts of 32 elements of a row of A. */
ALWAYS_INLINE void store_row_parts(uint16_t *to, vector x, vector y) {
    for (int part = 0; part < A_PARTS; part++) {
        bool last = part == A_PARTS - 1;
        vector x_part = last ? x : leading_part(x), y_part = last ? y : leading_part(y);
        _mm512_store_si512(to + part * PART, (__m512i)_mm512_cvtne2ps_pbh(y_part, x_part)); /* exact, or a flushed 0 */
        x = v_sub(x, x_part);
        y = v_sub(y, y_part);
    }
}

/* The parts of 16 columns of B, for an even element of depth and the odd one after it. */
ALWAYS_INLINE void store_column_parts(const int parts, uint16_t *to, vector even, vector odd) {
    for (int part = 0; part < parts; part++) {
        bool last = part == parts - 1;
        vector even_part = last ? even : leading_part(even), odd_part = last ? odd : leading_part(odd);
        __m512i lower = _mm512_srli_epi32(_mm512_castps_si512(even_part), 16);
        __m512i upper = _mm512_and_si512(_mm512_castps_si512(odd_part), UPPER);
        _mm512_storeu_si512(to + part * PART, _mm512_or_si512(lower, upper));
        even = v_sub(even, even_part);
        odd = v_sub(odd, odd_part);
    }
}

/* ---- Packing ---- */

static int64_t padded(int64_t depth) { return (depth + DEPTH - 1) / DEPTH * DEPTH; }

static void load_queries(void *dst, int64_t dst_stride, const void *const *rows, int64_t count, int64_t width,
                         fa_element type, float factor) {
    load_rows(dst, dst_stride, rows, count, width, type, factor);
    for (int64_t r = 0; r < count && width < dst_stride; r++)
        memset((float *)dst + r * dst_stride + width, 0, (size_t)(dst_stride - width) * sizeof(float));
}

ALWAYS_INLINE void split_keys(const int parts, uint16_t *b, const void *const *rows, int64_t count, int64_t width,
                              fa_element type) {
    int64_t depth = padded(width);
    for (int64_t n = 0; n < (count + PANEL - 1) / PANEL * PANEL; n += LANES)
        for (int64_t k = 0; k < depth; k += LANES) {
            vector block[LANES];
            for (int i = 0; i < LANES; i++)
                block[i] = n + i < count ? load_in_row(rows[n + i], k, width, type) : v_set(0.0f);
            v_transpose(block);
            uint16_t *to = b + n / PANEL * PANEL * depth * parts + k / DEPTH * parts * PART + k % DEPTH * PANEL;
            for (int i = 0; i < LANES; i += 2)
                store_column_parts(parts, to + i * PANEL + n % PANEL * 2, block[i], block[i + 1]);
        }
}

ALWAYS_INLINE bool split_values(const int parts, uint16_t *b, const void *const *rows, int64_t count, int64_t width,
                                fa_element type) {
    int64_t depth = padded(count);
    vector bits = v_set(0.0f);
    for (int64_t k = 0; k < depth; k += 2)
        for (int64_t n = 0; n < width; n += PANEL) {
            uint16_t *to = b + n * depth * parts + k / DEPTH * parts * PART + k % DEPTH * PANEL;
            for (int64_t i = 0; i < PANEL; i += LANES) {
                vector even = k < count ? load_in_row(rows[k], n + i, width, type) : v_set(0.0f);
                vector odd = k + 1 < count ? load_in_row(rows[k + 1], n + i, width, type) : v_set(0.0f);
                bits = v_max_magnitude(v_max_magnitude(bits, even), odd);
                store_column_parts(parts, to + 2 * i, even, odd);
            }
        }
    return v_any_nonfinite(bits);
}

/* ---- Multiply ---- */

/* The rows' next 32 elements. */
ALWAYS_INLINE void split_step(uint16_t *to, const float *a, int64_t a_stride, int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        store_row_parts(to + r * DEPTH, v_load(a + r * a_stride), v_load(a + r * a_stride + LANES));
    TILE_FENCE();
}

ALWAYS_INLINE void load_left(const bool two, const uint16_t *a) {
    TILE_LOAD(4, a, DEPTH * 2);
    if (two) TILE_LOAD(5, a + PART / 2, DEPTH * 2);
}

ALWAYS_INLINE void load_right(const uint16_t *b) {
    TILE_STREAM(6, b, PANEL * 4);
    TILE_STREAM(7, b + PANEL, PANEL * 4);
}

ALWAYS_INLINE void add_products(const bool two) {
    TILE_DOT(0, 4, 6);
    TILE_DOT(1, 4, 7);
    if (!two) return;
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
}

/* Up to 32 rows, or up to 16 without `two`, by a panel, in tiles 0 to 3. The products of the first parts come last, so that
 * the others are added up while the sums are small and round little. `from`, if not NULL: A, to be split on the way, which
 * the processor can do beside the tiles. */
ALWAYS_INLINE void multiply_panel(const int parts, const bool two, uint16_t *a, const uint16_t *b, int64_t depth,
                                  const float *from, int64_t from_stride, int64_t rows) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (two) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < depth; k += DEPTH) {
        uint16_t *left = a + k / DEPTH * A_PARTS * PART;
        const uint16_t *right = b + k / DEPTH * parts * PART;
        if (from != NULL) split_step(left, from + k, from_stride, rows);
        load_left(two, left);
        if (parts == 3) {
            load_right(right + 2 * PART);
            add_products(two); /* first part of A, third of B */
        }
        load_right(right + PART);
        add_products(two); /* first, second */
        load_left(two, left + PART);
        add_products(two); /* second, second */
        load_right(right);
        add_products(two); /* second, first */
        load_left(two, left + 2 * PART);
        add_products(two); /* third, first */
    }
    for (int64_t k = 0; k < depth; k += DEPTH) {
        load_left(two, a + k / DEPTH * A_PARTS * PART);
        load_right(b + k / DEPTH * parts * PART);
        add_products(two);
    }
}

ALWAYS_INLINE void store_sums(const bool two, float *c, int64_t c_stride) {
    TILE_STORE(0, c, c_stride * 4);
    TILE_STORE(1, c + 16, c_stride * 4);
    if (two) {
        TILE_STORE(2, c + 16 * c_stride, c_stride * 4);
        TILE_STORE(3, c + 16 * c_stride + 16, c_stride * 4);
    }
    TILE_FENCE();
}

/* A row of A times 16 columns of B in float32. */
ALWAYS_INLINE vector multiply_again(const int parts, const float *a, const uint16_t *b, int64_t depth) {
    vector sum = v_set(0.0f);
    for (int64_t k = 0; k < depth; k += 2) {
        const uint16_t *pairs = b + k / DEPTH * parts * PART + k % DEPTH * PANEL;
        vector even = v_set(0.0f), odd = v_set(0.0f);
        for (int part = parts - 1; part >= 0; part--) { /* the smallest first: exact */
            __m512i words = _mm512_loadu_si512(pairs + part * PART);
            even = v_add(_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)), even);
            odd = v_add(_mm512_castsi512_ps(_mm512_and_si512(words, UPPER)), odd);
        }
        sum = v_fma(v_set(a[k + 1]), odd, v_fma(v_set(a[k]), even, sum));
    }
    return sum;
}

/* Sums that are infinite or NaN are computed again without parts: an infinite operand has made NaN of them, or products of
 * first parts have overflowed though theirs do not. The other sums keep their bits. */
ALWAYS_INLINE void repair_nonfinite(const int parts, float *c, int64_t c_stride, const float *a, int64_t a_stride,
                                    const uint16_t *b, int64_t rows, int64_t depth) {
    enum { QUIET_NAN = 0x01, PLUS_INFINITY = 0x08, MINUS_INFINITY = 0x10, SIGNALING_NAN = 0x80 };
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < PANEL; n += LANES) {
            float *at = c + r * c_stride + n;
            __mmask16 bad =
                _mm512_fpclass_ps_mask(v_load(at), QUIET_NAN | PLUS_INFINITY | MINUS_INFINITY | SIGNALING_NAN);
            if (bad != 0) _mm512_mask_storeu_ps(at, bad, multiply_again(parts, a + r * a_stride, b + n * 2, depth));
        }
}

/* C[r] = row_scale[r] * C[r] + sums[r] */
ALWAYS_INLINE void add_sums(float *c, int64_t c_stride, const float *sums, int64_t rows, const float *row_scale) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < PANEL; n += LANES) {
            float *at = c + r * c_stride + n;
            v_store(at, v_fma(v_set(row_scale[r]), v_load(at), v_load(sums + r * PANEL + n)));
        }
}

ALWAYS_INLINE void multiply_parts(const int parts, float *c, int64_t c_stride, const float *a, int64_t a_stride,
                                  const uint16_t *b, int64_t b_depth, int64_t rows, int64_t columns, int64_t depth,
                                  const float *row_scale) {
    _Alignas(64) uint16_t a_parts[MOST_DEPTH / DEPTH * A_PARTS * PART]; /* 48 KiB */
    _Alignas(64) float sums[AMX_ROWS * PANEL];
    for (int64_t r = 0; r < rows; r += AMX_ROWS) {
        int64_t height = minimum(rows - r, AMX_ROWS);
        const float *from = a + r * a_stride;
        configure((int)minimum(height, 16), (int)(height - minimum(height, 16)), AMX_STEPS);
        for (int64_t n = 0; n < columns; n += PANEL) {
            const float *split = n == 0 ? from : NULL;
            const uint16_t *panel = b + n * b_depth * parts;
            float *to = c + r * c_stride + n, *tiles = row_scale == NULL ? to : sums;
            int64_t tiles_stride = row_scale == NULL ? c_stride : PANEL;
            TILE_FENCE();
            if (height > 16) {
                multiply_panel(parts, true, a_parts, panel, depth, split, a_stride, height);
                store_sums(true, tiles, tiles_stride);
            } else {
                multiply_panel(parts, false, a_parts, panel, depth, split, a_stride, height);
                store_sums(false, tiles, tiles_stride);
            }
            if (row_scale == NULL)
                repair_nonfinite(parts, to, c_stride, from, a_stride, panel, height, depth);
            else
                add_sums(to, c_stride, sums, height, row_scale + r);
        }
    }
}

/* ---- Tables ---- */

#    define SPLIT_KERNELS(name, parts, element)                                                                 \
        static void pack_keys_##name(void *b, const void *const *rows, int64_t count, int64_t width,            \
                                     fa_element type) {                                                         \
            (void)type;                                                                                         \
            split_keys(parts, b, rows, count, width, element);                                                  \
        }                                                                                                       \
        static bool pack_values_##name(void *b, const void *const *rows, int64_t count, int64_t width,          \
                                       fa_element type) {                                                       \
            (void)type;                                                                                         \
            return split_values(parts, b, rows, count, width, element);                                         \
        }                                                                                                       \
        static void multiply_##name(float *c, int64_t c_stride, const void *a, int64_t a_stride, const void *b, \
                                    int64_t b_depth, int64_t rows, int64_t columns, int64_t depth,              \
                                    const float *row_scale) {                                                   \
            multiply_parts(parts, c, c_stride, a, a_stride, b, b_depth, rows, columns, depth, row_scale);       \
        }                                                                                                       \
        const fa_cpu_kernels *fa_cpu_kernels_amx_##name(void) {                                                 \
            static const fa_cpu_kernels table = {.isa = FA_ISA_AMX,                                             \
                                                 .panel = PANEL,                                                \
                                                 .operand = FA_ELEMENT_FLOAT32,                                 \
                                                 .b_bytes = 2 * (parts),                                        \
                                                 .step = 2,                                                     \
                                                 .depth = DEPTH,                                                \
                                                 .strip = AMX_ROWS,                                             \
                                                 .load_rows = load_rows,                                        \
                                                 .load_queries = load_queries,                                  \
                                                 .pack_keys = pack_keys_##name,                                 \
                                                 .pack_values = pack_values_##name,                             \
                                                 .multiply = multiply_##name,                                   \
                                                 .leave = leave,                                                \
                                                 .softmax_step = softmax_step,                                  \
                                                 .softcap = softcap,                                            \
                                                 .store_row = store_row};                                       \
            return &table;                                                                                      \
        }

SPLIT_KERNELS(float32, 3, FA_ELEMENT_FLOAT32)
SPLIT_KERNELS(float16, 2, FA_ELEMENT_FLOAT16)

#else

const fa_cpu_kernels *fa_cpu_kernels_amx_float32(void) { return NULL; }
const fa_cpu_kernels *fa_cpu_kernels_amx_float16(void) { return NULL; }

#endif
