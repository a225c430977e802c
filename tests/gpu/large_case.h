/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are too large to compute again in full: on the GPU only, a sample of rows is judged. */
#ifndef FLASHATTN_TEST_LARGE_CASE_H
#define FLASHATTN_TEST_LARGE_CASE_H

#include "flashattn.h"

typedef struct large_case {
    const char *name;
    fa_dtype type;
    int64_t batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim;
    fa_causal causal; /* none or bottom-right */
    int64_t row_gap;  /* elements between a row of q, k, v or out and the next, beyond the heads' own */
} large_case;

/*
 * Runs the case on the GPU and judges some rows of out and lse, the corners among them: their error against the
 * reference is at most twice that of the standard kernel, in the largest and in the Frobenius norm over the sample.
 * Skips what the GPU has no memory for.
 */
void judge_large_case(const large_case *c, fa_kernel kernel);

#endif
