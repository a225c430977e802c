/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with few query rows, as in decoding: K and V are read once, where they lie, and converted in registers.
 * Packing them first would cost more than the products. Rows of K and V lie far apart, where no hardware prefetcher
 * follows, so each function asks for the rows that will be read next. Over the vocabulary of kernels_simd.h and
 *
 *     FEW_CELLS                sums that stay in registers: 8 or 16, a multiple of LANES or LANES itself
 *
 * With OPERAND_BFLOAT16 queries, weights and rows are bfloat16, and products go by pairs.
 */
#ifndef FA_CPU_KERNELS_FEW_ROWS_H
#define FA_CPU_KERNELS_FEW_ROWS_H

_Static_assert(FEW_CELLS % LANES == 0 && FEW_CELLS >= 8, "whole vectors of sums");

/* Loops over sums, so that these stay in registers. Not with sanitizers: their checks would make too much of it. */
#if defined(__has_feature)
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#        define UNROLL
#    endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define UNROLL
#endif
#ifndef UNROLL
#    define UNROLL _Pragma("GCC unroll 16")
#endif

/* Asks for a row to be brought to the second-level cache. */
ALWAYS_INLINE void prefetch_row(const void *row, int64_t width, fa_element type) {
    const char *begin = row, *end = element(row, width, type);
    for (; begin < end; begin += 64) __builtin_prefetch(begin, 0, 2);
}

#ifdef OPERAND_BFLOAT16

#    define FEW_OPERAND FA_ELEMENT_BFLOAT16
#    define FEW_STEP (2 * LANES) /* elements of a row in one vector */

/* The elements of a row from the i-th on as operand; not whole: 0 beyond its end. */
ALWAYS_INLINE vector load_step(const void *row, int64_t i, int64_t width, bool whole, fa_element type) {
    (void)type;
    return v_load_pairs(row, i, whole ? i + FEW_STEP : width);
}

ALWAYS_INLINE vector multiply_step(vector a, vector b, vector sum) { return v_dot_pairs(a, b, sum); }

#else

#    define FEW_OPERAND FA_ELEMENT_FLOAT32
#    define FEW_STEP LANES

ALWAYS_INLINE vector load_step(const void *row, int64_t i, int64_t width, bool whole, fa_element type) {
    if (whole) return v_load_element(element(row, i, type), type);
    return v_load_element_part(element(row, i, type), width - i, type);
}

ALWAYS_INLINE vector multiply_step(vector a, vector b, vector sum) { return v_fma(a, b, sum); }

#endif

/* Adds the products of FEW_STEP elements from the i-th on, of `rows` queries with `each` keys. */
ALWAYS_INLINE void dot_step(const int rows, const int each, const bool whole, vector *sum, const void *const *query,
                            const void *const *key, int64_t i, int64_t width, fa_element type) {
    UNROLL
    for (int j = 0; j < each; j++) {
        vector k = load_step(key[j], i, width, whole, type);
        UNROLL
        for (int r = 0; r < rows; r++)
            sum[r * each + j] = multiply_step(load_step(query[r], i, width, whole, FEW_OPERAND), k, sum[r * each + j]);
    }
}

/* The scores of `rows` queries with FEW_CELLS / rows keys, one sum of LANES lanes each. `rows` is a constant where this
 * is inlined, and present <= FEW_CELLS / rows. */
ALWAYS_INLINE void dot_block(const int rows, float *s, int64_t s_stride, const void *q, int64_t q_stride,
                             const void *const *keys, int64_t present, int64_t width, fa_element type) {
    enum { MOST = FEW_CELLS };
    const int each = FEW_CELLS / rows;
    const void *key[MOST], *query[4];
    vector sum[MOST];
    float lane[MOST];
    for (int j = 0; j < each; j++) key[j] = keys[j < present ? j : 0];
    for (int r = 0; r < rows; r++) query[r] = element(q, r * q_stride, FEW_OPERAND);
    for (int i = 0; i < FEW_CELLS; i++) sum[i] = v_set(0.0f);
    int64_t i = 0;
    for (; i + FEW_STEP <= width; i += FEW_STEP) dot_step(rows, each, true, sum, query, key, i, width, type);
    if (i < width) dot_step(rows, each, false, sum, query, key, i, width, type);
    UNROLL
    for (int n = 0; n < FEW_CELLS; n += LANES) v_store(lane + n, v_reduce_add_each(sum + n));
    for (int r = 0; r < rows; r++) {
        if (present == each)
            memcpy(s + r * s_stride, lane + r * each, (size_t)each * sizeof *s); /* a constant size: one move */
        else
            memcpy(s + r * s_stride, lane + r * each, (size_t)present * sizeof *s);
    }
}

