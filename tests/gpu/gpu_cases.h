/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases for GPU kernels, and judging them: the same on the emulator and on a GPU, which only gets larger ones as
 * well.
 */
#ifndef FLASHATTN_TEST_GPU_CASES_H
#define FLASHATTN_TEST_GPU_CASES_H

#include "support/attention_case.h"

/* Case number `index` of this run's seed, of what the GPU kernel takes: over all its features and layouts at once. */
attention_case gpu_random_case(const char *name, uint64_t index, fa_kernel kernel);

/* The same of what its backward takes. */
attention_case gpu_random_backward_case(const char *name, uint64_t index, fa_kernel kernel);

/* float16 or bfloat16, one sequence, two heads on one, more than one tile of queries and keys. */
attention_case gpu_plain_case(const char *name, fa_element type, int64_t head_dim);

/* GPU kernels of this build; the standard kernel stands for its GPU version. */
enum { GPU_KERNELS = 4 };
extern const fa_kernel gpu_kernels[GPU_KERNELS];

/*
 * Where the functions below run GPU kernels from now on: an emulated machine as FLASHATTN_MACHINE names it, or with
 * NULL, as at first, GPU 0 by way of cuda_calls.c. Reference and yardstick stay on the CPU.
 */
void gpu_use_machine(const char *specification);
/* An emulated machine that the name and index choose: another part and another order of threads for each. v3 is for Hopper
 * alone. */
void gpu_choose_machine(const char *name, uint64_t index, fa_kernel kernel);
/* From now on gpu_choose_machine() keeps to what gpu_use_machine() said, GPU 0 at first. */
void gpu_choose_gpu_0(void);
/* Whether it runs the kernel: v3 is for Hopper alone. Emulated machines are chosen so that they do. */
bool gpu_runs(fa_kernel kernel);
/* Its name, for messages. */
const char *gpu_name(void);
/* Calls of the library in between run there. */
void gpu_calls_begin(void);
void gpu_calls_end(void);
/* In this thread, fa_forward and fa_backward are being called for GPU 0. */
extern _Thread_local bool gpu_calls_on_cuda;

/*
 * Runs the case and fails the test unless it keeps the rule of judge.h, measured by the standard kernel in the
 * inputs' dtype: a GPU kernel rounds the weights to it before it multiplies them with V. The standard kernel itself is
 * measured by its own roundings.
 */
void gpu_judge_case(const attention_case *c, fa_kernel kernel);
/* The same for a call whose tensors the test has edited; nothing is poisoned here. */
void gpu_judge_call(attention_call *a, fa_kernel kernel);

/* Runs the case `runs` times and fails the test unless all answers are the same bits. */
void gpu_assert_repeatable(const attention_case *c, fa_kernel kernel, int runs);

#endif
