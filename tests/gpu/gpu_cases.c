/* SPDX-License-Identifier: Apache-2.0 */
/* Cases for GPU kernels, and judging them: see gpu_cases.h. */
#include "gpu_cases.h"

#include "support/judge.h"
#include "support/sweep.h"
#include "support/testing.h"

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
}

attention_case gpu_random_case(const char *name, uint64_t index) {
    attention_case c = random_case(name, index);
    rng random = rng_named(name, ~index), *r = &random;
    layout *layouts[] = {&c.layout_q,   &c.layout_k,      &c.layout_v,     &c.layout_out,
                         &c.layout_lse, &c.layout_scores, &c.layout_tables};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) *layouts[i] = gpu_layout(*layouts[i], r);
    if (c.type == FA_ELEMENT_FLOAT32) c.type = rng_chance(r, 0.5) ? FA_ELEMENT_FLOAT16 : FA_ELEMENT_BFLOAT16;
    gpu_inputs(&c);
    if (c.seqlen_q < 16) c.seqlen_q += 16; /* few rows: the standard kernel's error is a matter of luck */
    c.page_size = 0;
    c.num_splits = 0;
    /* Lengths on a device are unknown to the host, so bias and mask must reach what is stated or else the whole tensor. */
    if (c.bias.given || c.mask.given) c.state_maximum = true;
    return c;
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

const fa_kernel gpu_kernels[GPU_KERNELS] = {FA_KERNEL_STANDARD, FA_KERNEL_V1, FA_KERNEL_V2};

static char machine[64]; /* "": GPU 0 */
_Thread_local bool gpu_forward_on_cuda;

void gpu_use_machine(const char *specification) {
    (void)snprintf(machine, sizeof machine, "%s", specification != NULL ? specification : "");
}

static const char *gpu_name(void) { return machine[0] == '\0' ? "GPU 0" : machine; }

static outputs run_on_gpu(attention_call *a, fa_kernel kernel) {
    gpu_forward_on_cuda = machine[0] == '\0';
    if (!gpu_forward_on_cuda) assert_int_equal(setenv("FLASHATTN_MACHINE", machine, 1), 0);
    outputs o = run_call(a, (contender){kernel, FA_ISA_AUTO});
    if (!gpu_forward_on_cuda) assert_int_equal(unsetenv("FLASHATTN_MACHINE"), 0);
    gpu_forward_on_cuda = false;
    return o;
}

/* Infinite, so that no bound accepts it, where one of the two is NaN or infinite and the other is not the same. */
static double error_of(double x, double expected) {
    if (x == expected || (isnan(x) && isnan(expected))) return 0;
    return isfinite(x) && isfinite(expected) ? fabs(x - expected) : (double)INFINITY;
}

/*
 * Every element as right as float32 can be expected to get it with the approximated exponentials of a GPU: weights
 * are off by 2^-22 (ex2.approx) and 2^-24 |m c|, where |m c| stays below 2^7 for the inputs above. Decides where the
 * standard kernel happens to be exact.
 */
static bool right_to_float32(const yardstick *y, const outputs *o) {
    for (int64_t i = 0; i < tensor_count(o->out); i++) {
        double expected = yardstick_out(y, i);
        if (!(error_of(tensor_get(o->out, i), expected) <= (isfinite(expected) ? 0x1p-16 * fabs(expected) : 0)))
            return false;
    }
    for (int64_t i = 0; i < tensor_count(o->lse); i++) {
        double expected = yardstick_lse(y, i), size = isfinite(expected) ? fmax(1, fabs(expected)) : 1;
        if (!(error_of(tensor_get(o->lse, i), expected) <= 0x1p-16 * size)) return false;
    }
    return true;
}

static double largest_error(const tensor *t, const yardstick *y, double (*reference)(const yardstick *, int64_t)) {
    double largest = 0;
    for (int64_t i = 0; i < tensor_count(t); i++) largest = fmax(largest, error_of(tensor_get(t, i), reference(y, i)));
    return largest;
}

/*
 * The GPU's standard kernel does the CPU's roundings in another order. Two such errors are alike on the whole, but
 * the largest of one may be more than twice the largest of the other: four times is granted.
 */
static bool as_right_as_standard(attention_call *a, const yardstick *y, const outputs *o) {
    outputs standard = run_call(a, (contender){FA_KERNEL_STANDARD, FA_ISA_AUTO});
    bool right = isfinite(largest_error(o->out, y, yardstick_out)) &&
                 isfinite(largest_error(o->lse, y, yardstick_lse)) &&
                 largest_error(o->out, y, yardstick_out) <= 4 * largest_error(standard.out, y, yardstick_out) &&
                 largest_error(o->lse, y, yardstick_lse) <= 4 * largest_error(standard.lse, y, yardstick_lse);
    outputs_free(&standard);
    return right;
}

void gpu_judge_case(const attention_case *c, fa_kernel kernel) {
    attention_call *a = call_new(c);
    call_poison_hidden(a);
    yardstick *y = yardstick_new(a);
    outputs o = run_on_gpu(a, kernel);
    const char *fault = fault_in_outputs(y, &o);
    if (fault != NULL && right_to_float32(y, &o)) fault = NULL;
    if (fault != NULL && kernel == FA_KERNEL_STANDARD && as_right_as_standard(a, y, &o)) fault = NULL;
    if (fault != NULL) call_fail(a, "%s on %s: %s", fa_kernel_name(kernel), gpu_name(), fault);
    outputs_free(&o);
    yardstick_free(y);
    call_free(a);
}

void gpu_assert_repeatable(const attention_case *c, fa_kernel kernel) {
    attention_call *a = call_new(c);
    outputs first = run_on_gpu(a, kernel), second = run_on_gpu(a, kernel);
    assert_same_bits(a, &first, &second, "two runs");
    outputs_free(&first);
    outputs_free(&second);
    call_free(a);
}
