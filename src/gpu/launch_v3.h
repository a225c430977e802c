/* SPDX-License-Identifier: Apache-2.0 */
/* What the v3 forward kernel needs beyond the others: tensor maps, and an order of work for its persistent blocks. */
#ifndef FA_GPU_LAUNCH_V3_H
#define FA_GPU_LAUNCH_V3_H

#include "gpu/launch_forward.h"
#include "kernels/v3_params.h"

/* NULL if q, k and v can be read by TMA, and out be written as the forward kernel does, else why not, in `text`. */
#define FA_V3_OBSTACLE_TEXT 160
const char *fa_v3_obstacle(const fa_problem *problem, char text[FA_V3_OBSTACLE_TEXT]);
/* The same for q, k and v alone. */
const char *fa_v3_input_obstacle(const fa_problem *problem, char text[FA_V3_OBSTACLE_TEXT]);
/* Whether TMA can read a tensor with q's batch and rows. */
bool fa_v3_reads(const fa_problem *problem, const fa_rows *t);

/* The tensor map of q, k, v or something like them: (column, row, head, batch entry), in boxes of `page` columns, 64 or 32,
 * in the swizzle that is so wide, and box_rows rows. Variable length: batch 1. */
fa_status fa_v3_encode(const fa_machine *machine, const fa_rows *t, int64_t columns, int64_t rows, int64_t heads,
                       int64_t batch, int32_t page, int32_t box_rows, fa_tensor_map *map);

/* tiles: query tiles of all sequences and heads. */
void fa_v3_plan(const fa_problem *problem, int64_t tiles, fa_gpu_plan *plan);

/* workspace: that of the plan; NULL if it needs none. forward: what every forward kernel is told. */
fa_status fa_v3_params_init(fa_v3_params *params, const fa_problem *problem, const fa_gpu_plan *plan,
                            const fa_forward_params *forward, void *workspace);

#endif
