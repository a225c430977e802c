/* SPDX-License-Identifier: Apache-2.0 */
/* Judging the gradients of GPU kernels: see gpu_backward_cases.h. */
#include "gpu_backward_cases.h"

#include "support/testing.h"

#include <math.h>

const fa_kernel gpu_backward_kernels[GPU_BACKWARD_KERNELS] = {FA_KERNEL_V2, FA_KERNEL_V3};

gradients gpu_run_backward(backward_call *b, fa_kernel kernel) {
    gpu_calls_begin();
    gradients g = run_backward(b, (contender){kernel, FA_ISA_AUTO});
    gpu_calls_end();
    return g;
}

/* What the gradients are judged by. On a GPU a dout in float32 is one that has been rounded to q's dtype. */
static backward_yardstick *yardstick_of(backward_call *b) {
    if (!b->a->c.dout_float32) return backward_yardstick_new(b);
    backward_call rounded = *b;
    rounded.dout = tensor_rounded(b->dout, b->a->c.type, &b->a->random);
    backward_yardstick *y = backward_yardstick_new(&rounded);
    tensor_free(rounded.dout);
    return y;
}

/*
 * The largest errors of the standard kernel in DRAWS cases more that differ in their numbers alone. Where few elements are looked at, the
 * largest error of one case is a matter of luck, that of many is what such a case shows.
 */
static void measure_draws(const attention_case *c, backward_yardstick *y) {
    enum { DRAWS = 12 };
    for (uint64_t i = 1; i <= DRAWS; i++) {
        attention_case draw = *c;
        draw.index += i << 40;
        backward_call *b = backward_call_new(&draw);
        backward_call_poison(b);
        backward_yardstick *another = yardstick_of(b);
        for (int g = 0; g < GRADIENTS; g++) {
            norms *n = &y->of[g].standard;
            const norms *m = &another->of[g].standard;
            if (isfinite(m->max)) n->max = fmax(n->max, m->max);
            if (isfinite(m->frobenius)) n->frobenius = fmax(n->frobenius, m->frobenius);
        }
        backward_yardstick_free(another);
        backward_call_free(b);
    }
}

void gpu_judge_backward_call(backward_call *b, fa_kernel kernel) {
    backward_yardstick *y = yardstick_of(b);
    const contender who = {kernel, FA_ISA_AUTO};
    gradients g = gpu_run_backward(b, kernel);
    const char *wrong = fault_in_gradients(b, y, who, &g);
    if (wrong != NULL) {
        measure_draws(&b->a->c, y);
        wrong = fault_in_gradients(b, y, who, &g);
    }
    if (wrong != NULL) call_fail(b->a, "%s backward on %s: %s", fa_kernel_name(kernel), gpu_name(), wrong);
    gradients_free(&g);
    backward_yardstick_free(y);
}

void gpu_judge_backward_case(const attention_case *c, fa_kernel kernel) {
    backward_call *b = backward_call_new(c);
    backward_call_poison(b);
    b->a->options.deterministic = (int32_t)(c->index % 2);
    gpu_judge_backward_call(b, kernel);
    backward_call_free(b);
}

void gpu_assert_backward_repeatable(const attention_case *c, fa_kernel kernel, int runs, void (*prepare)(int run)) {
    backward_call *b = backward_call_new(c);
    b->a->options.deterministic = 1;
    if (prepare != NULL) prepare(0);
    gradients first = gpu_run_backward(b, kernel);
    for (int i = 1; i < runs; i++) {
        if (prepare != NULL) prepare(i);
        gradients again = gpu_run_backward(b, kernel);
        assert_same_gradients(b, &first, &again, "two runs");
        gradients_free(&again);
    }
    gradients_free(&first);
    backward_call_free(b);
}
