/* SPDX-License-Identifier: Apache-2.0 */
/* What the v3 forward kernel needs beyond the others: tensor maps, and an order of work for its persistent blocks. */
#ifndef FA_GPU_LAUNCH_V3_H
#define FA_GPU_LAUNCH_V3_H

#include "gpu/launch_forward.h"
#include "kernels/v3_params.h"

/* NULL if the tensors can be read by TMA, else why not, in `text`. */
#define FA_V3_OBSTACLE_TEXT 160
const char *fa_v3_obstacle(const fa_problem *problem, char text[FA_V3_OBSTACLE_TEXT]);

/* tiles: query tiles of all sequences and heads. */
void fa_v3_plan(const fa_problem *problem, int64_t tiles, fa_gpu_plan *plan);

/* workspace: that of the plan; NULL if it needs none. forward: what every forward kernel is told. */
fa_status fa_v3_params_init(fa_v3_params *params, const fa_problem *problem, const fa_gpu_plan *plan,
                            const fa_forward_params *forward, void *workspace);

#endif