/* The arguments of dot_rows for some of its rows. */
typedef struct dot_task {
    float *s;
    const void *q;
    int64_t s_stride, q_stride;
    const void *const *keys, *const *next;
    int64_t count, width;
} dot_task;

ALWAYS_INLINE void dot_some(const int rows, const dot_task *t, fa_element type) {
    const int64_t each = FEW_CELLS / rows;
    for (int64_t j = 0; j < t->count; j += each) {
        int64_t present = minimum(each, t->count - j);
        for (int64_t i = j; i < j + present && t->next != NULL; i++) prefetch_row(t->next[i], t->width, type);
        dot_block(rows, t->s + j, t->s_stride, t->q, t->q_stride, t->keys + j, present, t->width, type);
    }
}

/* The arguments of add_rows for some of its rows. */
typedef struct add_task {
    float *o;
    const void *p;
    const float *row_scale;
    int64_t o_stride, p_stride;
    const void *const *values, *const *next;
    int64_t count, width, next_width;
} add_task;

#ifdef OPERAND_BFLOAT16

/* Adds the products of two keys, j and j + 1, in `vectors` vectors of columns from `first` on. A weight beyond the last key
 * is 0 (kernels.h), and so is what stands in for its row. */
ALWAYS_INLINE void add_step(const int rows, const int vectors, const bool whole, vector *sum, const add_task *t,
                            int64_t j, int64_t first, fa_element type) {
    (void)type;
    vector pair[4];
    for (int r = 0; r < rows; r++) pair[r] = v_set_pair((const uint16_t *)t->p + r * t->p_stride + j);
    UNROLL
    for (int n = 0; n < vectors; n += 2) {
        int64_t i = first + n * LANES, end = whole ? i + FEW_STEP : t->width;
        vector v0, v1;
        v_load_two_rows(t->values[j], j + 1 < t->count ? t->values[j + 1] : NULL, i, end, &v0, &v1);
        UNROLL
        for (int r = 0; r < rows; r++) {
            sum[r * vectors + n] = v_dot_pairs(pair[r], v0, sum[r * vectors + n]);
            sum[r * vectors + n + 1] = v_dot_pairs(pair[r], v1, sum[r * vectors + n + 1]);
        }
    }
}

#    define FEW_DEPTH 2 /* keys of a step */

#else

ALWAYS_INLINE void add_step(const int rows, const int vectors, const bool whole, vector *sum, const add_task *t,
                            int64_t j, int64_t first, fa_element type) {
    UNROLL
    for (int n = 0; n < vectors; n++) {
        vector v = load_step(t->values[j], first + n * LANES, t->width, whole, type);
        UNROLL
        for (int r = 0; r < rows; r++)
            sum[r * vectors + n] = v_fma(v_set(((const float *)t->p)[r * t->p_stride + j]), v, sum[r * vectors + n]);
    }
}

#    define FEW_DEPTH 1

#endif

/* `vectors` vectors of each row of O from column `first` on. Unless they are whole, they are those of one step, and what is
 * beyond `width` is the padding of O. */
ALWAYS_INLINE void add_block(const int rows, const int vectors, const bool whole, const add_task *t, int64_t first,
                             const void *const *next, fa_element type) {
    vector sum[FEW_CELLS];
    for (int i = 0; i < rows * vectors; i++) sum[i] = v_set(0.0f);
    for (int64_t j = 0; j < t->count; j += FEW_DEPTH) {
        for (int64_t i = j; i < j + FEW_DEPTH && i < t->count && next != NULL; i++)
            prefetch_row(next[i], t->next_width, type);
        add_step(rows, vectors, whole, sum, t, j, first, type);
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        float *to = t->o + r * t->o_stride + first;
        UNROLL
        for (int n = 0; n < vectors; n++)
            v_store(to + n * LANES, v_fma(v_set(t->row_scale[r]), v_load(to + n * LANES), sum[r * vectors + n]));
    }
}

ALWAYS_INLINE void add_some(const int rows, const add_task *t, fa_element type) {
    enum { VECTORS = FEW_CELLS / 4, STEP_VECTORS = FEW_STEP / LANES };
    const void *const *next = t->next; /* once */
    int64_t i = 0;
    for (; i + VECTORS * LANES <= t->width; i += VECTORS * LANES, next = NULL)
        add_block(rows, VECTORS, true, t, i, next, type);
    for (; i + FEW_STEP <= t->width; i += FEW_STEP, next = NULL) add_block(rows, STEP_VECTORS, true, t, i, next, type);
    if (i < t->width) add_block(rows, STEP_VECTORS, false, t, i, next, type);
}

