/* SPDX-License-Identifier: Apache-2.0 */
/* Cases for GPU kernels, and judging them: see gpu_cases.h. */
#include "gpu_cases.h"

#include "support/judge.h"
#include "support/sweep.h"
#include "support/testing.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* GPU kernels want elements at multiples of their size. */
static layout gpu_layout(layout kind, rng *r) {
    return kind == LAYOUT_UNALIGNED || kind == LAYOUT_ANY ? (layout)rng_range(r, LAYOUT_COMPACT, LAYOUT_REVERSED)
                                                          : kind;
}

/*
 * Kept to inputs on which attention in 16 bits shows its typical error. Where all values that a query sees are the
 * same, the standard kernel is exact by luck: no measure for kernels that round weights before their sum is divided
 * out. Scores of many thousands are kept away as well: exp2(s c - m c) in one operation is off by up to 2^-24 |m c|.
 */
static void gpu_inputs(attention_case *c) {
    if (c->inputs >= INPUT_NEGATIVE_120 || c->inputs == INPUT_NORMAL_30) c->inputs = INPUT_NORMAL_3;
    c->values = VALUES_NORMAL;
    if (c->layout_v == LAYOUT_BROADCAST) c->layout_v = LAYOUT_PERMUTED;
    if (c->v_in_k && c->layout_k == LAYOUT_BROADCAST) c->layout_k = LAYOUT_PERMUTED;
    if (c->v_in_k && c->inputs == INPUT_EQUAL_KEYS) c->inputs = INPUT_NORMAL;
}

static layout tma_layout(layout kind, int64_t columns) {
    return kind == LAYOUT_COMPACT && columns % 8 == 0 ? LAYOUT_COMPACT : LAYOUT_ALIGNED;
}

/* What v3 takes: tensors that TMA can read, and an output that can be written 16 bytes at a time. */
static void fit_to_tma(attention_case *c) {
    if (!c->out_float32) c->head_dim_v = (c->head_dim_v + 7) / 8 * 8;
    if (c->v_in_k && c->head_dim < c->head_dim_v) c->head_dim = c->head_dim_v;
    c->layout_q = tma_layout(c->layout_q, c->head_dim);
    c->layout_k = tma_layout(c->layout_k, c->head_dim);
    c->layout_v = tma_layout(c->layout_v, c->head_dim_v);
    c->layout_out = tma_layout(c->layout_out, c->head_dim_v);
}

static attention_case fit_to_gpu(attention_case c, fa_kernel kernel) {
    rng random = rng_named(c.name, ~c.index), *r = &random;
    layout *layouts[] = {&c.layout_q,      &c.layout_k,      &c.layout_v,    &c.layout_out,      &c.layout_lse,
                         &c.layout_scores, &c.layout_tables, &c.layout_dout, &c.layout_gradients};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) *layouts[i] = gpu_layout(*layouts[i], r);
    if (c.type == FA_ELEMENT_FLOAT32) c.type = rng_chance(r, 0.5) ? FA_ELEMENT_FLOAT16 : FA_ELEMENT_BFLOAT16;
    gpu_inputs(&c);
    c.page_size = 0;
    c.num_splits = 0;
    /* Lengths on a device are unknown to the host, so bias and mask must reach what is stated or else the whole tensor. */
    if (c.bias.given || c.mask.given) {
        c.state_maximum = true;
        if (c.seqlen_q == 0) c.tail_q = 0; /* a longest length of 0 cannot be stated */
        if (c.seqlen_k == 0) c.tail_k = 0;
    }
    if (kernel == FA_KERNEL_V3) fit_to_tma(&c);
    return c;
}

attention_case gpu_random_case(const char *name, uint64_t index, fa_kernel kernel) {
    return fit_to_gpu(random_case(name, index), kernel);
}

attention_case gpu_random_backward_case(const char *name, uint64_t index, fa_kernel kernel) {
    return fit_to_gpu(random_backward_case(name, index), kernel);
}

attention_case gpu_plain_case(const char *name, fa_element type, int64_t head_dim) {
    return (attention_case){.name = name,
                            .index = (uint64_t)head_dim,
                            .type = type,
                            .batch = 1,
                            .heads = 2,
                            .heads_kv = 1,
                            .seqlen_q = 150,
                            .seqlen_k = 200,
                            .head_dim = head_dim,
                            .head_dim_v = head_dim};
}

const fa_kernel gpu_kernels[GPU_KERNELS] = {FA_KERNEL_STANDARD, FA_KERNEL_V1, FA_KERNEL_V2, FA_KERNEL_V3};

static char machine[64]; /* "": GPU 0 */
static bool real_gpu;    /* that is where tests run which choose among the emulated ones */
_Thread_local bool gpu_calls_on_cuda;

/* A test that failed in the middle of a call may have left the environment set: the next must not fail for it. */
void gpu_use_machine(const char *specification) {
    assert_int_equal(unsetenv("FLASHATTN_MACHINE"), 0);
    (void)snprintf(machine, sizeof machine, "%s", specification != NULL ? specification : "");
}

void gpu_choose_gpu_0(void) { real_gpu = true; }

bool gpu_runs(fa_kernel kernel) { return !real_gpu || fa_kernel_supported(kernel) == FA_OK; }

void gpu_choose_machine(const char *name, uint64_t index, fa_kernel kernel) {
    static const char *const parts[] = {"h100", "h200", "a100", "b200"};
    rng r = rng_named(name, index);
    char specification[64];
    if (real_gpu) return;
    uint64_t part = rng_next(&r) % (kernel == FA_KERNEL_V3 ? 2 : 4);
    (void)snprintf(specification, sizeof specification, "emulated-%s:%" PRIu64, parts[part], rng_next(&r));
    gpu_use_machine(specification);
}

