/* SPDX-License-Identifier: Apache-2.0 */
/* Judging the gradients of GPU kernels, on the machine of gpu_cases.h. */
#ifndef FLASHATTN_TEST_GPU_BACKWARD_CASES_H
#define FLASHATTN_TEST_GPU_BACKWARD_CASES_H

#include "gpu_cases.h"
#include "support/judge_backward.h"

/* GPU kernels with a backward pass. */
enum { GPU_BACKWARD_KERNELS = 2 };
extern const fa_kernel gpu_backward_kernels[GPU_BACKWARD_KERNELS];

/* Runs the call and fails the test unless it keeps the rule of judge_backward.h, measured by the standard kernel in the inputs' dtype.
 * Every second case (by its index) is deterministic. */
void gpu_judge_backward_case(const attention_case *c, fa_kernel kernel);
/* The same for a call whose tensors the test has edited; nothing is poisoned here. Deterministic as its options say. */
void gpu_judge_backward_call(backward_call *b, fa_kernel kernel);

/* One run. */
gradients gpu_run_backward(backward_call *b, fa_kernel kernel);

/* Runs the case `runs` times with `deterministic` and fails the test unless all answers are the same bits. prepare, if not NULL, is called before each
 * run, with its number. */
void gpu_assert_backward_repeatable(const attention_case *c, fa_kernel kernel, int runs, void (*prepare)(int run));

#endif
