/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tensors of a call hold. Normal inputs miss many errors, so most kinds here are shaped: ties, a
 * running maximum that always or never moves, logits far from zero, one large channel.
 */
#include "attention_case.h"

#include <math.h>

/* Largest finite number. */
static double largest(fa_element type) {
    switch (type) {
    case FA_ELEMENT_FLOAT16: return 65504;
    case FA_ELEMENT_BFLOAT16: return 0x1.fep127;
    case FA_ELEMENT_FLOAT32: return 0x1.fffffep127;
    case FA_ELEMENT_FLOAT64: return 0x1.fffffffffffffp1023;
    }
    return 0;
}

static void fill_normal(tensor *t, double factor, rng *r) {
    int64_t count = tensor_count(t);
    for (int64_t i = 0; i < count; i++) tensor_put(t, i, factor * rng_normal(r));
}

/* One row of k or q, by the key's or query's place. */
typedef void row_filler(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length);

static void for_each_query(attention_call *a, row_filler *fill) {
    for (int64_t n = 0; n < a->c.batch; n++) {
        call_sequence s = call_sequence_of(a, n);
        for (int64_t h = 0; h < a->c.heads; h++)
            for (int64_t i = 0; i < s.q_used; i++) fill(a, a->q, call_q_number(a, a->q, n, h, i), i, s.q_used);
    }
}

static void for_each_key(attention_call *a, tensor *t, row_filler *fill) {
    for (int64_t n = 0; n < a->c.batch; n++) {
        call_sequence s = call_sequence_of(a, n);
        for (int64_t h = 0; h < a->c.heads_kv; h++)
            for (int64_t j = s.pad; j < s.keys; j++)
                fill(a, t, call_k_number(a, t, n, h, j), j - s.pad, s.keys - s.pad);
    }
}

/* A positive direction that all rows share, uneven from channel to channel: 0.5 .. 1.5. Its square sums to
 * about 1.08 * head_dim. */
static double direction(int64_t channel) { return 0.5 + (double)(channel * 37 % 101) / 100; }

static double direction_square(int64_t head_dim) {
    double sum = 0;
    for (int64_t i = 0; i < head_dim; i++) sum += direction(i) * direction(i);
    return sum;
}

/* Every key of every sequence the same. */
static void equal_key(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)place, (void)length;
    rng r = rng_seeded(a->seed);
    for (int64_t i = 0; i < a->c.head_dim; i++) tensor_put(t, first + i, rng_normal(&r));
}

static void along_direction(attention_call *a, tensor *t, int64_t first, double size, double noise) {
    for (int64_t i = 0; i < a->c.head_dim; i++)
        tensor_put(t, first + i, size * direction(i) + noise * rng_normal(&a->random));
}

static void aligned_query(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)place, (void)length;
    along_direction(a, t, first, 1, 0.01);
}

static double scale_of(const attention_call *a) {
    return a->c.set_scale ? (double)a->c.softmax_scale : 1 / sqrt((double)a->c.head_dim);
}

/* Scores 0.4 apart, up to a span of 160. */
static double score_step(int64_t length) { return (double)length * 0.4 > 160 ? 160 / (double)length : 0.4; }

static void rising_key(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    double per_unit = fabs(scale_of(a)) * direction_square(a->c.head_dim) + 1e-30;
    double step = score_step(length) / per_unit;
    along_direction(a, t, first, step * (double)place, step * 0.01);
}

static void falling_key(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    rising_key(a, t, first, length - 1 - place, length);
}

static void dominant_key(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    int64_t chosen = (int64_t)(a->seed % (uint64_t)length);
    along_direction(a, t, first, place == chosen ? 6 : 0, 0.5);
}

/* q.k = -amount on average, 1 % of it apart. */
static double negative_amount(input_kind kind) {
    return kind == INPUT_NEGATIVE_120 ? 120 : kind == INPUT_NEGATIVE_250 ? 250 : 245000;
}

static void negative_query(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)place, (void)length;
    along_direction(a, t, first, sqrt(negative_amount(a->c.inputs) / direction_square(a->c.head_dim)), 0.01);
}

static void negative_key(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)place, (void)length;
    double size = sqrt(negative_amount(a->c.inputs) / direction_square(a->c.head_dim));
    along_direction(a, t, first, -size, 0.01);
}

/* q.k = head_dim * 2^e * 2^f * {3 or 4}, exact in float32 and below the largest number: ties or a gap so wide
 * that one weight is 0. */
static int near_exponent(const attention_call *a) { return ilogb(largest(a->c.type) / (4 * (double)a->c.head_dim)); }

static void near_query(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)place, (void)length;
    for (int64_t i = 0; i < a->c.head_dim; i++) tensor_put(t, first + i, ldexp(1, near_exponent(a) / 2));
}

