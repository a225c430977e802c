/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of the bias, a pass of its own: only it needs dS in memory, and only it sums over what bias
 * broadcasts. */
#ifndef FA_CPU_BACKWARD_BIAS_H
#define FA_CPU_BACKWARD_BIAS_H

#include "cpu/backward_tile.h"

/* Tiles of dbias. Units are independent of each other. 0 if dbias is not wanted. */
int64_t fa_backward_bias_units(const fa_gradients *g);
/* Bytes that a thread needs for one, 64-byte aligned. */
int64_t fa_backward_bias_workspace(const fa_backward_context *c);
/* lse and delta as in backward.c: [heads_kv][all_rows]. */
void fa_backward_bias_unit(const fa_backward_context *c, int64_t unit, const float *lse, const float *delta,
                           int64_t all_rows, char *workspace);

#endif
