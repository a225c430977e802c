/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two slow ways to compute attention and its gradients, row by row, for everything the API offers. Both use the
 * caller's thread alone; forward, memory for one row of scores.
 */
#ifndef FA_REFERENCE_H
#define FA_REFERENCE_H

#include "gradients.h"
#include "problem.h"

/* Float64 from the inputs to the rounding of the output: the oracle. */
fa_status fa_reference_forward(const fa_problem *problem);

/* Attention as it was written before FlashAttention: S = Q K^T, P = softmax(S), O = P V, sums in float32 and
 * each of S, P and O rounded to the inputs' dtype (float64 inputs: float64 throughout). An error budget is a
 * multiple of what this loses. */
fa_status fa_standard_forward(const fa_problem *problem);

/* Bytes that either needs. */
int64_t fa_reference_workspace(const fa_problem *problem);

/* The gradients: float64 throughout, from the out and lse that are given. */
fa_status fa_reference_backward(const fa_gradients *gradients);

/* The gradients as they were computed before FlashAttention, except that P comes from lse and D from out: S, P, dP, dS
 * and the results rounded to the inputs' dtype, sums in float32 (float64 inputs: float64 throughout). */
fa_status fa_standard_backward(const fa_gradients *gradients);

/* Bytes that either needs: the reference's sums, of dk and dv for the longest sequence and of all of dbias. */
int64_t fa_reference_backward_workspace(const fa_gradients *gradients);

/* The score of a pair, -inf if it is masked. *slope: 1 - tanh^2, by which softcap changes a score's gradient; 1 without
 * softcap; not set if masked. */
double fa_reference_score(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row, int64_t key,
                          double *slope);
double fa_standard_score(const fa_problem *p, const fa_sequence *s, int64_t head, int64_t row, int64_t key,
                         double *slope);

#endif
