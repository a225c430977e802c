/* SPDX-License-Identifier: Apache-2.0 */
/* Cases drawn at random: see sweep.h. */
#include "sweep.h"

#include "testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Lengths at and around the tiles of 64 keys and 128 rows, short ones, and any. */
static int64_t random_length(rng *r, int64_t longest) {
    static const int64_t edges[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 191, 193, 256, 257};
    int64_t edge = edges[rng_range(r, 0, (int64_t)(sizeof edges / sizeof edges[0]) - 1)];
    if (rng_chance(r, 0.4) && edge <= longest) return edge;
    return rng_range(r, 1, rng_chance(r, 0.5) ? 40 : longest);
}

static int64_t random_head_dim(rng *r) {
    static const int64_t usual[] = {32, 64, 80, 96, 128, 192, 256};
    if (rng_chance(r, 0.3)) return usual[rng_range(r, 0, 6)];
    return rng_range(r, 1, rng_chance(r, 0.7) ? 70 : 256);
}

static layout random_layout(rng *r, layout last) {
    return rng_chance(r, 0.4) ? LAYOUT_COMPACT : (layout)rng_range(r, 0, (int64_t)last);
}

static score_shape random_shape(rng *r, double given) {
    if (!rng_chance(r, given)) return (score_shape){.given = false};
    return (score_shape){true, rng_chance(r, 0.5), rng_chance(r, 0.5), rng_chance(r, 0.7), rng_chance(r, 0.8)};
}

static void random_scores(attention_case *c, rng *r) {
    static const float scales[] = {0, 1, 0.3f, -0.2f, 1e-30f, 0.01f};
    c->set_scale = rng_chance(r, 0.25);
    c->softmax_scale = scales[rng_range(r, 0, 5)];
    if (rng_chance(r, 0.2)) c->softcap = rng_chance(r, 0.5) ? 10 : 0.5f;
    c->causal = rng_chance(r, 0.5) ? FA_CAUSAL_NONE : (fa_causal)rng_range(r, 1, 2);
    c->window = rng_chance(r, 0.3);
    c->window_left = rng_range(r, -1, rng_chance(r, 0.5) ? 5 : 150);
    c->window_right = rng_range(r, -1, rng_chance(r, 0.5) ? 5 : 150);
    c->alibi = rng_chance(r, 0.2);
    c->alibi_per_batch = rng_chance(r, 0.5);
    c->sink = rng_chance(r, 0.2);
    c->bias = random_shape(r, 0.25);
    c->bias_type = (fa_element)rng_range(r, FA_ELEMENT_FLOAT32, FA_ELEMENT_BFLOAT16);
    c->bias_hides = rng_chance(r, 0.5) ? 0 : rng_uniform(r);
    c->mask = random_shape(r, 0.25);
    c->mask_hides = rng_chance(r, 0.2) ? 1 : rng_uniform(r);
    c->mask_uint8 = rng_chance(r, 0.5);
}

static void random_lengths(attention_case *c, rng *r) {
    static const int64_t pages[] = {1, 2, 7, 16, 17, 64, 100};
    c->varlen_q = rng_chance(r, 0.3);
    c->used_q = rng_chance(r, 0.2);
    c->used_k = rng_chance(r, 0.25);
    c->leftpad = rng_chance(r, 0.2);
    c->tail_q = rng_chance(r, 0.5) ? 0 : rng_range(r, 1, 5);
    c->tail_k = rng_chance(r, 0.5) ? 0 : rng_range(r, 1, 5);
    c->state_maximum = rng_chance(r, 0.2);
    if (rng_chance(r, 0.25))
        c->page_size = pages[rng_range(r, 0, 6)];
    else
        c->varlen_k = rng_chance(r, 0.3);
}