const char *gpu_name(void) { return machine[0] == '\0' ? "GPU 0" : machine; }

void gpu_calls_begin(void) {
    gpu_calls_on_cuda = machine[0] == '\0';
    if (!gpu_calls_on_cuda) assert_int_equal(setenv("FLASHATTN_MACHINE", machine, 1), 0);
}

void gpu_calls_end(void) {
    if (!gpu_calls_on_cuda) assert_int_equal(unsetenv("FLASHATTN_MACHINE"), 0);
    gpu_calls_on_cuda = false;
}

static outputs run_on_gpu(attention_call *a, fa_kernel kernel) {
    gpu_calls_begin();
    outputs o = run_call(a, (contender){kernel, FA_ISA_AUTO});
    gpu_calls_end();
    return o;
}

/* Infinite, so that no bound accepts it, where one of the two is NaN or infinite and the other is not the same. */
static double error_of(double x, double expected) {
    if (x == expected || (isnan(x) && isnan(expected))) return 0;
    return isfinite(x) && isfinite(expected) ? fabs(x - expected) : (double)INFINITY;
}

/* Of the finite ones; at least 1. */
static double largest_lse(const yardstick *y, const outputs *o) {
    double largest = 1;
    for (int64_t i = 0; i < tensor_count(o->lse); i++)
        if (isfinite(yardstick_lse(y, i))) largest = fmax(largest, fabs(yardstick_lse(y, i)));
    return largest;
}

/*
 * Every element as right as float32 can be expected to get it with the approximated exponentials of a GPU: weights
 * are off by 2^-22 (ex2.approx) and, where m is the row's maximum, by 2^-24 |m|, since exp2(s c - m c) is one
 * operation on a rounded m c. Decides where the standard kernel happens to be exact.
 */
static bool right_to_float32(const tensor *t, const yardstick *y, double (*reference)(const yardstick *, int64_t),
                             double unit, double smallest) {
    for (int64_t i = 0; i < tensor_count(t); i++) {
        double expected = reference(y, i);
        if (!(error_of(tensor_get(t, i), expected) <= (isfinite(expected) ? unit * fmax(smallest, fabs(expected)) : 0)))
            return false;
    }
    return true;
}

/* An output that is 0 belongs to a row that sees no key, values being normal numbers: there nothing else will do. */
static double largest_error(const tensor *t, const yardstick *y, double (*reference)(const yardstick *, int64_t)) {
    double largest = 0;
    for (int64_t i = 0; i < tensor_count(t); i++) {
        double x = tensor_get(t, i), expected = reference(y, i);
        bool empty = expected == 0 && reference == yardstick_out;
        largest = fmax(largest, empty && x != 0 ? (double)INFINITY : error_of(x, expected));
    }
    return largest;
}

/*
 * The largest errors of the standard kernel on the CPU, in all of DRAWS cases that differ in their numbers alone. Where
 * few elements are looked at, the largest error of one case is a matter of luck, that of many is what such a case shows.
 */
static void errors_of_draws(const attention_case *c, double *out, double *lse) {
    enum { DRAWS = 12 };
    *out = *lse = 0;
    for (uint64_t i = 1; i <= DRAWS; i++) {
        attention_case draw = *c;
        draw.index += i << 40;
        attention_call *a = call_new(&draw);
        call_poison_hidden(a);
        yardstick *y = yardstick_new(a);
        outputs standard = run_call(a, (contender){FA_KERNEL_STANDARD, FA_ISA_AUTO});
        *out = fmax(*out, largest_error(standard.out, y, yardstick_out));
        *lse = fmax(*lse, largest_error(standard.lse, y, yardstick_lse));
        outputs_free(&standard);
        yardstick_free(y);
        call_free(a);
    }
}

/* Whether out, and lse, keep the rule of judge.h by the yardstick of many draws, or are right to float32. */
static bool right_all_the_same(const attention_case *c, const yardstick *y, const outputs *o) {
    double unit = 0x1p-16 * fmax(1, largest_lse(y, o) / 64), out, lse;
    errors_of_draws(c, &out, &lse); /* of which an infinite one is no measure */
    return (right_to_float32(o->out, y, yardstick_out, unit, 0) ||
            (isfinite(out) && largest_error(o->out, y, yardstick_out) <= 2 * out)) &&
           (right_to_float32(o->lse, y, yardstick_lse, unit, 1) ||
            (isfinite(lse) && largest_error(o->lse, y, yardstick_lse) <= 2 * lse));
}

void gpu_judge_call(attention_call *a, fa_kernel kernel) {
    yardstick *y = yardstick_new(a);
    outputs o = run_on_gpu(a, kernel);
    if (kernel == FA_KERNEL_STANDARD) yardstick_to_own_roundings(a, y);
    const char *fault = fault_in_outputs(y, &o);
    if (fault != NULL && kernel != FA_KERNEL_STANDARD && right_all_the_same(&a->c, y, &o)) fault = NULL;
    if (fault != NULL) call_fail(a, "%s on %s: %s", fa_kernel_name(kernel), gpu_name(), fault);
    outputs_free(&o);
    yardstick_free(y);
}

void gpu_judge_case(const attention_case *c, fa_kernel kernel) {
    attention_call *a = call_new(c);
    call_poison_hidden(a);
    gpu_judge_call(a, kernel);
    call_free(a);
}

void gpu_assert_repeatable(const attention_case *c, fa_kernel kernel, int runs) {
    attention_call *a = call_new(c);
    outputs first = run_on_gpu(a, kernel);
    for (int i = 1; i < runs; i++) {
        outputs again = run_on_gpu(a, kernel);
        assert_same_bits(a, &first, &again, "two runs");
        outputs_free(&again);
    }
    outputs_free(&first);
    call_free(a);
}
