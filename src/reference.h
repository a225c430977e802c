/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two slow ways to compute attention, row by row, for everything the API offers. Both use the caller's thread
 * alone and memory for one row of scores.
 */
#ifndef FA_REFERENCE_H
#define FA_REFERENCE_H

#include "problem.h"

/* Float64 from the inputs to the rounding of the output: the oracle. */
fa_status fa_reference_forward(const fa_problem *problem);

/* Attention as it was written before FlashAttention: S = Q K^T, P = softmax(S), O = P V, sums in float32 and
 * each of S, P and O rounded to the inputs' dtype (float64 inputs: float64 throughout). An error budget is a
 * multiple of what this loses. */
fa_status fa_standard_forward(const fa_problem *problem);

/* Bytes that either needs. */
int64_t fa_reference_workspace(const fa_problem *problem);

#endif