attention_case random_case(const char *name, uint64_t index) {
    attention_case c = {.name = name, .index = index};
    rng random = rng_named(name, index), *r = &random;
    c.type = (fa_element)rng_range(r, FA_ELEMENT_FLOAT32, FA_ELEMENT_BFLOAT16);
    c.out_float32 = rng_chance(r, 0.2);
    c.batch = rng_range(r, 1, 4);
    c.heads_kv = rng_range(r, 1, 3);
    c.heads = c.heads_kv * (rng_chance(r, 0.5) ? 1 : rng_range(r, 1, 5));
    c.head_dim = random_head_dim(r);
    c.head_dim_v = rng_chance(r, 0.6) ? c.head_dim : random_head_dim(r);
    int64_t longest = c.batch * c.heads > 8 || c.head_dim + c.head_dim_v > 250 ? 80 : 270;
    c.seqlen_q = random_length(r, longest);
    c.seqlen_k = random_length(r, longest);
    random_scores(&c, r);
    random_lengths(&c, r);
    c.layout_q = random_layout(r, LAYOUT_ANY);
    c.layout_k = random_layout(r, LAYOUT_ANY);
    c.layout_v = random_layout(r, LAYOUT_ANY);
    c.layout_scores = random_layout(r, LAYOUT_ANY);
    c.layout_tables = random_layout(r, LAYOUT_REVERSED);
    c.layout_out = random_layout(r, LAYOUT_UNALIGNED);
    c.layout_lse = random_layout(r, LAYOUT_UNALIGNED);
    c.v_in_k = c.head_dim_v <= c.head_dim && rng_chance(r, 0.15);
    c.inputs = rng_chance(r, 0.4) ? INPUT_NORMAL : (input_kind)rng_range(r, 0, INPUT_KINDS - 1);
    c.values = rng_chance(r, 0.6) ? VALUES_NORMAL : (value_kind)rng_range(r, 0, VALUE_KINDS - 1);
    if (c.v_in_k && c.values == VALUES_NEAR_LARGEST) c.values = VALUES_NORMAL; /* as keys they would overflow */
    c.no_poison = rng_chance(r, 0.5);
    c.num_threads = (int32_t)rng_range(r, 0, 3);
    c.num_splits = rng_chance(r, 0.6) ? 0 : (int32_t)rng_range(r, 1, 6);
    return c;
}

attention_case random_backward_case(const char *name, uint64_t index) {
    attention_case c = random_case(name, index);
    rng random = rng_named(name, ~index), *r = &random;
    c.page_size = 0;
    if (c.seqlen_q > 140) c.seqlen_q = random_length(r, 140); /* three times the work of forward, and more to judge */
    if (c.seqlen_k > 140) c.seqlen_k = random_length(r, 140);
    if (c.inputs == INPUT_NEAR_LARGEST || c.inputs == INPUT_NEAR_LOWEST) c.inputs = INPUT_NORMAL_3;
    if (c.values == VALUES_NEAR_LARGEST) c.values = VALUES_NORMAL;
    /* dq and dk are summed before the scale multiplies them, and the sums must fit float32: no queries and keys so large
     * that a tiny scale gives them weight. */
    if (c.set_scale && fabsf(c.softmax_scale) < 1e-20f) c.inputs = INPUT_NORMAL;
    c.dout_float32 = rng_chance(r, 0.2);
    c.gradients_float32 = rng_chance(r, 0.2);
    c.layout_dout = random_layout(r, LAYOUT_ANY);
    c.layout_gradients = random_layout(r, LAYOUT_UNALIGNED);
    return c;
}

int64_t test_setting(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoll(text, NULL, 0);
}

static double now(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void sweep(int64_t cases, int64_t seconds, void (*judge)(uint64_t index)) {
    int64_t first = test_setting("FLASHATTN_TEST_FIRST", 0), done = 0;
    double end = now() + (double)test_setting("FLASHATTN_TEST_SECONDS", seconds);
    cases = test_setting("FLASHATTN_TEST_CASES", cases);
    for (; done < cases && now() < end; done++) judge((uint64_t)(first + done));
    (void)printf("%" PRId64 " cases\n", done);
    assert_true(done > 0);
}