/* A function for each number of rows at a time and each type, not inlined: in one function they would be too much for compilers
 * with sanitizers. */
#define FEW_ROWS_FUNCTIONS(rows, name, type)                                                                  \
    static __attribute__((noinline)) void dot_##rows##_##name(const dot_task *t) { dot_some(rows, t, type); } \
    static __attribute__((noinline)) void add_##rows##_##name(const add_task *t) { add_some(rows, t, type); }
#ifndef OPERAND_BFLOAT16
FEW_ROWS_FUNCTIONS(1, float32, FA_ELEMENT_FLOAT32)
FEW_ROWS_FUNCTIONS(2, float32, FA_ELEMENT_FLOAT32)
FEW_ROWS_FUNCTIONS(4, float32, FA_ELEMENT_FLOAT32)
FEW_ROWS_FUNCTIONS(1, float16, FA_ELEMENT_FLOAT16)
FEW_ROWS_FUNCTIONS(2, float16, FA_ELEMENT_FLOAT16)
FEW_ROWS_FUNCTIONS(4, float16, FA_ELEMENT_FLOAT16)
#endif
FEW_ROWS_FUNCTIONS(1, bfloat16, FA_ELEMENT_BFLOAT16)
FEW_ROWS_FUNCTIONS(2, bfloat16, FA_ELEMENT_BFLOAT16)
FEW_ROWS_FUNCTIONS(4, bfloat16, FA_ELEMENT_BFLOAT16)

#ifdef OPERAND_BFLOAT16
#    define FEW_ROWS_TABLE(name)                                                                \
        {                                                                                       \
            [FA_ELEMENT_BFLOAT16] = { name##_1_bfloat16, name##_2_bfloat16, name##_4_bfloat16 } \
        }
#else
#    define FEW_ROWS_TABLE(name)                                                                                     \
        {                                                                                                            \
            [FA_ELEMENT_FLOAT32] = {name##_1_float32, name##_2_float32, name##_4_float32},                           \
            [FA_ELEMENT_FLOAT16] = {name##_1_float16, name##_2_float16, name##_4_float16}, [FA_ELEMENT_BFLOAT16] = { \
                name##_1_bfloat16,                                                                                   \
                name##_2_bfloat16,                                                                                   \
                name##_4_bfloat16                                                                                    \
            }                                                                                                        \
        }
#endif

/* The exponent of the next number of rows: four, two or one. */
static inline int rows_exponent(int64_t rows) { return rows >= 4 ? 2 : rows >= 2 ? 1 : 0; }

static void dot_rows(float *s, int64_t s_stride, const void *q, int64_t q_stride, int64_t rows, const void *const *keys,
                     int64_t count, int64_t width, fa_element type, const void *const *next) {
    static void (*const functions[3][3])(const dot_task *) = FEW_ROWS_TABLE(dot);
    for (int64_t r = 0; r < rows;) {
        int exponent = rows_exponent(rows - r);
        const dot_task t = {s + r * s_stride,
                            element(q, r * q_stride, FEW_OPERAND),
                            s_stride,
                            q_stride,
                            keys,
                            r == 0 ? next : NULL,
                            count,
                            width};
        functions[type][exponent](&t);
        r += 1 << exponent;
    }
}

static void add_rows(float *o, int64_t o_stride, const void *p, int64_t p_stride, int64_t rows,
                     const void *const *values, int64_t count, int64_t width, fa_element type, const float *row_scale,
                     const void *const *next, int64_t next_width) {
    static void (*const functions[3][3])(const add_task *) = FEW_ROWS_TABLE(add);
    for (int64_t r = 0; r < rows;) {
        int exponent = rows_exponent(rows - r);
        const add_task t = {o + r * o_stride,
                            element(p, r * p_stride, FEW_OPERAND),
                            row_scale + r,
                            o_stride,
                            p_stride,
                            values,
                            r == 0 ? next : NULL,
                            count,
                            width,
                            next_width};
        functions[type][exponent](&t);
        r += 1 << exponent;
    }
}

#ifndef OPERAND_BFLOAT16

ALWAYS_INLINE bool any_nonfinite_of(const void *const *rows, int64_t count, int64_t width, fa_element type) {
    vector bits = v_set(0.0f);
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < width; i += LANES) bits = v_max_magnitude(bits, load_in_row(rows[r], i, width, type));
    return v_any_nonfinite(bits);
}

static bool any_nonfinite(const void *const *rows, int64_t count, int64_t width, fa_element type) {
    return FOR_TYPE(type, any_nonfinite_of, rows, count, width);
}

#endif

#endif