static void near_key(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)place, (void)length;
    int exponent = near_exponent(a);
    double sign = a->c.inputs == INPUT_NEAR_LOWEST ? -1 : 1;
    double size = ldexp(sign * (double)rng_range(&a->random, 3, 4), exponent - exponent / 2);
    for (int64_t i = 0; i < a->c.head_dim; i++) tensor_put(t, first + i, size);
}

static void constant_value(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)place, (void)length;
    rng r = rng_seeded(a->seed + 1);
    for (int64_t i = 0; i < a->c.head_dim_v; i++) tensor_put(t, first + i, 1 + rng_normal(&r));
}

static void one_hot_value(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)length;
    for (int64_t i = 0; i < a->c.head_dim_v; i++) tensor_put(t, first + i, i == place % a->c.head_dim_v ? 1 : 0);
}

static void large_value(attention_call *a, tensor *t, int64_t first, int64_t place, int64_t length) {
    (void)place;
    /* float16 is summed in float32 and has room; the others share their range with it. */
    bool any = a->c.values == VALUES_LARGEST || a->c.type == FA_ELEMENT_FLOAT16;
    double bound = largest(a->c.type) / (any ? 1.01 : 4 * (double)length);
    for (int64_t i = 0; i < a->c.head_dim_v; i++)
        tensor_put(t, first + i, bound * (0.5 + rng_uniform(&a->random) / 2) * (i % 3 == 0 ? -1 : 1));
}

static void fill_queries_and_keys(attention_call *a) {
    static const double factors[] = {1, 3, 30};
    double factor = a->c.inputs <= INPUT_NORMAL_30 ? factors[a->c.inputs] : 1;
    fill_normal(a->q, factor, &a->random);
    fill_normal(a->k, factor, &a->random);
    if (!a->c.v_in_k) fill_normal(a->v, factor, &a->random);
    switch (a->c.inputs) {
    case INPUT_EQUAL_KEYS: for_each_key(a, a->k, equal_key); break;
    case INPUT_DOMINANT_KEY:
        for_each_query(a, aligned_query);
        for_each_key(a, a->k, dominant_key);
        break;
    case INPUT_RISING:
        for_each_query(a, aligned_query);
        for_each_key(a, a->k, rising_key);
        break;
    case INPUT_FALLING:
        for_each_query(a, aligned_query);
        for_each_key(a, a->k, falling_key);
        break;
    case INPUT_NEGATIVE_120:
    case INPUT_NEGATIVE_250:
    case INPUT_NEGATIVE_245000:
        for_each_query(a, negative_query);
        for_each_key(a, a->k, negative_key);
        break;
    case INPUT_NEAR_LARGEST:
    case INPUT_NEAR_LOWEST:
        a->options.set |= FA_SET_SOFTMAX_SCALE;
        a->options.softmax_scale = 1;
        for_each_query(a, near_query);
        for_each_key(a, a->k, near_key);
        break;
    case INPUT_OUTLIER_CHANNEL: {
        int64_t channel = rng_range(&a->random, 0, 255);
        tensor_enlarge_channel(a->q, channel);
        tensor_enlarge_channel(a->k, channel);
        if (!a->c.v_in_k) tensor_enlarge_channel(a->v, channel);
        break;
    }
    default: break;
    }
}

static void fill_values(attention_call *a) {
    static row_filler *const fillers[] = {NULL, constant_value, one_hot_value,
                                          large_value, [VALUES_LARGEST] = large_value};
    if (fillers[a->c.values] != NULL) for_each_key(a, a->v, fillers[a->c.values]);
}

static void fill_scores(attention_call *a) {
    rng *r = &a->random;
    int64_t count = a->bias == NULL ? 0 : tensor_count(a->bias);
    for (int64_t i = 0; i < count; i++)
        tensor_put(a->bias, i, rng_chance(r, a->c.bias_hides) ? -(double)INFINITY : 2 * rng_normal(r));
    count = a->mask == NULL ? 0 : tensor_count(a->mask);
    for (int64_t i = 0; i < count; i++)
        tensor_put_int(a->mask, i, rng_chance(r, a->c.mask_hides) ? 0 : a->c.mask_uint8 ? rng_range(r, 1, 255) : 1);
    count = a->alibi == NULL ? 0 : tensor_count(a->alibi);
    for (int64_t i = 0; i < count; i++) tensor_put(a->alibi, i, exp2(-8 * rng_uniform(r)));
    count = a->sink == NULL ? 0 : tensor_count(a->sink);
    for (int64_t i = 0; i < count; i++) tensor_put(a->sink, i, 2 * rng_normal(r));
}

void call_fill(attention_call *a) {
    fill_queries_and_keys(a);
    fill_values(a);
    fill_scores(a);
}
